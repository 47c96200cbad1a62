//! 5,000 nodes that get their slices: how long the built controller takes, and how much memory it needs.
//!
//! Nodes look like real ones (about ten kilobytes each: labels, addresses, images), because a watch transfers all of
//! that. Two cases are timed: all nodes exist when the network is created, and one more node.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use berth_testkit::{Cluster, Process, guarded, isolated};
use clap::Args;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, PostParams};
use kube::runtime::wait::await_condition;
use serde_json::{Value, json};

use crate::figure::{Figure, Target};
use crate::parallel;

#[derive(Args, Debug)]
pub struct Controller {
    #[arg(long, default_value_t = 5_000)]
    nodes: usize,
    #[arg(long, default_value_t = 1)]
    networks: usize,
    /// Nodes that come one by one after that.
    #[arg(long, default_value_t = 10)]
    singles: usize,
}

/// Requests at a time while nodes are made.
const AT_ONCE: usize = 16;
const TIMEOUT: Duration = Duration::from_secs(300);
const SETTLED: Duration = Duration::from_secs(1);

impl Controller {
    pub async fn run(&self) -> Result<Vec<Figure>> {
        let cluster = Cluster::start().await?;
        for crd in berth_api::crds()? {
            cluster.apply_object(crd).await?;
        }
        let namespace = cluster.namespace("bench").await?;
        let nodes: Api<Node> = Api::all(cluster.client().await?);
        let make_one = async |n| make(&nodes, n).await;
        parallel::each("nodes are made", self.nodes, AT_ONCE, make_one).await?;

        let berth = std::env::current_exe()?.with_file_name("berth");
        let berth = fs::canonicalize(&berth).with_context(|| {
            format!(
                "{} is not built: run `cargo xtask bench controller`",
                berth.display()
            )
        })?;
        let dir = tempfile::tempdir()?;
        let mut command = isolated(guarded(&berth));
        command
            .env("PATH", "/usr/bin:/bin")
            .args([
                "controller",
                "--log-format",
                "json",
                "--namespace",
                &namespace,
            ])
            .arg("--kubeconfig")
            .arg(cluster.kubeconfig());
        let process = Process::start("controller", command, dir.path())?;
        // It leads and has listed all nodes, as in a running cluster.
        let gvk = GroupVersionKind::gvk("whereabouts.cni.cncf.io", "v1alpha1", "NodeSlicePool");
        let pools: Api<DynamicObject> = Api::namespaced_with(
            cluster.client().await?,
            &namespace,
            &ApiResource::from_gvk(&gvk),
        );
        self.network(&cluster, &namespace, "warm", "172.16.0.0/12", "/25")
            .await?;
        served(pools.clone(), "warm".to_owned(), self.nodes).await?;

        let started = Instant::now();
        for n in 0..self.networks {
            let range = format!("{}.0.0.0/8", 10 + n);
            self.network(&cluster, &namespace, &format!("net-{n}"), &range, "/21")
                .await?;
        }
        for n in 0..self.networks {
            served(pools.clone(), format!("net-{n}"), self.nodes).await?;
        }
        let all = started.elapsed().as_secs_f64();

        let mut times: Vec<f64> = Vec::new();
        for n in self.nodes..self.nodes + self.singles {
            let waiting = tokio::spawn(served(pools.clone(), "net-0".to_owned(), n + 1));
            // The watch has started by then.
            tokio::time::sleep(SETTLED).await;
            let started = Instant::now();
            make(&nodes, n).await?;
            waiting.await??;
            times.push(started.elapsed().as_secs_f64());
        }
        times.sort_by(f64::total_cmp);
        let (now, most) = memory(&process)?;
        let many = self.nodes;
        Ok(vec![
            Figure::new(
                format!("{many} nodes x {} networks sliced", self.networks),
                all,
                "s",
                Target::AtMost(10.0),
            ),
            Figure::new(
                format!(
                    "one node more, the slowest of {} (median {:.2} s)",
                    self.singles,
                    times.get(times.len() / 2).copied().unwrap_or_default()
                ),
                times.last().copied().unwrap_or_default(),
                "s",
                Target::AtMost(1.0),
            ),
            Figure::new(
                "memory of the controller (RSS)",
                now,
                "MB",
                Target::AtMost(150.0),
            ),
            Figure::new("its highest", most, "MB", Target::AtMost(150.0)),
        ])
    }

    async fn network(
        &self,
        cluster: &Cluster,
        namespace: &str,
        name: &str,
        range: &str,
        size: &str,
    ) -> Result<()> {
        let ipam = json!({
            "type": "whereabouts", "range": range, "node_slice_size": size, "network_name": name,
        });
        let config =
            json!({ "cniVersion": "0.3.1", "name": name, "type": "macvlan", "ipam": ipam });
        cluster
            .apply_object(json!({
                "apiVersion": "k8s.cni.cncf.io/v1",
                "kind": "NetworkAttachmentDefinition",
                "metadata": { "name": name, "namespace": namespace },
                "spec": { "config": config.to_string() },
            }))
            .await?;
        Ok(())
    }
}

/// Waits until this many nodes have a slice. It watches instead of polling: a response of thousands of rows costs the
/// API server more than what is measured.
async fn served(pools: Api<DynamicObject>, name: String, nodes: usize) -> Result<()> {
    let held = |pool: Option<&DynamicObject>| {
        let rows = pool.and_then(|pool| pool.data["status"]["allocations"].as_array());
        let held = rows
            .into_iter()
            .flatten()
            .filter(|row| row["nodeName"] != "");
        held.count() == nodes
    };
    let waited = tokio::time::timeout(TIMEOUT, await_condition(pools, &name, held)).await;
    let Ok(found) = waited else {
        bail!("{name} is not served after {TIMEOUT:?}");
    };
    let found = found?.with_context(|| format!("{name} is gone"))?;
    let rows = found.data["status"]["allocations"].as_array();
    let rows = rows.context("rows")?;
    let mut slices: Vec<&str> = rows
        .iter()
        .filter_map(|row| row["sliceRange"].as_str())
        .collect();
    slices.sort_unstable();
    slices.dedup();
    ensure!(
        slices.len() == rows.len(),
        "one slice of {name} has two rows"
    );
    Ok(())
}

/// A node as a cloud has it.
async fn make(nodes: &Api<Node>, n: usize) -> Result<()> {
    let images: Vec<Value> = (0..40)
        .map(|image| {
            let name = format!("registry.example/team-{image}/service-with-a-name:v1.{image}.0");
            let digest =
                format!("registry.example/team-{image}/service-with-a-name@sha256:{image:064x}");
            json!({ "names": [digest, name], "sizeBytes": 123_456_789 })
        })
        .collect();
    let labels = json!({
        "kubernetes.io/hostname": format!("ip-10-0-{n}"), "kubernetes.io/os": "linux",
        "node.kubernetes.io/instance-type": "m7i.4xlarge", "topology.kubernetes.io/zone": "eu-central-1a",
    });
    let node: Node = serde_json::from_value(json!({
        "metadata": { "name": format!("ip-10-0-{n}.eu-central-1.compute.internal"), "labels": labels },
        "status": { "images": images },
    }))?;
    let name = node.metadata.name.clone().unwrap_or_default();
    nodes.create(&PostParams::default(), &node).await?;
    let status = kube::api::Patch::Merge(json!({ "status": node.status }));
    nodes
        .patch_status(&name, &kube::api::PatchParams::default(), &status)
        .await?;
    Ok(())
}

/// The resident memory of the process, now and at most, in MB.
fn memory(process: &Process) -> Result<(f64, f64)> {
    let text = fs::read_to_string(format!("/proc/{}/status", process.pid()?))?;
    let field = |name: &str| -> Result<f64> {
        let line = text.lines().find(|line| line.starts_with(name));
        let kilobytes = line.and_then(|line| line.split_whitespace().nth(1));
        Ok(kilobytes.context("no such line")?.parse::<f64>()? / 1024.0)
    };
    Ok((field("VmRSS")?, field("VmHWM")?))
}
