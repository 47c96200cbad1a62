//! Pods of this node: what the node's journal says it was given, against the pods that are still here.
//!
//! Costs nothing while all is well: the journal is a file of this node, the pods come by a watch. Only what is suspected
//! and old enough is asked of the API server. What the journal does not have (written by whereabouts, or without
//! an agent) is left to the sweep.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use berth_ledger::{ClaimKey, ClaimKind, LedgerError};
use tokio::time::{Instant, sleep, sleep_until};

use super::clock::Clock;
use super::facts::{Held, Note, Observed, PodRef, Reservation};
use super::hands::{Hands, Outcome};
use super::judge::Verdict;
use super::pairing::expected_name;
use super::plan::{Memory, Patience, Step, plan, verdict};
use super::sandbox;
use super::terms::read_terms;
use super::watch::NodePods;
use crate::attachment::attribute;
use crate::journal::Journal;
use crate::policy::Policies;

/// Pods go in groups: what happens within this time is looked at together.
const GATHER: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub(super) struct Local {
    pub journal: Arc<Journal>,
    pub pods: Arc<NodePods>,
    pub hands: Arc<Hands>,
    pub patience: Patience,
    /// A look without any reason, in case one was missed.
    pub interval: Duration,
    pub node: String,
    /// The boot that this node is in.
    pub boot: String,
    pub flat_places: Vec<PathBuf>,
    pub policies: Arc<Policies>,
    pub clock: Clock,
}

impl Local {
    /// Looks whenever something may have gone, for ever.
    pub async fn run(self) {
        let mut memory = Memory::default();
        loop {
            let due = match self.look(&mut memory).await {
                Ok(due) => due,
                Err(error) => {
                    tracing::warn!(%error, "the node's journal can't be read; its pods are not collected");
                    None
                }
            };
            let idle = Instant::now() + self.interval;
            tokio::select! {
                () = self.pods.changed.notified() => sleep(GATHER).await,
                () = sleep_until(due.map_or(idle, |due| due.min(idle))) => {}
            }
        }
    }

    /// One look; says when the next is due.
    async fn look(&self, memory: &mut Memory) -> Result<Option<Instant>, LedgerError> {
        let held = self.journalled().await?;
        let names = held
            .iter()
            .filter_map(|held| PodRef::parse(&held.record.owner.subject));
        let names: BTreeSet<PodRef> = names.collect();
        let Some(pods) = self.pods.sights(names.iter()) else {
            return Ok(None);
        };
        let observed = Observed {
            held,
            pods,
            here: self.node.clone(),
            ..Observed::default()
        };
        let now = self.clock.now();
        let planned = plan(&observed, memory, &self.patience, now);
        *memory = planned.memory;
        self.carry_out(planned.steps).await;
        // No event tells that a sandbox is gone.
        let unreleased = |held: &Held| verdict(held, &observed) == Verdict::Unreleased;
        let again = observed.held.iter().any(unreleased);
        let again = again.then(|| now.plus(self.patience.grace));
        let due = planned.next.into_iter().chain(again).min();
        Ok(due.map(|due| self.clock.instant(due)))
    }

    /// The journal's entries, as far as they are of pods.
    async fn journalled(&self) -> Result<Vec<Held>, LedgerError> {
        let mut held = Vec::new();
        let of_slices = self.journal.of_slices().await?;
        for (network, entry) in self.journal.all().await?.into_iter().chain(of_slices) {
            let mut record = entry.record;
            if record.attribute(attribute::NODE) != Some(&self.node) {
                // Taken in from a pool of all nodes: judged by its pod alone.
                record.attributes.remove(attribute::NODE);
                record.attributes.remove(attribute::NETNS);
            }
            let note = Note {
                network: Some(network),
                pod_uid: record.attribute(attribute::POD_UID).map(str::to_owned),
                node: None,
                rebooted: sandbox::is_of_older_boot(&record, &self.boot),
                sandbox: sandbox::of(&record, &self.boot),
            };
            held.push(Held {
                pool: entry.pool,
                address: entry.address,
                record,
                note,
            });
        }
        Ok(held)
    }

    async fn carry_out(&self, steps: Vec<Step>) {
        if steps.is_empty() {
            return;
        }
        let read = read_terms(&self.hands.witness, Some(&self.policies), &self.flat_places);
        let terms = match read.await {
            Ok(terms) => terms,
            Err(blind) => {
                tracing::debug!(%blind, "nothing is collected before the networks can be read");
                return;
            }
        };
        let steps = steps.into_iter().map(with_reservation).collect();
        for (step, outcome) in self.hands.persist(steps, &terms).await {
            if let Step::Free { held, .. } = step
                && matches!(outcome, Outcome::Done | Outcome::Outrun)
                && let Some(network) = &held.note.network
            {
                self.journal
                    .forget_one(network, held.address, &held.record)
                    .await;
            }
        }
    }
}

/// This look has not seen any reservations: the entry's own is known by its name.
fn with_reservation(step: Step) -> Step {
    match step {
        Step::Free { held, reason, .. } => {
            let own = expected_name(&held).map(|name| Reservation {
                key: ClaimKey::new(ClaimKind::Reservation, name),
                record: held.record.clone(),
            });
            Step::Free {
                reservations: own.into_iter().collect(),
                held,
                reason,
            }
        }
        other => other,
    }
}
