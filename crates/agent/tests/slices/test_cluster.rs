//! A controller and the objects that it reads: definitions and pods.

use std::time::Duration;

use berth_testkit::InProcess;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::test_controller;
use crate::test_node::Site;

/// Pods are of the site's namespace, as the pools are.
pub struct World<'a> {
    site: &'a Site,
    controller: InProcess,
}

impl<'a> World<'a> {
    pub async fn start(site: &'a Site) -> World<'a> {
        World::start_with(site, test_controller::GRACE).await
    }

    pub async fn start_with(site: &'a Site, grace: Duration) -> World<'a> {
        World::start_resyncing(site, grace, Duration::from_secs(1)).await
    }

    /// The same, with this pause between its periodic reads.
    pub async fn start_resyncing(site: &'a Site, grace: Duration, resync: Duration) -> World<'a> {
        let mut config = test_controller::config(site.kubeconfig.clone(), &site.namespace);
        config.slices.grace = grace;
        config.slices.resync = resync;
        let controller = test_controller::start(config);
        World { site, controller }
    }

    pub async fn stop(self) {
        self.controller.stop().await;
    }

    pub fn namespace(&self) -> &str {
        &self.site.namespace
    }

    /// A definition with the configuration of the agents' calls.
    pub async fn define(&self, name: &str, ipam: &Value) {
        let mut ipam = ipam.clone();
        ipam["type"] = json!("whereabouts");
        let conf = json!({ "cniVersion": "1.1.0", "name": "net", "type": "macvlan", "ipam": ipam });
        let (client, kind) = (self.site.client.clone(), test_controller::definitions());
        let api: Api<DynamicObject> = Api::namespaced_with(client, self.namespace(), &kind);
        let object = json!({
            "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
            "metadata": { "name": name },
            "spec": { "config": conf.to_string() },
        });
        let params = PatchParams::apply("test").force();
        api.patch(name, &params, &Patch::Apply(object))
            .await
            .unwrap();
    }

    pub async fn undefine(&self, name: &str) {
        let (client, kind) = (self.site.client.clone(), test_controller::definitions());
        let api: Api<DynamicObject> = Api::namespaced_with(client, self.namespace(), &kind);
        api.delete(name, &DeleteParams::default()).await.unwrap();
    }

    /// A pod that was started on a node.
    pub async fn run_pod(&self, name: &str, node: &str, network: &str) {
        self.wait_pod(name, node, network).await;
        let running = Patch::Merge(json!({ "status": { "phase": "Running" } }));
        let pods: Api<Pod> = self.site.api();
        let params = PatchParams::default();
        pods.patch_status(name, &params, &running).await.unwrap();
    }

    /// A pod that waits for its addresses.
    pub async fn wait_pod(&self, name: &str, node: &str, network: &str) {
        let pod = json!({
            "metadata": { "name": name, "annotations": { "k8s.v1.cni.cncf.io/networks": network } },
            "spec": { "nodeName": node, "containers": [{ "name": "c", "image": "nothing" }] },
        });
        let pods: Api<Pod> = self.site.api();
        let pod = serde_json::from_value(pod).unwrap();
        pods.create(&PostParams::default(), &pod).await.unwrap();
    }

    pub async fn delete_pod(&self, name: &str) {
        let pods: Api<Pod> = self.site.api();
        let now = DeleteParams::default().grace_period(0);
        pods.delete(name, &now).await.unwrap();
    }

    /// A healthy kubelet.
    pub async fn ready(&self, node: &str) {
        let nodes: Api<Node> = Api::all(self.site.client.clone());
        let ready = json!({ "status": { "conditions": [{ "type": "Ready", "status": "True" }] } });
        let patch = Patch::Strategic(ready);
        nodes
            .patch_status(node, &PatchParams::default(), &patch)
            .await
            .unwrap();
    }
}
