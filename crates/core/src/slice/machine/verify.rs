//! What a node does with a slice after it has read the lease and its own published pool.

use std::collections::BTreeSet;

use super::effect::Effect;
use super::event::SliceRead;
use super::node::{Link, NodeMachine, Out, Role, Step};
use super::objects::{Lease, Published, Stamp};
use super::stored::Change;
use crate::Prefix;

impl NodeMachine {
    pub(super) fn slice_read(&mut self, slice: Prefix, read: Option<SliceRead>, out: &mut Out) {
        if self.step(slice) != Some(&Step::ReadingSlice) {
            return;
        }
        let Some(read) = read else {
            self.finish_step(slice, out);
            return;
        };
        if let Some(entry) = self.slices.get_mut(&slice) {
            entry.published = read.published.as_ref().map(|(_, stamp)| *stamp);
        }
        if let Some((published, _)) = &read.published {
            self.recover(published, out);
        }
        match read.lease {
            None => self.vanished(slice, read.registered, out),
            Some((lease, _)) if lease.node != self.me.node => self.lost(slice, out),
            Some((lease, _)) if lease.file != self.stored.file && self.me.role == Role::Engine => {
                self.slices.remove(&slice);
                let file = lease.file;
                out.effects.push(Effect::ReportOtherFile { slice, file });
            }
            Some((lease, stamp)) => self.own_lease(slice, lease, stamp, read.registered, out),
        }
    }

    /// Holds the addresses of a published pool that is newer than this file.
    fn recover(&mut self, published: &Published, out: &mut Out) {
        let (slice, nonce) = (published.slice, published.nonce);
        let noted = self.stored.noted.get(&slice);
        if noted.is_some_and(|noted| noted.contains(&nonce)) {
            return;
        }
        let held = self.stored.pods_in(slice);
        let found: BTreeSet<_> = published.entries.difference(&held).copied().collect();
        if !found.is_empty() {
            self.commit(Change::Recover(found), out);
        }
        self.commit(Change::Note { slice, nonce }, out);
    }

    /// There is no lease. A node whose pods have addresses of the slice creates it again at once.
    fn vanished(&mut self, slice: Prefix, registered: bool, out: &mut Out) {
        let ready = self.link == Link::Ready;
        let Some(entry) = self.slices.get_mut(&slice) else {
            return;
        };
        entry.serving = false;
        entry.lease = None;
        let wanted = entry.wanted && ready;
        if !wanted && !self.stored.has_pods_in(slice) {
            self.drop_slice(slice, out);
        } else if registered {
            self.create(slice, out);
        } else {
            self.finish_step(slice, out);
        }
    }

    /// The lease is another node's. Pods keep their addresses, and the published pool shows them.
    fn lost(&mut self, slice: Prefix, out: &mut Out) {
        let Some(entry) = self.slices.get_mut(&slice) else {
            return;
        };
        entry.serving = false;
        entry.wanted = false;
        entry.lease = None;
        match self.stored.has_pods_in(slice) {
            false => self.drop_slice(slice, out),
            true => {
                if self.stored.slices.contains_key(&slice) {
                    self.commit(Change::Forget(slice), out);
                }
                self.finish_step(slice, out);
            }
        }
    }

    fn own_lease(
        &mut self,
        slice: Prefix,
        lease: Lease,
        stamp: Stamp,
        registered: bool,
        out: &mut Out,
    ) {
        let stopped = self.stored.slices.get(&slice).cloned();
        let has_pods = self.stored.has_pods_in(slice);
        let Some(entry) = self.slices.get_mut(&slice) else {
            return;
        };
        let known = entry.lease.replace((lease.clone(), stamp));
        // Created again since: the plain pool or another node may have used the slice meanwhile.
        let is_same = known.is_some_and(|(_, known)| known.uid == stamp.uid);
        if lease.recalled || !is_same {
            entry.serving &= !lease.recalled && is_same;
        }
        if lease.recalled && !registered {
            self.finish_step(slice, out);
        } else if stopped.is_none() && !has_pods && !entry.wanted {
            self.drop_slice(slice, out);
        } else if entry.serving && known_is_current(&lease, stopped.as_ref()) {
            self.finish_step(slice, out);
        } else {
            self.bump(slice, &lease, out);
        }
    }
}

fn known_is_current(lease: &Lease, stopped: Option<&super::objects::Addresses>) -> bool {
    stopped.is_some_and(|stopped| *stopped == lease.yielded)
}
