//! What the front reads of the cluster: pods, namespaces, nodes and the IPPool's settings. Every read is a quorum read.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use berth_core::Owner;
use berth_kube::{Connection, RetryPolicy};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::api::{
    Api, ApiResource, DynamicObject, GroupVersionKind, ListParams, PartialObjectMeta, PostParams,
};
use kube::{Client, Resource, ResourceExt};
use serde_json::Value;
use thiserror::Error;

use crate::pool::pages::PAGE_OF;
use crate::pool::{GROUP, KIND, PLURAL, VERSION};

/// A read that the API server refuses because it is busy is made again, within the time of a call.
const BUSY: RetryPolicy = RetryPolicy {
    timeout: Duration::from_secs(30),
    retries: 50,
    base: Duration::from_millis(100),
    factor: 1.5,
    max: Duration::from_secs(2),
};
const TOO_MANY_REQUESTS: u16 = 429;

/// Why there is no answer; it is asked again later.
#[derive(Clone, Debug, Error)]
#[error("{what} can't be read or written: {why}")]
pub struct ReadError {
    what: String,
    why: String,
    /// The API server's; 0 where it did not answer.
    code: u16,
}

impl ReadError {
    /// The account lacks the right.
    pub fn is_forbidden(&self) -> bool {
        self.code == 403
    }
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

    /// Every pod that is bound to a node, as the owner of an allocation. Only metadata is read.
    pub async fn pods_of(&self, node: &str) -> Result<BTreeSet<Owner>, ReadError> {
        let api: Api<Pod> = Api::all(self.client.clone());
        let of_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
        let what = || format!("the pods of node {node}");
        let listed = self.answered(api.list_metadata(&of_node), what).await?;
        let owner = |pod: PartialObjectMeta<Pod>| {
            let namespace = pod.namespace().unwrap_or_default();
            let subject = format!("{namespace}/{}", pod.name_any());
            Owner::new(subject, pod.uid().unwrap_or_default())
        };
        Ok(listed.items.into_iter().map(owner).collect())
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
        let api = self.pools();
        let found = self.get(&api, name, || format!("IPPool {name}")).await?;
        let value = found
            .map(|object| serde_json::to_value(&object))
            .transpose();
        value.map_err(|error| ReadError {
            what: format!("IPPool {name}"),
            why: error.to_string(),
            code: 0,
        })
    }

    /// The UID of a page's object, which another process may have created before.
    pub async fn create_page(&self, object: &Value) -> Result<String, ReadError> {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let what = || format!("page {name}");
        let api = self.pools();
        let page: DynamicObject = self.typed(object, what)?;
        let params = PostParams::default();
        let created = self.answered(api.create(&params, &page), what).await;
        let uid = match created {
            Ok(created) => created.metadata.uid,
            Err(error) if error.code == 409 => {
                let found = self.get(&api, name, what).await?;
                let found = found.filter(|found| {
                    let theirs = found.annotations().get(PAGE_OF).map(String::as_str);
                    theirs == object["metadata"]["annotations"][PAGE_OF].as_str()
                });
                found.and_then(|found| found.metadata.uid)
            }
            Err(error) => return Err(error),
        };
        uid.ok_or_else(|| ReadError {
            what: what(),
            why: format!(
                "an IPPool of that name is there, and its annotation {PAGE_OF} says another pool"
            ),
            code: 0,
        })
    }

    /// Replaces the version of an IPPool that was read; false if it has another one by now.
    pub async fn replace_pool(&self, object: &Value) -> Result<bool, ReadError> {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let what = || format!("IPPool {name}");
        let pool: DynamicObject = self.typed(object, what)?;
        let (api, params) = (self.pools(), PostParams::default());
        match self.answered(api.replace(name, &params, &pool), what).await {
            Ok(_) => Ok(true),
            Err(error) if error.code == 409 => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn pools(&self) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk(GROUP, VERSION, KIND);
        let resource = ApiResource::from_gvk_with_plural(&kind, PLURAL);
        Api::all_with(self.client.clone(), &resource)
    }

    fn typed(&self, object: &Value, what: impl Fn() -> String) -> Result<DynamicObject, ReadError> {
        serde_json::from_value(object.clone()).map_err(|error| ReadError {
            what: what(),
            why: error.to_string(),
            code: 0,
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
        let mut backoff = BUSY.start();
        loop {
            let error = match self.answered(api.get_opt(name), &what).await {
                Err(error) if error.code == TOO_MANY_REQUESTS => error,
                done => return done,
            };
            match backoff.pause(None) {
                Some(pause) => tokio::time::sleep(pause).await,
                None => return Err(error),
            }
        }
    }

    async fn answered<T>(
        &self,
        call: impl Future<Output = Result<T, kube::Error>>,
        what: impl Fn() -> String,
    ) -> Result<T, ReadError> {
        let failed = |why: String, code| ReadError {
            what: what(),
            why,
            code,
        };
        match tokio::time::timeout(self.timeout, call).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => {
                let code = match &error {
                    kube::Error::Api(status) => status.code,
                    _ => 0,
                };
                Err(failed(error.to_string(), code))
            }
            Err(_) => Err(failed(
                format!("no answer within {} s", self.timeout.as_secs()),
                0,
            )),
        }
    }
}
