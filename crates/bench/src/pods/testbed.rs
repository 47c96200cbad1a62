//! Where the plugins run: a real cluster, `berth agent` processes, separate directories.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use berth_core::Address;
use berth_kube::Connect;
use berth_ledger::{SharedRecordLedger, SqliteLedger};
use berth_parts::Parts;
use berth_testkit::{Account, Agent, Cluster};
use berth_whereabouts::KubeLedger;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::plugin::{Added, Plugin, container};

/// The range of all plugins: 65,534 addresses.
pub const RANGE: &str = "10.1.0.0/16";

/// The cluster and the binaries that are measured.
pub struct Testbed {
    pub cluster: Cluster,
    parts: Parts,
    plugin: PathBuf,
    pub(super) berth: PathBuf,
}

/// A namespace with its own pools, and an account in it.
pub struct Home {
    pub account: Account,
    pub ledger: SharedRecordLedger,
}

/// A node with an agent, a process of its own.
pub struct Node {
    pub agent: Agent,
    dir: TempDir,
}

impl Testbed {
    pub async fn new() -> Result<Testbed> {
        let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target");
        let built = |path: &str| {
            let path = target.join(path);
            fs::canonicalize(&path).with_context(|| {
                format!(
                    "{} is not built: run `cargo xtask bench pods`",
                    path.display()
                )
            })
        };
        let cluster = Cluster::start().await?;
        for crd in berth_api::crds()? {
            cluster.apply_object(crd).await?;
        }
        Ok(Testbed {
            cluster,
            parts: Parts::find()?,
            plugin: built("x86_64-unknown-linux-musl/plugin/berth-cni")?,
            berth: built("release/berth")?,
        })
    }

    pub async fn home(&self) -> Result<Home> {
        let extra = json!([]);
        self.home_with(&extra).await
    }

    /// The same with more rights than an agent on plain ranges needs.
    pub async fn home_with(&self, extra: &Value) -> Result<Home> {
        let namespace = self.cluster.namespace("bench").await?;
        let mut rules = json!([
            {"apiGroups": ["whereabouts.cni.cncf.io"], "resources": ["*"], "verbs": ["*"]},
            {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["*"]},
        ]);
        if let (Some(rules), Some(extra)) = (rules.as_array_mut(), extra.as_array()) {
            rules.extend(extra.iter().cloned());
        }
        let account = self
            .cluster
            .service_account(&namespace, &format!("bench-{namespace}"), rules)
            .await?;
        let connect = Connect {
            kubeconfig: Some(account.kubeconfig().to_owned()),
            timeout: Duration::from_secs(60),
            ..Connect::default()
        };
        let ledger = Arc::new(KubeLedger::new(connect.open().await?));
        Ok(Home { account, ledger })
    }

    /// Starts `berth agent` and waits for its socket.
    pub async fn node(&self, name: &str) -> Result<Node> {
        self.node_with(name, None).await
    }

    /// The same with a token for the leader desk.
    pub async fn node_with(&self, name: &str, token: Option<&Path>) -> Result<Node> {
        let mut dir = tempfile::tempdir().context("make a node's directory")?;
        dir.disable_cleanup(std::env::var_os("BERTH_BENCH_KEEP").is_some());
        let agent = Agent::start(&self.berth, dir.path(), "berth", |command| {
            command
                .args(["--node", name, "--log-format", "json"])
                // The networks name their clusters.
                .env("BERTH_DEFINITION_PATHS", "/")
                // The pods of a benchmark are only names: a collector would find that they are gone.
                .env("BERTH_GARBAGE_GRACE", "86400");
            if let Some(log) = std::env::var_os("BERTH_LOG") {
                command.env("BERTH_LOG", log);
            }
            if let Some(token) = token {
                command.env("BERTH_DESK_TOKEN_FILE", token);
            }
        })?;
        Ok(Node { agent, dir })
    }

    /// Berth's plugin on a node's own pools.
    pub fn berth(&self, node: &Node) -> Plugin {
        Plugin {
            name: "berth",
            binary: self.plugin.clone(),
            environment: vec![("BERTH_SOCKET", node.socket().into())],
            ipam: json!({"type": "berth", "range": RANGE}),
        }
    }

    /// Berth's plugin on a cluster's pools.
    pub fn berth_in(&self, node: &Node, home: &Home) -> Plugin {
        self.berth(node).with("kubernetes", home.access())
    }

    /// whereabouts, a process by itself, with the flat file that it insists on.
    pub fn whereabouts(&self, home: &Home) -> Result<Plugin> {
        let path = self
            .cluster
            .dir()
            .join(format!("{}.conf", home.account.namespace));
        let flat = json!({"kubernetes": home.access(), "log_level": "error"});
        fs::write(&path, flat.to_string()).with_context(|| format!("write {}", path.display()))?;
        Ok(Plugin {
            name: "whereabouts",
            binary: self.parts.whereabouts(),
            environment: vec![("NODENAME", "node-0".into())],
            ipam: json!({"type": "whereabouts", "range": RANGE, "configuration_path": path}),
        })
    }

    pub fn host_local(&self, dir: &Path) -> Plugin {
        let ranges = json!([[{"subnet": RANGE}]]);
        Plugin {
            name: "host-local",
            binary: self.parts.cni_dir().join("host-local"),
            environment: Vec::new(),
            ipam: json!({"type": "host-local", "ranges": ranges, "dataDir": dir}),
        }
    }
}

impl Home {
    pub fn access(&self) -> Value {
        json!({"kubeconfig": self.account.kubeconfig()})
    }
}

impl Node {
    pub fn socket(&self) -> PathBuf {
        self.agent.socket.clone()
    }

    /// Its own pools, read next to the agent.
    pub fn ledger(&self) -> Result<SharedRecordLedger> {
        Ok(Arc::new(SqliteLedger::open(
            self.dir.path().join("berth.db"),
        )?))
    }

    /// Its resident memory, in MB.
    pub fn resident(&self) -> Result<f64> {
        let path = format!("/proc/{}/status", self.agent.process.pid()?);
        let status = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
        kib.map(|kib| kib * 1024.0 / 1e6)
            .with_context(|| format!("{path} has no VmRSS"))
    }
}

/// Fails unless exactly what was returned is recorded: nothing twice (I1), nothing lost (I2), nothing else.
pub async fn check(
    ledger: &SharedRecordLedger,
    who: &str,
    allocated: &[(String, Address)],
) -> Result<()> {
    let mut expected = BTreeMap::new();
    for (pod, address) in allocated {
        if let Some(other) = expected.insert(address.to_string(), container(pod)) {
            bail!("{who}: {address} was allocated to {pod} and to {other}");
        }
    }
    let recorded = recorded(ledger).await?;
    for (address, container) in &expected {
        match recorded.get(address) {
            Some(held) if held == container => {}
            held => bail!("{who}: {address} was answered to {container}, recorded is {held:?}"),
        }
    }
    let is_beside = |(address, _): &(&String, &String)| !expected.contains_key(*address);
    let beside: Vec<_> = recorded.iter().filter(is_beside).collect();
    if !beside.is_empty() {
        let (answered, all) = (expected.len(), recorded.len());
        bail!(
            "{who}: {answered} addresses were answered, {all} are recorded; no pod got {beside:?}"
        );
    }
    Ok(())
}

/// Fails unless what was returned to a pod is recorded for its container.
pub async fn borne_out(
    ledger: &SharedRecordLedger,
    plugin: &Plugin,
    pod: &str,
    added: &Added,
) -> Result<()> {
    let recorded = recorded(ledger).await?;
    let held_by = recorded.get(&added.address.to_string());
    if held_by != Some(&container(pod)) {
        bail!(
            "{}: {} was answered to {pod}, recorded is {held_by:?}",
            plugin.name,
            added.address
        );
    }
    Ok(())
}

/// Address and container of every record of every pool.
pub async fn recorded(ledger: &SharedRecordLedger) -> Result<BTreeMap<String, String>> {
    let mut all = BTreeMap::new();
    for pool in ledger.pools().await? {
        // An agent's journal and its list of slices are not pools of addresses.
        if pool.name.starts_with("node/") || pool.name.starts_with("slices/") {
            continue;
        }
        let snapshot = ledger.load(&pool).await?;
        let records = snapshot.pool.records();
        all.extend(
            records
                .map(|(address, record)| (address.to_string(), record.handle.as_str().to_owned())),
        );
    }
    Ok(all)
}
