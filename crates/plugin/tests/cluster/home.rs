//! A namespace of the test cluster, with whereabouts' definitions, and an account in it.

use std::path::PathBuf;
use std::sync::OnceLock;

use berth_testkit::Cluster;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, ListParams, PostParams};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::node::TestNode;

/// A namespace of the cluster, and an account that may do what the agent needs there.
pub struct Home {
    namespace: String,
    pub kubeconfig: PathBuf,
}

fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| Runtime::new().unwrap())
}

/// What the agent of node-1 has: its shipped rights, nothing else.
pub fn home() -> Home {
    static DEFINED: OnceLock<()> = OnceLock::new();
    DEFINED.get_or_init(|| {
        runtime().block_on(async {
            let cluster = Cluster::shared().await;
            for crd in berth_api::crds().unwrap() {
                cluster.apply_object(crd).await.unwrap();
            }
        });
    });
    runtime().block_on(async {
        let cluster = Cluster::shared().await;
        let namespace = cluster.namespace("pods").await.unwrap();
        let account = cluster.agent(&namespace, "node-1").await.unwrap();
        Home {
            kubeconfig: account.kubeconfig().to_owned(),
            namespace,
        }
    })
}

impl Home {
    /// A kubeconfig of the real whereabouts, with its own rights.
    pub fn of_whereabouts(&self) -> PathBuf {
        let rules = berth_testkit::Whereabouts::rules();
        let name = format!("whereabouts-{}", self.namespace);
        runtime().block_on(async {
            let cluster = Cluster::shared().await;
            let account = cluster.service_account(&self.namespace, &name, rules);
            account.await.unwrap().kubeconfig().to_owned()
        })
    }

    pub fn node(&self) -> TestNode {
        TestNode::with_defaults(json!({"kubernetes": {"kubeconfig": self.kubeconfig}}))
    }

    fn objects(&self, kind: &str) -> Api<DynamicObject> {
        let client = runtime().block_on(async { Cluster::shared().await.client().await.unwrap() });
        let gvk = GroupVersionKind::gvk("whereabouts.cni.cncf.io", "v1alpha1", kind);
        Api::namespaced_with(client, &self.namespace, &ApiResource::from_gvk(&gvk))
    }

    pub fn create(&self, kind: &str, name: &str, spec: Value) {
        let object = json!({"apiVersion": "whereabouts.cni.cncf.io/v1alpha1", "kind": kind,
            // Untracked: what a server remembers of a large object would not fit into etcd beside it.
            "metadata": {"name": name, "managedFields": [{}]}, "spec": spec});
        let object = serde_json::from_value(object).unwrap();
        let api = self.objects(kind);
        runtime()
            .block_on(api.create(&PostParams::default(), &object))
            .unwrap();
    }

    /// Name and spec of every object of a kind.
    pub fn specs(&self, kind: &str) -> Vec<(String, Value)> {
        let api = self.objects(kind);
        let list = runtime()
            .block_on(api.list(&ListParams::default()))
            .unwrap();
        let spec =
            |object: DynamicObject| (object.metadata.name.unwrap(), object.data["spec"].clone());
        list.items.into_iter().map(spec).collect()
    }
}
