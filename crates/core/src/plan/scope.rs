//! Which entries a request of one node may change, for a desk that serves many nodes.

use super::{Request, Selector};
use crate::record::NODE;
use crate::{Address, Pool, Record};

/// What the requests of one node may change: entries of that node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    pub node: String,
    /// Also entries that name no node: the caller has verified that their pod is on no other node.
    pub unnamed: bool,
    /// May also take over entries of another node: the caller has verified that their pod is on this node now. Never
    /// releases them.
    pub transfers: bool,
}

impl Scope {
    /// The entry of another node that the request would change, if any.
    pub fn breach<'a>(&self, pool: &'a Pool, request: &Request) -> Option<(Address, &'a Record)> {
        let (touched, transfer): (Vec<(Address, &Record)>, bool) = match request {
            Request::Release(release) => (released(pool, &release.selector), false),
            Request::Transfer {
                address, expected, ..
            } => {
                let held = pool.holders(*address);
                let held = held.filter(|held| held.same_holder(expected));
                (held.map(|held| (*address, held)).collect(), true)
            }
            Request::Exchange {
                address, expected, ..
            } => {
                let held = pool.holders(*address);
                let held = held.filter(|held| held.same_holder(expected));
                (held.map(|held| (*address, held)).collect(), false)
            }
            // The holder returns under another handle: its entry would be rewritten.
            Request::Allocate(claim) => {
                let owner = &claim.record.owner;
                let held = pool
                    .held_by(owner)
                    .flat_map(|address| pool.holders(address).map(move |held| (address, held)));
                let other =
                    |held: &&Record| held.owner == *owner && held.handle != claim.record.handle;
                (held.filter(|(_, held)| other(held)).collect(), true)
            }
        };
        let is_foreign = |(_, held): &(Address, &Record)| match held.attribute(NODE) {
            Some(node) => node != self.node && !(transfer && self.transfers),
            None => !self.unnamed,
        };
        touched.into_iter().find(is_foreign)
    }
}

fn released<'a>(pool: &'a Pool, selector: &Selector) -> Vec<(Address, &'a Record)> {
    match selector {
        Selector::Handle { handle, .. } => pool.held_under(handle).collect(),
        Selector::Owner(owner) => pool
            .held_by(owner)
            .flat_map(|address| pool.holders(address).map(move |held| (address, held)))
            .filter(|(_, held)| held.owner == *owner)
            .collect(),
        Selector::Address { address, holder } => pool
            .holders(*address)
            .filter(|held| held.same_holder(holder))
            .map(|held| (*address, held))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{Allocate, Release};
    use super::*;
    use crate::{Handle, Owner};

    fn record(pod: &str, node: &str) -> Record {
        let record = Record::new(Owner::new(pod, "net1"), Handle::new(format!("id-{pod}")));
        match node {
            "" => record,
            node => record.with(NODE, node),
        }
    }

    fn pool() -> Pool {
        let mut pool = Pool::new();
        for (n, (pod, node)) in [("ns/a", "node-a"), ("ns/b", "node-b"), ("ns/w", "")]
            .iter()
            .enumerate()
        {
            let address: Address = format!("10.0.0.{}", n + 1).parse().unwrap();
            pool.restore(address, record(pod, node));
        }
        pool
    }

    fn breached(request: &Request, transfers: bool) -> bool {
        let scope = Scope {
            node: "node-a".to_owned(),
            unnamed: true,
            transfers,
        };
        scope.breach(&pool(), request).is_some()
    }

    fn releases(pod: &str) -> Vec<Request> {
        let holder = record(pod, "");
        let address = match pod {
            "ns/a" => "10.0.0.1",
            "ns/b" => "10.0.0.2",
            _ => "10.0.0.3",
        };
        let selectors = [
            Selector::Handle {
                handle: holder.handle.clone(),
                part: None,
            },
            Selector::Owner(holder.owner.clone()),
            Selector::Address {
                address: address.parse().unwrap(),
                holder,
            },
        ];
        let release = |selector| {
            Request::Release(Release {
                selector,
                cooldown: Duration::ZERO,
            })
        };
        selectors.map(release).to_vec()
    }

    #[test]
    fn a_release_of_another_nodes_entry_is_a_breach_by_handle_and_by_address() {
        for transfers in [false, true] {
            for release in releases("ns/b") {
                assert!(breached(&release, transfers), "{release:?}");
            }
            for release in releases("ns/a").iter().chain(&releases("ns/w")) {
                assert!(!breached(release, transfers), "{release:?}");
            }
        }
    }

    #[test]
    fn an_entry_that_names_no_node_is_changed_only_where_that_was_allowed() {
        let scope = Scope {
            node: "node-a".to_owned(),
            ..Scope::default()
        };
        for release in releases("ns/w") {
            assert!(scope.breach(&pool(), &release).is_some());
            assert!(!breached(&release, false));
        }
    }

    #[test]
    fn an_entry_is_taken_over_from_another_node_only_where_that_was_allowed() {
        let claim = |pod: &str| {
            Request::Allocate(Allocate {
                record: Record::new(Owner::new(pod, "net1"), Handle::new("new")),
                wants: Vec::new(),
            })
        };
        let transfer = Request::Transfer {
            address: "10.0.0.2".parse().unwrap(),
            expected: record("ns/b", ""),
            record: record("ns/c", "node-a"),
        };
        assert!(breached(&claim("ns/b"), false) && breached(&transfer, false));
        assert!(!breached(&claim("ns/b"), true) && !breached(&transfer, true));
        assert!(!breached(&claim("ns/a"), false) && !breached(&claim("ns/w"), false));
        assert!(!breached(&claim("ns/new"), false));
    }
}
