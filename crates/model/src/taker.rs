//! A slice becomes a node's: the claim in its name is confirmed, what others have of it is set aside, and it is held.

use berth_core::Prefix;

use crate::machine::{Task, name};
use crate::protocol::{Careless, Protocol};
use crate::world::{World, addresses};
use crate::write::Write;

impl Protocol {
    /// Whether a claim in the node's name may be held: a slot of the cut, one that was passed on, or a part whose
    /// offer stands. What is neither is a leftover, and goes.
    pub fn confirm(&self, world: &mut World, node: usize, range: Prefix) {
        let Some(claim) = world.claims.get(&range) else {
            return;
        };
        let parent = world.parent(range, self.cut).map(|at| &world.claims[&at]);
        let is_granted = range.length() <= self.cut
            || claim.epoch.0 > 1
            || self.is_careless(Careless::NoSecondLook)
            || match parent {
                Some(parent) => parent.lets(range, &name(node)),
                None => self.is_careless(Careless::AdoptStray),
            };
        let is_ours = parent.is_some_and(|parent| parent.node == name(node));
        if is_granted {
            world.machines[node].task = Some(Task::Granted(range));
        } else if is_ours {
            world.machines[node].task = Some(Task::TakingBack(range));
        } else {
            let frees = false;
            world.send(Some(node), Write::Delete { range, frees });
        }
    }

    /// What was out of use in it is in use again, but for what its parts and the node's own slices inside it say.
    pub fn put_into_use(&self, world: &mut World, node: usize, range: Prefix) {
        let me = &mut world.machines[node];
        if self.is_careless(Careless::EmptyFirst) {
            me.rows.retain(|row, _| !range.contains(*row));
            me.task = Some(Task::Emptied(range));
            return;
        }
        let nested = me.nested(range);
        me.rows.retain(|row, _| {
            !range.contains(*row) || nested.iter().any(|inner| inner.contains(*row))
        });
        self.set_parts_aside(world, node, range);
    }

    pub fn set_parts_aside(&self, world: &mut World, node: usize, range: Prefix) {
        let Some(claim) = world.claims.get(&range) else {
            return;
        };
        let me = &mut world.machines[node];
        for offer in &claim.offers {
            let mut inside = me.nested(offer.range);
            if me.holdings.contains_key(&offer.range) {
                inside.push(offer.range);
            }
            let mut away = addresses(offer.range);
            away.retain(|address| {
                !me.given.contains(address) && !inside.iter().any(|one| one.contains(*address))
            });
            me.set_aside(away, offer.range);
        }
        me.task = Some(Task::Settled(range));
    }
}
