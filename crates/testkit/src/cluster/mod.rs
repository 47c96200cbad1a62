//! A real etcd and kube-apiserver on loopback: started, waited for, killed, paused, restarted, always stopped.
//!
//! There is no controller manager here unless a test starts its garbage collector ([`Cluster::garbage_collector`]): a
//! deleted namespace stays in Terminating, and so the admission of service accounts is off (pods need none). A whole
//! [`crate::Node`] has all that.

mod launch;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use berth_parts::Parts;
use kube::api::GetParams;
use parking_lot::Mutex;
use tokio::sync::OnceCell;
use tokio::time::sleep;

use crate::forward::Forward;
use crate::kubeconfig::{self, Credential};
use crate::pki::Authority;
use crate::ports;
use crate::process::Process;
use crate::scratch::Scratch;
use launch::Plan;

/// Generous: other builds and clusters may run on the same two cores.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(120);

/// The address of the service `kubernetes`: the first of the services' range.
pub(crate) const SERVICE: &str = "10.96.0.1";

/// The processes that a test may kill or pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    Etcd,
    ApiServer,
}

/// How a cluster differs from the default.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Further arguments of kube-apiserver, such as `--max-requests-inflight=10`.
    pub apiserver_args: Vec<String>,
    /// Feature gates of kube-apiserver.
    pub feature_gates: Vec<(String, bool)>,
    /// etcd without fsync: faster, and nothing is durable. For tests that measure neither.
    pub unsafe_no_fsync: bool,
    /// Pods need a service account, as in a real cluster; something must then create the `default` ones.
    pub service_account_admission: bool,
    /// A network namespace to run in, on its loopback. The API server is then at the same port of the
    /// test's own loopback too.
    pub netns: Option<PathBuf>,
}

/// A running etcd and API server.
pub struct Cluster {
    etcd: Mutex<Process>,
    apiserver: Mutex<Process>,
    pub(crate) authority: Authority,
    pub(crate) parts: Parts,
    options: Options,
    plan: Plan,
    counter: AtomicU32,
    /// Set once the policies on agents are in force: whether those that ship with the controller are among them.
    pub(crate) policed: OnceCell<bool>,
    _forward: Option<Forward>,
    // Last: the directory is removed after the processes that write to it.
    scratch: Scratch,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster")
            .field("url", &self.url())
            .field("scratch", &self.scratch.path())
            .finish_non_exhaustive()
    }
}

impl Cluster {
    /// The cluster that all tests of this process share. The first caller starts it, and it ends with the process.
    ///
    /// # Panics
    /// If it can't start: no test works without it.
    #[allow(clippy::panic)]
    pub async fn shared() -> &'static Cluster {
        static SHARED: OnceCell<Cluster> = OnceCell::const_new();
        match SHARED.get_or_try_init(Cluster::start).await {
            Ok(cluster) => cluster,
            Err(error) => panic!("the shared test cluster did not start: {error:?}"),
        }
    }

    /// A separate cluster for the caller, stopped on drop.
    pub async fn start() -> Result<Cluster> {
        Cluster::start_with(Options::default()).await
    }

    pub async fn start_with(options: Options) -> Result<Cluster> {
        let parts = Parts::find()?;
        let mut attempt = 1;
        loop {
            match Cluster::attempt(parts.clone(), options.clone()).await {
                // A free port may be taken by another process meanwhile.
                Err(error)
                    if attempt < 3 && format!("{error:?}").contains("address already in use") =>
                {
                    attempt += 1;
                }
                outcome => return outcome,
            }
        }
    }

    async fn attempt(parts: Parts, options: Options) -> Result<Cluster> {
        let scratch = Scratch::new("cluster")?;
        let dir = scratch.path();
        std::fs::create_dir_all(dir.join("logs")).context("create the log directory")?;
        let authority = Authority::new(&dir.join("pki"))?;
        let [etcd_port, peer_port, free_port] = ports::free()?;
        let forward = match &options.netns {
            Some(netns) => Some(Forward::new(None, netns, 0)?),
            None => None,
        };
        let server = authority.server(
            "server",
            &["127.0.0.1", "localhost", "kubernetes.default.svc", SERVICE],
        )?;
        let kubelet_client = authority.client(
            "kubelet-client",
            "kube-apiserver-kubelet-client",
            Some("system:masters"),
        )?;
        let (token_key, token_public) = authority.token_keys()?;
        let plan = Plan {
            etcd_port,
            peer_port,
            port: forward.as_ref().map_or(free_port, Forward::port),
            server,
            kubelet_client,
            token_key,
            token_public,
        };
        let admin = authority.client("admin", "berth-admin", Some("system:masters"))?;
        kubeconfig::write(
            &dir.join("admin.kubeconfig"),
            &format!("https://127.0.0.1:{}", plan.port),
            &authority.pem(),
            Credential::Certificate(&admin),
            "default",
        )?;
        let etcd = launch::etcd(&parts, &options, &plan, &authority, dir)?;
        let apiserver = launch::apiserver(&parts, &options, &plan, &authority, dir)?;
        let cluster = Cluster {
            etcd: Mutex::new(etcd),
            apiserver: Mutex::new(apiserver),
            authority,
            parts,
            options,
            plan,
            counter: AtomicU32::new(0),
            policed: OnceCell::new(),
            _forward: forward,
            scratch,
        };
        cluster.ready().await?;
        Ok(cluster)
    }

    /// Returns when the API server answers readyz and has created its first namespaces; fails with the tail of a log if
    /// a part has ended or the time is over.
    pub async fn ready(&self) -> Result<()> {
        let started = Instant::now();
        let client = self.client().await?;
        let mut last = String::new();
        while started.elapsed() < TIMEOUT {
            for process in [&self.etcd, &self.apiserver] {
                let mut process = process.lock();
                if let Some(status) = process.ended()? {
                    bail!("ended with {status}; {}", process.tail());
                }
            }
            match probe(&client).await {
                Ok(()) => return Ok(()),
                Err(error) => last = format!("{error:#}"),
            }
            sleep(Duration::from_millis(100)).await;
        }
        bail!(
            "the API server is not ready after {} s ({last}); {}",
            TIMEOUT.as_secs(),
            self.lock(Part::ApiServer).tail()
        )
    }

    /// An administrator's client, on the current runtime.
    pub async fn client(&self) -> Result<kube::Client> {
        kubeconfig::client(&self.kubeconfig()).await
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.dir().join("admin.kubeconfig")
    }

    /// kubectl as administrator.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<Output> {
        Command::new(self.parts.kubectl())
            .arg(format!("--kubeconfig={}", self.kubeconfig().display()))
            .args(arguments)
            .output()
            .context("run kubectl")
    }

    /// The program that [`Cluster::kubectl`] runs.
    pub fn kubectl_file(&self) -> PathBuf {
        self.parts.kubectl()
    }

    /// The URL of the API server.
    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.plan.port)
    }

    pub fn port(&self) -> u16 {
        self.plan.port
    }

    /// The cluster's scratch directory; `logs` in it has the parts' logs.
    pub fn dir(&self) -> &Path {
        self.scratch.path()
    }

    /// kill -9. The part is gone when this returns, its data and ports are kept for [`Cluster::restart`].
    pub fn kill(&self, part: Part) -> Result<()> {
        self.lock(part).kill()
    }

    /// SIGSTOP: connections stay open and nothing answers.
    pub fn pause(&self, part: Part) -> Result<()> {
        self.lock(part).pause()
    }

    /// SIGCONT.
    pub fn resume(&self, part: Part) -> Result<()> {
        self.lock(part).resume()
    }

    /// Starts the part again, with the same ports and data, killing it first if it runs; returns when the cluster is
    /// ready, so the other part must run.
    pub async fn restart(&self, part: Part) -> Result<()> {
        self.start_again(part)?;
        self.ready().await
    }

    fn start_again(&self, part: Part) -> Result<()> {
        let mut process = self.lock(part);
        process.kill()?;
        let start = match part {
            Part::Etcd => launch::etcd,
            Part::ApiServer => launch::apiserver,
        };
        *process = start(
            &self.parts,
            &self.options,
            &self.plan,
            &self.authority,
            self.dir(),
        )?;
        Ok(())
    }

    /// Copies etcd's data as they are now to `to`. etcd is killed and started again for that.
    pub async fn back_up(&self, to: &Path) -> Result<()> {
        self.kill(Part::Etcd)?;
        copy_tree(&self.dir().join("etcd"), to).context("copy etcd's data")?;
        self.restart(Part::Etcd).await
    }

    /// Puts such a copy back while neither etcd nor the API server run.
    pub async fn restore(&self, from: &Path) -> Result<()> {
        self.kill(Part::ApiServer)?;
        self.kill(Part::Etcd)?;
        let data = self.dir().join("etcd");
        std::fs::remove_dir_all(&data).context("remove etcd's data")?;
        copy_tree(from, &data).context("copy etcd's data back")?;
        self.start_again(Part::Etcd)?;
        self.start_again(Part::ApiServer)?;
        self.ready().await
    }

    /// The key that signs service-account tokens, and the CA's certificate.
    pub(crate) fn signing_files(&self) -> (PathBuf, PathBuf) {
        (self.plan.token_key.clone(), self.authority.file())
    }

    pub(crate) fn netns(&self) -> Option<&Path> {
        self.options.netns.as_deref()
    }

    /// Whether pods need a service account here.
    pub(crate) fn admits_accounts(&self) -> bool {
        self.options.service_account_admission
    }

    pub(crate) fn serial(&self) -> u32 {
        self.counter.fetch_add(1, Ordering::Relaxed)
    }

    fn lock(&self, part: Part) -> parking_lot::MutexGuard<'_, Process> {
        let process = match part {
            Part::Etcd => &self.etcd,
            Part::ApiServer => &self.apiserver,
        };
        process.lock()
    }
}

async fn probe(client: &kube::Client) -> Result<()> {
    for (path, name) in [
        ("", "readyz"),
        ("/api/v1/namespaces", "default"),
        ("/api/v1/namespaces", "kube-system"),
    ] {
        let request = kube::core::Request::new(path)
            .get(name, &GetParams::default())
            .context("make a request")?;
        // A paused server takes connections and never answers.
        tokio::time::timeout(Duration::from_secs(5), client.request_text(request))
            .await
            .with_context(|| format!("no answer for {path}/{name}"))?
            .with_context(|| format!("{path}/{name}"))?;
    }
    Ok(())
}

fn copy_tree(from: &Path, to: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::create_dir_all(to)?;
    std::fs::set_permissions(to, std::fs::Permissions::from_mode(0o700))?;
    for entry in std::fs::read_dir(from)? {
        let (entry, here) = entry.map(|entry| (entry.path(), to.join(entry.file_name())))?;
        match entry.is_dir() {
            true => copy_tree(&entry, &here)?,
            false => std::fs::copy(&entry, &here).map(drop)?,
        }
    }
    Ok(())
}
