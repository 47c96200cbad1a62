//! What the watches show: nodes, definitions, and which NodeSlicePools there are.
//!
//! Kept small: of a node its name, UID and one taint, of a definition what it means, of a pool its head. Hints
//! only: nothing is taken from anybody because a watch shows it gone (I4).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use berth_api::cncf::NetworkAttachmentDefinition;
use berth_api::names;
use berth_core::slice::NodeName;
use berth_ledger::PoolKey;
use berth_ledger::kube::slicepools::{Head, HeadEvent, SlicePools};
use berth_pods::definitions;
use berth_pods::garbage::witness::OUT_OF_SERVICE;
use berth_pods::policy::{Policies, Policy};
use futures::StreamExt;
use kube::api::{ApiResource, NotUsed, Object};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as start};
use kube::{Api, Client, ResourceExt};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::networks::Defined;

/// Definitions in one answer of a list: each may have 1.5 MB, whoever wrote it.
const PAGE: u32 = 16;

#[derive(Debug, Default)]
pub struct Seen {
    inner: Mutex<Inner>,
    /// Something is other than it was.
    pub changed: Notify,
}

/// Each none until its first list is complete: before that, nothing is absent.
#[derive(Debug, Default)]
struct Inner {
    nodes: Option<BTreeMap<String, Node>>,
    definitions: Option<BTreeMap<String, Arc<Defined>>>,
    heads: Option<BTreeMap<String, Head>>,
    policy: Option<Arc<Policy>>,
    gone: Gone,
}

/// UIDs of nodes that were seen to go, the last ones: a node that is forgotten here is suspected anew, and costs another
/// grace period.
#[derive(Debug, Default)]
struct Gone {
    uids: BTreeMap<String, String>,
    order: VecDeque<String>,
}

/// As many as a large cluster loses at once.
const MOST_GONE: usize = 10_000;

impl Gone {
    fn insert(&mut self, name: String, uid: String) {
        if self.uids.insert(name.clone(), uid).is_none() {
            self.order.push_back(name);
        }
        while self.order.len() > MOST_GONE {
            if let Some(oldest) = self.order.pop_front() {
                self.uids.remove(&oldest);
            }
        }
    }

    fn remove(&mut self, name: &str) {
        if self.uids.remove(name).is_some() {
            self.order.retain(|known| known != name);
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Node {
    uid: String,
    out_of_service: bool,
}

/// One look at all of it.
#[derive(Debug)]
pub struct View {
    /// Nodes that are to have a slice.
    pub nodes: BTreeSet<NodeName>,
    pub definitions: Vec<Arc<Defined>>,
    pub heads: BTreeMap<String, Head>,
    /// Which namespaces may use which ranges.
    pub policy: Arc<Policy>,
    /// UIDs of nodes that were seen to go.
    pub gone: BTreeMap<String, String>,
    /// Nodes that are there and out of service.
    pub out_of_service: BTreeSet<NodeName>,
}

impl View {
    /// The UID of the node of that name that was last seen to go: another one is another loss.
    pub fn gone_uid(&self, node: &NodeName) -> String {
        self.gone.get(node.as_str()).cloned().unwrap_or_default()
    }
}

/// What is read of a node: a whole one has some ten kilobytes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct NodeSpec {
    #[serde(default)]
    taints: Vec<Taint>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Taint {
    #[serde(default)]
    key: String,
}

type NodeObject = Object<NodeSpec, NotUsed>;

impl Seen {
    pub fn is_complete(&self) -> bool {
        let inner = self.lock();
        inner.nodes.is_some()
            && inner.definitions.is_some()
            && inner.heads.is_some()
            && inner.policy.is_some()
    }

    /// None before the first lists are complete.
    pub fn view(&self) -> Option<View> {
        let inner = self.lock();
        let nodes = inner.nodes.as_ref()?.iter();
        let (out, nodes): (Vec<_>, Vec<_>) = nodes.partition(|(_, node)| node.out_of_service);
        let names = |nodes: Vec<(&String, &Node)>| -> BTreeSet<NodeName> {
            let names = nodes.into_iter().map(|(name, _)| NodeName::new(name));
            names.collect()
        };
        Some(View {
            nodes: names(nodes),
            out_of_service: names(out),
            definitions: inner.definitions.as_ref()?.values().cloned().collect(),
            heads: inner.heads.clone()?,
            policy: inner.policy.clone()?,
            gone: inner.gone.uids.clone(),
        })
    }

    /// Whether a definition has a range whose plain pool this is.
    pub fn defines(&self, pool: &PoolKey) -> bool {
        let inner = self.lock();
        let definitions = inner.definitions.iter().flat_map(BTreeMap::values);
        let networks = definitions.flat_map(|defined| &defined.definition.networks);
        let mut networks = networks.filter_map(|defined| defined.network.as_ref().ok());
        networks.any(|network| {
            let mut ranges = network.ranges.iter().map(|range| range.spec.prefix);
            ranges.any(|range| {
                pool.network == Some(range)
                    && pool.name == names::pool(&network.network_name, "", range)
            })
        })
    }

    pub fn counts(&self) -> (usize, usize) {
        let inner = self.lock();
        let nodes = inner.nodes.as_ref().map_or(0, BTreeMap::len);
        (nodes, inner.definitions.as_ref().map_or(0, BTreeMap::len))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes what is known; tells of it if it did.
    fn update(&self, change: impl FnOnce(&mut Inner) -> bool) {
        if change(&mut self.lock()) {
            self.changed.notify_one();
        }
    }

    pub async fn follow_nodes(&self, client: Client) {
        let kind = ApiResource::erase::<k8s_openapi::api::core::v1::Node>(&());
        let api: Api<NodeObject> = Api::all_with(client, &kind);
        let mut events = start(api, watcher::Config::default())
            .default_backoff()
            .boxed();
        let mut listed = BTreeMap::new();
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Init) => listed = BTreeMap::new(),
                Ok(Event::InitApply(node)) => {
                    listed.insert(node.name_any(), Node::read(&node));
                }
                Ok(Event::InitDone) => {
                    let listed = std::mem::take(&mut listed);
                    self.update(|inner| {
                        let before = inner.nodes.replace(listed).unwrap_or_default();
                        let Inner { nodes, gone, .. } = inner;
                        let now = nodes.as_ref();
                        for (name, node) in before {
                            if !now.is_some_and(|now| now.contains_key(&name)) {
                                gone.insert(name, node.uid);
                            }
                        }
                        true
                    });
                }
                Ok(Event::Apply(node)) => self.update(|inner| {
                    let name = node.name_any();
                    inner.gone.remove(&name);
                    let read = Node::read(&node);
                    let before = inner
                        .nodes
                        .as_mut()
                        .and_then(|nodes| nodes.insert(name, read.clone()));
                    // A heartbeat is no news.
                    before != Some(read)
                }),
                Ok(Event::Delete(node)) => self.update(|inner| {
                    let name = node.name_any();
                    let uid = node.metadata.uid.unwrap_or_default();
                    inner.gone.insert(name.clone(), uid);
                    let nodes = inner.nodes.as_mut();
                    nodes.is_some_and(|nodes| nodes.remove(&name).is_some())
                }),
                Err(error) => tracing::warn!(%error, "the watch of nodes is renewed"),
            }
        }
    }

    pub async fn follow_definitions(&self, client: Client, flat_places: &[PathBuf]) {
        let api: Api<NetworkAttachmentDefinition> = Api::all(client);
        let config = watcher::Config::default().page_size(PAGE);
        let mut events = start(api, config).default_backoff().boxed();
        let mut listed = BTreeMap::new();
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Init) => listed = BTreeMap::new(),
                Ok(Event::InitApply(object)) => {
                    listed.extend(read(object, flat_places).await);
                }
                Ok(Event::InitDone) => {
                    let listed = std::mem::take(&mut listed);
                    self.update(|inner| {
                        inner.definitions = Some(listed);
                        true
                    });
                }
                Ok(Event::Apply(object)) => {
                    let read = read(object, flat_places).await;
                    self.update(|inner| {
                        if let Some(known) = inner.definitions.as_mut() {
                            known.extend(read);
                        }
                        true
                    });
                }
                Ok(Event::Delete(object)) => self.update(|inner| {
                    if let Some(known) = inner.definitions.as_mut() {
                        known.remove(&key(&object));
                    }
                    true
                }),
                Err(error) => tracing::warn!(%error, "the watch of network definitions is renewed"),
            }
        }
    }

    pub async fn follow_policy(&self, policies: &Policies) {
        let mut changes = policies.changes();
        let hear = async {
            while changes.changed().await.is_ok() {
                let policy = changes.borrow_and_update().clone();
                self.update(|inner| {
                    let changed = inner.policy != policy;
                    inner.policy = policy;
                    changed
                });
            }
        };
        tokio::join!(policies.follow(), hear);
    }

    pub async fn follow_pools(&self, pools: &SlicePools) {
        let mut events = pools.heads();
        let mut listed = BTreeMap::new();
        while let Some(event) = events.next().await {
            match event {
                HeadEvent::Init => listed = BTreeMap::new(),
                HeadEvent::Listed(head) => {
                    listed.insert(head.name.clone(), head);
                }
                HeadEvent::Complete => {
                    let listed = std::mem::take(&mut listed);
                    self.update(|inner| {
                        inner.heads = Some(listed);
                        true
                    });
                }
                HeadEvent::Put(head) => self.update(|inner| {
                    if let Some(heads) = inner.heads.as_mut() {
                        heads.insert(head.name.clone(), head);
                    }
                    true
                }),
                HeadEvent::Gone(head) => self.update(|inner| {
                    let heads = inner.heads.as_mut();
                    heads.is_some_and(|heads| heads.remove(&head.name).is_some())
                }),
                HeadEvent::Broken(why) => {
                    tracing::warn!(why, "the watch of NodeSlicePools is renewed");
                }
            }
        }
    }
}

impl Node {
    fn read(node: &NodeObject) -> Node {
        let mut taints = node.spec.taints.iter();
        Node {
            uid: node.metadata.uid.clone().unwrap_or_default(),
            out_of_service: taints.any(|taint| taint.key == OUT_OF_SERVICE),
        }
    }
}

fn key(object: &NetworkAttachmentDefinition) -> String {
    let namespace = object.namespace().unwrap_or_default();
    format!("{namespace}/{}", object.name_any())
}

/// Parses on a blocking thread: the node's flat file is read with it.
async fn read(
    object: NetworkAttachmentDefinition,
    flat_places: &[PathBuf],
) -> Option<(String, Arc<Defined>)> {
    let flat_places = flat_places.to_vec();
    let read = move || {
        let created = object.metadata.creation_timestamp.as_ref();
        let key = key(&object);
        let defined = Defined {
            key: key.clone(),
            uid: object.metadata.uid.clone().unwrap_or_default(),
            created: created.map(|time| time.0.to_string()).unwrap_or_default(),
            definition: definitions::read(&object.name_any(), &object.spec.config, &flat_places),
        };
        (key, Arc::new(defined))
    };
    tokio::task::spawn_blocking(read).await.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_that_went_are_not_remembered_for_ever() {
        let mut gone = Gone::default();
        for n in 0..MOST_GONE + 5 {
            gone.insert(format!("n{n}"), "u".into());
        }
        gone.remove("n7");
        assert_eq!(gone.uids.len(), MOST_GONE - 1);
        assert_eq!(gone.order.len(), MOST_GONE - 1);
        assert!(!gone.uids.contains_key("n4") && gone.uids.contains_key("n5"));
    }
}
