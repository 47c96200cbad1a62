//! The node that all scenarios share, with Berth installed on it and its agent running.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use berth_testkit::{Account, Node, NodeOptions, Process, plugin_beside};
use tokio::sync::{Mutex, OnceCell, RwLock};

const BERTH: &str = env!("CARGO_BIN_EXE_berth");

/// Where Berth's objects are.
pub const HOME: &str = "kube-system";

pub struct Site {
    pub node: Node,
    /// Cuts ranges into slices; ends with the node.
    _controller: Process,
    agent: Mutex<Option<Process>>,
    /// How often an agent was started.
    starts: Mutex<usize>,
    /// Shared by scenarios that leave the node alone, held alone by those that do not.
    pub turn: RwLock<()>,
}

impl Site {
    /// Started by whoever asks first; ends with the test process.
    pub async fn shared() -> &'static Site {
        static SHARED: OnceCell<Site> = OnceCell::const_new();
        static TRIED: AtomicBool = AtomicBool::new(false);
        let start = async || {
            let again = TRIED.swap(true, Ordering::Relaxed);
            assert!(!again, "the node did not start: another test tells why");
            Site::start().await
        };
        SHARED.get_or_init(start).await
    }

    async fn start() -> Site {
        let plugin = plugin_beside(BERTH).unwrap();
        let node = Node::start(NodeOptions::default()).await.unwrap();
        let account = deploy(&node).await;
        install(&node, &account, &plugin).await;
        let site = Site {
            _controller: controller(&node).await,
            node,
            agent: Mutex::new(None),
            starts: Mutex::new(0),
            turn: RwLock::new(()),
        };
        site.start_agent().await;
        site
    }

    /// The flat file that `berth install` wrote; a node of a test has it at an unusual place.
    pub fn flat_file(&self) -> PathBuf {
        installed(&self.node, "whereabouts.conf")
    }

    /// Starts the agent, and returns when it takes calls.
    pub async fn start_agent(&self) {
        self.start_agent_with(&[]).await;
    }

    pub async fn start_agent_with(&self, flags: &[&str]) {
        let mut command = self.node.command(BERTH);
        command
            .args(["agent", "--node", self.node.name()])
            // However slow this machine is, what is published is looked at.
            .arg("--slice-publish-within=0")
            .arg("--kubeconfig")
            .arg(installed(&self.node, "whereabouts.kubeconfig"))
            .args(flags);
        let mut agent = self.node.process("agent", command).unwrap();
        // Agents before it wrote to the same log, and one that was killed leaves its socket behind.
        let serves = |log: &Path| {
            let text = fs::read_to_string(log).unwrap();
            text.matches("the agent serves").count()
        };
        let mut starts = self.starts.lock().await;
        *starts += 1;
        let begun = Instant::now();
        while serves(agent.log()) < *starts {
            let ended = agent.ended().unwrap();
            assert!(ended.is_none(), "{ended:?}: {}", agent.tail());
            let waited = begun.elapsed();
            assert!(
                waited < Duration::from_secs(60),
                "{waited:?}: {}",
                agent.tail()
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        *self.agent.lock().await = Some(agent);
    }

    /// kill -9.
    pub async fn kill_agent(&self) {
        let agent = self.agent.lock().await.take();
        agent.unwrap().kill().unwrap();
    }

    pub fn kubectl(&self, arguments: &[&str]) -> String {
        succeeded(self.node.kubectl(arguments).unwrap())
    }
}

/// What an administrator applies: the definitions, and the account that Berth acts as with its rights.
async fn deploy(node: &Node) -> Account {
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
    let crds = fs::read_dir(deploy.join("crds")).unwrap();
    let mut manifests: Vec<PathBuf> = crds.map(|entry| entry.unwrap().path()).collect();
    manifests.push(deploy.join("agent/rbac.yaml"));
    manifests.push(deploy.join("controller/rbac.yaml"));
    manifests.push(deploy.join("slices/rbac.yaml"));
    for manifest in manifests {
        let documents = fs::read_to_string(manifest).unwrap();
        node.cluster().apply(&documents).await.unwrap();
    }
    let account = node.cluster().agent(HOME, node.name()).await.unwrap();
    in_force(node, "berth-agent", "ippools").await;
    in_force(node, "berth-controller", "nodeslicepools").await;
    account
}

/// `berth controller`, with no more rights than its own account has.
async fn controller(node: &Node) -> Process {
    let account = node.cluster().account(HOME, "berth-controller");
    let account = account.await.unwrap();
    let mut command = node.command(BERTH);
    command
        .args(["controller", "--kubeconfig"])
        .arg(account.kubeconfig());
    node.process("controller", command).unwrap()
}

/// The API server's authorizer learns of a binding by watch.
async fn in_force(node: &Node, account: &str, kind: &str) {
    let account = format!("--as=system:serviceaccount:{HOME}:{account}");
    let kind = format!("{kind}.whereabouts.cni.cncf.io");
    let right = [
        "auth",
        "can-i",
        "create",
        &kind,
        "--namespace",
        HOME,
        &account,
    ];
    let begun = Instant::now();
    loop {
        let output = node.kubectl(&right).unwrap();
        if output.status.success() {
            return;
        }
        let waited = begun.elapsed();
        assert!(waited < Duration::from_secs(60), "{waited:?}: {output:?}");
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

/// `berth install`, with the service account's files as a kubelet mounts them.
async fn install(node: &Node, account: &Account, plugin: &Path) {
    let mount = node.dir().join("account");
    fs::create_dir(&mount).unwrap();
    let authority = authority(node).await;
    for (name, content) in [
        ("token", account.token()),
        ("ca.crt", &authority),
        ("namespace", HOME),
    ] {
        fs::write(mount.join(name), content).unwrap();
    }
    let mut command = node.command(BERTH);
    command
        .args(["install", "--once", "--host-root=/"])
        .arg("--cni-bin-dir")
        .arg(node.cni_bin_dir())
        .arg("--cni-conf-dir")
        .arg(node.cni_conf_dir())
        .arg("--token-file")
        .arg(mount.join("token"))
        .env("BERTH_PLUGIN", plugin)
        .env("NODENAME", node.name())
        .env("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        .env("KUBERNETES_SERVICE_PORT", node.cluster().port().to_string());
    succeeded(command.output().unwrap());
}

/// The cluster's CA, which the controller manager publishes a moment after it starts.
async fn authority(node: &Node) -> String {
    let path = "jsonpath={.data.ca\\.crt}";
    let begun = Instant::now();
    loop {
        let get = [
            "get",
            "configmap",
            "kube-root-ca.crt",
            "--namespace",
            HOME,
            "--output",
            path,
        ];
        let output = node.kubectl(&get).unwrap();
        if output.status.success() {
            return succeeded(output);
        }
        let waited = begun.elapsed();
        assert!(waited < Duration::from_secs(60), "{waited:?}: {output:?}");
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

fn installed(node: &Node, file: &str) -> PathBuf {
    node.cni_conf_dir().join("whereabouts.d").join(file)
}

fn succeeded(output: Output) -> String {
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{told}");
    String::from_utf8(output.stdout).unwrap()
}
