//! Checks every order of the protocol's steps, and which fault follows when one of its precautions is left out.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use berth_core::Prefix;
use berth_model::assigned::{self, HandOver};
use berth_model::protocol::{Careless, Protocol, Step};
use stateright::{Checker, HasDiscoveries, Model};

const HOLDER: &str = "one holder (S, I1, I8)";

const LOST: &str = "nothing is lost after quiescence";

/// Two nodes, one slice of two addresses: enough for a whole slice, a part, and a node that has none.
fn mk_protocol(crashes: u8, outages: u8, transfers: u8) -> Protocol {
    Protocol {
        nodes: 2,
        range: "10.0.0.0/31".parse().unwrap(),
        cut: 31,
        crashes,
        outages,
        deletions: 0,
        transfers,
        pods: 1,
        history: Vec::new(),
        wire: 2,
        careless: Careless::Not,
    }
}

/// The same with slices of one address, which can only be transferred whole.
fn mk_whole(crashes: u8, outages: u8, transfers: u8) -> Protocol {
    Protocol {
        range: "10.0.0.0/32".parse().unwrap(),
        cut: 32,
        ..mk_protocol(crashes, outages, transfers)
    }
}

const PART: &str = "a part is borrowed and may be allocated";

const BACK: &str = "a part is borrowed back and may be allocated";

const TWO: &str = "a node allocates from two slices";

const LATER: &str = "a slice of a later epoch may be allocated";

fn check(protocol: Protocol, reached: &[&'static str]) {
    check_to(protocol, usize::MAX, reached);
}

/// As far as that many steps reach.
fn check_to(protocol: Protocol, depth: usize, reached: &[&'static str]) {
    let checker = protocol.checker().threads(2).target_max_depth(depth);
    let checker = checker.spawn_bfs().join();
    println!("{} states", checker.unique_state_count());
    for property in [HOLDER, LOST] {
        checker.assert_no_discovery(property);
    }
    for property in reached {
        checker.assert_any_discovery(property);
    }
    assert!(checker.is_done(), "not all states were visited");
}

#[test]
fn a_slice_has_one_holder_with_crashes_and_late_writes() {
    check(mk_protocol(1, 0, 0), &[PART]);
}

// Pods only keep a slice from being returned or transferred: where many other faults happen, there are none.

#[test]
fn a_slice_has_one_holder_when_nodes_are_lost_and_return() {
    let protocol = Protocol {
        pods: 0,
        ..mk_protocol(0, 1, 0)
    };
    check(protocol, &[PART, LATER]);
}

/// A Node whose agent keeps running is deleted and created again: before the controller reads, between its read and
/// its write, or after.
#[test]
fn a_slice_has_one_holder_when_a_node_is_deleted_under_its_agent() {
    check(mk_deleted(2), &[LATER]);
    // A donor and a borrower.
    let half = prefix("10.0.0.1/32");
    let protocol = Protocol {
        deletions: 1,
        history: vec![
            Step::Claim(1, prefix("10.0.0.0/31")),
            Step::Want(0, prefix("10.0.0.0/31")),
            Step::Answer(1, prefix("10.0.0.0/31")),
            Step::Take(0, half),
        ],
        ..mk_protocol(0, 0, 0)
    };
    check_to(protocol, 22, &[PART, LATER]);
}

fn mk_deleted(deletions: u8) -> Protocol {
    Protocol {
        deletions,
        ..mk_whole(1, 0, 1)
    }
}

/// Two slices: a node extends, returns one, and borrows nothing while one is free.
#[test]
fn a_node_that_has_two_slices_is_their_one_holder() {
    let protocol = Protocol {
        range: "10.0.0.0/31".parse().unwrap(),
        ..mk_whole(1, 0, 1)
    };
    check(protocol, &[TWO, LATER]);
}

#[test]
fn a_transferred_slice_has_one_holder() {
    check(mk_whole(1, 1, 2), &[LATER]);
    check(mk_protocol(0, 0, 2), &[PART, BACK, LATER]);
}

#[test]
fn a_transferred_slice_has_one_holder_with_crashes() {
    let protocol = Protocol {
        pods: 0,
        ..mk_protocol(1, 0, 1)
    };
    check(protocol, &[PART, BACK, LATER]);
}

#[test]
fn a_part_of_a_part_has_one_holder() {
    for (history, depth) in [
        (borrowed_back(), 12),
        (lost_and_back(), 18),
        (lent_to_a_lost_node(), 18),
    ] {
        check_to(mk_nested(history), depth, &[PART]);
    }
}

/// Two nodes and slices of four addresses: a part has parts.
fn mk_nested(history: Vec<Step>) -> Protocol {
    Protocol {
        range: "10.0.0.0/30".parse().unwrap(),
        cut: 30,
        history,
        ..mk_protocol(1, 1, 1)
    }
}

fn prefix(text: &str) -> Prefix {
    text.parse().unwrap()
}

/// `n1` has lent a half to `n0` and borrowed an address of it back.
fn borrowed_back() -> Vec<Step> {
    let (whole, half, one) = (
        prefix("10.0.0.0/30"),
        prefix("10.0.0.2/31"),
        prefix("10.0.0.3/32"),
    );
    vec![
        Step::Claim(1, whole),
        Step::Want(0, whole),
        Step::Answer(1, whole),
        Step::Take(0, half),
        Step::Want(1, half),
        Step::Answer(0, half),
        Step::Take(1, one),
    ]
}

/// Then `n1` is lost, and returns when all of its slices were reclaimed.
fn lost_and_back() -> Vec<Step> {
    let (whole, one) = (prefix("10.0.0.0/30"), prefix("10.0.0.3/32"));
    let lost = [
        Step::Outage(1),
        Step::NodeDeleted(1),
        Step::Recall(whole),
        Step::Reclaim(whole),
        Step::Recall(one),
        Step::Reclaim(one),
        Step::Return(1),
        Step::Verify(1, whole),
        Step::Verify(1, one),
    ];
    borrowed_back().into_iter().chain(lost).collect()
}

/// `n0` was lost and has returned; the part it had borrowed has no holder, and it requests a part again.
fn lent_to_a_lost_node() -> Vec<Step> {
    let (whole, half) = (prefix("10.0.0.0/30"), prefix("10.0.0.2/31"));
    let lost = [
        Step::Outage(0),
        Step::NodeDeleted(0),
        Step::Recall(half),
        Step::Reclaim(half),
        Step::Return(0),
        Step::Verify(0, half),
        Step::Settle(0, prefix("10.0.0.3/32")),
        Step::Want(0, whole),
    ];
    borrowed_back().into_iter().chain(lost).collect()
}

fn fails(protocol: Protocol) -> Vec<&'static str> {
    let checker = protocol
        .checker()
        .threads(2)
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();
    println!("{} states", checker.unique_state_count());
    let mut found: Vec<&str> = checker.discoveries().into_keys().collect();
    found.retain(|property| [HOLDER, LOST].contains(property));
    found
}

#[test]
fn every_precaution_is_needed() {
    use Careless::*;
    for (careless, protocol) in [
        (NoSecondRead, mk_protocol(0, 0, 0)),
        (FreeWithoutClaim, mk_protocol(0, 0, 0)),
        (SilentWithdraw, mk_protocol(1, 0, 0)),
        (SilentAdoption, mk_protocol(1, 0, 0)),
        (SilentReturn, mk_protocol(0, 1, 0)),
        (WriteFirst, mk_protocol(1, 0, 0)),
        (PartFirst, mk_protocol(0, 1, 0)),
        (NoRecall, mk_deleted(1)),
        (Unnoticed, mk_deleted(1)),
        (NoReadAfter, mk_deleted(1)),
        (OfferFirst, mk_protocol(0, 0, 0)),
        (AdoptLeftover, mk_protocol(1, 0, 0)),
        (TransferFirst, mk_whole(0, 0, 1)),
        (TransferLent, mk_protocol(0, 0, 1)),
        (CloseBare, mk_protocol(0, 0, 1)),
        (FreeInside, mk_protocol(0, 0, 1)),
        (KeepClosed, mk_protocol(1, 0, 1)),
        (OfferAgain, mk_nested(lent_to_a_lost_node())),
        (EmptyFirst, mk_nested(lost_and_back())),
        (CountLost, mk_nested(lost_and_back())),
        (OuterFirst, mk_nested(lost_and_back())),
    ] {
        print!("{careless:?}: ");
        let found = fails(Protocol {
            careless,
            ..protocol
        });
        println!("{found:?}");
        assert!(
            !found.is_empty(),
            "{careless:?} does no harm: what is it for?"
        );
    }
}

#[test]
fn an_assigned_slice_has_one_holder_whenever_a_node_returns() {
    let checker = HandOver {
        outages: 2,
        deletions: 1,
        careless: assigned::Careless::Not,
    }
    .checker()
    .threads(2)
    .spawn_bfs()
    .join();
    println!("{} states", checker.unique_state_count());
    checker.assert_properties();
}

#[test]
fn every_precaution_of_a_reclaim_is_needed() {
    use assigned::Careless::{AllocateRecalled, NoNodeRead, NoRecall, NoSecondRead, Unnoticed};
    for (careless, deletions) in [
        (NoRecall, 0),
        (NoSecondRead, 0),
        (AllocateRecalled, 0),
        (NoNodeRead, 0),
        (Unnoticed, 1),
    ] {
        let model = HandOver {
            outages: 1,
            deletions,
            careless,
        };
        let checker = model.checker().threads(2).spawn_bfs().join();
        let found: Vec<&str> = checker.discoveries().into_keys().collect();
        assert!(
            found.contains(&HOLDER),
            "{careless:?} does no harm: what is it for?"
        );
    }
}
