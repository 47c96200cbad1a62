//! What a sweep does about reservations, after it read again what the step was planned on.

use async_trait::async_trait;
use berth_collector::liveness::{Verdict, judge};
use berth_collector::observed::{Held, Note, PodRef};
use berth_collector::{Executor, Outcome, StepError};
use berth_core::Record;
use berth_ledger::{ClaimKey, LedgerError};

use super::plan::Reservation;
use super::policy::PodPolicy;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Repair {
    /// The reservation has no entry, and its owner is gone.
    End(Reservation),
    /// A living entry lacks its reservation: others could allocate the address from a pool that overlaps.
    Reserve { held: Held, key: ClaimKey },
}

#[async_trait]
impl berth_collector::Repair<PodPolicy> for Repair {
    fn subject(&self) -> String {
        match self {
            Repair::End(reservation) => reservation.key.to_string(),
            Repair::Reserve { held, .. } => format!("{} of {}", held.address, held.record.owner),
        }
    }

    async fn execute(
        &self,
        policy: &PodPolicy,
        executor: &Executor<PodPolicy>,
    ) -> Result<Outcome, StepError> {
        match self {
            Repair::End(reservation) => end(policy, executor, reservation).await,
            Repair::Reserve { held, key } => reserve(policy, executor, held, key).await,
        }
    }
}

async fn end(
    policy: &PodPolicy,
    executor: &Executor<PodPolicy>,
    reservation: &Reservation,
) -> Result<Outcome, StepError> {
    let subject = &reservation.record.owner.subject;
    let Some(pod) = PodRef::parse(subject) else {
        return Ok(Outcome::Spared);
    };
    let owners = executor.read_pod(&pod).await?;
    let Verdict::Gone(reason) = judge(subject, &Note::default(), &owners) else {
        return Ok(Outcome::Spared);
    };
    // What this node's journal has was left out of the plan.
    if reason.is_of_the_object() && executor.is_up(reservation.node()).await? {
        return Ok(Outcome::Spared);
    }
    let records = &policy.ledger;
    match records.delete(&reservation.key, &reservation.record).await {
        Ok(()) => {}
        // Another holder has it by now (I6).
        Err(LedgerError::Taken { .. }) => return Ok(Outcome::Superseded),
        Err(error) => return Err(error.into()),
    }
    policy.metrics.ended.inc();
    tracing::info!(
        reservation = %reservation.key, owner = %reservation.record.owner, %reason,
        "a reservation without an entry was ended"
    );
    Ok(Outcome::Done)
}

async fn reserve(
    policy: &PodPolicy,
    executor: &Executor<PodPolicy>,
    held: &Held,
    key: &ClaimKey,
) -> Result<Outcome, StepError> {
    let now = executor.ledger().load(&held.pool).await?;
    let holds = |record: &Record| record.same_holder(&held.record);
    if !now.pool.holders(held.address).any(holds) {
        return Ok(Outcome::Superseded);
    }
    let last = executor.read_again(held).await?;
    if last.verdict != Verdict::Alive && !held.record.is_by_hand() {
        return Ok(Outcome::Spared);
    }
    match policy.ledger.create(key, &held.record).await {
        Ok(()) => {
            policy.metrics.reserved.inc();
            tracing::info!(
                reservation = %key, owner = %held.record.owner,
                "an entry got the reservation that it lacked"
            );
            Ok(Outcome::Done)
        }
        Err(LedgerError::Taken { .. }) => Ok(Outcome::Superseded),
        Err(error) => Err(error.into()),
    }
}
