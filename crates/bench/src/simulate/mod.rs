//! Thousands of agents in one process against a real API server: claimed slices, no overlap checks, every answer
//! checked against the API server's own objects.
//!
//! Each node is the engine of `berth agent` ([`node`]); its pods are attached to all networks one after the other, as
//! Multus does it. Nodes share here what they would not in a cluster: two cores, the connections to the API server, and
//! a file system in memory for their SQLite files.

mod adds;
mod baseline;
mod node;
mod peer;
mod proof;
mod server;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use berth_api::whereabouts::IPPool;
use berth_kube::Connect;
use berth_slices::SliceSettings;
use berth_testkit::Cluster;
use clap::Args;
use k8s_openapi::api::core::v1::Node as NodeObject;
use kube::api::{ListParams, PostParams};
use kube::{Api, Client};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::figure::{Figure, Target};
use crate::parallel;
use crate::pods::testbed::Testbed;
use adds::{Outcome, PAUSE, TRIES};
use node::{Machine, Network, Node};

#[derive(Args, Debug)]
pub struct Simulate {
    #[arg(long, default_value_t = 5_000)]
    nodes: usize,
    #[arg(long, default_value_t = 10)]
    networks: usize,
    /// Pods of each node; each is attached to every network.
    #[arg(long, default_value_t = 1)]
    pods: usize,
    /// Milliseconds between two pods of a node.
    #[arg(long, default_value_t = 0)]
    pause_ms: u64,
    /// The length of every network's range.
    #[arg(long, default_value_t = 12)]
    length: u8,
    /// Nodes that start pods at the same time: a scheduler binds some hundred pods a second.
    #[arg(long, default_value_t = 200)]
    at_once: usize,
    /// Claims that a client which does nothing else makes first: the API server's limit.
    #[arg(long, default_value_t = 5_000)]
    bare: usize,
    /// Nodes of whereabouts that do the same afterwards on the same API server.
    #[arg(long, default_value_t = 0)]
    whereabouts: usize,
}

const RATE: &str = "answers a second";
/// Concurrent requests of the setup, outside the engine.
const HANDS: usize = 32;
/// Two for a SQLite file, one for the watch of its notifications.
const FILES_A_NODE: u64 = 3;

impl Simulate {
    pub async fn run(&self) -> Result<Vec<Figure>> {
        allow_files(FILES_A_NODE * self.nodes as u64 + 2 * self.at_once as u64 + 1_000)?;
        if self.whereabouts > 0 {
            let testbed = Testbed::new().await?;
            let mut figures = self.simulate(&testbed.cluster).await?;
            let rate = figures.iter().find(|figure| figure.what == RATE);
            let rate = rate.map_or(0.0, |figure| figure.value);
            figures
                .extend(peer::run(&testbed, self.whereabouts, &self.all_networks()?, rate).await?);
            return Ok(figures);
        }
        let cluster = Cluster::start().await?;
        for crd in berth_api::crds()? {
            cluster.apply_object(crd).await?;
        }
        self.simulate(&cluster).await
    }

    async fn simulate(&self, cluster: &Cluster) -> Result<Vec<Figure>> {
        let admin = cluster.client().await?;
        self.make_nodes(&admin).await?;
        let bare = baseline::rate(cluster, self.bare, self.at_once).await?;
        let namespace = cluster.namespace("sim").await?;
        let rules = json!([
            {"apiGroups": ["whereabouts.cni.cncf.io", "berth.dev"], "resources": ["*"], "verbs": ["*"]},
            {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["*"]},
            {"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["get", "list", "watch"]},
        ]);
        let account = cluster.service_account(&namespace, "agents", rules).await?;
        served(&admin, &namespace).await?;
        let connect = Connect {
            kubeconfig: Some(account.kubeconfig().to_owned()),
            ..Connect::default()
        };
        let machine = Machine {
            connection: connect.open().await?,
            settings: SliceSettings::default(),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        };
        let dir = memory_dir()?;
        let before = server::writes(&admin).await?;
        let started = Instant::now();
        let nodes = self.start(&machine, dir.path()).await?;
        let start = started.elapsed();
        let outcome = self.add_all(&nodes).await?;
        let published = self.until_published(&nodes).await?;
        let writes = server::writes(&admin).await? - before;
        let verdict = proof::examine(&admin, &namespace, &outcome.allocated).await?;
        machine.stop.cancel();
        machine.tasks.close();
        let _ = tokio::time::timeout(Duration::from_secs(30), machine.tasks.wait()).await;
        if verdict.faults() > 0 {
            bail!("the API server's objects do not bear out the answers: {verdict:?}");
        }
        let mut figures = self.figures(&outcome, &verdict, start, published, writes);
        figures.extend(bare);
        Ok(figures)
    }

    fn figures(
        &self,
        outcome: &Outcome,
        verdict: &proof::Verdict,
        start: Duration,
        published: Duration,
        writes: f64,
    ) -> Vec<Figure> {
        let asked = self.nodes * self.networks * self.pods;
        let answered = outcome.allocated.len();
        let seconds = outcome.elapsed.as_secs_f64();
        let whole = asked >= 50_000 && self.pods == 1;
        let shape = format!(
            "{} nodes x {} networks x {} pods",
            self.nodes, self.networks, self.pods
        );
        let mut figures = vec![
            Figure::new(
                format!("{shape}: all {asked} ADDs answered after"),
                seconds,
                "s",
                if whole {
                    Target::AtMost(90.0)
                } else {
                    Target::None
                },
            ),
            Figure::new(RATE, answered as f64 / seconds, "/s", Target::None),
            Figure::new(
                "ADDs without an address in the end",
                (asked - answered) as f64,
                "",
                Target::AtMost(0.0),
            ),
            Figure::new(
                "addresses allocated twice, by the answers and by the API server's objects",
                verdict.faults() as f64,
                "",
                Target::AtMost(0.0),
            ),
            Figure::new(
                format!(
                    "ADDs that had to retry{}",
                    outcome
                        .first
                        .as_ref()
                        .map_or(String::new(), |first| format!(", the first: {first}"))
                ),
                outcome.again as f64,
                "",
                Target::None,
            ),
            Figure::new(
                "one ADD, median",
                quantile(&outcome.times, 0.5),
                "ms",
                Target::None,
            ),
            Figure::new(
                "one ADD, p99",
                quantile(&outcome.times, 0.99),
                "ms",
                Target::None,
            ),
            Figure::new(
                format!("all {} agents started after", self.nodes),
                start.as_secs_f64(),
                "s",
                Target::None,
            ),
            Figure::new(
                "the last answer published after another",
                published.as_secs_f64(),
                "s",
                Target::None,
            ),
            Figure::new("slices claimed", verdict.claims as f64, "", Target::None),
        ];
        figures.push(Figure::new(
            "API writes per address, publishing included",
            writes / answered.max(1) as f64,
            "",
            if self.pods >= 100 {
                Target::AtMost(0.1)
            } else {
                Target::None
            },
        ));
        figures
    }

    fn all_networks(&self) -> Result<Vec<Network>> {
        let of = |n| Network::new(n, self.length);
        (0..self.networks).map(of).collect()
    }

    fn node_name(n: usize) -> String {
        format!("node-{n:05}")
    }

    /// The nodes' objects: a slice names its node's UID. Each has a pod CIDR, as a controller manager assigns one.
    async fn make_nodes(&self, admin: &Client) -> Result<()> {
        let api: Api<NodeObject> = Api::all(admin.clone());
        parallel::each("nodes are made", self.nodes, HANDS, async |n| {
            let name = Self::node_name(n);
            let cidr = format!("100.{}.{}.0/24", 64 + n / 256, n % 256);
            let node = json!({ "metadata": { "name": name }, "spec": { "podCIDR": cidr, "podCIDRs": [cidr] } });
            let node = serde_json::from_value(node)?;
            api.create(&PostParams::default(), &node).await?;
            Ok(())
        })
        .await?;
        Ok(())
    }

    async fn start(&self, machine: &Machine, dir: &Path) -> Result<Vec<Arc<Node>>> {
        parallel::each("agents start", self.nodes, HANDS, async |n| {
            let node = Node::start(machine, Self::node_name(n), dir).await?;
            Ok(Arc::new(node))
        })
        .await
    }

    /// Publishers run by themselves; what is unpublished after their time is published here.
    async fn until_published(&self, nodes: &[Arc<Node>]) -> Result<Duration> {
        let started = Instant::now();
        tokio::time::sleep(SliceSettings::default().gather_busy * 2).await;
        parallel::each("nodes have published", nodes.len(), HANDS, async |n| {
            let mut tries = 0;
            while let Err(error) = nodes[n].flush().await {
                tries += 1;
                if tries == TRIES {
                    return Err(error.context(nodes[n].name.clone()));
                }
                tokio::time::sleep(PAUSE).await;
            }
            Ok(())
        })
        .await?;
        Ok(started.elapsed())
    }
}

/// Returns when the API server serves IPPools from its cache: it creates that for a kind's first reader, which it asks
/// to retry in a second or two; a real cluster has had one long before.
async fn served(admin: &Client, namespace: &str) -> Result<()> {
    let pools: Api<IPPool> = Api::namespaced(admin.clone(), namespace);
    let cached = ListParams::default().match_any();
    let started = Instant::now();
    while let Err(error) = pools.list(&cached).await {
        if started.elapsed() > Duration::from_secs(30) {
            return Err(error).context("the API server's cache of IPPools");
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

/// A file system in memory stands for the disks of all nodes.
fn memory_dir() -> Result<TempDir> {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() {
        tempfile::tempdir_in(memory)
    } else {
        tempfile::tempdir()
    };
    made.context("make a directory for the nodes' ledgers")
}

/// Lets this process have that many files open.
fn allow_files(wanted: u64) -> Result<()> {
    let now = getrlimit(Resource::Nofile);
    if now.current.is_none_or(|current| current >= wanted) {
        return Ok(());
    }
    let limit = Rlimit {
        current: Some(wanted),
        maximum: now.maximum.map(|most| most.max(wanted)),
    };
    setrlimit(Resource::Nofile, limit)
        .with_context(|| format!("{wanted} open files are not allowed: `ulimit -n {wanted}`"))
}

/// The time within which `part` of the calls completed, in milliseconds.
fn quantile(times: &[Duration], part: f64) -> f64 {
    crate::pods::quantile(times, part)
}
