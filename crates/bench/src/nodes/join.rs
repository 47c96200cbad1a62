//! Nodes that join: all at once, and one after the other.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use berth_desk::DeskMetrics;
use berth_front::Clusters;
use berth_kube::Connect;
use berth_leader::LeaderSettings;
use berth_nodes::front::NODE_IP_POOL_KIND;
use berth_nodes::handler::{Handler, HandlerConfig, Mode};
use berth_nodes::host::{self, Host};
use berth_nodes::metrics::HandlerMetrics;
use berth_nodes::objects::{self, ENACTMENT};
use futures::StreamExt;
use kube::api::DynamicObject;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::retry::Retried;
use super::site::{Credentials, Site, Writes};
use crate::figure::{Figure, Target, progress};
use crate::parallel;

pub const POLICY_NAME: &str = "joining";
pub const POOL_NAME: &str = "joined";
const GROUP: &str = "join";
const TIMEOUT: Duration = Duration::from_secs(180);

/// Running handlers, and the outcome of their nodes.
pub struct Joined {
    handlers: Vec<JoinHandle<()>>,
    /// Of the nodes that joined at once: from the start to the address in the enactment, and to the applied policy.
    recorded: BTreeMap<String, Duration>,
    available: BTreeMap<String, Duration>,
    duplicates: usize,
    writes: Writes,
    common: u64,
}

impl Drop for Joined {
    fn drop(&mut self) {
        self.handlers.iter().for_each(JoinHandle::abort);
    }
}

/// A handler with a client, a token and a connection to the leader of its own.
async fn handler(credentials: &Credentials, metrics: &DeskMetrics) -> Result<Handler> {
    let settings = LeaderSettings {
        source: Some(credentials.source),
        ..LeaderSettings::new(&credentials.node, credentials.token_file.clone())
    };
    let connect = Connect {
        kubeconfig: Some(credentials.kubeconfig.clone()),
        ..Connect::default()
    };
    let cluster = Clusters::new(Some(settings)).open(&connect).await?;
    let desks = NODE_IP_POOL_KIND.desks(&cluster, metrics.clone());
    let config = HandlerConfig {
        node: credentials.node.clone(),
        mode: Mode::Host,
        host: Host::new(&credentials.host),
        netns: None,
        timeout: Duration::from_secs(30),
        metrics: HandlerMetrics::default(),
    };
    Ok(Handler::new(&cluster.connection, desks, config))
}

fn run(handler: Handler) -> JoinHandle<()> {
    tokio::spawn(async move { handler.run(CancellationToken::new()).await })
}

fn name(number: usize) -> String {
    format!("join-{number:03}")
}

/// The addresses of an enactment's desired state, and whether it is applied.
fn read(object: &DynamicObject) -> (String, Vec<String>, bool) {
    let value = objects::value(object);
    let node = objects::label(&value, objects::NODE_LABEL).unwrap_or_default();
    let status = &value["status"];
    let addresses = host::addresses(&status["desiredState"]);
    let addresses = addresses.iter().map(|(_, address)| address.to_string());
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let mut available = conditions.filter(|one| one["type"] == "Available");
    let is_available = available.any(|one| one["status"] == "True");
    (node.to_owned(), addresses.collect(), is_available)
}

/// All handlers run and have their watches open; then their Nodes are created at the same moment.
pub async fn at_once(site: &Site, nodes: usize) -> Result<Joined> {
    site.pool(POOL_NAME, 71).await?;
    site.policy(POLICY_NAME, GROUP, POOL_NAME).await?;
    site.until_available(POOL_NAME).await?;
    let metrics = DeskMetrics::default();
    let handlers = parallel::each("accounts are made", nodes, 8, async |number| {
        handler(&site.credentials(&name(number)).await?, &metrics).await
    })
    .await?;
    let handlers = handlers.into_iter().map(run).collect();
    // The leader has one of its own.
    site.until_watched("nodenetworkconfigurationenactments", nodes + 1)
        .await?;
    let before = site.settled_writes().await?;
    let config = watcher::Config::default().labels(&format!("nmstate.io/policy={POLICY_NAME}"));
    let mut events = watch(site.api(ENACTMENT), config).default_backoff().boxed();
    while !matches!(events.next().await, Some(Ok(Event::InitDone))) {}
    let bar = progress("nodes join at once", nodes as u64);
    let started = Instant::now();
    let joining = (0..nodes).map(|number| async move { site.node(&name(number), GROUP).await });
    futures::future::try_join_all(joining).await?;
    let (mut recorded, mut available) = (BTreeMap::new(), BTreeMap::new());
    let mut owners: BTreeMap<String, String> = BTreeMap::new();
    let mut duplicates = 0;
    while available.len() < nodes && started.elapsed() < TIMEOUT {
        let event = tokio::time::timeout(Duration::from_secs(5), events.next()).await;
        let Ok(Some(Ok(Event::Apply(object)))) = event else {
            continue;
        };
        let (node, addresses, is_available) = read(&object);
        for address in addresses {
            let owner = owners.entry(address).or_insert_with(|| node.clone());
            duplicates += usize::from(*owner != node);
            recorded
                .entry(node.clone())
                .or_insert_with(|| started.elapsed());
        }
        if is_available && available.insert(node, started.elapsed()).is_none() {
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let after = site.settled_writes().await?;
    Ok(Joined {
        handlers,
        recorded,
        available,
        duplicates,
        writes: Writes {
            nodes: after.nodes - before.nodes,
            pools: after.pools - before.pools,
            policies: after.policies - before.policies,
        },
        common: metrics.of(POOL_NAME).by_leader.get(),
    })
}

fn last(times: &BTreeMap<String, Duration>) -> f64 {
    times
        .values()
        .max()
        .copied()
        .unwrap_or_default()
        .as_secs_f64()
}

impl Joined {
    pub fn figures(&self, theirs: &Retried) -> Vec<Figure> {
        let nodes = theirs.nodes;
        let what = format!("{nodes} nodes join at once");
        let rate = self.recorded.len() as f64 / last(&self.recorded).max(f64::EPSILON);
        let _ = writeln!(
            std::io::stderr(),
            "failures: berth {} of {nodes} not served; get-update-retry {} failed and queued again, {} of {nodes} not served after {:.0} s",
            nodes - self.available.len(),
            theirs.failed,
            nodes - theirs.served,
            theirs.elapsed.as_secs_f64(),
        );
        let figure = |label: &str, value: f64, unit: &'static str, target: Target| {
            Figure::new(format!("{what}: {label}"), value, unit, target)
        };
        vec![
            figure(
                "until all are Available",
                last(&self.available),
                "s",
                Target::AtMost(10.0),
            ),
            figure(
                "until all have the address in the enactment",
                last(&self.recorded),
                "s",
                Target::None,
            ),
            figure(
                "not served",
                (nodes - self.available.len()) as f64,
                "",
                Target::AtMost(0.0),
            ),
            figure(
                "addresses twice",
                self.duplicates as f64,
                "",
                Target::AtMost(0.0),
            ),
            figure(
                "answered by the leader's desk",
                self.common as f64,
                "claims",
                Target::AtLeast(nodes as f64),
            ),
            figure(
                "writes of enactments and NodeNetworkStates",
                self.writes.nodes / nodes as f64,
                "a node",
                Target::AtMost(5.0),
            ),
            figure(
                "writes of the pool",
                self.writes.pools,
                "",
                Target::AtMost(20.0),
            ),
            figure(
                "writes of the policy's conditions, by the leader",
                self.writes.policies,
                "",
                Target::None,
            ),
            figure(
                &format!(
                    "rate against get-update-retry with DefaultBackoff ({rate:.1}/s, {:.1}/s)",
                    theirs.rate()
                ),
                rate / theirs.rate(),
                "x",
                Target::AtLeast(5.0),
            ),
            Figure::new(
                format!("get-update-retry, {nodes} nodes: failed after 4 tries and queued again"),
                theirs.failed as f64,
                "",
                Target::None,
            ),
            Figure::new(
                format!("get-update-retry, {nodes} nodes: not served"),
                (nodes - theirs.served) as f64,
                "",
                Target::None,
            ),
        ]
    }
}

/// One node after the other joins a cluster that is served: its handler runs, its Node becomes Ready.
pub async fn alone(site: &Site, _joined: &Joined, count: usize) -> Result<Vec<Figure>> {
    let metrics = DeskMetrics::default();
    let mut handlers = Vec::new();
    let mut times = Vec::new();
    for number in 0..count {
        let name = format!("late-{number:03}");
        let credentials = site.credentials(&name).await?;
        handlers.push(run(handler(&credentials, &metrics).await?));
        // Its watches are open when the node joins.
        tokio::time::sleep(Duration::from_millis(500)).await;
        let started = Instant::now();
        site.node(&name, GROUP).await?;
        let enactment = format!("{name}.{POLICY_NAME}");
        loop {
            let object = site.get(ENACTMENT, &enactment).await?;
            if !host::addresses(&object["status"]["desiredState"]).is_empty() {
                times.push(started.elapsed().as_secs_f64());
                break;
            }
            if started.elapsed() > TIMEOUT {
                bail!("{name} has no address: {}", object["status"]);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    handlers.iter().for_each(JoinHandle::abort);
    times.sort_by(f64::total_cmp);
    let slowest = times.last().copied().context("no node joined")?;
    let median = times.get(times.len() / 2).copied().unwrap_or_default();
    let what = "a node joins: its address in its enactment";
    Ok(vec![
        Figure::new(
            format!("{what}, median of {count}"),
            median,
            "s",
            Target::None,
        ),
        Figure::new(
            format!("{what}, slowest"),
            slowest,
            "s",
            Target::AtMost(1.0),
        ),
    ])
}

/// The addresses of all enactments, by node.
pub async fn addresses(site: &Site) -> Result<BTreeMap<String, Vec<String>>> {
    let params =
        kube::api::ListParams::default().labels(&format!("nmstate.io/policy={POLICY_NAME}"));
    let list = site.api(ENACTMENT).list(&params).await?;
    let read = |object: &DynamicObject| {
        let (node, addresses, _) = read(object);
        (node, addresses)
    };
    Ok(list.items.iter().map(read).collect())
}

/// Node and address of each allocation of a pool.
pub fn allocations(pool: &Value) -> BTreeMap<String, Vec<String>> {
    let list = pool["status"]["allocations"]
        .as_array()
        .into_iter()
        .flatten();
    let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for one in list {
        let text = |field: &str| one[field].as_str().unwrap_or_default().to_owned();
        all.entry(text("node")).or_default().push(text("ip"));
    }
    all
}
