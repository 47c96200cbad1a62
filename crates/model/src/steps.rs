//! Each step of the protocol as one that can be the last before a crash: one write at the API server, or one commit of
//! the node's own ledger.

use berth_core::Prefix;
use berth_core::slice::elastic::{Claimed, Standing, standing};

use crate::machine::{Task, name};
use crate::protocol::{Careless, Protocol, Step};
use crate::world::World;
use crate::write::Write;

impl Protocol {
    pub fn act(&self, world: &mut World, step: &Step) {
        match *step {
            Step::Arrive(at) => self.arrive(world, at),
            Step::Claim(node, range) | Step::Take(node, range) => {
                self.create(world, node, range, false);
            }
            Step::TakeBack(node, part) => self.take_back(world, node, part),
            Step::GoOn(node) => self.go_on(world, node),
            Step::Give(node, address) => {
                world.machines[node].given.insert(address);
            }
            Step::End(node, address) => {
                world.machines[node].given.remove(&address);
            }
            Step::GiveBack(node, range) => {
                if world.claims.get(&range).is_none_or(Claimed::may_go) {
                    self.shut(world, node, range, None);
                }
            }
            Step::Want(node, parent) => world.send(Some(node), Write::Want { parent }),
            Step::Answer(node, parent) => self.answer(world, node, parent),
            Step::Settle(node, part) => self.settle(world, node, part),
            Step::Adopt(node, range) => match self.is_careless(Careless::SilentAdoption) {
                true => world.machines[node].task = Some(Task::Confirming(range)),
                false => self.stamp(world, node, range),
            },
            Step::Verify(node, range) => self.verify(world, node, range),
            Step::Inherit(node, range) => {
                let uid = world.machines[node].uid;
                world.send(Some(node), Write::Inherit { range, uid });
            }
            Step::Crash(node) => {
                world.interrupt(node);
                world.crashes_left -= 1;
            }
            Step::Outage(node) => {
                world.interrupt(node);
                let me = &mut world.machines[node];
                me.up = false;
                // Its pods are dead; what it has on disk it keeps.
                me.given.clear();
                me.verified.clear();
                world.outages_left -= 1;
            }
            Step::NodeDeleted(node) => {
                let me = &mut world.machines[node];
                me.registered = false;
                if me.up {
                    world.deletions_left -= 1;
                }
            }
            // Its UID is another one; an agent asks for it once.
            Step::Register(node) => world.machines[node].registered = true,
            Step::Heed(node, range) => world.machines[node].drop_holding(range),
            Step::Recall(range) => world.send(None, Write::Recall { range }),
            Step::Return(node) => {
                let me = &mut world.machines[node];
                me.up = true;
                if !me.registered {
                    me.registered = true;
                    me.uid += 1;
                }
            }
            Step::Reclaim(range) => {
                let write = match world.claims[&range].may_go() {
                    true => Write::Delete {
                        range,
                        frees: false,
                    },
                    false => Write::Orphan { range },
                };
                world.send(None, write);
            }
        }
    }

    fn go_on(&self, world: &mut World, node: usize) {
        let Some(task) = world.machines[node].task.take() else {
            return;
        };
        match task {
            Task::Confirming(range) => self.confirm(world, node, range),
            Task::Granted(range) => self.put_into_use(world, node, range),
            Task::Emptied(range) => self.set_parts_aside(world, node, range),
            Task::Settled(range) => {
                // As the agent read it when it was confirmed: nobody but it may change who holds the claim.
                if let Some(claim) = world.claims.get(&range) {
                    world.machines[node].hold(claim);
                }
            }
            Task::TakingBack(part) => self.withdraw(world, node, part),
            Task::Freeing { part, inner } => {
                let goes = |row: Prefix| row == part || inner && part.covers(row);
                world.machines[node].rows.retain(|_, row| !goes(*row));
            }
            Task::Offering { parent, child, to } => {
                world.send(Some(node), Write::Offer { parent, child, to });
            }
            Task::Shutting { slice, to } => self.end_holding(world, node, slice, to),
            Task::Shut { slice, to } => self.tell(world, node, slice, to),
            Task::Waiting(_) => world.machines[node].task = Some(task),
        }
    }

    pub fn create(&self, world: &mut World, node: usize, range: Prefix, back: bool) {
        let uid = world.machines[node].uid;
        world.send(Some(node), Write::Create { range, uid, back });
    }

    pub fn stamp(&self, world: &mut World, node: usize, range: Prefix) {
        let uid = world.machines[node].uid;
        world.send(Some(node), Write::Stamp { range, uid });
    }

    fn verify(&self, world: &mut World, node: usize, range: Prefix) {
        let me = &mut world.machines[node];
        let mut claim = world.claims.get(&range).cloned();
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
            Standing::Ours => self.stamp(world, node, range),
        }
    }

    fn arrive(&self, world: &mut World, at: usize) {
        let (sent, changed) = world.arrive(at);
        if let Some(node) = sent.from.filter(|_| sent.awaited) {
            // What is gone already is gone.
            let is_gone = |range| !world.claims.contains_key(range);
            let done =
                changed || matches!(&sent.write, Write::Delete { range, .. } if is_gone(range));
            world.machines[node].task = None;
            match done {
                true => self.follow(world, node, &sent.write),
                false => self.give_up(world, node, &sent.write),
            }
        }
    }

    /// What follows a write that was carried out.
    fn follow(&self, world: &mut World, node: usize, write: &Write) {
        let me = &mut world.machines[node];
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
            Write::Withdraw { child, .. } => return self.end_withdrawn(world, node, child),
            Write::Delete { range, frees: true } => Some(Task::Freeing {
                part: range,
                inner: true,
            }),
            Write::Delete { range, .. } | Write::PassOn { range, .. } => {
                me.drop_holding(range);
                // Its addresses stay out of use where another slice of the node lies around it: it was cut from
                // that one.
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
                    me.set_aside(crate::world::addresses(child), child);
                }
                None
            }
            Write::Want { .. }
            | Write::Decline { .. }
            | Write::Recall { .. }
            | Write::Orphan { .. } => None,
        };
        world.machines[node].task = next;
    }

    /// What follows a write that met another.
    fn give_up(&self, world: &mut World, node: usize, write: &Write) {
        // It was not offered: the addresses are this node's still.
        if let Write::Offer { child, .. } = *write {
            world.machines[node].task = Some(Task::Freeing {
                part: child,
                inner: false,
            });
        }
    }
}
