//! gcp-ipam where an operation of Google's takes 3 s: pods that start together, end and move, counted in seconds and
//! operations.
//!
//! The cloud is local (`berth-testcloud`), the API server real; agents are fronts in this process, and their claims
//! meet in the leader's desk of a controller.

mod place;

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use berth_gcp::front::Settings;
use berth_gcp::nic::warm::Targets;
use futures::future::{join_all, try_join_all};

use crate::figure::{Figure, Target};
use place::{Agent, Place, UPDATE, WAIT};

const PODS: usize = 110;
const MOVES: usize = 20;

#[derive(clap::Args)]
pub struct Gcp {
    /// How long an operation takes.
    #[arg(long, default_value_t = 3000)]
    operation_ms: u64,
    /// Nodes that start pods at once, and how many pods each starts.
    #[arg(long, default_value_t = 50)]
    nodes: usize,
    #[arg(long, default_value_t = 20)]
    pods: usize,
}

impl Gcp {
    pub async fn run(&self) -> Result<Vec<Figure>> {
        let operation = Duration::from_millis(self.operation_ms);
        let mut figures = one_node(operation).await?;
        figures.extend(warm(operation).await?);
        figures.extend(moves(operation).await?);
        figures.extend(self.many_nodes(operation).await?);
        Ok(figures)
    }

    /// Each group of requests has its own 1,500 a minute.
    async fn many_nodes(&self, operation: Duration) -> Result<Vec<Figure>> {
        let place = Place::new(operation).await?;
        let mut agents = Vec::new();
        let mut pods = Vec::new();
        for number in 0..self.nodes {
            let agent = place.agent(number, |_| {}).await?;
            pods.push(place.pods(&agent.name, "web", self.pods).await?);
            agents.push(agent);
        }
        let begin = Instant::now();
        let started = agents
            .iter()
            .zip(&pods)
            .map(|(agent, pods)| start(&place, agent, pods));
        let allocated = try_join_all(started).await?.concat();
        let took = begin.elapsed();
        let count = self.nodes * self.pods;
        unique(&allocated, count)?;
        let what = format!(
            "{} nodes x {} pods at once, 1,500 requests a minute",
            self.nodes, self.pods
        );
        let refused = place.cloud.project(|project| project.refused());
        Ok(vec![
            seconds(format!("{what}: the last"), took, 12.0),
            Figure::new(
                format!("{what}: refused"),
                refused as f64,
                "",
                Target::AtMost(0.0),
            ),
        ])
    }
}

async fn start(place: &Place, agent: &Agent, pods: &[String]) -> Result<Vec<Ipv4Addr>> {
    try_join_all(pods.iter().map(|pod| place.add(agent, pod))).await
}

fn unique(allocated: &[Ipv4Addr], count: usize) -> Result<()> {
    let apart: BTreeSet<&Ipv4Addr> = allocated.iter().collect();
    ensure!(
        apart.len() == count,
        "{} addresses for {count} pods",
        apart.len()
    );
    Ok(())
}

fn seconds(what: impl Into<String>, took: Duration, most: f64) -> Figure {
    Figure::new(what, took.as_secs_f64(), "s", Target::AtMost(most))
}

async fn one_node(operation: Duration) -> Result<Vec<Figure>> {
    let place = Place::new(operation).await?;
    let idle = place.agent(1, |_| {}).await?;
    let agent = place.agent(0, |_| {}).await?;
    let pods = place.pods(&agent.name, "web", PODS).await?;
    let calls = place.cloud.requests().len();
    let started = Instant::now();
    let allocated = start(&place, &agent, &pods).await?;
    let took = started.elapsed();
    unique(&allocated, PODS)?;
    let attached = place.cloud.count(UPDATE);
    let ended = join_all(pods.iter().map(|pod| place.del(&agent, pod))).await;
    let mut ended = ended.into_iter().collect::<Result<Vec<Duration>>>()?;
    ended.sort_unstable();
    let p99 = ended
        .get(ended.len() * 99 / 100)
        .copied()
        .unwrap_or_default();
    place
        .until("all aliases are gone", || place.aliases(&agent.name) == 0)
        .await?;
    let operations = place.cloud.count(UPDATE);
    let of_idle = place.cloud.requests();
    let of_idle = of_idle
        .iter()
        .filter(|request| request.path.contains(&idle.name))
        .count();
    Ok(vec![
        seconds(
            format!("{PODS} pods on one node, cold: the last"),
            took,
            7.0,
        ),
        Figure::new(
            format!("{PODS} pods on one node, cold: operations"),
            attached as f64,
            "",
            Target::None,
        ),
        Figure::new(
            format!("{PODS} DELs at once: p99"),
            p99.as_secs_f64() * 1e3,
            "ms",
            Target::AtMost(100.0),
        ),
        Figure::new(
            format!("{PODS} DELs at once: operations"),
            (operations - attached) as f64,
            "",
            Target::AtMost(2.0),
        ),
        Figure::new(
            "waits for each operation",
            place.cloud.count(WAIT) as f64 / operations as f64,
            "",
            Target::AtMost(1.0),
        ),
        Figure::new(
            "calls of agents that have no such pods",
            (calls + of_idle) as f64,
            "",
            Target::AtMost(0.0),
        ),
    ])
}

async fn warm(operation: Duration) -> Result<Vec<Figure>> {
    let place = Place::new(operation).await?;
    let targets = Targets::new(PODS, PODS)?;
    let agent = place
        .agent(0, |settings: &mut Settings| settings.warm = targets)
        .await?;
    let pods = place.pods(&agent.name, "web", PODS + 1).await?;
    // The first pod wakes the agent.
    let (first, pods) = (&pods[0], &pods[1..]);
    place.add(&agent, first).await?;
    place
        .until("the warm pool is filled", || {
            place.aliases(&agent.name) > PODS
        })
        .await?;
    // Attached is what the cloud reports; the agent notices a moment later.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let started = Instant::now();
    let allocated = start(&place, &agent, pods).await?;
    let took = started.elapsed();
    unique(&allocated, PODS)?;
    Ok(vec![seconds(
        format!("{PODS} pods on one node, warm: the last"),
        took,
        1.0,
    )])
}

async fn moves(operation: Duration) -> Result<Vec<Figure>> {
    let place = Place::new(operation).await?;
    let (a, b) = (place.agent(0, |_| {}).await?, place.agent(1, |_| {}).await?);
    let pods = place.pods(&a.name, "cart", MOVES + 1).await?;
    let allocated = start(&place, &a, &pods).await?;
    // The destination knows its VM.
    let known = place.pods(&b.name, "first", 1).await?;
    start(&place, &b, &known).await?;

    let (pod, address) = (&pods[0], allocated[0]);
    let clone = place.clone_of(pod, address, &a.name, &b.name).await?;
    let before = place.cloud.count(UPDATE);
    let started = Instant::now();
    let moving = place.add(&b, &clone);
    let nowhere = async {
        let (mut last, mut unreachable) = (Instant::now(), Duration::ZERO);
        loop {
            tokio::time::sleep(Duration::from_millis(5)).await;
            let now = Instant::now();
            if place.holders(address) == 0 {
                unreachable += now - last;
            } else if !unreachable.is_zero() {
                return unreachable;
            }
            last = now;
        }
    };
    let (moved, unreachable) = tokio::join!(moving, nowhere);
    let took = started.elapsed();
    ensure!(moved? == address, "the clone has another address");
    let operations = place.cloud.count(UPDATE) - before;
    let most = 2.0 * operation.as_secs_f64() + 0.5;

    let mut clones = Vec::new();
    for (pod, address) in pods.iter().zip(&allocated).skip(1) {
        clones.push(place.clone_of(pod, *address, &a.name, &b.name).await?);
    }
    let before = place.cloud.count(UPDATE);
    let started = Instant::now();
    let moved = start(&place, &b, &clones).await?;
    let all = started.elapsed();
    ensure!(moved == allocated[1..], "a clone has another address");
    let shared = place.cloud.count(UPDATE) - before;
    Ok(vec![
        seconds("a migration", took, most),
        Figure::new(
            "a migration: operations",
            operations as f64,
            "",
            Target::AtMost(2.0),
        ),
        seconds("a migration: the address is on no VM", unreachable, most),
        Figure::new(
            format!("{MOVES} migrations between two nodes: operations"),
            shared as f64,
            "",
            Target::AtMost(4.0),
        ),
        Figure::new(
            format!("{MOVES} migrations between two nodes: the last"),
            all.as_secs_f64(),
            "s",
            Target::None,
        ),
    ])
}
