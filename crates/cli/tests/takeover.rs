//! A live whereabouts cluster, taken over and given back: the manifests of deploy/, not a letter of them changed, run as
//! pods on a whole node, from an image made of what the Containerfile puts into it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use berth_testkit::{Node, NodeOptions, Whereabouts, plugin_beside};
use serde_json::{Value, json};

const BERTH: &str = env!("CARGO_BIN_EXE_berth");
const HOME: &str = "kube-system";
/// What `berth:0.1.0` of the manifests means to a container runtime.
const IMAGE: &str = "docker.io/library/berth:0.1.0";
const RANGE: &str = "192.0.2.0/24";

fn succeeded(output: Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

struct Site {
    node: Node,
    namespace: String,
}

impl Site {
    fn kubectl(&self, arguments: &[&str]) -> String {
        succeeded(self.node.kubectl(arguments).unwrap())
    }

    fn own(&self, file: &str) -> PathBuf {
        self.node.cni_conf_dir().join("whereabouts.d").join(file)
    }

    /// A macvlan network on the node's wire. It names no flat file: the one at the usual place counts.
    async fn network(&self, name: &str, mut ipam: Value) {
        ipam["type"] = json!("whereabouts");
        let config = json!({
            "cniVersion": "1.0.0", "name": name, "type": "macvlan", "master": "eth0", "mode": "bridge", "ipam": ipam,
        });
        let definition = json!({
            "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
            "metadata": { "name": name, "namespace": self.namespace },
            "spec": { "config": config.to_string() },
        });
        self.node.cluster().apply_object(definition).await.unwrap();
    }

    /// The pod's address on the network that is taken over.
    async fn start_pod(&self, name: &str) -> String {
        self.start_pod_on(name, "lan").await
    }

    async fn start_pod_on(&self, name: &str, network: &str) -> String {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": name, "namespace": self.namespace,
                "annotations": { "k8s.v1.cni.cncf.io/networks": network },
            },
            "spec": {
                "terminationGracePeriodSeconds": 1,
                "containers": [{ "name": "c", "image": Node::IMAGE }],
            },
        });
        self.node.cluster().apply_object(pod).await.unwrap();
        self.node
            .wait_pod_running(&self.namespace, name)
            .await
            .unwrap();
        let addresses = self.node.pod_addresses(&self.namespace, name).unwrap();
        addresses["net1"][0].clone()
    }

    async fn stop_pod(&self, name: &str) {
        self.kubectl(&["delete", "pod", "--namespace", &self.namespace, name]);
        let gone = self.node.wait_pod_gone(&self.namespace, name);
        gone.await.unwrap();
    }

    fn object(&self, kind: &str, name: &str) -> Option<Value> {
        let get = [
            "get",
            kind,
            name,
            "--namespace",
            HOME,
            "--output=json",
            "--ignore-not-found",
        ];
        serde_json::from_str(&self.kubectl(&get)).ok()
    }

    /// Offset and pod of every entry of the pool that is taken over.
    fn pool(&self) -> BTreeMap<String, String> {
        self.entries("192.0.2.0-24")
    }

    /// Offset and pod of every entry of a pool, as `kubectl get ippools` would show them.
    fn entries(&self, pool: &str) -> BTreeMap<String, String> {
        let Some(pool) = self.object("ippool", pool) else {
            return BTreeMap::new();
        };
        let entries = pool["spec"]["allocations"].as_object().unwrap().iter();
        entries
            .map(|(offset, entry)| {
                let pod = entry["podref"]
                    .as_str()
                    .unwrap()
                    .rsplit('/')
                    .next()
                    .unwrap();
                (offset.clone(), pod.to_owned())
            })
            .collect()
    }

    fn files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut files = BTreeMap::new();
        for dir in [
            self.node.cni_bin_dir(),
            self.node.cni_conf_dir().join("whereabouts.d"),
        ] {
            for entry in fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                let content = match fs::read_link(&path) {
                    Ok(link) => Ok(link.into_os_string().into_encoded_bytes()),
                    Err(_) => fs::read(&path),
                };
                // Gone since it was listed: a removal is under way.
                let Ok(content) = content else { continue };
                files.insert(path, content);
            }
        }
        files
    }
}

fn entries(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let owned = |(offset, pod): &(&str, &str)| ((*offset).to_owned(), (*pod).to_owned());
    pairs.iter().map(owned).collect()
}

/// whereabouts as its own manifests and its own installer leave it; the plugin is there already.
async fn whereabouts(site: &Site) {
    let manifests = Whereabouts::sources().unwrap().join("doc/crds");
    for entry in fs::read_dir(manifests).unwrap() {
        let text = fs::read_to_string(entry.unwrap().path()).unwrap();
        let objects: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
        for object in objects.into_iter().filter(|object| !object.is_null()) {
            // No registry is asked for its image.
            if object["kind"] != "DaemonSet" && object["kind"] != "Deployment" {
                site.node.cluster().apply_object(object).await.unwrap();
            }
        }
    }
    let account = site
        .node
        .cluster()
        .account(HOME, "whereabouts")
        .await
        .unwrap();
    fs::create_dir(site.own("")).unwrap();
    fs::copy(account.kubeconfig(), site.own("whereabouts.kubeconfig")).unwrap();
    let kubeconfig = "/etc/cni/net.d/whereabouts.d/whereabouts.kubeconfig";
    let conf = json!({ "kubernetes": { "kubeconfig": kubeconfig } });
    fs::write(site.own("whereabouts.conf"), conf.to_string()).unwrap();
    site.network("lan", json!({ "range": RANGE })).await;
}

/// The two programs at the places that the Containerfile gives them, and the libraries that a build for tests needs.
fn image(node: &Node) {
    plugin_beside(BERTH).unwrap();
    let root = node.dir().join("berth-image");
    fs::create_dir(&root).unwrap();
    for name in ["berth", "berth-cni"] {
        // Half of its size: every container of the pods has a copy of it.
        let mut strip = Command::new("strip");
        strip.arg("-o").arg(root.join(name));
        strip.arg(Path::new(BERTH).with_file_name(name));
        succeeded(strip.output().unwrap());
    }
    let libraries = succeeded(Command::new("ldd").arg(BERTH).output().unwrap());
    for word in libraries
        .split_whitespace()
        .filter(|word| word.starts_with('/'))
    {
        let to = root.join(word.trim_start_matches('/'));
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(word, to).unwrap();
    }
    node.add_image(IMAGE, &root, &["/berth"]).unwrap();
}

/// What the agent counted, at the address that the manifest gives it.
fn metrics(site: &Site) -> String {
    let mut command = site.node.command("busybox");
    command.args(["wget", "-q", "-O", "-", "http://127.0.0.1:9469/metrics"]);
    succeeded(command.output().unwrap())
}

/// A network that the controller's pods cut and the agent's pod gives from.
async fn slices(site: &Site) {
    let ipam = json!({ "range": "198.51.100.0/24", "node_slice_size": "/26" });
    site.network("sliced", ipam).await;
    until("the node has a slice", || {
        let pool = site.object("nodeslicepool", "sliced")?;
        let rows = pool["status"]["allocations"].as_array()?.iter();
        let mut ours = rows.filter(|row| row["nodeName"] == site.node.name());
        ours.next().map(drop)
    })
    .await;
    let given = site.start_pod_on("sliced", "sliced").await;
    assert_eq!(given, "198.51.100.1/24");
    let pool = format!("{}-198.51.100.0-26", site.node.name());
    until("the slice is published", || {
        (site.entries(&pool) == entries(&[("1", "sliced")])).then_some(())
    })
    .await;
    site.stop_pod("sliced").await;
    until("the slice is empty", || {
        site.entries(&pool).is_empty().then_some(())
    })
    .await;
}

/// Every pod of a set is ready: its probes say so.
fn rolled_out(site: &Site, what: &str) {
    let status = [
        "rollout",
        "status",
        what,
        "--namespace",
        HOME,
        "--timeout=180s",
    ];
    let output = site.node.kubectl(&status).unwrap();
    if !output.status.success() {
        let describe = ["describe", "pods", "--namespace", HOME];
        panic!("{output:?}\n{}", site.kubectl(&describe));
    }
}

/// Waits until `look` finds something.
async fn until<T>(what: &str, look: impl Fn() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        let waited = begun.elapsed();
        assert!(
            waited < Duration::from_secs(120),
            "{what}: not after {waited:?}"
        );
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_live_whereabouts_cluster_is_taken_over_and_given_back() {
    let options = NodeOptions {
        pod_cgroups: true,
        ..NodeOptions::default()
    };
    let node = Node::start(options).await.unwrap();
    let namespace = node.cluster().namespace("pods").await.unwrap();
    let site = Site { node, namespace };
    whereabouts(&site).await;
    assert_eq!(site.start_pod("one").await, "192.0.2.1/24");
    let before = site.files();

    // Taken over.
    image(&site.node);
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
    let parts = ["crds", "agent", "controller", "slices"];
    let [crds, agent, controller, slices_] = parts.map(|part| deploy.join(part));
    site.kubectl(&["apply", "--filename", crds.to_str().unwrap()]);
    for part in [&agent, &controller, &slices_] {
        site.kubectl(&["apply", "-k", part.to_str().unwrap()]);
    }
    rolled_out(&site, "daemonset/berth-agent");
    rolled_out(&site, "deployment/berth-controller");
    until("a controller leads", || {
        let lease = site.object("lease", "berth-controller")?;
        let holder = lease["spec"]["holderIdentity"].as_str()?;
        (!holder.is_empty()).then_some(())
    })
    .await;
    assert_eq!(site.pool(), entries(&[("1", "one")]));
    assert_eq!(site.start_pod("two").await, "192.0.2.2/24");
    let counted = metrics(&site);
    assert!(
        counted
            .lines()
            .any(|line| line.contains("ADD") && line.ends_with(" 1")),
        "{counted}"
    );
    slices(&site).await;
    // What whereabouts gave, Berth frees.
    site.stop_pod("one").await;
    assert_eq!(site.pool(), entries(&[("2", "two")]));
    assert_eq!(site.start_pod("three").await, "192.0.2.1/24");
    // The agent's token is good at the leader's desk, over TLS from the host's network to a pod's.
    let counted = metrics(&site);
    let common = r#"berth_desk_common_total{pool="192.0.2.0-24"} "#;
    let answered = counted.lines().find_map(|line| line.strip_prefix(common));
    assert_ne!(answered, Some("0"), "{counted}");
    assert!(answered.is_some(), "{counted}");

    // Given back.
    let flag = [
        "set",
        "env",
        "daemonset/berth-agent",
        "--namespace",
        HOME,
        "--containers=install",
        "BERTH_REMOVE_ON_EXIT=true",
    ];
    site.kubectl(&flag);
    rolled_out(&site, "daemonset/berth-agent");
    for part in [&controller, &agent] {
        site.kubectl(&["delete", "-k", part.to_str().unwrap()]);
    }
    let begun = Instant::now();
    while site.files() != before {
        let now: Vec<PathBuf> = site.files().into_keys().collect();
        assert!(begun.elapsed() < Duration::from_secs(120), "{now:?}");
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    assert_eq!(site.pool(), entries(&[("1", "three"), ("2", "two")]));
    assert_eq!(site.start_pod("four").await, "192.0.2.3/24");
    // What Berth gave, whereabouts frees.
    site.stop_pod("two").await;
    assert_eq!(site.pool(), entries(&[("1", "three"), ("3", "four")]));
}
