//! The leader's loop: watches trigger a pass; every write is decided by quorum reads.
//!
//! Guarantees: correctness does not rest on leadership. A pool's status is written under the version that was read, an enactment is
//! deleted by its UID, a reset annotation is removed only where it still stands (I4, I6).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use berth_collector::GracePeriods;
use berth_collector::suspicions::{Round, Suspicions};
use berth_core::Moment;
use berth_kube::events::{Events, Tone};
use berth_ledger::LedgerError;
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::api::DynamicObject;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use kube::{Api, Client, ResourceExt};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::execute;
use super::plan::{Claim, Outcome, Step, plan};
use super::policies;
use super::seen::{self, Seen};
use crate::metrics::UpkeepMetrics;
use crate::objects::{self, ENACTMENT, Kind, NODE_IP_POOL, NODE_STATE, POLICY};
use crate::pool::{Health, codec};
use crate::store::PoolStore;

/// After a conflict or an error.
const SOON: Duration = Duration::from_millis(500);

#[derive(Clone, Debug)]
pub struct UpkeepConfig {
    /// How long no enactment must claim an offset before it is released (I4).
    pub grace: Duration,
    /// How long changes are collected before a pass.
    pub gather: Duration,
    /// How often everything is planned without a change.
    pub resync: Duration,
    /// The name of this process in events.
    pub identity: String,
    /// For one request to the API server.
    pub timeout: Duration,
}

impl UpkeepConfig {
    pub fn new(identity: impl Into<String>) -> UpkeepConfig {
        UpkeepConfig {
            grace: Duration::from_secs(60),
            gather: Duration::from_millis(100),
            resync: Duration::from_secs(300),
            identity: identity.into(),
            timeout: Duration::from_secs(10),
        }
    }
}

pub struct Upkeep {
    config: UpkeepConfig,
    client: Client,
    store: PoolStore,
    pub(super) events: Events,
    /// Events of this term: UID, reason and message.
    pub(super) written: Mutex<BTreeSet<(String, String, String)>>,
    seen: Mutex<Seen>,
    changed: Notify,
    metrics: UpkeepMetrics,
}

impl fmt::Debug for Upkeep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Upkeep");
        debug.field("config", &self.config).finish_non_exhaustive()
    }
}

/// What one term of leadership knows between two passes: which addresses were read as unclaimed, and when the next grace period ends.
#[derive(Debug, Default)]
struct Term {
    suspicions: Suspicions,
    next: Option<Moment>,
}

impl Term {
    /// Compares a read of everything with the reads before, and keeps what it suspects.
    fn compare<T>(&mut self, grace: Duration, read: impl FnOnce(&mut Round<'_>) -> T) -> T {
        let grace = GracePeriods {
            pod: grace,
            node: grace,
        };
        let mut round = Round::new(&self.suspicions, grace, now());
        let found = read(&mut round);
        (self.suspicions, self.next) = round.done();
        found
    }
}

impl Upkeep {
    pub fn new(client: Client, store: PoolStore, config: UpkeepConfig) -> Upkeep {
        let (timeout, identity) = (config.timeout, config.identity.clone());
        Upkeep {
            events: Events::new(client.clone(), timeout, "berth-controller", &identity),
            written: Mutex::default(),
            config,
            client,
            store,
            seen: Mutex::default(),
            changed: Notify::new(),
            metrics: UpkeepMetrics::default(),
        }
    }

    pub const fn metrics(&self) -> &UpkeepMetrics {
        &self.metrics
    }

    /// Whether everything was listed.
    pub fn is_ready(&self) -> bool {
        self.look(|seen| seen.is_complete())
    }

    fn look<T>(&self, read: impl FnOnce(&mut Seen) -> T) -> T {
        read(&mut self.seen.lock())
    }

    /// Watches until it is stopped; a follower watches too, so that it can take over at once.
    pub async fn follow(&self, stop: CancellationToken) {
        let kinds = async {
            let nodes = Api::<Node>::all(self.client.clone());
            tokio::join!(
                self.keep(
                    self.api(NODE_IP_POOL),
                    |seen| &mut seen.pools,
                    |one| Some(objects::value(one))
                ),
                self.keep(
                    self.api(POLICY),
                    |seen| &mut seen.policies,
                    |one| Some(seen::policy(one))
                ),
                self.keep(
                    self.api(ENACTMENT),
                    |seen| &mut seen.enactments,
                    seen::enactment
                ),
                self.keep(
                    self.api(NODE_STATE),
                    |seen| &mut seen.states,
                    |one| Some(seen::state(one))
                ),
                self.keep(
                    nodes,
                    |seen| &mut seen.nodes,
                    |one: &Node| Some(one.labels().clone())
                ),
            );
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = kinds => {}
        }
    }

    pub(super) fn api(&self, kind: Kind) -> Api<DynamicObject> {
        objects::api(self.client.clone(), kind)
    }

    async fn keep<K, T>(
        &self,
        api: Api<K>,
        place: impl Fn(&mut Seen) -> &mut Option<BTreeMap<String, T>>,
        reduce: impl Fn(&K) -> Option<T>,
    ) where
        K: kube::Resource + Clone + serde::de::DeserializeOwned + fmt::Debug + Send + 'static,
    {
        let config = watcher::Config::default().page_size(100);
        let mut events = std::pin::pin!(watch(api, config).default_backoff());
        let mut listed: BTreeMap<String, T> = BTreeMap::new();
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Init) => listed.clear(),
                Ok(Event::InitApply(object)) => {
                    if let Some(read) = reduce(&object) {
                        listed.insert(object.name_any(), read);
                    }
                }
                Ok(Event::InitDone) => {
                    let all = std::mem::take(&mut listed);
                    self.look(|seen| *place(seen) = Some(all));
                }
                Ok(Event::Apply(object)) => {
                    let name = object.name_any();
                    let read = reduce(&object);
                    self.look(|seen| {
                        let all = place(seen).get_or_insert_default();
                        match read {
                            Some(read) => drop(all.insert(name, read)),
                            None => drop(all.remove(&name)),
                        }
                    });
                }
                Ok(Event::Delete(object)) => {
                    let name = object.name_any();
                    self.look(|seen| place(seen).get_or_insert_default().remove(&name));
                }
                Err(error) => {
                    tracing::debug!(%error, "a watch failed; it is restarted");
                    continue;
                }
            }
            self.changed.notify_one();
        }
    }

    /// Works until the term ends. Reads of an earlier term prove nothing: grace periods start over.
    pub async fn lead(&self, term: CancellationToken) {
        self.written.lock().clear();
        tokio::select! {
            () = term.cancelled() => {}
            () = self.work() => {}
        }
        self.metrics.clear();
    }

    async fn work(&self) {
        let mut known = Term::default();
        let mut due = Instant::now();
        loop {
            tokio::select! {
                () = self.changed.notified() => tokio::time::sleep(self.config.gather).await,
                () = tokio::time::sleep_until(due) => {}
            }
            let pause = self.pass(&mut known).await;
            due = Instant::now() + pause.min(self.config.resync);
        }
    }

    /// Reconciles everything once; returns the time until the next pass.
    async fn pass(&self, term: &mut Term) -> Duration {
        let known = self.look(|seen| seen.is_complete().then(|| seen.clone()));
        let Some(known) = known else {
            return SOON;
        };
        let mut pause = self.config.resync;
        let mut foreign = Vec::new();
        let due = term.compare(self.config.grace, |round| {
            self.is_anything_due(&known, round, &mut foreign)
        });
        if due {
            match Seen::read(&self.client).await {
                Ok(read) => pause = pause.min(self.pools(&read, term).await),
                Err(error) => {
                    tracing::warn!(%error, "NodeIPPools are not reconciled: a list failed; retrying");
                    pause = SOON * 4;
                }
            }
        }
        if let Some(next) = term.next {
            let left = next.0.saturating_sub(now().0);
            pause = pause.min(Duration::from_millis(left + 10));
        }
        for (name, policy) in known.policies().filter(|(_, policy)| policy.is_ours()) {
            if let Some(patch) = policies::conditions(&known, name, policy)
                && !self.write_policy(name, &policy.object, patch).await
            {
                pause = SOON;
            }
        }
        self.report_foreign(&known, &foreign).await;
        self.report_unknown_resets(&known).await;
        self.report_unnameable(&known).await;
        self.report_failures(&known).await;
        self.count(&known);
        pause
    }

    /// Whether a plan on what the watches show would change anything, and the claims in it that no pool has.
    fn is_anything_due(
        &self,
        known: &Seen,
        round: &mut Round<'_>,
        foreign: &mut Vec<(String, Claim)>,
    ) -> bool {
        let spaces = known.spaces();
        let mut due = false;
        for (name, object) in known.pools() {
            due |= match codec::decode(object) {
                Err(error) => {
                    let health = invalid(&error.to_string());
                    execute::invalid(object, &health, Timestamp::now()).is_some()
                }
                Ok(read) => {
                    let outcome = plan(&known.observed(name, &read, &spaces), round);
                    let is_write = |step: &Step| {
                        !matches!(step, Step::ReportHeld { .. } | Step::ReportForeign(_))
                    };
                    foreign.extend(outcome.steps.iter().filter_map(|step| match step {
                        Step::ReportForeign(claim) => Some((name.clone(), claim.clone())),
                        _ => None,
                    }));
                    outcome.steps.iter().any(is_write)
                        || execute::next(object, &read, &outcome, Timestamp::now()).is_some()
                }
            };
        }
        due
    }

    /// Plans all pools on one quorum read, then executes.
    async fn pools(&self, seen: &Seen, term: &mut Term) -> Duration {
        let spaces = seen.spaces();
        let planned: Vec<Planned<'_>> = term.compare(self.config.grace, |round| {
            let pools = seen.pools().map(|(name, object)| {
                let read = codec::decode(object).map_err(|error| error.to_string());
                let plan = read.map(|read| {
                    let outcome = plan(&seen.observed(name, &read, &spaces), round);
                    (read, outcome)
                });
                Planned { name, object, plan }
            });
            pools.collect()
        });
        let mut pause = self.config.resync;
        for one in planned {
            pause = pause.min(self.execute(seen, one).await);
        }
        pause
    }

    async fn execute(&self, seen: &Seen, planned: Planned<'_>) -> Duration {
        let Planned { name, object, plan } = planned;
        let (read, outcome) = match plan {
            Ok(planned) => planned,
            Err(why) => {
                let next = execute::invalid(object, &invalid(&why), Timestamp::now());
                if let Some(next) = next
                    && self.write(name, &next).await
                {
                    self.tell(NODE_IP_POOL, object, Tone::Warning, "InvalidIPPool", &why)
                        .await;
                }
                return self.config.resync;
            }
        };
        let mut pause = self.config.resync;
        let next = execute::next(object, &read, &outcome, Timestamp::now());
        if let Some(next) = &next {
            if !self.write(name, next).await {
                return SOON;
            }
            self.count_released(name, &outcome);
            self.report(object, &outcome).await;
            // The next plan tells whether it is done.
            pause = pause.min(SOON);
        }
        for step in &outcome.steps {
            if let Err(error) = self.finish(seen, name, step).await {
                tracing::warn!(pool = name, %error, "a step of the pool's plan failed; retrying");
                pause = SOON;
            }
        }
        pause
    }

    /// Whether it was written.
    async fn write(&self, name: &str, object: &Value) -> bool {
        match self.store.put(name, object).await {
            Ok(()) => true,
            Err(LedgerError::Conflict { .. }) => false,
            Err(error) => {
                tracing::warn!(pool = name, %error, "the pool's status was not written");
                false
            }
        }
    }
}

/// A pool, and the plan for it or why its spec can't be used.
struct Planned<'a> {
    name: &'a str,
    object: &'a Value,
    plan: Result<(codec::NodePool, Outcome), String>,
}

fn invalid(why: &str) -> Health {
    Health::Invalid {
        why: why.to_owned(),
    }
}

fn now() -> Moment {
    codec::moment(Timestamp::now())
}
