//! The cluster's objects that the commands read and write: IPPools (`ipam.gcp-cni.cast.ai`), nodes and pods.
//!
//! A write names the version that was read. A missing object is distinguished from a missing definition: the
//! provisioner reserves nothing for an IPPool that could not be created.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use berth_gcp::check::ObservedPod;
use berth_gcp::pool;
use berth_gcp::provision::executor::{Pools, PoolsError};
use berth_kube::Connection;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, PostParams,
    Preconditions,
};
use kube::{Api, Client, Error};
use serde_json::Value;

/// A page of a list.
const PAGE: u32 = 500;

const DEFINITION: &str =
    "the definition of IPPools is not installed: kubectl apply -f deploy/gcp/crds/";

#[derive(Clone, Debug)]
pub struct PoolObjects {
    api: Api<DynamicObject>,
    timeout: Duration,
}

impl PoolObjects {
    pub fn new(connection: &Connection) -> PoolObjects {
        let kind = GroupVersionKind::gvk(pool::GROUP, pool::VERSION, "IPPool");
        let resource = ApiResource::from_gvk_with_plural(&kind, "ippools");
        PoolObjects {
            api: Api::all_with(connection.client.clone(), &resource),
            timeout: connection.timeout,
        }
    }

    /// Every IPPool, as JSON.
    pub async fn list(&self) -> Result<Vec<Value>, PoolsError> {
        let mut found = Vec::new();
        reduce(&self.api, self.timeout, |object| found.push(object)).await?;
        Ok(found)
    }
}

/// Lists that are reduced page by page: a large cluster's pods are never all in memory.
#[derive(Clone)]
pub struct Lists {
    client: Client,
    timeout: Duration,
}

impl Lists {
    pub fn new(connection: &Connection) -> Lists {
        Lists {
            client: connection.client.clone(),
            timeout: connection.timeout,
        }
    }

    /// Name and providerID of every node.
    pub async fn nodes(&self) -> Result<Vec<(String, String)>, PoolsError> {
        let mut found = Vec::new();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let api = self.core("Node", "nodes");
        let visit = |node: Value| {
            let provider_id = text(&node["spec"]["providerID"]);
            found.push((text(&node["metadata"]["name"]), provider_id));
        };
        reduce(&api, self.timeout, visit).await?;
        Ok(found)
    }

    /// Every pod with its own network that has not ended, by UID.
    pub async fn pods(&self) -> Result<BTreeMap<String, ObservedPod>, PoolsError> {
        let mut found = BTreeMap::new();
        let api = self.core("Pod", "pods");
        let visit = |pod: Value| found.extend(observed(&pod).map(|pod| (pod.uid.clone(), pod)));
        reduce(&api, self.timeout, visit).await?;
        Ok(found)
    }

    fn core(&self, kind: &str, plural: &str) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk("", "v1", kind);
        let resource = ApiResource::from_gvk_with_plural(&kind, plural);
        Api::all_with(self.client.clone(), &resource)
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

async fn reduce(
    api: &Api<DynamicObject>,
    timeout: Duration,
    mut visit: impl FnMut(Value),
) -> Result<(), PoolsError> {
    let mut page = ListParams::default().limit(PAGE);
    loop {
        let list = bounded(timeout, api.list(&page)).await?;
        for object in &list.items {
            visit(value(object)?);
        }
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(()),
        }
    }
}

async fn bounded<T>(
    timeout: Duration,
    call: impl Future<Output = Result<T, Error>> + Send,
) -> Result<T, PoolsError> {
    match tokio::time::timeout(timeout, call).await {
        Ok(answer) => answer.map_err(failed),
        Err(_) => Err(PoolsError::Unavailable(format!(
            "the API server has not answered within {timeout:?}"
        ))),
    }
}

impl Pools for PoolObjects {
    async fn get(&self, name: &str) -> Result<Option<Value>, PoolsError> {
        let call = async {
            match self.api.get(name).await {
                Ok(object) => Ok(Some(object)),
                Err(Error::Api(status)) if is_absent(&status, name) => Ok(None),
                Err(error) => Err(error),
            }
        };
        let found = bounded(self.timeout, call).await?;
        found.as_ref().map(value).transpose()
    }

    async fn create(&self, object: &Value) -> Result<(), PoolsError> {
        let object = dynamic(object)?;
        let create = PostParams::default();
        bounded(self.timeout, self.api.create(&create, &object)).await?;
        Ok(())
    }

    async fn replace(&self, object: &Value) -> Result<(), PoolsError> {
        let object = dynamic(object)?;
        let name = object.metadata.name.clone().unwrap_or_default();
        if object.metadata.resource_version.is_none() {
            return Err(PoolsError::Refused("it has no resourceVersion".to_owned()));
        }
        let replace = PostParams::default();
        let call = self.api.replace(&name, &replace, &object);
        bounded(self.timeout, call).await?;
        Ok(())
    }

    async fn delete(&self, object: &Value) -> Result<(), PoolsError> {
        let object = dynamic(object)?;
        let name = object.metadata.name.clone().unwrap_or_default();
        let delete = DeleteParams {
            preconditions: Some(Preconditions {
                resource_version: object.metadata.resource_version.clone(),
                uid: object.metadata.uid.clone(),
            }),
            ..DeleteParams::default()
        };
        bounded(self.timeout, self.api.delete(&name, &delete)).await?;
        Ok(())
    }
}

/// A missing definition is also a 404, which names no object.
fn is_absent(status: &kube::core::Status, name: &str) -> bool {
    let details = status.details.as_ref();
    status.code == 404 && details.is_some_and(|details| details.name == name)
}

fn failed(error: Error) -> PoolsError {
    match error {
        Error::Api(status) => match status.code {
            404 => PoolsError::Refused(DEFINITION.to_owned()),
            409 => PoolsError::Conflict(status.message.clone()),
            429 | 500.. => PoolsError::Unavailable(status.message.clone()),
            _ => PoolsError::Refused(status.message.clone()),
        },
        other => PoolsError::Unavailable(chain(&other)),
    }
}

/// An error with its causes: the outermost alone says "client error".
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        cause = error.source();
    }
    text
}

fn dynamic(object: &Value) -> Result<DynamicObject, PoolsError> {
    serde_json::from_value(object.clone()).map_err(|error| PoolsError::Refused(error.to_string()))
}

fn value(object: &DynamicObject) -> Result<Value, PoolsError> {
    serde_json::to_value(object).map_err(|error| PoolsError::Refused(error.to_string()))
}
