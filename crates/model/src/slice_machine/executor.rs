//! Executes effects on the server and the files; leaves a precaution out if it is to.

use std::collections::BTreeSet;

use berth_core::Prefix;
use berth_core::slice::machine::desk::{DeskEffect, DeskEvent};
use berth_core::slice::machine::event::{Deleted, Look, RangeRead, Written};
use berth_core::slice::machine::recall::{Proof, RecallEffect, RecallEvent};
use berth_core::slice::machine::{
    Change, Effect, Event, Lease, Mode, ModeKind, Published, Stamp, Uid, Version,
};

use super::Slices;
use super::world::{Careless, DESK, Request, World, name};

impl Slices {
    pub(super) fn is(&self, careless: Careless) -> bool {
        self.careless == careless
    }

    /// Hands an event to a process, and executes what needs no order: a crash is possible between two effects.
    pub(super) fn handle(&self, world: &mut World, p: usize, event: Event) {
        let fresh = u128::from(world.fresh());
        let Some(machine) = world.processes[p].machine.as_mut() else {
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
        world.processes[p].queue.extend(effects);
        self.run_one(world, p);
        while world.budget.crashes == 0 && !world.processes[p].queue.is_empty() {
            self.run_one(world, p);
        }
    }

    pub(super) fn run_one(&self, world: &mut World, p: usize) {
        if world.processes[p].queue.is_empty() {
            return;
        }
        let effect = world.processes[p].queue.remove(0);
        let (node, file) = (world.processes[p].node, world.processes[p].file);
        match effect {
            Effect::Commit(change) => world.files[file].now.apply(&change),
            Effect::Answer(address) => {
                world.pods.insert((address, node));
            }
            Effect::Refuse(_) | Effect::Settle | Effect::ReportOtherFile { .. } => {}
            effect => world.wire.push(Request {
                effect,
                node,
                from: Some(p),
                answer: None,
            }),
        }
    }

    /// Carries a request out; the event is its answer.
    pub(super) fn execute(&self, world: &mut World, request: &Request) -> Event {
        let fresh = world.fresh();
        let node = request.node;
        match request.effect.clone() {
            Effect::ListOwned => Event::Owned(Some(owned(world, node))),
            Effect::Look(slice) => {
                Event::Looked(slice, Some(Box::new(self.look(world, request, slice))))
            }
            Effect::CreateLease(lease) => {
                let slice = lease.slice;
                Event::Created(slice, world.server.create_lease(lease, fresh))
            }
            Effect::WriteLease { lease, expected } => {
                let slice = lease.slice;
                let written = world.server.write_lease(lease, expected, fresh);
                Event::LeaseWritten(slice, self.silence(world, slice, expected, written))
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
                let written = world.server.announce(node, pool, expected, fresh);
                Event::Announced(slice, written)
            }
            Effect::ReadRange(slice) => {
                Event::RangeRead(slice, Some(self.read_range(world, node, slice)))
            }
            Effect::SetMode {
                slice,
                expected,
                mode,
            } => {
                world.server.set_mode(expected, mode);
                Event::ModeSet(slice)
            }
            Effect::CopyOut { slice, pods, token } => {
                let written = match world.server.token() == Some(token) {
                    true => {
                        world.server.plain.extend(pods);
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
                Event::Retracted(slice, world.server.retract(node, expected))
            }
            Effect::DeleteLease { slice, expected } => {
                let expected = (!self.is(Careless::DeleteAnyVersion)).then_some(expected);
                Event::LeaseDeleted(slice, world.server.delete_lease(slice, expected))
            }
            _ => Event::Resync,
        }
    }

    /// One that resumes without a write leaves the version as it was.
    fn silence(&self, world: &mut World, slice: Prefix, was: Stamp, written: Written) -> Written {
        match (written, world.server.leases.get_mut(&slice)) {
            (Written::Yes(_), Some((_, stamp))) if self.is(Careless::SilentResume) => {
                *stamp = was;
                Written::Yes(was)
            }
            _ => written,
        }
    }

    fn look(&self, world: &World, request: &Request, slice: Prefix) -> Look {
        let mut lease = world.server.leases.get(&slice).cloned();
        if let (Some((lease, _)), Some(p)) = (&mut lease, request.from) {
            if self.is(Careless::BlindToYields) {
                lease.yielded.clear();
            }
            if self.is(Careless::EngineTakesOver) && lease.node == name(request.node) {
                lease.file = world.files[world.processes[p].file].now.file;
            }
        }
        let mut published = world.server.published.get(&request.node).cloned();
        if let Some((pool, _)) = &mut published
            && self.is(Careless::BlindToPublished)
        {
            pool.entries.clear();
        }
        Look {
            lease,
            published,
            registered: !world.gone.contains(&request.node),
        }
    }

    fn read_range(&self, world: &World, node: usize, slice: Prefix) -> RangeRead {
        let others = world.server.published.iter().any(|(of, (pool, _))| {
            let counts = !(pool.entries.is_empty() && self.is(Careless::EmptyIsAbsent));
            *of != node && counts
        });
        let mut mode = world.server.mode;
        if let Some(mode) = &mut mode
            && self.is(Careless::BlindToMode)
        {
            mode.kind = ModeKind::Sliced;
        }
        let mut in_use = BTreeSet::new();
        if world.has_cache && !self.is(Careless::BlindToCache) {
            let own = world.pods.iter().filter(|(_, of)| *of == node);
            in_use.extend(own.map(|(address, _)| *address));
        }
        let mut plain = world.server.plain.clone();
        plain.retain(|address| slice.contains(*address) && !self.is(Careless::BlindToPlain));
        RangeRead {
            mode,
            plain,
            is_published_elsewhere: others && !self.is(Careless::BlindToOthers),
            in_use,
        }
    }

    pub(super) fn list(&self, world: &World) -> (Vec<Lease>, Vec<Prefix>) {
        let leases = world.server.leases.values();
        let pools = world.server.published.values();
        let pools = pools
            .filter(|(pool, _)| !(pool.entries.is_empty() && self.is(Careless::EmptyIsAbsent)));
        (
            leases.map(|(lease, _)| lease.clone()).collect(),
            pools.map(|(pool, _)| pool.slice).collect(),
        )
    }

    pub(super) fn desk_event(&self, world: &mut World, event: DeskEvent) {
        let fresh = u128::from(world.fresh());
        if let Some(desk) = world.desk.as_mut() {
            world.desk_request = desk.handle(event, fresh);
        }
    }

    pub(super) fn desk_go(&self, world: &mut World) {
        let Some(effect) = world.desk_request.take() else {
            return;
        };
        let event = match effect {
            DeskEffect::ReadMode => DeskEvent::ModeRead(world.server.mode),
            DeskEffect::ListSlices => {
                let early = world.listed.take();
                let (leases, pools) = early.unwrap_or_else(|| self.list(world));
                DeskEvent::Listed(leases, pools)
            }
            DeskEffect::SetMode { expected, mut mode } => {
                if expected.is_none() && self.is(Careless::AbsentIsPlain) {
                    mode = Mode::new(ModeKind::Plain, mode.token);
                }
                world.server.set_mode(expected, mode);
                return;
            }
            DeskEffect::Commit { address, token } => {
                let is_current = world.server.token() == Some(token);
                let passes = is_current || self.is(Careless::AnyToken);
                if passes && world.server.plain.insert(address) {
                    world.pods.insert((address, DESK));
                    return;
                }
                DeskEvent::Failed
            }
        };
        self.desk_event(world, event);
    }

    /// What the controller reads of the slice: the first node that is gone and has something of it.
    pub(super) fn proof(&self, world: &World, careless: bool) -> Option<(usize, Proof)> {
        let lease = world.server.leases.get(&world.slice);
        let of = |node: usize| {
            let lease = lease.filter(|(lease, _)| lease.node == name(node)).cloned();
            let published = world.server.published.get(&node).map(|(_, stamp)| *stamp);
            (lease, published)
        };
        let nodes = 0..world.files.len();
        let found = nodes.map(|node| (node, of(node))).find(|(node, found)| {
            let is_gone = world.gone.contains(node) || careless;
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

    pub(super) fn recall_go(&self, world: &mut World) {
        let Some(effect) = world.recall_request.take() else {
            return;
        };
        let fresh = world.fresh();
        let event = match effect {
            RecallEffect::Pause => RecallEvent::PauseOver,
            RecallEffect::Recall { slice, expected } => {
                let lease = world.server.leases.get(&slice).cloned();
                let written = lease.map_or(Written::Refused, |(mut lease, _)| {
                    lease.recalled = true;
                    world.server.write_lease(lease, expected, fresh)
                });
                RecallEvent::Recalled(written)
            }
            RecallEffect::Confirm(_) => {
                let proof = self.proof(world, self.is(Careless::NoSecondProof));
                RecallEvent::Confirmed(proof.map(|(_, proof)| proof))
            }
            RecallEffect::Retract { expected, .. } => {
                let pools = world.server.published.iter();
                let mut of = pools.filter(|(_, (_, stamp))| *stamp == expected);
                let node = of.next().map(|(node, _)| *node);
                let deleted =
                    node.map_or(Deleted::Yes, |node| world.server.retract(node, expected));
                RecallEvent::Retracted(deleted)
            }
            RecallEffect::DeleteLease { slice, expected } => {
                let expected = (!self.is(Careless::DeleteAnyVersion)).then_some(expected);
                RecallEvent::Deleted(world.server.delete_lease(slice, expected))
            }
        };
        world.recall_request = world.recall.handle(world.slice, event);
    }
}

pub(super) fn owned(world: &World, node: usize) -> BTreeSet<Prefix> {
    let leases = world.server.leases.values();
    let own = leases.filter(|(lease, _)| lease.node == name(node));
    let mut all: BTreeSet<Prefix> = own.map(|(lease, _)| lease.slice).collect();
    let published = world.server.published.get(&node);
    all.extend(published.map(|(pool, _)| pool.slice));
    all
}

/// The answer of a request that got none.
pub(super) fn unknown(effect: &Effect) -> Event {
    match effect {
        Effect::Look(slice) => Event::Looked(*slice, None),
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
