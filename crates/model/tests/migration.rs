//! Every order of the steps of a migration.
#![allow(clippy::print_stdout)]

use berth_model::migration::{BACK, Budget, MOVED, Migration, ONE, OWNED};
use stateright::{Checker, Model};

const CALM: Budget = Budget {
    moves: 1,
    crashes: 0,
    losses: 0,
    by_hand: 0,
    vanish: 0,
    refusals: 0,
};

fn check(executors: usize, budget: Budget) {
    let checks = true;
    let model = Migration {
        executors,
        budget,
        checks,
    };
    let checker = model.checker().threads(2).spawn_bfs().join();
    println!("{} states", checker.unique_state_count());
    checker.assert_no_discovery(ONE);
    checker.assert_no_discovery(OWNED);
    checker.assert_any_discovery(MOVED);
    if budget.moves > 1 {
        checker.assert_any_discovery(BACK);
    }
}

#[test]
fn two_agents_carry_one_move_with_a_crash_and_a_lost_call() {
    check(
        2,
        Budget {
            crashes: 1,
            losses: 1,
            ..CALM
        },
    );
}

#[test]
fn a_refused_attach_goes_back_to_the_source() {
    check(
        2,
        Budget {
            refusals: 1,
            ..CALM
        },
    );
    check(
        1,
        Budget {
            refusals: 1,
            losses: 1,
            crashes: 1,
            ..CALM
        },
    );
}

#[test]
fn there_and_back_with_late_calls_of_the_first_move() {
    check(
        1,
        Budget {
            moves: 2,
            crashes: 1,
            losses: 1,
            by_hand: 1,
            ..CALM
        },
    );
    check(
        2,
        Budget {
            moves: 2,
            by_hand: 1,
            ..CALM
        },
    );
}

#[test]
fn either_vm_vanishes() {
    check(
        2,
        Budget {
            vanish: 1,
            losses: 1,
            ..CALM
        },
    );
}

/// An executor that does not check the record after reading the fingerprint takes a running pod's alias away.
#[test]
fn the_check_after_the_fingerprint_is_needed() {
    let budget = Budget {
        moves: 2,
        by_hand: 1,
        ..CALM
    };
    let model = Migration {
        executors: 2,
        budget,
        checks: false,
    };
    let checker = model.checker().threads(2).spawn_bfs().join();
    checker.assert_any_discovery(OWNED);
}
