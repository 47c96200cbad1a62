//! `clients/go` with `go test` against the built agent, on a real API server and with real SSH servers as VMs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use berth_testkit::{Cluster, TestConfigMap};
use serde_json::json;

use crate::manager::Manager;
use crate::test_vm::{Lab, OnReboot};

const STATE: &str = "byom-ip-pool-state";

fn client() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients/go")
}

/// Go as the client's users have it: no network, no other toolchain, nothing of this machine's home.
fn go(program: &str, arguments: &[&str], env: &[(&str, &str)]) -> String {
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("go-cache");
    let output = Command::new(program)
        .args(arguments)
        .current_dir(client())
        .env("GOCACHE", cache)
        .env("GOPATH", Path::new(env!("CARGO_TARGET_TMPDIR")).join("go"))
        .envs([
            ("GOENV", "off"),
            ("GOFLAGS", "-mod=readonly"),
            ("GOPROXY", "off"),
            ("GOTOOLCHAIN", "local"),
            ("GOWORK", "off"),
        ])
        .envs(env.iter().copied())
        .output()
        .unwrap_or_else(|error| panic!("{program} is needed to test clients/go: {error}"));
    let told = [output.stdout, output.stderr].concat();
    let told = String::from_utf8_lossy(&told).into_owned();
    assert!(output.status.success(), "{program} {arguments:?}:\n{told}");
    told
}

#[test]
fn the_go_client_is_formatted_vetted_and_needs_the_standard_library_alone() {
    assert_eq!(go("gofmt", &["-l", "."], &[]), "");
    go("go", &["vet", "-tags", "agent", "./..."], &[]);
    let modules = go("go", &["list", "-m", "all"], &[]);
    assert_eq!(modules.trim(), "berth.dev/vmpool");
    go("go", &["test", "-count=1", "./..."], &[]);
}

/// A VM that accepts connections and says nothing: until its check ends the client answers with no VM.
#[tokio::test(flavor = "multi_thread")]
async fn berth_15_12_the_go_client_does_not_answer_with_a_vm_that_is_being_checked() {
    let cluster = Cluster::shared().await;
    let sheet = TestConfigMap::new(cluster, "byom", STATE).await.unwrap();
    let lab = Lab::new();
    let ip = lab.ip(55).to_string();
    let hung = tokio::net::TcpListener::bind((lab.ip(55), lab.port));
    let hung = hung.await.unwrap();
    tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok(accepted) = hung.accept().await {
            open.push(accepted);
        }
    });
    let (port, key, allowed) = (lab.port.to_string(), lab.private_key(), lab.allow_list());
    let env = [
        ("VM_POOL_IPS", ip.as_str()),
        ("NODE_NAME", "worker"),
        ("POOL_NAMESPACE", &sheet.namespace),
        ("SSH_PORT", &port),
        ("SSH_PRIV_KEY_PATH", key.to_str().unwrap()),
        ("SSH_HOST_KEY_ALLOWLIST_DIR", allowed.to_str().unwrap()),
        ("SSH_TIMEOUT", "2m"),
        ("VM_ALLOCATE_TIMEOUT", "4m"),
    ];
    let manager = Manager::start_with(&cluster.kubeconfig(), &env, &["--vms-only"]).await;
    let socket = manager.socket.clone();
    let told = tokio::task::spawn_blocking(move || {
        let tests = [("BERTH_TEST_SOCKET", socket.to_str().unwrap())];
        let run = "test -count=1 -v -tags agent -run ^TestAHungVM$";
        go("go", &run.split(' ').collect::<Vec<_>>(), &tests)
    })
    .await
    .unwrap();
    assert!(told.contains("--- PASS: TestAHungVM"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn berth_15_12_the_go_client_manages_a_live_pool_through_the_agent() {
    let sheet = TestConfigMap::new(Cluster::shared().await, "byom", STATE)
        .await
        .unwrap();
    let lab = Lab::new();
    let reboots = OnReboot::DownFor(Duration::from_millis(500));
    let mut vms = Vec::new();
    for n in 51..=53 {
        vms.push(lab.start(n, reboots).await);
    }
    let ips: Vec<String> = vms.iter().map(|vm| vm.ip.to_string()).collect();
    // As the adaptor's own manager writes it: without a namespace.
    let live = json!({
        "allocatedIPs": { "old-8b317899": { "allocationID": "old-8b317899", "ip": ips[0], "nodeName": "other",
            "podName": "old", "allocatedAt": "2026-04-23T09:56:00Z" } },
        "availableIPs": [ips[1], ips[2]], "lastUpdated": "2026-04-23T09:56:00Z", "version": 2,
    });
    let live = serde_json::to_string_pretty(&live).unwrap();
    sheet.write(&[("allocation-state", &live)]).await.unwrap();

    let token = lab.dir.path().join("token");
    std::fs::write(&token, "0123456789abcdef0123456789abcdef\n").unwrap();
    // An address of its own: nobody else looks for free ports there.
    let listen = format!("{}:{}", lab.ip(54), lab.port);
    let (list, port, key) = (ips.join(","), lab.port.to_string(), lab.private_key());
    let allowed = lab.allow_list();
    let env = [
        ("VM_POOL_IPS", list.as_str()),
        ("NODE_NAME", "worker"),
        ("POOL_NAMESPACE", &sheet.namespace),
        ("SSH_PORT", &port),
        ("SSH_PRIV_KEY_PATH", key.to_str().unwrap()),
        ("SSH_HOST_KEY_ALLOWLIST_DIR", allowed.to_str().unwrap()),
        ("VM_CLEANUP_WAIT", "2s"),
        ("VM_CLEANUP_RETRY", "300ms"),
        ("VM_LISTEN", &listen),
        ("VM_TOKEN_FILE", token.to_str().unwrap()),
    ];
    let kubeconfig = Cluster::shared().await.kubeconfig();
    let manager = Manager::start_with(&kubeconfig, &env, &["--vms-only"]).await;
    let (url, socket) = (format!("http://{listen}"), manager.socket.clone());
    let told = tokio::task::spawn_blocking(move || {
        let tests = [
            ("BERTH_TEST_SOCKET", socket.to_str().unwrap()),
            ("BERTH_TEST_URL", &url),
            ("BERTH_TEST_TOKEN_FILE", token.to_str().unwrap()),
            ("BERTH_TEST_OLD_IP", &ips[0]),
        ];
        let run = [
            "test",
            "-count=1",
            "-v",
            "-tags",
            "agent",
            "-run",
            "^TestARealAgent$",
        ];
        go("go", &run, &tests)
    })
    .await
    .unwrap();
    assert!(told.contains("--- PASS: TestARealAgent"), "{told}");

    // What was written through the client is on the VM, and in the state under the client's names.
    let written = vms.iter().filter_map(|vm| vm.file("cidata/user-data"));
    assert_eq!(written.collect::<Vec<_>>(), [b"#cloud-config\n"]);
    assert_eq!(
        vms.iter().map(|vm| vm.boots()).sum::<usize>(),
        6,
        "three reboots"
    );
    let state = &sheet.data().await.unwrap()["allocation-state"];
    let state: serde_json::Value = serde_json::from_str(state).unwrap();
    assert_eq!(state["allocatedIPs"]["kept"]["podName"], "nginx");
}
