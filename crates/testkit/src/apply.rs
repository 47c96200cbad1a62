//! Manifests, applied as an administrator would: server-side, in order, custom resources as soon as they are served.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::discovery::{self, ApiCapabilities, ApiResource, Scope};
use serde_json::Value;
use tokio::time::sleep;

use crate::Cluster;

impl Cluster {
    /// Applies documents of YAML (or JSON), one after another. A custom resource definition is established,
    /// and its objects are served, when the next document is sent. Objects without a namespace go to `default`.
    pub async fn apply(&self, documents: &str) -> Result<Vec<DynamicObject>> {
        let documents: Vec<Value> =
            serde_saphyr::from_multiple(documents).context("read the manifests")?;
        let mut applied = Vec::new();
        for document in documents.into_iter().filter(|document| !document.is_null()) {
            applied.push(self.apply_object(document).await?);
        }
        Ok(applied)
    }

    /// Applies one object.
    pub async fn apply_object(&self, object: Value) -> Result<DynamicObject> {
        let client = self.client().await?;
        let object: DynamicObject = serde_json::from_value(object)
            .context("a manifest without apiVersion, kind or metadata")?;
        let types = object.types.clone().context("a manifest without kind")?;
        let gvk = GroupVersionKind::try_from(&types)
            .with_context(|| format!("apiVersion {} of a manifest", types.api_version))?;
        let name = object
            .metadata
            .name
            .clone()
            .with_context(|| format!("a {} without metadata.name", types.kind))?;
        let (resource, capabilities) = served(&client, &gvk).await?;
        let api: Api<DynamicObject> = match capabilities.scope {
            Scope::Cluster => Api::all_with(client.clone(), &resource),
            Scope::Namespaced => {
                let namespace = object.metadata.namespace.as_deref().unwrap_or("default");
                Api::namespaced_with(client.clone(), namespace, &resource)
            }
        };
        let parameters = PatchParams::apply("berth-testkit").force();
        let applied = api
            .patch(&name, &parameters, &Patch::Apply(&object))
            .await
            .with_context(|| format!("apply {} {name}", types.kind))?;
        if gvk.kind == "CustomResourceDefinition" {
            established(&client, &applied).await?;
        }
        Ok(applied)
    }
}

/// The resource of a kind; waits a little, because its definition may have been applied just now.
async fn served(
    client: &kube::Client,
    gvk: &GroupVersionKind,
) -> Result<(ApiResource, ApiCapabilities)> {
    let started = Instant::now();
    loop {
        match discovery::pinned_kind(client, gvk).await {
            Ok(found) => return Ok(found),
            Err(error) if started.elapsed() > Duration::from_secs(5) => {
                return Err(error)
                    .with_context(|| format!("the API server serves no {}", gvk.api_version()))
                    .with_context(|| format!("look for kind {}", gvk.kind));
            }
            Err(_) => sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Returns when every served version of the definition is in discovery: "Established" comes a moment earlier.
async fn established(client: &kube::Client, definition: &DynamicObject) -> Result<()> {
    let spec = &definition.data["spec"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let versions = spec["versions"].as_array().cloned().unwrap_or_default();
    for version in versions.iter().filter(|version| version["served"] == true) {
        let gvk = GroupVersionKind {
            group: text(&spec["group"]),
            version: text(&version["name"]),
            kind: text(&spec["names"]["kind"]),
        };
        let started = Instant::now();
        while discovery::pinned_kind(client, &gvk).await.is_err() {
            if started.elapsed() > Duration::from_secs(30) {
                bail!(
                    "{} {} is not served after 30 s",
                    gvk.api_version(),
                    gvk.kind
                );
            }
            sleep(Duration::from_millis(50)).await;
        }
    }
    Ok(())
}
