//! The pods front compared with its peers: whereabouts v0.9.4 on the same API server, host-local on the same disk.
//!
//! Everything is measured as a runtime sees it, a process per call. Peers alternate, call by call wherever one does not
//! load the machine for the other, so that a slow machine slows all. Every run is checked: an address that was
//! allocated twice or is not recorded is an error, not a slow figure.

mod crowd;
mod full;
mod gathered;
mod memory;
mod one;
pub(crate) mod plugin;
mod sliced;
pub(crate) mod testbed;

use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum};

use crate::figure::Figure;
use testbed::Testbed;

#[derive(Args, Debug)]
pub struct Pods {
    /// Measure these only.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Subject>,
    /// Calls of each plugin, where calls take turns.
    #[arg(long, default_value_t = 30)]
    rounds: usize,
    /// Pods that start at once on one node.
    #[arg(long, default_value_t = 32)]
    pods: usize,
    /// How many times they do.
    #[arg(long, default_value_t = 3)]
    crowds: usize,
    /// Nodes that each work by themselves.
    #[arg(long, default_value_t = 64)]
    nodes: usize,
    /// Pods of each of them.
    #[arg(long, default_value_t = 5)]
    each: usize,
    /// How many rounds through the leader desk, and of whereabouts by itself, alternating.
    #[arg(long, default_value_t = 4)]
    turns: usize,
    /// Entries of a full pool.
    #[arg(long, default_value_t = 10_000)]
    held: usize,
    /// Addresses that the nodes of a sliced network hold.
    #[arg(long, default_value_t = 100_000)]
    live: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Subject {
    /// VERSION against an empty process.
    Version,
    /// One ADD, empty pool.
    One,
    /// Many pods at once on one node.
    Crowd,
    /// Many nodes on one range.
    Nodes,
    /// The same through the leader desk.
    Gathered,
    /// One ADD from a node's slice; the same while other nodes hold thousands.
    Sliced,
    /// One ADD, full pool.
    Full,
    /// The agent's memory.
    Memory,
}

impl Pods {
    pub async fn run(&self) -> Result<Vec<Figure>> {
        let testbed = Testbed::new().await?;
        let mut figures = Vec::new();
        for subject in Subject::value_variants() {
            if !self.only.is_empty() && !self.only.contains(subject) {
                continue;
            }
            figures.extend(match subject {
                Subject::Version => one::version(&testbed, self.rounds).await?,
                Subject::One => one::add(&testbed, self.rounds).await?,
                Subject::Crowd => crowd::pods(&testbed, self.pods, self.crowds).await?,
                Subject::Nodes => crowd::nodes(&testbed, self.nodes, self.each).await?,
                Subject::Gathered => {
                    gathered::nodes(&testbed, self.nodes, self.each, self.turns).await?
                }
                Subject::Sliced => sliced::add(&testbed, self.rounds, self.live).await?,
                Subject::Full => full::full(&testbed, self.held, self.rounds).await?,
                Subject::Memory => memory::memory(&testbed).await?,
            });
        }
        Ok(figures)
    }
}

/// The time within which `part` of the calls completed, in milliseconds.
pub(crate) fn quantile(times: &[Duration], part: f64) -> f64 {
    let mut times = times.to_vec();
    times.sort_unstable();
    let at = ((times.len() as f64 * part) as usize).min(times.len().saturating_sub(1));
    times.get(at).map_or(0.0, |time| time.as_secs_f64() * 1e3)
}

fn median(times: &[Duration]) -> f64 {
    quantile(times, 0.5)
}
