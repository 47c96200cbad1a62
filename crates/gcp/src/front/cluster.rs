//! What the front reads of the cluster: pods, namespaces, nodes and the IPPool's settings. Every read is a quorum read.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use berth_core::Owner;
use berth_kube::{
    Connection, Failure, KubeError, ObjectClient, Part, Place, Rejection, Resource, RetryPolicy,
    Selection, Verb,
};
use hyper::body::Bytes;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::api::PartialObjectMeta;
use kube::{Client, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::Value;
use thiserror::Error;

use crate::pool::IP_POOLS;
use crate::pool::pages::PAGE_OF;

const PODS: Resource = core("pods", "Pod", Place::Namespaced);
const NAMESPACES: Resource = core("namespaces", "Namespace", Place::Cluster);
const NODES: Resource = core("nodes", "Node", Place::Cluster);

const fn core(plural: &'static str, kind: &'static str, place: Place) -> Resource {
    Resource {
        group: "",
        version: "v1",
        plural,
        kind,
        place,
    }
}

/// A read that the API server refuses because it is busy is made again when the server says, within the time of a call.
const BUSY: RetryPolicy = RetryPolicy {
    timeout: Duration::from_secs(30),
    retries: 50,
    base: Duration::from_millis(100),
    factor: 1.5,
    max: Duration::from_secs(2),
};

/// Why there is no answer; it is asked again later.
#[derive(Debug, Error)]
#[error(transparent)]
pub struct ReadError(#[from] KubeError);

impl ReadError {
    /// The account lacks the right.
    pub fn is_forbidden(&self) -> bool {
        matches!(
            self.0,
            KubeError::Rejected {
                rejection: Rejection::Forbidden(_),
                ..
            }
        )
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
#[derive(Clone, Debug)]
pub struct Cluster {
    objects: ObjectClient,
}

impl Cluster {
    pub fn new(connection: &Connection) -> Cluster {
        Cluster {
            objects: ObjectClient::new(connection),
        }
    }

    pub fn client(&self) -> Client {
        self.objects.kube().clone()
    }

    pub async fn pod(&self, namespace: &str, name: &str) -> Result<Option<PodFacts>, ReadError> {
        let objects = self.objects.in_namespace(namespace);
        let found: Option<Pod> = read(&objects, &PODS, name).await?;
        Ok(found.map(PodFacts::of))
    }

    /// Every pod that is bound to a node, as the owner of an allocation. Only metadata is read, page by page.
    pub async fn pods_of(&self, node: &str) -> Result<BTreeSet<Owner>, ReadError> {
        let of_node = Selection {
            fields: &format!("spec.nodeName={node}"),
            everywhere: true,
            ..Selection::default()
        };
        let mut owners = BTreeSet::new();
        let add = |pod: PartialObjectMeta<Pod>| {
            let namespace = pod.namespace().unwrap_or_default();
            let subject = format!("{namespace}/{}", pod.name_any());
            owners.insert(Owner::new(subject, pod.uid().unwrap_or_default()));
        };
        self.objects.list_metadata(&PODS, &of_node, add).await?;
        Ok(owners)
    }

    /// The labels of a namespace; none if there is no such namespace.
    pub async fn labels_of(&self, namespace: &str) -> Result<BTreeMap<String, String>, ReadError> {
        let found: Option<Namespace> = read(&self.objects, &NAMESPACES, namespace).await?;
        let labels = found.and_then(|found| found.metadata.labels);
        Ok(labels.unwrap_or_default())
    }

    /// The Node's `spec.providerID`; empty where it has none. None: there is no such Node.
    pub async fn provider_id(&self, node: &str) -> Result<Option<String>, ReadError> {
        let found: Option<Node> = read(&self.objects, &NODES, node).await?;
        Ok(found.map(|node| {
            let spec = node.spec.unwrap_or_default();
            spec.provider_id.unwrap_or_default()
        }))
    }

    /// The IPPool as the API server has it.
    pub async fn pool(&self, name: &str) -> Result<Option<Value>, ReadError> {
        read(&self.objects, &IP_POOLS, name).await
    }

    /// The UID of a page's object, which another process may have created before.
    pub async fn create_page(&self, object: &Value) -> Result<String, ReadError> {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let page = match self.objects.create(&IP_POOLS, object).await {
            Ok(created) => Some(created),
            Err(Failure::Refused(refusal)) if refusal.is_taken_name() => {
                let found: Option<Value> = read(&self.objects, &IP_POOLS, name).await?;
                let annotation = |page: &Value| page["metadata"]["annotations"][PAGE_OF].clone();
                found.filter(|found| annotation(found) == annotation(object))
            }
            Err(failure) => return Err(self.failed(failure, Verb::Create, name)),
        };
        let uid = page.and_then(|page| Some(page["metadata"]["uid"].as_str()?.to_owned()));
        let unreadable = || KubeError::Unreadable {
            target: format!("IPPool {name}"),
            why: format!("its annotation {PAGE_OF} names another pool"),
        };
        Ok(uid.ok_or_else(unreadable)?)
    }

    /// Replaces the version of an IPPool that was read; false if it has another one by now.
    pub async fn replace_pool(&self, object: &Value) -> Result<bool, ReadError> {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let text = Bytes::from(object.to_string());
        let replaced = self.objects.replace(&IP_POOLS, Part::Object, name, &text);
        match replaced.await {
            Ok(_) => Ok(true),
            Err(Failure::Refused(refusal)) if refusal.code == 409 => Ok(false),
            Err(failure) => Err(self.failed(failure, Verb::Update, name)),
        }
    }

    fn failed(&self, failure: Failure, verb: Verb, name: &str) -> ReadError {
        failure
            .into_error(self.objects.ask(verb, &IP_POOLS, name))
            .into()
    }
}

/// The object; none only if the API server says that this very object does not exist.
async fn read<T: DeserializeOwned>(
    objects: &ObjectClient,
    resource: &'static Resource,
    name: &str,
) -> Result<Option<T>, ReadError> {
    let mut backoff = BUSY.start();
    loop {
        let error = match objects.read(resource, name).await {
            Ok(found) => return Ok(found),
            Err(error) => error,
        };
        let asked = error.retry_after();
        match asked.and_then(|asked| backoff.pause(Some(asked))) {
            Some(pause) => tokio::time::sleep(pause).await,
            None => return Err(error.into()),
        }
    }
}
