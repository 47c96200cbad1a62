//! Moves as the pool records them: the allocation of the source, with the destination and the phase beside it.
//!
//! Guarantees: a phase is left by a compare-and-set of the allocation; the address has one owner at any time, the source's pod
//! until the move is committed and the destination's from then on (I1). Any process that finds the record may carry it on.

use std::net::Ipv4Addr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use berth_cni::CniError;
use berth_core::{Handle, NODE, Owner, Record, STAGE};
use berth_leader::Moving;
use futures::FutureExt;
use futures::future::{BoxFuture, Shared, WeakShared};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::engine::{Duty, Engine, now};
use super::metrics::MoveEnd;
use super::pools::PoolInfo;
use super::site::NIC;
use crate::migrate::executor::{Found, MoveError, Mover, Moves, Over, Vm};
use crate::migrate::machine::{Move, Phase, Winner};
use crate::pool::attributes::{CONTROLLER, INSTANCE, KEPT_AT, MOVE, MOVE_OUT, ZONE};

/// Beyond the move's own time, for the way back.
const MARGIN: Duration = Duration::from_secs(600);

/// A move that this process carries out; all callers that wait for it share its outcome.
pub type Running = Shared<BoxFuture<'static, Result<Over, MoveError>>>;

/// The same, known to the process and kept by the task that drives it.
pub type Known = WeakShared<BoxFuture<'static, Result<Over, MoveError>>>;

/// What the record of a move says besides its phase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveNote {
    pub from: Place,
    pub to: Place,
    pub pod: String,
    pub uid: String,
    pub container: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller: Option<String>,
    /// Milliseconds since 1970: a move that is not over by then goes back.
    pub until: u64,
}

/// A node and its VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    pub node: String,
    pub zone: String,
    pub instance: String,
}

impl Place {
    pub fn vm(&self) -> Vm {
        Vm {
            zone: self.zone.clone(),
            instance: self.instance.clone(),
        }
    }
}

pub fn is_moving(record: &Record) -> bool {
    record.attributes.contains_key(MOVE)
}

/// The move that a record is in; an error if it can't be read, which is left alone (I5).
pub fn of_record(record: &Record) -> Result<Option<(MoveNote, Phase)>, String> {
    let Some(text) = record.attribute(MOVE) else {
        return Ok(None);
    };
    let note: MoveNote = serde_json::from_str(text)
        .map_err(|error| format!("the record of the move can't be read: {error}"))?;
    let stage = record.attribute(STAGE).unwrap_or_default();
    let phase = Phase::decode(stage).ok_or_else(|| format!("phase '{stage}' is unknown"))?;
    Ok(Some((note, phase)))
}

/// The nodes of a move, for the leader's desk: each of them may write the record.
pub fn move_of(record: &Record) -> Option<Moving> {
    let (note, _) = of_record(record).ok()??;
    Some(Moving {
        from: note.from.node,
        to: note.to.node,
        pod: note.pod,
    })
}

/// The allocation with a move that begins.
pub fn reserved(record: &Record, note: &MoveNote) -> Record {
    let text = serde_json::to_string(note).unwrap_or_default();
    record
        .clone()
        .with(MOVE, text)
        .with(STAGE, Phase::Reserved.encode())
}

/// The allocation after the move.
pub fn finished(record: &Record, note: &MoveNote, winner: Winner) -> Record {
    let mut plain = record.clone();
    plain.attributes.remove(MOVE);
    plain.attributes.remove(STAGE);
    if winner == Winner::Source {
        return plain;
    }
    let namespace = plain.owner.subject.split('/').next().unwrap_or_default();
    plain.owner = Owner::new(format!("{namespace}/{}", note.pod), &note.uid);
    plain.handle = Handle::new(&note.container);
    for stale in [MOVE_OUT, KEPT_AT, CONTROLLER] {
        plain.attributes.remove(stale);
    }
    if let Some(controller) = &note.controller {
        plain = plain.with(CONTROLLER, controller);
    }
    plain
        .with(NODE, &note.to.node)
        .with(ZONE, &note.to.zone)
        .with(INSTANCE, &note.to.instance)
}

/// The moves of one pool.
#[derive(Clone, Debug)]
struct PoolMoves {
    /// A move under way does not keep a front that stops.
    engine: Weak<Engine>,
    info: Arc<PoolInfo>,
}

impl PoolMoves {
    fn engine(&self) -> Result<Arc<Engine>, String> {
        let engine = self.engine.upgrade();
        engine.ok_or_else(|| "the front is stopping".to_owned())
    }

    async fn found(&self, address: Ipv4Addr) -> Result<Option<(MoveNote, Phase, Record)>, String> {
        let read = self.engine()?.holder(&self.info, address).await;
        let Some(record) = read.map_err(|error| error.msg)? else {
            return Ok(None);
        };
        let found = of_record(&record)?;
        Ok(found.map(|(note, phase)| (note, phase, record)))
    }

    async fn change(&self, address: Ipv4Addr, records: (&Record, &Record)) -> Result<bool, String> {
        let changed = self.engine()?.transfer(&self.info, address, records).await;
        changed.map_err(|error| error.msg)
    }
}

impl Moves for PoolMoves {
    type Version = Record;

    async fn read(&self, address: Ipv4Addr) -> Result<Found<Record>, String> {
        let found = self.found(address).await?;
        Ok(found.map(|(note, phase, record)| {
            let step = Move {
                address,
                source: note.from.vm(),
                destination: note.to.vm(),
                phase,
            };
            (step, record)
        }))
    }

    async fn record(
        &self,
        address: Ipv4Addr,
        version: &Record,
        phase: Phase,
    ) -> Result<bool, String> {
        let next = version.clone().with(STAGE, phase.encode());
        self.change(address, (version, &next)).await
    }

    async fn finish(
        &self,
        address: Ipv4Addr,
        version: &Record,
        winner: Winner,
    ) -> Result<bool, String> {
        let Some((note, _)) = of_record(version)? else {
            return Ok(false);
        };
        let next = finished(version, &note, winner);
        self.change(address, (version, &next)).await
    }
}

impl Engine {
    /// Carries a move on in the background; every caller gets the same outcome.
    pub(super) async fn carry_on(
        self: &Arc<Self>,
        info: &Arc<PoolInfo>,
        address: Ipv4Addr,
        until: u64,
    ) -> Result<Running, CniError> {
        let site = self.site().await?;
        let mut running = self.running.lock();
        if let Some(known) = running.get(&address).and_then(WeakShared::upgrade) {
            return Ok(known);
        }
        let mover = Mover {
            cloud: site.cloud.clone(),
            moves: PoolMoves {
                engine: Arc::downgrade(self),
                info: Arc::clone(info),
            },
            nic: NIC.to_owned(),
            range: info.range.clone(),
            // A process that serves one call has it already; the leader has no VM of its own to update.
            lock: (matches!(self.duty, Duty::Node(_)) && self.daemon.is_some())
                .then(|| (site.vm(), self.lock())),
            updates: Arc::clone(&self.updates),
        };
        let engine = Arc::downgrade(self);
        let time = Duration::from_millis(until.saturating_sub(now())) + MARGIN;
        let deadline = Instant::now() + time;
        let pool = info.name.clone();
        let run = async move {
            let outcome = mover.run(address, &|| now() > until, deadline).await;
            match &outcome {
                Ok(over) => {
                    tracing::info!(%address, pool, winner = ?over.winner, "the move is over")
                }
                Err(error) => {
                    tracing::warn!(%address, pool, %error, "the move is not over; it is resumed")
                }
            }
            if let Some(engine) = engine.upgrade() {
                engine.running.lock().remove(&address);
                engine.metrics.moved(match &outcome {
                    Ok(over) if over.winner == Some(Winner::Source) => MoveEnd::Back,
                    Ok(_) => MoveEnd::Moved,
                    Err(_) => MoveEnd::Unfinished,
                });
            }
            outcome
        };
        let shared = run.boxed().shared();
        // Weak: a front that stops drops its moves with their tasks, and with them what they hold.
        if let Some(known) = shared.downgrade() {
            running.insert(address, known);
        }
        let driven = shared.clone();
        // It goes on when the caller has left.
        self.spawn(async move { drop(driven.await) });
        Ok(shared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note() -> MoveNote {
        let place = |name: &str| Place {
            node: name.to_owned(),
            zone: "z".to_owned(),
            instance: name.to_owned(),
        };
        MoveNote {
            from: place("node-a"),
            to: place("node-b"),
            pod: "cart-clone".to_owned(),
            uid: "u2".to_owned(),
            container: "c2".to_owned(),
            controller: None,
            until: 5,
        }
    }

    #[test]
    fn the_record_names_one_owner_until_the_move_is_committed() {
        let plain = Record::new(Owner::new("shop/cart", "u1"), Handle::new("c1"))
            .with(NODE, "node-a")
            .with(MOVE_OUT, "true")
            .with("allocatedAt", "then");
        let moving = reserved(&plain, &note());
        assert_eq!(moving.owner, plain.owner);
        assert_eq!(of_record(&moving), Ok(Some((note(), Phase::Reserved))));
        assert_eq!(finished(&moving, &note(), Winner::Source), plain);
        let moved = finished(&moving, &note(), Winner::Destination);
        assert_eq!(moved.owner, Owner::new("shop/cart-clone", "u2"));
        assert_eq!(
            (moved.handle.as_str(), moved.attribute(NODE)),
            ("c2", Some("node-b"))
        );
        assert_eq!(moved.attribute("allocatedAt"), Some("then"));
        assert_eq!(
            moved.attribute(MOVE_OUT),
            None,
            "the marker was the source's"
        );
        assert!(!is_moving(&moved));
    }

    #[test]
    fn a_phase_of_a_later_version_is_left_alone() {
        let record = reserved(&Record::default(), &note()).with(STAGE, "teleporting");
        assert!(of_record(&record).unwrap_err().contains("teleporting"));
        let record = Record::default().with(MOVE, "{");
        assert!(of_record(&record).is_err());
    }
}
