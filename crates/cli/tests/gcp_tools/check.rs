//! `berth gcp check` as built: pool against aliases against pods, limits, local routes.

use std::collections::BTreeSet;

use berth_testcloud::{AliasRange, ApiError, Fault};
use berth_testkit::Netns;
use serde_json::{Value, json};

use crate::scene::{PROJECT, Said, Scene, ZONE, entry};

/// A cluster of its own: the check compares all nodes and pods.
struct Checked {
    scene: Scene,
    cluster: berth_testkit::Cluster,
}

impl Checked {
    /// Two nodes, a provisioned pool of 10.0.0.0/16, and a pod on each node.
    async fn new(name: &str) -> Checked {
        let scene = Scene::new(name).await;
        let cluster = berth_testkit::Cluster::start().await.unwrap();
        let crds = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/gcp/crds");
        let apply = ["apply", "--filename", crds.to_str().unwrap()];
        Said::from(cluster.kubectl(&apply).unwrap()).succeeded();
        let wait = [
            "wait",
            "--for=condition=Established",
            "crd/ippools.ipam.gcp-cni.cast.ai",
        ];
        Said::from(cluster.kubectl(&wait).unwrap()).succeeded();
        let checked = Checked { scene, cluster };
        for node in ["node-a", "node-b"] {
            let object = json!({
                "apiVersion": "v1", "kind": "Node", "metadata": { "name": node },
                "spec": { "providerID": format!("gce://{PROJECT}/{ZONE}/{node}") },
            });
            checked.cluster.apply_object(object).await.unwrap();
        }
        checked.berth(&["provision"]).await.succeeded();
        checked
    }

    async fn berth(&self, arguments: &[&str]) -> Said {
        let command = self.scene.command_on(&self.cluster, arguments);
        tokio::task::spawn_blocking(move || Said::of(command))
            .await
            .unwrap()
    }

    /// A running pod with this address; its UID.
    async fn pod(&self, name: &str, node: &str, address: &str) -> String {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": name, "namespace": "default" },
            "spec": { "nodeName": node, "containers": [{ "name": "c", "image": "none" }] },
        });
        let made = self.cluster.apply_object(pod).await.unwrap();
        let status = json!({ "status": { "phase": "Running", "podIP": address, "podIPs": [{ "ip": address }] } });
        let patch = [
            "patch",
            "pod",
            name,
            "--subresource=status",
            "--type=merge",
            "--patch",
            &status.to_string(),
        ];
        Said::from(self.cluster.kubectl(&patch).unwrap()).succeeded();
        made.metadata.uid.unwrap()
    }

    fn allocate(&self, allocations: Value) {
        let spec = json!({ "spec": { "allocations": allocations } });
        let name = self.scene.pool_name();
        let patch = [
            "patch",
            "ipp",
            &name,
            "--type=merge",
            "--patch",
            &spec.to_string(),
        ];
        Said::from(self.cluster.kubectl(&patch).unwrap()).succeeded();
    }

    /// The aliases of a node: its own range, then these addresses.
    fn attach(&self, node: &str, addresses: &[&str]) {
        let own = match node {
            "node-a" => "10.4.0.0/24",
            _ => "10.4.1.0/24",
        };
        let mut aliases = vec![AliasRange::of("pods", own)];
        let ours = addresses
            .iter()
            .map(|address| AliasRange::of("live", &format!("{address}/32")));
        aliases.extend(ours);
        self.scene
            .cloud
            .project(|project| project.set_aliases(ZONE, node, aliases));
    }

    /// The codes of what is found.
    async fn codes(&self, flags: &[&str], code: i32) -> BTreeSet<String> {
        let mut arguments = vec!["check", "--output=json"];
        arguments.extend(flags);
        let said = self.berth(&arguments).await;
        assert_eq!(said.code, code, "{said}");
        let findings = said.json();
        let findings = findings.as_array().unwrap().iter();
        findings
            .map(|one| one["code"].as_str().unwrap().to_owned())
            .collect()
    }
}

fn set(codes: &[&str]) -> BTreeSet<String> {
    codes.iter().map(|code| (*code).to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_healthy_cluster_has_no_finding_and_each_difference_has_one() {
    let checked = Checked::new("check").await;
    let one = checked.pod("one", "node-a", "10.0.0.5").await;
    let two = checked.pod("two", "node-b", "10.0.0.6").await;
    checked.allocate(json!({
        "10.0.0.5": entry("one", &one, "node-a"),
        "10.0.0.6": entry("two", &two, "node-b"),
    }));
    checked.attach("node-a", &["10.0.0.5"]);
    checked.attach("node-b", &["10.0.0.6"]);
    let said = checked.berth(&["check"]).await;
    assert!(
        said.stderr.contains("1 IPPools, 2 nodes and 2 pods"),
        "{said}"
    );
    assert_eq!(said.succeeded(), "none\n");

    // The alias is not where the pod is.
    checked.attach("node-b", &[]);
    assert_eq!(checked.codes(&[], 6).await, set(&["alias-missing"]));
    checked.attach("node-a", &["10.0.0.5", "10.0.0.6"]);
    assert_eq!(checked.codes(&[], 6).await, set(&["alias-elsewhere"]));
    let said = checked.berth(&["check"]).await;
    assert!(
        said.stdout.contains("10.0.0.6 is an alias of node-a"),
        "{said}"
    );
    assert!(said.stderr.contains("1 errors were found"), "{said}");
    // An allocation that is under way is the agent's business.
    let stage = json!({ "10.0.0.6": { "stage": "detached", "podUID": two } }).to_string();
    let note =
        json!({ "metadata": { "annotations": { "berth.dev/attributes": stage } } }).to_string();
    let patch = [
        "patch",
        "ipp",
        "ippool-check",
        "--type=merge",
        "--patch",
        &note,
    ];
    Said::from(checked.cluster.kubectl(&patch).unwrap()).succeeded();
    assert_eq!(checked.codes(&[], 0).await, set(&[]));
    let note = json!({ "metadata": { "annotations": null } }).to_string();
    let patch = [
        "patch",
        "ipp",
        "ippool-check",
        "--type=merge",
        "--patch",
        &note,
    ];
    Said::from(checked.cluster.kubectl(&patch).unwrap()).succeeded();
    checked.attach("node-a", &["10.0.0.5"]);
    checked.attach("node-b", &["10.0.0.6", "10.0.0.9"]);
    assert_eq!(checked.codes(&[], 0).await, set(&["alias-left"]));
    checked.attach("node-b", &["10.0.0.6"]);

    // A pod that is gone, a node that is gone, an entry of the gateway.
    checked.allocate(json!({
        "10.0.0.7": entry("gone", "no-such-uid", "node-a"),
        "10.0.0.8": entry("lost", "no-such-uid", "node-z"),
        "10.0.0.1": entry("first", &one, "node-a"),
    }));
    checked.attach("node-a", &["10.0.0.5", "10.0.0.1"]);
    let expected = set(&["pod-gone", "node-gone", "entry"]);
    assert_eq!(checked.codes(&[], 0).await, expected);
    checked.allocate(json!({ "10.0.0.7": null, "10.0.0.8": null, "10.0.0.1": null }));
    checked.attach("node-a", &["10.0.0.5"]);

    // Pods that have an address without its allocation.
    checked.pod("three", "node-a", "10.0.0.12").await;
    checked.pod("four", "node-b", "10.0.0.5").await;
    let expected = set(&["not-allocated", "allocated-to-another"]);
    assert_eq!(checked.codes(&[], 6).await, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_order_and_ranges_are_looked_at() {
    let checked = Checked::new("limits").await;
    // Ours first: a node that is registered again would take it for its podCIDR.
    let aliases = vec![
        AliasRange::of("live", "10.0.0.9/32"),
        AliasRange::of("pods", "10.4.0.0/24"),
    ];
    checked
        .scene
        .cloud
        .project(|project| project.set_aliases(ZONE, "node-a", aliases));
    let expected = set(&["first-alias", "alias-left"]);
    assert_eq!(checked.codes(&[], 6).await, expected);
    let many: Vec<String> = (0..134).map(|n| format!("10.0.1.{n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    checked.attach("node-a", &many);
    assert_eq!(
        checked.codes(&[], 0).await,
        set(&["nic-nearly-full", "alias-left"])
    );
    checked.attach("node-a", &many[..133]);
    assert_eq!(checked.codes(&[], 0).await, set(&["alias-left"]));
    checked.attach("node-a", &[]);
    // A VM that is gone is not one without aliases.
    checked
        .scene
        .cloud
        .project(|project| project.remove_instance(ZONE, "node-b"));
    assert_eq!(checked.codes(&[], 6).await, set(&["node-unreadable"]));
    checked
        .cluster
        .kubectl(&["delete", "node", "node-b"])
        .unwrap();
    assert_eq!(checked.codes(&[], 0).await, set(&[]));
    // The range goes underneath.
    let region = crate::scene::REGION;
    checked
        .scene
        .cloud
        .project(|project| project.drop_secondary_range(region, "limits", "live"));
    assert_eq!(checked.codes(&[], 6).await, set(&["range-gone"]));
    checked
        .scene
        .cloud
        .project(|project| project.add_secondary_range(region, "limits", "live", "10.9.0.0/16"));
    assert_eq!(checked.codes(&[], 6).await, set(&["other-cidr"]));
    checked.scene.cloud.faults(|request| {
        let denied = || Fault::Refuse(ApiError::new(403, "forbidden", "no"));
        (request.call == "subnetworks.get").then(denied)
    });
    assert_eq!(checked.codes(&[], 6).await, set(&["subnet-unreadable"]));
    let told = checked.berth(&["check", "--pool=none"]).await.failed(3);
    assert!(told.contains("there is no IPPool none"), "{told}");
}

/// As the guest agent makes them; read from a real kernel.
#[tokio::test(flavor = "multi_thread")]
async fn a_local_route_of_the_guest_agent_is_found() {
    let checked = Checked::new("routes").await;
    let one = checked.pod("one", "node-a", "10.0.0.5").await;
    checked.allocate(json!({ "10.0.0.5": entry("one", &one, "node-a") }));
    checked.attach("node-a", &["10.0.0.5"]);
    let host = Netns::new().unwrap();
    host.ip(&["link", "set", "lo", "up"]).unwrap();
    let trie = || {
        let shown = host.exec(&["cat", "/proc/net/fib_trie"]).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), shown.stdout).unwrap();
        file
    };
    // The gateway is on every host-side interface of ptp, and the pod has a route of its own: both are right.
    host.ip(&["address", "add", "10.0.0.1/32", "dev", "lo"])
        .unwrap();
    host.ip(&["route", "add", "10.0.0.5/32", "dev", "lo"])
        .unwrap();
    let file = trie();
    let flag = format!("--routes={}", file.path().display());
    assert_eq!(checked.codes(&[&flag], 0).await, set(&[]));
    let local = [
        "route", "add", "local", "10.0.0.5", "dev", "lo", "proto", "66",
    ];
    host.ip(&local).unwrap();
    let file = trie();
    let flag = format!("--routes={}", file.path().display());
    assert_eq!(checked.codes(&[&flag], 6).await, set(&["local-route"]));
}

/// Google refuses to remove a range that is in use: the IPPool is not deleted before that is known.
#[tokio::test(flavor = "multi_thread")]
async fn an_undo_with_aliases_left_changes_nothing() {
    let checked = Checked::new("aliases-left").await;
    checked.attach("node-b", &["10.0.0.9"]);
    let told = checked.berth(&["provision", "--undo"]).await.failed(4);
    assert!(
        told.contains("node-b") && told.contains("10.0.0.9/32"),
        "{told}"
    );
    let get = ["get", "ipp", "ippool-aliases-left"];
    Said::from(checked.cluster.kubectl(&get).unwrap()).succeeded();
    checked.attach("node-b", &[]);
    checked.berth(&["provision", "--undo"]).await.succeeded();
}
