//! The leader's loop: watches tell that something is to be done; every write is decided by quorum reads.
//!
//! Guarantees: correctness does not rest on leadership. A pool's status is written under the version that was read, an enactment is
//! deleted by its UID, a reset annotation is removed only where it still stands (I4, I6).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use berth_core::Moment;
use berth_ledger::LedgerError;
use berth_ledger::kube::events::{Events, Tone};
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::api::DynamicObject;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use kube::{Api, Client, ResourceExt};
use serde_json::Value;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::execute;
use super::plan::{Step, plan};
use super::policies;
use super::seen::{self, Seen};
use crate::objects::{self, ENACTMENT, Kind, NODE_IP_POOL, NODE_STATE, POLICY};
use crate::pool::{Health, codec};
use crate::store::PoolStore;

/// After a conflict or an error.
const SOON: Duration = Duration::from_millis(500);

#[derive(Clone, Debug)]
pub struct UpkeepConfig {
    /// How long no enactment must claim an offset before it is released (I4).
    pub grace: Duration,
    /// How long signs of change are gathered.
    pub gather: Duration,
    /// How often everything is planned without a sign.
    pub resync: Duration,
    /// This process, in events.
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
    seen: Mutex<Seen>,
    changed: Notify,
}

impl fmt::Debug for Upkeep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Upkeep");
        debug.field("config", &self.config).finish_non_exhaustive()
    }
}

/// What is known of a pool between two plans of one term.
#[derive(Debug, Default)]
struct Memory {
    uid: String,
    unclaimed: BTreeMap<u64, Moment>,
}

impl Upkeep {
    pub fn new(client: Client, store: PoolStore, config: UpkeepConfig) -> Upkeep {
        let (timeout, identity) = (config.timeout, config.identity.clone());
        Upkeep {
            events: Events::new(client.clone(), timeout, "berth-controller", &identity),
            config,
            client,
            store,
            seen: Mutex::default(),
            changed: Notify::new(),
        }
    }

    /// Whether everything was listed.
    pub fn is_ready(&self) -> bool {
        self.look(|seen| seen.is_complete())
    }

    fn look<T>(&self, read: impl FnOnce(&mut Seen) -> T) -> T {
        read(&mut self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Watches until told to stop; a follower does that too, so that it can take over at once.
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
                    tracing::debug!(%error, "a watch ended; it begins again");
                    continue;
                }
            }
            self.changed.notify_one();
        }
    }

    /// Works until the term ends. What was known in an earlier term proves nothing: grace periods begin anew.
    pub async fn lead(&self, term: CancellationToken) {
        let mut memories: BTreeMap<String, Memory> = BTreeMap::new();
        let mut due = Instant::now();
        loop {
            tokio::select! {
                () = term.cancelled() => return,
                () = self.changed.notified() => tokio::time::sleep(self.config.gather).await,
                () = tokio::time::sleep_until(due) => {}
            }
            let pause = tokio::select! {
                () = term.cancelled() => return,
                pause = self.pass(&mut memories) => pause,
            };
            due = Instant::now() + pause.min(self.config.resync);
        }
    }

    /// Looks at everything once; how long until the next look is due.
    async fn pass(&self, memories: &mut BTreeMap<String, Memory>) -> Duration {
        let known = self.look(|seen| seen.is_complete().then(|| seen.clone()));
        let Some(known) = known else {
            return SOON;
        };
        let mut pause = self.config.resync;
        if self.is_anything_due(&known, memories) {
            match Seen::read(&self.client).await {
                Ok(read) => pause = pause.min(self.pools(&read, memories).await),
                Err(error) => {
                    tracing::warn!(%error, "pools can't be looked after; tried again");
                    pause = SOON * 4;
                }
            }
        }
        let waits = memories
            .values()
            .flat_map(|memory| memory.unclaimed.values());
        if let Some(first) = waits.min() {
            let over = first.plus(self.config.grace).0.saturating_sub(now().0);
            pause = pause.min(Duration::from_millis(over + 10));
        }
        memories.retain(|name, _| known.pools.iter().flatten().any(|(pool, _)| pool == name));
        for (name, policy) in known.policies().filter(|(_, policy)| policy.is_ours()) {
            if let Some(patch) = policies::conditions(&known, name, policy)
                && !self.write_policy(name, &policy.object, patch).await
            {
                pause = SOON;
            }
        }
        self.report_unknown_resets(&known).await;
        pause
    }

    /// Whether a plan on what the watches show would change anything.
    fn is_anything_due(&self, known: &Seen, memories: &mut BTreeMap<String, Memory>) -> bool {
        let spaces = known.spaces();
        let mut due = false;
        for (name, object) in known.pools() {
            let memory = memories.entry(name.clone()).or_default();
            let uid = objects::uid(object);
            if memory.uid != uid {
                *memory = Memory {
                    uid: uid.to_owned(),
                    unclaimed: BTreeMap::new(),
                };
            }
            due |= match codec::decode(object) {
                Err(error) => {
                    let health = invalid(&error.to_string());
                    execute::invalid(object, &health, Timestamp::now()).is_some()
                }
                Ok(read) => {
                    let time = (self.config.grace, now());
                    let unclaimed = memory.unclaimed.clone();
                    let observed = known.observed(name, &read, &spaces, unclaimed, time);
                    let outcome = plan(&observed);
                    memory.unclaimed = outcome.unclaimed.clone();
                    let is_write = |step: &Step| {
                        !matches!(step, Step::ReportHeld { .. } | Step::ReportForeign(_))
                    };
                    outcome.steps.iter().any(is_write)
                        || execute::next(object, &read, &outcome, Timestamp::now()).is_some()
                }
            };
        }
        due
    }

    async fn pools(&self, seen: &Seen, memories: &mut BTreeMap<String, Memory>) -> Duration {
        let spaces = seen.spaces();
        let mut pause = self.config.resync;
        for (name, object) in seen.pools() {
            let read = match codec::decode(object) {
                Ok(read) => read,
                Err(error) => {
                    let why = error.to_string();
                    let next = execute::invalid(object, &invalid(&why), Timestamp::now());
                    if let Some(next) = next
                        && self.write(name, &next).await
                    {
                        self.tell(NODE_IP_POOL, object, Tone::Warning, "InvalidIPPool", &why)
                            .await;
                    }
                    continue;
                }
            };
            let memory = memories.entry(name.clone()).or_default();
            let unclaimed = match memory.uid == objects::uid(object) {
                true => memory.unclaimed.clone(),
                false => BTreeMap::new(),
            };
            let time = (self.config.grace, now());
            let outcome = plan(&seen.observed(name, &read, &spaces, unclaimed, time));
            memory.uid = objects::uid(object).to_owned();
            memory.unclaimed = outcome.unclaimed.clone();
            let next = execute::next(object, &read, &outcome, Timestamp::now());
            if let Some(next) = &next
                && !self.write(name, next).await
            {
                pause = SOON;
                continue;
            }
            if next.is_some() {
                self.report(object, &outcome).await;
                // The next plan tells whether it is done.
                pause = pause.min(SOON);
            }
            for step in &outcome.steps {
                if let Err(error) = self.finish(seen, name, step).await {
                    tracing::warn!(pool = name, %error, "a step is tried again");
                    pause = SOON;
                }
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

fn invalid(why: &str) -> Health {
    Health::Invalid {
        why: why.to_owned(),
    }
}

fn now() -> Moment {
    codec::moment(Timestamp::now())
}
