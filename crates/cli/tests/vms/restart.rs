//! What a restart of the process does to VMs that are in use, or about to be: with the state in a file, and in ConfigMaps of a
//! real API server.

use std::path::Path;
use std::time::Duration;

use berth_testkit::Cluster;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::manager::{Manager, call};
use crate::test_vm::{Lab, OnReboot};
use crate::{allocate, counts, until};

async fn start(env: &[(&str, &str)]) -> Manager {
    Manager::start_with(Path::new("/nonexistent/kubeconfig"), env, &["--vms-only"]).await
}

/// The same boot: nothing happens. An unknown one: it is shown, and somebody decides. Another one: the pods are gone.
#[tokio::test(flavor = "multi_thread")]
async fn berth_15_7_only_a_reboot_of_the_node_takes_vms_back() {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, boot) = (dir.path().join("vms.db"), dir.path().join("boot"));
    let ledger = format!("sqlite:{}", ledger.display());
    let env = [
        ("VM_POOL_IPS", "127.0.0.2-127.0.0.4"),
        ("NODE_NAME", "worker"),
        ("VM_LEDGER", ledger.as_str()),
        ("VM_READINESS", "off"),
        ("VM_CLEANUP", "false"),
        ("VM_BOOT_FILE", boot.to_str().unwrap()),
    ];
    let mut manager = start(&env).await;
    let this_boot = std::fs::read_to_string(&boot).unwrap();
    let ip = allocate(&manager, "default", "a").await;
    manager.kill();

    let mut manager = start(&env).await;
    assert_eq!(counts(&manager, "default").await, json!([2, 1, 0]));
    manager.kill();

    std::fs::remove_file(&boot).unwrap();
    for _ in 0..2 {
        // As long as nobody decided, also after another restart.
        let mut manager = start(&env).await;
        assert_eq!(counts(&manager, "default").await, json!([2, 1, 0]));
        let (told, _) = manager.cli(&["status"]);
        assert!(
            told.contains("unknown boot") && told.contains(&ip),
            "{told}"
        );
        assert!(!boot.exists());
        manager.kill();
    }
    let mut manager = start(&env).await;
    let (told, ok) = manager.cli(&["recover", "--take-back"]);
    assert!(ok, "{told}");
    assert_eq!(counts(&manager, "default").await, json!([3, 0, 0]));
    let (told, _) = manager.cli(&["status"]);
    assert!(!told.contains("unknown boot"), "{told}");
    allocate(&manager, "default", "b").await;
    manager.kill();

    for (mode, noted, kept) in [
        ("never", "the boot before\n", 1),
        ("always", this_boot.as_str(), 0),
        ("boot", "the boot before\n", 0),
    ] {
        std::fs::write(&boot, noted).unwrap();
        let mut env = env.to_vec();
        env.push(("VM_RECOVER_AT_START", mode));
        let mut manager = start(&env).await;
        assert_eq!(
            counts(&manager, "default").await,
            json!([3 - kept, kept, 0]),
            "{mode}"
        );
        assert_eq!(std::fs::read_to_string(&boot).unwrap(), this_boot);
        if mode == "always" {
            allocate(&manager, "default", "c").await;
        }
        manager.kill();
    }
}

/// kill -9 while a VM is being checked: the record says so, and the next start undoes it.
#[tokio::test(flavor = "multi_thread")]
async fn berth_15_6_a_check_that_a_kill_cut_off_is_undone() {
    let lab = Lab::new();
    let ledger = format!("sqlite:{}", lab.dir.path().join("vms.db").display());
    // It accepts, and says nothing.
    let hung = tokio::net::TcpListener::bind((lab.ip(61), lab.port))
        .await
        .unwrap();
    let (ip, port, key) = (
        lab.ip(61).to_string(),
        lab.port.to_string(),
        lab.private_key(),
    );
    let env = [
        ("VM_POOL_IPS", ip.as_str()),
        ("NODE_NAME", "worker"),
        ("SSH_PORT", &port),
        ("SSH_PRIV_KEY_PATH", key.to_str().unwrap()),
        ("SSH_ACCEPT_ANY_HOST_KEY", "true"),
        ("VM_LEDGER", ledger.as_str()),
        ("VM_ALLOCATE_TIMEOUT", "10m"),
        ("SSH_TIMEOUT", "10m"),
    ];
    let mut manager = start(&env).await;
    let socket = manager.socket.clone();
    let wish = json!({ "allocationID": "a" }).to_string();
    let asked =
        tokio::spawn(async move { call(&socket, "POST", "/v1/vms/allocations", &wish).await });
    let checking = loop {
        let (_, shown) = manager.call("GET", "/allocations/a", "").await.unwrap();
        if shown["ip"].is_string() {
            break shown["checking"].clone();
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    };
    assert_eq!(checking["by"], "worker");
    manager.kill();
    let _ = asked.await.unwrap();

    let manager = start(&env).await;
    until(&manager, "default", [1, 0, 0]).await;
    let (_, listed) = manager.call("GET", "/allocations", "").await.unwrap();
    assert_eq!(listed["allocations"], Value::Array(Vec::new()));
    drop(hung);
}

/// A state that can't be reached is waited for: alive, and not ready.
#[tokio::test(flavor = "multi_thread")]
async fn berth_15_11_an_agent_whose_pools_are_not_open_is_not_ready() {
    let dir = tempfile::tempdir().unwrap();
    let kubeconfig = dir.path().join("kubeconfig");
    let nowhere = r#"{"apiVersion":"v1","kind":"Config","current-context":"c",
        "clusters":[{"name":"k","cluster":{"server":"http://127.0.0.1:1"}}],"users":[{"name":"u","user":{"token":"t"}}],
        "contexts":[{"name":"c","context":{"cluster":"k","user":"u"}}]}"#;
    std::fs::write(&kubeconfig, nowhere).unwrap();
    let env = [
        ("VM_POOL_IPS", "127.0.0.2"),
        ("NODE_NAME", "worker"),
        ("VM_READINESS", "off"),
        ("VM_CLEANUP", "false"),
    ];
    let mut manager = Manager::spawn(&kubeconfig, &env, &["--vms-only"]);
    manager
        .until("it serves", async |manager| {
            matches!(
                call(&manager.socket, "GET", "/healthz", "").await,
                Ok((200, _))
            )
        })
        .await;
    let (status, why) = call(&manager.socket, "GET", "/readyz", "").await.unwrap();
    assert_eq!(status, 503, "{why}");
    assert!(why.as_str().unwrap().contains("not open yet"), "{why}");
}

/// The pools that a ConfigMap lists are recovered as those of the settings are, and before anything is served: cleanups are
/// resumed, and after a reboot of the node its VMs are taken back.
#[tokio::test(flavor = "multi_thread")]
async fn berth_15_7_pools_that_a_configmap_lists_are_recovered_too() {
    let cluster = Cluster::shared().await;
    let namespace = cluster.namespace("byom").await.unwrap();
    let api: Api<ConfigMap> = Api::namespaced(cluster.client().await.unwrap(), &namespace);
    let (lab, dir) = (Lab::new(), tempfile::tempdir().unwrap());
    let boot = dir.path().join("boot");
    let (port, key) = (lab.port.to_string(), lab.private_key());
    let pools = json!({ "metadata": { "name": "pools" },
        "data": { "large": format!("{},{}", lab.ip(62), lab.ip(63)) } });
    let pools: ConfigMap = serde_json::from_value(pools).unwrap();
    api.create(&PostParams::default(), &pools).await.unwrap();
    let env = [
        ("POOLS_CONFIGMAP", "pools"),
        ("POOL_NAMESPACE", namespace.as_str()),
        ("NODE_NAME", "worker"),
        ("SSH_PORT", &port),
        ("SSH_PRIV_KEY_PATH", key.to_str().unwrap()),
        ("SSH_ACCEPT_ANY_HOST_KEY", "true"),
        ("VM_READINESS", "off"),
        ("VM_CLEANUP_WAIT", "50ms"),
        ("VM_CLEANUP_RETRY", "200ms"),
        ("VM_BOOT_FILE", boot.to_str().unwrap()),
    ];
    let kubeconfig = cluster.kubeconfig();
    let started = async || Manager::start_with(&kubeconfig, &env, &["--vms-only"]).await;
    let mut manager = started().await;
    // Open means open: nobody is told that a listed pool does not exist.
    assert_eq!(counts(&manager, "large").await, json!([2, 0, 0]));
    let this_boot = std::fs::read_to_string(&boot).unwrap();
    allocate(&manager, "large", "given-back").await;
    allocate(&manager, "large", "of-a-dead-pod").await;
    // Neither VM is up: the cleanup can't succeed.
    let (told, ok) = manager.cli(&["deallocate", "given-back"]);
    assert!(ok, "{told}");
    until(&manager, "large", [0, 1, 1]).await;
    manager.kill();

    let reboots = OnReboot::DownFor(Duration::from_millis(500));
    let vms = [lab.start(62, reboots).await, lab.start(63, reboots).await];
    std::fs::write(&boot, "the boot before\n").unwrap();
    let manager = started().await;
    let recovered = manager.audit("recover");
    assert_eq!(recovered.len(), 1, "before it serves: {recovered:?}");
    until(&manager, "large", [2, 0, 0]).await;
    assert_eq!(vms.iter().map(|vm| vm.boots()).sum::<usize>(), 4);
    assert_eq!(std::fs::read_to_string(&boot).unwrap(), this_boot);

    // The same for a pool that is listed later.
    let other = json!({ "allocatedIPs": { "cut-off": { "allocationID": "cut-off", "ip": "10.0.9.1", "nodeName": "worker",
        "stage": "checking-1", "checkingBy": "worker", "checkingSince": "2026-01-01T00:00:00Z",
        "checkingUntil": "2999-01-01T00:00:00Z" } }, "availableIPs": [], "version": 1 });
    let state = json!({ "metadata": { "name": "byom-ip-pool-state-late" },
        "data": { "allocation-state": other.to_string() } });
    let state: ConfigMap = serde_json::from_value(state).unwrap();
    api.create(&PostParams::default(), &state).await.unwrap();
    let patch = Patch::Merge(json!({ "data": { "late": "10.0.9.1" } }));
    api.patch("pools", &PatchParams::default(), &patch)
        .await
        .unwrap();
    until(&manager, "late", [1, 0, 0]).await;
}

/// kill -9 during the check, with the state in ConfigMaps of a real API server and a real SSH server that hangs; in one
/// ConfigMap and in three.
#[tokio::test(flavor = "multi_thread")]
async fn berth_15_6_a_kill_during_a_check_leaves_nothing_in_configmaps() {
    let cluster = Cluster::shared().await;
    for count in ["1", "3"] {
        let namespace = cluster.namespace("byom").await.unwrap();
        let lab = Lab::new();
        let mut hung = Vec::new();
        for n in 64..=67 {
            let bound = tokio::net::TcpListener::bind((lab.ip(n), lab.port));
            hung.push(bound.await.unwrap());
        }
        let ips = format!("{}-{}", lab.ip(64), lab.ip(67));
        let (port, key) = (lab.port.to_string(), lab.private_key());
        let env = [
            ("VM_POOL_IPS", ips.as_str()),
            ("POOL_NAMESPACE", &namespace),
            ("POOL_CONFIGMAP_COUNT", count),
            ("NODE_NAME", "worker"),
            ("SSH_PORT", &port),
            ("SSH_PRIV_KEY_PATH", key.to_str().unwrap()),
            ("SSH_ACCEPT_ANY_HOST_KEY", "true"),
            ("VM_ALLOCATE_TIMEOUT", "10m"),
            ("SSH_TIMEOUT", "10m"),
        ];
        let kubeconfig = cluster.kubeconfig();
        let mut manager = Manager::start_with(&kubeconfig, &env, &["--vms-only"]).await;
        let socket = manager.socket.clone();
        let wish = json!({ "allocationID": "a" }).to_string();
        let asked =
            tokio::spawn(async move { call(&socket, "POST", "/v1/vms/allocations", &wish).await });
        until(&manager, "default", [3, 1, 0]).await;
        manager.kill();
        let _ = asked.await.unwrap();
        drop(hung);

        let mut vms = Vec::new();
        for n in 64..=67 {
            let reboots = OnReboot::DownFor(Duration::from_millis(300));
            vms.push(lab.start(n, reboots).await);
        }
        let manager = Manager::start_with(&kubeconfig, &env, &["--vms-only"]).await;
        assert_eq!(
            counts(&manager, "default").await,
            json!([4, 0, 0]),
            "{count}"
        );
        let ip = allocate(&manager, "default", "a").await;
        assert_eq!(allocate(&manager, "default", "a").await, ip);
        assert!(vms.iter().all(|vm| vm.boots() == 1), "none was used");
    }
}
