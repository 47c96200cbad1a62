//! Whose turn it is to sweep: a mark that the last sweeper left, and no leader.
//!
//! Every agent looks at the mark about once per interval. One that finds it as it was at its last look knows that nobody
//! swept in between; it moves the mark on, guarded by the mark's version, and sweeps. Of several that try, one
//! succeeds. An agent that dies after moving the mark costs one interval. Nothing rests on it: two sweeps at once
//! would do the same work twice and no harm, for every release names what it releases (I6).
//!
//! No two machines' clocks are compared, but at an agent's very first look.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::PostParams;
use kube::{Api, Client};

/// The mark's name, in the namespace of the pools.
pub const MARK: &str = "berth-sweep";

/// Whether this process leads, at the time it is asked.
#[derive(Clone)]
pub(super) struct Leads(Arc<dyn Fn() -> bool + Send + Sync>);

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

pub(super) struct Turn {
    /// Decides instead of the mark, where there is somebody who leads.
    leads: Option<Leads>,
    marks: Api<Lease>,
    node: String,
    interval: Duration,
    timeout: Duration,
    /// The mark's version at the last look; the inner none: there was no mark.
    seen: Option<Option<String>>,
}

impl fmt::Debug for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turn")
            .field("node", &self.node)
            .field("seen", &self.seen)
            .finish_non_exhaustive()
    }
}

impl Turn {
    pub fn new(
        client: Client,
        namespace: &str,
        node: &str,
        interval: Duration,
        timeout: Duration,
    ) -> Turn {
        Turn {
            leads: None,
            marks: Api::namespaced(client, namespace),
            node: node.to_owned(),
            interval,
            timeout,
            seen: None,
        }
    }

    /// The same, whose turn it is whenever this process leads.
    #[must_use]
    pub fn led(mut self, leads: Leads) -> Turn {
        self.leads = Some(leads);
        self
    }

    /// Looks at the mark; true if it is ours to sweep now.
    pub async fn take(&mut self) -> Result<bool, kube::Error> {
        if let Some(leads) = &self.leads {
            return Ok(leads.0());
        }
        match tokio::time::timeout(self.timeout, self.look()).await {
            Ok(outcome) => outcome,
            Err(_) => Err(kube::Error::Service("no answer about the mark".into())),
        }
    }

    async fn look(&mut self) -> Result<bool, kube::Error> {
        let mark = self.marks.get_opt(MARK).await?;
        let version = mark
            .as_ref()
            .and_then(|mark| mark.metadata.resource_version.clone());
        let due = match &self.seen {
            Some(seen) => *seen == version,
            None => is_old(mark.as_ref(), self.interval),
        };
        self.seen = Some(version.clone());
        if !due {
            return Ok(false);
        }
        let moved = match version {
            // deploy/agent makes it, and grants no right to: only where a role of one's own does.
            None => {
                self.marks
                    .create(&PostParams::default(), &self.mark(ObjectMeta::default()))
                    .await
            }
            Some(_) => {
                let metadata = mark.map(|mark| mark.metadata).unwrap_or_default();
                let next = self.mark(metadata);
                self.marks
                    .replace(MARK, &PostParams::default(), &next)
                    .await
            }
        };
        match moved {
            Ok(mark) => {
                self.seen = Some(mark.metadata.resource_version);
                Ok(true)
            }
            // Somebody else was quicker, or has removed it.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The mark as it is moved on; what others wrote beside stays (I7).
    fn mark(&self, found: ObjectMeta) -> Lease {
        Lease {
            metadata: ObjectMeta {
                name: Some(MARK.to_owned()),
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

/// Whether the mark says that the last sweep was longer ago than an interval, or says nothing.
fn is_old(mark: Option<&Lease>, interval: Duration) -> bool {
    let moved = mark
        .and_then(|mark| mark.spec.as_ref())
        .and_then(|spec| spec.renew_time.as_ref());
    let Some(MicroTime(moved)) = moved else {
        return true;
    };
    let interval = SignedDuration::try_from(interval).unwrap_or(SignedDuration::MAX);
    Timestamp::now().duration_since(*moved).abs() > interval
}
