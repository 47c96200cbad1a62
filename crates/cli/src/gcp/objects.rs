//! The cluster's objects that the commands read and write: IPPools (`ipam.gcp-cni.cast.ai`), nodes and pods.
//!
//! A write names the version that was read. A missing object is distinguished from a missing definition: the
//! provisioner reserves nothing for an IPPool that could not be created.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use berth_gcp::check::ObservedPod;
use berth_gcp::pool::IP_POOLS;
use berth_gcp::provision::executor::{Pools, PoolsError};
use berth_kube::{
    Connection, Failure, KubeError, ObjectClient, Part, Place, Rejection, Resource, Selection, Verb,
};
use kube::api::Preconditions;
use serde_json::Value;

const DEFINITION: &str =
    "the definition of IPPools is not installed: kubectl apply -f deploy/gcp/crds/";

const NODES: Resource = Resource {
    group: "",
    version: "v1",
    plural: "nodes",
    kind: "Node",
    place: Place::Cluster,
};

const PODS: Resource = Resource {
    group: "",
    version: "v1",
    plural: "pods",
    kind: "Pod",
    place: Place::Namespaced,
};

const ALL: Selection<'static> = Selection {
    labels: "",
    fields: "",
    page: 500,
    everywhere: true,
    cached: false,
};

#[derive(Clone, Debug)]
pub struct PoolObjects {
    objects: ObjectClient,
}

impl PoolObjects {
    pub fn new(connection: &Connection) -> PoolObjects {
        PoolObjects {
            objects: ObjectClient::new(connection),
        }
    }

    /// Shows every IPPool to `visit`, as JSON.
    pub async fn visit(&self, visit: impl FnMut(Value)) -> Result<(), PoolsError> {
        let listed = self.objects.list(&IP_POOLS, &ALL, visit);
        listed.await.map_err(failed)
    }

    fn failed(&self, failure: Failure, verb: Verb, name: &str) -> PoolsError {
        failed(failure.into_error(self.objects.ask(verb, &IP_POOLS, name)))
    }
}

/// Nodes and pods: a large cluster's are never all in memory.
#[derive(Clone)]
pub struct Lists {
    objects: ObjectClient,
}

impl Lists {
    pub fn new(connection: &Connection) -> Lists {
        Lists {
            objects: ObjectClient::new(connection),
        }
    }

    /// Name and providerID of every node.
    pub async fn nodes(&self) -> Result<Vec<(String, String)>, PoolsError> {
        let mut found = Vec::new();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let visit = |node: Value| {
            let provider_id = text(&node["spec"]["providerID"]);
            found.push((text(&node["metadata"]["name"]), provider_id));
        };
        let listed = self.objects.list(&NODES, &ALL, visit);
        listed.await.map_err(failed)?;
        Ok(found)
    }

    /// Every pod with its own network that has not ended, by UID.
    pub async fn pods(&self) -> Result<BTreeMap<String, ObservedPod>, PoolsError> {
        let mut found = BTreeMap::new();
        let visit = |pod: Value| found.extend(observed(&pod).map(|pod| (pod.uid.clone(), pod)));
        let listed = self.objects.list(&PODS, &ALL, visit);
        listed.await.map_err(failed)?;
        Ok(found)
    }
}

fn observed(pod: &Value) -> Option<ObservedPod> {
    let phase = pod["status"]["phase"].as_str().unwrap_or_default();
    let ended = matches!(phase, "Succeeded" | "Failed");
    if ended || pod["spec"]["hostNetwork"] == true {
        return None;
    }
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let addresses = pod["status"]["podIPs"].as_array().into_iter().flatten();
    let addresses = addresses.filter_map(|entry| entry["ip"].as_str()?.parse::<Ipv4Addr>().ok());
    let metadata = &pod["metadata"];
    Some(ObservedPod {
        name: format!(
            "{}/{}",
            text(&metadata["namespace"]),
            text(&metadata["name"])
        ),
        uid: text(&metadata["uid"]),
        node: text(&pod["spec"]["nodeName"]),
        addresses: addresses.collect(),
    })
}

impl Pools for PoolObjects {
    async fn get(&self, name: &str) -> Result<Option<Value>, PoolsError> {
        let found = self.objects.read(&IP_POOLS, name).await;
        found.map_err(failed)
    }

    async fn create(&self, object: &Value) -> Result<(), PoolsError> {
        let created = self.objects.create(&IP_POOLS, object).await;
        created.map_err(|failure| self.failed(failure, Verb::Create, name(object)))?;
        Ok(())
    }

    async fn replace(&self, object: &Value) -> Result<(), PoolsError> {
        if !object["metadata"]["resourceVersion"].is_string() {
            return Err(PoolsError::Refused("it has no resourceVersion".to_owned()));
        }
        let (name, text) = (name(object), object.to_string().into());
        let replaced = self.objects.replace(&IP_POOLS, Part::Object, name, &text);
        let replaced = replaced.await;
        replaced.map_err(|failure| self.failed(failure, Verb::Update, name))?;
        Ok(())
    }

    async fn delete(&self, object: &Value) -> Result<(), PoolsError> {
        let text = |field: &str| object["metadata"][field].as_str().map(str::to_owned);
        let read = Preconditions {
            resource_version: text("resourceVersion"),
            uid: text("uid"),
        };
        let deleted = self.objects.delete(&IP_POOLS, name(object), read);
        deleted.await.map_err(failed)
    }
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

fn failed(error: KubeError) -> PoolsError {
    let text = error.to_string();
    match error {
        KubeError::Conflict { .. } => PoolsError::Conflict(text),
        KubeError::Unavailable { .. } | KubeError::OutcomeUnknown { .. } => {
            PoolsError::Unavailable(text)
        }
        KubeError::Rejected {
            rejection: Rejection::Missing(_),
            ..
        } => PoolsError::Refused(DEFINITION.to_owned()),
        KubeError::Rejected { rejection, .. } => PoolsError::Refused(rejection.to_string()),
        KubeError::Unreadable { .. } => PoolsError::Refused(text),
    }
}
