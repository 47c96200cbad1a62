//! The benchmarks, built with optimisation and run one at a time.

use anyhow::Result;
use clap::{Args, ValueEnum};

use crate::steps::{cargo, step};
use crate::{parts, test};

#[derive(Args)]
pub struct Bench {
    /// What to measure.
    subject: Subject,
}

#[derive(Clone, Copy, ValueEnum)]
enum Subject {
    /// core and SQLite: allocate and release, durable claims through a desk.
    Engine,
    /// The custom-resource and ConfigMap ledgers on a real API server.
    EngineKube,
    /// The pods front against whereabouts and host-local.
    Pods,
    /// Processes that share one ConfigMap of VMs.
    Vms,
}

impl Bench {
    pub fn run(&self) -> Result<()> {
        let name = match self.subject {
            Subject::Engine => "engine",
            Subject::EngineKube => {
                parts::ensure()?;
                "engine-kube"
            }
            Subject::Pods => {
                parts::ensure()?;
                // The agents that are measured.
                step("berth", || {
                    cargo(&["build", "--release", "--package", "berth"])
                })?;
                "pods"
            }
            Subject::Vms => {
                parts::ensure()?;
                "vms"
            }
        };
        step("plugin", test::plugin)?;
        cargo(&[
            "run",
            "--release",
            "--quiet",
            "--package",
            "berth-bench",
            "--",
            name,
        ])
    }
}
