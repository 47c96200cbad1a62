//! A thin client of the Compute and Network Connectivity APIs: just the methods that the front calls.
//!
//! Guarantees: an empty list of alias ranges is really sent; a request that changes something carries a requestId of the
//! caller's, so that a repeat is not carried out twice; every failure is a [`CloudError`] whose variant is what the caller
//! decides by. It waits for operations with one `wait` call at a time and never polls.
//!
//! Google's own Rust client is not used: it omits empty lists, so it can't remove a NIC's last alias.

mod addresses;
mod endpoint;
mod error;
mod http;
mod instances;
mod key_file;
mod metadata;
mod metrics;
mod operations;
mod ranges;
mod request_id;
mod subnetworks;
mod token;

pub use addresses::Address;
pub use endpoint::{Endpoints, InvalidEndpoint};
pub use error::CloudError;
pub use instances::{AliasRange, Instance, Nic};
pub use metadata::{Metadata, Whereabouts};
pub use metrics::CloudMetrics;
pub use operations::{Operation, OperationScope};
pub use ranges::{InternalRange, RangeRequest};
pub use request_id::RequestId;
pub use subnetworks::{SecondaryRange, Subnetwork};
pub use token::TokenSource;

use std::sync::Arc;
use std::time::Duration;

/// A client of one project.
#[derive(Clone, Debug)]
pub struct Cloud {
    http: http::Http,
    tokens: Arc<token::Tokens>,
    endpoints: Endpoints,
    project: String,
    /// How long an operation may take before it counts as lost.
    operation_timeout: Duration,
    metrics: CloudMetrics,
}

impl Cloud {
    pub fn new(
        project: &str,
        endpoints: Endpoints,
        source: TokenSource,
        operation_timeout: Duration,
    ) -> Cloud {
        let http = http::Http::new();
        Cloud {
            tokens: Arc::new(token::Tokens::new(http.clone(), source)),
            http,
            endpoints,
            project: project.to_owned(),
            operation_timeout,
            metrics: CloudMetrics::default(),
        }
    }

    /// The same client, counting there.
    #[must_use]
    pub fn counted(self, metrics: CloudMetrics) -> Cloud {
        Cloud { metrics, ..self }
    }

    pub fn project(&self) -> &str {
        &self.project
    }
}
