//! The handler of one node: watches what concerns it and reconciles each policy, one at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use berth_core::Address;
use berth_desk::Desks;
use berth_ledger::kube::Connection;
use futures::StreamExt;
use k8s_openapi::api::core::v1::Node;
use kube::api::{DynamicObject, PartialObjectMeta};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use kube::{Api, Client, ResourceExt};
use rand::RngExt;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::execute::{HandlerError, Next};
use super::observe::{ThisNode, is_ours};
use super::plan::{Mode, Peers};
use crate::capture::PoolPolicy;
use crate::host::Host;
use crate::objects::{self, ENACTMENT, NODE_IP_POOL, NODE_LABEL, NODE_STATE, POLICY, POLICY_LABEL};
use crate::store::PoolStore;

/// How often the NodeNetworkState is compared with the host.
const REFRESH: Duration = Duration::from_secs(60);
/// How long signs of change are gathered.
const GATHER: Duration = Duration::from_millis(50);
/// After an error of the API server or the host program.
const LATER: Duration = Duration::from_secs(2);

impl Peers {
    /// Before they are read: nothing holds this node up.
    pub(super) fn unlimited() -> Peers {
        Peers {
            max_unavailable: usize::MAX,
            ..Peers::default()
        }
    }
}

#[derive(Clone, Debug)]
pub struct HandlerConfig {
    pub node: String,
    pub mode: Mode,
    pub host: Host,
    /// For one request to the API server.
    pub timeout: Duration,
}

/// What concerns this node has changed.
#[derive(Debug)]
enum Sign {
    Node(Option<ThisNode>),
    /// A policy is there, with the pools that it names.
    Policy(String, BTreeSet<String>),
    PolicyGone(String),
    Enactment(String),
    Pool(String),
    /// All policies were listed: one that is not among them may have gone unheard.
    Listed,
}

pub struct Handler {
    pub config: HandlerConfig,
    pub(super) store: PoolStore,
    pub(super) desks: Desks,
    pub(super) policies: Api<DynamicObject>,
    pub(super) enactments: Api<DynamicObject>,
    pub(super) states: Api<DynamicObject>,
    client: Client,
    node: Mutex<Option<ThisNode>>,
}

impl fmt::Debug for Handler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Handler");
        debug.field("config", &self.config).finish_non_exhaustive()
    }
}

/// What is known of one policy between two plans. Losing it costs time, never an address.
#[derive(Debug, Default)]
pub(super) struct Memory {
    granted: BTreeMap<(String, String), Address>,
    /// The pools, by UID and generation, that the last apply failed with.
    failed_with: BTreeMap<String, (String, i64)>,
    next_try: Option<Instant>,
    /// Whether the host lacked an address when it was first looked at.
    lost: Option<bool>,
}

impl Memory {
    pub const fn is_first_look(&self) -> bool {
        self.lost.is_none()
    }

    pub fn has_lost(&self) -> bool {
        self.lost == Some(true)
    }

    pub fn looked(&mut self, lost: bool) {
        self.lost = Some(lost);
    }

    pub fn grant(&mut self, pool: &str, capture: &str, address: Address) {
        let key = (pool.to_owned(), capture.to_owned());
        self.granted.insert(key, address);
    }

    pub fn granted(&self, pool: &str, capture: &str) -> Option<Address> {
        let key = (pool.to_owned(), capture.to_owned());
        self.granted.get(&key).copied()
    }

    pub fn failed(&mut self, pause: Duration, pools: BTreeMap<String, (String, i64)>) {
        self.next_try = Some(Instant::now() + pause);
        self.failed_with = pools;
    }

    pub fn succeeded(&mut self) {
        self.next_try = None;
        self.failed_with.clear();
    }

    pub fn has_changed(&self, pool: &str, identity: &(String, i64)) -> bool {
        let known = self.failed_with.get(pool);
        known.is_some_and(|known| known != identity)
    }

    pub fn backoff(&self) -> Option<Duration> {
        let left = self.next_try?.checked_duration_since(Instant::now())?;
        (!left.is_zero()).then_some(left)
    }

    pub fn forget(&mut self) {
        *self = Memory::default();
    }
}

impl Handler {
    pub fn new(connection: &Connection, desks: Desks, config: HandlerConfig) -> Handler {
        let client = connection.client.clone();
        let api = |kind| objects::api(client.clone(), kind);
        Handler {
            config,
            store: PoolStore::new(connection),
            desks,
            policies: api(POLICY),
            enactments: api(ENACTMENT),
            states: api(NODE_STATE),
            client,
            node: Mutex::default(),
        }
    }

    pub(super) fn this_node(&self) -> Option<ThisNode> {
        let node = self.node.lock().unwrap_or_else(PoisonError::into_inner);
        node.clone()
    }

    pub(super) async fn ask<T>(
        &self,
        request: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, HandlerError> {
        let answer = tokio::time::timeout(self.config.timeout, request).await;
        Ok(answer.map_err(|_| HandlerError::NoAnswer)??)
    }

    /// Serves until told to stop. What was begun is resumed by the next start.
    pub async fn run(&self, stop: CancellationToken) {
        let (signs, heard) = mpsc::channel(1024);
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.watch(signs) => {}
            () = self.work(heard) => {}
        }
    }

    async fn work(&self, mut signs: mpsc::Receiver<Sign>) {
        let mut policies: BTreeMap<String, Known> = BTreeMap::new();
        let mut refresh = Instant::now();
        loop {
            let due = policies.values().filter_map(|known| known.due).min();
            let due = due.map_or(refresh, |due| due.min(refresh));
            let sign = tokio::select! {
                sign = signs.recv() => match sign {
                    Some(sign) => Some(sign),
                    None => return,
                },
                () = tokio::time::sleep_until(due) => None,
            };
            if let Some(sign) = sign {
                self.take(sign, &mut policies);
                tokio::time::sleep(GATHER).await;
                while let Ok(sign) = signs.try_recv() {
                    self.take(sign, &mut policies);
                }
            }
            if Instant::now() >= refresh && self.config.mode == Mode::Host {
                if let Err(error) = self.publish_state().await {
                    tracing::debug!(%error, "the NodeNetworkState was not written");
                }
                refresh = Instant::now() + REFRESH;
            } else if Instant::now() >= refresh {
                refresh = Instant::now() + REFRESH;
            }
            let now = Instant::now();
            let due: Vec<String> = policies
                .iter()
                .filter(|(_, known)| known.due.is_some_and(|due| due <= now))
                .map(|(name, _)| name.clone())
                .collect();
            for name in due {
                let Some(known) = policies.get_mut(&name) else {
                    continue;
                };
                known.due = None;
                let outcome = self.reconcile(&name, &mut known.memory).await;
                known.due = match outcome {
                    Ok(Next::Settled) => None,
                    Ok(Next::After(pause)) => Some(Instant::now() + jittered(pause)),
                    Err(error) => {
                        tracing::warn!(policy = name, %error, "the policy was not served; tried again");
                        Some(Instant::now() + jittered(LATER))
                    }
                };
                if known.gone && known.due.is_none() {
                    policies.remove(&name);
                }
            }
        }
    }

    fn take(&self, sign: Sign, policies: &mut BTreeMap<String, Known>) {
        let now = Some(Instant::now());
        match sign {
            Sign::Node(node) => {
                let mut known = self.node.lock().unwrap_or_else(PoisonError::into_inner);
                if *known != node {
                    *known = node;
                    policies.values_mut().for_each(|known| known.due = now);
                }
            }
            Sign::Policy(name, pools) => {
                let known = policies.entry(name).or_default();
                (known.pools, known.gone, known.due) = (pools, false, now);
            }
            Sign::PolicyGone(name) => {
                let known = policies.entry(name).or_default();
                (known.gone, known.due) = (true, now);
            }
            Sign::Listed => policies.values_mut().for_each(|known| known.due = now),
            Sign::Enactment(name) => {
                let known = policies.entry(name).or_default();
                known.due = now;
            }
            Sign::Pool(pool) => {
                let of_pool = policies.values_mut();
                of_pool
                    .filter(|known| known.pools.contains(&pool))
                    .for_each(|known| known.due = now);
            }
        }
    }

    async fn watch(&self, signs: mpsc::Sender<Sign>) {
        let name = &self.config.node;
        let one = watcher::Config::default().fields(&format!("metadata.name={name}"));
        let own = watcher::Config::default().labels(&format!("{NODE_LABEL}={name}"));
        let all = watcher::Config::default;
        // Of a pool only that it changed: it is read when a policy needs it.
        let pools: Api<PartialObjectMeta<DynamicObject>> =
            Api::all_with(self.client.clone(), &objects::resource(NODE_IP_POOL));
        let nodes = Api::<Node>::all(self.client.clone());
        tokio::join!(
            follow(watch(nodes, one), &signs, |event| node_signs(&event)),
            follow(watch(self.policies.clone(), all()), &signs, policy_signs),
            follow(watch(self.enactments.clone(), own), &signs, enactment_signs),
            follow(watch(pools, all()), &signs, pool_signs),
        );
    }
}

/// A policy that this node has heard of.
#[derive(Debug, Default)]
struct Known {
    pools: BTreeSet<String>,
    gone: bool,
    due: Option<Instant>,
    memory: Memory,
}

fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(rand::rng().random_range(0.7..1.3))
}

async fn follow<K: Send>(
    events: impl futures::Stream<Item = watcher::Result<Event<K>>> + Send,
    signs: &mpsc::Sender<Sign>,
    read: impl Fn(Event<K>) -> Vec<Sign>,
) {
    let mut events = std::pin::pin!(events.default_backoff());
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                for sign in read(event) {
                    if signs.send(sign).await.is_err() {
                        return;
                    }
                }
            }
            Err(error) => tracing::debug!(%error, "a watch ended; it begins again"),
        }
    }
}

fn node_signs(event: &Event<Node>) -> Vec<Sign> {
    match event {
        Event::Apply(node) | Event::InitApply(node) => {
            let conditions = node
                .status
                .as_ref()
                .and_then(|status| status.conditions.as_ref());
            let ready = conditions.is_some_and(|all| {
                all.iter()
                    .any(|one| one.type_ == "Ready" && one.status == "True")
            });
            let labels = node.labels().clone();
            vec![Sign::Node(Some(ThisNode {
                uid: node.uid().unwrap_or_default(),
                labels,
                ready,
            }))]
        }
        Event::Delete(_) => vec![Sign::Node(None)],
        Event::Init | Event::InitDone => Vec::new(),
    }
}

fn policy_signs(event: Event<DynamicObject>) -> Vec<Sign> {
    match event {
        Event::Apply(object) | Event::InitApply(object) => {
            let value = objects::value(&object);
            let spec = PoolPolicy::read(value.get("spec").unwrap_or(&serde_json::Value::Null));
            let pools = spec.as_ref().map(|spec| {
                let names = spec.wanted().map(|(_, pool)| pool.to_owned());
                names.collect::<BTreeSet<String>>()
            });
            // One that can't be read is refused if it is about pools; any other is left to kubernetes-nmstate.
            let text = value["spec"].to_string();
            let about_pools = text.contains("ippool") || text.contains("\"ipam\"");
            match pools {
                Ok(pools) if pools.is_empty() => Vec::new(),
                Err(_) if !about_pools => Vec::new(),
                pools => vec![Sign::Policy(object.name_any(), pools.unwrap_or_default())],
            }
        }
        Event::Delete(object) => vec![Sign::PolicyGone(object.name_any())],
        Event::InitDone => vec![Sign::Listed],
        Event::Init => Vec::new(),
    }
}

/// Enactments of policies that were deleted while this process did not run are found by this.
fn enactment_signs(event: Event<DynamicObject>) -> Vec<Sign> {
    match event {
        Event::Apply(object) | Event::InitApply(object) | Event::Delete(object) => {
            let value = objects::value(&object);
            let policy = objects::label(&value, POLICY_LABEL);
            let ours = is_ours(&value).then_some(policy).flatten();
            ours.map(|policy| Sign::Enactment(policy.to_owned()))
                .into_iter()
                .collect()
        }
        Event::Init | Event::InitDone => Vec::new(),
    }
}

fn pool_signs(event: Event<PartialObjectMeta<DynamicObject>>) -> Vec<Sign> {
    match event {
        Event::Apply(object) | Event::InitApply(object) | Event::Delete(object) => {
            vec![Sign::Pool(object.name_any())]
        }
        Event::Init | Event::InitDone => Vec::new(),
    }
}
