//! What is stored already: ids that are too long today, pools that can't be read, files that everyone can read.

use std::fs;
use std::time::{Duration, Instant};

use berth_api::whereabouts::IPPool;
use berth_core::{Change, Handle, Owner, Record};
use berth_ledger::{Ledger, PoolKey, SqliteLedger};
use berth_testkit::{Agent, Process, answered_addresses, guarded, isolated};
use kube::api::Api;
use serde_json::json;

use crate::{BERTH, NODE, PATIENCE, Site, ask, call};

/// What an earlier version stored under an id of any length is released by its DEL.
#[tokio::test(flavor = "multi_thread")]
async fn berth_16_1_an_id_that_is_too_long_today_is_released() {
    let dir = tempfile::tempdir().unwrap();
    let long = "c".repeat(10_000);
    {
        let ledger = SqliteLedger::open(dir.path().join("berth.db")).unwrap();
        let pool = PoolKey::of_network("10.0.0.0-28", "10.0.0.0/28".parse().unwrap());
        let owner = Owner::new("ns/old", "net1");
        let claim = Change::Allocate {
            address: "10.0.0.1".parse().unwrap(),
            record: Record::new(owner, Handle::new(&long)),
        };
        let base = ledger.load(&pool).await.unwrap().version;
        ledger.commit(&pool, &base, &[claim], None).await.unwrap();
    }
    let agent = Agent::start(BERTH, dir.path(), "berth", |_| {}).unwrap();
    let plain = json!({ "range": "10.0.0.0/28" });
    assert_eq!(ask(&agent, "ADD", "a", &plain).unwrap(), ["10.0.0.2/28"]);
    let del = call("DEL", "old").of_container(&long);
    answered_addresses(&del.ask(&agent.socket, &plain).unwrap()).unwrap();
    assert_eq!(ask(&agent, "ADD", "b", &plain).unwrap(), ["10.0.0.1/28"]);
}

/// The collector goes on with the other pools, and names the one that it can't read.
#[tokio::test(flavor = "multi_thread")]
async fn berth_16_5_a_pool_that_cannot_be_read_does_not_blind_the_sweep() {
    let site = Site::new().await;
    for (name, range) in [("10.20.0.0-24", "many"), ("10.21.0.0-24", "10.21.0.0/24")] {
        let pool = json!({
            "apiVersion": "whereabouts.cni.cncf.io/v1alpha1", "kind": "IPPool",
            "metadata": { "name": name, "namespace": site.namespace },
            "spec": { "range": range, "allocations": {
                "7": { "id": "c1", "podref": format!("{}/nobody", site.namespace), "ifname": "net1" },
            } },
        });
        site.cluster.apply_object(pool).await.unwrap();
    }
    let agent = site.agent(&["--garbage-interval=1", "--garbage-grace=1"]);
    let client = site.cluster.client().await.unwrap();
    let pools: Api<IPPool> = Api::namespaced(client, &site.namespace);
    let left = async |name: &str| pools.get(name).await.unwrap().spec.allocations.len();
    let begun = Instant::now();
    while left("10.21.0.0-24").await > 0 {
        assert!(begun.elapsed() < PATIENCE, "{}", agent.process.tail());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(left("10.20.0.0-24").await, 1, "it stays (I5)");
    let log = fs::read_to_string(agent.process.log()).unwrap();
    let named =
        |line: &str| line.contains("left out of the sweep") && line.contains("10.20.0.0-24");
    assert!(log.lines().any(named), "{log}");
}

/// Keys and tokens that every user of the machine can read are warned about, by whichever command uses them.
#[tokio::test(flavor = "multi_thread")]
async fn berth_16_3_files_that_everyone_can_read_are_warned_about() {
    use std::os::unix::fs::PermissionsExt;
    let site = Site::new().await;
    let open = |name: &str, text: &[u8]| {
        let path = site.dir.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        path
    };
    let of_agent = fs::read(site.account.kubeconfig()).unwrap();
    let of_agent = open("agent.kubeconfig", &of_agent);
    let of_controller = fs::read(site.cluster.kubeconfig()).unwrap();
    let of_controller = open("controller.kubeconfig", &of_controller);
    let token = open("desk.token", b"token");
    let of_flat_file = open("flat.kubeconfig", b"");
    let flat = json!({ "kubernetes": { "kubeconfig": of_flat_file } });
    let flat = open("whereabouts.conf", flat.to_string().as_bytes());
    let agent = Agent::start(BERTH, site.dir.path(), "berth", |command| {
        command
            .args(["--node", NODE, "--kubeconfig"])
            .arg(&of_agent);
        command.arg("--desk-token-file").arg(&token);
        command.arg("--flat-files").arg(&flat);
    })
    .unwrap();
    let mut command = isolated(guarded(BERTH));
    command
        .env("PATH", "/usr/bin:/bin")
        .args(["controller", "--no-election", "--kubeconfig"])
        .arg(&of_controller)
        .args(["--namespace", &site.namespace]);
    let controller = Process::start("controller", command, site.dir.path()).unwrap();
    for (process, path) in [
        (&agent.process, &of_agent),
        (&agent.process, &token),
        (&agent.process, &of_flat_file),
        (&controller, &of_controller),
    ] {
        let path = path.to_str().unwrap();
        let warned =
            |line: &str| line.contains("every user of this machine") && line.contains(path);
        let begun = Instant::now();
        while !fs::read_to_string(process.log())
            .unwrap()
            .lines()
            .any(warned)
        {
            assert!(begun.elapsed() < PATIENCE, "{path}: {}", process.tail());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}
