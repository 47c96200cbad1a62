//! Which process sweeps next: the one that renews a Lease, without a leader.
//!
//! Every agent reads the Lease about once per interval. If it has the version of the agent's last read, no other agent
//! swept in between: the agent renews it, guarded by that version, and sweeps. Of several that try, one
//! succeeds. An agent that dies after it renewed the Lease costs one interval. Correctness does not rest on it: two sweeps
//! at once do the same work twice and no harm, for every release names what it releases (I6).
//!
//! Clocks of two machines are compared only at an agent's very first read.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::PostParams;
use kube::{Api, Client};

/// The name of the Lease that agents share, in the namespace of the pools.
pub const LEASE: &str = "berth-sweep";

/// Whether this process leads now.
#[derive(Clone)]
pub(crate) struct Leads(Arc<dyn Fn() -> bool + Send + Sync>);

impl Leads {
    pub fn new(leads: impl Fn() -> bool + Send + Sync + 'static) -> Leads {
        Leads(Arc::new(leads))
    }
}

impl fmt::Debug for Leads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Leads")
    }
}

pub(crate) struct SweepLease {
    /// Decides instead of the Lease, in a process that may lead.
    leads: Option<Leads>,
    leases: Api<Lease>,
    node: String,
    interval: Duration,
    timeout: Duration,
    /// The version of the Lease at the last read; the inner none: there was no Lease.
    last: Option<Option<String>>,
}

impl fmt::Debug for SweepLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SweepLease")
            .field("node", &self.node)
            .field("last", &self.last)
            .finish_non_exhaustive()
    }
}

impl SweepLease {
    pub fn new(
        client: Client,
        namespace: &str,
        node: &str,
        interval: Duration,
        timeout: Duration,
    ) -> SweepLease {
        SweepLease {
            leads: None,
            leases: Api::namespaced(client, namespace),
            node: node.to_owned(),
            interval,
            timeout,
            last: None,
        }
    }

    /// The same for a process that sweeps whenever it leads.
    #[must_use]
    pub fn led(mut self, leads: Leads) -> SweepLease {
        self.leads = Some(leads);
        self
    }

    /// Whether this process is to sweep now.
    pub async fn take(&mut self) -> Result<bool, kube::Error> {
        if let Some(leads) = &self.leads {
            return Ok(leads.0());
        }
        match tokio::time::timeout(self.timeout, self.renew()).await {
            Ok(outcome) => outcome,
            Err(_) => Err(kube::Error::Service(
                format!("no answer about Lease {LEASE}").into(),
            )),
        }
    }

    async fn renew(&mut self) -> Result<bool, kube::Error> {
        let lease = self.leases.get_opt(LEASE).await?;
        let version = lease
            .as_ref()
            .and_then(|lease| lease.metadata.resource_version.clone());
        let due = match &self.last {
            Some(last) => *last == version,
            None => is_old(lease.as_ref(), self.interval),
        };
        self.last = Some(version.clone());
        if !due {
            return Ok(false);
        }
        let renewed = match version {
            // deploy/agent brings the Lease and grants no right to create it; a user's own role may.
            None => {
                self.leases
                    .create(&PostParams::default(), &self.lease(ObjectMeta::default()))
                    .await
            }
            Some(_) => {
                let metadata = lease.map(|lease| lease.metadata).unwrap_or_default();
                let next = self.lease(metadata);
                self.leases
                    .replace(LEASE, &PostParams::default(), &next)
                    .await
            }
        };
        match renewed {
            Ok(lease) => {
                self.last = Some(lease.metadata.resource_version);
                Ok(true)
            }
            // Another agent renewed it first, or it was deleted.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The renewed Lease; what others wrote beside stays (I7).
    fn lease(&self, found: ObjectMeta) -> Lease {
        Lease {
            metadata: ObjectMeta {
                name: Some(LEASE.to_owned()),
                managed_fields: None,
                ..found
            },
            spec: Some(LeaseSpec {
                holder_identity: Some(self.node.clone()),
                renew_time: Some(MicroTime(Timestamp::now())),
                lease_duration_seconds: i32::try_from(self.interval.as_secs().max(1)).ok(),
                ..LeaseSpec::default()
            }),
        }
    }
}

/// Whether the last sweep was longer ago than an interval, or the Lease does not say.
fn is_old(lease: Option<&Lease>, interval: Duration) -> bool {
    let renewed = lease
        .and_then(|lease| lease.spec.as_ref())
        .and_then(|spec| spec.renew_time.as_ref());
    let Some(MicroTime(renewed)) = renewed else {
        return true;
    };
    let interval = SignedDuration::try_from(interval).unwrap_or(SignedDuration::MAX);
    Timestamp::now().duration_since(*renewed).abs() > interval
}
