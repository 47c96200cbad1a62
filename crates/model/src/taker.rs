//! How a slice becomes a node's: the claim is confirmed, parts of other nodes are set aside, and it is held.

use berth_core::Prefix;

use crate::cluster::{Cluster, addresses};
use crate::machine::{Task, name};
use crate::protocol::{Careless, Protocol};
use crate::write::Write;

impl Protocol {
    /// Whether a claim in the node's name may be held: a slice of the cut, one that was transferred, or a part whose
    /// offer exists. Any other claim is a leftover and is deleted.
    pub fn confirm(&self, cluster: &mut Cluster, node: usize, range: Prefix) {
        let Some(claim) = cluster.claims.get(&range) else {
            return;
        };
        let parent = cluster
            .parent(range, self.cut)
            .map(|at| &cluster.claims[&at]);
        let is_granted = range.length() <= self.cut
            || claim.epoch.0 > 1
            || self.is_careless(Careless::NoSecondRead)
            || match parent {
                Some(parent) => parent.lets(range, &name(node)),
                None => self.is_careless(Careless::AdoptLeftover),
            };
        let is_ours = parent.is_some_and(|parent| parent.node == name(node));
        if is_granted {
            cluster.machines[node].task = Some(Task::Granted(range));
        } else if is_ours {
            cluster.machines[node].task = Some(Task::TakingBack(range));
        } else {
            let frees = false;
            cluster.send(Some(node), Write::Delete { range, frees });
        }
    }

    /// Puts the slice's addresses back into use, except those of its parts and of the node's own slices inside it.
    pub fn put_into_use(&self, cluster: &mut Cluster, node: usize, range: Prefix) {
        let me = &mut cluster.machines[node];
        if self.is_careless(Careless::EmptyFirst) {
            me.rows.retain(|row, _| !range.contains(*row));
            me.task = Some(Task::Emptied(range));
            return;
        }
        let nested = me.nested(range);
        me.rows.retain(|row, _| {
            !range.contains(*row) || nested.iter().any(|inner| inner.contains(*row))
        });
        self.set_parts_aside(cluster, node, range);
    }

    pub fn set_parts_aside(&self, cluster: &mut Cluster, node: usize, range: Prefix) {
        let Some(claim) = cluster.claims.get(&range) else {
            return;
        };
        let me = &mut cluster.machines[node];
        for offer in &claim.offers {
            let mut inside = me.nested(offer.range);
            if me.holdings.contains_key(&offer.range) {
                inside.push(offer.range);
            }
            let mut away = addresses(offer.range);
            away.retain(|address| {
                !me.allocated.contains(address) && !inside.iter().any(|one| one.contains(*address))
            });
            me.set_aside(away, offer.range);
        }
        me.task = Some(Task::Settled(range));
    }
}
