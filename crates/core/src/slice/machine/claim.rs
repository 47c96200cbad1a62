//! The steps that end with a slice in use: create or bump the lease, announce, read the range, commit.
//!
//! The order matters. The lease is written first, so that older writes to it fail. The published pool is written
//! before other nodes' pools are read: of two nodes that both believe to have the lease, at least one reads the
//! other's pool. The mode is read after the lease was written: a desk that listed leases earlier did so under an
//! older token.

use super::effect::Effect;
use super::event::{RangeRead, Written};
use super::mode::{Mode, ModeKind, Token};
use super::node::{Link, NodeMachine, Out, Step};
use super::objects::{Addresses, Lease, Nonce, all_of};
use super::stored::Change;
use crate::Prefix;

impl NodeMachine {
    pub(super) fn claim(&mut self, slice: Prefix, out: &mut Out) {
        if self.link != Link::Ready || self.is_serving(slice) {
            return;
        }
        match self.step(slice) {
            None => {
                self.insert_wanted(slice);
                self.create(slice, out);
            }
            Some(Step::Idle) => {
                self.insert_wanted(slice);
                self.read_slice(slice, out);
            }
            Some(_) => {}
        }
    }

    /// A lease as this node writes it.
    pub(super) fn lease(&self, slice: Prefix, yielded: Addresses) -> Lease {
        Lease {
            slice,
            node: self.me.node.clone(),
            node_uid: self.me.uid,
            file: self.stored.file,
            yielded,
            recalled: false,
        }
    }

    fn stopped(&self, slice: Prefix) -> Addresses {
        self.stored.slices.get(&slice).cloned().unwrap_or_default()
    }

    pub(super) fn create(&mut self, slice: Prefix, out: &mut Out) {
        let lease = self.lease(slice, self.stopped(slice));
        let effect = Effect::CreateLease(lease.clone());
        self.request(slice, Step::Creating(lease), effect, out);
    }

    pub(super) fn created(&mut self, slice: Prefix, written: Written, out: &mut Out) {
        let Some(Step::Creating(lease)) = self.step(slice).cloned() else {
            return;
        };
        match written {
            Written::Yes(stamp) => {
                if let Some(entry) = self.slices.get_mut(&slice) {
                    entry.lease = Some((lease, stamp));
                }
                self.announce(slice, true, out);
            }
            // At a first try the lease is assumed to be another node's: the next slice is tried.
            Written::Refused if self.is_unknown(slice) => {
                self.slices.remove(&slice);
            }
            Written::Refused | Written::Unknown => self.read_slice(slice, out),
        }
    }

    fn is_unknown(&self, slice: Prefix) -> bool {
        let published = self.slices.get(&slice).and_then(|entry| entry.published);
        published.is_none()
            && !self.stored.has_pods_in(slice)
            && !self.stored.slices.contains_key(&slice)
    }

    /// Writes the lease again before the slice is used. What was yielded or stopped stays yielded.
    pub(super) fn bump(&mut self, slice: Prefix, read: &Lease, out: &mut Out) {
        let mut yielded = self.stopped(slice);
        yielded.extend(read.yielded.iter().cloned());
        let lease = self.lease(slice, yielded);
        self.write_lease(slice, Step::Bumping(lease.clone()), lease, out);
    }

    /// Reclaims yielded parts, by the steps of a claim.
    pub(super) fn reclaim(&mut self, slice: Prefix, out: &mut Out) {
        let yields = !self.stopped(slice).is_empty();
        if yields && self.is_serving(slice) && self.step(slice) == Some(&Step::Idle) {
            let lease = self.lease(slice, Addresses::new());
            self.write_lease(slice, Step::Bumping(lease.clone()), lease, out);
        }
    }

    pub(super) fn write_lease(&mut self, slice: Prefix, step: Step, lease: Lease, out: &mut Out) {
        let entry = self.slices.get(&slice);
        match entry.and_then(|entry| entry.lease.as_ref()) {
            Some((_, stamp)) => {
                let expected = *stamp;
                self.request(slice, step, Effect::WriteLease { lease, expected }, out);
            }
            None => self.read_slice(slice, out),
        }
    }

    pub(super) fn lease_written(&mut self, slice: Prefix, written: Written, out: &mut Out) {
        let (lease, claim) = match self.step(slice) {
            Some(Step::Bumping(lease)) => (lease.clone(), true),
            Some(Step::Yielding(lease)) => (lease.clone(), false),
            _ => return,
        };
        let Written::Yes(stamp) = written else {
            self.read_slice(slice, out);
            return;
        };
        if let Some(entry) = self.slices.get_mut(&slice) {
            entry.lease = Some((lease, stamp));
        }
        match claim {
            true => self.announce(slice, true, out),
            false => self.finish_step(slice, out),
        }
    }

    pub(super) fn publish(&mut self, slice: Prefix, out: &mut Out) {
        let entry = self.slices.get(&slice);
        let has_object = entry.is_some_and(|entry| entry.published.is_some());
        if has_object && self.step(slice) == Some(&Step::Idle) {
            self.announce(slice, false, out);
        }
    }

    /// Always writes, even if the object is already there: a deletion from before a crash may still arrive.
    fn announce(&mut self, slice: Prefix, claim: bool, out: &mut Out) {
        let nonce = Nonce(out.fresh);
        self.commit(Change::Note { slice, nonce }, out);
        let expected = self.slices.get(&slice).and_then(|entry| entry.published);
        let entries = self.stored.pods_in(slice);
        let effect = Effect::Announce {
            slice,
            entries,
            nonce,
            expected,
        };
        self.request(slice, Step::Announcing { nonce, claim }, effect, out);
    }

    pub(super) fn announced(&mut self, slice: Prefix, written: Written, out: &mut Out) {
        let Some(Step::Announcing { nonce, claim }) = self.step(slice).cloned() else {
            return;
        };
        let Written::Yes(stamp) = written else {
            self.read_slice(slice, out);
            return;
        };
        if let Some(entry) = self.slices.get_mut(&slice) {
            entry.published = Some(stamp);
        }
        self.commit(Change::Published { slice, nonce }, out);
        match claim {
            true => self.read_range(slice, true, out),
            false => self.finish_step(slice, out),
        }
    }

    pub(super) fn refresh(&mut self, slice: Prefix, out: &mut Out) {
        if self.is_serving(slice) && self.step(slice) == Some(&Step::Idle) {
            self.read_range(slice, false, out);
        }
    }

    fn read_range(&mut self, slice: Prefix, claim: bool, out: &mut Out) {
        self.request(
            slice,
            Step::Reading { claim },
            Effect::ReadRange(slice),
            out,
        );
    }

    pub(super) fn mode_set(&mut self, slice: Prefix, out: &mut Out) {
        if let Some(Step::SettingMode { claim }) = self.step(slice) {
            let claim = *claim;
            self.read_range(slice, claim, out);
        }
    }

    pub(super) fn range_read(&mut self, slice: Prefix, read: Option<RangeRead>, out: &mut Out) {
        let Some(Step::Reading { claim }) = self.step(slice) else {
            return;
        };
        let claim = *claim;
        let Some(read) = read else {
            self.finish_step(slice, out);
            return;
        };
        if !self.is_serving(slice) {
            let held = self.stored.pods_in(slice);
            let found: std::collections::BTreeSet<_> =
                read.in_use.difference(&held).copied().collect();
            if !found.is_empty() {
                self.commit(Change::Recover(found), out);
            }
            if read.is_published_elsewhere {
                self.step_aside(slice, out);
                return;
            }
        }
        match read.mode {
            None => self.set_sliced(slice, claim, None, out),
            Some(mode) if mode.kind == ModeKind::Plain => {
                self.set_sliced(slice, claim, Some(mode.token), out);
            }
            Some(mode) if mode.kind == ModeKind::Sliced => self.activate(slice, claim, read, out),
            Some(_) => self.keep_what_is_held(slice, read, out),
        }
    }

    /// Another node publishes a pool of this slice: its lease was deleted while it used the slice, or it has just
    /// claimed the slice as this node did.
    fn step_aside(&mut self, slice: Prefix, out: &mut Out) {
        match self.stored.has_pods_in(slice) {
            true => self.finish_step(slice, out),
            false => self.drop_slice(slice, out),
        }
    }

    fn set_sliced(&mut self, slice: Prefix, claim: bool, expected: Option<Token>, out: &mut Out) {
        let mode = Mode::new(ModeKind::Sliced, Token(out.fresh));
        let effect = Effect::SetMode {
            slice,
            expected,
            mode,
        };
        self.request(slice, Step::SettingMode { claim }, effect, out);
    }

    fn activate(&mut self, slice: Prefix, claim: bool, read: RangeRead, out: &mut Out) {
        let entry = self.slices.get(&slice);
        let lease = entry.and_then(|entry| entry.lease.as_ref());
        let stopped = match (claim, lease) {
            // The lease was written since: no earlier write can yield more.
            (true, Some((lease, _))) => lease.yielded.clone(),
            _ => self.stopped(slice),
        };
        self.use_slice(slice, stopped, read, out);
        self.finish_step(slice, out);
    }

    /// The range is tight or assigned: a slice of which pods have addresses stays, without its free part.
    fn keep_what_is_held(&mut self, slice: Prefix, read: RangeRead, out: &mut Out) {
        let stopped = match self.is_serving(slice) {
            true => self.stopped(slice),
            false if self.stored.has_pods_in(slice) => {
                let mut all = all_of(slice);
                for address in self.stored.pods_in(slice) {
                    all.remove(address..=address);
                }
                all
            }
            false => {
                self.drop_slice(slice, out);
                return;
            }
        };
        self.use_slice(slice, stopped, read, out);
        self.write_yields(slice, out);
    }

    fn use_slice(&mut self, slice: Prefix, stopped: Addresses, read: RangeRead, out: &mut Out) {
        let change = Change::Activate {
            slice,
            stopped,
            plain: read.plain,
        };
        self.commit(change, out);
        if let Some(entry) = self.slices.get_mut(&slice) {
            entry.serving = true;
            entry.wanted = false;
        }
    }

    /// Writes what was stopped to the lease, if it is not there.
    pub(super) fn write_yields(&mut self, slice: Prefix, out: &mut Out) {
        let stopped = self.stopped(slice);
        let entry = self.slices.get(&slice);
        let written = entry.and_then(|entry| entry.lease.as_ref());
        if written.is_some_and(|(lease, _)| lease.yielded == stopped) {
            self.finish_step(slice, out);
            return;
        }
        let lease = self.lease(slice, stopped);
        self.write_lease(slice, Step::Yielding(lease.clone()), lease, out);
    }
}
