//! The VM pools' API over the agent's socket. Guarantees that a refusal of the API becomes the documented exit code
//! ([`crate::exit`]), with the API's own message.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use berth_vms::http::Failure;
use hyper::body::Bytes;
use hyper::{Method, StatusCode};
use serde::de::DeserializeOwned;

use crate::agent_client;
use crate::exit::Negative;

pub struct VmClient {
    socket: PathBuf,
}

impl VmClient {
    pub fn new(socket: &Path) -> Self {
        Self {
            socket: socket.into(),
        }
    }

    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        self.call(Method::GET, path, Vec::new()).await
    }

    pub async fn post<T: DeserializeOwned>(&self, path: &str, body: Vec<u8>) -> anyhow::Result<T> {
        self.call(Method::POST, path, body).await
    }

    pub async fn put<T: DeserializeOwned>(&self, path: &str, body: Vec<u8>) -> anyhow::Result<T> {
        self.call(Method::PUT, path, body).await
    }

    pub async fn delete<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        self.call(Method::DELETE, path, Vec::new()).await
    }

    async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Vec<u8>,
    ) -> anyhow::Result<T> {
        let (status, text) = self.raw(method, path, body).await?;
        if status.is_success() {
            return serde_json::from_slice(&text).context("the agent's answer can't be read");
        }
        let Ok(failure) = serde_json::from_slice::<Failure>(&text) else {
            if status == StatusCode::NOT_FOUND {
                bail!(Negative::NotFound(format!(
                    "the agent at {} serves no VM pools: give it VM_POOL_IPS or --vm-settings",
                    self.socket.display()
                )));
            }
            bail!("the agent answered {status}");
        };
        match (status, failure.code.as_str()) {
            (StatusCode::NOT_FOUND, _) => bail!(Negative::NotFound(failure.error)),
            (StatusCode::CONFLICT | StatusCode::BAD_REQUEST, _) => {
                bail!(Negative::Refused(failure.error))
            }
            (_, "state-full" | "state-unreadable" | "state-refused") => {
                bail!(Negative::Broken(failure.error))
            }
            _ if failure.retry => bail!(Negative::Later(failure.error)),
            _ => bail!(failure.error),
        }
    }

    async fn raw(
        &self,
        method: Method,
        path: &str,
        body: Vec<u8>,
    ) -> anyhow::Result<(StatusCode, Bytes)> {
        let path = format!("/v1/vms{path}");
        agent_client::exchange(&self.socket, method, &path, body).await
    }
}

/// A query of the parts that are set.
pub fn query(parts: &[(&str, Option<String>)]) -> String {
    let given: Vec<String> = parts
        .iter()
        .filter_map(|(name, value)| Some(format!("{name}={}", encoded(value.as_ref()?))))
        .collect();
    match given.len() {
        0 => String::new(),
        _ => format!("?{}", given.join("&")),
    }
}

/// A path segment or a value of a query, escaped.
pub fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b':' => {
                out.push(byte.into())
            }
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_names_survive_a_url() {
        assert_eq!(encoded("a/b c?d=é"), "a%2Fb%20c%3Fd%3D%C3%A9");
        assert_eq!(encoded("unreadable-fd00::1"), "unreadable-fd00::1");
        assert_eq!(query(&[("pool", None), ("node", None)]), "");
        assert_eq!(
            query(&[("pool", Some("gpu".into())), ("node", Some("a&b".into()))]),
            "?pool=gpu&node=a%26b"
        );
    }
}
