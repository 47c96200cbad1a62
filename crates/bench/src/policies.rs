//! What the admission policies on agents cost: ADDs of one agent in a plain pool with overlap checks, with and without
//! the policies, alternating on one API server.
//!
//! The pool has entries of another node, which the policy on entries reads at every write. The agent writes the pool
//! itself: a leader desk would use another account, without policies.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use berth_api::whereabouts::IPPool;
use berth_desk::DeskMetrics;
use berth_kube::Connect;
use berth_node::NodeFile;
use berth_pods::journal::Journal;
use berth_pods::{Front, Store};
use berth_testkit::{Cluster, PodCall};
use berth_whereabouts::KubeLedger;
use kube::Api;
use kube::api::PostParams;
use serde_json::json;

use crate::figure::{Figure, Target, progress};

const NODE: &str = "node-a";

#[derive(clap::Args)]
pub struct Policies {
    /// Entries of another node in the pool.
    #[arg(long, value_delimiter = ',', default_values_t = [0_u32, 1000, 5000])]
    held: Vec<u32>,
    /// ADDs of a round.
    #[arg(long, default_value_t = 100)]
    adds: usize,
    /// Rounds with the policies, and as many without, in turns.
    #[arg(long, default_value_t = 6)]
    rounds: usize,
}

impl Policies {
    pub async fn run(&self) -> Result<Vec<Figure>> {
        let cluster = Cluster::start().await?;
        for crd in berth_api::crds()? {
            cluster.apply_object(crd).await?;
        }
        let mut figures = Vec::new();
        for held in &self.held {
            figures.extend(self.compare(&cluster, *held).await?);
        }
        Ok(figures)
    }

    async fn compare(&self, cluster: &Cluster, held: u32) -> Result<Vec<Figure>> {
        let namespace = cluster.namespace("bench").await?;
        let agents = cluster.agents(&namespace).await?;
        let account = agents.on(NODE).await?;
        fill(cluster, &namespace, held).await?;
        let connect = Connect {
            kubeconfig: Some(account.kubeconfig().to_owned()),
            timeout: Duration::from_secs(60),
            ..Connect::default()
        };
        let ledger = Arc::new(KubeLedger::new(connect.open().await?));
        let dir = tempfile::tempdir()?;
        let file = NodeFile::open(&dir.path().join("berth.db")).await?;
        let journal = Arc::new(Journal::new(&file));
        let store = Store::cluster(ledger, DeskMetrics::default()).with_journal(journal);
        let front = Front::new(Arc::new(Arc::new(store)), NODE).with_flat_places(Vec::new());
        let bar = progress(
            &format!("ADDs beside {held} entries"),
            (2 * self.rounds * self.adds) as u64,
        );
        let (mut with, mut without) = (Vec::new(), Vec::new());
        for round in 0..self.rounds {
            // Alternate which one is first.
            for on in [round % 2 == 0, round % 2 != 0] {
                cluster.set_policies(&agents, on).await?;
                let times = if on { &mut with } else { &mut without };
                // The first ADDs of a round find cold caches.
                for n in 0..self.adds + 5 {
                    let started = Instant::now();
                    call(&front, "ADD", &namespace, n).await?;
                    let took = started.elapsed();
                    if n >= 5 {
                        times.push(took);
                        bar.inc(1);
                    }
                    call(&front, "DEL", &namespace, n).await?;
                }
            }
        }
        bar.finish_and_clear();
        let (with, without) = (median(with), median(without));
        let millis = |time: Duration| time.as_secs_f64() * 1_000.0;
        let figure = |what: String, time| Figure::new(what, millis(time), "ms", Target::None);
        Ok(vec![
            figure(
                format!("ADD beside {held} entries, no policies, median"),
                without,
            ),
            figure(
                format!("ADD beside {held} entries, under the policies, median"),
                with,
            ),
            Figure::new(
                format!("the policies' share, {held} entries"),
                millis(with) / millis(without),
                "x",
                Target::AtMost(1.05),
            ),
        ])
    }
}

/// The pool, with entries of another node.
async fn fill(cluster: &Cluster, namespace: &str, held: u32) -> Result<()> {
    let entry = |n: u32| {
        let id = format!("{n:064x}");
        let pod = format!("workload/pod-{n}");
        let fields = json!({ "id": id, "podref": pod, "ifname": "net1", "node": "node-b" });
        (n.to_string(), fields)
    };
    let entries: serde_json::Map<_, _> = (1..=held).map(entry).collect();
    let pool: IPPool = serde_json::from_value(json!({
        "apiVersion": "whereabouts.cni.cncf.io/v1alpha1", "kind": "IPPool",
        "metadata": { "name": "10.0.0.0-16", "managedFields": [{}] },
        "spec": { "range": "10.0.0.0/16", "allocations": {} },
    }))?;
    let pools: Api<IPPool> = Api::namespaced(cluster.client().await?, namespace);
    pools.create(&PostParams::default(), &pool).await?;
    let patch = json!({
        "metadata": { "managedFields": [{}] },
        "spec": { "allocations": entries },
    });
    let patch = kube::api::Patch::Merge(patch);
    let params = kube::api::PatchParams::default();
    pools.patch("10.0.0.0-16", &params, &patch).await?;
    Ok(())
}

async fn call(front: &Front, verb: &str, namespace: &str, n: usize) -> Result<()> {
    let network = json!({
        "cniVersion": "1.0.0", "name": "bench", "type": "macvlan",
        "ipam": { "type": "whereabouts", "range": "10.0.0.0/16" },
    });
    let pod = format!("p{n}");
    let request = PodCall::new("whereabouts", verb, &pod)
        .in_namespace(namespace, &pod)
        .of_container(&format!("a{n:063x}"))
        .request_of(&network.to_string());
    let answer = front.answer(&request).await;
    if answer.exit != 0 {
        bail!("{verb}: {}", answer.stdout);
    }
    Ok(())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}
