//! Executes each step of the protocol, as one that can be the last before a crash: one write at the API server, or
//! one commit of the node's own ledger.

use berth_core::Prefix;
use berth_core::slice::elastic::{Claimed, Standing, standing};

use crate::cluster::Cluster;
use crate::machine::{Task, name};
use crate::protocol::{Careless, Protocol, Step};
use crate::write::Write;

impl Protocol {
    pub fn act(&self, cluster: &mut Cluster, step: &Step) {
        match *step {
            Step::Arrive(at) => self.arrive(cluster, at),
            Step::Claim(node, range) | Step::Take(node, range) => {
                self.create(cluster, node, range, false);
            }
            Step::TakeBack(node, part) => self.take_back(cluster, node, part),
            Step::GoOn(node) => self.go_on(cluster, node),
            Step::Allocate(node, address) => {
                cluster.machines[node].allocated.insert(address);
            }
            Step::End(node, address) => {
                cluster.machines[node].allocated.remove(&address);
            }
            Step::ReturnSlice(node, range) => {
                if cluster.claims.get(&range).is_none_or(Claimed::may_go) {
                    self.close(cluster, node, range, None);
                }
            }
            Step::Want(node, parent) => cluster.send(Some(node), Write::Want { parent }),
            Step::Answer(node, parent) => self.answer(cluster, node, parent),
            Step::Settle(node, part) => self.settle(cluster, node, part),
            Step::Adopt(node, range) => match self.is_careless(Careless::SilentAdoption) {
                true => cluster.machines[node].task = Some(Task::Confirming(range)),
                false => self.stamp(cluster, node, range),
            },
            Step::Verify(node, range) => self.verify(cluster, node, range),
            Step::Inherit(node, range) => {
                let uid = cluster.machines[node].uid;
                cluster.send(Some(node), Write::Inherit { range, uid });
            }
            Step::Crash(node) => {
                cluster.interrupt(node);
                cluster.crashes_left -= 1;
            }
            Step::Outage(node) => {
                cluster.interrupt(node);
                let me = &mut cluster.machines[node];
                me.up = false;
                // Its pods are dead; what is on disk stays.
                me.allocated.clear();
                me.verified.clear();
                cluster.outages_left -= 1;
            }
            Step::NodeDeleted(node) => {
                let me = &mut cluster.machines[node];
                me.registered = false;
                if me.up {
                    cluster.deletions_left -= 1;
                }
            }
            // It has another UID; an agent reads its UID once.
            Step::Register(node) => cluster.machines[node].registered = true,
            Step::Notice(node, range) => cluster.machines[node].drop_holding(range),
            Step::Recall(range) => cluster.send(None, Write::Recall { range }),
            Step::Return(node) => {
                let me = &mut cluster.machines[node];
                me.up = true;
                if !me.registered {
                    me.registered = true;
                    me.uid += 1;
                }
            }
            Step::Reclaim(range) => {
                let write = match cluster.claims[&range].may_go() {
                    true => Write::Delete {
                        range,
                        frees: false,
                    },
                    false => Write::Orphan { range },
                };
                cluster.send(None, write);
            }
        }
    }

    fn go_on(&self, cluster: &mut Cluster, node: usize) {
        let Some(task) = cluster.machines[node].task.take() else {
            return;
        };
        match task {
            Task::Confirming(range) => self.confirm(cluster, node, range),
            Task::Granted(range) => self.put_into_use(cluster, node, range),
            Task::Emptied(range) => self.set_parts_aside(cluster, node, range),
            Task::Settled(range) => {
                // As the agent read it when it was confirmed: no other process may change who holds the claim.
                if let Some(claim) = cluster.claims.get(&range) {
                    cluster.machines[node].hold(claim);
                }
            }
            Task::TakingBack(part) => self.withdraw(cluster, node, part),
            Task::Freeing { part, inner } => {
                let goes = |row: Prefix| row == part || inner && part.covers(row);
                cluster.machines[node].rows.retain(|_, row| !goes(*row));
            }
            Task::Offering { parent, child, to } => {
                cluster.send(Some(node), Write::Offer { parent, child, to });
            }
            Task::Closing { slice, to } => self.end_holding(cluster, node, slice, to),
            Task::Closed { slice, to } => self.write_claim(cluster, node, slice, to),
            Task::Waiting(_) => cluster.machines[node].task = Some(task),
        }
    }

    pub fn create(&self, cluster: &mut Cluster, node: usize, range: Prefix, back: bool) {
        let uid = cluster.machines[node].uid;
        cluster.send(Some(node), Write::Create { range, uid, back });
    }

    pub fn stamp(&self, cluster: &mut Cluster, node: usize, range: Prefix) {
        let uid = cluster.machines[node].uid;
        cluster.send(Some(node), Write::Stamp { range, uid });
    }

    fn verify(&self, cluster: &mut Cluster, node: usize, range: Prefix) {
        let me = &mut cluster.machines[node];
        let mut claim = cluster.claims.get(&range).cloned();
        if let Some(claim) = &mut claim {
            claim.recalled &= !self.is_careless(Careless::SilentReturn);
        }
        match standing(&name(node), &me.holdings[&range], claim.as_ref()) {
            Standing::Lost { .. } => {
                me.drop_holding(range);
                if self.is_careless(Careless::CountLost) {
                    me.lost.insert(range);
                }
            }
            Standing::Ours if self.is_careless(Careless::SilentReturn) => {
                me.verified.insert(range);
            }
            Standing::Ours => self.stamp(cluster, node, range),
        }
    }

    fn arrive(&self, cluster: &mut Cluster, at: usize) {
        let (sent, changed) = cluster.arrive(at);
        if let Some(node) = sent.from.filter(|_| sent.awaited) {
            // What is already gone stays gone.
            let is_gone = |range| !cluster.claims.contains_key(range);
            let done =
                changed || matches!(&sent.write, Write::Delete { range, .. } if is_gone(range));
            cluster.machines[node].task = None;
            match done {
                true => self.follow(cluster, node, &sent.write),
                false => self.give_up(cluster, node, &sent.write),
            }
        }
    }

    /// What follows a write that was carried out.
    fn follow(&self, cluster: &mut Cluster, node: usize, write: &Write) {
        let me = &mut cluster.machines[node];
        let next = match *write {
            Write::Create {
                range, back: true, ..
            } => Some(Task::TakingBack(range)),
            Write::Create { range, .. } => Some(Task::Confirming(range)),
            Write::Inherit { range, .. } => Some(Task::Granted(range)),
            Write::Stamp { range, uid } => match me.holdings.get_mut(&range) {
                Some(holding) => {
                    holding.node_uid = uid.to_string();
                    me.verified.insert(range);
                    None
                }
                None => Some(Task::Confirming(range)),
            },
            Write::Withdraw { child, .. } => return self.end_withdrawn(cluster, node, child),
            Write::Delete { range, frees: true } => Some(Task::Freeing {
                part: range,
                inner: true,
            }),
            Write::Delete { range, .. } | Write::Transfer { range, .. } => {
                me.drop_holding(range);
                // Its addresses stay out of use if another slice of the node contains it: it was cut from that one.
                let stays = me.lies_in_another(range) && !self.is_careless(Careless::FreeInside);
                let rows = me.rows.values().any(|row| *row == range);
                (rows && !stays).then_some(Task::Freeing {
                    part: range,
                    inner: false,
                })
            }
            Write::Touch { part, .. } => Some(Task::Freeing { part, inner: false }),
            Write::Offer {
                parent: _, child, ..
            } => {
                if self.is_careless(Careless::OfferFirst) {
                    me.set_aside(crate::cluster::addresses(child), child);
                }
                None
            }
            Write::Want { .. }
            | Write::Decline { .. }
            | Write::Recall { .. }
            | Write::Orphan { .. } => None,
        };
        cluster.machines[node].task = next;
    }

    /// What follows a write that was refused.
    fn give_up(&self, cluster: &mut Cluster, node: usize, write: &Write) {
        // It was not offered: the addresses are still this node's.
        if let Write::Offer { child, .. } = *write {
            cluster.machines[node].task = Some(Task::Freeing {
                part: child,
                inner: false,
            });
        }
    }
}
