//! Carries steps out: the last look, then the deed, through desks and ledger.
//!
//! ```text
//!   Free:    look for the pod (quorum) -> gone still? -> release, naming the holder -> end its reservations
//!   End:     look for the pod and its node (quorum) -> gone still? -> remove, naming the holder
//!   Reserve: look at the entry and its pod (quorum) -> both there still? -> create
//! ```
//! The entry goes before its reservation: its release tells whether the judged holder is still the holder. A pod of the
//! same name that takes the address again in between has written its own container into the reservation, which
//! therefore stays. A crash in between leaves a reservation without an entry, which the next sweep ends.
//!
//! Goes on past every failure: one pool's trouble does not keep the addresses of another.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use berth_core::plan::Selector;
use berth_core::{Answer, Record, Release, Request};
use berth_desk::{DeskError, Desks};
use berth_ledger::{ClaimKey, LedgerError, SharedLedger};
use futures::StreamExt;

use super::events::Recorder;
use super::facts::{Held, Note, PodRef, Reservation, Sandbox, Sight};
use super::judge::{Verdict, judge, may_run, may_run_reserved};
use super::metrics::GarbageMetrics;
use super::plan::Step;
use super::sandbox;
use super::terms::Terms;
use super::witness::{Blind, NodeSight, Witness};
use crate::reserve::end;
use crate::sticky::Sticky;

/// Steps under way together: enough to fill a desk's commit, too few to trouble an API server.
const AT_ONCE: usize = 16;

/// Between the tries of a step that fails.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(5)];

/// The policies on whose entries an agent may change; the API server names the one that denies a write.
const POLICY: &str = "berth-agents-";

/// What became of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// The last look found the holder alive, or could not tell.
    Spared,
    /// Somebody else has it by now, or nobody.
    Outrun,
    /// To be tried again.
    Failed,
}

#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error(transparent)]
    Blind(#[from] Blind),
    #[error(transparent)]
    Desk(#[from] DeskError),
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

impl Trouble {
    /// The entry is of another node, and this account may not free it: the controller does (docs/security.md).
    fn is_policy(&self) -> bool {
        let error = match self {
            Trouble::Desk(error) => error.ledger(),
            Trouble::Ledger(error) => Some(error),
            Trouble::Blind(_) => None,
        };
        let Some(LedgerError::Rejected { rejection, .. }) = error else {
            return false;
        };
        rejection.to_string().contains(POLICY)
    }
}

#[derive(Debug)]
pub(super) struct Hands {
    pub witness: Witness,
    pub ledger: SharedLedger,
    /// Desks of the collector's own: they hold no copies of pools that this node does not use. [`Hands::close_desks`] closes
    /// them.
    pub desks: Desks,
    pub recorder: Recorder,
    pub sticky: Sticky,
    pub metrics: GarbageMetrics,
    /// The node that this is, and its boot.
    pub node: String,
    pub boot: String,
}

/// A holder that was looked for once more.
struct Last {
    verdict: Verdict,
    /// The pod's UID, where there is a pod or a note of one.
    uid: Option<String>,
}

impl Hands {
    /// Does all that can be done, in a few tries; gives back what became of each step. What still fails is reported on
    /// the pods, and is suspected no less at the next look.
    pub async fn persist(&self, steps: Vec<Step>, terms: &Terms) -> Vec<(Step, Outcome)> {
        let mut done = Vec::with_capacity(steps.len());
        let mut left = steps;
        for pause in PAUSES {
            let (failed, settled): (Vec<_>, Vec<_>) = self
                .carry_out(left, terms)
                .await
                .into_iter()
                .partition(|(_, outcome)| *outcome == Outcome::Failed);
            done.extend(settled);
            left = failed.into_iter().map(|(step, _)| step).collect();
            if left.is_empty() {
                return done;
            }
            tokio::time::sleep(pause).await;
        }
        for (step, outcome) in self.carry_out(left, terms).await {
            if outcome == Outcome::Failed {
                self.report_failure(&step).await;
            }
            done.push((step, outcome));
        }
        done
    }

    /// Closes the desks of pools in which nothing was released lately, for ever: each has a copy of its pool.
    pub async fn close_desks(&self, every: Duration) {
        loop {
            tokio::time::sleep(every).await;
            self.count_desks();
        }
    }

    fn count_desks(&self) {
        let open = self.desks.close_idle();
        self.metrics
            .desks
            .set(i64::try_from(open).unwrap_or(i64::MAX));
    }

    async fn carry_out(&self, steps: Vec<Step>, terms: &Terms) -> Vec<(Step, Outcome)> {
        let deeds = steps.into_iter().map(|step| async {
            let outcome = match &step {
                Step::Free {
                    held, reservations, ..
                } => self.free(held, reservations, terms).await,
                Step::End { reservation, .. } => self.end(reservation).await,
                Step::Reserve { held, key } => self.reserve(held, key).await,
            };
            let outcome = outcome.unwrap_or_else(|trouble| {
                if trouble.is_policy() {
                    tracing::debug!(subject = subject(&step), %trouble, "left to the controller");
                    return Outcome::Spared;
                }
                tracing::warn!(subject = subject(&step), %trouble, "not collected; it is tried again");
                Outcome::Failed
            });
            self.count(outcome);
            (step, outcome)
        });
        let done = futures::stream::iter(deeds).buffered(AT_ONCE).collect();
        let done = done.await;
        self.count_desks();
        done
    }

    /// Tells the pods' owners that their addresses stay held for now.
    async fn report_failure(&self, step: &Step) {
        if let Step::Free { held, .. } = step
            && let Some(pod) = PodRef::parse(&held.record.owner.subject)
        {
            self.recorder
                .failed(&pod, held.note.pod_uid.as_deref())
                .await;
        }
    }

    async fn free(
        &self,
        held: &Held,
        reservations: &[Reservation],
        terms: &Terms,
    ) -> Result<Outcome, Trouble> {
        let owner = &held.record.owner;
        let last = self.look(&owner.subject, &held.note).await?;
        let Verdict::Gone(reason) = last.verdict else {
            return Ok(Outcome::Spared);
        };
        if reason.is_of_the_object() && self.may_run(held).await? {
            return Ok(Outcome::Spared);
        }
        let of_pool = terms.of(&held.pool.name);
        if let (Some(terms), Some(pod)) = (of_pool, PodRef::parse(&owner.subject))
            && self
                .sticky
                .keeps(terms.wishes, &terms.called(), &pod, held.address)
                .await?
        {
            return Ok(Outcome::Spared);
        }
        let release = Release {
            selector: Selector::Address {
                address: held.address,
                holder: held.record.clone(),
            },
            rest: of_pool.map_or(Duration::ZERO, |terms| terms.cooldown),
        };
        let desk = self.desks.of(&held.pool);
        let freed = match desk.submit(Request::Release(release)).await? {
            Answer::Released(freed) => !freed.is_empty(),
            _ => false,
        };
        if !freed {
            return Ok(Outcome::Outrun);
        }
        self.metrics.count_freed(&reason);
        tracing::info!(
            address = %held.address, pool = %held.pool, %owner, handle = %held.record.handle, %reason,
            "an address was collected"
        );
        let network = held
            .note
            .network
            .as_deref()
            .or(of_pool.map(|terms| terms.network.as_str()))
            .unwrap_or(&held.pool.name);
        if let Some(pod) = PodRef::parse(&owner.subject) {
            self.recorder
                .collected(&pod, last.uid.as_deref(), held.address, network)
                .await;
        }
        for reservation in reservations {
            // The address is free in its own pool already: what is left of it is an orphan, for the next sweep.
            let place = (&held.pool, held.address);
            let judged = Record::new(reservation.record.owner.clone(), held.record.handle.clone());
            if let Err(error) = end(&*self.ledger, &reservation.key, place, &judged).await {
                tracing::warn!(reservation = %reservation.key, %error, "a reservation stays until the next sweep");
            }
        }
        Ok(Outcome::Done)
    }

    /// Whether the container may run although its pod object is gone, as its node and its sandbox are now.
    async fn may_run(&self, held: &Held) -> Result<bool, Blind> {
        let mut now = held.clone();
        if held.note.sandbox != Sandbox::Unknown {
            now.note.sandbox = sandbox::of(&held.record, &self.boot);
        }
        let lost = self.lost(held.node()).await?;
        Ok(may_run(&now, &self.node, &lost))
    }

    /// That other node, if it is lost.
    async fn lost(&self, node: Option<&str>) -> Result<HashSet<String>, Blind> {
        let mut lost = HashSet::new();
        if let Some(node) = node.filter(|node| *node != self.node)
            && self.witness.node_sight(node).await?.is_lost()
        {
            lost.insert(node.to_owned());
        }
        Ok(lost)
    }

    async fn end(&self, reservation: &Reservation) -> Result<Outcome, Trouble> {
        let subject = &reservation.record.owner.subject;
        let last = self.look(subject, &Note::default()).await?;
        let Verdict::Gone(reason) = last.verdict else {
            return Ok(Outcome::Spared);
        };
        if reason.is_of_the_object() {
            // What this node's journal has was left out of the plan.
            let (lost, none) = (self.lost(reservation.node()).await?, HashSet::new());
            if may_run_reserved(reservation, &self.node, &lost, &none) {
                return Ok(Outcome::Spared);
            }
        }
        if !self.remove(reservation).await? {
            return Ok(Outcome::Outrun);
        }
        self.metrics.ended.inc();
        tracing::info!(
            reservation = %reservation.key, owner = %reservation.record.owner, %reason,
            "a reservation without an entry was ended"
        );
        Ok(Outcome::Done)
    }

    /// False if somebody else has it by now (I6).
    async fn remove(&self, reservation: &Reservation) -> Result<bool, LedgerError> {
        match self
            .ledger
            .remove(&reservation.key, &reservation.record)
            .await
        {
            Ok(()) => Ok(true),
            Err(LedgerError::Taken { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn reserve(&self, held: &Held, key: &ClaimKey) -> Result<Outcome, Trouble> {
        let now = self.ledger.load(&held.pool).await?;
        let holds = |record: &Record| record.same_holder(&held.record);
        if !now.pool.holders(held.address).any(holds) {
            return Ok(Outcome::Outrun);
        }
        let last = self.look(&held.record.owner.subject, &held.note).await?;
        if last.verdict != Verdict::Alive && !held.record.is_by_hand() {
            return Ok(Outcome::Spared);
        }
        match self.ledger.create(key, &held.record).await {
            Ok(()) => {
                self.metrics.reserved.inc();
                tracing::info!(
                    reservation = %key, owner = %held.record.owner,
                    "an entry got the reservation that it lacked"
                );
                Ok(Outcome::Done)
            }
            Err(LedgerError::Taken { .. }) => Ok(Outcome::Outrun),
            Err(error) => Err(error.into()),
        }
    }

    /// The last look for a holder: nothing of it comes out of a cache.
    async fn look(&self, subject: &str, note: &Note) -> Result<Last, Blind> {
        let Some(pod) = PodRef::parse(subject) else {
            return Ok(Last {
                verdict: Verdict::Unjudged,
                uid: None,
            });
        };
        let sight = self.witness.pod(&pod).await?;
        let mut nodes = HashMap::new();
        let mut uid = note.pod_uid.clone();
        if let Sight::There(found) = &sight {
            uid = uid.or_else(|| found.uids.first().cloned());
            if let Some(node) = &found.node {
                let sight = self.witness.node_sight(node).await?;
                nodes.insert(node.clone(), sight != NodeSight::Absent);
            }
        }
        let pods = HashMap::from([(pod, sight)]);
        let verdict = judge(subject, note, &pods, &nodes);
        Ok(Last { verdict, uid })
    }

    fn count(&self, outcome: Outcome) {
        match outcome {
            Outcome::Done => {}
            Outcome::Spared => {
                self.metrics.spared.inc();
            }
            Outcome::Outrun => {
                self.metrics.outrun.inc();
            }
            Outcome::Failed => {
                self.metrics.failed.inc();
            }
        }
    }
}

fn subject(step: &Step) -> String {
    match step {
        Step::Free { held, .. } | Step::Reserve { held, .. } => {
            format!("{} of {}", held.address, held.record.owner)
        }
        Step::End { reservation, .. } => reservation.key.to_string(),
    }
}
