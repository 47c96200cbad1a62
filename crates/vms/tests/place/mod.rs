//! A namespace of a real API server with a pool's state in it, and the processes that share it.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use berth_ledger::configmap::{ConfigMapLedger, Document, STATE_KEY};
use berth_testkit::{Cluster, TestConfigMap};
use berth_vms::settings::Settings;
use berth_vms::vm::Vms;
use berth_vms::{Applicant, Fleet, Status, Store, VmMetrics};
use kube::api::{Patch, PatchParams};
use prometheus_client::registry::Registry;

pub const STATE: &str = "byom-ip-pool-state";

pub struct Place {
    pub sheet: TestConfigMap,
    metrics: VmMetrics,
}

impl Place {
    pub async fn new() -> Self {
        Self::on(Cluster::shared().await).await
    }

    pub async fn on(cluster: &Cluster) -> Self {
        let sheet = TestConfigMap::new(cluster, "byom", STATE).await.unwrap();
        let metrics = VmMetrics::default();
        Self { sheet, metrics }
    }

    /// A manager's process, from the state's point of view.
    pub async fn fleet(&self, settings: &Settings, vms: Arc<dyn Vms>) -> Fleet {
        let fleet = self.unopened(settings, vms);
        fleet.resize(&settings.pools).await.unwrap();
        fleet
    }

    pub fn unopened(&self, settings: &Settings, vms: Arc<dyn Vms>) -> Fleet {
        let ledger = ConfigMapLedger::new(
            self.sheet.client.clone(),
            &self.sheet.namespace,
            Duration::from_secs(10),
        )
        .of_node(&settings.node)
        .with_retries(settings.retry.retries);
        let store = Store::ConfigMap(Arc::new(ledger));
        let metrics = self.metrics.clone();
        Fleet::new(settings, store, vms, metrics, Default::default())
    }

    /// A counter of the pool, of all processes together.
    pub fn counted(&self, series: &str) -> u64 {
        let mut registry = Registry::default();
        self.metrics.register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        let series = format!("{series}{{pool=\"default\"}} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&series));
        line.map_or(0, |value| value.parse().unwrap())
    }

    pub async fn write(&self, text: &str) {
        self.sheet.write(&[(STATE_KEY, text)]).await.unwrap();
    }

    /// A write of another program that does not know Berth: it replaces the document with its own.
    pub async fn overwrite(&self, text: &str) {
        self.put(STATE_KEY, text).await;
    }

    /// Another key, which takes up room.
    pub async fn fill(&self, filler: String) {
        self.put("filler", &filler).await;
    }

    async fn put(&self, key: &str, text: &str) {
        let patch = serde_json::json!({ "data": { key: text } });
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        let patched = self.sheet.api.patch(STATE, &params, &patch);
        patched.await.unwrap();
    }

    pub async fn data(&self) -> BTreeMap<String, String> {
        self.sheet.data().await.unwrap()
    }

    pub async fn document(&self) -> Document {
        Document::decode(&self.data().await[STATE_KEY]).unwrap()
    }
}

pub fn applicant(id: &str) -> Applicant {
    Applicant {
        allocation_id: id.into(),
        pod_name: "nginx".into(),
        pod_namespace: "default".into(),
    }
}

pub async fn counts(fleet: &Fleet) -> (usize, usize, usize) {
    let Status {
        available,
        in_use,
        quarantined,
        ..
    } = fleet.status(None).await.unwrap().remove(0);
    (available, in_use, quarantined)
}

pub async fn until(fleet: &Fleet, wanted: (usize, usize, usize)) {
    for _ in 0..300 {
        if counts(fleet).await == wanted {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{:?} is not {wanted:?}", fleet.status(None).await.unwrap());
}
