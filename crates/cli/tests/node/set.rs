//! A set of pods that the cluster's own controllers make and remove: scaled, waited for, looked at.

use std::collections::BTreeMap;

use kube::api::{DynamicObject, ListParams};
use serde_json::{Value, json};

use crate::scene::{Scene, template};

pub struct Set<'a> {
    scene: &'a Scene,
    /// As kubectl names it.
    path: String,
    /// Of its pods.
    label: String,
}

impl<'a> Set<'a> {
    /// A ReplicaSet without a pod yet.
    pub async fn replicas(scene: &'a Scene, name: &str, networks: &str) -> Set<'a> {
        Set::apply(scene, "ReplicaSet", name, networks, json!({})).await
    }

    /// A StatefulSet without a pod yet; its pods come all at once.
    pub async fn stateful(scene: &'a Scene, name: &str, networks: &str) -> Set<'a> {
        let more = json!({ "serviceName": name, "podManagementPolicy": "Parallel" });
        Set::apply(scene, "StatefulSet", name, networks, more).await
    }

    async fn apply(
        scene: &'a Scene,
        kind: &str,
        name: &str,
        networks: &str,
        mut spec: Value,
    ) -> Set<'a> {
        spec["replicas"] = json!(0);
        spec["selector"] = json!({ "matchLabels": { "app": name } });
        spec["template"] = template(name, networks);
        let metadata = json!({ "name": name });
        let set =
            json!({ "apiVersion": "apps/v1", "kind": kind, "metadata": metadata, "spec": spec });
        scene.apply(set).await;
        Set {
            scene,
            path: format!("{}/{name}", kind.to_lowercase()),
            label: name.to_owned(),
        }
    }

    /// Asks for this many pods.
    pub fn scale(&self, count: usize) {
        let replicas = count.to_string();
        self.scene
            .kubectl(&["scale", &self.path, "--replicas", &replicas]);
    }

    /// The same, and waits for them.
    pub async fn scaled(&self, count: usize) -> BTreeMap<String, String> {
        self.scale(count);
        self.settled(count).await
    }

    /// Pods and their addresses, as soon as there are this many, all of them running.
    pub async fn settled(&self, count: usize) -> BTreeMap<String, String> {
        let what = format!("{count} pods of {} run", self.path);
        self.scene
            .until(&what, async || {
                let pods = self.pods().await;
                let there = pods.len();
                let running = on(pods, "net1");
                match (there, running.len()) == (count, count) {
                    true => Ok(running),
                    false => Err(format!("{} of {there}", running.len())),
                }
            })
            .await
    }

    /// Its running pods, and the address that each is said to have on an interface.
    pub async fn running(&self, interface: &str) -> BTreeMap<String, String> {
        on(self.pods().await, interface)
    }

    /// Deletes one of its pods, and returns when another of that name is there.
    pub async fn remake(&self, pod: &str) {
        let pods = self.scene.objects("v1", "Pod");
        let uid = pods.get(pod).await.unwrap().metadata.uid;
        self.scene.kubectl(&["delete", "pod", pod]);
        self.scene
            .until(&format!("{pod} is made again"), async || {
                let now = pods.get_opt(pod).await.unwrap();
                match now.is_some_and(|now| now.metadata.uid != uid) {
                    true => Ok(()),
                    false => Err("it is the old one".to_owned()),
                }
            })
            .await;
    }

    async fn pods(&self) -> Vec<DynamicObject> {
        let ours = ListParams::default().labels(&format!("app={}", self.label));
        let pods = self.scene.objects("v1", "Pod").list(&ours).await;
        pods.unwrap().items
    }
}

/// Those that run, and the address that each is said to have on an interface.
fn on(pods: Vec<DynamicObject>, interface: &str) -> BTreeMap<String, String> {
    let pods = pods.into_iter();
    pods.filter(|pod| pod.data["status"]["phase"] == "Running")
        .filter_map(|pod| {
            let text = pod
                .metadata
                .annotations?
                .remove("k8s.v1.cni.cncf.io/network-status")?;
            let networks: Vec<Value> = serde_json::from_str(&text).ok()?;
            let mut networks = networks.iter();
            let network = networks.find(|network| network["interface"] == interface)?;
            Some((pod.metadata.name?, network["ips"][0].as_str()?.to_owned()))
        })
        .collect()
}
