//! Peak resident memory of what reads all pools and reservations: a sweep, `berth pools`, and an ADD that has to list.
//!
//! Pods have one interface in every pool, as in a large cluster; the reservations belong to the first pools.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use berth_api::whereabouts::{IPPool, OverlappingRangeIPReservation};
use berth_testkit::{Agent, Cluster, PodCall, Process, answered_addresses, guarded, isolated};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::{Map, json};

use crate::figure::{Figure, Target};
use crate::parallel;

/// Requests at a time while objects are made.
const AT_ONCE: usize = 16;
const TIMEOUT: Duration = Duration::from_secs(600);
const NODE: &str = "node-1";

#[derive(clap::Args)]
pub struct Memory {
    #[arg(long, default_value_t = 20)]
    pools: usize,
    /// Entries of each pool, and pods.
    #[arg(long, default_value_t = 10_000)]
    entries: usize,
    #[arg(long, default_value_t = 50_000)]
    reservations: usize,
    /// The target, in MiB. The default is half of what the manifests allow an agent.
    #[arg(long, default_value_t = 64.0)]
    most: f64,
    /// The program that is measured [default: the one that was built beside this].
    #[arg(long)]
    berth: Option<PathBuf>,
}

impl Memory {
    pub async fn run(&self) -> Result<Vec<Figure>> {
        ensure!(
            self.reservations <= self.pools * self.entries,
            "there are more reservations than entries"
        );
        let built = std::env::current_exe()?.with_file_name("berth");
        let berth = self.berth.clone().unwrap_or(built);
        let berth = fs::canonicalize(&berth).with_context(|| {
            format!(
                "{} is not built: run `cargo xtask bench memory`",
                berth.display()
            )
        })?;
        let cluster = Cluster::start().await?;
        for crd in berth_api::crds()? {
            cluster.apply_object(crd).await?;
        }
        let namespace = cluster.namespace("bench").await?;
        let client = cluster.client().await?;
        self.make(&client, &namespace).await?;
        let account = cluster.agent(&namespace, NODE).await?;
        let dir = tempfile::tempdir()?;
        let figures = tokio::task::block_in_place(|| -> Result<Vec<Figure>> {
            let kubeconfig = account.kubeconfig();
            let sweep = text("a sweep", sweep(&berth, dir.path(), kubeconfig)?);
            let of_cluster = cluster.kubeconfig();
            let pools = pools(&berth, dir.path(), &of_cluster, &namespace)?;
            let pools = text("pools", pools);
            let add = text("an ADD", add(&berth, dir.path(), kubeconfig)?);
            let (many, each, reserved) = (self.pools, self.entries, self.reservations);
            let most = Target::AtMost(self.most);
            let of = format!("{many} pools of {each}, {reserved} reservations");
            Ok(vec![
                Figure::new(format!("a sweep over {of}"), sweep, "MiB", most),
                Figure::new(format!("`berth pools`, {of}"), pools, "MiB", most),
                Figure::new(format!("an ADD that lists, {of}"), add, "MiB", most),
            ])
        })?;
        Ok(figures)
    }

    async fn make(&self, client: &Client, namespace: &str) -> Result<()> {
        let params = PostParams::default();
        let node: Node = serde_json::from_value(json!({ "metadata": { "name": NODE } }))?;
        Api::<Node>::all(client.clone())
            .create(&params, &node)
            .await?;
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        let pod = async |n: usize| {
            let pod = serde_json::from_value(json!({
                "metadata": { "name": pod(n) },
                "spec": { "nodeName": NODE, "containers": [{ "name": "c", "image": "nothing" }] },
            }))?;
            pods.create(&params, &pod).await?;
            Ok(())
        };
        parallel::each("pods are made", self.entries, AT_ONCE, pod).await?;
        let pools: Api<IPPool> = Api::namespaced(client.clone(), namespace);
        let pool = async |n: usize| {
            let entry = |at: usize| {
                let podref = format!("{namespace}/{}", pod_name(at));
                let entry = json!({ "id": container(at), "podref": podref, "ifname": part(n) });
                (at.to_string(), entry)
            };
            let entries: Map<_, _> = (1..=self.entries).map(entry).collect();
            let pool = serde_json::from_value(json!({
                "metadata": { "name": format!("10.{n}.0.0-16") },
                "spec": { "range": format!("10.{n}.0.0/16"), "allocations": entries },
            }))?;
            pools.create(&params, &pool).await?;
            Ok(())
        };
        parallel::each("pools are made", self.pools, 2, pool).await?;
        let reservations: Api<OverlappingRangeIPReservation> =
            Api::namespaced(client.clone(), namespace);
        let reservation = async |n: usize| {
            let (pool, at) = (n / self.entries, n % self.entries + 1);
            let reservation = serde_json::from_value(json!({
                "metadata": {
                    "name": format!("10.{pool}.{}.{}", at / 256, at % 256),
                    "annotations": { "berth.dev/node": NODE },
                },
                "spec": {
                    "containerid": container(at), "ifname": part(pool),
                    "podref": format!("{namespace}/{}", pod_name(at)),
                },
            }))?;
            reservations.create(&params, &reservation).await?;
            Ok(())
        };
        let made = parallel::each(
            "reservations are made",
            self.reservations,
            AT_ONCE,
            reservation,
        );
        made.await?;
        Ok(())
    }
}

/// Prints what was measured at once: the next part may take minutes.
fn text(what: &str, most: f64) -> f64 {
    let _ = writeln!(std::io::stderr(), "{what}: {most:.1} MiB at most");
    most
}

fn pod(n: usize) -> String {
    pod_name(n + 1)
}

fn pod_name(at: usize) -> String {
    format!("replica-{at:05}")
}

fn container(at: usize) -> String {
    format!("{at:064x}")
}

fn part(pool: usize) -> String {
    format!("net{pool}")
}

fn agent(berth: &Path, dir: &Path, name: &str, kubeconfig: &Path, every: &str) -> Result<Agent> {
    Agent::start(berth, dir, name, |command| {
        command
            .args(["--node", NODE, "--garbage-interval", every, "--kubeconfig"])
            .arg(kubeconfig);
    })
}

/// Megabytes that a process had at most.
fn peak(process: &Process) -> Result<f64> {
    #[allow(clippy::cast_precision_loss)]
    let kilobytes = process.peak_rss()? as f64;
    Ok(kilobytes / 1024.0)
}

fn sweep(berth: &Path, dir: &Path, kubeconfig: &Path) -> Result<f64> {
    let agent = agent(berth, dir, "sweeper", kubeconfig, "5")?;
    let started = Instant::now();
    // An agent collects in a cluster that it was asked for.
    let call = PodCall::new("berth", "STATUS", "none");
    call.ask(&agent.socket, &json!({ "range": "10.200.0.0/24" }))?;
    while counted(&agent.socket, "berth_garbage_sweeps_total")? < 2.0 {
        if started.elapsed() > TIMEOUT {
            bail!("no sweep; {}", agent.process.tail());
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    peak(&agent.process)
}

fn pools(berth: &Path, dir: &Path, kubeconfig: &Path, namespace: &str) -> Result<f64> {
    let mut command = isolated(guarded(berth));
    command
        .env("PATH", "/usr/bin:/bin")
        .args(["pools", "--namespace", namespace, "--kubeconfig"])
        .arg(kubeconfig)
        .stdout(Stdio::null());
    let mut process = Process::start("pools", command, dir)?;
    let mut most: f64 = 0.0;
    // The peak is known only while it runs.
    while process.ended()?.is_none() {
        most = most.max(peak(&process).unwrap_or_default());
        std::thread::sleep(Duration::from_millis(2));
    }
    let status = process.ended()?.context("it has ended")?;
    ensure!(
        status.success(),
        "berth pools: {status}; {}",
        process.tail()
    );
    Ok(most)
}

/// A range whose first addresses are all reserved for entries of an overlapping pool: the search lists them.
fn add(berth: &Path, dir: &Path, kubeconfig: &Path) -> Result<f64> {
    let agent = agent(berth, dir, "adder", kubeconfig, "86400")?;
    let call = PodCall::new("whereabouts", "ADD", "new");
    let started = Instant::now();
    // Repeated like a kubelet's, on a machine that is too slow for one try.
    loop {
        let answer = call.ask(&agent.socket, &json!({ "range": "10.0.0.0/17" }))?;
        match answered_addresses(&answer) {
            Ok(_) => return peak(&agent.process),
            Err(why) if started.elapsed() > TIMEOUT => bail!("{why:?}"),
            Err(_) => {}
        }
    }
}

fn counted(socket: &Path, name: &str) -> Result<f64> {
    let mut stream = UnixStream::connect(socket)?;
    let request = "GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    stream.write_all(request.as_bytes())?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let line = text.lines().find(|line| line.starts_with(name));
    let value = line.and_then(|line| line.rsplit_once(' ')?.1.parse().ok());
    Ok(value.unwrap_or_default())
}
