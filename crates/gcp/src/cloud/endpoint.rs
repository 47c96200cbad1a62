//! Where the APIs are.

use hyper::Uri;
use thiserror::Error;

/// Base URLs without a trailing slash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoints {
    compute: String,
    network_connectivity: String,
}

#[derive(Debug, Error)]
#[error("{flag}: '{value}' is not a URL such as {example}")]
pub struct InvalidEndpoint {
    flag: &'static str,
    value: String,
    example: &'static str,
}

const COMPUTE: &str = "https://compute.googleapis.com";
const NETWORK_CONNECTIVITY: &str = "https://networkconnectivity.googleapis.com";

impl Default for Endpoints {
    fn default() -> Endpoints {
        Endpoints {
            compute: COMPUTE.to_owned(),
            network_connectivity: NETWORK_CONNECTIVITY.to_owned(),
        }
    }
}

impl Endpoints {
    /// Google's own, except where the admin names others.
    pub fn new(
        compute: Option<&str>,
        network_connectivity: Option<&str>,
    ) -> Result<Endpoints, InvalidEndpoint> {
        let defaults = Endpoints::default();
        Ok(Endpoints {
            compute: match compute {
                Some(given) => base(given, "--compute-endpoint", COMPUTE)?,
                None => defaults.compute,
            },
            network_connectivity: match network_connectivity {
                Some(given) => base(
                    given,
                    "--networkconnectivity-endpoint",
                    NETWORK_CONNECTIVITY,
                )?,
                None => defaults.network_connectivity,
            },
        })
    }

    pub(crate) fn compute(&self, path: &str) -> String {
        format!("{}/compute/v1/{path}", self.compute)
    }

    pub(crate) fn network_connectivity(&self, path: &str) -> String {
        format!("{}/v1/{path}", self.network_connectivity)
    }
}

fn base(given: &str, flag: &'static str, example: &'static str) -> Result<String, InvalidEndpoint> {
    let invalid = || InvalidEndpoint {
        flag,
        value: given.to_owned(),
        example,
    };
    let uri: Uri = given.parse().map_err(|_| invalid())?;
    let scheme = uri.scheme_str().unwrap_or_default();
    let bare = matches!(uri.path(), "" | "/") && uri.query().is_none();
    if !matches!(scheme, "http" | "https") || uri.authority().is_none() || !bare {
        return Err(invalid());
    }
    Ok(given.trim_end_matches('/').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_url_without_a_path() {
        let local = Endpoints::new(Some("http://127.0.0.1:8080/"), None).unwrap();
        assert_eq!(
            local.compute("projects/p"),
            "http://127.0.0.1:8080/compute/v1/projects/p"
        );
        assert_eq!(
            local.network_connectivity("projects/p"),
            "https://networkconnectivity.googleapis.com/v1/projects/p"
        );
        for wrong in [
            "",
            "127.0.0.1:8080",
            "ftp://x",
            "http://x/compute",
            "http://x?y",
        ] {
            let error = Endpoints::new(Some(wrong), None).unwrap_err().to_string();
            assert!(error.starts_with("--compute-endpoint: "), "{error}");
        }
    }
}
