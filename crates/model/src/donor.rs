//! A slice, or a part of it, becomes another's: set aside first, told second; and how a part comes back.

use std::collections::BTreeSet;

use berth_core::slice::elastic::spare;
use berth_core::{Moment, Prefix};

use crate::machine::{Task, name};
use crate::protocol::{Careless, Protocol};
use crate::world::{World, addresses, usable};
use crate::write::Write;

impl Protocol {
    /// A donor sets a part aside and offers it; what can't be split and is of no use is passed on whole.
    pub fn answer(&self, world: &mut World, node: usize, parent: Prefix) {
        let claim = &world.claims[&parent];
        let Some(taker) = claim.wants.first() else {
            return;
        };
        let to = (0..self.nodes).find(|n| name(*n) == *taker).unwrap();
        let may_go = claim.may_go() || self.is_careless(Careless::PassLent);
        let me = &mut world.machines[node];
        let mut pool = me.pool();
        // What lies in a slice of its own inside this one is that one's to give, and what is offered is not offered again:
        // a part that came back is not out of use any more, before it is held.
        let mut away = me.nested(parent);
        if !self.is_careless(Careless::OfferAgain) {
            away.extend(claim.offers.iter().map(|offer| offer.range));
        }
        for address in away.into_iter().flat_map(addresses) {
            if !pool.is_held(address) {
                pool.restore(address, Default::default());
            }
        }
        if let Some(child) = spare(parent, &usable(self.range), &pool, Moment(0)) {
            if self.is_careless(Careless::OfferFirst) {
                return world.send(Some(node), Write::Offer { parent, child, to });
            }
            me.set_aside(addresses(child), child);
            me.task = Some(Task::Offering { parent, child, to });
            return;
        }
        // What a crash left set aside is settled first.
        let is_whole = !me.lies_in_another(parent) || me.is_idle_in(parent);
        if may_go && is_whole && world.passes_left > 0 && !me.has_pod_in(parent) {
            world.passes_left -= 1;
            return self.shut(world, node, parent, Some(to));
        }
        world.send(Some(node), Write::Decline { parent, to });
    }

    /// Stops giving from a whole slice in which nothing is held. One inside another of this node is set aside there.
    pub fn shut(&self, world: &mut World, node: usize, slice: Prefix, to: Option<usize>) {
        let tells_first = match to {
            Some(_) => self.is_careless(Careless::PassFirst),
            None => self.is_careless(Careless::TellFirst),
        };
        if tells_first {
            return self.tell(world, node, slice, to);
        }
        let me = &mut world.machines[node];
        if me.lies_in_another(slice) && !self.is_careless(Careless::ShutBare) {
            me.set_aside(addresses(slice), slice);
            me.task = Some(Task::Shutting { slice, to });
        } else {
            self.end_holding(world, node, slice, to);
        }
    }

    pub fn end_holding(&self, world: &mut World, node: usize, slice: Prefix, to: Option<usize>) {
        let me = &mut world.machines[node];
        me.drop_holding(slice);
        me.task = Some(Task::Shut { slice, to });
    }

    pub fn tell(&self, world: &mut World, node: usize, range: Prefix, to: Option<usize>) {
        // As it was read before the holding went, and still is: else the write meets another.
        let mine = |claim: &berth_core::slice::elastic::Claimed| claim.node == name(node);
        if world.claims.get(&range).is_some_and(mine) {
            let frees = false;
            let write = match to {
                Some(to) => Write::PassOn { range, to },
                None => Write::Delete { range, frees },
            };
            world.send(Some(node), write);
        }
    }

    /// The claim first, then the offer, then the claim again, then the part is free.
    pub fn take_back(&self, world: &mut World, node: usize, part: Prefix) {
        match self.is_careless(Careless::FreeWithoutClaim) {
            true => self.withdraw(world, node, part),
            false => self.create(world, node, part, true),
        }
    }

    pub fn withdraw(&self, world: &mut World, node: usize, child: Prefix) {
        let Some(parent) = world.parent(child, self.cut) else {
            return;
        };
        let claim = &world.claims[&parent];
        if claim.node != name(node) {
            return;
        }
        let offered = claim.offers.iter().any(|offer| offer.range == child);
        if offered || !self.is_careless(Careless::SilentWithdraw) {
            world.send(Some(node), Write::Withdraw { parent, child });
        } else {
            self.end_withdrawn(world, node, child);
        }
    }

    /// The offer is gone: the name of the part goes, if it is this node's still.
    pub fn end_withdrawn(&self, world: &mut World, node: usize, part: Prefix) {
        if self.is_careless(Careless::FreeWithoutClaim) {
            let inner = true;
            world.machines[node].task = Some(Task::Freeing { part, inner });
            return;
        }
        let claim = world.claims.get(&part);
        if claim.is_some_and(|claim| claim.node == name(node)) {
            let (range, frees) = (part, true);
            world.send(Some(node), Write::Delete { range, frees });
        }
    }

    /// The claim of this node that a part which was set aside lies in: the smallest one. A slice that the node holds
    /// lies in itself: what is set aside of it was left by a crash.
    pub fn around(&self, world: &World, node: usize, part: Prefix) -> Option<Prefix> {
        let me = &world.machines[node];
        let itself = |range: Prefix| {
            range == part
                && (!me.holdings.contains_key(&part) || self.is_careless(Careless::KeepShut))
        };
        let mine = world.claims.iter().filter(|(range, claim)| {
            claim.node == name(node) && range.covers(part) && !itself(**range)
        });
        let mine = mine.map(|(range, _)| *range);
        match self.is_careless(Careless::OuterFirst) {
            true => mine.min_by_key(|range| range.length()),
            false => mine.max_by_key(|range| range.length()),
        }
    }

    /// Parts that are set aside and that no offer stands behind: a crash came between, or after the offer went.
    pub fn unsettled(&self, world: &World, node: usize) -> BTreeSet<Prefix> {
        let me = &world.machines[node];
        let mut parts: BTreeSet<Prefix> = me.rows.values().copied().collect();
        parts.retain(|part| {
            self.around(world, node, *part).is_none_or(|around| {
                let mut offers = world.claims[&around].offers.iter();
                !offers.any(|offer| offer.range.covers(*part))
            })
        });
        parts
    }

    /// An offer that was sent before a crash may still arrive; after this write it can't.
    pub fn settle(&self, world: &mut World, node: usize, part: Prefix) {
        let inner = false;
        match self.around(world, node, part) {
            Some(range) if !self.is_careless(Careless::SilentWithdraw) => {
                world.send(Some(node), Write::Touch { range, part });
            }
            _ => world.machines[node].task = Some(Task::Freeing { part, inner }),
        }
    }
}
