//! Every order of events of the attachment machine.
#![allow(clippy::print_stdout)]

use berth_model::attachment::{Attachment, BACK, Budget, FREE, RECORDED, RUNNING, SETTLED};
use stateright::{Checker, Model};

const CALM: Budget = Budget {
    adds: 2,
    deletes: 1,
    crashes: 0,
    losses: 0,
    by_hand: 0,
    unwritten: 0,
};

fn check(items: u8, bad: Option<u8>, budget: Budget) {
    let model = Attachment { items, budget, bad };
    let checker = model.checker().threads(2).spawn_bfs().join();
    println!("{} states", checker.unique_state_count());
    for property in [FREE, RUNNING, RECORDED, SETTLED] {
        checker.assert_no_discovery(property);
    }
    checker.assert_any_discovery(BACK);
    assert!(checker.is_done(), "not all states were visited");
}

#[test]
fn two_items_with_a_crash_at_every_step() {
    check(2, None, Budget { crashes: 1, ..CALM });
}

#[test]
fn one_item_with_two_crashes_and_a_lost_call() {
    let budget = Budget {
        crashes: 2,
        losses: 1,
        ..CALM
    };
    check(1, None, budget);
}

#[test]
fn lost_calls_and_lost_answers_of_two_items() {
    check(2, None, Budget { losses: 2, ..CALM });
}

#[test]
fn changes_by_hand_and_lost_calls() {
    let budget = Budget {
        by_hand: 2,
        losses: 1,
        crashes: 1,
        ..CALM
    };
    check(1, None, budget);
}

#[test]
fn a_refused_item_fails_alone() {
    let budget = Budget {
        crashes: 1,
        adds: 3,
        ..CALM
    };
    check(2, Some(1), budget);
}

#[test]
fn a_journal_that_fails() {
    let budget = Budget {
        unwritten: 2,
        crashes: 1,
        ..CALM
    };
    check(2, None, budget);
}
