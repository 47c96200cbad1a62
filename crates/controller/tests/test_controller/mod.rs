//! A controller for tests: in the test's own process, without an election, with short intervals.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use berth_controller::{Controller, ControllerConfig, SliceTask, SliceTaskSettings};
use berth_kube::Connect;
use berth_testkit::InProcess;
use kube::api::{ApiResource, GroupVersionKind};

/// The time between two reads.
pub const GRACE: Duration = Duration::from_millis(400);

/// How a controller is started.
pub struct Config {
    pub controller: ControllerConfig,
    pub slices: SliceTaskSettings,
}

/// The namespace of the pools.
pub fn config(kubeconfig: PathBuf, namespace: &str) -> Config {
    let controller = ControllerConfig {
        cluster: Connect {
            kubeconfig: Some(kubeconfig),
            namespace: Some(namespace.to_owned()),
            timeout: Duration::from_secs(30),
        },
        identity: "test".into(),
        notice: BTreeMap::new(),
        lease: None,
        listen: None,
    };
    let slices = SliceTaskSettings {
        grace: GRACE,
        gather: Duration::from_millis(50),
        resync: Duration::from_secs(300),
        flat_places: Vec::new(),
        unseen_is_apart: false,
    };
    Config { controller, slices }
}

pub fn start(config: Config) -> InProcess {
    InProcess::start(|shutdown| async {
        let controller = Controller::open(config.controller).await.unwrap();
        let (connection, leadership) = (controller.connection(), controller.leadership());
        let slices = SliceTask::new(&connection, &leadership, config.slices);
        controller
            .run(vec![Arc::new(slices)], shutdown)
            .await
            .unwrap();
    })
}

/// The kind of object that it reads.
pub fn definitions() -> ApiResource {
    let gvk = GroupVersionKind::gvk("k8s.cni.cncf.io", "v1", "NetworkAttachmentDefinition");
    ApiResource::from_gvk_with_plural(&gvk, "network-attachment-definitions")
}
