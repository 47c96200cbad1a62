//! How to reach Google's APIs: endpoints, token, and which VM this is.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use berth_gcp::cloud::{Cloud, Endpoints, Metadata, TokenSource, Whereabouts};
use clap::Args;

use crate::exit::Negative;

#[derive(Debug, Args)]
pub struct CloudArgs {
    /// Use another Compute API than Google's.
    #[arg(long, env = "BERTH_COMPUTE_ENDPOINT", value_name = "URL")]
    compute_endpoint: Option<String>,
    /// Use another Network Connectivity API than Google's.
    #[arg(long, env = "BERTH_NETWORKCONNECTIVITY_ENDPOINT", value_name = "URL")]
    networkconnectivity_endpoint: Option<String>,
    /// A service account's key [default: the token of the VM's service account].
    #[arg(long, env = "BERTH_GCP_KEY_FILE", value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// The metadata server [default: metadata.google.internal].
    #[arg(long, env = "GCE_METADATA_HOST", value_name = "HOST")]
    metadata_host: Option<String>,
    /// Seconds until an operation counts as lost.
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=3600))]
    operation_timeout: u64,
}

impl CloudArgs {
    pub fn metadata(&self) -> Metadata {
        Metadata::new(self.metadata_host.as_deref())
    }

    pub const fn timeout(&self) -> Duration {
        Duration::from_secs(self.operation_timeout)
    }

    pub fn client(&self, project: &str) -> anyhow::Result<Cloud> {
        let endpoints = Endpoints::new(
            self.compute_endpoint.as_deref(),
            self.networkconnectivity_endpoint.as_deref(),
        );
        let endpoints = endpoints.map_err(|error| Negative::Usage(error.to_string()))?;
        let named = self.key_file.clone();
        let source = match named.filter(|file| !file.as_os_str().is_empty()) {
            Some(file) => TokenSource::KeyFile(file),
            None => TokenSource::Metadata(self.metadata()),
        };
        Ok(Cloud::new(project, endpoints, source, self.timeout()))
    }

    /// Which VM this is; `instead` names the flag that would make the question unnecessary.
    pub async fn this_vm(&self, instead: &str) -> anyhow::Result<Whereabouts> {
        let found = self.metadata().whereabouts().await;
        found.with_context(|| format!("find this VM; outside Google Cloud {instead}"))
    }
}
