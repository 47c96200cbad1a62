//! How the API server is reached: a kubeconfig file or the cluster that the process runs in.
//!
//! The client it makes never retries by itself: whether and when to try again is the desk's to
//! decide, with its deadline and the server's `Retry-After` in view.

use std::path::PathBuf;
use std::time::Duration;

use hyper::header::{HeaderValue, USER_AGENT as USER_AGENT_HEADER};
use kube::{Client, Config};
use serde::{Deserialize, Serialize};

use crate::reloading_client::{self, Source};
use crate::{KubeError, chain};

/// Where pools live when nothing names a namespace: whereabouts' own default.
pub const DEFAULT_NAMESPACE: &str = "kube-system";

const USER_AGENT: &str = concat!("berth/", env!("CARGO_PKG_VERSION"));

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Connect {
    /// A kubeconfig file; none: the service account of the pod that this runs in.
    pub kubeconfig: Option<PathBuf>,
    /// The namespace of all objects; none: the kubeconfig context's, else `kube-system`.
    pub namespace: Option<String>,
    /// One request, from its connection to the last byte of its answer.
    #[serde(with = "crate::retry::millis", rename = "request_timeout_ms")]
    pub timeout: Duration,
}

impl Default for Connect {
    fn default() -> Self {
        Self {
            kubeconfig: None,
            namespace: None,
            timeout: Duration::from_secs(10),
        }
    }
}

/// Whether programs that a kubeconfig names for credentials are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Programs {
    Refused,
    Run,
}

/// A client and what belongs to it.
#[derive(Clone)]
pub struct Connection {
    pub client: Client,
    pub namespace: String,
    pub timeout: Duration,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("namespace", &self.namespace)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

impl Connect {
    /// Reads the credentials and makes a client, which follows them. Does not talk to the server yet.
    /// A kubeconfig whose user has `exec` or `auth-provider` is refused: no program is run because a file names it.
    pub async fn open(&self) -> Result<Connection, KubeError> {
        self.open_by(Programs::Refused).await
    }

    /// The same for a person's own command, which may run the programs of that person's kubeconfig, as kubectl does.
    pub async fn open_as_person(&self) -> Result<Connection, KubeError> {
        self.open_by(Programs::Run).await
    }

    async fn open_by(&self, programs: Programs) -> Result<Connection, KubeError> {
        let source = match &self.kubeconfig {
            Some(path) => Source::Kubeconfig {
                path: path.clone(),
                programs,
            },
            None => Source::ServiceAccount,
        };
        reloading_client::open(self, source).await
    }

    /// The same with a configuration that the caller made.
    pub fn open_with(
        &self,
        mut config: Config,
        namespace: Option<String>,
    ) -> Result<Connection, KubeError> {
        // rustls refuses to guess when a process links several providers. One that was set before
        // stays.
        let _ = rustls::crypto::ring::default_provider().install_default();
        config.default_retry = false;
        // So that the server's audit log, and the managed fields of what is written, say who it was.
        let agent = HeaderValue::from_static(USER_AGENT);
        config.headers.push((USER_AGENT_HEADER, agent));
        // Shorter than the whole request: a server that can't be reached is then distinguished from one that
        // does not answer.
        config.connect_timeout = Some(self.timeout / 2);
        let url = config.cluster_url.to_string();
        let client = Client::try_from(config).map_err(|error| unreadable(&url, &error))?;
        Ok(Connection {
            client,
            namespace: self
                .namespace
                .clone()
                .or(namespace)
                .unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned()),
            timeout: self.timeout,
        })
    }
}

pub(super) fn unreadable(target: &str, error: &dyn std::error::Error) -> KubeError {
    KubeError::Unreadable {
        target: target.to_owned(),
        why: chain(error),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    async fn open(text: &str, namespace: Option<&str>) -> Result<Connection, KubeError> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        Connect {
            kubeconfig: Some(file.path().to_owned()),
            namespace: namespace.map(str::to_owned),
            ..Connect::default()
        }
        .open()
        .await
    }

    fn mk_kubeconfig(context: &str) -> String {
        format!(
            "{{apiVersion: v1, kind: Config, current-context: c,
               clusters: [{{name: k, cluster: {{server: 'http://127.0.0.1:1'}}}}],
               users: [{{name: u, user: {{token: t}}}}],
               contexts: [{{name: c, context: {{cluster: k, user: u{context}}}}}]}}"
        )
    }

    #[tokio::test]
    async fn the_namespace_is_the_settings_the_contexts_or_the_default() {
        let with = mk_kubeconfig(", namespace: nets");
        assert_eq!(open(&with, None).await.unwrap().namespace, "nets");
        assert_eq!(open(&with, Some("mine")).await.unwrap().namespace, "mine");
        let without = mk_kubeconfig("");
        assert_eq!(open(&without, None).await.unwrap().namespace, "kube-system");
    }

    #[tokio::test]
    async fn requests_say_that_they_are_berths() {
        use tokio::io::AsyncReadExt;
        let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = server.local_addr().unwrap().port();
        let kubeconfig = mk_kubeconfig("").replace("127.0.0.1:1", &format!("127.0.0.1:{port}"));
        let connection = open(&kubeconfig, None).await.unwrap();
        let asked = tokio::spawn(async move { connection.client.apiserver_version().await });
        let (mut stream, _) = server.accept().await.unwrap();
        let mut head = String::new();
        while !head.contains("\r\n\r\n") {
            let mut more = [0; 1024];
            let read = stream.read(&mut more).await.unwrap();
            assert_ne!(read, 0, "{head}");
            head.push_str(&String::from_utf8_lossy(&more[..read]));
        }
        drop(stream);
        assert!(asked.await.unwrap().is_err());
        let named = format!("user-agent: {USER_AGENT}\r\n");
        assert!(head.to_lowercase().contains(&named), "{head}");
    }

    #[tokio::test]
    async fn a_kubeconfig_that_can_not_be_used_is_named() {
        let missing = Connect {
            kubeconfig: Some("/nonexistent/kubeconfig".into()),
            ..Connect::default()
        };
        let error = missing.open().await.unwrap_err().to_string();
        assert!(error.contains("/nonexistent/kubeconfig"), "{error}");
        let dangling = mk_kubeconfig("").replace("current-context: c", "current-context: other");
        let error = open(&dangling, None).await.unwrap_err().to_string();
        assert!(
            error.contains("kubeconfig") && error.contains("other"),
            "{error}"
        );
        let error = open("[", None).await.unwrap_err().to_string();
        assert!(error.contains("left as it is"), "{error}");
    }
}
