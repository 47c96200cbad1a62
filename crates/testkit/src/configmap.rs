//! A ConfigMap in its own namespace, written and read as another program would.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use kube::api::{Api, PostParams};
use serde_json::json;

use crate::Cluster;

/// It need not exist yet.
pub struct TestConfigMap {
    pub namespace: String,
    pub name: String,
    pub client: Client,
    pub api: Api<ConfigMap>,
}

impl std::fmt::Debug for TestConfigMap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TestConfigMap")
            .field("namespace", &self.namespace)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl TestConfigMap {
    pub async fn new(cluster: &Cluster, namespace: &str, name: &str) -> Result<TestConfigMap> {
        let namespace = cluster.namespace(namespace).await?;
        let client = cluster.client().await?;
        Ok(TestConfigMap {
            api: Api::namespaced(client.clone(), &namespace),
            namespace,
            name: name.to_owned(),
            client,
        })
    }

    /// Creates it with these keys.
    pub async fn write(&self, data: &[(&str, &str)]) -> Result<()> {
        let data: BTreeMap<&str, &str> = data.iter().copied().collect();
        let object = json!({ "metadata": { "name": self.name }, "data": data });
        let object = serde_json::from_value(object).context("make a ConfigMap")?;
        let created = self.api.create(&PostParams::default(), &object).await;
        created.with_context(|| format!("create ConfigMap {}", self.name))?;
        Ok(())
    }

    /// What it holds now.
    pub async fn data(&self) -> Result<BTreeMap<String, String>> {
        let object = self.api.get(&self.name).await;
        let object = object.with_context(|| format!("get ConfigMap {}", self.name))?;
        Ok(object.data.unwrap_or_default())
    }
}
