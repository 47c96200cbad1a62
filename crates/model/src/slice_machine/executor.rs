//! Executes effects on the model's server and files; leaves out one precaution if the search asks for it.

use std::collections::BTreeSet;

use berth_core::Prefix;
use berth_core::slice::machine::desk::{DeskEffect, DeskEvent};
use berth_core::slice::machine::event::{Deleted, RangeRead, SliceRead, Written};
use berth_core::slice::machine::recall::{Proof, RecallEffect, RecallEvent};
use berth_core::slice::machine::{
    Change, Effect, Event, Lease, Mode, ModeKind, Published, Stamp, Uid, Version,
};

use super::Slices;
use super::state::{Careless, DESK, Request, State, name};

impl Slices {
    pub(super) fn is(&self, careless: Careless) -> bool {
        self.careless == careless
    }

    /// Passes an event to a process, and executes effects whose order does not matter: a crash is possible between
    /// two effects.
    pub(super) fn handle(&self, state: &mut State, p: usize, event: Event) {
        let fresh = u128::from(state.fresh());
        let Some(machine) = state.processes[p].machine.as_mut() else {
            return;
        };
        let mut effects = machine.handle(event, fresh);
        if self.is(Careless::YieldFirst)
            && let [
                Effect::Commit(Change::Stop { .. }),
                Effect::WriteLease { .. },
            ] = effects[..]
        {
            effects.reverse();
        }
        state.processes[p].queue.extend(effects);
        self.run_one(state, p);
        while state.budget.crashes == 0 && !state.processes[p].queue.is_empty() {
            self.run_one(state, p);
        }
    }

    pub(super) fn run_one(&self, state: &mut State, p: usize) {
        if state.processes[p].queue.is_empty() {
            return;
        }
        let effect = state.processes[p].queue.remove(0);
        let (node, file) = (state.processes[p].node, state.processes[p].file);
        match effect {
            Effect::Commit(change) => state.files[file].now.apply(&change),
            Effect::Answer(address) => {
                state.pods.insert((address, node));
            }
            Effect::Refuse(_) | Effect::Settle | Effect::ReportOtherFile { .. } => {}
            effect => state.wire.push(Request {
                effect,
                node,
                from: Some(p),
                answer: None,
            }),
        }
    }

    /// Carries a request out; the event is its answer.
    pub(super) fn execute(&self, state: &mut State, request: &Request) -> Event {
        let fresh = state.fresh();
        let node = request.node;
        match request.effect.clone() {
            Effect::ListOwned => Event::Owned(Some(owned(state, node))),
            Effect::ReadSlice(slice) => Event::SliceRead(
                slice,
                Some(Box::new(self.read_slice(state, request, slice))),
            ),
            Effect::CreateLease(lease) => {
                let slice = lease.slice;
                Event::Created(slice, state.server.create_lease(lease, fresh))
            }
            Effect::WriteLease { lease, expected } => {
                let slice = lease.slice;
                let written = state.server.write_lease(lease, expected, fresh);
                Event::LeaseWritten(slice, self.silence(state, slice, expected, written))
            }
            Effect::Announce {
                slice,
                entries,
                nonce,
                expected,
            } => {
                let pool = Published {
                    slice,
                    node: name(node),
                    nonce,
                    entries,
                };
                let written = state.server.announce(node, pool, expected, fresh);
                Event::Announced(slice, written)
            }
            Effect::ReadRange(slice) => {
                Event::RangeRead(slice, Some(self.read_range(state, node, slice)))
            }
            Effect::SetMode {
                slice,
                expected,
                mode,
            } => {
                state.server.set_mode(expected, mode);
                Event::ModeSet(slice)
            }
            Effect::CopyOut { slice, pods, token } => {
                let written = match state.server.token() == Some(token) {
                    true => {
                        state.server.plain.extend(pods);
                        Written::Yes(Stamp {
                            uid: Uid(1000),
                            version: Version(1000),
                        })
                    }
                    false => Written::Refused,
                };
                Event::CopiedOut(slice, written)
            }
            Effect::Retract { slice, expected } => {
                Event::Retracted(slice, state.server.retract(node, expected))
            }
            Effect::DeleteLease { slice, expected } => {
                let expected = (!self.is(Careless::DeleteAnyVersion)).then_some(expected);
                Event::LeaseDeleted(slice, state.server.delete_lease(slice, expected))
            }
            _ => Event::Resync,
        }
    }

    /// A node that resumes without a write leaves the version as it was.
    fn silence(&self, state: &mut State, slice: Prefix, was: Stamp, written: Written) -> Written {
        match (written, state.server.leases.get_mut(&slice)) {
            (Written::Yes(_), Some((_, stamp))) if self.is(Careless::SilentResume) => {
                *stamp = was;
                Written::Yes(was)
            }
            _ => written,
        }
    }

    fn read_slice(&self, state: &State, request: &Request, slice: Prefix) -> SliceRead {
        let mut lease = state.server.leases.get(&slice).cloned();
        if let (Some((lease, _)), Some(p)) = (&mut lease, request.from) {
            if self.is(Careless::IgnoreYields) {
                lease.yielded.clear();
            }
            if self.is(Careless::EngineTakesOver) && lease.node == name(request.node) {
                lease.file = state.files[state.processes[p].file].now.file;
            }
        }
        let mut published = state.server.published.get(&request.node).cloned();
        if let Some((pool, _)) = &mut published
            && self.is(Careless::IgnorePublished)
        {
            pool.entries.clear();
        }
        SliceRead {
            lease,
            published,
            registered: !state.gone.contains(&request.node),
        }
    }

    fn read_range(&self, state: &State, node: usize, slice: Prefix) -> RangeRead {
        let others = state.server.published.iter().any(|(of, (pool, _))| {
            let counts = !(pool.entries.is_empty() && self.is(Careless::EmptyIsAbsent));
            *of != node && counts
        });
        let mut mode = state.server.mode;
        if let Some(mode) = &mut mode
            && self.is(Careless::IgnoreMode)
        {
            mode.kind = ModeKind::Sliced;
        }
        let mut in_use = BTreeSet::new();
        if state.has_cache && !self.is(Careless::IgnoreCache) {
            let own = state.pods.iter().filter(|(_, of)| *of == node);
            in_use.extend(own.map(|(address, _)| *address));
        }
        let mut plain = state.server.plain.clone();
        plain.retain(|address| slice.contains(*address) && !self.is(Careless::IgnorePlain));
        RangeRead {
            mode,
            plain,
            is_published_elsewhere: others && !self.is(Careless::IgnoreOthers),
            in_use,
        }
    }

    pub(super) fn list(&self, state: &State) -> (Vec<Lease>, Vec<Prefix>) {
        let leases = state.server.leases.values();
        let pools = state.server.published.values();
        let pools = pools
            .filter(|(pool, _)| !(pool.entries.is_empty() && self.is(Careless::EmptyIsAbsent)));
        (
            leases.map(|(lease, _)| lease.clone()).collect(),
            pools.map(|(pool, _)| pool.slice).collect(),
        )
    }

    pub(super) fn desk_event(&self, state: &mut State, event: DeskEvent) {
        let fresh = u128::from(state.fresh());
        if let Some(desk) = state.desk.as_mut() {
            state.desk_request = desk.handle(event, fresh);
        }
    }

    pub(super) fn desk_go(&self, state: &mut State) {
        let Some(effect) = state.desk_request.take() else {
            return;
        };
        let event = match effect {
            DeskEffect::ReadMode => DeskEvent::ModeRead(state.server.mode),
            DeskEffect::ListSlices => {
                let early = state.listed.take();
                let (leases, pools) = early.unwrap_or_else(|| self.list(state));
                DeskEvent::Listed(leases, pools)
            }
            DeskEffect::SetMode { expected, mut mode } => {
                if expected.is_none() && self.is(Careless::AbsentIsPlain) {
                    mode = Mode::new(ModeKind::Plain, mode.token);
                }
                state.server.set_mode(expected, mode);
                return;
            }
            DeskEffect::Commit { address, token } => {
                let is_current = state.server.token() == Some(token);
                let transfers = is_current || self.is(Careless::AnyToken);
                if transfers && state.server.plain.insert(address) {
                    state.pods.insert((address, DESK));
                    return;
                }
                DeskEvent::Failed
            }
        };
        self.desk_event(state, event);
    }

    /// What the controller reads of the slice: the first node that is gone and has a lease or pool of it.
    pub(super) fn proof(&self, state: &State, careless: bool) -> Option<(usize, Proof)> {
        let lease = state.server.leases.get(&state.slice);
        let of = |node: usize| {
            let lease = lease.filter(|(lease, _)| lease.node == name(node)).cloned();
            let published = state.server.published.get(&node).map(|(_, stamp)| *stamp);
            (lease, published)
        };
        let nodes = 0..state.files.len();
        let found = nodes.map(|node| (node, of(node))).find(|(node, found)| {
            let is_gone = state.gone.contains(node) || careless;
            is_gone && (found.0.is_some() || found.1.is_some())
        });
        let (node, (mut lease, published)) = found?;
        if let Some((lease, _)) = &mut lease
            && careless
        {
            lease.recalled = true;
        }
        let is_gone = true;
        let proof = Proof {
            is_gone,
            lease,
            published,
        };
        Some((node, proof))
    }

    pub(super) fn recall_go(&self, state: &mut State) {
        let Some(effect) = state.recall_request.take() else {
            return;
        };
        let fresh = state.fresh();
        let event = match effect {
            RecallEffect::Pause => RecallEvent::PauseOver,
            RecallEffect::Recall { slice, expected } => {
                let lease = state.server.leases.get(&slice).cloned();
                let written = lease.map_or(Written::Refused, |(mut lease, _)| {
                    lease.recalled = true;
                    state.server.write_lease(lease, expected, fresh)
                });
                RecallEvent::Recalled(written)
            }
            RecallEffect::Confirm(_) => {
                let proof = self.proof(state, self.is(Careless::NoSecondProof));
                RecallEvent::Confirmed(proof.map(|(_, proof)| proof))
            }
            RecallEffect::Retract { expected, .. } => {
                let pools = state.server.published.iter();
                let mut of = pools.filter(|(_, (_, stamp))| *stamp == expected);
                let node = of.next().map(|(node, _)| *node);
                let deleted =
                    node.map_or(Deleted::Yes, |node| state.server.retract(node, expected));
                RecallEvent::Retracted(deleted)
            }
            RecallEffect::DeleteLease { slice, expected } => {
                let expected = (!self.is(Careless::DeleteAnyVersion)).then_some(expected);
                RecallEvent::Deleted(state.server.delete_lease(slice, expected))
            }
        };
        state.recall_request = state.recall.handle(state.slice, event);
    }
}

pub(super) fn owned(state: &State, node: usize) -> BTreeSet<Prefix> {
    let leases = state.server.leases.values();
    let own = leases.filter(|(lease, _)| lease.node == name(node));
    let mut all: BTreeSet<Prefix> = own.map(|(lease, _)| lease.slice).collect();
    let published = state.server.published.get(&node);
    all.extend(published.map(|(pool, _)| pool.slice));
    all
}

/// The event for a request without an answer.
pub(super) fn unknown(effect: &Effect) -> Event {
    match effect {
        Effect::ReadSlice(slice) => Event::SliceRead(*slice, None),
        Effect::CreateLease(lease) => Event::Created(lease.slice, Written::Unknown),
        Effect::WriteLease { lease, .. } => Event::LeaseWritten(lease.slice, Written::Unknown),
        Effect::Announce { slice, .. } => Event::Announced(*slice, Written::Unknown),
        Effect::ReadRange(slice) => Event::RangeRead(*slice, None),
        Effect::SetMode { slice, .. } => Event::ModeSet(*slice),
        Effect::CopyOut { slice, .. } => Event::CopiedOut(*slice, Written::Unknown),
        Effect::Retract { slice, .. } => Event::Retracted(*slice, Deleted::Unknown),
        Effect::DeleteLease { slice, .. } => Event::LeaseDeleted(*slice, Deleted::Unknown),
        _ => Event::Owned(None),
    }
}
