//! One line of the log and one count for each operation, whatever becomes of it.

use berth_testkit::Cluster;

use crate::manager::Manager;
use crate::{allocate, until};

/// The lines so far: allocations, deallocations, user data.
fn lines(manager: &Manager) -> [usize; 3] {
    ["allocate", "deallocate", "user-data"].map(|operation| manager.audit(operation).len())
}

#[tokio::test(flavor = "multi_thread")]
async fn berth_15_12_every_operation_writes_one_line() {
    let cluster = Cluster::shared().await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("vms.yaml");
    let two = "vm-pool-ips: 10.0.0.1-10.0.0.4\npools:\n- name: gpu\n  ips: 10.0.1.1\n";
    std::fs::write(&file, two).unwrap();
    for (count, pools) in [("1", 1), ("3", 1), ("1", 2), ("3", 2)] {
        let namespace = cluster.namespace("audit").await.unwrap();
        let mut env = vec![
            ("POOL_NAMESPACE", namespace.as_str()),
            ("POOL_CONFIGMAP_COUNT", count),
            ("NODE_NAME", "worker"),
            ("VM_READINESS", "off"),
            ("VM_CLEANUP", "false"),
        ];
        match pools {
            1 => env.push(("VM_POOL_IPS", "10.0.0.1-10.0.0.4")),
            _ => env.push(("VM_SETTINGS", file.to_str().unwrap())),
        }
        let manager = Manager::start_with(&cluster.kubeconfig(), &env, &["--vms-only"]).await;
        let wish = |id: &str| serde_json::json!({ "allocationID": id }).to_string();
        let mut expected = lines(&manager);
        assert_eq!(expected, [0, 0, 0]);
        for (operation, method, path, body) in [
            (0, "POST", "/allocations", wish("two words")),
            (0, "POST", "/allocations?pool=none", wish("a")),
            (1, "DELETE", "/allocations/unknown", String::new()),
            (
                1,
                "DELETE",
                "/allocations/unknown?pool=default",
                String::new(),
            ),
            (1, "DELETE", "/allocations/unknown?pool=none", String::new()),
            (2, "PUT", "/allocations/unknown/user-data", "x".into()),
        ] {
            manager.call(method, path, &body).await.unwrap();
            expected[operation] += 1;
            assert_eq!(
                lines(&manager),
                expected,
                "{count} {pools}: {method} {path}"
            );
        }
        // Of several ConfigMaps some are full before the others: these allocations spill over.
        for n in 0..4 {
            allocate(&manager, "default", &format!("pod-{n}")).await;
            expected[0] += 1;
            assert_eq!(lines(&manager), expected, "{count} {pools}: pod-{n}");
        }
        manager
            .call("POST", "/allocations?pool=default", &wish("more"))
            .await
            .unwrap();
        expected[0] += 1;
        let (told, ok) = manager.cli(&["deallocate", "pod-1"]);
        assert!(ok, "{told}");
        expected[1] += 1;
        assert_eq!(lines(&manager), expected, "{count} {pools}");
        until(&manager, "default", [1, 3, 0]).await;
        let last = manager.audit("deallocate").pop().unwrap();
        assert_eq!(last["fields"]["pool"], "default");
        assert_eq!(last["fields"]["allocation"], "pod-1");
        for (series, times) in [
            (
                "allocations_total{pool=\"default\",outcome=\"success\"}",
                4.0,
            ),
            (
                "allocations_total{pool=\"default\",outcome=\"exhausted\"}",
                1.0,
            ),
            (
                "allocations_total{pool=\"default\",outcome=\"failure\"}",
                1.0,
            ),
        ] {
            let counted = manager.metric(&format!("berth_vm_{series}")).await;
            assert_eq!(counted, times, "{count} {pools}: {series}");
        }
    }
}

/// Text that somebody sends is not written to the log whole: it may be anything.
#[tokio::test(flavor = "multi_thread")]
async fn berth_15_11_a_refused_id_or_pool_is_never_logged_whole() {
    let cluster = Cluster::shared().await;
    let namespace = cluster.namespace("refused").await.unwrap();
    let env = [
        ("POOL_NAMESPACE", namespace.as_str()),
        ("VM_POOL_IPS", "10.0.0.1"),
        ("VM_READINESS", "off"),
        ("VM_CLEANUP", "false"),
    ];
    let manager = Manager::start_with(&cluster.kubeconfig(), &env, &["--vms-only"]).await;
    let long = "secret".repeat(70);
    let wish = |id: &str| serde_json::json!({ "allocationID": id }).to_string();
    for (method, path, body) in [
        ("POST", "/allocations".to_owned(), wish(&long)),
        ("POST", format!("/allocations?pool={long}"), wish("a")),
        ("GET", format!("/allocations/{long}"), String::new()),
        ("DELETE", format!("/allocations/{long}"), String::new()),
        (
            "DELETE",
            format!("/allocations/a?pool={long}"),
            String::new(),
        ),
        ("PUT", format!("/allocations/{long}/user-data"), "x".into()),
        (
            "PUT",
            format!("/allocations/a/user-data?pool={long}"),
            "x".into(),
        ),
    ] {
        manager.call(method, &path, &body).await.unwrap();
    }
    assert_eq!(lines(&manager), [2, 2, 2]);
    let log = manager.log();
    let line = log.lines().find(|line| line.contains(&long));
    assert!(line.is_none(), "{line:?}");
    assert!(
        log.contains("secretsecretsecr"),
        "nothing is recognised: {log}"
    );
}
