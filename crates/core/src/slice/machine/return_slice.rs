//! The steps that return a slice: commit, then delete the published pool, then delete the lease.

use super::effect::Effect;
use super::event::{Deleted, Written};
use super::mode::{Mode, ModeKind};
use super::node::{NodeMachine, Out, Step};
use super::stored::Change;
use crate::Prefix;

impl NodeMachine {
    pub(super) fn return_slice(&mut self, slice: Prefix, out: &mut Out) {
        let is_ours = self.stored.slices.contains_key(&slice) && self.is_serving(slice);
        if is_ours && !self.stored.has_pods_in(slice) && self.step(slice) == Some(&Step::Idle) {
            self.drop_slice(slice, out);
        }
    }

    /// Stops what is free, because the range is tight or is returned.
    pub(super) fn mode_seen(&mut self, mode: Mode, out: &mut Out) {
        if !mode.kind.is_yielding() {
            return;
        }
        let slices: Vec<Prefix> = self.stored.slices.keys().copied().collect();
        for slice in slices {
            if self.is_serving(slice) && self.step(slice) == Some(&Step::Idle) {
                self.make_room(slice, mode, out);
            }
        }
    }

    fn make_room(&mut self, slice: Prefix, mode: Mode, out: &mut Out) {
        if !self.stored.has_pods_in(slice) {
            self.drop_slice(slice, out);
            return;
        }
        let part = self.stored.free_in(slice);
        if !part.is_empty() {
            self.commit(Change::Stop { slice, part }, out);
        }
        match mode.kind {
            ModeKind::Leaving => self.copy_out(slice, mode, out),
            _ => self.write_yields(slice, out),
        }
    }

    /// Nothing is allocated from the slice meanwhile: an address that changed its pod would be copied for the wrong
    /// one.
    fn copy_out(&mut self, slice: Prefix, mode: Mode, out: &mut Out) {
        if let Some(entry) = self.slices.get_mut(&slice) {
            entry.serving = false;
        }
        let effect = Effect::CopyOut {
            slice,
            pods: self.stored.pods_in(slice),
            token: mode.token,
        };
        self.request(slice, Step::CopyingOut, effect, out);
    }

    pub(super) fn copied_out(&mut self, slice: Prefix, written: Written, out: &mut Out) {
        if self.step(slice) != Some(&Step::CopyingOut) {
            return;
        }
        match written {
            Written::Yes(_) => {
                self.commit(Change::CopiedOut(slice), out);
                self.retract(slice, out);
            }
            Written::Refused | Written::Unknown => self.read_slice(slice, out),
        }
    }

    /// Nothing is allocated from the slice from here on, regardless of its objects.
    pub(super) fn drop_slice(&mut self, slice: Prefix, out: &mut Out) {
        if let Some(entry) = self.slices.get_mut(&slice) {
            entry.serving = false;
            entry.wanted = false;
        }
        if self.stored.slices.contains_key(&slice) {
            self.commit(Change::Forget(slice), out);
        }
        self.retract(slice, out);
    }

    fn retract(&mut self, slice: Prefix, out: &mut Out) {
        let published = self.slices.get(&slice).and_then(|entry| entry.published);
        match published {
            Some(expected) => {
                let effect = Effect::Retract { slice, expected };
                self.request(slice, Step::Retracting, effect, out);
            }
            None => self.delete_lease(slice, out),
        }
    }

    pub(super) fn retracted(&mut self, slice: Prefix, deleted: Deleted, out: &mut Out) {
        if self.step(slice) != Some(&Step::Retracting) {
            return;
        }
        match deleted {
            Deleted::Yes => {
                self.commit(Change::Retracted(slice), out);
                if let Some(entry) = self.slices.get_mut(&slice) {
                    entry.published = None;
                }
                self.delete_lease(slice, out);
            }
            Deleted::Refused | Deleted::Unknown => self.read_slice(slice, out),
        }
    }

    fn delete_lease(&mut self, slice: Prefix, out: &mut Out) {
        let entry = self.slices.get(&slice);
        match entry.and_then(|entry| entry.lease.as_ref()) {
            Some((_, stamp)) => {
                let expected = *stamp;
                let effect = Effect::DeleteLease { slice, expected };
                self.request(slice, Step::Deleting, effect, out);
            }
            None => {
                self.slices.remove(&slice);
            }
        }
    }

    pub(super) fn lease_deleted(&mut self, slice: Prefix, deleted: Deleted, out: &mut Out) {
        if self.step(slice) != Some(&Step::Deleting) {
            return;
        }
        match deleted {
            Deleted::Yes => {
                self.slices.remove(&slice);
            }
            Deleted::Refused | Deleted::Unknown => self.read_slice(slice, out),
        }
    }
}
