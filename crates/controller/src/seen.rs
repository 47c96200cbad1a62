//! What the watches show: nodes, definitions, and which NodeSlicePools there are.
//!
//! Kept small: of a node its name, UID and one taint, of a definition what it means, of a pool its head. Hints
//! only: nothing is taken from anybody because a watch shows it gone (I4).

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use berth_api::cncf::NetworkAttachmentDefinition;
use berth_core::slice::NodeName;
use berth_ledger::kube::slicepools::{Head, HeadEvent, SlicePools};
use berth_pods::definitions;
use berth_pods::garbage::witness::OUT_OF_SERVICE;
use futures::StreamExt;
use kube::api::{ApiResource, NotUsed, Object};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as start};
use kube::{Api, Client, ResourceExt};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::networks::Defined;

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
    /// UIDs of nodes that were seen to go.
    gone: BTreeMap<String, String>,
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
        inner.nodes.is_some() && inner.definitions.is_some() && inner.heads.is_some()
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
            gone: inner.gone.clone(),
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
        let mut events = start(api, watcher::Config::default())
            .default_backoff()
            .boxed();
        let mut listed = BTreeMap::new();
        let read = |object: &NetworkAttachmentDefinition| {
            let key = key(object);
            (key.clone(), Arc::new(read(key, object, flat_places)))
        };
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Init) => listed = BTreeMap::new(),
                Ok(Event::InitApply(object)) => {
                    listed.extend([read(&object)]);
                }
                Ok(Event::InitDone) => {
                    let listed = std::mem::take(&mut listed);
                    self.update(|inner| {
                        inner.definitions = Some(listed);
                        true
                    });
                }
                Ok(Event::Apply(object)) => self.update(|inner| {
                    if let Some(known) = inner.definitions.as_mut() {
                        known.extend([read(&object)]);
                    }
                    true
                }),
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

fn read(key: String, object: &NetworkAttachmentDefinition, flat_places: &[PathBuf]) -> Defined {
    let created = object.metadata.creation_timestamp.as_ref();
    Defined {
        key,
        uid: object.metadata.uid.clone().unwrap_or_default(),
        created: created.map(|time| time.0.to_string()).unwrap_or_default(),
        definition: definitions::read(&object.name_any(), &object.spec.config, flat_places),
    }
}
