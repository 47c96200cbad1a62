//! The built binary as a keeper of VM pools, on a real API server and with real SSH servers as VMs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod audit;
mod crowd;
mod documentation;
mod go_client;
mod life;
mod manager;
mod readable;
mod restart;
mod scaling;
mod shards;
mod sizes;
#[path = "../../../vms/tests/test_vm/mod.rs"]
mod test_vm;

use std::path::Path;
use std::time::{Duration, Instant};

use berth_testkit::Cluster;
use manager::Manager;
use serde_json::Value;

/// kubectl as administrator.
fn kubectl(cluster: &Cluster, arguments: &[&str]) -> String {
    let output = cluster.kubectl(arguments).unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {told}");
    String::from_utf8(output.stdout).unwrap()
}

fn deploy(path: &str) -> String {
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
    deploy.join(path).to_str().unwrap().to_string()
}

/// A pool's numbers: available, in use, quarantined. `Null` for a pool that there is not.
async fn counts(manager: &Manager, pool: &str) -> Value {
    let (_, status) = manager.call("GET", "/status", "").await.unwrap();
    let pools = status["pools"].as_array().unwrap();
    let found = pools.iter().find(|found| found["pool"] == pool);
    found.map_or(Value::Null, |found| {
        serde_json::json!([found["available"], found["inUse"], found["quarantined"]])
    })
}

async fn until(manager: &Manager, pool: &str, wanted: [u64; 3]) {
    let wanted = serde_json::json!(wanted);
    let begun = Instant::now();
    loop {
        let now = counts(manager, pool).await;
        if now == wanted {
            return;
        }
        assert!(
            begun.elapsed() < Duration::from_secs(30),
            "pool {pool}: {now} instead of {wanted}\n{}",
            manager.log()
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Allocates, and says which VM.
async fn allocate(manager: &Manager, pool: &str, id: &str) -> String {
    let wish =
        serde_json::json!({ "allocationID": id, "podName": "nginx", "podNamespace": "default" });
    let path = format!("/allocations?pool={pool}");
    let begun = Instant::now();
    loop {
        let (status, answer) = manager
            .call("POST", &path, &wish.to_string())
            .await
            .unwrap();
        // A pool that was just added is shown before its state was read.
        if answer["code"] != "starting" || begun.elapsed() > Duration::from_secs(30) {
            assert_eq!(status, 200, "{answer}");
            return answer["ip"].as_str().unwrap().to_string();
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
