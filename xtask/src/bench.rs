//! The benchmarks, built with optimisation and run one at a time.

use std::path::Path;
use std::process::Command;

use anyhow::Result;
use clap::{Args, ValueEnum};

use crate::steps::{self, cargo, step};
use crate::{parts, test};

#[derive(Args)]
pub struct Bench {
    /// What to measure.
    subject: Subject,
    /// Arguments of the benchmark: `-- --only one`, for instance.
    #[arg(last = true)]
    arguments: Vec<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Subject {
    /// core and SQLite: allocate and release, durable claims through a desk.
    Engine,
    /// A NodeIPPool of 2^20 offsets, half full: allocate in core, and the object's size.
    NodePool,
    /// 200 nodes that join at once, against handlers that each write the pool.
    Nodes,
    /// The custom-resource and ConfigMap ledgers on a real API server.
    EngineKube,
    /// The pods front against whereabouts and host-local.
    Pods,
    /// Slices for 5,000 nodes.
    Controller,
    /// Thousands of agents in one process, on elastic slices.
    Simulate,
    /// Peak memory of what reads all pools and reservations.
    Memory,
    /// Honest ADDs next to thousands of hostile connections: latency and memory.
    Hostile,
    /// ADDs with and without the admission policies on agents.
    Policies,
    /// gcp-ipam on a local cloud whose operations take 3 s.
    Gcp,
    /// Processes that share one ConfigMap of VMs.
    Vms,
}

/// Peak memory of what reads all pools; fails above what the manifests allow an agent.
pub fn memory() -> Result<()> {
    let bench = Bench {
        subject: Subject::Memory,
        arguments: vec!["--most".to_owned(), "128".to_owned()],
    };
    bench.run()
}

impl Bench {
    pub fn run(&self) -> Result<()> {
        let name = match self.subject {
            Subject::Engine => "engine",
            Subject::NodePool => "node-pool",
            Subject::Nodes => "nodes",
            Subject::EngineKube => "engine-kube",
            Subject::Pods => "pods",
            Subject::Controller => "controller",
            Subject::Simulate => "simulate",
            Subject::Memory => "memory",
            Subject::Hostile => "hostile",
            Subject::Policies => "policies",
            Subject::Gcp => "gcp",
            Subject::Vms => "vms",
        };
        if !matches!(self.subject, Subject::Engine | Subject::NodePool) {
            parts::ensure()?;
        }
        step("plugin", test::plugin)?;
        // In one call: separately, the two packages would ask for different features of shared dependencies, and each
        // call would compile all of it again. `berth` contains the measured agents.
        let packages = ["--package", "berth", "--package", "berth-bench"];
        step("berth and the benchmarks", || {
            cargo(&[&["build", "--profile", "dist"], packages.as_slice()].concat())
        })?;
        let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/dist/berth-bench");
        steps::run(Command::new(built).arg(name).args(&self.arguments))
    }
}
