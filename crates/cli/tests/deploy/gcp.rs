//! deploy/gcp: strictly valid, applied twice without a change, with the rights that are used and no others.

use std::fs;

use serde_json::Value;

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

#[test]
fn no_right_goes_to_every_node() {
    let mut files = Vec::new();
    for entry in fs::read_dir(deploy("gcp")).unwrap() {
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
    assert!(files.len() >= 4, "{files:?}");
}

#[test]
fn the_installer_has_two_directories_and_no_token() {
    let objects = build("gcp", "namespace: networking");
    let of = |kind: &str| {
        objects
            .iter()
            .find(|object| object["kind"] == kind)
            .unwrap()
    };
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
