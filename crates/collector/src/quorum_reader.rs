//! Quorum reads of pods, nodes and other objects: no resourceVersion is sent, so no cache may answer, and every write that
//! was acknowledged before the read is seen.
//!
//! Guarantees: an absence is reported only on the API server's own word about that very object. An answer of a proxy, a list
//! that broke off, a missing permission are errors: what can't be read must not be taken for gone (I4).

mod objects;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use berth_api::names::is_path_segment;
use berth_kube::{
    Connection, KubeError, ObjectClient, Pages, Place, Rejection, Resource, Selection,
};
use futures::{StreamExt, TryStreamExt};
use serde::de::DeserializeOwned;

use super::observed::{NodeState, Pod, PodRef, PodState};
pub use objects::{Attached, BoundPod, OUT_OF_SERVICE};
use objects::{LeanCondition, LeanNode, LeanPod};

pub const PODS: Resource = Resource {
    group: "",
    version: "v1",
    plural: "pods",
    kind: "Pod",
    place: Place::Namespaced,
};

const NODES: Resource = Resource {
    group: "",
    version: "v1",
    plural: "nodes",
    kind: "Node",
    place: Place::Cluster,
};

/// From so many objects of one list on, one list costs less than a read of each.
const LIST_FROM: usize = 20;
/// Requests at a time.
const AT_ONCE: usize = 8;

/// Pods of all namespaces that may run.
const OPEN_PODS: Selection<'static> = Selection {
    fields: "status.phase!=Succeeded,status.phase!=Failed",
    ..EVERYWHERE
};
const EVERYWHERE: Selection<'static> = Selection {
    labels: "",
    fields: "",
    page: 500,
    everywhere: true,
    cached: false,
};

/// Why nothing was read. The caller has one decision: read again later, and not before the API server asks for.
#[derive(Debug, thiserror::Error)]
#[error("{target} can't be read: {why}")]
pub struct ReadError {
    pub target: String,
    pub why: String,
    /// The status code of a request that the API server refuses.
    pub code: Option<u16>,
    /// How long the API server asks its clients to wait.
    pub retry_after: Option<Duration>,
}

impl ReadError {
    /// What was read can't be used.
    pub fn unusable(target: impl Into<String>, why: impl ToString) -> ReadError {
        ReadError {
            target: target.into(),
            why: why.to_string(),
            code: None,
            retry_after: None,
        }
    }
}

impl From<KubeError> for ReadError {
    fn from(error: KubeError) -> ReadError {
        let retry_after = error.retry_after();
        let (target, why, code) = match error {
            KubeError::Conflict { target } => (target, "it was changed".to_owned(), Some(409)),
            KubeError::OutcomeUnknown { target, why, .. }
            | KubeError::Unavailable { target, why, .. }
            | KubeError::Unreadable { target, why } => (target, why, None),
            KubeError::Rejected {
                target, rejection, ..
            } => {
                let code = match &rejection {
                    Rejection::Unauthenticated(_) => Some(401),
                    Rejection::Forbidden(_) => Some(403),
                    Rejection::Missing(_) => Some(404),
                    Rejection::Invalid { code, .. } => Some(*code),
                    Rejection::Storage(_) => None,
                };
                (target, rejection.to_string(), code)
            }
        };
        ReadError {
            target,
            why,
            code,
            retry_after,
        }
    }
}

/// A reader of pods, nodes and other objects.
#[derive(Clone, Debug)]
pub struct QuorumReader {
    objects: ObjectClient,
}

impl QuorumReader {
    pub fn new(connection: &Connection) -> QuorumReader {
        QuorumReader {
            objects: ObjectClient::new(connection),
        }
    }

    pub async fn pod(&self, pod: &PodRef) -> Result<PodState, ReadError> {
        let found: Option<LeanPod> = self.get(&PODS, &pod.namespace, &pod.name).await?;
        Ok(found.map_or(PodState::Absent, |pod| PodState::Present(pod.into())))
    }

    /// Reads each of the pods.
    pub async fn pods(
        &self,
        pods: BTreeSet<PodRef>,
    ) -> Result<HashMap<PodRef, PodState>, ReadError> {
        let mut by_namespace: BTreeMap<String, Vec<PodRef>> = BTreeMap::new();
        for pod in pods {
            let namespace = pod.namespace.clone();
            by_namespace.entry(namespace).or_default().push(pod);
        }
        let (crowded, sparse): (Vec<_>, Vec<_>) = by_namespace
            .into_iter()
            .partition(|(_, pods)| pods.len() >= LIST_FROM);
        let mut states = HashMap::new();
        for (namespace, pods) in crowded {
            let mut found = self.pods_of(&namespace, &pods).await?;
            for pod in pods {
                let found = found.remove(&pod.name);
                states.insert(pod, found.map_or(PodState::Absent, PodState::Present));
            }
        }
        let singles = sparse.into_iter().flat_map(|(_, pods)| pods);
        let reads = singles.map(|pod| async move {
            let state = self.pod(&pod).await?;
            Ok::<_, ReadError>((pod, state))
        });
        let read: Vec<(PodRef, PodState)> = futures::stream::iter(reads)
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await?;
        states.extend(read);
        Ok(states)
    }

    /// Reads each of the nodes.
    pub async fn nodes(
        &self,
        names: BTreeSet<String>,
    ) -> Result<HashMap<String, NodeState>, ReadError> {
        if names.len() >= LIST_FROM {
            let mut found: HashMap<String, NodeState> = HashMap::new();
            let keep = |node: LeanNode| {
                let state = node.state();
                found.insert(node.metadata.name, state);
            };
            self.list(&NODES, "", &Selection::default(), keep).await?;
            let states = names.into_iter().map(|name| {
                let state = found.remove(&name).unwrap_or(NodeState::Absent);
                (name, state)
            });
            return Ok(states.collect());
        }
        let reads = names
            .into_iter()
            .map(|name| async move { Ok((name.clone(), self.node(&name).await?)) });
        futures::stream::iter(reads)
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await
    }

    /// The node, and whether an administrator has declared that it is off: Kubernetes then moves its pods and volumes.
    pub async fn node(&self, name: &str) -> Result<NodeState, ReadError> {
        let found: Option<LeanNode> = self.get(&NODES, "", name).await?;
        Ok(found.map_or(NodeState::Absent, |node| node.state()))
    }

    /// Whether the node is Ready: its kubelet reported lately, so what it says about its pods is current.
    pub async fn node_is_ready(&self, name: &str) -> Result<bool, ReadError> {
        let found: Option<LeanNode> = self.get(&NODES, "", name).await?;
        let ready = |condition: &LeanCondition| condition.kind == "Ready";
        let conditions = found.map(|node| node.status.conditions).unwrap_or_default();
        let ready = conditions.iter().find(|condition| ready(condition));
        Ok(ready.is_some_and(|condition| condition.status == "True"))
    }

    /// All pods that are bound to one of the nodes, in any phase.
    pub async fn bound_pods(&self, nodes: &BTreeSet<String>) -> Result<Vec<BoundPod>, ReadError> {
        let mut bound = Vec::new();
        let mut keep = |pod: LeanPod| {
            let pod = BoundPod::read(pod).filter(|pod| nodes.contains(&pod.node));
            bound.extend(pod);
        };
        if nodes.len() >= LIST_FROM {
            self.list(&PODS, "", &EVERYWHERE, keep).await?;
            return Ok(bound);
        }
        for node in nodes {
            let of_node = Selection {
                fields: &format!("spec.nodeName={node}"),
                ..EVERYWHERE
            };
            self.list(&PODS, "", &of_node, &mut keep).await?;
        }
        Ok(bound)
    }

    /// Whether any pod of the cluster that may run asks for one of the networks, by the names of their definitions. Only
    /// metadata is read, page by page.
    pub async fn asks_any_pod(&self, definitions: &[String]) -> Result<bool, ReadError> {
        let asks = |pod: LeanPod| {
            let annotations = pod.metadata.annotations.as_ref();
            let mut names = definitions.iter();
            annotations.is_some_and(|all| {
                names.any(|name| all.networks.contains(name) || all.default_network.contains(name))
            })
        };
        let mut pages = self.objects.metadata_pages(&PODS, &OPEN_PODS);
        let mut found = false;
        while pages.next(|pod| found |= asks(pod)).await? && !found {}
        Ok(found)
    }

    /// The secondary addresses that the status of all running pods names, as far as `keep` wants them. Pods that are being
    /// deleted are left out. Only metadata is read, page by page.
    pub async fn attached(
        &self,
        keep: impl Fn(&Attached) -> bool,
    ) -> Result<Vec<Attached>, ReadError> {
        let mut all = Vec::new();
        let add = |pod: LeanPod| all.extend(Attached::read(pod).into_iter().filter(&keep));
        self.objects.list_metadata(&PODS, &OPEN_PODS, add).await?;
        Ok(all)
    }

    /// The selected objects, for a caller that has work to do between two pages.
    pub fn pages(&self, resource: &'static Resource, selection: &Selection<'_>) -> Pages<'_> {
        self.objects.pages(resource, selection)
    }

    /// Shows every selected object of a namespace to `visit`, page by page: the caller keeps what it needs of each. The
    /// namespace is empty for a kind that has none, and for a selection of all namespaces.
    pub async fn list<T: DeserializeOwned>(
        &self,
        resource: &'static Resource,
        namespace: &str,
        selection: &Selection<'_>,
        visit: impl FnMut(T),
    ) -> Result<(), ReadError> {
        let objects = self.objects.in_namespace(namespace);
        Ok(objects.list(resource, selection, visit).await?)
    }

    /// Those pods of a namespace that exist, by name.
    async fn pods_of(
        &self,
        namespace: &str,
        wanted: &[PodRef],
    ) -> Result<HashMap<String, Pod>, ReadError> {
        let wanted: HashSet<&str> = wanted.iter().map(|pod| pod.name.as_str()).collect();
        let mut found = HashMap::new();
        let keep = |pod: LeanPod| {
            if wanted.contains(pod.metadata.name.as_str()) {
                found.insert(pod.metadata.name.clone(), pod.into());
            }
        };
        let all = Selection::default();
        self.list(&PODS, namespace, &all, keep).await?;
        Ok(found)
    }

    /// The object; none only if the API server says that this very object does not exist. The namespace is empty for a kind
    /// that has none.
    pub async fn get<T: DeserializeOwned>(
        &self,
        resource: &'static Resource,
        namespace: &str,
        name: &str,
    ) -> Result<Option<T>, ReadError> {
        if resource.place == Place::Namespaced && !is_path_segment(namespace) {
            // No object is there: an annotation or a record may name anything.
            return Ok(None);
        }
        let objects = self.objects.in_namespace(namespace);
        Ok(objects.read(resource, name).await?)
    }
}

#[cfg(test)]
mod tests;
