//! The ConfigMap with what agents read about networks without a NodeSlicePool.
//!
//! Written when it changes, on exactly the version that was read. Created when there is something to publish.

use std::collections::BTreeMap;

use berth_api::slices::{DISJOINT_KEY, DisjointRanges, NETWORKS_MAP};
use berth_core::Prefix;
use berth_kube::{Connection, Failure, KubeError, ObjectClient, Place, Resource, Verb};
use kube::api::Patch;
use serde::Deserialize;
use serde_json::json;

const CONFIG_MAPS: Resource = Resource {
    group: "",
    version: "v1",
    plural: "configmaps",
    kind: "ConfigMap",
    place: Place::Namespaced,
};

#[derive(Debug)]
pub struct NetworksConfigMap {
    objects: ObjectClient,
    written: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    resource_version: String,
}

#[derive(Deserialize)]
struct Found {
    metadata: Metadata,
    #[serde(default)]
    data: BTreeMap<String, String>,
}

impl NetworksConfigMap {
    pub fn new(connection: &Connection) -> NetworksConfigMap {
        NetworksConfigMap {
            objects: ObjectClient::new(connection),
            written: None,
        }
    }

    /// The next write starts with a read.
    pub fn forget(&mut self) {
        self.written = None;
    }

    /// Publishes which ranges are disjoint, if that is not what was written last.
    pub async fn publish(&mut self, disjoint: &BTreeMap<String, Prefix>) -> Result<(), KubeError> {
        let text = json!(DisjointRanges(disjoint.clone())).to_string();
        if self.written.as_ref() == Some(&text) {
            return Ok(());
        }
        self.write(&text, disjoint.is_empty()).await?;
        self.written = Some(text);
        Ok(())
    }

    async fn write(&self, text: &str, empty: bool) -> Result<(), KubeError> {
        let data = json!({ DISJOINT_KEY: text });
        let failed = |verb: Verb| {
            move |failure: Failure| {
                failure.into_error(self.objects.ask(verb, &CONFIG_MAPS, NETWORKS_MAP))
            }
        };
        let found: Option<Found> = self.objects.read(&CONFIG_MAPS, NETWORKS_MAP).await?;
        let Some(found) = found else {
            if empty {
                return Ok(());
            }
            let made = json!({
                "apiVersion": CONFIG_MAPS.api_version(), "kind": CONFIG_MAPS.kind,
                "metadata": { "name": NETWORKS_MAP },
                "data": data,
            });
            let created = self.objects.create(&CONFIG_MAPS, &made).await;
            created.map_err(failed(Verb::Create))?;
            return Ok(());
        };
        if found.data.get(DISJOINT_KEY).is_some_and(|now| now == text) {
            return Ok(());
        }
        let patch = Patch::Merge(json!({
            "metadata": { "resourceVersion": found.metadata.resource_version },
            "data": data,
        }));
        let patched = self.objects.patch(&CONFIG_MAPS, NETWORKS_MAP, &patch).await;
        patched.map_err(failed(Verb::Patch))?;
        Ok(())
    }
}
