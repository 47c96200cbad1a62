//! One range on one node: its slices, from the claim to the return.
//!
//! Guarantees: an address is allocated only from a slice that this process has verified (or that it may trust without
//! the API server), and that this node has neither stopped nor returned. Allocating less is committed before it is
//! written to the API server; allocating more is committed after it was granted there.

use std::collections::{BTreeMap, BTreeSet};

use super::effect::Effect;
use super::event::Event;
use super::objects::{Addresses, Lease, Nonce, Stamp, Uid};
use super::stored::{Change, Stored};
use crate::slice::NodeName;
use crate::{Address, Prefix};

/// Which process of the node this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Owns the file for its life, and takes over what another file of the node left.
    Agent,
    /// Owns the file for one call, and refuses what belongs to another file.
    Engine,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Me {
    pub node: NodeName,
    pub uid: Uid,
    pub role: Role,
}

/// Whether new slices may be claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Link {
    /// The API server does not answer; slices that were verified are allocated from.
    Away,
    /// It answers, but other nodes may still have to create leases again that it lost: nothing new is claimed.
    Settling,
    /// New slices may be claimed.
    Ready,
}

/// The request of one slice that is outstanding. `claim`: the steps of a claim follow, and end with the slice in use.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    /// No request is outstanding.
    Idle,
    /// The lease is being created.
    Creating(Lease),
    /// Lease and published pool are being read, because this process does not know their state.
    ReadingSlice,
    /// The node's lease is being written, so that every older write to it fails.
    Bumping(Lease),
    /// The lease is being written with what was stopped; the plain pool may allocate that from then on.
    Yielding(Lease),
    /// The published pool is being written.
    Announcing { nonce: Nonce, claim: bool },
    /// The mode, the plain pool's entries and other nodes' published pools are being read.
    Reading { claim: bool },
    /// The range is being set to sliced.
    SettingMode { claim: bool },
    /// The pods' addresses are being added to the plain pool.
    CopyingOut,
    /// The published pool is being deleted; the lease is next.
    Retracting,
    /// The lease is being deleted.
    Deleting,
}

/// What this process knows of one slice. It is lost with the process.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slice {
    /// Whether this process allocates from it.
    pub serving: bool,
    /// Whether an ADD waits for it.
    pub wanted: bool,
    /// Whether the lease changed while a request was outstanding.
    pub doubted: bool,
    pub step: Step,
    /// The lease as this process last read or wrote it.
    pub lease: Option<(Lease, Stamp)>,
    /// The published pool as this process last read or wrote it.
    pub published: Option<Stamp>,
}

impl Slice {
    fn new(wanted: bool) -> Self {
        Self {
            serving: false,
            wanted,
            doubted: false,
            step: Step::Idle,
            lease: None,
            published: None,
        }
    }
}

/// The machine of one range on one node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeMachine {
    pub me: Me,
    pub link: Link,
    /// A copy of the file's state once the commits that were returned are executed.
    pub stored: Stored,
    pub slices: BTreeMap<Prefix, Slice>,
}

/// The effects of one event, in order; `fresh` is random.
pub(super) struct Out {
    pub effects: Vec<Effect>,
    pub fresh: u128,
}

impl NodeMachine {
    /// The machine of a process that has become the owner of the file, and its first effects.
    pub fn start(me: Me, stored: Stored) -> (Self, Vec<Effect>) {
        // A new file has no memory of the server: it can't detect that the server was rolled back.
        let (link, timer) = match stored.is_new() {
            true => (Link::Ready, None),
            false => (Link::Settling, Some(Effect::Settle)),
        };
        let machine = Self {
            me,
            link,
            stored,
            slices: BTreeMap::new(),
        };
        let effects = timer.into_iter().chain([Effect::ListOwned]).collect();
        (machine, effects)
    }

    /// Allocates from the file's slices although they can't be verified. Only while the API server is away, in the boot
    /// of the file's last commit, and with proof from outside the file that it is not an older copy.
    pub fn trust_file(&mut self) {
        self.link = Link::Away;
        for slice in self.stored.slices.keys() {
            let entry = self.slices.entry(*slice).or_insert(Slice::new(false));
            entry.serving = entry.step == Step::Idle;
        }
    }

    /// Whether this process may allocate the address now.
    pub fn may_allocate(&self, address: Address) -> bool {
        let mut serving = self.slices.iter().filter(|(_, entry)| entry.serving);
        serving.any(|(slice, _)| slice.contains(address)) && self.stored.is_free(address)
    }

    /// What this process may allocate of a slice.
    pub fn free_in(&self, slice: Prefix) -> Addresses {
        match self.slices.get(&slice) {
            Some(entry) if entry.serving => self.stored.free_in(slice),
            _ => Addresses::new(),
        }
    }

    /// Handles an event; `fresh` is a random number that no earlier call had.
    pub fn handle(&mut self, event: Event, fresh: u128) -> Vec<Effect> {
        let mut out = Out {
            effects: Vec::new(),
            fresh,
        };
        match event {
            Event::Allocate(address) => self.allocate(address, &mut out),
            Event::Release(address) => self.commit(Change::Release(address), &mut out),
            Event::Claim(slice) => self.claim(slice, &mut out),
            Event::Return(slice) => self.return_slice(slice, &mut out),
            Event::Publish(slice) => self.publish(slice, &mut out),
            Event::Reclaim(slice) => self.reclaim(slice, &mut out),
            Event::Refresh(slice) => self.refresh(slice, &mut out),
            Event::ModeSeen(mode) => self.mode_seen(mode, &mut out),
            Event::LeaseChanged(slice) => self.doubt(slice, &mut out),
            Event::Resync => out.effects.push(Effect::ListOwned),
            Event::Disconnected => self.link = Link::Away,
            Event::Connected => {
                self.link = Link::Settling;
                out.effects.extend([Effect::Settle, Effect::ListOwned]);
            }
            Event::Settled => self.settled(),
            Event::Owned(owned) => self.owned(owned, &mut out),
            Event::SliceRead(slice, read) => {
                self.slice_read(slice, read.map(|read| *read), &mut out)
            }
            Event::Created(slice, written) => self.created(slice, written, &mut out),
            Event::LeaseWritten(slice, written) => self.lease_written(slice, written, &mut out),
            Event::Announced(slice, written) => self.announced(slice, written, &mut out),
            Event::RangeRead(slice, read) => self.range_read(slice, read, &mut out),
            Event::ModeSet(slice) => self.mode_set(slice, &mut out),
            Event::CopiedOut(slice, written) => self.copied_out(slice, written, &mut out),
            Event::Retracted(slice, deleted) => self.retracted(slice, deleted, &mut out),
            Event::LeaseDeleted(slice, deleted) => self.lease_deleted(slice, deleted, &mut out),
        }
        out.effects
    }

    fn allocate(&mut self, address: Address, out: &mut Out) {
        if !self.may_allocate(address) {
            out.effects.push(Effect::Refuse(address));
            return;
        }
        self.commit(Change::Allocate(address), out);
        out.effects.push(Effect::Answer(address));
    }

    fn settled(&mut self) {
        if self.link == Link::Settling {
            self.link = Link::Ready;
        }
    }

    fn owned(&mut self, owned: Option<BTreeSet<Prefix>>, out: &mut Out) {
        let Some(owned) = owned else { return };
        let stored = self.stored.slices.keys().copied();
        let known = self.slices.keys().copied();
        let all: BTreeSet<Prefix> = owned.into_iter().chain(stored).chain(known).collect();
        for slice in all {
            self.slices.entry(slice).or_insert(Slice::new(false));
            if self.step(slice) == Some(&Step::Idle) {
                self.read_slice(slice, out);
            }
        }
    }

    fn doubt(&mut self, slice: Prefix, out: &mut Out) {
        let Some(entry) = self.slices.get_mut(&slice) else {
            return;
        };
        entry.serving = false;
        match entry.step {
            Step::Idle => self.read_slice(slice, out),
            _ => entry.doubted = true,
        }
    }

    pub(super) fn commit(&mut self, change: Change, out: &mut Out) {
        self.stored.apply(&change);
        out.effects.push(Effect::Commit(change));
    }

    pub(super) fn step(&self, slice: Prefix) -> Option<&Step> {
        self.slices.get(&slice).map(|entry| &entry.step)
    }

    pub(super) fn is_serving(&self, slice: Prefix) -> bool {
        self.slices.get(&slice).is_some_and(|entry| entry.serving)
    }

    pub(super) fn insert_wanted(&mut self, slice: Prefix) {
        let entry = self.slices.entry(slice).or_insert(Slice::new(true));
        entry.wanted = true;
    }

    pub(super) fn request(&mut self, slice: Prefix, step: Step, effect: Effect, out: &mut Out) {
        if let Some(entry) = self.slices.get_mut(&slice) {
            entry.step = step;
            out.effects.push(effect);
        }
    }

    pub(super) fn read_slice(&mut self, slice: Prefix, out: &mut Out) {
        if let Some(entry) = self.slices.get_mut(&slice) {
            // The lease is about to be read: earlier doubts are settled by that.
            entry.doubted = false;
        }
        self.request(slice, Step::ReadingSlice, Effect::ReadSlice(slice), out);
    }

    /// The outstanding request was answered and none follows, unless the lease changed meanwhile.
    pub(super) fn finish_step(&mut self, slice: Prefix, out: &mut Out) {
        let Some(entry) = self.slices.get_mut(&slice) else {
            return;
        };
        entry.step = Step::Idle;
        if entry.doubted {
            entry.serving = false;
            self.read_slice(slice, out);
        }
    }
}
