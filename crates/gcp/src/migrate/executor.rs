//! Carries a move out: reads its record, makes the call or the change that is next, until the move is over.
//!
//! Guarantees: a call is made only while the record names it, with a fingerprint that was read before that was last checked;
//! what another process did meanwhile is found in the record and carried on.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use berth_attachment::{Goal, IntentId};
use futures::FutureExt;
use rand::RngExt;
use thiserror::Error;
use tokio::time::{Instant, sleep_until};

use super::batch::{Ended, Route, Updates};
use super::machine::{Call, Move, Next, Outcome, Phase, Winner};
use crate::cloud::{Cloud, CloudError};
use crate::nic::NodeLock;

/// Where a VM is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Vm {
    pub zone: String,
    pub instance: String,
}

impl Vm {
    /// Of a Node's `spec.providerID`: `gce://project/zone/name`.
    pub fn of_provider_id(text: &str) -> Option<Vm> {
        let mut parts = text.strip_prefix("gce://")?.split('/');
        let (_, zone, instance) = (parts.next()?, parts.next()?, parts.next()?);
        let whole = parts.next().is_none() && !zone.is_empty() && !instance.is_empty();
        whole.then(|| Vm {
            zone: zone.to_owned(),
            instance: instance.to_owned(),
        })
    }
}

/// A move under way and the version of its record.
pub type Found<V> = Option<(Move<Vm>, V)>;

/// The records of moves; each change is a compare-and-set.
pub trait Moves: Send + Sync {
    type Version: Clone + PartialEq + Send + Sync + 'static;

    /// A quorum read. None: no move is under way.
    fn read(
        &self,
        address: Ipv4Addr,
    ) -> impl Future<Output = Result<Found<Self::Version>, String>> + Send;

    /// False: the record is not of this version any more.
    fn record(
        &self,
        address: Ipv4Addr,
        version: &Self::Version,
        phase: Phase,
    ) -> impl Future<Output = Result<bool, String>> + Send;

    /// Makes it a plain allocation of the winner. False: the record is not of this version any more.
    fn finish(
        &self,
        address: Ipv4Addr,
        version: &Self::Version,
        winner: Winner,
    ) -> impl Future<Output = Result<bool, String>> + Send;
}

/// Why a move is not over; its record says how far it is, and it is resumed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MoveError {
    #[error("the record of the move can't be read or written: {0}")]
    Record(String),
    #[error("the move of {address} is not over in time; it is {phase}, and is carried on{}", last.as_ref().map(|error| format!(": {error}")).unwrap_or_default())]
    TooLate {
        address: Ipv4Addr,
        phase: String,
        last: Option<CloudError>,
    },
}

/// Carries out the moves of one range.
#[derive(Debug)]
pub struct Mover<M> {
    pub cloud: Cloud,
    pub moves: M,
    pub nic: String,
    /// The secondary range; None for the subnet's primary range.
    pub range: Option<String>,
    /// This node's VM, and the lock that is held around each update of it.
    pub lock: Option<(Vm, NodeLock)>,
    /// Shared by all moves of the process: calls for one VM go out together.
    pub updates: Arc<Updates>,
}

/// A move that is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Over {
    /// None: another process has finished it; the allocation says whose the address is.
    pub winner: Option<Winner>,
    /// Why it was rolled back.
    pub refused: Option<CloudError>,
}

const BACKOFF: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));

impl<M: Moves + Clone + 'static> Mover<M> {
    /// Carries the move of `address` on until it is over or the deadline has passed. `ended` says whether the destination has
    /// given up or the time of the move itself is over.
    pub async fn run(
        &self,
        address: Ipv4Addr,
        ended: &(dyn Fn() -> bool + Sync),
        deadline: Instant,
    ) -> Result<Over, MoveError> {
        let (mut last, mut refused) = (None, None);
        let mut pause = BACKOFF.0;
        loop {
            let found = self.moves.read(address).await.map_err(MoveError::Record)?;
            let Some((step, version)) = found else {
                return Ok(Over {
                    winner: None,
                    refused,
                });
            };
            if Instant::now() >= deadline {
                let phase = step.phase.encode();
                return Err(MoveError::TooLate {
                    address,
                    phase,
                    last,
                });
            }
            let mut next = step.next(ended(), random_id());
            if let Next::Call(call) = &next {
                let (outcome, error) = self.call(address, call, &version).await;
                if outcome == Outcome::Refused && !step.is_returning() {
                    refused.clone_from(&error);
                }
                last = error.or(last);
                match step.after(outcome, random_id()) {
                    Some(after) => next = after,
                    None => {
                        wait(&mut pause, deadline).await;
                        continue;
                    }
                }
                if matches!(outcome, Outcome::Again | Outcome::Refused) {
                    wait(&mut pause, deadline).await;
                } else {
                    pause = BACKOFF.0;
                }
            }
            match next {
                Next::Record(phase) => {
                    // Whether it was this process or another: the record says what is next.
                    let recorded = self.moves.record(address, &version, phase).await;
                    recorded.map_err(MoveError::Record)?;
                }
                Next::Finish(winner) => {
                    let finished = self.moves.finish(address, &version, winner).await;
                    if finished.map_err(MoveError::Record)? {
                        let winner = Some(winner);
                        return Ok(Over { winner, refused });
                    }
                }
                Next::Call(_) => {}
            }
        }
    }

    async fn call(&self, address: Ipv4Addr, call: &Call<Vm>, version: &M::Version) -> Ended {
        let route = Route {
            cloud: &self.cloud,
            nic: &self.nic,
            range: self.range.as_deref(),
            lock: self.lock.as_ref(),
        };
        let (moves, version) = (self.moves.clone(), version.clone());
        let current = move || {
            let (moves, version) = (moves.clone(), version.clone());
            let current = async move {
                let now = moves.read(address).await;
                now.is_ok_and(|now| now.is_some_and(|(_, now)| now == version))
            };
            current.boxed()
        };
        self.updates
            .make(route, address, call, Box::new(current))
            .await
    }
}

pub(super) fn of_update(error: &CloudError, goal: Goal) -> Outcome {
    match error {
        CloudError::Stale(_) => Outcome::Again,
        CloudError::NotFound(_) => Outcome::Gone,
        // An earlier try under the same id may have been accepted: repeated until the answer is about this very call.
        CloudError::NotReady(_)
        | CloudError::RateLimited { .. }
        | CloudError::Unavailable(_)
        | CloudError::Unauthenticated(_)
        | CloudError::OperationTimeout(_) => Outcome::Unknown,
        // The source's alias goes in a moment: it is not refused for good.
        CloudError::InUse(_) if goal == Goal::Absent => Outcome::Again,
        _ => Outcome::Refused,
    }
}

pub(super) fn of_operation(error: &CloudError) -> Outcome {
    match error {
        // The operation has failed, and stays failed under its id.
        CloudError::Stale(_)
        | CloudError::NotReady(_)
        | CloudError::RateLimited { .. }
        | CloudError::Unavailable(_) => Outcome::Again,
        CloudError::OperationTimeout(_)
        | CloudError::NotFound(_)
        | CloudError::Denied(_)
        | CloudError::Unauthenticated(_) => Outcome::Unknown,
        _ => Outcome::Refused,
    }
}

async fn wait(pause: &mut Duration, deadline: Instant) {
    let jittered = pause.mul_f64(rand::rng().random_range(1.0..1.25));
    sleep_until(deadline.min(Instant::now() + jittered)).await;
    *pause = (*pause * 2).min(BACKOFF.1);
}

fn random_id() -> IntentId {
    IntentId(rand::rng().random())
}
