//! The ConfigMap with what agents read about networks without a NodeSlicePool.
//!
//! Written when it changes, on exactly the version that was read. Created when there is something to publish.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::slices::{DISJOINT_KEY, DisjointRanges, NETWORKS_MAP};
use berth_core::Prefix;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;

pub struct NetworksConfigMap {
    maps: Api<ConfigMap>,
    timeout: Duration,
    written: Option<String>,
}

impl std::fmt::Debug for NetworksConfigMap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NetworksConfigMap").finish_non_exhaustive()
    }
}

impl NetworksConfigMap {
    pub fn new(client: Client, namespace: &str, timeout: Duration) -> NetworksConfigMap {
        NetworksConfigMap {
            maps: Api::namespaced(client, namespace),
            timeout,
            written: None,
        }
    }

    /// The next write starts with a read.
    pub fn forget(&mut self) {
        self.written = None;
    }

    pub async fn publish(
        &mut self,
        disjoint: &BTreeMap<String, Prefix>,
    ) -> Result<(), kube::Error> {
        let text = json!(DisjointRanges(disjoint.clone())).to_string();
        if self.written.as_ref() == Some(&text) {
            return Ok(());
        }
        match tokio::time::timeout(self.timeout, self.write(&text, disjoint.is_empty())).await {
            Ok(written) => written?,
            Err(_) => {
                let why = format!("no answer about ConfigMap {NETWORKS_MAP}");
                return Err(kube::Error::Service(why.into()));
            }
        }
        self.written = Some(text);
        Ok(())
    }

    async fn write(&self, text: &str, empty: bool) -> Result<(), kube::Error> {
        let data = BTreeMap::from([(DISJOINT_KEY.to_owned(), text.to_owned())]);
        let Some(found) = self.maps.get_opt(NETWORKS_MAP).await? else {
            if empty {
                return Ok(());
            }
            let made = ConfigMap {
                metadata: ObjectMeta {
                    name: Some(NETWORKS_MAP.to_owned()),
                    ..ObjectMeta::default()
                },
                data: Some(data),
                ..ConfigMap::default()
            };
            self.maps.create(&PostParams::default(), &made).await?;
            return Ok(());
        };
        let now = found.data.as_ref().and_then(|data| data.get(DISJOINT_KEY));
        if now.is_some_and(|now| now == text) {
            return Ok(());
        }
        let patch = json!({
            "metadata": { "resourceVersion": found.metadata.resource_version },
            "data": data,
        });
        let params = PatchParams::default();
        self.maps
            .patch(NETWORKS_MAP, &params, &Patch::Merge(patch))
            .await?;
        Ok(())
    }
}
