//! One scenario's part of the shared node: a namespace, and what a user sees and does there.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use berth_api::whereabouts::{IPAllocation, IPPool, OverlappingRangeIPReservation};
use berth_core::Prefix;
use berth_testkit::Node;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, ListParams};
use kube::core::GroupVersionKind;
use serde_json::{Value, json};
use tokio::sync::{RwLockReadGuard, RwLockWriteGuard};

use crate::site::{HOME, Site};

/// Two cores that start fifty pods, and what else the machine has to do.
const PATIENCE: Duration = Duration::from_secs(300);

pub struct Scene {
    pub site: &'static Site,
    pub namespace: String,
    client: kube::Client,
    _turn: Turn,
}

#[allow(dead_code)]
enum Turn {
    Shared(RwLockReadGuard<'static, ()>),
    Alone(RwLockWriteGuard<'static, ()>),
}

impl Scene {
    pub async fn open(name: &str) -> Scene {
        let site = Site::shared().await;
        let turn = Turn::Shared(site.turn.read().await);
        Scene::with(site, name, turn).await
    }

    /// With no other scenario on the node, because this one hurts it.
    pub async fn alone(name: &str) -> Scene {
        let site = Site::shared().await;
        let turn = Turn::Alone(site.turn.write().await);
        Scene::with(site, name, turn).await
    }

    async fn with(site: &'static Site, name: &str, turn: Turn) -> Scene {
        let cluster = site.node.cluster();
        Scene {
            site,
            namespace: cluster.namespace(name).await.unwrap(),
            client: cluster.client().await.unwrap(),
            _turn: turn,
        }
    }

    /// A macvlan network on the node's wire, with Berth for its addresses.
    pub async fn network(&self, name: &str, ipam: Value) {
        self.network_with(name, json!({}), ipam).await;
    }

    /// The same with more keys beside `ipam`.
    pub async fn network_with(&self, name: &str, more: Value, ipam: Value) {
        let mut ipam = ipam;
        ipam["type"] = json!("whereabouts");
        ipam["configuration_path"] = json!(self.site.flat_file());
        let mut config = json!({
            "cniVersion": "1.0.0", "name": name, "type": "macvlan", "master": "eth0", "mode": "bridge", "ipam": ipam,
        });
        for (key, value) in more.as_object().unwrap() {
            config[key] = value.clone();
        }
        self.apply(json!({
            "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
            "metadata": { "name": name },
            "spec": { "config": config.to_string() },
        }))
        .await;
    }

    pub async fn apply(&self, mut object: Value) {
        object["metadata"]["namespace"] = json!(self.namespace);
        self.site.node.cluster().apply_object(object).await.unwrap();
    }

    /// A pod on these networks; it need not run yet.
    pub async fn create(&self, name: &str, networks: &str) {
        let mut pod = template(name, networks);
        pod["apiVersion"] = json!("v1");
        pod["kind"] = json!("Pod");
        pod["metadata"]["name"] = json!(name);
        self.apply(pod).await;
    }

    pub async fn run(&self, name: &str, networks: &str) {
        self.create(name, networks).await;
        self.running(name).await;
    }

    pub async fn running(&self, name: &str) {
        let wait = self.site.node.wait_pod_running(&self.namespace, name);
        wait.await.unwrap();
    }

    /// Deletes the pod, and returns when it is gone.
    pub async fn delete(&self, name: &str) {
        let pods = self.objects("v1", "Pod");
        pods.delete(name, &DeleteParams::default()).await.unwrap();
        let wait = self.site.node.wait_pod_gone(&self.namespace, name);
        wait.await.unwrap();
    }

    /// The addresses that an interface of a pod really has.
    pub fn addresses(&self, pod: &str, interface: &str) -> Vec<String> {
        let all = self.site.node.pod_addresses(&self.namespace, pod).unwrap();
        all.get(interface).cloned().unwrap_or_default()
    }

    pub fn ping(&self, pod: &str, address: &str) {
        let address = address.split('/').next().unwrap();
        let mut command = self
            .site
            .node
            .pod_command(&self.namespace, pod, "busybox")
            .unwrap();
        let family = if address.contains(':') { "-6" } else { "-4" };
        let output = command
            .args(["ping", family, "-c", "5", "-A", "-W", "2", address])
            .output();
        let output = output.unwrap();
        assert!(
            output.status.success(),
            "{pod} does not reach {address}: {output:?}"
        );
    }

    /// What Multus says of the pod's networks: name, interface, addresses; the cluster network's left out.
    pub async fn status(&self, pod: &str) -> Vec<(String, String, Vec<String>)> {
        let pod = self.objects("v1", "Pod").get(pod).await.unwrap();
        let annotations = pod.metadata.annotations.unwrap_or_default();
        let text = &annotations["k8s.v1.cni.cncf.io/network-status"];
        let networks: Vec<Value> = serde_json::from_str(text).unwrap();
        let secondary = networks.iter().filter(|network| network["default"] != true);
        secondary
            .map(|network| {
                let ips = network["ips"].as_array().unwrap().iter();
                (
                    network["name"].as_str().unwrap().to_owned(),
                    network["interface"].as_str().unwrap().to_owned(),
                    ips.map(|ip| ip.as_str().unwrap().to_owned()).collect(),
                )
            })
            .collect()
    }

    /// Reasons and messages of the events about one object.
    pub async fn events(&self, about: &str) -> Vec<(String, String)> {
        let only = ListParams::default().fields(&format!("involvedObject.name={about}"));
        let events = self.objects("v1", "Event").list(&only).await.unwrap();
        let text = |event: &DynamicObject, key: &str| {
            event.data[key].as_str().unwrap_or_default().to_owned()
        };
        events
            .iter()
            .map(|event| (text(event, "reason"), text(event, "message")))
            .collect()
    }

    /// Offsets of a pool and who holds them; empty where there is no pool.
    pub async fn pool(&self, name: &str) -> BTreeMap<String, IPAllocation> {
        let pools: Api<IPPool> = Api::namespaced(self.client.clone(), HOME);
        let pool = pools.get_opt(name).await.unwrap();
        pool.map(|pool| pool.spec.allocations).unwrap_or_default()
    }

    /// Offsets of a pool and the pods that hold them, as `name/interface`; all must be pods of this scene.
    pub async fn holders(&self, pool: &str) -> BTreeMap<String, String> {
        let ours = format!("{}/", self.namespace);
        let held = self.pool(pool).await.into_iter();
        held.map(|(offset, holder)| {
            let name = holder
                .podref
                .strip_prefix(&ours)
                .unwrap_or_else(|| panic!("{holder:?}"));
            (offset, format!("{name}/{}", holder.ifname))
        })
        .collect()
    }

    /// Address and `pod/interface` of every entry of the pools that slices of this range are published in.
    pub async fn published(&self, range: &str) -> BTreeMap<String, String> {
        let range: Prefix = range.parse().unwrap();
        let pools: Api<IPPool> = Api::namespaced(self.client.clone(), HOME);
        let ours = format!("{}/", self.namespace);
        let mut all = BTreeMap::new();
        for pool in pools.list(&ListParams::default()).await.unwrap() {
            let slice: Prefix = pool.spec.range.parse().unwrap();
            if !range.contains(slice.network()) {
                continue;
            }
            for (offset, holder) in pool.spec.allocations {
                let address = slice.network().plus(offset.parse().unwrap()).unwrap();
                let name = holder.podref.strip_prefix(&ours);
                let name = name.unwrap_or_else(|| panic!("{holder:?}"));
                let holder = format!("{name}/{}", holder.ifname);
                let twice = all.insert(address.to_string(), holder);
                assert_eq!(twice, None, "{address} is in two pools");
            }
        }
        all
    }

    /// Reservations of this scene's pods, and the interfaces that hold them.
    pub async fn reservations(&self) -> BTreeMap<String, String> {
        let all: Api<OverlappingRangeIPReservation> = Api::namespaced(self.client.clone(), HOME);
        let ours = format!("{}/", self.namespace);
        let all = all
            .list(&ListParams::default())
            .await
            .unwrap()
            .items
            .into_iter();
        all.filter_map(|reservation| {
            let name = reservation.spec.podref.strip_prefix(&ours)?;
            Some((
                reservation.metadata.name?,
                format!("{name}/{}", reservation.spec.ifname),
            ))
        })
        .collect()
    }

    /// Nothing of this scene's pods is left in these pools, nor reserved.
    pub async fn nothing_is_held(&self, pools: &[&str]) {
        self.until("all addresses are free", async || {
            let mut held = self.reservations().await.into_iter().collect::<Vec<_>>();
            for pool in pools {
                held.extend(self.holders(pool).await);
            }
            match held.is_empty() {
                true => Ok(()),
                false => Err(format!("{held:?}")),
            }
        })
        .await;
    }

    pub fn objects(&self, version: &str, kind: &str) -> Api<DynamicObject> {
        self.objects_in(&self.namespace, version, kind)
    }

    pub fn objects_in(&self, namespace: &str, version: &str, kind: &str) -> Api<DynamicObject> {
        let (group, version) = version.split_once('/').unwrap_or(("", version));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        Api::namespaced_with(self.client.clone(), namespace, &resource)
    }

    pub fn kubectl(&self, arguments: &[&str]) -> String {
        let namespace = format!("--namespace={}", self.namespace);
        self.site
            .kubectl(&[&[namespace.as_str()], arguments].concat())
    }

    /// Waits until `look` is content, and returns what it found; fails with what it saw last.
    pub async fn until<T>(&self, what: &str, look: impl AsyncFn() -> Result<T, String>) -> T {
        let begun = Instant::now();
        loop {
            let seen = match look().await {
                Ok(found) => return found,
                Err(seen) => seen,
            };
            let waited = begun.elapsed();
            assert!(waited < PATIENCE, "{what}: not after {waited:?}: {seen}");
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    }
}

/// Metadata and spec of a pod on these networks, for a pod or a set of them.
pub fn template(label: &str, networks: &str) -> Value {
    json!({
        "metadata": {
            "labels": { "app": label },
            "annotations": { "k8s.v1.cni.cncf.io/networks": networks },
        },
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": false,
            "containers": [{ "name": "c", "image": Node::IMAGE }],
        },
    })
}
