//! What the client counts: requests in the groups that Google's rates are counted in, and how long operations take.

use std::time::Duration;

use hyper::Method;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use super::error::CloudError;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RequestLabel {
    group: &'static str,
    outcome: &'static str,
}

/// The counters of one client.
#[derive(Clone, Debug)]
pub struct CloudMetrics {
    requests: Family<RequestLabel, Counter>,
    operation_seconds: Histogram,
}

impl Default for CloudMetrics {
    fn default() -> CloudMetrics {
        CloudMetrics {
            requests: Family::default(),
            operation_seconds: Histogram::new(exponential_buckets(0.1, 2.0, 11)),
        }
    }
}

impl CloudMetrics {
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "requests",
            "Requests to Google by quota group",
            self.requests.clone(),
        );
        registry.register(
            "operation_seconds",
            "How long operations took",
            self.operation_seconds.clone(),
        );
    }

    pub(super) fn requested<T>(&self, method: &Method, url: &str, ended: &Result<T, CloudError>) {
        let group = match *method == Method::GET {
            true => "read",
            false if url.ends_with("/wait") => "wait",
            false => "change",
        };
        let outcome = match ended {
            Ok(_) => "ok",
            Err(CloudError::RateLimited { .. }) => "limited",
            Err(CloudError::Unavailable(_) | CloudError::OperationTimeout(_)) => "failed",
            Err(_) => "refused",
        };
        self.requests
            .get_or_create(&RequestLabel { group, outcome })
            .inc();
    }

    pub(super) fn operated(&self, took: Duration) {
        self.operation_seconds.observe(took.as_secs_f64());
    }
}
