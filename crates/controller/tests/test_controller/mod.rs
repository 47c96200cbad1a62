//! A controller for tests: in the test's own process, without an election, and in a hurry.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use berth_controller::{ControllerConfig, serve};
use berth_ledger::kube::Connect;
use berth_testkit::Served;
use kube::api::{ApiResource, GroupVersionKind};

/// Two looks lie this far apart.
pub const GRACE: Duration = Duration::from_millis(400);

/// Of the pools of that namespace.
pub fn config(kubeconfig: PathBuf, namespace: &str) -> ControllerConfig {
    ControllerConfig {
        cluster: Connect {
            kubeconfig: Some(kubeconfig),
            namespace: Some(namespace.to_owned()),
            timeout: Duration::from_secs(30),
        },
        identity: "test".into(),
        notice: BTreeMap::new(),
        lease: None,
        grace: GRACE,
        gather: Duration::from_millis(50),
        resync: Duration::from_secs(300),
        listen: None,
        flat_places: Vec::new(),
        unseen_is_apart: false,
    }
}

pub fn start(config: ControllerConfig) -> Served {
    Served::start(|told| async {
        serve(config, told).await.unwrap();
    })
}

/// The kind of what it looks at.
pub fn definitions() -> ApiResource {
    let gvk = GroupVersionKind::gvk("k8s.cni.cncf.io", "v1", "NetworkAttachmentDefinition");
    ApiResource::from_gvk_with_plural(&gvk, "network-attachment-definitions")
}
