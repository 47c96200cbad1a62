//! What the front reads of the cluster: pods, namespaces, nodes and the IPPool's settings. Every read is a quorum read.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use berth_ledger::kube::Connection;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind};
use kube::{Client, Resource};
use serde_json::Value;
use thiserror::Error;

use crate::pool::{GROUP, KIND, PLURAL, VERSION};

/// Why nothing was read; it is read again later.
#[derive(Clone, Debug, Error)]
#[error("{what} can't be read: {why}")]
pub struct ReadError {
    what: String,
    why: String,
    /// The account lacks the right.
    pub forbidden: bool,
}

/// What matters of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodFacts {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    /// The UID of its controller's ownerReference.
    pub controller: Option<String>,
}

impl PodFacts {
    pub fn annotation(&self, name: &str) -> Option<&str> {
        self.annotations.get(name).map(String::as_str)
    }

    pub fn of(pod: Pod) -> PodFacts {
        let metadata = pod.metadata;
        let owners = metadata.owner_references.unwrap_or_default();
        let controller = owners
            .into_iter()
            .find(|owner| owner.controller == Some(true));
        PodFacts {
            namespace: metadata.namespace.unwrap_or_default(),
            name: metadata.name.unwrap_or_default(),
            uid: metadata.uid.unwrap_or_default(),
            labels: metadata.labels.unwrap_or_default(),
            annotations: metadata.annotations.unwrap_or_default(),
            controller: controller.map(|owner| owner.uid),
        }
    }
}

/// A reader of the cluster.
#[derive(Clone)]
pub struct Cluster {
    client: Client,
    timeout: Duration,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").finish_non_exhaustive()
    }
}

impl Cluster {
    pub fn new(connection: &Connection) -> Cluster {
        Cluster {
            client: connection.client.clone(),
            timeout: connection.timeout,
        }
    }

    pub fn client(&self) -> Client {
        self.client.clone()
    }

    pub async fn pod(&self, namespace: &str, name: &str) -> Result<Option<PodFacts>, ReadError> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let found = self.get(&api, name, || format!("pod {namespace}/{name}"));
        Ok(found.await?.map(PodFacts::of))
    }

    /// The labels of a namespace; none if there is no such namespace.
    pub async fn labels_of(&self, namespace: &str) -> Result<BTreeMap<String, String>, ReadError> {
        let api: Api<Namespace> = Api::all(self.client.clone());
        let found = self.get(&api, namespace, || format!("namespace {namespace}"));
        let labels = found.await?.and_then(|found| found.metadata.labels);
        Ok(labels.unwrap_or_default())
    }

    /// The Node's `spec.providerID`; empty where it has none. None: there is no such Node.
    pub async fn provider_id(&self, node: &str) -> Result<Option<String>, ReadError> {
        let api: Api<Node> = Api::all(self.client.clone());
        let found = self.get(&api, node, || format!("node {node}")).await?;
        Ok(found.map(|node| {
            let spec = node.spec.unwrap_or_default();
            spec.provider_id.unwrap_or_default()
        }))
    }

    /// The IPPool as the API server has it.
    pub async fn pool(&self, name: &str) -> Result<Option<Value>, ReadError> {
        let kind = GroupVersionKind::gvk(GROUP, VERSION, KIND);
        let resource = ApiResource::from_gvk_with_plural(&kind, PLURAL);
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
        let found = self.get(&api, name, || format!("IPPool {name}")).await?;
        let value = found
            .map(|object| serde_json::to_value(&object))
            .transpose();
        value.map_err(|error| ReadError {
            what: format!("IPPool {name}"),
            why: error.to_string(),
            forbidden: false,
        })
    }

    async fn get<K>(
        &self,
        api: &Api<K>,
        name: &str,
        what: impl Fn() -> String,
    ) -> Result<Option<K>, ReadError>
    where
        K: Resource + Clone + fmt::Debug + serde::de::DeserializeOwned,
    {
        let failed = |why: String, forbidden| ReadError {
            what: what(),
            why,
            forbidden,
        };
        match tokio::time::timeout(self.timeout, api.get_opt(name)).await {
            Ok(Ok(found)) => Ok(found),
            Ok(Err(error)) => {
                let forbidden = matches!(&error, kube::Error::Api(status) if status.code == 403);
                Err(failed(error.to_string(), forbidden))
            }
            Err(_) => Err(failed(
                format!("no answer within {} s", self.timeout.as_secs()),
                false,
            )),
        }
    }
}
