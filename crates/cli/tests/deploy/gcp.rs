//! deploy/gcp: strictly valid, applied twice without a change, with the rights that are used and no others.

use std::fs;

use berth_gcp::front::LOCK;
use berth_testkit::Account;
use serde_json::{Value, json};

use crate::manifests::build;
use crate::rights::{Right, check};
use crate::{HOME, deploy, deployed, kubectl};

async fn applied() -> &'static berth_testkit::Cluster {
    static APPLIED: tokio::sync::OnceCell<()> = tokio::sync::OnceCell::const_new();
    let cluster = deployed().await;
    APPLIED
        .get_or_init(|| async {
            let crds = deploy("gcp/crds");
            kubectl(cluster, &["apply", "--filename", crds.to_str().unwrap()]);
            kubectl(cluster, &["apply", "-k", deploy("gcp").to_str().unwrap()]);
        })
        .await;
    cluster
}

#[tokio::test]
async fn gcp_is_accepted_by_the_api_server_and_applied_twice_unchanged() {
    let cluster = applied().await;
    let path = deploy("gcp");
    let dry = ["apply", "--dry-run=server", "-k", path.to_str().unwrap()];
    let told = kubectl(cluster, &dry);
    assert!(told.contains("job.batch/berth-gcp-provision"), "{told}");
    assert!(told.contains("daemonset.apps/berth-gcp-install"), "{told}");
    let told = kubectl(cluster, &["apply", "-k", path.to_str().unwrap()]);
    for line in told.lines() {
        assert!(line.ends_with("unchanged"), "{told}");
    }
}

/// Upstream writes spec and status at once: a status subresource would silently drop half of it.
#[tokio::test]
async fn the_definition_of_ip_pools_is_as_upstream_has_it() {
    let cluster = applied().await;
    let get = [
        "get",
        "crd",
        "ippools.ipam.gcp-cni.cast.ai",
        "--output=json",
    ];
    let crd: Value = serde_json::from_str(&kubectl(cluster, &get)).unwrap();
    assert_eq!(crd["spec"]["scope"], "Cluster");
    assert_eq!(crd["spec"]["names"]["shortNames"][0], "ipp");
    let version = &crd["spec"]["versions"][0];
    assert_eq!(version["name"], "v1alpha1");
    assert!(version["subresources"].is_null(), "{version}");
    let pool = r#"
apiVersion: ipam.gcp-cni.cast.ai/v1alpha1
kind: IPPool
metadata: { name: ippool-upstream }
spec:
  cidr: 10.111.0.0/16
  subnet: projects/p/regions/r/subnetworks/nodes
  allocations: { "10.111.0.2": { podName: a, podNamespace: b, podUID: c, nodeName: d, allocatedAt: "2026-11-18T00:00:00Z" } }
status: { capacity: 65534, allocated: 1, available: 65533 }
"#;
    cluster.apply(pool).await.unwrap();
    let get = ["get", "ipp", "ippool-upstream", "--output=json"];
    let stored: Value = serde_json::from_str(&kubectl(cluster, &get)).unwrap();
    assert_eq!(stored["status"]["available"], 65533);
    assert_eq!(stored["spec"]["secondaryRangeName"], "live");
    let wrong = pool.replace("10.111.0.0/16", "fd00::/64");
    let refused = cluster.apply(&wrong).await.unwrap_err();
    assert!(format!("{refused:#}").contains("spec.cidr"), "{refused:#}");
}

#[tokio::test]
async fn the_provisioner_may_make_ip_pools_and_nothing_else() {
    const NONE: &[&str] = &[];
    const PROVISIONER: &[Right] = &[
        Right(
            "ipam.gcp-cni.cast.ai/ippools",
            &["get", "create", "update"],
            &["get", "create", "update"],
        ),
        Right("whereabouts.cni.cncf.io/ippools", NONE, NONE),
        Right("/pods", NONE, NONE),
        Right("/nodes", NONE, NONE),
        Right("/secrets", NONE, NONE),
        Right("/configmaps", NONE, NONE),
    ];
    let cluster = applied().await;
    let account = cluster.account(HOME, "berth-gcp-provision").await.unwrap();
    check(&account, HOME, PROVISIONER).await;
}

/// The account with the rules of one file of deploy/gcp alone.
async fn account_of(file: &str, name: &str) -> (Account, String) {
    let cluster = applied().await;
    let namespace = cluster.namespace("gcp-rights").await.unwrap();
    let text = fs::read_to_string(deploy(file)).unwrap();
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
    let rules = documents[0]["rules"].clone();
    let account = cluster.service_account(&namespace, name, rules).await;
    (account.unwrap(), namespace)
}

const NO_VERB: &[&str] = &[];
const READ: &[&str] = &["get", "list", "watch"];

#[tokio::test]
async fn the_agents_role_for_gcp_has_what_is_used_and_nothing_else() {
    const POOLS: &[&str] = &["get", "list", "watch", "create", "update"];
    const AGENT: &[Right] = &[
        Right("ipam.gcp-cni.cast.ai/ippools", POOLS, POOLS),
        Right("whereabouts.cni.cncf.io/ippools", NO_VERB, NO_VERB),
        Right("/pods", READ, READ),
        Right("/pods/status", NO_VERB, NO_VERB),
        Right("/nodes", &["get"], &["get"]),
        Right("/nodes/status", NO_VERB, NO_VERB),
        Right("/namespaces", &["get"], &["get"]),
        Right("/events", &["create"], &["create"]),
        Right("/secrets", NO_VERB, NO_VERB),
        Right("/configmaps", NO_VERB, NO_VERB),
        Right("coordination.k8s.io/leases", NO_VERB, NO_VERB),
    ];
    let (account, namespace) = account_of("gcp/agent/rbac.yaml", "berth-agent").await;
    check(&account, &namespace, AGENT).await;
}

#[tokio::test]
async fn the_controllers_role_for_gcp_has_what_is_used_and_nothing_else() {
    const POOLS: &[&str] = &["get", "list", "watch", "update"];
    const CONTROLLER: &[Right] = &[
        Right("ipam.gcp-cni.cast.ai/ippools", POOLS, POOLS),
        Right("whereabouts.cni.cncf.io/ippools", NO_VERB, NO_VERB),
        Right("/pods", &["get"], &["get"]),
        Right("/nodes", &["get"], &["get"]),
        Right("/namespaces", NO_VERB, NO_VERB),
        Right("/events", NO_VERB, NO_VERB),
        Right("/secrets", NO_VERB, NO_VERB),
        Right("/configmaps", NO_VERB, NO_VERB),
        Right("coordination.k8s.io/leases", NO_VERB, NO_VERB),
    ];
    let (account, namespace) = account_of("gcp/controller/rbac.yaml", "berth-controller").await;
    check(&account, &namespace, CONTROLLER).await;
}

/// Container-Optimized OS mounts its root read-only; these are writable.
const WRITABLE: [&str; 3] = ["/etc/", "/run/", "/var/"];

#[test]
fn on_gke_the_agent_makes_nothing_where_the_node_is_read_only() {
    let objects = build("gcp/agent", "namespace: networking");
    let pod = &of_kind(&objects, "DaemonSet")["spec"]["template"]["spec"];
    let volumes = pod["volumes"].as_array().unwrap();
    for volume in volumes.iter().filter(|one| !one["hostPath"].is_null()) {
        let path = volume["hostPath"]["path"].as_str().unwrap();
        let made = volume["hostPath"]["type"]
            .as_str()
            .unwrap()
            .ends_with("OrCreate");
        let writable = WRITABLE.iter().any(|dir| path.starts_with(dir));
        assert!(writable || !made, "{volume}");
    }
    let bin = volumes.iter().find(|one| one["name"] == "cni-bin").unwrap();
    assert_eq!(bin["hostPath"]["path"], "/home/kubernetes/bin");
    // The installer looks where it is mounted.
    let installers = [&pod["initContainers"][0], &pod["containers"][0]];
    for container in installers {
        let env = container["env"].as_array().unwrap();
        let named = env.iter().find(|one| one["name"] == "CNI_BIN_DIR").unwrap();
        assert_eq!(named["value"], bin["hostPath"]["path"]);
        let mounts = container["volumeMounts"].as_array().unwrap();
        let mounted = mounts.iter().find(|one| one["name"] == "cni-bin").unwrap();
        assert_eq!(mounted["mountPath"], "/host/home/kubernetes/bin");
    }
    for kind in ["ClusterRoleBinding", "RoleBinding"] {
        for binding in objects.iter().filter(|one| one["kind"] == kind) {
            assert_eq!(binding["subjects"][0]["namespace"], "networking");
        }
    }
}

/// The plugin's own engine runs on the host: agent and engine must lock the same file.
#[test]
fn the_agent_has_the_lock_file_of_the_host() {
    let objects = build("gcp/agent", "");
    let pod = &of_kind(&objects, "DaemonSet")["spec"]["template"]["spec"];
    let agent = &pod["containers"][1];
    assert_eq!(agent["name"], "agent");
    let env = agent["env"].as_array().unwrap();
    assert!(
        env.iter().all(|one| one["name"] != "BERTH_GCP_LOCK"),
        "the engine on the host has no such setting"
    );
    let mounts = agent["volumeMounts"].as_array().unwrap();
    let mount = mounts
        .iter()
        .find(|one| one["mountPath"] == LOCK)
        .expect("the lock file is not mounted, and the container's root is read-only");
    assert_ne!(mount["readOnly"], true);
    let volumes = pod["volumes"].as_array().unwrap();
    let volume = volumes.iter().find(|one| one["name"] == mount["name"]);
    let expected = json!({ "path": LOCK, "type": "FileOrCreate" });
    assert_eq!(volume.unwrap()["hostPath"], expected);
}

#[test]
fn the_controller_on_gke_looks_after_ip_pools() {
    let objects = build("gcp/controller", "namespace: networking");
    let pod = &of_kind(&objects, "Deployment")["spec"]["template"]["spec"];
    let env = pod["containers"][0]["env"].as_array().unwrap();
    let named = env.iter().find(|one| one["name"] == "BERTH_GCP").unwrap();
    assert_eq!(named["value"], "true");
    let binding = objects.iter().find(|one| {
        one["metadata"]["name"] == "berth-gcp-controller" && !one["subjects"].is_null()
    });
    let subject = &binding.unwrap()["subjects"][0];
    assert_eq!(subject["namespace"], "networking");
}

fn of_kind<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    objects.iter().find(|one| one["kind"] == kind).unwrap()
}

#[test]
fn no_right_goes_to_every_node() {
    let mut files = Vec::new();
    let dirs = ["gcp", "gcp/agent", "gcp/controller"];
    let entries = dirs.map(|dir| fs::read_dir(deploy(dir)).unwrap());
    for entry in entries.into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_file() {
            let text = fs::read_to_string(&path).unwrap();
            let manifest = text.lines().filter(|line| !line.starts_with('#'));
            let lines: Vec<&str> = manifest.collect();
            files.push(path.display().to_string());
            assert!(
                !lines.join("\n").contains("system:nodes"),
                "{}",
                path.display()
            );
        }
    }
    assert!(files.len() >= 8, "{files:?}");
}

#[test]
fn the_installer_has_two_directories_and_no_token() {
    let objects = build("gcp", "namespace: networking");
    let of = |kind: &str| of_kind(&objects, kind);
    let pod = &of("DaemonSet")["spec"]["template"]["spec"];
    assert_eq!(pod["automountServiceAccountToken"], false);
    let mounted: Vec<&str> = pod["volumes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|volume| volume["hostPath"]["path"].as_str().unwrap())
        .collect();
    assert_eq!(mounted, ["/home/kubernetes/bin", "/etc/cni/net.d"]);
    assert!(pod["hostPID"].is_null() && pod["hostIPC"].is_null());
    let job = &of("Job")["spec"]["template"]["spec"];
    assert_eq!(job["securityContext"]["runAsNonRoot"], true);
    assert!(job["volumes"].is_null() && job["hostNetwork"].is_null());
    for pod in [pod, job] {
        let security = &pod["containers"][0]["securityContext"];
        assert_eq!(security["allowPrivilegeEscalation"], false);
        assert_eq!(security["readOnlyRootFilesystem"], true);
        assert_eq!(security["capabilities"]["drop"][0], "ALL");
        assert!(security["capabilities"]["add"].is_null());
    }
    assert_eq!(
        of("ClusterRoleBinding")["subjects"][0]["namespace"],
        "networking"
    );
}
