//! The phases of a move, as a function of one durable record; no clock and no I/O.
//!
//! ```text
//!  reserved ─► detaching ─► detached ─► attaching ─► attached ─► (committed: the destination's)
//!      │            │ expired   │            │ refused
//!      ▼            ▼           ▼            ▼
//!  (cancelled)   detached ─► returning ────────────► (cancelled: the source's)
//! ```
//! Every process that finds the record may carry it on: it holds no state of its own. A phase is left by a compare-and-set of
//! the record. A call is made only in a phase that names its intent (I9), with a fingerprint that was read *before* the
//! record was last seen in that phase: a call that arrives late finds another fingerprint and is refused.

use std::net::Ipv4Addr;

use berth_attachment::{Goal, IntentId};

/// Where a move is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// The destination is recorded; nothing was done.
    Reserved,
    Detaching(IntentId),
    /// The alias is on no NIC.
    Detached,
    Attaching(IntentId),
    /// The alias is on the destination's NIC.
    Attached,
    /// The alias goes back to the source.
    Returning(IntentId),
}

/// A move under way; part of the address's record.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Move<N> {
    pub address: Ipv4Addr,
    pub source: N,
    pub destination: N,
    pub phase: Phase,
}

/// A call on one NIC.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Call<N> {
    pub node: N,
    pub goal: Goal,
    pub id: IntentId,
}

/// Whose the address is when the move is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Winner {
    Source,
    Destination,
}

/// What a process does about a move that it finds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Next<N> {
    /// Compare-and-set the record to this phase.
    Record(Phase),
    /// Make this call, then feed its outcome to [`Move::after`].
    Call(Call<N>),
    /// Compare-and-set the record to a plain allocation.
    Finish(Winner),
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The alias is as wanted.
    Done,
    /// The fingerprint was stale, or it passes by itself: the same phase under a new intent.
    Again,
    /// Unknown: the same intent is repeated.
    Unknown,
    /// Refused: trying again changes nothing.
    Refused,
    /// The VM does not exist.
    Gone,
}

impl<N: Clone> Move<N> {
    /// The next step. `ended`: the destination gave up, or the move's time is over.
    pub fn next(&self, ended: bool, id: IntentId) -> Next<N> {
        match self.phase {
            Phase::Reserved if ended => Next::Finish(Winner::Source),
            Phase::Reserved => Next::Record(Phase::Detaching(id)),
            Phase::Detaching(id) => self.call(&self.source, Goal::Absent, id),
            Phase::Detached if ended => Next::Record(Phase::Returning(id)),
            Phase::Detached => Next::Record(Phase::Attaching(id)),
            Phase::Attaching(id) => self.call(&self.destination, Goal::Present, id),
            Phase::Attached => Next::Finish(Winner::Destination),
            Phase::Returning(id) => self.call(&self.source, Goal::Present, id),
        }
    }

    /// What the outcome of this phase's call leads to; None: the call is repeated as it is.
    pub fn after(&self, outcome: Outcome, id: IntentId) -> Option<Next<N>> {
        match (self.phase, outcome) {
            (_, Outcome::Unknown) => None,
            // A source that is gone has no alias any more.
            (Phase::Detaching(_), Outcome::Done | Outcome::Gone) => {
                Some(Next::Record(Phase::Detached))
            }
            // Refused or stale: the id is used up, so that a late copy of the call can't be carried out under it.
            (Phase::Detaching(_), Outcome::Again | Outcome::Refused) => {
                Some(Next::Record(Phase::Detaching(id)))
            }
            (Phase::Attaching(_), Outcome::Done) => Some(Next::Record(Phase::Attached)),
            (Phase::Attaching(_), Outcome::Again) => Some(Next::Record(Phase::Attaching(id))),
            (Phase::Attaching(_), Outcome::Refused | Outcome::Gone) => {
                Some(Next::Record(Phase::Returning(id)))
            }
            // The source's pod is gone with its VM; the collector frees the address.
            (Phase::Returning(_), Outcome::Done | Outcome::Gone) => {
                Some(Next::Finish(Winner::Source))
            }
            (Phase::Returning(_), Outcome::Again | Outcome::Refused) => {
                Some(Next::Record(Phase::Returning(id)))
            }
            (Phase::Reserved | Phase::Detached | Phase::Attached, _) => None,
        }
    }

    /// The destination waits for nothing any more.
    pub fn is_returning(&self) -> bool {
        matches!(self.phase, Phase::Returning(_))
    }

    fn call(&self, node: &N, goal: Goal, id: IntentId) -> Next<N> {
        Next::Call(Call {
            node: node.clone(),
            goal,
            id,
        })
    }
}

impl Phase {
    /// As the record keeps it.
    pub fn encode(self) -> String {
        let with = |name: &str, id: IntentId| format!("{name}-{:032x}", id.0);
        match self {
            Phase::Reserved => "reserved".to_owned(),
            Phase::Detaching(id) => with("detaching", id),
            Phase::Detached => "detached".to_owned(),
            Phase::Attaching(id) => with("attaching", id),
            Phase::Attached => "attached".to_owned(),
            Phase::Returning(id) => with("returning", id),
        }
    }

    /// None: written by a later version, or by hand. Such a move is reported and left alone (I5).
    pub fn decode(text: &str) -> Option<Phase> {
        let (name, id) = match text.split_once('-') {
            Some((name, id)) if id.len() == 32 => {
                (name, Some(IntentId(u128::from_str_radix(id, 16).ok()?)))
            }
            Some(_) => return None,
            None => (text, None),
        };
        match (name, id) {
            ("reserved", None) => Some(Phase::Reserved),
            ("detached", None) => Some(Phase::Detached),
            ("attached", None) => Some(Phase::Attached),
            ("detaching", Some(id)) => Some(Phase::Detaching(id)),
            ("attaching", Some(id)) => Some(Phase::Attaching(id)),
            ("returning", Some(id)) => Some(Phase::Returning(id)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_survives_in_its_record() {
        let id = IntentId(0x1234_5678_9abc_def0_1234_5678_9abc_def0);
        for phase in [
            Phase::Reserved,
            Phase::Detaching(id),
            Phase::Detached,
            Phase::Attaching(id),
            Phase::Attached,
            Phase::Returning(id),
        ] {
            assert_eq!(Phase::decode(&phase.encode()), Some(phase));
        }
        for text in [
            "",
            "moved",
            "detaching",
            "detaching-12",
            "reserved-00000000000000000000000000000001",
        ] {
            assert_eq!(Phase::decode(text), None, "{text}");
        }
    }

    #[test]
    fn the_way_there_and_the_way_back() {
        let mut step = Move {
            address: "10.111.0.5".parse().unwrap(),
            source: "a",
            destination: "b",
            phase: Phase::Reserved,
        };
        let id = IntentId(1);
        assert_eq!(step.next(true, id), Next::Finish(Winner::Source));
        assert_eq!(step.next(false, id), Next::Record(Phase::Detaching(id)));
        step.phase = Phase::Detaching(id);
        assert_eq!(
            step.next(true, id),
            Next::Call(Call {
                node: "a",
                goal: Goal::Absent,
                id
            }),
            "what was begun is ended first"
        );
        assert_eq!(
            step.after(Outcome::Gone, id),
            Some(Next::Record(Phase::Detached)),
            "a VM that is gone counts as detached"
        );
        assert_eq!(step.after(Outcome::Unknown, id), None);
        step.phase = Phase::Detached;
        assert_eq!(step.next(true, id), Next::Record(Phase::Returning(id)));
        step.phase = Phase::Attaching(id);
        assert_eq!(
            step.after(Outcome::Refused, id),
            Some(Next::Record(Phase::Returning(id)))
        );
        assert_eq!(
            step.after(Outcome::Done, id),
            Some(Next::Record(Phase::Attached))
        );
        step.phase = Phase::Attached;
        assert_eq!(
            step.next(true, id),
            Next::Finish(Winner::Destination),
            "it is there: it stays there"
        );
        step.phase = Phase::Returning(id);
        assert_eq!(
            step.next(false, id),
            Next::Call(Call {
                node: "a",
                goal: Goal::Present,
                id
            })
        );
        assert_eq!(
            step.after(Outcome::Done, id),
            Some(Next::Finish(Winner::Source))
        );
    }
}
