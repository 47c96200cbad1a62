//! A whole node, real from the API server to the pod's interfaces: kubelet, containerd, runc, Multus and the CNI
//! plugins, in its own sandbox.
//!
//! Guarantees: a test creates a pod and reads its addresses as an administrator would; all of it is gone when the node
//! is dropped, and when its process ends; manifests run unchanged, with the usual directories and the API server at its
//! service's address. Does not reach the machine's network, and has no kube-proxy for other services, and no DNS.

mod launch;
mod pods;
mod settings;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use berth_parts::Parts;
use k8s_openapi::api::core::v1::Node as NodeObject;
use kube::api::{Api, GetParams};
use parking_lot::Mutex;
use tokio::time::sleep;

use crate::cluster::{Cluster, Options, SERVICE, TIMEOUT};
use crate::control_plane::ControlPlane;
use crate::forward::Forward;
use crate::image;
use crate::process::Process;
use crate::sandbox::Sandbox;
use crate::scratch::Scratch;

/// How a node differs from the default.
#[derive(Debug, Clone, Default)]
pub struct NodeOptions {
    /// Its name [default: `node-1`, `node-2`].
    pub name: Option<String>,
    /// Environment of containerd, which every CNI plugin inherits, beyond NODENAME (always the node's name).
    pub env: Vec<(String, String)>,
    /// A cgroup for each pod, so that it may request resources (this kubelet, 1.36.4, crashes on them otherwise). Off
    /// by default: starting and stopping many pods takes several times as long with it.
    pub pod_cgroups: bool,
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
    /// The API server on loopback, and at the service's address as with kube-proxy.
    _forwards: [Forward; 2],
    sandbox: Sandbox,
    name: String,
    number: u8,
    pod_cgroups: bool,
    env: Vec<(String, String)>,
    plane: Arc<ControlPlane>,
    parts: Parts,
    // Last: its directory and cgroup are removed after everything in them.
    scratch: Scratch,
}

impl Node {
    /// The image that every node has: busybox, which does nothing until it is stopped.
    pub const IMAGE: &str = image::BUSYBOX;

    /// A first node, with its own control plane. Waits while another process of this machine has a node.
    pub async fn start(options: NodeOptions) -> Result<Node> {
        let plane = Arc::new(ControlPlane::start(options.cluster.clone()).await?);
        Node::on(plane, options).await
    }

    /// Another node of the same cluster, in another sandbox, on the same network.
    pub async fn join(&self, options: NodeOptions) -> Result<Node> {
        Node::on(self.plane.clone(), options).await
    }

    async fn on(plane: Arc<ControlPlane>, options: NodeOptions) -> Result<Node> {
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
        launch::plugins(&parts, &dir.join("cni/bin"))?;
        let multus = settings::multus(dir, &plane.multus_kubeconfig, number);
        launch::write(&dir.join("cni/net.d/00-multus.conf"), &multus.to_string())?;
        launch::write(&dir.join("containerd.toml"), &settings::containerd(dir))?;

        let sandbox = Sandbox::new(&cgroup, dir)?;
        plane.connect(number, sandbox.pid(), |arguments| sandbox.ip(arguments))?;
        let lan = plane.lan.path();
        let port = plane.cluster.port();
        let forward = Forward::new(Some(&sandbox.netns()), lan, port)?;
        sandbox.ip(&["addr", "add", &format!("{SERVICE}/32"), "dev", "lo"])?;
        let at = format!("{SERVICE}:443");
        let at = at.parse().context("the service's address")?;
        let service = Forward::service(&sandbox.netns(), at, lan, port)?;

        let mut env = vec![("NODENAME".to_owned(), name.clone())];
        env.extend(options.env);
        let mut containerd = launch::containerd(&parts, &sandbox, dir, &env)?;
        launch::await_containerd(&parts, dir, &mut containerd).await?;
        let archive = image::archive(&dir.join("image"))?;
        launch::import(&parts, dir, &archive)?;

        let kubelet = launch::kubelet(&plane, &sandbox, dir, &name, number, options.pod_cgroups)?;
        let node = Node {
            kubelet: Mutex::new(kubelet),
            containerd: Mutex::new(containerd),
            _forwards: [forward, service],
            sandbox,
            name,
            number,
            pod_cgroups: options.pod_cgroups,
            env,
            plane,
            parts,
            scratch,
        };
        node.ready().await?;
        Ok(node)
    }

    /// Returns when the kubelet has reported the node ready and answers the API server. Both: after a restart the
    /// report is still the previous kubelet's.
    async fn ready(&self) -> Result<()> {
        let client = self.cluster().client().await?;
        let started = Instant::now();
        let mut last = String::new();
        while started.elapsed() < TIMEOUT {
            for process in [&self.kubelet, &self.containerd] {
                let mut process = process.lock();
                if let Some(status) = process.ended()? {
                    bail!("ended with {status}; {}", process.tail());
                }
            }
            match self.probe(&client).await {
                Ok(()) => return Ok(()),
                Err(error) => last = format!("{error:#}"),
            }
            sleep(Duration::from_millis(200)).await;
        }
        bail!(
            "node {} is not ready after {} s ({last}); {}",
            self.name,
            TIMEOUT.as_secs(),
            self.kubelet.lock().tail()
        )
    }

    async fn probe(&self, client: &kube::Client) -> Result<()> {
        let health = kube::core::Request::new(format!("/api/v1/nodes/{}/proxy", self.name))
            .get("healthz", &GetParams::default())
            .context("make a request")?;
        client
            .request_text(health)
            .await
            .context("the kubelet does not answer")?;
        let node = Api::<NodeObject>::all(client.clone())
            .get(&self.name)
            .await
            .context("get the node")?;
        let ready = node
            .status
            .and_then(|status| status.conditions)
            .and_then(|list| {
                list.into_iter()
                    .find(|condition| condition.type_ == "Ready")
            })
            .context("the kubelet has not reported")?;
        if ready.status != "True" {
            bail!("{}", ready.message.unwrap_or_default());
        }
        Ok(())
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The node's cluster; create its clients in the test.
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

    /// Imports an image of the files below `root`, which pods can then run by `name`.
    pub fn add_image(&self, name: &str, root: &Path, command: &[&str]) -> Result<()> {
        let shop = tempfile::tempdir_in(self.dir()).context("create a directory for an image")?;
        symlink(root, shop.path().join("layer")).context("link the image's files")?;
        let archive = image::pack(shop.path(), &[name], command)?;
        launch::import(&self.parts, self.dir(), &archive)
    }

    /// The node's network namespace, seen from outside.
    pub fn netns(&self) -> PathBuf {
        self.sandbox.netns()
    }

    /// `ip ...` in the node's network namespace.
    pub fn ip(&self, arguments: &[&str]) -> Result<String> {
        self.sandbox.ip(arguments)
    }

    /// A command on the node, in all its namespaces; arguments and environment may follow. Run it to its end, or pass
    /// it to [`Node::process`]: started otherwise, it ends with the thread that started it.
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        self.sandbox.command(program)
    }

    /// kubectl as administrator, from outside.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<Output> {
        self.cluster().kubectl(arguments)
    }

    /// kill -9 and restart of containerd; its pods keep running.
    pub async fn restart_containerd(&self) -> Result<()> {
        let mut process = {
            let mut running = self.containerd.lock();
            running.kill()?;
            launch::containerd(&self.parts, &self.sandbox, self.dir(), &self.env)?
        };
        launch::await_containerd(&self.parts, self.dir(), &mut process).await?;
        *self.containerd.lock() = process;
        Ok(())
    }

    /// Starts a process on the node, in all its namespaces, such as the agent under test. It ends with the handle or
    /// the node; its output goes to `logs/<name>.log`.
    pub fn process(&self, name: &str, command: Command) -> Result<Process> {
        Process::entered(name, command, &self.dir().join("logs"))
    }

    /// Restarts the kubelet, killing it first if it runs; returns when the node is ready. It may take another moment
    /// until the new one knows its pods.
    pub async fn restart_kubelet(&self) -> Result<()> {
        {
            let mut process = self.kubelet.lock();
            process.kill()?;
            *process = launch::kubelet(
                &self.plane,
                &self.sandbox,
                self.dir(),
                &self.name,
                self.number,
                self.pod_cgroups,
            )?;
        }
        self.ready().await
    }

    /// kill -9 of the kubelet; the node is then lost to the cluster while its pods keep running.
    pub fn kill_kubelet(&self) -> Result<()> {
        self.kubelet.lock().kill()
    }
}
