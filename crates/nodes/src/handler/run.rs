//! The handler of one node: watches what concerns it and reconciles each policy, one at a time.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use berth_desk::Desks;
use berth_kube::Connection;
use futures::StreamExt;
use k8s_openapi::api::core::v1::Node;
use kube::api::{DynamicObject, PartialObjectMeta};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use kube::{Api, Client, ResourceExt};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::agenda::{Agenda, Sign};
use super::execute::{HandlerError, Next};
use super::observe::{ThisNode, is_ours};
use super::plan::{Mode, Peers};
use crate::capture::PoolPolicy;
use crate::host::Host;
use crate::metrics::HandlerMetrics;
use crate::objects::{self, ENACTMENT, NODE_IP_POOL, NODE_LABEL, NODE_STATE, POLICY, POLICY_LABEL};
use crate::pool::codec;
use crate::store::PoolStore;

/// How often the NodeNetworkState is compared with the host.
const REFRESH: Duration = Duration::from_secs(60);
/// How long changes are collected before policies are reconciled.
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
    /// The network namespace that the host program works in; none for this process's own.
    pub netns: Option<PathBuf>,
    /// For one request to the API server.
    pub timeout: Duration,
    pub metrics: HandlerMetrics,
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
        let node = self.node.lock();
        node.clone()
    }

    pub(super) async fn ask<T>(
        &self,
        request: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, HandlerError> {
        let answer = tokio::time::timeout(self.config.timeout, request).await;
        Ok(answer.map_err(|_| HandlerError::NoAnswer)??)
    }

    /// Serves until it is stopped. The next start resumes what was not finished.
    pub async fn run(&self, stop: CancellationToken) {
        let (signs, heard) = mpsc::channel(1024);
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.watch(signs) => {}
            () = self.work(heard) => {}
        }
    }

    async fn work(&self, mut signs: mpsc::Receiver<Sign>) {
        let mut agenda = Agenda::default();
        let mut refresh = Instant::now();
        loop {
            let refresh_due = self.publishes(&agenda).then_some(refresh);
            let due = agenda.next().into_iter().chain(refresh_due).min();
            let sign = tokio::select! {
                sign = signs.recv() => match sign {
                    Some(sign) => Some(sign),
                    None => return,
                },
                () = at(due) => None,
            };
            if let Some(sign) = sign {
                self.take(sign, &mut agenda);
                tokio::time::sleep(GATHER).await;
                while let Ok(sign) = signs.try_recv() {
                    self.take(sign, &mut agenda);
                }
            }
            for pool in agenda.take_listed(Instant::now()) {
                self.find_held(&pool, &mut agenda).await;
            }
            for policy in agenda.due(Instant::now()) {
                let Some(memory) = agenda.begin(&policy) else {
                    continue;
                };
                let next = self.reconcile(&policy, memory).await;
                let next = next.unwrap_or_else(|error| {
                    tracing::warn!(policy, %error, "the policy was not reconciled; retrying");
                    Next::After(LATER)
                });
                agenda.end(&policy, next);
            }
            // After the policies, so that what they changed is in the same write.
            if self.publishes(&agenda) && Instant::now() >= refresh {
                if let Err(error) = self.publish_state().await {
                    tracing::debug!(%error, "the NodeNetworkState was not written");
                }
                refresh = Instant::now() + REFRESH;
            }
        }
    }

    /// Whether the NodeNetworkState is this handler's to write, and the policies were served once.
    fn publishes(&self, agenda: &Agenda) -> bool {
        self.config.mode == Mode::Host && agenda.is_complete() && self.this_node().is_some()
    }

    fn take(&self, sign: Sign, agenda: &mut Agenda) {
        if let Sign::Node(node) = &sign {
            let mut known = self.node.lock();
            if *known == *node {
                return;
            }
            known.clone_from(node);
        }
        agenda.take(sign, Instant::now());
    }

    /// Which policies have addresses of a pool on this node: a policy and its enactment may have been deleted while no handler ran, and the
    /// addresses are then on the host.
    async fn find_held(&self, pool: &str, agenda: &mut Agenda) {
        if self.config.mode != Mode::Host {
            return;
        }
        let object = match self.store.object(pool).await {
            Ok(Some(object)) => object,
            Ok(None) => return,
            Err(error) => {
                tracing::warn!(pool, %error, "the pool was not searched for addresses of this node; retrying");
                agenda.search_later(pool, Instant::now() + LATER);
                return;
            }
        };
        let described = codec::decode(&object).map(|read| read.recorded.described);
        let of_node = described.into_iter().flatten();
        for one in of_node.filter(|one| one.node == self.config.node) {
            agenda.held(&one.policy, pool, Instant::now());
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

/// At that time; never, if there is none.
async fn at(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
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
            Err(error) => tracing::debug!(%error, "a watch failed; it is restarted"),
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
                pools => {
                    let generation = object.metadata.generation.unwrap_or_default();
                    let identity = Some((object.uid().unwrap_or_default(), generation));
                    let pools = pools.unwrap_or_default();
                    vec![Sign::Policy(object.name_any(), identity, pools)]
                }
            }
        }
        Event::Delete(object) => vec![Sign::PolicyGone(object.name_any())],
        Event::InitDone => vec![Sign::PoliciesListed],
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
            let version = object.resource_version().unwrap_or_default();
            ours.map(|policy| Sign::Enactment(policy.to_owned(), version))
                .into_iter()
                .collect()
        }
        Event::Init | Event::InitDone => Vec::new(),
    }
}

fn pool_signs(event: Event<PartialObjectMeta<DynamicObject>>) -> Vec<Sign> {
    let identity = |object: &PartialObjectMeta<DynamicObject>| {
        let generation = object.metadata.generation.unwrap_or_default();
        Some((object.uid().unwrap_or_default(), generation))
    };
    match event {
        Event::Apply(object) => vec![Sign::Pool(object.name_any(), identity(&object))],
        Event::InitApply(object) => vec![Sign::PoolListed(object.name_any(), identity(&object))],
        Event::Delete(object) => vec![Sign::Pool(object.name_any(), None)],
        Event::Init | Event::InitDone => Vec::new(),
    }
}
