//! Every order of the protocol's steps, and what happens when one of its precautions is left out.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use berth_model::assigned::{self, HandOver};
use berth_model::protocol::{Careless, Protocol};
use stateright::{Checker, HasDiscoveries, Model};

const HOLDER: &str = "one holder (S, I1, I8)";

const LOST: &str = "nothing is lost after quiescence";

/// Two nodes, one slice of two addresses: enough for a whole, a part and somebody who has none.
fn mk_protocol(crashes: u8, outages: u8, wire: usize) -> Protocol {
    Protocol {
        nodes: 2,
        range: "10.0.0.0/31".parse().unwrap(),
        cut: 31,
        crashes,
        outages,
        wire,
        careless: Careless::Not,
    }
}

fn check(protocol: Protocol) {
    let checker = protocol.checker().threads(2).spawn_bfs().join();
    println!("{} states", checker.unique_state_count());
    checker.assert_properties();
    assert!(checker.is_done(), "not all states were visited");
}

#[test]
fn a_slice_has_one_holder_whoever_crashes_and_whatever_arrives_late() {
    // Nobody is lost here, so no lost slice can be another's.
    let checker = mk_protocol(1, 0, 2).checker().threads(2).spawn_bfs().join();
    println!("{} states", checker.unique_state_count());
    for property in [HOLDER, LOST] {
        checker.assert_no_discovery(property);
    }
    checker.assert_any_discovery("a part is borrowed and given");
}

#[test]
fn a_slice_has_one_holder_when_nodes_are_lost_and_return() {
    check(mk_protocol(0, 1, 2));
}

#[test]
fn every_precaution_is_needed() {
    for (careless, crashes, outages, wire) in [
        (Careless::NoSecondLook, 0, 0, 2),
        (Careless::FreeWithoutClaim, 0, 0, 2),
        (Careless::SilentWithdraw, 1, 0, 2),
        (Careless::SilentAdoption, 1, 0, 2),
        (Careless::SilentReturn, 0, 1, 2),
        (Careless::TellFirst, 1, 0, 1),
        (Careless::PartFirst, 0, 1, 2),
        (Careless::OfferFirst, 0, 0, 2),
    ] {
        let protocol = Protocol {
            careless,
            ..mk_protocol(crashes, outages, wire)
        };
        let checker = protocol
            .checker()
            .threads(2)
            .finish_when(HasDiscoveries::AnyFailures)
            .spawn_bfs()
            .join();
        let found: Vec<&str> = checker.discoveries().into_keys().collect();
        assert!(
            found.contains(&HOLDER) || found.contains(&LOST),
            "{careless:?} does no harm: what is it for?"
        );
    }
}

#[test]
fn an_assigned_slice_has_one_holder_whoever_returns_when() {
    let checker = HandOver {
        outages: 2,
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
fn every_precaution_of_a_hand_over_is_needed() {
    use assigned::Careless::{GiveRecalled, NoNodeLook, NoRecall, NoSecondLook};
    for careless in [NoRecall, NoSecondLook, GiveRecalled, NoNodeLook] {
        let model = HandOver {
            outages: 1,
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
