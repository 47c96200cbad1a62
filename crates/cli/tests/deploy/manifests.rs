//! The manifests as such: strictly valid, applied twice without a change, over a live whereabouts without a loss, and
//! the same in another namespace and on k3s.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use berth_parts::Parts;
use berth_testkit::{Cluster, Whereabouts};
use serde_json::{Value, json};

use crate::{HOME, deploy, deployed, kubectl};

/// Paths in a kustomization are relative.
fn relative(from: &Path, to: &Path) -> String {
    let depth = from.canonicalize().unwrap().components().count() - 1;
    let to = to.canonicalize().unwrap();
    format!(
        "{}{}",
        "../".repeat(depth),
        to.strip_prefix("/").unwrap().display()
    )
}

/// What a user's own kustomization over one of ours makes.
pub fn build(base: &str, lines: &str) -> Vec<Value> {
    let dir = tempfile::tempdir().unwrap();
    let base = relative(dir.path(), &deploy(base));
    let text = format!("resources: [{base}]\n{lines}\n");
    fs::write(dir.path().join("kustomization.yaml"), text).unwrap();
    let output = Command::new(Parts::find().unwrap().kubectl())
        .arg("kustomize")
        .arg(dir.path())
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    serde_saphyr::from_multiple(&String::from_utf8(output.stdout).unwrap()).unwrap()
}

fn find<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    objects
        .iter()
        .find(|object| object["kind"] == kind)
        .unwrap()
}

/// All containers of the daemon set's pod.
fn containers(pod: &Value) -> Vec<&Value> {
    let lists = ["initContainers", "containers"].iter();
    let all: Vec<&Value> = lists
        .flat_map(|list| pod[*list].as_array().unwrap())
        .collect();
    assert_eq!(all.len(), 3);
    all
}

#[tokio::test]
async fn applied_twice_nothing_changes() {
    let cluster = deployed().await;
    // Without a flag kubectl refuses unknown and doubled fields.
    let told = kubectl(cluster, &["apply", "-k", deploy("agent").to_str().unwrap()]);
    for line in told.lines() {
        assert!(line.ends_with("unchanged"), "{told}");
    }
    assert!(told.contains("daemonset.apps/berth-agent"), "{told}");
    let class = ["get", "priorityclass", "system-node-critical"];
    kubectl(cluster, &class);
}

/// A daemon set that asks for more than it has been given fails on the node, long after it was applied.
#[tokio::test]
async fn containers_have_no_more_than_they_need() {
    let cluster = deployed().await;
    let pod_of = |kind: &str, name: &str| {
        let get = ["get", kind, name, "--namespace", HOME, "--output=json"];
        let set: Value = serde_json::from_str(&kubectl(cluster, &get)).unwrap();
        set["spec"]["template"]["spec"].clone()
    };
    let controller = pod_of("deployment", "berth-controller");
    assert!(controller["volumes"].is_null() && controller["hostNetwork"].is_null());
    assert_eq!(controller["securityContext"]["runAsNonRoot"], true);
    let pod = pod_of("daemonset", "berth-agent");
    let all = [&controller, &pod].map(|pod| pod["containers"].as_array().unwrap());
    for container in all.into_iter().flatten() {
        let security = &container["securityContext"];
        assert_eq!(security["allowPrivilegeEscalation"], false);
        assert_eq!(security["readOnlyRootFilesystem"], true);
        assert_eq!(security["capabilities"]["drop"][0], "ALL");
        assert!(security["capabilities"]["add"].is_null());
        assert!(security["privileged"].is_null());
        assert!(!container["resources"]["limits"]["memory"].is_null());
    }
    let mounted: Vec<&str> = pod["volumes"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|volume| volume["hostPath"]["path"].as_str())
        .collect();
    assert_eq!(
        mounted,
        [
            "/opt/cni/bin",
            "/etc/cni/net.d",
            "/run/berth",
            "/var/lib/berth",
            "/run/netns",
            "/var/lib/cni",
        ]
    );
    assert!(pod["hostPID"].is_null() && pod["hostIPC"].is_null());
}

#[tokio::test]
async fn whereabouts_own_definitions_and_objects_stay() {
    let cluster = Cluster::start().await.unwrap();
    let manifests = Whereabouts::sources().unwrap().join("doc/crds");
    for entry in fs::read_dir(manifests).unwrap() {
        let path = entry.unwrap().path();
        kubectl(&cluster, &["apply", "--filename", path.to_str().unwrap()]);
    }
    let pool = r#"
apiVersion: whereabouts.cni.cncf.io/v1alpha1
kind: IPPool
metadata: { name: 192.168.1.0-24, namespace: kube-system }
spec: { range: 192.168.1.0/24, allocations: { "1": { id: c1, podref: default/one, ifname: net1 } } }
---
apiVersion: whereabouts.cni.cncf.io/v1alpha1
kind: OverlappingRangeIPReservation
metadata: { name: 192.168.1.1, namespace: kube-system }
spec: { podref: default/one, ifname: net1 }
"#;
    cluster.apply(pool).await.unwrap();
    let look = || -> Value {
        let kinds = "ippools,overlappingrangeipreservations";
        let get = ["get", kinds, "--namespace", HOME, "--output=json"];
        serde_json::from_str(&kubectl(&cluster, &get)).unwrap()
    };
    let before = look();
    assert_eq!(before["items"].as_array().unwrap().len(), 2);
    let (crds, agent) = (deploy("crds"), deploy("agent"));
    kubectl(&cluster, &["apply", "--filename", crds.to_str().unwrap()]);
    kubectl(&cluster, &["apply", "-k", agent.to_str().unwrap()]);
    assert_eq!(look()["items"], before["items"]);
    // Its daemon set is still there, and ours beside it: names do not clash.
    let sets = ["get", "daemonsets", "--namespace", HOME, "--output=name"];
    assert_eq!(
        kubectl(&cluster, &sets),
        "daemonset.apps/berth-agent\ndaemonset.apps/whereabouts\n"
    );
    // Taken away again, Berth leaves every pool: pods still have their addresses (I4).
    kubectl(&cluster, &["delete", "-k", agent.to_str().unwrap()]);
    assert_eq!(look()["items"], before["items"]);
}

#[test]
fn another_namespace_takes_everything_along() {
    let objects = build("agent", "namespace: networking");
    for kind in ["ServiceAccount", "Role", "RoleBinding", "DaemonSet"] {
        assert_eq!(find(&objects, kind)["metadata"]["namespace"], "networking");
    }
    for kind in ["RoleBinding", "ClusterRoleBinding"] {
        let subject = &find(&objects, kind)["subjects"][0];
        assert_eq!(subject["namespace"], "networking", "{kind}");
    }
}

/// whereabouts#465: on k3s the files were somewhere else than the configuration said.
#[test]
fn on_k3s_paths_are_the_same_inside_and_outside() {
    let image = "images: [{ name: berth, newName: registry.example/berth }]";
    let objects = build("k3s", image);
    let pod = &find(&objects, "DaemonSet")["spec"]["template"]["spec"];
    let outside = |volume: &str| {
        let volumes = pod["volumes"].as_array().unwrap();
        let found = volumes.iter().find(|known| known["name"] == volume);
        // A projected token has no place outside.
        found.unwrap()["hostPath"]["path"].as_str()
    };
    for container in containers(pod) {
        let root = match container["name"] == "agent" {
            true => "",
            false => "/host",
        };
        assert_eq!(container["image"], "registry.example/berth:0.1.0");
        for mount in container["volumeMounts"].as_array().unwrap() {
            if let Some(outside) = outside(mount["name"].as_str().unwrap()) {
                // The agent sees the runtime's namespaces under both of their names.
                let inside = mount["mountPath"].as_str().unwrap();
                let inside = inside
                    .strip_prefix("/var")
                    .filter(|_| outside == "/run/netns")
                    .unwrap_or(inside);
                assert_eq!(inside, format!("{root}{outside}"));
            }
        }
    }
    assert_eq!(outside("cni-bin"), Some("/var/lib/rancher/k3s/data/cni"));
    assert_eq!(
        outside("cni-conf"),
        Some("/var/lib/rancher/k3s/agent/etc/cni/net.d")
    );
}

/// docs/vms.md, Migrating a live pool: the state that the adaptor's manager has made stays, and what it lacks is made.
#[tokio::test]
async fn berth_15_12_the_state_of_a_live_vm_pool_is_left_as_it_is() {
    let cluster = deployed().await;
    let namespace = cluster.namespace("migrated").await.unwrap();
    let live = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": "byom-ip-pool-state", "namespace": namespace },
        "data": { "state": "live" },
    });
    cluster.apply_object(live).await.unwrap();
    let text = fs::read_to_string(deploy("vms").join("state.yaml")).unwrap();
    let text = text.replace("confidential-containers-system", &namespace);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("state.yaml");
    fs::write(&file, text).unwrap();
    let create = ["create", "--filename", file.to_str().unwrap()];
    let output = cluster.kubectl(&create).unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && told.contains("AlreadyExists"),
        "{told}"
    );
    let get = [
        "get",
        "configmaps",
        "--namespace",
        &namespace,
        "--output=json",
    ];
    let maps: Value = serde_json::from_str(&kubectl(cluster, &get)).unwrap();
    let maps = maps["items"].as_array().unwrap();
    let named = |name: &str| maps.iter().find(|map| map["metadata"]["name"] == name);
    assert_eq!(
        named("byom-ip-pool-state").unwrap()["data"],
        json!({ "state": "live" })
    );
    assert!(named("byom-ip-pool-state-unreadable").is_some());
}

/// The database that a container of ours works on.
fn database(container: &Value) -> String {
    let texts = |list: &Value| -> Vec<String> {
        let all = list.as_array().into_iter().flatten();
        all.map(|text| text.as_str().unwrap().to_owned()).collect()
    };
    let words = [texts(&container["command"]), texts(&container["args"])].concat();
    let next = words.iter().skip(1).map(Some).chain([None]);
    let named = words.iter().zip(next).find_map(|(word, next)| {
        let joined = word.strip_prefix("--database=").map(str::to_owned);
        joined.or_else(|| (word == "--database").then(|| next.cloned())?)
    });
    let variables = container["env"].as_array().unwrap();
    let variable = variables.iter().find(|one| one["name"] == "BERTH_DATABASE");
    let variable = variable.map(|one| one["value"].as_str().unwrap().to_owned());
    let default = || "/var/lib/berth/berth.db".to_owned();
    named.or(variable).unwrap_or_else(default)
}

/// What the installer tells the plugin's own engine is the agent's file, at the place that it has on the node.
#[test]
fn berth_15_15_installer_and_agent_mean_the_same_database() {
    for base in ["agent", "k3s"] {
        let objects = build(base, "");
        let pod = &find(&objects, "DaemonSet")["spec"]["template"]["spec"];
        let all = containers(pod);
        let databases: BTreeSet<String> = all.iter().map(|one| database(one)).collect();
        assert_eq!(databases.len(), 1, "{base}: {databases:?}");
        let database = databases.first().unwrap();
        let agent = all.iter().find(|one| one["name"] == "agent").unwrap();
        let mounts = agent["volumeMounts"].as_array().unwrap().iter();
        let home = mounts
            .filter(|mount| Path::new(database).starts_with(mount["mountPath"].as_str().unwrap()))
            .max_by_key(|mount| mount["mountPath"].as_str().unwrap().len())
            .unwrap();
        let volumes = pod["volumes"].as_array().unwrap();
        let volume = volumes.iter().find(|one| one["name"] == home["name"]);
        let outside = &volume.unwrap()["hostPath"]["path"];
        assert_eq!(outside, &home["mountPath"], "{base}: {database}");
    }
}

#[test]
fn a_database_is_found_wherever_a_container_names_it() {
    for (container, expected) in [
        (json!({ "env": [] }), "/var/lib/berth/berth.db"),
        (json!({ "args": ["--database=/a"], "env": [] }), "/a"),
        (
            json!({ "command": ["/berth", "--database", "/b"], "env": [] }),
            "/b",
        ),
        (
            json!({ "env": [{ "name": "BERTH_DATABASE", "value": "/c" }] }),
            "/c",
        ),
    ] {
        assert_eq!(database(&container), expected);
    }
}

/// For networks that probe, the agent gets the one capability that it needs, and nobody else any.
#[test]
fn the_probe_component_adds_one_capability_to_the_agent() {
    let component = tempfile::tempdir().unwrap();
    let probe = relative(component.path(), &deploy("probe"));
    for base in ["agent", "k3s"] {
        let objects = build(base, &format!("components: [{probe}]"));
        let pod = &find(&objects, "DaemonSet")["spec"]["template"]["spec"];
        for container in containers(pod) {
            let capabilities = &container["securityContext"]["capabilities"];
            assert_eq!(capabilities["drop"], serde_json::json!(["ALL"]));
            match container["name"] == "agent" {
                true => assert_eq!(capabilities["add"], serde_json::json!(["NET_RAW"])),
                false => assert!(capabilities["add"].is_null()),
            }
        }
    }
}

/// For host interfaces the agent gets what its host program needs, by component, and the other containers get nothing.
#[test]
fn the_components_for_host_interfaces_have_what_the_host_program_needs() {
    let place = tempfile::tempdir().unwrap();
    for (name, added) in [
        ("nodes/kernel", json!(["NET_ADMIN", "NET_RAW"])),
        ("nodes/network-manager", json!(["NET_RAW"])),
    ] {
        let component = relative(place.path(), &deploy(name));
        for base in ["agent", "k3s"] {
            let objects = build(base, &format!("components: [{component}]"));
            let pod = &find(&objects, "DaemonSet")["spec"]["template"]["spec"];
            let (agent, others): (Vec<&Value>, Vec<&Value>) = containers(pod)
                .into_iter()
                .partition(|one| one["name"] == "agent");
            for other in others {
                let security = &other["securityContext"]["capabilities"];
                assert!(security["add"].is_null());
            }
            let agent = agent[0];
            assert_eq!(agent["securityContext"]["capabilities"]["add"], added);
            let env = agent["env"].as_array().unwrap();
            let value = |name: &str| {
                let found = env.iter().find(|one| one["name"] == name);
                found.map(|one| one["value"].as_str().unwrap_or_default())
            };
            assert_eq!(value("BERTH_NODES"), Some("true"));
            assert_eq!(value("BERTH_HOST_PROGRAM"), Some("/berth-host"));
            // What was there before is there still.
            assert!(value("BERTH_DESK_TOKEN_FILE").is_some(), "{name}");
            let mounts = agent["volumeMounts"].as_array().unwrap();
            let mounted = |path: &str| mounts.iter().any(|one| one["mountPath"] == path);
            assert!(mounted("/tmp") && mounted("/run/berth"));
            let by_bus = name.ends_with("network-manager");
            assert_eq!(mounted("/run/dbus"), by_bus);
            assert_eq!(value("BERTH_HOST_KERNEL").is_some(), !by_bus);
            // The bus is where the host program looks for it.
            if let Some(bus) = value("DBUS_SYSTEM_BUS_ADDRESS") {
                assert_eq!(bus, "unix:path=/run/dbus/system_bus_socket");
            }
        }
    }
}

/// The file that names the node's boot outlives the pod: a pod that is replaced must know in which boot the last one was.
#[test]
fn berth_15_7_the_boot_is_noted_on_the_node() {
    let objects = build("vms", "");
    let pod = &find(&objects, "DaemonSet")["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let named = |list: &Value, name: &str| {
        let list = list.as_array().unwrap().iter();
        list.clone().find(|one| one["name"] == name).cloned()
    };
    assert_eq!(named(&container["env"], "VM_BOOT_FILE"), None);
    // Where the agent notes it, unless told otherwise: beside its database.
    let database = named(&container["env"], "BERTH_DATABASE").unwrap();
    let database = Path::new(database["value"].as_str().unwrap());
    let mounts = container["volumeMounts"].as_array().unwrap().iter();
    let mount = mounts.clone().find(|mount| {
        let path = mount["mountPath"].as_str().unwrap();
        database.parent().unwrap() == Path::new(path)
    });
    let mount = mount.expect("nothing is mounted at the database's directory");
    let volume = named(&pod["volumes"], mount["name"].as_str().unwrap()).unwrap();
    assert!(volume["hostPath"]["path"].is_string(), "{volume}");
    assert_ne!(mount["readOnly"], true);
}
