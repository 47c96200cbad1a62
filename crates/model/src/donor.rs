//! How a slice, or a part of it, is transferred to another node: set aside first, written second; and how a part
//! returns.

use std::collections::BTreeSet;

use berth_core::slice::elastic::spare;
use berth_core::{Moment, Prefix};

use crate::cluster::{Cluster, addresses, usable};
use crate::machine::{Task, name};
use crate::protocol::{Careless, Protocol};
use crate::write::Write;

impl Protocol {
    /// A donor sets a part aside and offers it; a slice that can't be split and is unused is transferred whole.
    pub fn answer(&self, cluster: &mut Cluster, node: usize, parent: Prefix) {
        let claim = &cluster.claims[&parent];
        let Some(taker) = claim.wants.first() else {
            return;
        };
        let to = (0..self.nodes).find(|n| name(*n) == *taker).unwrap();
        let may_go = claim.may_go() || self.is_careless(Careless::TransferLent);
        let me = &mut cluster.machines[node];
        let mut pool = me.pool();
        // Addresses of a nested slice are offered from that slice, and what is offered is not offered again: a part
        // that came back is in use before it is held.
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
                return cluster.send(Some(node), Write::Offer { parent, child, to });
            }
            me.set_aside(addresses(child), child);
            me.task = Some(Task::Offering { parent, child, to });
            return;
        }
        // First what a crash left set aside.
        let is_whole = !me.lies_in_another(parent) || me.is_idle_in(parent);
        if may_go && is_whole && cluster.transfers_left > 0 && !me.has_pod_in(parent) {
            cluster.transfers_left -= 1;
            return self.close(cluster, node, parent, Some(to));
        }
        cluster.send(Some(node), Write::Decline { parent, to });
    }

    /// Stops allocating from a whole slice in which nothing is held. If it lies inside another slice of this node, it
    /// is set aside there.
    pub fn close(&self, cluster: &mut Cluster, node: usize, slice: Prefix, to: Option<usize>) {
        let writes_first = match to {
            Some(_) => self.is_careless(Careless::TransferFirst),
            None => self.is_careless(Careless::WriteFirst),
        };
        if writes_first {
            return self.write_claim(cluster, node, slice, to);
        }
        let me = &mut cluster.machines[node];
        if me.lies_in_another(slice) && !self.is_careless(Careless::CloseBare) {
            me.set_aside(addresses(slice), slice);
            me.task = Some(Task::Closing { slice, to });
        } else {
            self.end_holding(cluster, node, slice, to);
        }
    }

    pub fn end_holding(
        &self,
        cluster: &mut Cluster,
        node: usize,
        slice: Prefix,
        to: Option<usize>,
    ) {
        let me = &mut cluster.machines[node];
        me.drop_holding(slice);
        me.task = Some(Task::Closed { slice, to });
    }

    pub fn write_claim(
        &self,
        cluster: &mut Cluster,
        node: usize,
        range: Prefix,
        to: Option<usize>,
    ) {
        // As it was read before the holding was dropped, and still is: otherwise the write conflicts.
        let mine = |claim: &berth_core::slice::elastic::Claimed| claim.node == name(node);
        if cluster.claims.get(&range).is_some_and(mine) {
            let frees = false;
            let write = match to {
                Some(to) => Write::Transfer { range, to },
                None => Write::Delete { range, frees },
            };
            cluster.send(Some(node), write);
        }
    }

    /// The claim first, then the offer, then the claim again, then the part is free.
    pub fn take_back(&self, cluster: &mut Cluster, node: usize, part: Prefix) {
        match self.is_careless(Careless::FreeWithoutClaim) {
            true => self.withdraw(cluster, node, part),
            false => self.create(cluster, node, part, true),
        }
    }

    pub fn withdraw(&self, cluster: &mut Cluster, node: usize, child: Prefix) {
        let Some(parent) = cluster.parent(child, self.cut) else {
            return;
        };
        let claim = &cluster.claims[&parent];
        if claim.node != name(node) {
            return;
        }
        let offered = claim.offers.iter().any(|offer| offer.range == child);
        if offered || !self.is_careless(Careless::SilentWithdraw) {
            cluster.send(Some(node), Write::Withdraw { parent, child });
        } else {
            self.end_withdrawn(cluster, node, child);
        }
    }

    /// The offer is gone: the claim of the part is deleted, if it is still this node's.
    pub fn end_withdrawn(&self, cluster: &mut Cluster, node: usize, part: Prefix) {
        if self.is_careless(Careless::FreeWithoutClaim) {
            let inner = true;
            cluster.machines[node].task = Some(Task::Freeing { part, inner });
            return;
        }
        let claim = cluster.claims.get(&part);
        if claim.is_some_and(|claim| claim.node == name(node)) {
            let (range, frees) = (part, true);
            cluster.send(Some(node), Write::Delete { range, frees });
        }
    }

    /// This node's claim that contains a part which was set aside: the smallest one. A slice that the node holds
    /// contains itself: what is set aside of it was left by a crash.
    pub fn around(&self, cluster: &Cluster, node: usize, part: Prefix) -> Option<Prefix> {
        let me = &cluster.machines[node];
        let itself = |range: Prefix| {
            range == part
                && (!me.holdings.contains_key(&part) || self.is_careless(Careless::KeepClosed))
        };
        let mine = cluster.claims.iter().filter(|(range, claim)| {
            claim.node == name(node) && range.covers(part) && !itself(**range)
        });
        let mine = mine.map(|(range, _)| *range);
        match self.is_careless(Careless::OuterFirst) {
            true => mine.min_by_key(|range| range.length()),
            false => mine.max_by_key(|range| range.length()),
        }
    }

    /// Parts that are set aside without an offer: a crash came between, or after the offer was removed.
    pub fn unsettled(&self, cluster: &Cluster, node: usize) -> BTreeSet<Prefix> {
        let me = &cluster.machines[node];
        let mut parts: BTreeSet<Prefix> = me.rows.values().copied().collect();
        parts.retain(|part| {
            self.around(cluster, node, *part).is_none_or(|around| {
                let mut offers = cluster.claims[&around].offers.iter();
                !offers.any(|offer| offer.range.covers(*part))
            })
        });
        parts
    }

    /// An offer that was sent before a crash may still arrive; after this write it can't.
    pub fn settle(&self, cluster: &mut Cluster, node: usize, part: Prefix) {
        let inner = false;
        match self.around(cluster, node, part) {
            Some(range) if !self.is_careless(Careless::SilentWithdraw) => {
                cluster.send(Some(node), Write::Touch { range, part });
            }
            _ => cluster.machines[node].task = Some(Task::Freeing { part, inner }),
        }
    }
}
