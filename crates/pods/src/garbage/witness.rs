//! What the API server has to say, by reads that see every write acknowledged before them (quorum reads: no
//! resourceVersion is sent, so no cache may answer).
//!
//! An absence is reported only on the API server's own word about that very object. An answer of a proxy, a list that
//! broke off, a missing permission are errors: whoever can't see must not take anything for gone (I4).

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::time::Duration;

use berth_api::names::is_path_segment;
use berth_core::{Address, Owner};
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
/// The same of network definitions: each may have 1.5 MB, whoever wrote it.
const LARGE_PAGE: u32 = 16;
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
            let mut found = self.pods_of(&namespace, &pods).await?;
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
    pub async fn nodes(
        &self,
        names: BTreeSet<String>,
    ) -> Result<HashMap<String, NodeSight>, Blind> {
        if names.len() >= LIST_FROM {
            let mut found: HashMap<String, NodeSight> = HashMap::new();
            let keep = |node: LeanNode| {
                let sight = node.sight();
                found.insert(node.metadata.name, sight);
            };
            let all = ListParams::default();
            self.reduce("/api/v1/nodes", all, keep).await?;
            let seen = names.into_iter().map(|name| {
                let sight = found.remove(&name).unwrap_or(NodeSight::Absent);
                (name, sight)
            });
            return Ok(seen.collect());
        }
        let asked = names
            .into_iter()
            .map(|name| async move { Ok((name.clone(), self.node_sight(&name).await?)) });
        futures::stream::iter(asked)
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await
    }

    /// The node, and whether somebody has sworn that it is off: Kubernetes takes its pods and volumes from it then.
    pub async fn node_sight(&self, name: &str) -> Result<NodeSight, Blind> {
        let found: Option<LeanNode> = self.get("/api/v1/nodes", "nodes", name).await?;
        Ok(found.map_or(NodeSight::Absent, |node| node.sight()))
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
        let mut bound = Vec::new();
        let mut keep = |pod: LeanPod| {
            let pod = BoundPod::read(pod).filter(|pod| nodes.contains(&pod.node));
            bound.extend(pod);
        };
        if nodes.len() >= LIST_FROM {
            self.reduce(path, ListParams::default(), keep).await?;
            return Ok(bound);
        }
        for node in nodes {
            let of_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
            self.reduce(path, of_node, &mut keep).await?;
        }
        Ok(bound)
    }

    /// Whether any pod of the cluster that may run asks for one of the networks, by the names of their definitions. Only
    /// metadata is read, page by page.
    pub async fn asks_any_pod(&self, definitions: &[String]) -> Result<bool, Blind> {
        let path = "/api/v1/pods";
        let open = "status.phase!=Succeeded,status.phase!=Failed";
        let mut params = ListParams::default().fields(open).limit(PAGE);
        loop {
            let request = Request::new(path).list_metadata(&params);
            let page: Page<LeanPod> = match self.send(request).await {
                Ok(page) => page,
                Err(error) => return Err(blind(path.to_owned(), error)),
            };
            let asks = |pod: &LeanPod| {
                let annotations = pod.metadata.annotations.as_ref();
                let mut names = definitions.iter();
                annotations.is_some_and(|all| {
                    names.any(|name| {
                        all.networks.contains(name) || all.default_network.contains(name)
                    })
                })
            };
            if page.items.iter().any(asks) {
                return Ok(true);
            }
            match page.metadata.continues {
                Some(token) if !token.is_empty() => params.continue_token = Some(token),
                _ => return Ok(false),
            }
        }
    }

    /// What all pods that run, and are not being deleted, say of their secondary addresses, as far as `keep` wants it. Only
    /// metadata is read, page by page.
    pub async fn attached(&self, keep: impl Fn(&Attached) -> bool) -> Result<Vec<Attached>, Blind> {
        let path = "/api/v1/pods";
        let open = "status.phase!=Succeeded,status.phase!=Failed";
        let mut params = ListParams::default().fields(open).limit(PAGE);
        let mut all = Vec::new();
        loop {
            let request = Request::new(path).list_metadata(&params);
            let page: Page<LeanPod> = match self.send(request).await {
                Ok(page) => page,
                Err(error) => return Err(blind(path.to_owned(), error)),
            };
            let page_of = page.items.into_iter().flat_map(Attached::read);
            all.extend(page_of.filter(&keep));
            match page.metadata.continues {
                Some(token) if !token.is_empty() => params.continue_token = Some(token),
                _ => return Ok(all),
            }
        }
    }

    /// Some large objects of a collection, after those that `token` stands for, and the token for the next ones. Whoever
    /// reads them keeps what it needs of each answer.
    pub(crate) async fn large_page<T: DeserializeOwned>(
        &self,
        path: &str,
        token: Option<String>,
    ) -> Result<(Vec<T>, Option<String>), Blind> {
        let mut params = ListParams::default().limit(LARGE_PAGE);
        params.continue_token = token;
        self.page(path, &params).await
    }

    /// Shows every object of a collection to `visit`, page by page: a caller keeps what it needs of each, and never has a list
    /// of them all.
    pub(crate) async fn reduce<T: DeserializeOwned>(
        &self,
        path: &str,
        params: ListParams,
        mut visit: impl FnMut(T),
    ) -> Result<(), Blind> {
        let mut params = params.limit(PAGE);
        loop {
            let (items, more) = self.page(path, &params).await?;
            items.into_iter().for_each(&mut visit);
            match more {
                Some(token) => params.continue_token = Some(token),
                None => return Ok(()),
            }
        }
    }

    /// One answer of a list, and by which token the next one is asked for.
    async fn page<T: DeserializeOwned>(
        &self,
        path: &str,
        params: &ListParams,
    ) -> Result<(Vec<T>, Option<String>), Blind> {
        let request = Request::new(path).list(params);
        let page: Page<T> = match self.send(request).await {
            Ok(page) => page,
            Err(error) => return Err(blind(path.to_owned(), error)),
        };
        let more = page.metadata.continues.filter(|token| !token.is_empty());
        Ok((page.items, more))
    }

    /// Those pods of a namespace that are there, by name.
    async fn pods_of(
        &self,
        namespace: &str,
        wanted: &[PodRef],
    ) -> Result<HashMap<String, Pod>, Blind> {
        let path = format!("/api/v1/namespaces/{namespace}/pods");
        let wanted: HashSet<&str> = wanted.iter().map(|pod| pod.name.as_str()).collect();
        let mut found = HashMap::new();
        let keep = |pod: LeanPod| {
            if wanted.contains(pod.metadata.name.as_str()) {
                found.insert(pod.metadata.name.clone(), pod.into());
            }
        };
        self.reduce(&path, ListParams::default(), keep).await?;
        Ok(found)
    }

    /// The object; none only if the server says that this very object does not exist.
    pub(crate) async fn get<T: DeserializeOwned>(
        &self,
        path: &str,
        kind: &str,
        name: &str,
    ) -> Result<Option<T>, Blind> {
        if !is_path_segment(name) {
            // The server has refused to create it: a name that a pod's annotation or a record gives may be anything.
            return Ok(None);
        }
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

impl NodeSight {
    /// Whether nothing runs there any more, as far as Kubernetes can know: what it hands on to other nodes too.
    pub fn is_lost(self) -> bool {
        self != NodeSight::There {
            out_of_service: false,
        }
    }
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

/// An address that a pod has, as Multus wrote it on the pod (network-status).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attached {
    pub owner: Owner,
    pub uid: String,
    /// The definition's namespace and name.
    pub network: (String, String),
    pub address: Address,
}

#[derive(Deserialize)]
struct Interface {
    #[serde(default)]
    name: String,
    #[serde(default)]
    interface: String,
    #[serde(default)]
    ips: Vec<String>,
    #[serde(default)]
    default: bool,
}

impl Attached {
    fn read(pod: LeanPod) -> Vec<Attached> {
        let LeanMetadata {
            name,
            namespace,
            uid,
            annotations,
            deletion_timestamp,
        } = pod.metadata;
        let text = annotations.unwrap_or_default().network_status;
        if deletion_timestamp.is_some() || text.is_empty() {
            return Vec::new();
        }
        // A text that can't be read says nothing.
        let interfaces: Vec<Interface> = serde_json::from_str(&text).unwrap_or_default();
        let mut all = Vec::new();
        for one in interfaces.into_iter().filter(|one| !one.default) {
            let Some((of, network)) = one.name.split_once('/') else {
                continue;
            };
            let addresses = one.ips.iter().filter_map(|ip| ip.parse::<Address>().ok());
            all.extend(addresses.map(|address| Attached {
                owner: Owner::new(format!("{namespace}/{name}"), &one.interface),
                uid: uid.clone(),
                network: (of.to_owned(), network.to_owned()),
                address,
            }));
        }
        all
    }
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "T: Deserialize<'de>"))]
struct Page<T> {
    #[serde(default)]
    metadata: PageMetadata,
    /// The API server writes `null` for an empty list of metadata.
    #[serde(default = "Vec::new", deserialize_with = "list_or_null")]
    items: Vec<T>,
}

fn list_or_null<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de>,
{
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

#[derive(Default, Deserialize)]
struct PageMetadata {
    #[serde(default, rename = "continue")]
    continues: Option<String>,
}

#[derive(Deserialize)]
struct LeanNode {
    metadata: LeanMetadata,
    #[serde(default)]
    spec: LeanNodeSpec,
    #[serde(default)]
    status: LeanNodeStatus,
}

impl LeanNode {
    fn sight(&self) -> NodeSight {
        let mut taints = self.spec.taints.iter();
        NodeSight::There {
            out_of_service: taints.any(|taint| taint.key == OUT_OF_SERVICE),
        }
    }
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
    #[serde(default, rename = "deletionTimestamp")]
    deletion_timestamp: Option<String>,
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
mod tests;
