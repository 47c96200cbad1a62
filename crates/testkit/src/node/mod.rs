//! A whole node, real from the API server to the pod's interfaces: kubelet, containerd, runc, Multus and the
//! CNI plugins, in a capsule of its own.
//!
//! Promises: a test creates a pod and looks at its addresses as an administrator would; all of it is gone when the node
//! is dropped, and when its process dies. Does not reach the machine's network, and has no kube-proxy or DNS.

mod pods;
mod settings;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use berth_parts::Parts;
use k8s_openapi::api::core::v1::Node as NodeObject;
use kube::api::Api;
use tokio::time::sleep;

use crate::capsule::Capsule;
use crate::cluster::{Cluster, Options, PATIENCE};
use crate::forward::Forward;
use crate::image::{self, run};
use crate::plane::{self, Plane};
use crate::process::Process;
use crate::scratch::Scratch;
use settings::Serving;

/// How a node differs from the usual one.
#[derive(Debug, Clone, Default)]
pub struct NodeOptions {
    /// Its name; `node-1`, `node-2` unless told.
    pub name: Option<String>,
    /// Environment of containerd, which every CNI plugin inherits, beyond NODENAME (always the node's name).
    pub env: Vec<(String, String)>,
    /// Of the API server, for the first node.
    pub cluster: Options,
}

/// A running node, and the control plane that it shares with the nodes that joined it.
///
/// ```no_run
/// # async fn example() -> anyhow::Result<()> {
/// use berth_testkit::{Node, NodeOptions};
/// let node = Node::start(NodeOptions::default()).await?;
/// let namespace = node.cluster().namespace("pods").await?;
/// node.cluster()
///     .apply(&format!(
///         "apiVersion: v1
/// kind: Pod
/// metadata: {{ name: one, namespace: {namespace} }}
/// spec: {{ containers: [ {{ name: c, image: {} }} ] }}",
///         Node::IMAGE
///     ))
///     .await?;
/// node.wait_pod_running(&namespace, "one").await?;
/// let addresses = node.pod_addresses(&namespace, "one")?;
/// assert_eq!(addresses["eth0"].len(), 1);
/// let second = node.join(NodeOptions::default()).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Node {
    kubelet: Mutex<Process>,
    containerd: Mutex<Process>,
    _forward: Forward,
    capsule: Capsule,
    name: String,
    env: Vec<(String, String)>,
    plane: Arc<Plane>,
    parts: Parts,
    // Last: its directory and its cgroup go when all that lived in them is gone.
    scratch: Scratch,
}

impl Node {
    /// The image that every node has: busybox, which does nothing until it is stopped.
    pub const IMAGE: &str = image::BUSYBOX;

    /// A first node, with a control plane of its own.
    pub async fn start(options: NodeOptions) -> Result<Node> {
        let plane = Arc::new(Plane::start(options.cluster.clone()).await?);
        Node::on(plane, options).await
    }

    /// Another node of the same cluster, in another capsule, on the same wire.
    pub async fn join(&self, options: NodeOptions) -> Result<Node> {
        Node::on(self.plane.clone(), options).await
    }

    async fn on(plane: Arc<Plane>, options: NodeOptions) -> Result<Node> {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let parts = Parts::find()?;
        let number = plane.enrol();
        let name = options.name.unwrap_or_else(|| format!("node-{number}"));
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let cgroup = format!("berth-node-{}-{serial}", std::process::id());
        let scratch = Scratch::with_cgroup("node", &cgroup)?;
        let dir = scratch.path();
        for sub in ["logs", "cni/bin", "cni/net.d", "image", "kubelet"] {
            fs::create_dir_all(dir.join(sub)).with_context(|| format!("create {sub}"))?;
        }
        install_plugins(&parts, &dir.join("cni/bin"))?;
        let multus = settings::multus(dir, &plane.multus_kubeconfig, number);
        write(&dir.join("cni/net.d/00-multus.conf"), &multus.to_string())?;
        write(&dir.join("containerd.toml"), &settings::containerd(dir))?;

        let capsule = Capsule::new(&cgroup)?;
        plane.connect(number, capsule.pid(), |arguments| capsule.ip(arguments))?;
        let lan = plane.lan.path();
        let forward = Forward::new(Some(&capsule.netns()), lan, plane.cluster.port())?;

        let mut env = vec![("NODENAME".to_owned(), name.clone())];
        env.extend(options.env);
        let mut containerd = start_containerd(&parts, &capsule, dir, &env)?;
        await_containerd(&parts, dir, &mut containerd).await?;
        let archive = image::archive(&dir.join("image"))?;
        let mut import = ctr(&parts, dir);
        import
            .args(["images", "import", "--local", "--snapshotter", "native"])
            .arg(&archive);
        run(&mut import).context("import the test image")?;

        let kubelet = start_kubelet(&plane, &capsule, dir, &name, number)?;
        let node = Node {
            kubelet: Mutex::new(kubelet),
            containerd: Mutex::new(containerd),
            _forward: forward,
            capsule,
            name,
            env,
            plane,
            parts,
            scratch,
        };
        node.ready().await?;
        Ok(node)
    }

    /// Returns when the kubelet has reported the node ready.
    async fn ready(&self) -> Result<()> {
        let nodes: Api<NodeObject> = Api::all(self.cluster().client().await?);
        let begun = Instant::now();
        let mut last = "the node has not registered".to_owned();
        while begun.elapsed() < PATIENCE {
            for process in [&self.kubelet, &self.containerd] {
                let mut process = lock(process);
                if let Some(status) = process.ended()? {
                    bail!("ended with {status}; {}", process.tail());
                }
            }
            let found = nodes.get_opt(&self.name).await.context("get the node")?;
            let condition = found
                .and_then(|node| node.status)
                .and_then(|status| status.conditions)
                .and_then(|list| {
                    list.into_iter()
                        .find(|condition| condition.type_ == "Ready")
                });
            if let Some(condition) = condition {
                if condition.status == "True" {
                    return Ok(());
                }
                last = condition.message.unwrap_or_default();
            }
            sleep(Duration::from_millis(200)).await;
        }
        bail!(
            "node {} is not ready after {} s ({last}); {}",
            self.name,
            PATIENCE.as_secs(),
            lock(&self.kubelet).tail()
        )
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The cluster that the node is part of; clients of it are made in the test, as ever.
    pub fn cluster(&self) -> &Cluster {
        &self.plane.cluster
    }

    /// The node's scratch directory; `logs` in it has the parts' logs. The same path inside and outside.
    pub fn dir(&self) -> &Path {
        self.scratch.path()
    }

    /// Where containerd looks for plugins: put the plugin under test here.
    pub fn cni_bin_dir(&self) -> PathBuf {
        self.dir().join("cni/bin")
    }

    /// Where containerd looks for network configurations; Multus's is there.
    pub fn cni_conf_dir(&self) -> PathBuf {
        self.dir().join("cni/net.d")
    }

    pub fn containerd_socket(&self) -> PathBuf {
        self.dir().join("containerd.sock")
    }

    /// The node's network namespace, seen from outside.
    pub fn netns(&self) -> PathBuf {
        self.capsule.netns()
    }

    /// `ip ...` in the node's network namespace.
    pub fn ip(&self, arguments: &[&str]) -> Result<String> {
        self.capsule.ip(arguments)
    }

    /// A command on the node, in all its namespaces; arguments and environment may follow. What it starts ends with the node.
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        self.capsule.command(program)
    }

    /// kubectl as administrator, from outside.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<Output> {
        Command::new(self.parts.kubectl())
            .arg(format!(
                "--kubeconfig={}",
                self.cluster().kubeconfig().display()
            ))
            .args(arguments)
            .output()
            .context("run kubectl")
    }

    /// kill -9 and a new start of containerd; its pods go on running meanwhile.
    pub async fn restart_containerd(&self) -> Result<()> {
        let mut process = {
            let mut running = lock(&self.containerd);
            running.kill()?;
            start_containerd(&self.parts, &self.capsule, self.dir(), &self.env)?
        };
        await_containerd(&self.parts, self.dir(), &mut process).await?;
        *lock(&self.containerd) = process;
        Ok(())
    }

    /// kill -9 of the kubelet; the node is then lost to the cluster while its pods run on.
    pub fn kill_kubelet(&self) -> Result<()> {
        lock(&self.kubelet).kill()
    }
}

fn lock(process: &Mutex<Process>) -> MutexGuard<'_, Process> {
    process.lock().unwrap_or_else(PoisonError::into_inner)
}

fn write(path: &Path, content: &str) -> Result<()> {
    fs::write(path, content).with_context(|| format!("write {}", path.display()))
}

/// Links, so that a test can put others beside them.
fn install_plugins(parts: &Parts, bin: &Path) -> Result<()> {
    let mut plugins = vec![parts.multus(), parts.whereabouts()];
    let dir = parts.cni_dir();
    for entry in fs::read_dir(&dir).with_context(|| format!("read {}", dir.display()))? {
        plugins.push(entry.context("read the plugin directory")?.path());
    }
    for plugin in plugins {
        let name = plugin.file_name().context("a plugin without a name")?;
        symlink(&plugin, bin.join(name)).with_context(|| format!("link {}", plugin.display()))?;
    }
    Ok(())
}

fn ctr(parts: &Parts, dir: &Path) -> Command {
    let mut command = Command::new(parts.ctr());
    command
        .arg("--address")
        .arg(dir.join("containerd.sock"))
        .args(["--namespace", "k8s.io"]);
    command
}

fn start_containerd(
    parts: &Parts,
    capsule: &Capsule,
    dir: &Path,
    env: &[(String, String)],
) -> Result<Process> {
    let mut command = capsule.command(parts.containerd());
    let path = std::env::var("PATH").unwrap_or_default();
    command
        .arg("--config")
        .arg(dir.join("containerd.toml"))
        // containerd finds its shim, and the shim finds runc, on the PATH.
        .env(
            "PATH",
            format!(
                "{}:{path}:/usr/sbin:/sbin",
                parts.containerd_dir().display()
            ),
        )
        .envs(env.iter().map(|(name, value)| (name, value)));
    Process::entered("containerd", command, &dir.join("logs"))
}

async fn await_containerd(parts: &Parts, dir: &Path, process: &mut Process) -> Result<()> {
    let begun = Instant::now();
    loop {
        if let Some(status) = process.ended()? {
            bail!("containerd ended with {status}; {}", process.tail());
        }
        let mut version = ctr(parts, dir);
        version.args(["--connect-timeout", "2s", "version"]);
        match run(&mut version) {
            Ok(_) => return Ok(()),
            Err(error) if begun.elapsed() > PATIENCE => {
                return Err(error.context(format!("wait for containerd; {}", process.tail())));
            }
            Err(_) => sleep(Duration::from_millis(200)).await,
        }
    }
}

fn start_kubelet(
    plane: &Plane,
    capsule: &Capsule,
    dir: &Path,
    name: &str,
    number: u8,
) -> Result<Process> {
    let cluster = &plane.cluster;
    let address = plane::address(number);
    let kubeconfig = cluster.user_kubeconfig(
        &format!("kubelet-{name}"),
        &format!("system:node:{name}"),
        Some("system:nodes"),
    )?;
    let serving = cluster
        .authority
        .server(&format!("serving-{name}"), &[&address])?;
    let authority = cluster.authority.file();
    let config = settings::kubelet(
        dir,
        &Serving {
            authority: &authority,
            certificate: &serving.certificate_file,
            key: &serving.key_file,
        },
    );
    write(&dir.join("kubelet.json"), &config.to_string())?;
    let mut command = capsule.command(cluster.parts.kubelet());
    command
        .arg(format!("--config={}", dir.join("kubelet.json").display()))
        .arg(format!("--kubeconfig={}", kubeconfig.display()))
        .arg(format!("--root-dir={}", dir.join("kubelet").display()))
        .arg(format!("--cert-dir={}", dir.join("kubelet/pki").display()))
        .arg(format!("--hostname-override={name}"))
        .arg(format!("--node-ip={address}"));
    Process::entered("kubelet", command, &dir.join("logs"))
}
