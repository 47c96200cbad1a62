//! The service account that the plugin acts as: its token and the cluster's CA, read again whenever they are asked
//! for, because a kubelet replaces both while we run.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::error::InstallError;
use crate::templates::{self, Cluster};

/// Where credentials come from, as a pod has them.
#[derive(Debug, Clone)]
pub struct ClusterSource {
    pub token_file: PathBuf,
    pub ca_file: PathBuf,
    pub skip_tls_verify: bool,
    pub protocol: String,
    pub host: Option<String>,
    pub port: Option<String>,
    /// The namespace of the pools; that of the service account if none is named, else kube-system.
    pub namespace: Option<String>,
}

impl ClusterSource {
    pub(crate) fn read(&self) -> Result<Cluster, InstallError> {
        let token = self.token()?;
        let authority = match self.skip_tls_verify {
            true => None,
            false => Some(self.authority()?),
        };
        let host = variable("KUBERNETES_SERVICE_HOST", self.host.as_deref())?;
        let port = variable("KUBERNETES_SERVICE_PORT", self.port.as_deref())?;
        Ok(Cluster {
            server: templates::server(&self.protocol, host, port),
            authority,
            token,
            namespace: self.namespace(),
        })
    }

    fn token(&self) -> Result<String, InstallError> {
        let odd = |what: &str, advice: &str| InstallError::Credentials {
            what: format!("{} {what}", self.token_file.display()),
            advice: advice.to_owned(),
        };
        let text = match fs::read_to_string(&self.token_file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(odd(
                    "is not there, and the plugin needs a service account's token",
                    "run in a pod whose service account is mounted, name a file with --token-file, or pass \
                     --standalone on a node that is in no cluster",
                ));
            }
            Err(error) => {
                return Err(odd(
                    &format!("can't be read ({})", error.kind()),
                    "name another file with --token-file",
                ));
            }
        };
        let token = text.trim_end_matches(['\n', '\r']);
        // What is wrong with it is not shown: it may be most of a token.
        if token.is_empty() || !token.chars().all(|c| c.is_ascii_graphic()) {
            return Err(odd(
                "has no token in it",
                "one line of printable characters is expected",
            ));
        }
        Ok(token.to_owned())
    }

    fn authority(&self) -> Result<Vec<u8>, InstallError> {
        match fs::read(&self.ca_file) {
            Ok(pem) if !pem.is_empty() => Ok(pem),
            other => Err(InstallError::Credentials {
                what: match other {
                    Ok(_) => format!("{} is empty", self.ca_file.display()),
                    Err(error) => format!(
                        "{} can't be read ({})",
                        self.ca_file.display(),
                        error.kind()
                    ),
                },
                advice: "it should have the cluster's CA; name its file with --ca-file (KUBE_CA_FILE), or trust any \
                         server with --skip-tls-verify (SKIP_TLS_VERIFY)"
                    .to_owned(),
            }),
        }
    }

    fn namespace(&self) -> String {
        let beside = || {
            let file = self
                .token_file
                .parent()
                .map(|dir: &Path| dir.join("namespace"))?;
            let text = fs::read_to_string(file).ok()?;
            let name = text.trim();
            (!name.is_empty()).then(|| name.to_owned())
        };
        self.namespace
            .clone()
            .or_else(beside)
            .unwrap_or_else(|| "kube-system".to_owned())
    }
}

fn variable<'a>(name: &str, value: Option<&'a str>) -> Result<&'a str, InstallError> {
    value.ok_or_else(|| InstallError::Credentials {
        what: format!("{name} is not set"),
        advice: "a pod has it from its kubelet; elsewhere, set it to where the API server is"
            .to_owned(),
    })
}
