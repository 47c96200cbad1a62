//! Nodes whose requests are committed by the leader desk, compared with whereabouts; and a lower bound for the cost
//! of doing that with API objects.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use berth_api::whereabouts::OverlappingRangeIPReservation as Note;
use berth_testkit::{Process, guarded, isolated};
use futures::StreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::json;
use tokio::sync::Barrier;

use super::crowd::{Run, at_once, failures};
use super::plugin::Plugin;
use super::quantile;
use super::testbed::{Home, Testbed, check};
use crate::figure::{Figure, Target, progress};

const AUDIENCE: &str = "desk.berth.dev";
const LABEL: &str = "bench.berth.dev/node";

impl Testbed {
    /// `berth controller` with the leader desk, when it leads.
    async fn leader(&self, home: &Home) -> Result<Process> {
        let mut command = isolated(guarded(&self.berth));
        command
            .args([
                "controller",
                "--identity",
                "bench",
                "--desk-listen",
                "127.0.0.1:0",
            ])
            .args(["--log-format", "json"])
            .env("BERTH_KUBECONFIG", home.account.kubeconfig());
        let mut process = Process::start("controller", command, self.cluster.dir())?;
        let leases: Api<Lease> =
            Api::namespaced(home.account.client().await?, &home.account.namespace);
        let started = Instant::now();
        while leases.get_opt("berth-controller").await?.is_none() {
            if let Some(status) = process.ended()? {
                bail!("the controller ended with {status}; {}", process.tail());
            }
            if started.elapsed() > Duration::from_secs(60) {
                bail!("the controller does not lead; {}", process.tail());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(process)
    }

    async fn token(&self, home: &Home, node: &str) -> Result<PathBuf> {
        let token = self
            .cluster
            .pod_token(&home.account, node, AUDIENCE)
            .await?;
        let path = self.cluster.dir().join(format!("{node}.token"));
        std::fs::write(&path, token).with_context(|| format!("write {}", path.display()))?;
        Ok(path)
    }
}

/// The range of a round: a new pool for both.
fn range(turn: usize) -> String {
    format!("10.{}.0.0/16", 2 + turn)
}

pub async fn nodes(
    testbed: &Testbed,
    nodes: usize,
    each: usize,
    turns: usize,
) -> Result<Vec<Figure>> {
    let leads = json!([
        {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]},
        {"apiGroups": ["authorization.k8s.io"], "resources": ["subjectaccessreviews"], "verbs": ["create"]},
        {"apiGroups": [""], "resources": ["nodes", "pods", "events", "configmaps"], "verbs": ["*"]},
        {"apiGroups": ["k8s.cni.cncf.io", "berth.dev"], "resources": ["*"], "verbs": ["*"]},
    ]);
    let (ours, theirs) = (testbed.home_with(&leads).await?, testbed.home().await?);
    let total = (nodes * each) as u64;
    let mine = |node: usize| -> Vec<String> {
        (0..each)
            .map(|pod| format!("workload-{node:02}-{pod:03}"))
            .collect()
    };
    // As in a cluster: the leader opens desks for pools that a definition names.
    for turn in 0..turns.max(1) {
        let config =
            json!({"type": "macvlan", "ipam": {"type": "whereabouts", "range": range(turn)}});
        let definition = json!({
            "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
            "metadata": {"name": format!("turn-{turn}"), "namespace": ours.account.namespace},
            "spec": {"config": config.to_string()},
        });
        testbed.cluster.apply_object(definition).await?;
    }
    let leader = testbed.leader(&ours).await?;
    let mut agents = Vec::new();
    for node in 0..nodes {
        let name = format!("node-{node}");
        let token = testbed.token(&ours, &name).await?;
        agents.push(testbed.node_with(&name, Some(&token)).await?);
    }
    // An agent connects and is authorized once in its life; that is not measured.
    let warm = |at: usize| vec![format!("first-{at}")];
    let first = agents.iter().enumerate();
    let first = first.map(|(at, agent)| (testbed.berth_in(agent, &ours), warm(at)));
    let bar = progress("nodes connect to the leader", nodes as u64);
    let mut allocated = tokio::task::block_in_place(|| at_once(first.collect(), &bar))?.allocated;
    bar.finish_and_clear();
    let plugin = testbed.whereabouts(&theirs)?;
    let run = |what: &str, callers: Vec<(Plugin, Vec<String>)>| -> Result<Run> {
        let bar = progress(what, total);
        let run = tokio::task::block_in_place(|| at_once(callers, &bar))?;
        bar.finish_and_clear();
        Ok(run)
    };
    let (mut us, mut them, mut ratios) = (Run::default(), Run::default(), Vec::new());
    for turn in 0..turns.max(1) {
        let with_us = || {
            let callers = agents.iter().enumerate().map(|(at, agent)| {
                let plugin = testbed.berth_in(agent, &ours).with("range", range(turn));
                (plugin, mine(at))
            });
            run(
                "nodes at once, through the leader's desk",
                callers.collect(),
            )
        };
        let with_them = || {
            let callers = (0..nodes).map(|node| {
                let plugin = plugin.clone().with("range", range(turn));
                (
                    plugin.within("NODENAME", format!("node-{node}")),
                    mine(node),
                )
            });
            run("nodes at once, whereabouts", callers.collect())
        };
        let (ours_now, theirs_now) = if turn.is_multiple_of(2) {
            let first = with_us()?;
            (first, with_them()?)
        } else {
            let first = with_them()?;
            (with_us()?, first)
        };
        let (rate, their_rate) = (ours_now.rate(), theirs_now.rate());
        let _ = writeln!(
            std::io::stderr(),
            "turn {turn}: berth {rate:.0}/s, whereabouts {their_rate:.1}/s, {:.1}x",
            rate / their_rate
        );
        ratios.push(rate / their_rate);
        us.add(ours_now);
        them.add(theirs_now);
    }
    allocated.extend(us.allocated.iter().cloned());
    check(&ours.ledger, "berth", &allocated).await?;
    check(&theirs.ledger, "whereabouts", &them.allocated).await?;
    drop(agents);
    drop(leader);
    ratios.sort_by(f64::total_cmp);
    let median = (ratios[(ratios.len() - 1) / 2] + ratios[ratios.len() / 2]) / 2.0;
    let (least, most) = (ratios[0], ratios[ratios.len() - 1]);

    let through_objects = notes(testbed, nodes, each).await?;
    let (rate, their_rate) = (us.rate(), them.rate());
    let mut figures = vec![
        Figure::new(
            format!(
                "{nodes} nodes x {each} ADDs through the leader's desk: berth {rate:.0}/s, whereabouts {their_rate:.1}/s; median of {} turns, {least:.1} to {most:.1}",
                ratios.len()
            ),
            median,
            "x the rate",
            Target::AtLeast(30.0),
        ),
        Figure::new(
            "the same, p99",
            quantile(&us.times, 0.99) / 1e3,
            "s",
            Target::AtMost(2.0),
        ),
        Figure::new(
            "the same through objects of the API, at most (CREATE and DELETE of a note, no pool)",
            through_objects.rate(),
            "/s",
            Target::None,
        ),
        Figure::new(
            "the same, p99",
            quantile(&through_objects.times, 0.99) / 1e3,
            "s",
            Target::None,
        ),
    ];
    figures.extend(failures(&us, &them));
    Ok(figures)
}

/// A lower bound for a leader desk that uses objects: each node creates an object per request and waits until the
/// leader, which watches, has deleted it. The leader's write to the pool would come on top.
async fn notes(testbed: &Testbed, nodes: usize, each: usize) -> Result<Run> {
    let home = testbed.home().await?;
    let client = home.account.client().await?;
    let api: Api<Note> = Api::namespaced(client.clone(), &home.account.namespace);
    let answering = tokio::spawn({
        let api = api.clone();
        async move {
            watcher(api.clone(), watcher::Config::default())
                .default_backoff()
                .applied_objects()
                .for_each_concurrent(32, |note| {
                    let api = api.clone();
                    async move {
                        let name = note.ok().and_then(|note| note.metadata.name);
                        if let Some(name) = name {
                            let _ = api.delete(&name, &DeleteParams::default()).await;
                        }
                    }
                })
                .await;
        }
    });
    let start = Arc::new(Barrier::new(nodes + 1));
    let mut tasks = Vec::new();
    for node in 0..nodes {
        let (api, start) = (api.clone(), Arc::clone(&start));
        tasks.push(tokio::spawn(async move {
            let selector = format!("{LABEL}=node-{node}");
            let own = watcher::Config::default().labels(&selector);
            let mut gone = watcher(api.clone(), own).default_backoff().boxed();
            while !matches!(gone.next().await, Some(Ok(watcher::Event::InitDone))) {}
            start.wait().await;
            let mut times = Vec::new();
            for pod in 0..each {
                let note: Note = serde_json::from_value(json!({
                    "metadata": { "name": format!("note-{node}-{pod}"), "labels": { LABEL: format!("node-{node}") } },
                    "spec": { "podref": format!("default/workload-{node}-{pod}") },
                }))?;
                let started = Instant::now();
                api.create(&PostParams::default(), &note).await?;
                while !matches!(gone.next().await, Some(Ok(watcher::Event::Delete(_)))) {}
                times.push(started.elapsed());
            }
            anyhow::Ok(times)
        }));
    }
    start.wait().await;
    let started = Instant::now();
    let mut run = Run::default();
    for task in tasks {
        run.times.extend(task.await??);
    }
    run.elapsed = started.elapsed();
    answering.abort();
    Ok(run)
}
