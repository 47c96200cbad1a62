//! A cache of what the watches show: nodes, definitions, and existing NodeSlicePools.
//!
//! Kept small: of a node its name, UID and one taint, of a definition its meaning, of a pool its head. Only hints:
//! nothing is reclaimed because a watch shows something gone (I4).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;

use berth_api::cncf::NetworkAttachmentDefinition;
use berth_api::names;
use berth_collector::quorum_reader::OUT_OF_SERVICE;
use berth_core::slice::NodeName;
use berth_ledger::PoolKey;
use berth_networks::definitions;
use berth_networks::range_policy::{Policies, Policy};
use berth_whereabouts::slicepools::{Head, HeadEvent, SlicePools};
use futures::StreamExt;
use kube::api::{ApiResource, NotUsed, Object};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as start};
use kube::{Api, Client, ResourceExt};
use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::networks::Defined;

/// Definitions per page of a list: each may have 1.5 MB.
const PAGE: u32 = 16;

#[derive(Debug, Default)]
pub struct WatchCache {
    inner: Mutex<Inner>,
    /// Notified when something changes.
    pub changed: Notify,
}

/// Each is `None` until its first list is complete: before that, nothing is absent.
#[derive(Debug, Default)]
struct Inner {
    nodes: Option<BTreeMap<String, Node>>,
    definitions: Option<BTreeMap<String, Arc<Defined>>>,
    heads: Option<BTreeMap<String, Head>>,
    policy: Option<Arc<Policy>>,
    gone: Gone,
}

/// UIDs of nodes that were deleted, the last ones: a node that is dropped here is suspected again, which costs another
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

/// A consistent view of all of it.
#[derive(Debug)]
pub struct View {
    /// Nodes that should have a slice.
    pub nodes: BTreeSet<NodeName>,
    pub definitions: Vec<Arc<Defined>>,
    pub heads: BTreeMap<String, Head>,
    /// Which namespaces may use which ranges.
    pub policy: Arc<Policy>,
    /// UIDs of nodes that were seen to go.
    pub gone: BTreeMap<String, String>,
    /// Existing nodes that are out of service.
    pub out_of_service: BTreeSet<NodeName>,
}

impl View {
    /// The UID of the last deleted node of that name: another UID is another loss.
    pub fn gone_uid(&self, node: &NodeName) -> String {
        self.gone.get(node.as_str()).cloned().unwrap_or_default()
    }
}

/// What is kept of a node: a whole one has about ten kilobytes.
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

impl WatchCache {
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

    /// Whether a definition has a range with this plain pool.
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
        self.inner.lock()
    }

    /// Changes the cache; notifies if that changed something.
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
                    // A heartbeat changes nothing.
                    before != Some(read)
                }),
                Ok(Event::Delete(node)) => self.update(|inner| {
                    let name = node.name_any();
                    let uid = node.metadata.uid.unwrap_or_default();
                    inner.gone.insert(name.clone(), uid);
                    let nodes = inner.nodes.as_mut();
                    nodes.is_some_and(|nodes| nodes.remove(&name).is_some())
                }),
                Err(error) => tracing::warn!(%error, "watch of nodes ended; starting it again"),
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
                Err(error) => {
                    tracing::warn!(%error, "watch of network definitions ended; starting it again")
                }
            }
        }
    }

    pub async fn follow_policy(&self, policies: &Policies) {
        let mut changes = policies.changes();
        let follow_definitions = async {
            while changes.changed().await.is_ok() {
                let policy = changes.borrow_and_update().clone();
                self.update(|inner| {
                    let changed = inner.policy != policy;
                    inner.policy = policy;
                    changed
                });
            }
        };
        tokio::join!(policies.follow(), follow_definitions);
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
                    tracing::warn!(why, "watch of NodeSlicePools ended; starting it again");
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

/// Parses on a blocking thread, because it reads the node's flat file.
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
