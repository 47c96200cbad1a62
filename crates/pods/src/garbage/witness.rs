//! What the API server has to say, by reads that see every write acknowledged before them (quorum reads: no
//! resourceVersion is sent, so no cache may answer).
//!
//! An absence is reported only on the API server's own word about that very object. An answer of a proxy, a list that
//! broke off, a missing permission are errors: whoever can't see must not take anything for gone (I4).

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use kube::Client;
use kube::api::{GetParams, ListParams};
use kube::core::Request;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::facts::{Phase, Pod, PodRef, Sight};

/// From so many objects of one list on, one list costs less than asking for each.
const LIST_FROM: usize = 20;
/// Objects in one answer of a list.
const PAGE: u32 = 500;
/// Questions at a time.
const AT_ONCE: usize = 8;

/// Why nothing was seen. There is one decision: look again later.
#[derive(Debug, thiserror::Error)]
#[error("{target} can't be seen: {why}")]
pub struct Blind {
    pub target: String,
    pub why: String,
    /// The server's answer, where it has answered at all.
    pub code: Option<u16>,
}

/// A reader of pods and nodes.
#[derive(Clone)]
pub struct Witness {
    client: Client,
    timeout: Duration,
}

impl fmt::Debug for Witness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Witness").finish_non_exhaustive()
    }
}

impl Witness {
    pub fn new(client: Client, timeout: Duration) -> Witness {
        Witness { client, timeout }
    }

    pub async fn pod(&self, pod: &PodRef) -> Result<Sight, Blind> {
        let path = format!("/api/v1/namespaces/{}/pods", pod.namespace);
        let found: Option<LeanPod> = self.get(&path, "pods", &pod.name).await?;
        Ok(found.map_or(Sight::Absent, |pod| Sight::There(pod.into())))
    }

    pub async fn node(&self, name: &str) -> Result<bool, Blind> {
        let found: Option<Lean> = self.get("/api/v1/nodes", "nodes", name).await?;
        Ok(found.is_some())
    }

    /// Looks for each of the pods.
    pub async fn pods(&self, pods: BTreeSet<PodRef>) -> Result<HashMap<PodRef, Sight>, Blind> {
        let mut by_namespace: BTreeMap<String, Vec<PodRef>> = BTreeMap::new();
        for pod in pods {
            let namespace = pod.namespace.clone();
            by_namespace.entry(namespace).or_default().push(pod);
        }
        let (crowded, sparse): (Vec<_>, Vec<_>) = by_namespace
            .into_iter()
            .partition(|(_, pods)| pods.len() >= LIST_FROM);
        let mut sights = HashMap::new();
        for (namespace, pods) in crowded {
            let mut found = self.pods_of(&namespace).await?;
            for pod in pods {
                let sight = found.remove(&pod.name);
                sights.insert(pod, sight.map_or(Sight::Absent, Sight::There));
            }
        }
        let singles = sparse.into_iter().flat_map(|(_, pods)| pods);
        let asked = singles.map(|pod| async move { Ok((pod.clone(), self.pod(&pod).await?)) });
        let asked: Vec<(PodRef, Sight)> = futures::stream::iter(asked)
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await?;
        sights.extend(asked);
        Ok(sights)
    }

    /// Looks for each of the nodes.
    pub async fn nodes(&self, names: BTreeSet<String>) -> Result<HashMap<String, bool>, Blind> {
        if names.len() >= LIST_FROM {
            let found: HashSet<String> = self
                .list::<Lean>("/api/v1/nodes")
                .await?
                .into_iter()
                .map(|node| node.metadata.name)
                .collect();
            let seen = names.into_iter().map(|name| {
                let there = found.contains(&name);
                (name, there)
            });
            return Ok(seen.collect());
        }
        let asked = names
            .into_iter()
            .map(|name| async move { Ok((name.clone(), self.node(&name).await?)) });
        futures::stream::iter(asked)
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await
    }

    /// The node, and whether somebody has sworn that it is off: Kubernetes takes its pods and volumes from it then.
    pub async fn node_sight(&self, name: &str) -> Result<NodeSight, Blind> {
        let found: Option<LeanNode> = self.get("/api/v1/nodes", "nodes", name).await?;
        Ok(found.map_or(NodeSight::Absent, |node| NodeSight::There {
            out_of_service: node
                .spec
                .taints
                .iter()
                .any(|taint| taint.key == OUT_OF_SERVICE),
        }))
    }

    /// Whether the node's kubelet says that it is well, and was heard of lately: what it says of its pods is of now.
    pub async fn node_is_ready(&self, name: &str) -> Result<bool, Blind> {
        let found: Option<LeanNode> = self.get("/api/v1/nodes", "nodes", name).await?;
        let ready = |condition: &LeanCondition| condition.kind == "Ready";
        let conditions = found.map(|node| node.status.conditions).unwrap_or_default();
        let ready = conditions.iter().find(|condition| ready(condition));
        Ok(ready.is_some_and(|condition| condition.status == "True"))
    }

    /// All pods that are bound to one of the nodes, whatever has become of them.
    pub async fn bound_pods(&self, nodes: &BTreeSet<String>) -> Result<Vec<BoundPod>, Blind> {
        let path = "/api/v1/pods";
        let pods: Vec<LeanPod> = if nodes.len() >= LIST_FROM {
            self.list(path).await?
        } else {
            let mut lists = Vec::new();
            for node in nodes {
                let selector = ListParams::default().fields(&format!("spec.nodeName={node}"));
                lists.push(self.list_by::<LeanPod>(path, selector));
            }
            let lists: Vec<Vec<LeanPod>> = futures::stream::iter(lists)
                .buffer_unordered(AT_ONCE)
                .try_collect()
                .await?;
            lists.into_iter().flatten().collect()
        };
        let bound = pods.into_iter().filter_map(BoundPod::read);
        Ok(bound.filter(|pod| nodes.contains(&pod.node)).collect())
    }

    /// All objects of a collection, some at a time.
    pub(crate) async fn list<T: DeserializeOwned>(&self, path: &str) -> Result<Vec<T>, Blind> {
        self.list_by(path, ListParams::default()).await
    }

    async fn list_by<T: DeserializeOwned>(
        &self,
        path: &str,
        params: ListParams,
    ) -> Result<Vec<T>, Blind> {
        let mut params = params.limit(PAGE);
        let mut all = Vec::new();
        loop {
            let request = Request::new(path).list(&params);
            let page: Page<T> = match self.send(request).await {
                Ok(page) => page,
                Err(error) => return Err(blind(path.to_owned(), error)),
            };
            all.extend(page.items);
            match page.metadata.continues {
                Some(token) if !token.is_empty() => params.continue_token = Some(token),
                _ => return Ok(all),
            }
        }
    }

    async fn pods_of(&self, namespace: &str) -> Result<HashMap<String, Pod>, Blind> {
        let path = format!("/api/v1/namespaces/{namespace}/pods");
        let pods = self.list::<LeanPod>(&path).await?;
        let named = pods
            .into_iter()
            .map(|pod| (pod.metadata.name.clone(), pod.into()));
        Ok(named.collect())
    }

    /// The object; none only if the server says that this very object does not exist.
    pub(crate) async fn get<T: DeserializeOwned>(
        &self,
        path: &str,
        kind: &str,
        name: &str,
    ) -> Result<Option<T>, Blind> {
        let request = Request::new(path).get(name, &GetParams::default());
        match self.send(request).await {
            Ok(found) => Ok(Some(found)),
            Err(Failure::Api(kube::Error::Api(status))) if is_absence(&status, kind, name) => {
                Ok(None)
            }
            Err(error) => Err(blind(format!("{path}/{name}"), error)),
        }
    }

    async fn send<T: DeserializeOwned>(
        &self,
        request: Result<hyper::Request<Vec<u8>>, kube::core::request::Error>,
    ) -> Result<T, Failure> {
        let request = request.map_err(|error| Failure::Api(kube::Error::BuildRequest(error)))?;
        match tokio::time::timeout(self.timeout, self.client.request(request)).await {
            Ok(answer) => answer.map_err(Failure::Api),
            Err(_) => Err(Failure::Late(self.timeout)),
        }
    }
}

enum Failure {
    Api(kube::Error),
    Late(Duration),
}

fn blind(target: String, failure: Failure) -> Blind {
    let code = match &failure {
        Failure::Api(kube::Error::Api(status)) => Some(status.code),
        _ => None,
    };
    let why = match failure {
        Failure::Api(error) => error.to_string(),
        Failure::Late(limit) => format!("no answer within {limit:?}"),
    };
    Blind { target, why, code }
}

fn is_absence(status: &kube::core::Status, kind: &str, name: &str) -> bool {
    let about = status.details.as_ref();
    status.code == 404
        && status.reason == "NotFound"
        && about.is_some_and(|about| about.name == name && about.kind == kind)
}

/// The taint that says so.
pub const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// What a look for a node found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeSight {
    Absent,
    There { out_of_service: bool },
}

/// A pod of a node, and which networks it asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundPod {
    pub name: PodRef,
    pub node: String,
    pub phase: Phase,
    /// The texts by which it asks for networks, as they are written.
    pub networks: String,
    /// Whether anything says that its interfaces were made.
    pub connected: bool,
}

#[derive(Deserialize)]
struct Page<T> {
    #[serde(default)]
    metadata: PageMetadata,
    items: Vec<T>,
}

#[derive(Default, Deserialize)]
struct PageMetadata {
    #[serde(default, rename = "continue")]
    continues: Option<String>,
}

/// An object's name and nothing else.
#[derive(Deserialize)]
struct Lean {
    metadata: LeanMetadata,
}

#[derive(Deserialize)]
struct LeanNode {
    #[serde(default)]
    spec: LeanNodeSpec,
    #[serde(default)]
    status: LeanNodeStatus,
}

#[derive(Default, Deserialize)]
struct LeanNodeStatus {
    #[serde(default)]
    conditions: Vec<LeanCondition>,
}

#[derive(Deserialize)]
struct LeanCondition {
    #[serde(default, rename = "type")]
    kind: String,
    #[serde(default)]
    status: String,
}

#[derive(Default, Deserialize)]
struct LeanNodeSpec {
    #[serde(default)]
    taints: Vec<LeanTaint>,
}

#[derive(Deserialize)]
struct LeanTaint {
    #[serde(default)]
    key: String,
}

#[derive(Deserialize)]
struct LeanMetadata {
    name: String,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    uid: String,
    #[serde(default)]
    annotations: Option<LeanAnnotations>,
}

#[derive(Default, Deserialize)]
struct LeanAnnotations {
    /// The UID of a static pod, which its containers carry, on its mirror, which has another.
    #[serde(default, rename = "kubernetes.io/config.hash")]
    static_uid: Option<String>,
    #[serde(default, rename = "k8s.v1.cni.cncf.io/networks")]
    networks: String,
    #[serde(default, rename = "v1.multus-cni.io/default-network")]
    default_network: String,
    /// What Multus tells when all interfaces are there.
    #[serde(default, rename = "k8s.v1.cni.cncf.io/network-status")]
    network_status: String,
}

/// What is read of a pod: a whole one has some ten kilobytes, and a sweep reads many.
#[derive(Deserialize)]
struct LeanPod {
    metadata: LeanMetadata,
    #[serde(default)]
    spec: LeanSpec,
    #[serde(default)]
    status: LeanStatus,
}

#[derive(Default, Deserialize)]
struct LeanSpec {
    #[serde(default, rename = "nodeName")]
    node_name: Option<String>,
}

#[derive(Default, Deserialize)]
struct LeanStatus {
    #[serde(default)]
    phase: String,
    #[serde(default, rename = "podIP")]
    pod_ip: String,
}

impl BoundPod {
    fn read(pod: LeanPod) -> Option<BoundPod> {
        let annotations = pod.metadata.annotations.unwrap_or_default();
        let silent = annotations.network_status.is_empty() && pod.status.pod_ip.is_empty();
        let pending = matches!(pod.status.phase.as_str(), "" | "Pending");
        Some(BoundPod {
            connected: !(silent && pending),
            name: PodRef::new(pod.metadata.namespace, pod.metadata.name),
            node: pod.spec.node_name.filter(|node| !node.is_empty())?,
            phase: Phase::read(&pod.status.phase),
            networks: format!("{} {}", annotations.networks, annotations.default_network),
        })
    }
}

impl From<LeanPod> for Pod {
    fn from(pod: LeanPod) -> Pod {
        let annotations = pod.metadata.annotations.unwrap_or_default();
        let uids = [Some(pod.metadata.uid), annotations.static_uid];
        Pod {
            uids: uids
                .into_iter()
                .flatten()
                .filter(|uid| !uid.is_empty())
                .collect(),
            phase: Phase::read(&pod.status.phase),
            node: pod.spec.node_name.filter(|node| !node.is_empty()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_pod_is_connected_unless_all_there_is_to_be_seen_says_that_it_waits() {
        let connected = |metadata: Value, status: Value| {
            let pod =
                json!({ "metadata": metadata, "spec": { "nodeName": "n" }, "status": status });
            let pod: LeanPod = serde_json::from_value(pod).unwrap();
            BoundPod::read(pod).unwrap().connected
        };
        let bare = || json!({ "name": "p", "namespace": "ns" });
        let told =
            json!({ "name": "p", "annotations": { "k8s.v1.cni.cncf.io/network-status": "[]" } });
        assert!(!connected(bare(), json!({})));
        assert!(!connected(bare(), json!({ "phase": "Pending" })));
        assert!(connected(
            bare(),
            json!({ "phase": "Pending", "podIP": "10.244.0.9" })
        ));
        for phase in ["Running", "Unknown", "Hibernating"] {
            assert!(connected(bare(), json!({ "phase": phase })), "{phase}");
        }
        assert!(connected(told, json!({ "phase": "Pending" })));
    }
}
