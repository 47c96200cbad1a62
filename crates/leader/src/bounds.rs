//! What a batch may contain: numbers and lengths of everything in it, so that no sender makes the leader keep or write
//! something of its choice without end; and that it speaks of its own node.

use std::time::Duration;

use berth_api::names::is_path_segment;
use berth_core::plan::Selector;
use berth_core::{Allocate, NODE, Owner, Record, Request};
use thiserror::Error;

use crate::Owners;
use crate::kind::{MoveOf, Moving};
use crate::wire::Batch;

/// Requests of one batch: as many as a desk commits at once.
const REQUESTS: usize = 1_024;
/// Addresses of one claim: the ranges of a network.
const WANTS: usize = 64;
/// Addresses that a want names as taken elsewhere.
const AVOIDED: usize = 4_096;
/// A released address cools down for a day at most.
const REST: Duration = Duration::from_secs(86_400);
/// Bytes of a container id, an interface, the name of an attribute.
const TEXT: usize = 256;
/// Bytes of an attribute: a move names two nodes, two VMs and a pod.
const VALUE: usize = 2_048;
/// Bytes of `namespace/pod`.
const SUBJECT: usize = 320;
/// Bytes of the name of an object.
const NAME: usize = 253;
const ATTRIBUTES: usize = 16;

/// What is too much, or not the sender's.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum Unfit {
    #[error("{what}: {found}, where {most} is the most")]
    Excess {
        what: &'static str,
        found: u128,
        most: u128,
    },
    #[error("a record of node {named} in a request of node {node}")]
    OtherNode { named: String, node: String },
    #[error("{named:?} names no pod: an owner is namespace/pod, as Kubernetes names them")]
    NoPod { named: String },
}

/// Checks a batch; `move_of` reads the move that a record is in, where records of the kind move.
pub(crate) fn fit(batch: &Batch, owners: Owners, move_of: Option<MoveOf>) -> Result<(), Unfit> {
    within("bytes of the node's name", batch.node.len(), NAME)?;
    within("bytes of the pool's name", batch.pool.name.len(), NAME)?;
    within("requests", batch.requests.len(), REQUESTS)?;
    let node = batch.node.as_str();
    for request in &batch.requests {
        match request {
            Request::Allocate(claim) => claim_fits(claim, node, owners)?,
            Request::Exchange {
                expected, claim, ..
            } => {
                record_fits(expected)?;
                claim_fits(claim, node, owners)?;
            }
            Request::Release(release) => {
                let (cooldown, most) = (release.cooldown.as_secs(), REST.as_secs());
                if release.cooldown > REST {
                    return Err(excess("seconds of cooldown", cooldown.into(), most.into()));
                }
                match &release.selector {
                    Selector::Handle { handle, part } => {
                        text("handle", handle.as_str())?;
                        text("interface", part.as_deref().unwrap_or_default())?;
                    }
                    Selector::Owner(owner) => owner_fits(owner)?,
                    Selector::Address { holder, .. } => record_fits(holder)?,
                }
            }
            Request::Transfer {
                expected, record, ..
            } => {
                record_fits(expected)?;
                // While it moves, a record is of the source's node, and either node writes it.
                match Moving::of(move_of, [expected, record], node) {
                    Some(_) => written_fits(record, node, owners)?,
                    None => own(record, node, owners)?,
                }
            }
        }
    }
    Ok(())
}

fn claim_fits(claim: &Allocate, node: &str, owners: Owners) -> Result<(), Unfit> {
    within("addresses of a claim", claim.wants.len(), WANTS)?;
    for want in &claim.wants {
        within("addresses to avoid", want.avoid.len(), AVOIDED)?;
    }
    own(&claim.record, node, owners)
}

/// A record that is to be written is of no other node than the sender's.
fn own(record: &Record, node: &str, owners: Owners) -> Result<(), Unfit> {
    written_fits(record, node, owners)?;
    match record.attribute(NODE) {
        Some(named) if named != node => Err(Unfit::OtherNode {
            named: named.to_owned(),
            node: node.to_owned(),
        }),
        // One without a node is judged by its pod alone: its node may have a reason to leave it out.
        _ => Ok(()),
    }
}

/// The owner of a record that is to be written is one of the kind's.
fn written_fits(record: &Record, node: &str, owners: Owners) -> Result<(), Unfit> {
    record_fits(record)?;
    let subject = &record.owner.subject;
    let is_plain = || subject.split('/').all(is_path_segment);
    match owners {
        Owners::Pods if !record.is_by_hand() && !is_plain() => {
            let named = subject.clone();
            Err(Unfit::NoPod { named })
        }
        Owners::Nodes if subject.split('/').next() != Some(node) => Err(Unfit::OtherNode {
            named: subject.clone(),
            node: node.to_owned(),
        }),
        Owners::Pods | Owners::Nodes => Ok(()),
    }
}

fn record_fits(record: &Record) -> Result<(), Unfit> {
    owner_fits(&record.owner)?;
    text("handle", record.handle.as_str())?;
    within("attributes", record.attributes.len(), ATTRIBUTES)?;
    for (key, value) in &record.attributes {
        text("attribute", key)?;
        within("bytes of an attribute", value.len(), VALUE)?;
    }
    Ok(())
}

fn owner_fits(owner: &Owner) -> Result<(), Unfit> {
    within("bytes of the owner", owner.subject.len(), SUBJECT)?;
    text("interface", &owner.part)
}

fn text(what: &'static str, text: &str) -> Result<(), Unfit> {
    within(what, text.len(), TEXT)
}

fn within(what: &'static str, found: usize, most: usize) -> Result<(), Unfit> {
    match found > most {
        true => Err(excess(what, found as u128, most as u128)),
        false => Ok(()),
    }
}

fn excess(what: &'static str, found: u128, most: u128) -> Unfit {
    Unfit::Excess { what, found, most }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use berth_core::dialect::WHEREABOUTS;
    use berth_core::{AddressRequest, Handle, RangeSpec, Release, Space};
    use berth_ledger::PoolKey;

    use super::*;

    fn record(handle: &str) -> Record {
        Record::new(Owner::new("ns/p", "net1"), Handle::new(handle))
    }

    fn claim(record: Record) -> Request {
        let spec = RangeSpec::parse("10.0.0.0/24").unwrap();
        let space = Arc::new(Space::build(&spec, WHEREABOUTS).unwrap().0);
        let wants = vec![AddressRequest::any(space)];
        Request::Allocate(Allocate { record, wants })
    }

    fn batch(requests: Vec<Request>) -> Batch {
        Batch {
            node: "node-a".into(),
            pool: PoolKey::named("10.0.0.0-24"),
            limit_ms: 1_000,
            requests,
        }
    }

    fn refused(request: Request) -> String {
        fit(&batch(vec![request]), Owners::Pods, None)
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn no_record_to_be_written_names_another_node() {
        for record in [record("c"), record("c").with(NODE, "node-a")] {
            fit(&batch(vec![claim(record)]), Owners::Pods, None).unwrap();
        }
        let theirs = claim(record("c").with(NODE, "node-b"));
        assert!(refused(theirs).contains("node-b"));
        let transfer = Request::Transfer {
            address: "10.0.0.1".parse().unwrap(),
            expected: record("c").with(NODE, "node-b"),
            record: record("d").with(NODE, "node-b"),
        };
        assert!(refused(transfer).contains("node-b"));
    }

    #[test]
    fn a_record_that_moves_is_written_by_its_two_nodes() {
        let move_of: MoveOf = |record| {
            let (from, to) = record.attribute("move")?.split_once(' ')?;
            Some(Moving {
                from: from.to_owned(),
                to: to.to_owned(),
                pod: "clone".to_owned(),
            })
        };
        let held = record("c").with(NODE, "node-b");
        let moves = |way: &str| Request::Transfer {
            address: "10.0.0.1".parse().unwrap(),
            expected: held.clone(),
            record: held.clone().with("move", way),
        };
        let fits = |request| fit(&batch(vec![request]), Owners::Pods, Some(move_of));
        fits(moves("node-b node-a")).unwrap();
        fits(moves("node-a node-b")).unwrap();
        let strange = fits(moves("node-b node-c")).unwrap_err().to_string();
        assert!(strange.contains("node-b"), "{strange}");
        let plain = fit(&batch(vec![moves("node-b node-a")]), Owners::Pods, None);
        assert!(plain.is_err(), "records of other kinds do not move");
    }

    #[test]
    fn an_owner_that_is_written_leads_to_no_other_object() {
        let owned = |subject: &str| {
            let owner = Owner::new(subject, "net1");
            claim(Record::new(owner, Handle::new("c")))
        };
        for bad in [
            "ns/../../secrets/x",
            "ns/p?watch=1",
            "ns/",
            "/p",
            "..",
            "ns/p%2Fq",
        ] {
            assert!(refused(owned(bad)).contains("names no pod"), "{bad}");
        }
        fit(
            &batch(vec![owned("kube-system/pod-1.x")]),
            Owners::Pods,
            None,
        )
        .unwrap();
        let by_hand = Record::by_hand("default/printer", "net1", None).unwrap();
        fit(&batch(vec![claim(by_hand)]), Owners::Pods, None).unwrap();
    }

    #[test]
    fn where_nodes_are_the_owners_a_node_writes_its_own_records() {
        let owned = |subject: &str| {
            let record = Record::new(Owner::new(subject, "first"), Handle::new("h"));
            fit(&batch(vec![claim(record)]), Owners::Nodes, None)
        };
        for own in ["node-a", "node-a/policy"] {
            owned(own).unwrap();
        }
        for other in ["node-b/policy", "node-ab", "", "ns/node-a"] {
            let refused = owned(other).unwrap_err();
            assert!(refused.to_string().contains("node-a"), "{other}");
        }
    }

    #[test]
    fn numbers_and_lengths_have_an_end() {
        let release = |cooldown: Duration| {
            Request::Release(Release {
                selector: Selector::Owner(Owner::new("ns/p", "net1")),
                cooldown,
            })
        };
        assert!(refused(release(Duration::from_secs(u64::MAX))).contains("cooldown"));
        fit(&batch(vec![release(REST)]), Owners::Pods, None).unwrap();
        assert!(refused(claim(record(&"x".repeat(257)))).contains("handle"));
        assert!(refused(claim(record("c").with("note", "x".repeat(2_049)))).contains("attribute"));
        let mut greedy = claim(record("c"));
        if let Request::Allocate(claim) = &mut greedy {
            claim.wants = vec![claim.wants[0].clone(); WANTS + 1];
        }
        assert!(refused(greedy).contains("addresses of a claim"));
        let mut wary = claim(record("c"));
        if let Request::Allocate(claim) = &mut wary {
            claim.wants[0].avoid = vec!["10.0.0.1".parse().unwrap(); AVOIDED + 1];
        }
        assert!(refused(wary).contains("avoid"));
        let many = vec![claim(record("c")); REQUESTS + 1];
        let many = fit(&batch(many), Owners::Pods, None)
            .unwrap_err()
            .to_string();
        assert!(many.contains("requests"), "{many}");
        let mut named = batch(Vec::new());
        named.pool.name = "p".repeat(254);
        assert!(fit(&named, Owners::Pods, None).is_err());
    }
}
