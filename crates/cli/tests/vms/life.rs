//! The life of VMs as `deploy/vms` sets it up: its settings file, and the rights of its service account and no others.

use std::time::{Duration, Instant};

use berth_testkit::{Account, Cluster};
use k8s_openapi::api::authorization::v1::SelfSubjectAccessReview;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};

use crate::manager::{Manager, call};
use crate::test_vm::{Lab, OnReboot};
use crate::{allocate, counts, deploy, kubectl, until};

/// Where the manifests put everything.
const HOME: &str = "confidential-containers-system";
const STATE: &str = "byom-ip-pool-state";

/// The manifests on a cluster, as an administrator brings them there: twice, and the second time changes nothing.
async fn deployed(cluster: &Cluster) -> Account {
    kubectl(cluster, &["create", "namespace", HOME]);
    let state = format!("{}/state.yaml", deploy("vms"));
    kubectl(cluster, &["create", "-f", &state]);
    let apply = ["apply", "-k", &deploy("vms")];
    kubectl(cluster, &apply);
    let again = kubectl(cluster, &apply);
    assert!(
        again.lines().all(|line| line.ends_with("unchanged")),
        "{again}"
    );
    cluster.account(HOME, "berth-vms").await.unwrap()
}

async fn may(account: &Account, verb: &str, resource: &str, name: &str) -> bool {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(account.client().await.unwrap());
    let question = json!({ "metadata": {}, "spec": { "resourceAttributes": {
        "resource": resource, "name": name, "namespace": HOME, "verb": verb,
    }}});
    let question = serde_json::from_value(question).unwrap();
    let answer = reviews
        .create(&PostParams::default(), &question)
        .await
        .unwrap();
    answer.status.unwrap().allowed
}

#[tokio::test(flavor = "multi_thread")]
async fn from_pod_to_pod_with_the_rights_that_are_deployed() {
    let cluster = Cluster::start().await.unwrap();
    let account = deployed(&cluster).await;
    let lab = Lab::new();
    let reboots = OnReboot::DownFor(Duration::from_millis(500));
    let mut vms = Vec::new();
    for n in 41..=43 {
        vms.push(lab.start(n, reboots).await);
    }
    // Nobody ever listens on 127.0.0.44: the dead one.
    let list = (41..=44).map(|n| lab.ip(n).to_string());
    let list = list.collect::<Vec<_>>().join(",");
    let (port, key) = (lab.port.to_string(), lab.private_key());
    let allowed = lab.allow_list();
    let boot_file = lab.dir.path().join("boot");
    let env = [
        ("VM_POOL_IPS", list.as_str()),
        ("NODE_NAME", "worker"),
        ("SSH_PORT", &port),
        ("SSH_PRIV_KEY_PATH", key.to_str().unwrap()),
        ("SSH_HOST_KEY_ALLOWLIST_DIR", allowed.to_str().unwrap()),
        ("POOL_NAMESPACE", HOME),
        ("VM_CLEANUP_WAIT", "100ms"),
        ("VM_CLEANUP_RETRY", "300ms"),
        ("VM_BOOT_FILE", boot_file.to_str().unwrap()),
        ("VM_LOW_WATER", "100%"),
    ];
    let start = || Manager::start_with(account.kubeconfig(), &env, &["--vms-only"]);
    let mut manager = start().await;
    until(&manager, "default", [4, 0, 0]).await;

    // Three pods get the three living VMs, whatever the hash says: the dead one is passed over.
    let mut given = Vec::new();
    for id in ["a", "b", "c"] {
        given.push(allocate(&manager, "default", id).await);
    }
    given.sort();
    assert_eq!(given, ["127.0.0.41", "127.0.0.42", "127.0.0.43"]);
    let (told, ok) = manager.cli(&["allocate", "d"]);
    assert!(!ok && told.contains("no available IPs in pool"), "{told}");
    assert!(told.contains("127.0.0.44"), "which VM is silent: {told}");

    // Given back, it is rebooted by its file, and free when it was seen down and up.
    let (told, ok) = manager.cli(&["deallocate", "a"]);
    assert!(ok && told.contains("being cleaned"), "{told}");
    until(&manager, "default", [2, 2, 0]).await;
    assert_eq!(vms.iter().map(|vm| vm.boots()).sum::<usize>(), 4);

    // A crash of Berth: the pods live on, and so do their VMs.
    let first_log = manager.log();
    manager.kill();
    let mut manager = start().await;
    assert_eq!(counts(&manager, "default").await, json!([2, 2, 0]));
    assert_eq!(vms.iter().map(|vm| vm.boots()).sum::<usize>(), 4);

    // A reboot of the node, and a VM that dies meanwhile: what the node had is cleaned and free again, but for that one.
    let state: Api<ConfigMap> = Api::namespaced(cluster.client().await.unwrap(), HOME);
    manager.kill();
    std::fs::write(&boot_file, "the boot before\n").unwrap();
    let data = state.get(STATE).await.unwrap().data.unwrap();
    let document: Value = serde_json::from_str(&data["allocation-state"]).unwrap();
    let held = |id: &str| {
        document["allocatedIPs"][id]["ip"]
            .as_str()
            .unwrap()
            .to_string()
    };
    let (lost, kept) = (held("b"), held("c"));
    let dead = vms.iter().position(|vm| vm.ip.to_string() == lost).unwrap();
    vms.remove(dead).die().await;
    let mut manager = start().await;
    until(&manager, "default", [3, 0, 1]).await;
    let (_, shown) = manager.call("GET", "/allocations/b", "").await.unwrap();
    assert_eq!(shown["ip"], lost);
    assert!(shown["quarantine"]["error"].is_string(), "{shown}");
    let (told, _) = manager.cli(&["status"]);
    assert!(told.contains(&lost), "what is the trouble: {told}");
    let (status, _) = manager
        .call("GET", &format!("/ips/{kept}"), "")
        .await
        .unwrap();
    assert_eq!(status, 404, "nobody has {kept} any more");

    metrics(&manager).await;
    manager
        .until("the low-water mark raises an event", async |_| {
            let of_pool = "reason=PoolLow,involvedObject.name=byom-ip-pool-state";
            let get = [
                "get",
                "events",
                "-n",
                HOME,
                "--field-selector",
                of_pool,
                "-o",
                "name",
            ];
            kubectl(&cluster, &get).contains("event/")
        })
        .await;
    let audit = manager.audit("clean");
    assert!(audit.iter().any(|line| line["fields"]["ok"] == false));
    let allocations: Vec<&str> = first_log
        .lines()
        .filter(|line| line.contains(r#""operation":"allocate""#))
        .collect();
    assert_eq!(allocations.len(), 4, "one line per operation");
    searched_for(&first_log, &manager.log(), &lost);
    let line: Value = serde_json::from_str(allocations[0]).unwrap();
    let fields = &line["fields"];
    assert_eq!(fields["node"], "worker");
    assert_eq!(fields["pod"], "default/nginx");
    assert_eq!(fields["outcome"], "allocated");
    assert!(line["timestamp"].is_string() && fields["millis"].is_u64());

    // Neither less than works, which was seen, nor more than is used.
    for (verb, resource, name) in [
        ("delete", "configmaps", STATE),
        // It could vouch for any VM before the administrator does.
        ("create", "configmaps", "berth-vms-host-keys"),
        ("get", "configmaps", "of-somebody-else"),
        ("get", "secrets", "berth-vms-ssh"),
        ("list", "pods", ""),
    ] {
        assert!(
            !may(&account, verb, resource, name).await,
            "{verb} {resource} {name}"
        );
    }
    for verb in ["get", "list", "watch", "update", "patch"] {
        assert!(may(&account, verb, "configmaps", STATE).await, "{verb}");
    }
    let log = manager.log();
    assert!(!log.to_lowercase().contains("forbidden"), "{log}");

    // Who wrote it is to be seen.
    let fields = state.get(STATE).await.unwrap().metadata.managed_fields;
    let managers: Vec<_> = fields
        .into_iter()
        .flatten()
        .filter_map(|field| field.manager)
        .collect();
    assert!(managers.contains(&"berth".to_owned()), "{managers:?}");
    let ready = || call(&manager.socket, "GET", "/readyz", "");
    assert_eq!(ready().await.unwrap().0, 200);
    kubectl(&cluster, &["-n", HOME, "delete", "configmap", STATE]);
    // What was said last counts for a second.
    let end = Instant::now() + Duration::from_secs(20);
    let why = loop {
        let (status, why) = ready().await.unwrap();
        if status == 503 {
            break why;
        }
        assert!(Instant::now() < end, "{status} {why}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert!(why.as_str().unwrap().contains(STATE), "{why}");
}

/// The texts that operators of such pools search their logs for.
fn searched_for(first: &str, second: &str, lost: &str) {
    let operations: Vec<&str> = first
        .lines()
        .filter(|line| {
            line.contains(r#""operation":"allocate""#)
                || line.contains(r#""operation":"deallocate""#)
        })
        .collect();
    assert_eq!(operations.len(), 5);
    for line in operations {
        assert!(line.contains("IP allocation"), "{line}");
    }
    let kept = second
        .lines()
        .find(|line| line.contains("NOT releasing IP due to failed cleanup"));
    let line: Value = serde_json::from_str(kept.expect(second)).unwrap();
    assert_eq!(line["fields"]["ip"], lost);
    assert_eq!(line["level"], "WARN");
    let error = line["fields"]["error"].as_str().unwrap();
    assert!(error.contains("does not answer"), "{error}");
}

/// Every figure that the design document asks for.
async fn metrics(manager: &Manager) {
    allocate(manager, "default", "e").await;
    let (told, ok) = manager.cli(&["deallocate", "e", "--force"]);
    assert!(ok, "{told}");
    let (_, status) = manager.call("GET", "/status", "").await.unwrap();
    assert_eq!(status["pools"][0]["available"], 3);
    let pool = r#"{pool="default"}"#;
    let at_least = |series: &'static str, least: f64| async move {
        let now = manager.metric(series).await;
        assert!(now >= least, "{series} is {now}");
    };
    assert_eq!(
        manager
            .metric(&format!("berth_vm_pool_utilization{pool}"))
            .await,
        0.25
    );
    at_least(
        r#"berth_vm_allocations_total{pool="default",outcome="success"}"#,
        1.0,
    )
    .await;
    at_least(
        r#"berth_vm_deallocations_total{pool="default",outcome="success"}"#,
        1.0,
    )
    .await;
    at_least("berth_vm_allocation_seconds_count", 1.0).await;
    at_least(
        r#"berth_vm_cleanups_total{pool="default",outcome="success"}"#,
        1.0,
    )
    .await;
    at_least(
        r#"berth_vm_cleanups_total{pool="default",outcome="failure"}"#,
        1.0,
    )
    .await;
    // Exhausted: three VMs answer, the fourth request finds none.
    for (id, wanted) in [("f", 200), ("g", 200), ("h", 409)] {
        let wish = json!({ "allocationID": id }).to_string();
        let (status, answer) = manager.call("POST", "/allocations", &wish).await.unwrap();
        assert_eq!(status, wanted, "{id}: {answer}");
    }
    at_least(
        r#"berth_vm_allocations_total{pool="default",outcome="exhausted"}"#,
        1.0,
    )
    .await;
    let (_, text) = call(&manager.socket, "GET", "/metrics", "").await.unwrap();
    let text = text.as_str().unwrap().to_string();
    assert!(text.contains("berth_vm_conflicts_total{"), "{text}");
}
