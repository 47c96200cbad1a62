//! Eight processes on one ConfigMap of a thousand VMs: Berth compared with plain get-update-retry with the backoff of
//! the design document, in the same run, on the same API server.
//!
//! Every process starts and stops pods without a pause, several at a time, as a node does. Each run ends with a check
//! of the state: no VM free twice, none lost.

mod plain;
mod worker;

use std::collections::BTreeSet;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use berth_ledger::configmap::{Document, STATE_KEY};
use berth_testkit::Cluster;
use clap::Args;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use serde::{Deserialize, Serialize};
use tokio::process::Command;

use crate::figure::{Figure, Target, progress};
pub use worker::{Mode, VmsWorker};

#[derive(Args, Debug)]
pub struct Vms {
    #[arg(long, default_value_t = 8)]
    processes: usize,
    /// VMs in the pool; half of them are in use all the time.
    #[arg(long, default_value_t = 1_000)]
    vms: usize,
    /// Pods that a process starts and stops at the same time.
    #[arg(long, default_value_t = 8)]
    pods: usize,
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// Seconds of run-in, in which all processes start at once; only the longest operation of it is reported.
    #[arg(long, default_value_t = 4)]
    run_in: u64,
}

/// What one process did.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Tally {
    /// Milliseconds of each operation that ended after the run-in, its repeats included.
    millis: Vec<f64>,
    /// Of the run-in.
    first_millis: Vec<f64>,
    /// Operations that had used up their tries and were repeated.
    repeats: usize,
}

impl Vms {
    pub async fn run(&self) -> Result<Vec<Figure>> {
        let cluster = Cluster::start().await?;
        let namespace = cluster.namespace("bench").await?;
        let (n, many) = (self.processes, self.pods);
        let mut figures = Vec::new();
        for (pods, least) in [(many, Target::AtLeast(5.0)), (1, Target::AtLeast(1.0))] {
            let plain = self
                .measure(&cluster, &namespace, Mode::Plain, pods)
                .await?;
            let berth = self
                .measure(&cluster, &namespace, Mode::Berth, pods)
                .await?;
            let limit = Target::AtMost(2_000.0);
            for (who, run, limit) in [("plain", &plain, Target::None), ("Berth", &berth, limit)] {
                let mut add = |what: &str, value, unit, target| {
                    let what = format!("{who}, {n} processes x {pods} pods: {what}");
                    figures.push(Figure::new(what, value, unit, target));
                };
                add("operations", run.rate, "/s", Target::None);
                add("p50", run.percentile(0.5), "ms", Target::None);
                add("p99", run.percentile(0.99), "ms", limit);
                let longest = "longest of all, from the start on";
                add(longest, run.longest, "ms", Target::None);
                let repeats = run.repeats as f64;
                add(
                    "used up its tries and started again",
                    repeats,
                    "times",
                    Target::None,
                );
            }
            let what = format!("Berth against plain, {n} processes x {pods} pods");
            let times = berth.rate / plain.rate;
            figures.push(Figure::new(what, times, "x", least));
        }
        Ok(figures)
    }

    /// All processes at once on a state of their own.
    async fn measure(
        &self,
        cluster: &Cluster,
        namespace: &str,
        mode: Mode,
        pods: usize,
    ) -> Result<Run> {
        let name = format!("{mode}-{pods}");
        let api: Api<ConfigMap> = Api::namespaced(cluster.client().await?, namespace);
        worker::prepare(&api, &name, self.vms).await?;
        let what = format!("{mode}, {} processes x {pods} pods", self.processes);
        let bar = progress(&what, self.seconds + self.run_in);
        let mut children = Vec::new();
        for node in 0..self.processes {
            let child = Command::new(std::env::current_exe()?)
                .args(["vms-worker", "--mode", &mode.to_string()])
                .args(["--namespace", namespace, "--name", &name])
                .args(["--node", &format!("node-{node}")])
                .args(["--pods", &pods.to_string()])
                .args(["--seconds", &self.seconds.to_string()])
                .args(["--run-in", &self.run_in.to_string()])
                .args(["--vms", &self.vms.to_string()])
                .arg("--kubeconfig")
                .arg(cluster.kubeconfig())
                .stdout(Stdio::piped())
                .kill_on_drop(true)
                .spawn()?;
            children.push(child);
        }
        let mut run = Run::default();
        for child in children {
            let output = child.wait_with_output().await?;
            ensure!(output.status.success(), "a process of {mode} failed");
            let tally: Tally = serde_json::from_slice(&output.stdout)?;
            let all = tally.millis.iter().chain(&tally.first_millis);
            run.longest = all.copied().fold(run.longest, f64::max);
            run.millis.extend(tally.millis);
            run.repeats += tally.repeats;
        }
        bar.finish_and_clear();
        run.millis.sort_by(f64::total_cmp);
        run.rate = run.millis.len() as f64 / self.seconds as f64;
        let object = api.get(&name).await?;
        let state = object.data.and_then(|mut data| data.remove(STATE_KEY));
        self.check(&Document::decode(&state.context("no state")?)?, mode)?;
        Ok(run)
    }

    /// Every VM is in one place. Get-update-retry keeps that too, if it writes under the version that it read.
    fn check(&self, state: &Document, mode: Mode) -> Result<()> {
        let held: BTreeSet<&str> = state.allocated.values().map(|a| a.ip.as_str()).collect();
        let free: BTreeSet<&str> = state.available.iter().map(String::as_str).collect();
        let (in_use, listed) = (state.allocated.len(), state.available.len());
        ensure!(held.len() == in_use, "{mode}: one VM has two owners");
        ensure!(free.len() == listed, "{mode}: one VM is free twice");
        ensure!(held.is_disjoint(&free), "{mode}: one VM is free and in use");
        ensure!(
            in_use + listed == self.vms,
            "{mode}: {in_use} in use and {listed} free of {}",
            self.vms
        );
        Ok(())
    }
}

#[derive(Default)]
struct Run {
    rate: f64,
    /// Ascending.
    millis: Vec<f64>,
    longest: f64,
    repeats: usize,
}

impl Run {
    fn percentile(&self, share: f64) -> f64 {
        let place = (self.millis.len() as f64 * share) as usize;
        let found = self.millis.get(place).or(self.millis.last());
        found.copied().unwrap_or(0.0)
    }
}
