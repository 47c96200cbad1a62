//! All pools of the cluster against all pods that they name: for whatever no event told of.
//!
//! One agent at a time does it ([`super::turn`]). Pools are read before pods: an entry was made for a pod that existed,
//! so a pod that is missing from the later list has gone since.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant as Wall};

use berth_core::Address;
use berth_ledger::{ClaimKind, LedgerError, PoolKey, SharedLedger, Snapshot};
use futures::StreamExt;
use rand::RngExt;
use tokio::time::{Instant, sleep, sleep_until};

use super::clock::Clock;
use super::facts::{Held, Note, Observed, PodRef, Reservation, Sight};
use super::hands::Hands;
use super::judge::Verdict;
use super::metrics::GarbageMetrics;
use super::plan::{Memory, Patience, Step, plan, verdict};
use super::terms::{Terms, read_terms};
use super::turn::Turn;
use super::unheld;
use super::witness::{Blind, Witness};
use crate::sticky::Sticky;

/// Pools read at a time: each may have a megabyte.
const AT_ONCE: usize = 4;

/// Why a sweep was given up. The next one begins anew.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    #[error(transparent)]
    Blind(#[from] Blind),
}

#[derive(Debug)]
pub(super) struct Sweep {
    pub ledger: SharedLedger,
    pub witness: Witness,
    pub sticky: Sticky,
    pub hands: Arc<Hands>,
    pub turn: Turn,
    pub patience: Patience,
    pub interval: Duration,
    pub flat_places: Vec<PathBuf>,
    pub metrics: GarbageMetrics,
    pub clock: Clock,
}

impl Sweep {
    /// Sweeps when it is this agent's turn, for ever.
    pub async fn run(mut self) {
        let mut memory = Memory::default();
        // Agents of a whole cluster may start at once.
        sleep(self.draw(0.0..0.01)).await;
        loop {
            match self.turn.take().await {
                Ok(true) => {
                    if let Err(broken) = self.sweep(&mut memory).await {
                        tracing::warn!(%broken, "the sweep was given up; another follows");
                    }
                }
                Ok(false) => {}
                Err(error) => tracing::warn!(%error, "the mark of the last sweep can't be seen"),
            }
            sleep(self.draw(0.75..1.25)).await;
        }
    }

    /// A part of the interval, so that agents do not stay in step.
    fn draw(&self, parts: Range<f64>) -> Duration {
        self.interval.mul_f64(rand::rng().random_range(parts))
    }

    /// Looks, and looks again when what it suspects is old enough.
    async fn sweep(&self, memory: &mut Memory) -> Result<(), Broken> {
        let end = Instant::now() + self.interval + self.patience.node_grace;
        loop {
            let began = Wall::now();
            let (observed, terms) = self.observe().await?;
            let planned = plan(&observed, memory, &self.patience, self.clock.now());
            *memory = planned.memory;
            for dispute in &planned.disputes {
                tracing::error!(
                    address = %dispute.address, entry = %dispute.entry, other = %dispute.other,
                    "two living pods hold one address; one of them has to go"
                );
            }
            let gauge = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
            self.metrics.disputes.set(gauge(planned.disputes.len()));
            self.metrics.suspects.set(gauge(memory.len()));
            self.metrics.count_sweep(began.elapsed());
            let steps = self.without_views(planned.steps).await?;
            self.hands.persist(steps, &terms).await;
            self.enter_unheld(&observed, &terms).await?;
            match planned.next.map(|due| self.clock.instant(due)) {
                Some(due) if due < end => sleep_until(due).await,
                _ => return Ok(()),
            }
        }
    }

    /// Less what would be freed in a node's published slices: only that node may, its ledger is the truth.
    async fn without_views(&self, mut steps: Vec<Step>) -> Result<Vec<Step>, Broken> {
        if !steps.iter().any(|step| matches!(step, Step::Free { .. })) {
            return Ok(steps);
        }
        let views = self.ledger.views().await?;
        steps.retain(|step| match step {
            Step::Free { held, .. } => !views.contains(&held.pool.name),
            _ => true,
        });
        Ok(steps)
    }

    /// What is taken by another in between is that other's; what fails is found again by the next sweep.
    async fn enter_unheld(&self, observed: &Observed, terms: &Terms) -> Result<(), Broken> {
        for one in unheld::find(&self.sticky, observed, terms).await? {
            if let Err(error) = unheld::enter(&self.ledger, &one).await {
                tracing::warn!(?one, %error, "an address that a claim records is not held yet");
            }
        }
        Ok(())
    }

    async fn observe(&self) -> Result<(Observed, Terms), Broken> {
        let (held, pools, all_pools) = self.entries().await?;
        let claims = self.ledger.claims(ClaimKind::Reservation).await?;
        let reservations: Vec<Reservation> = claims
            .into_iter()
            .map(|(key, record)| Reservation { key, record })
            .collect();
        let subjects = held
            .iter()
            .map(|held| &held.record.owner.subject)
            .chain(reservations.iter().map(|one| &one.record.owner.subject));
        let named: BTreeSet<PodRef> = subjects.filter_map(|one| PodRef::parse(one)).collect();
        let pods = self.witness.pods(named).await?;
        let nodes = self.witness.nodes(bound_to(&pods)).await?;
        let terms = read_terms(&self.witness, &self.flat_places).await?;
        let mut observed = Observed {
            held,
            pools,
            reservations,
            all_pools,
            pods,
            nodes,
            overlap_checked: terms.overlap_checked(),
            ..Observed::default()
        };
        observed.kept = self.kept(&observed, &terms).await?;
        Ok((observed, terms))
    }

    /// The entries of pods that are gone which a StatefulSet or a claim keeps all the same.
    async fn kept(
        &self,
        observed: &Observed,
        terms: &Terms,
    ) -> Result<HashSet<(String, Address)>, Blind> {
        let mut kept = HashSet::new();
        for held in &observed.held {
            let Some(terms) = terms.of(&held.pool.name) else {
                continue;
            };
            let Some(pod) = PodRef::parse(&held.record.owner.subject) else {
                continue;
            };
            if terms.wishes.any()
                && matches!(verdict(held, observed), Verdict::Gone(_))
                && self
                    .sticky
                    .keeps(terms.wishes, &terms.called(), &pod, held.address)
                    .await?
            {
                kept.insert((held.pool.name.clone(), held.address));
            }
        }
        Ok(kept)
    }

    /// Every entry of every pool, the pools, and whether that is all of them.
    async fn entries(&self) -> Result<(Vec<Held>, HashSet<String>, bool), LedgerError> {
        let pools = self.ledger.pools().await?;
        let loads = pools.into_iter().map(|pool| async move {
            let loaded = self.ledger.load(&pool).await;
            (pool, loaded)
        });
        let mut loads = futures::stream::iter(loads).buffer_unordered(AT_ONCE);
        let mut held = Vec::new();
        let mut read = HashSet::new();
        let mut all = true;
        while let Some((pool, loaded)) = loads.next().await {
            match loaded {
                Ok(snapshot) => {
                    held.extend(held_in(&pool, &snapshot));
                    read.insert(pool.name);
                }
                // A person has to look at that one (I5); the others need not wait for it.
                Err(error @ LedgerError::Unreadable { .. }) => {
                    tracing::warn!(%pool, %error, "a pool is left out of the sweep");
                    all = false;
                }
                Err(error) => return Err(error),
            }
        }
        Ok((held, read, all))
    }
}

fn held_in(pool: &PoolKey, snapshot: &Snapshot) -> Vec<Held> {
    let entries = snapshot.pool.records().chain(snapshot.pool.rivals());
    let held = entries.map(|(address, record)| Held {
        pool: pool.clone(),
        address,
        record: record.clone(),
        note: Note::default(),
    });
    held.collect()
}

/// The nodes of the pods that were found.
fn bound_to(pods: &HashMap<PodRef, Sight>) -> BTreeSet<String> {
    let node = |sight: &Sight| match sight {
        Sight::There(pod) => pod.node.clone(),
        Sight::Absent => None,
    };
    pods.values().filter_map(node).collect()
}
