//! The ADDs of all nodes: some nodes at a time, each pod to all networks one after the other, with retries as a kubelet
//! would.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use indicatif::ProgressBar;

use super::Simulate;
use super::node::{Network, Node};
use super::proof::Allocated;
use crate::figure::progress;

/// Tries of an ADD, as a kubelet makes them.
pub const TRIES: usize = 10;
pub const PAUSE: Duration = Duration::from_secs(1);

/// What was answered, and when.
#[derive(Default)]
pub struct Outcome {
    pub allocated: Vec<Allocated>,
    pub times: Vec<Duration>,
    pub elapsed: Duration,
    /// ADDs that had to retry, and the first reason.
    pub again: usize,
    pub first: Option<String>,
}

impl Simulate {
    pub(super) async fn add_all(&self, nodes: &[Arc<Node>]) -> Result<Outcome> {
        let networks: Arc<[Network]> = self.all_networks()?.into();
        let total = nodes.len() * self.networks * self.pods;
        let bar = progress("ADDs are answered", total as u64);
        let turns = Arc::new(tokio::sync::Semaphore::new(self.at_once.max(1)));
        let answered = Arc::new(AtomicUsize::new(0));
        let started = Instant::now();
        let ticker = tokio::spawn(tell(Arc::clone(&answered), total, started, bar.clone()));
        let mut tasks = Vec::new();
        for node in nodes {
            let work = Work {
                node: Arc::clone(node),
                networks: Arc::clone(&networks),
                pods: self.pods,
                pause: Duration::from_millis(self.pause_ms),
                answered: Arc::clone(&answered),
            };
            let turns = Arc::clone(&turns);
            tasks.push(tokio::spawn(async move {
                let _turn = turns.acquire().await;
                work.run().await
            }));
        }
        let mut outcome = Outcome::default();
        for task in tasks {
            let one = task.await.context("a node's task")?;
            outcome.allocated.extend(one.allocated);
            outcome.times.extend(one.times);
            outcome.again += one.again;
            outcome.first = outcome.first.take().or(one.first);
        }
        outcome.elapsed = started.elapsed();
        ticker.abort();
        bar.finish_and_clear();
        Ok(outcome)
    }
}

/// What one node has to do.
struct Work {
    node: Arc<Node>,
    networks: Arc<[Network]>,
    pods: usize,
    pause: Duration,
    answered: Arc<AtomicUsize>,
}

impl Work {
    async fn run(self) -> Outcome {
        let mut outcome = Outcome::default();
        for number in 0..self.pods {
            if number > 0 {
                tokio::time::sleep(self.pause).await;
            }
            let pod = format!("{}-pod-{number:03}", self.node.name);
            for network in self.networks.iter() {
                let started = Instant::now();
                let mut tries = 0;
                loop {
                    match self.node.add(&pod, network).await {
                        Ok(address) => {
                            outcome.allocated.push(Allocated {
                                node: self.node.name.clone(),
                                pod: pod.clone(),
                                network: network.name.clone(),
                                address,
                            });
                            self.answered.fetch_add(1, Ordering::Relaxed);
                            break;
                        }
                        Err(text) => {
                            outcome.again += 1;
                            outcome.first.get_or_insert(text);
                            tries += 1;
                            if tries == TRIES {
                                break;
                            }
                            tokio::time::sleep(PAUSE).await;
                        }
                    }
                }
                outcome.times.push(started.elapsed());
            }
        }
        outcome
    }
}

/// Updates the progress bar; without a terminal, prints the progress every few seconds.
async fn tell(answered: Arc<AtomicUsize>, total: usize, started: Instant, bar: ProgressBar) {
    let mut ticks = 0u32;
    loop {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let now = answered.load(Ordering::Relaxed);
        bar.set_position(now as u64);
        ticks += 1;
        if bar.is_hidden() && ticks.is_multiple_of(10) {
            let seconds = started.elapsed().as_secs_f64();
            let _ = writeln!(
                std::io::stderr(),
                "{seconds:6.1} s  {now} of {total} answered"
            );
        }
    }
}
