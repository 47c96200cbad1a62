//! Berth's figures, measured on this machine.
//!
//! Each subject prints a table: what was measured, its target, whether it holds. Figures are compared within one run
//! wherever possible, because absolute values depend on the machine. Exits with 1 if a target is missed.
#![allow(clippy::print_stdout, reason = "printing is what it is for")]

mod claims;
mod controller;
mod engine;
mod engine_kube;
mod figure;
mod gcp;
mod hostile;
mod memory;
mod node_pool;
mod nodes;
mod parallel;
mod pods;
mod policies;
mod shared;
mod simulate;
mod vms;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

#[derive(Parser)]
#[command(about = "Measures Berth against the figures it promises")]
enum Bench {
    /// core and SQLite, no cluster; the plugin's size.
    Engine,
    /// A NodeIPPool of 2^20 offsets: core and the object's size, no cluster.
    NodePool,
    /// Nodes that join at once, one that joins, a pool created again, an idle agent: the nodes front on a real API
    /// server.
    Nodes(nodes::Nodes),
    /// The ledgers on a real API server: one desk against many, claims by name.
    EngineKube(engine_kube::EngineKube),
    /// The pods front against whereabouts and host-local, whole processes, on a real API server.
    Pods(pods::Pods),
    /// What the admission policies on agents cost an ADD.
    Policies(policies::Policies),
    /// The controller with 5,000 nodes: how long until all have slices, and its memory.
    Controller(controller::Controller),
    /// Thousands of agents in one process on a real API server: elastic slices, every answer checked.
    Simulate(simulate::Simulate),
    /// Peak memory of a sweep, of `berth pools` and of an ADD that lists, in a large cluster.
    Memory(memory::Memory),
    /// Honest ADDs next to thousands of hostile connections.
    Hostile(hostile::Hostile),
    /// gcp-ipam where an operation of Google's takes 3 s: pods that start together, end and move.
    Gcp(gcp::Gcp),
    /// Processes that share one ConfigMap of VMs, against get-update-retry.
    Vms(vms::Vms),
    /// One of those processes.
    #[command(hide = true)]
    VmsWorker(vms::VmsWorker),
}

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let figures = match Bench::parse() {
        Bench::Engine => engine::run().await?,
        Bench::NodePool => node_pool::run()?,
        Bench::Nodes(bench) => bench.run().await?,
        Bench::EngineKube(bench) => bench.run().await?,
        Bench::Pods(bench) => bench.run().await?,
        Bench::Policies(bench) => bench.run().await?,
        Bench::Controller(bench) => bench.run().await?,
        Bench::Simulate(bench) => bench.run().await?,
        Bench::Memory(bench) => bench.run().await?,
        Bench::Hostile(bench) => bench.run().await?,
        Bench::Gcp(bench) => bench.run().await?,
        Bench::Vms(bench) => bench.run().await?,
        Bench::VmsWorker(worker) => {
            println!("{}", serde_json::to_string(&worker.run().await?)?);
            return Ok(ExitCode::SUCCESS);
        }
    };
    println!("{}", figure::table(&figures));
    let holds = figures.iter().all(figure::Figure::holds);
    Ok(if holds {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
