//! Quorum reads of pods, nodes and other objects: no resourceVersion is sent, so no cache may answer, and every write that
//! was acknowledged before the read is seen.
//!
//! Guarantees: an absence is reported only on the API server's own word about that very object. An answer of a proxy, a list
//! that broke off, a missing permission are errors: what can't be read must not be taken for gone (I4).

mod objects;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::time::Duration;

use berth_api::names::is_path_segment;
use futures::{StreamExt, TryStreamExt};
use kube::Client;
use kube::api::{GetParams, ListParams};
use kube::core::Request;
use serde::de::DeserializeOwned;

use super::observed::{NodeState, Pod, PodRef, PodState};
pub use objects::{Attached, BoundPod, OUT_OF_SERVICE};
use objects::{LeanCondition, LeanNode, LeanPod, Page};

/// From so many objects of one list on, one list costs less than a read of each.
const LIST_FROM: usize = 20;
/// Objects in one answer of a list.
const PAGE: u32 = 500;
/// The same for network definitions: each may have 1.5 MB, and any user may write one.
const LARGE_PAGE: u32 = 16;
/// Requests at a time.
const AT_ONCE: usize = 8;

/// Why nothing was read. The caller has one decision: read again later.
#[derive(Debug, thiserror::Error)]
#[error("{target} can't be read: {why}")]
pub struct ReadError {
    pub target: String,
    pub why: String,
    /// The API server's status code, where it answered at all.
    pub code: Option<u16>,
}

/// A reader of pods and nodes.
#[derive(Clone)]
pub struct QuorumReader {
    client: Client,
    timeout: Duration,
}

impl fmt::Debug for QuorumReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuorumReader").finish_non_exhaustive()
    }
}

impl QuorumReader {
    pub fn new(client: Client, timeout: Duration) -> QuorumReader {
        QuorumReader { client, timeout }
    }

    pub async fn pod(&self, pod: &PodRef) -> Result<PodState, ReadError> {
        let path = format!("/api/v1/namespaces/{}/pods", pod.namespace);
        let found: Option<LeanPod> = self.get(&path, "pods", &pod.name).await?;
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
        let reads = singles.map(|pod| async move { Ok((pod.clone(), self.pod(&pod).await?)) });
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
            let all = ListParams::default();
            self.reduce("/api/v1/nodes", all, keep).await?;
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
        let found: Option<LeanNode> = self.get("/api/v1/nodes", "nodes", name).await?;
        Ok(found.map_or(NodeState::Absent, |node| node.state()))
    }

    /// Whether the node is Ready: its kubelet reported lately, so what it says about its pods is current.
    pub async fn node_is_ready(&self, name: &str) -> Result<bool, ReadError> {
        let found: Option<LeanNode> = self.get("/api/v1/nodes", "nodes", name).await?;
        let ready = |condition: &LeanCondition| condition.kind == "Ready";
        let conditions = found.map(|node| node.status.conditions).unwrap_or_default();
        let ready = conditions.iter().find(|condition| ready(condition));
        Ok(ready.is_some_and(|condition| condition.status == "True"))
    }

    /// All pods that are bound to one of the nodes, in any phase.
    pub async fn bound_pods(&self, nodes: &BTreeSet<String>) -> Result<Vec<BoundPod>, ReadError> {
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
    pub async fn asks_any_pod(&self, definitions: &[String]) -> Result<bool, ReadError> {
        let path = "/api/v1/pods";
        let open = "status.phase!=Succeeded,status.phase!=Failed";
        let mut params = ListParams::default().fields(open).limit(PAGE);
        loop {
            let request = Request::new(path).list_metadata(&params);
            let page: Page<LeanPod> = match self.send(request).await {
                Ok(page) => page,
                Err(failure) => return Err(read_error(path.to_owned(), failure)),
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

    /// The secondary addresses that the status of all running pods names, as far as `keep` wants them. Pods that are being
    /// deleted are left out. Only metadata is read, page by page.
    pub async fn attached(
        &self,
        keep: impl Fn(&Attached) -> bool,
    ) -> Result<Vec<Attached>, ReadError> {
        let path = "/api/v1/pods";
        let open = "status.phase!=Succeeded,status.phase!=Failed";
        let mut params = ListParams::default().fields(open).limit(PAGE);
        let mut all = Vec::new();
        loop {
            let request = Request::new(path).list_metadata(&params);
            let page: Page<LeanPod> = match self.send(request).await {
                Ok(page) => page,
                Err(failure) => return Err(read_error(path.to_owned(), failure)),
            };
            let page_of = page.items.into_iter().flat_map(Attached::read);
            all.extend(page_of.filter(&keep));
            match page.metadata.continues {
                Some(token) if !token.is_empty() => params.continue_token = Some(token),
                _ => return Ok(all),
            }
        }
    }

    /// One page of large objects of a collection, after those that `token` stands for, and the token for the next page.
    pub async fn large_page<T: DeserializeOwned>(
        &self,
        path: &str,
        token: Option<String>,
    ) -> Result<(Vec<T>, Option<String>), ReadError> {
        let mut params = ListParams::default().limit(LARGE_PAGE);
        params.continue_token = token;
        self.page(path, &params).await
    }

    /// Passes every object of a collection to `visit`, page by page: the caller keeps what it needs of each.
    pub async fn reduce<T: DeserializeOwned>(
        &self,
        path: &str,
        params: ListParams,
        mut visit: impl FnMut(T),
    ) -> Result<(), ReadError> {
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

    /// One page of a list, and the token for the next one.
    async fn page<T: DeserializeOwned>(
        &self,
        path: &str,
        params: &ListParams,
    ) -> Result<(Vec<T>, Option<String>), ReadError> {
        let request = Request::new(path).list(params);
        let page: Page<T> = match self.send(request).await {
            Ok(page) => page,
            Err(failure) => return Err(read_error(path.to_owned(), failure)),
        };
        let more = page.metadata.continues.filter(|token| !token.is_empty());
        Ok((page.items, more))
    }

    /// Those pods of a namespace that exist, by name.
    async fn pods_of(
        &self,
        namespace: &str,
        wanted: &[PodRef],
    ) -> Result<HashMap<String, Pod>, ReadError> {
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

    /// The object; none only if the API server says that this very object does not exist.
    pub async fn get<T: DeserializeOwned>(
        &self,
        path: &str,
        kind: &str,
        name: &str,
    ) -> Result<Option<T>, ReadError> {
        if !is_path_segment(name) {
            // No object has such a name: an annotation or a record may name anything.
            return Ok(None);
        }
        let request = Request::new(path).get(name, &GetParams::default());
        match self.send(request).await {
            Ok(found) => Ok(Some(found)),
            Err(Failure::Api(kube::Error::Api(status))) if is_absence(&status, kind, name) => {
                Ok(None)
            }
            Err(failure) => Err(read_error(format!("{path}/{name}"), failure)),
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

fn read_error(target: String, failure: Failure) -> ReadError {
    let code = match &failure {
        Failure::Api(kube::Error::Api(status)) => Some(status.code),
        _ => None,
    };
    let why = match failure {
        Failure::Api(error) => error.to_string(),
        Failure::Late(limit) => format!("no answer within {limit:?}"),
    };
    ReadError { target, why, code }
}

fn is_absence(status: &kube::core::Status, kind: &str, name: &str) -> bool {
    let about = status.details.as_ref();
    status.code == 404
        && status.reason == "NotFound"
        && about.is_some_and(|about| about.name == name && about.kind == kind)
}

#[cfg(test)]
mod tests;
