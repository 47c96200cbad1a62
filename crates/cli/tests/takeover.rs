//! A live whereabouts cluster, taken over and given back: the manifests of deploy/ run as a daemon set on a whole node, in
//! an image made of what the Containerfile puts into it.

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

use berth_testkit::{Node, NodeOptions};
use serde_json::{Value, json};

const BERTH: &str = env!("CARGO_BIN_EXE_berth");
const HOME: &str = "kube-system";
const IMAGE: &str = "berth.test/berth";
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

    /// The pod's address on the network that is taken over.
    async fn start_pod(&self, name: &str) -> String {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": name, "namespace": self.namespace,
                "annotations": { "k8s.v1.cni.cncf.io/networks": "lan" },
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

    /// Offset and pod of every entry of the pool, as `kubectl get ippools` would show them.
    fn pool(&self) -> BTreeMap<String, String> {
        let get = [
            "get",
            "ippool",
            "192.0.2.0-24",
            "--namespace",
            HOME,
            "--output=json",
        ];
        let pool: Value = serde_json::from_str(&self.kubectl(&get)).unwrap();
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
    let module = concat!(env!("CARGO_MANIFEST_DIR"), "/../parts/go/whereabouts");
    let output = Command::new("go")
        .args([
            "mod",
            "download",
            "-json",
            "github.com/k8snetworkplumbingwg/whereabouts",
        ])
        .current_dir(module)
        .output()
        .unwrap();
    let answer: Value = serde_json::from_str(&succeeded(output)).unwrap();
    let manifests = Path::new(answer["Dir"].as_str().unwrap()).join("doc/crds");
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
    let conf = json!({ "kubernetes": { "kubeconfig": site.own("whereabouts.kubeconfig") } });
    fs::write(site.own("whereabouts.conf"), conf.to_string()).unwrap();
    let config = json!({
        "cniVersion": "1.0.0", "name": "lan", "type": "macvlan", "master": "eth0", "mode": "bridge",
        "ipam": {
            "type": "whereabouts", "range": RANGE, "configuration_path": site.own("whereabouts.conf"),
        },
    });
    let definition = json!({
        "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": { "name": "lan", "namespace": site.namespace },
        "spec": { "config": config.to_string() },
    });
    site.node.cluster().apply_object(definition).await.unwrap();
}

/// The two programs at the places that the Containerfile gives them, and the libraries that a build for tests needs.
fn image(node: &Node) {
    let built = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--package", "berth-plugin"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status();
    assert!(built.unwrap().success(), "the plugin does not build");
    let root = node.dir().join("berth-image");
    fs::create_dir(&root).unwrap();
    for name in ["berth", "berth-cni"] {
        fs::copy(Path::new(BERTH).with_file_name(name), root.join(name)).unwrap();
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
    node.add_image(&format!("{IMAGE}:1"), &root, &["/berth"])
        .unwrap();
}

/// A kustomization over deploy/agent: this node's directories, image and API server.
fn kustomization(site: &Site) -> PathBuf {
    let dir = site.node.dir().join("deploy");
    fs::create_dir(&dir).unwrap();
    let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/agent");
    let base = base.canonicalize().unwrap();
    let up = "../".repeat(dir.components().count() - 1);
    let (bin, conf) = (site.node.cni_bin_dir(), site.node.cni_conf_dir());
    let replace = |path: &str, value: &Path| json!({ "op": "replace", "path": format!("/spec/template/spec/{path}"), "value": value });
    let inside = |path: &Path| PathBuf::from(format!("/host{}", path.display()));
    let add = |path: &str, value: Value| json!({ "op": "add", "path": format!("/spec/template/spec/{path}/-"), "value": value });
    let mut patch = vec![
        replace("volumes/0/hostPath/path", &bin),
        replace("volumes/1/hostPath/path", &conf),
        replace("containers/1/volumeMounts/2/mountPath", &conf),
    ];
    for container in ["initContainers/0", "containers/0"] {
        let mount = |at: usize| format!("{container}/volumeMounts/{at}/mountPath");
        patch.push(replace(&mount(0), &inside(&bin)));
        patch.push(replace(&mount(1), &inside(&conf)));
        for (flag, dir) in [("bin", &bin), ("conf", &conf)] {
            let argument = format!("--cni-{flag}-dir={}", dir.display());
            patch.push(add(&format!("{container}/args"), json!(argument)));
        }
    }
    // There is no kube-proxy that would answer at the service's address.
    let port = site.node.cluster().port().to_string();
    for container in ["initContainers/0", "containers/0", "containers/1"] {
        // The test node has no cgroup per pod, and its kubelet (1.36.4) crashes on the resources of a pod without one.
        let resources = format!("/spec/template/spec/{container}/resources");
        patch.push(json!({ "op": "remove", "path": resources }));
        for (name, value) in [("HOST", "127.0.0.1"), ("PORT", &port)] {
            let variable = json!({ "name": format!("KUBERNETES_SERVICE_{name}"), "value": value });
            patch.push(add(&format!("{container}/env"), variable));
        }
    }
    let text = json!({
        "resources": [format!("{up}{}", base.strip_prefix("/").unwrap().display())],
        "images": [{ "name": "berth", "newName": IMAGE, "newTag": "1" }],
        "patches": [{ "target": { "kind": "DaemonSet" }, "patch": json!(patch).to_string() }],
    });
    fs::write(dir.join("kustomization.yaml"), text.to_string()).unwrap();
    dir
}

/// What the agent counted, at the address that the manifest gives it.
fn metrics(site: &Site) -> String {
    let mut command = site.node.command("busybox");
    command.args(["wget", "-q", "-O", "-", "http://127.0.0.1:9469/metrics"]);
    succeeded(command.output().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_live_whereabouts_cluster_is_taken_over_and_given_back() {
    let node = Node::start(NodeOptions::default()).await.unwrap();
    let namespace = node.cluster().namespace("pods").await.unwrap();
    let site = Site { node, namespace };
    whereabouts(&site).await;
    assert_eq!(site.start_pod("one").await, "192.0.2.1/24");
    let before = site.files();

    // Taken over.
    image(&site.node);
    let crds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/crds");
    site.kubectl(&["apply", "--filename", crds.to_str().unwrap()]);
    let manifests = kustomization(&site);
    let manifests = manifests.to_str().unwrap();
    site.kubectl(&["apply", "-k", manifests]);
    let rollout = |site: &Site| {
        let status = [
            "rollout",
            "status",
            "daemonset/berth-agent",
            "--namespace",
            HOME,
            "--timeout=180s",
        ];
        let output = site.node.kubectl(&status).unwrap();
        if !output.status.success() {
            let describe = ["describe", "pods", "--namespace", HOME];
            panic!("{output:?}\n{}", site.kubectl(&describe));
        }
    };
    rollout(&site);
    assert_eq!(site.pool(), entries(&[("1", "one")]));
    assert_eq!(site.start_pod("two").await, "192.0.2.2/24");
    let counted = metrics(&site);
    assert!(
        counted
            .lines()
            .any(|line| line.contains("ADD") && line.ends_with(" 1")),
        "{counted}"
    );
    // What whereabouts gave, Berth frees.
    site.stop_pod("one").await;
    assert_eq!(site.pool(), entries(&[("2", "two")]));
    assert_eq!(site.start_pod("three").await, "192.0.2.1/24");

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
    rollout(&site);
    site.kubectl(&["delete", "-k", manifests]);
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
