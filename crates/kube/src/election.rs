//! Leader election by a Lease, and a handle that says whether this process leads.
//!
//! Promises: at most one process believes that it leads, as long as clocks run at about the same rate: no two
//! machines' clocks are compared, each times for itself how long the Lease has not changed. **Correctness
//! does not depend on it**: every write of a leader is conditional on what it read, so a leader that was deposed
//! without noticing it changes nothing. Leadership only reduces conflicts.
//!
//! ```text
//!   Following --free, released, or unchanged for its duration: guarded update--> Leading
//!   Leading   --renewed every third of the duration; not renewed for 5/6 of it, or another's name on it--> Following
//!   stop      --the Lease is released: another replica takes it at its next read
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::{Api, Client};
use rand::RngExt;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// A Lease that its holder does not renew is taken over after this, whatever duration it says: one that another program wrote
/// keeps no replica from leading for longer.
const LONGEST: Duration = Duration::from_secs(300);

/// Annotations of leaders.
const OURS: &str = "berth.dev/";

/// How a process stands for election.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The Lease's name, in the namespace of the pools.
    pub lease: String,
    /// This process; no other may have the name.
    pub identity: String,
    /// What it publishes on the Lease while it leads, such as where it serves agents: annotations.
    pub notice: BTreeMap<String, String>,
    /// How long a leader that is gone goes unnoticed, at least a second.
    pub duration: Duration,
}

/// Who leads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leader {
    pub identity: String,
    /// The annotations of its Lease.
    pub notice: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default)]
struct Standing {
    leader: Option<Leader>,
    /// This process leads, until then.
    until: Option<Instant>,
    term: i32,
}

/// Says whether this process leads now, and which process does.
#[derive(Clone, Debug)]
pub struct Leadership {
    identity: Arc<str>,
    standing: watch::Receiver<Standing>,
}

impl Leadership {
    /// A process that needs no election: it always leads.
    pub fn sole(identity: &str, notice: BTreeMap<String, String>) -> Leadership {
        let standing = Standing {
            leader: Some(Leader {
                identity: identity.to_owned(),
                notice,
            }),
            until: Some(Instant::now() + Duration::from_secs(10 * 365 * 24 * 3600)),
            term: 0,
        };
        Leadership {
            identity: identity.into(),
            standing: watch::channel(standing).1,
        }
    }

    /// Whether this process leads, by its own clock: true no longer than until another may have taken over.
    pub fn is_leading(&self) -> bool {
        let until = self.standing.borrow().until;
        until.is_some_and(|until| Instant::now() < until)
    }

    /// Grows each time that the Lease passes on.
    pub fn term(&self) -> i32 {
        self.standing.borrow().term
    }

    /// Who led when the Lease was last read.
    pub fn leader(&self) -> Option<Leader> {
        self.standing.borrow().leader.clone()
    }

    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Returns when this process leads.
    pub async fn until_leading(&mut self) {
        while !self.is_leading() {
            if self.standing.changed().await.is_err() {
                // The election task has ended: this process is stopping.
                return std::future::pending().await;
            }
        }
    }

    /// Returns when this process has ceased to lead.
    pub async fn until_deposed(&mut self) {
        loop {
            let until = self.standing.borrow_and_update().until;
            let Some(until) = until.filter(|until| Instant::now() < *until) else {
                return;
            };
            tokio::select! {
                () = tokio::time::sleep_until(until) => {}
                // The election task has ended: what is left of the term counts.
                Ok(()) = self.standing.changed() => {}
            }
        }
    }
}

/// Stands for election until stopped, then releases the Lease.
pub struct Election {
    leases: Api<Lease>,
    candidate: Candidate,
    standing: watch::Sender<Standing>,
    /// The Lease's version, and since when it has been that.
    seen: Option<(String, Instant)>,
}

impl std::fmt::Debug for Election {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Election")
            .field("candidate", &self.candidate)
            .finish_non_exhaustive()
    }
}

impl Election {
    pub fn new(client: Client, namespace: &str, candidate: Candidate) -> (Election, Leadership) {
        let (standing, receiver) = watch::channel(Standing::default());
        let leadership = Leadership {
            identity: candidate.identity.as_str().into(),
            standing: receiver,
        };
        let election = Election {
            leases: Api::namespaced(client, namespace),
            candidate,
            standing,
            seen: None,
        };
        (election, leadership)
    }

    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            let pause = self.candidate.duration / 3;
            match tokio::time::timeout(pause, self.step()).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    let error = crate::error::chain(&error);
                    tracing::warn!(%error, "the lease can't be read or renewed; retrying")
                }
                Err(_) => tracing::warn!("no answer to the renewal of the lease; retrying"),
            }
            // Replicas that were started together must not collide at every read.
            let jitter = rand::rng().random_range(0.8..1.0);
            tokio::select! {
                () = stop.cancelled() => break,
                () = tokio::time::sleep(pause.mul_f64(jitter)) => {}
            }
        }
        let limit = self.candidate.duration;
        if tokio::time::timeout(limit, self.give_back()).await.is_err() {
            tracing::warn!("the lease was not released; it expires by itself");
        }
    }

    async fn step(&mut self) -> Result<(), kube::Error> {
        let started = Instant::now();
        let found = self.leases.get_opt(&self.candidate.lease).await?;
        let Some(lease) = found else {
            let mark = self.mark(None);
            let made = self.leases.create(&PostParams::default(), &mark).await;
            return self.outcome(made, started);
        };
        let spec = lease.spec.clone().unwrap_or_default();
        let holder = spec.holder_identity.clone().unwrap_or_default();
        let version = lease.metadata.resource_version.clone().unwrap_or_default();
        if self.seen.as_ref().is_none_or(|(seen, _)| *seen != version) {
            self.seen = Some((version, started));
        }
        if holder != self.candidate.identity && !holder.is_empty() {
            let takeover_after =
                takeover_after(spec.lease_duration_seconds, self.candidate.duration);
            let unchanged = self.seen.as_ref().map(|(_, since)| started - *since);
            if unchanged.is_none_or(|unchanged| unchanged < takeover_after) {
                self.follow(&lease, holder);
                return Ok(());
            }
            tracing::info!(holder, "the leader is gone: taking over");
        }
        let next = self.mark(Some(&lease));
        let made = self
            .leases
            .replace(&self.candidate.lease, &PostParams::default(), &next)
            .await;
        self.outcome(made, started)
    }

    fn outcome(
        &mut self,
        written: Result<Lease, kube::Error>,
        started: Instant,
    ) -> Result<(), kube::Error> {
        match written {
            Ok(lease) => {
                let version = lease.metadata.resource_version.unwrap_or_default();
                self.seen = Some((version, started));
                let term = lease.spec.and_then(|spec| spec.lease_transitions);
                let was = self.standing.borrow().until.is_some();
                if !was {
                    tracing::info!(identity = self.candidate.identity, "this process leads");
                }
                self.standing.send_replace(Standing {
                    leader: Some(Leader {
                        identity: self.candidate.identity.clone(),
                        notice: self.candidate.notice.clone(),
                    }),
                    // From before the request: others can't have seen it earlier than that.
                    until: Some(started + self.candidate.duration * 5 / 6),
                    term: term.unwrap_or_default(),
                });
                Ok(())
            }
            // Another process was quicker, or removed it.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
                self.depose(None);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn follow(&self, lease: &Lease, holder: String) {
        self.depose(Some(Leader {
            identity: holder,
            notice: lease.metadata.annotations.clone().unwrap_or_default(),
        }));
    }

    fn depose(&self, leader: Option<Leader>) {
        if self.standing.borrow().until.is_some() {
            tracing::warn!(?leader, "this process leads no longer");
        }
        self.standing.send_if_modified(|standing| {
            let changed = standing.until.is_some() || standing.leader != leader;
            standing.until = None;
            standing.leader = leader;
            changed
        });
    }

    /// The Lease as ours, over what was found.
    fn mark(&self, found: Option<&Lease>) -> Lease {
        let now = MicroTime(Timestamp::now());
        let before = found.and_then(|lease| lease.spec.clone());
        let before = before.unwrap_or_default();
        let mine = before.holder_identity.as_deref() == Some(&self.candidate.identity);
        let transitions = before.lease_transitions.unwrap_or_default();
        let mut metadata = found
            .map(|lease| lease.metadata.clone())
            .unwrap_or_else(|| ObjectMeta {
                name: Some(self.candidate.lease.clone()),
                ..ObjectMeta::default()
            });
        metadata.managed_fields = None;
        // What the previous leader published is no longer true.
        let annotations = metadata.annotations.get_or_insert_default();
        annotations.retain(|name, _| !name.starts_with(OURS));
        annotations.extend(self.candidate.notice.clone());
        let seconds = self.candidate.duration.as_secs_f64().ceil().max(1.0) as i32;
        Lease {
            metadata,
            spec: Some(LeaseSpec {
                holder_identity: Some(self.candidate.identity.clone()),
                lease_duration_seconds: Some(seconds),
                acquire_time: if mine {
                    before.acquire_time
                } else {
                    Some(now.clone())
                },
                renew_time: Some(now),
                lease_transitions: Some(if mine || found.is_none() {
                    transitions
                } else {
                    transitions.saturating_add(1)
                }),
                ..before
            }),
        }
    }

    async fn give_back(&self) {
        if self.standing.borrow().until.is_none() {
            return;
        }
        self.depose(None);
        let found = self.leases.get_opt(&self.candidate.lease).await;
        let Ok(Some(mut lease)) = found else {
            return;
        };
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_deref() != Some(&self.candidate.identity) {
            return;
        }
        spec.holder_identity = Some(String::new());
        spec.lease_duration_seconds = Some(1);
        let params = PostParams::default();
        match self
            .leases
            .replace(&self.candidate.lease, &params, &lease)
            .await
        {
            Ok(_) => tracing::info!("the lease was released"),
            Err(error) => {
                tracing::warn!(%error, "the lease was not released; it expires by itself")
            }
        }
    }
}

/// How long a Lease of another goes unchanged before it is taken over.
fn takeover_after(duration: Option<i32>, own: Duration) -> Duration {
    let duration = u64::try_from(duration.unwrap_or_default()).unwrap_or_default();
    Duration::from_secs(duration).min(LONGEST).max(own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_foreign_lease_is_waited_for_no_longer_than_five_minutes() {
        let seconds = |duration| takeover_after(duration, Duration::from_secs(15)).as_secs();
        // Sixty-eight years, says a Lease that another program wrote.
        assert_eq!(seconds(Some(i32::MAX)), 300);
        assert_eq!(seconds(Some(60)), 60);
        for duration in [None, Some(-1), Some(1)] {
            assert_eq!(seconds(duration), 15);
        }
    }
}
