//! The custom resource ledger on a real API server: the promises of all ledgers, and its own.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout
)]

use std::sync::Arc;
use std::time::Duration;

use berth_ledger::kube::Connect;
use berth_ledger::{KubeLedger, PoolKey, SharedLedger};
use berth_testkit::Cluster;
use tokio::sync::OnceCell;

mod conformance;

/// The shared cluster with all definitions in it.
async fn cluster() -> &'static Cluster {
    static READY: OnceCell<()> = OnceCell::const_new();
    let cluster = Cluster::shared().await;
    READY
        .get_or_init(|| async {
            for crd in berth_api::crds().unwrap() {
                cluster.apply_object(crd).await.unwrap();
            }
        })
        .await;
    cluster
}

async fn open(cluster: &Cluster, namespace: &str) -> KubeLedger {
    let connect = Connect {
        kubeconfig: Some(cluster.kubeconfig()),
        namespace: Some(namespace.to_owned()),
        timeout: Duration::from_secs(30),
    };
    KubeLedger::new(connect.open().await.unwrap())
}

fn mk_pool() -> PoolKey {
    PoolKey::of_network("10.0.0.0-16", "10.0.0.0/16".parse().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn conforms() {
    let cluster = cluster().await;
    let namespace = cluster.namespace("conforms").await.unwrap();
    let mut ledgers: Vec<SharedLedger> = Vec::new();
    for _ in 0..4 {
        ledgers.push(Arc::new(open(cluster, &namespace).await));
    }
    conformance::suite(conformance::Subject {
        pool: mk_pool(),
        ledgers,
        rests: true,
        named: true,
    })
    .await;
}
