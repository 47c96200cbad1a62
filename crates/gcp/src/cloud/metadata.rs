//! The metadata server: who and where this VM is, and its service account's token.

use std::time::Duration;

use hyper::Method;
use hyper::body::Bytes;

use super::error::CloudError;
use super::http::{Http, Outgoing, parse};
use super::token::Issued;

const HOST: &str = "metadata.google.internal";
const TIMEOUT: Duration = Duration::from_secs(5);

/// The metadata server of this VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metadata {
    host: String,
}

/// Which VM this is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whereabouts {
    pub project: String,
    pub zone: String,
    pub instance: String,
}

impl Whereabouts {
    /// The region of the zone: `us-central1` of `us-central1-a`.
    pub fn region(&self) -> &str {
        self.zone
            .rsplit_once('-')
            .map_or(&self.zone, |(region, _)| region)
    }
}

impl Default for Metadata {
    fn default() -> Metadata {
        Metadata {
            host: HOST.to_owned(),
        }
    }
}

impl Metadata {
    /// Google's own, or the one that `GCE_METADATA_HOST` names (`host` or `host:port`).
    pub fn new(host: Option<&str>) -> Metadata {
        host.filter(|host| !host.is_empty())
            .map_or_else(Metadata::default, |host| Metadata {
                host: host.to_owned(),
            })
    }

    /// Which VM this is.
    pub async fn whereabouts(&self) -> Result<Whereabouts, CloudError> {
        let http = Http::new();
        let project = self.text(&http, "project/project-id").await?;
        let zone = self.text(&http, "instance/zone").await?;
        let instance = match self.text(&http, "instance/name").await {
            // GKE's own metadata server, which pods with Workload Identity see, has the host's name alone: NAME.ZONE.c.PROJECT.internal.
            Err(CloudError::NotFound(_)) => {
                let host = self.text(&http, "instance/hostname").await?;
                host.split('.').next().unwrap_or_default().to_owned()
            }
            name => name?,
        };
        // `projects/123/zones/us-central1-a`.
        let zone = zone.rsplit('/').next().unwrap_or_default().to_owned();
        for (what, value) in [
            ("project/project-id", &project),
            ("instance/zone", &zone),
            ("instance/name", &instance),
        ] {
            let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | ':' | '_');
            if value.is_empty() || !value.chars().all(plain) {
                let text = format!(
                    "metadata server {}: {what} is '{}', which is no name",
                    self.host,
                    value.escape_debug()
                );
                return Err(CloudError::Unavailable(text));
            }
        }
        Ok(Whereabouts {
            project,
            zone,
            instance,
        })
    }

    pub(super) async fn token(&self, http: &Http) -> Result<Issued, CloudError> {
        let bytes = self
            .get(http, "instance/service-accounts/default/token")
            .await?;
        issued(&bytes)
    }

    async fn text(&self, http: &Http, path: &str) -> Result<String, CloudError> {
        let bytes = self.get(http, path).await?;
        Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    async fn get(&self, http: &Http, path: &str) -> Result<Bytes, CloudError> {
        let url = format!("http://{}/computeMetadata/v1/{path}", self.host);
        let outgoing = Outgoing {
            method: Method::GET,
            url: &url,
            bearer: None,
            headers: &[("Metadata-Flavor", "Google")],
            body: None,
            timeout: TIMEOUT,
        };
        let named = |text: String| format!("metadata server {}: {text}", self.host);
        let answered = http.exchange(outgoing).await;
        let (headers, bytes) = answered.map_err(|error| match error {
            CloudError::NotFound(text) => CloudError::NotFound(named(text)),
            other => CloudError::Unavailable(named(other.to_string())),
        })?;
        // A captive portal or another service at this address would answer without it.
        if headers
            .get("Metadata-Flavor")
            .is_none_or(|flavour| flavour != "Google")
        {
            return Err(CloudError::Unavailable(named(
                "it does not answer as Google's metadata server does".to_owned(),
            )));
        }
        Ok(bytes)
    }
}

/// A token as OAuth answers it.
pub(super) fn issued(bytes: &[u8]) -> Result<Issued, CloudError> {
    let value = parse(bytes)?;
    let token = value["access_token"]
        .as_str()
        .filter(|token| !token.is_empty());
    let (Some(token), Some(seconds)) = (token, value["expires_in"].as_u64()) else {
        return Err(CloudError::Unavailable(
            "the answer has no access_token and expires_in".to_owned(),
        ));
    };
    Ok(Issued {
        token: token.to_owned(),
        lasts: Duration::from_secs(seconds.min(86_400)),
    })
}
