//! Every order of the steps of two moves whose calls go out together.
#![allow(clippy::print_stdout)]

use berth_model::batching::{Batching, Budget, ONE, OWNED, TOGETHER};
use stateright::{Checker, Model};

const CALM: Budget = Budget {
    crashes: 0,
    losses: 0,
    refusals: 0,
};

fn check(executors: usize, intents: u32, budget: Budget) {
    let model = Batching {
        executors,
        budget,
        checks: true,
        intents,
    };
    let checker = model.checker().threads(2).spawn_bfs().join();
    println!("{} states", checker.unique_state_count());
    checker.assert_no_discovery(ONE);
    checker.assert_no_discovery(OWNED);
    checker.assert_any_discovery(TOGETHER);
}

#[test]
fn one_agent_with_a_crash_a_lost_answer_or_a_refusal() {
    for budget in [
        Budget { crashes: 1, ..CALM },
        Budget { losses: 1, ..CALM },
        Budget {
            refusals: 1,
            ..CALM
        },
    ] {
        check(1, 6, budget);
    }
}

#[test]
fn two_agents_carry_the_same_two_moves() {
    check(2, 4, CALM);
}

/// A refused request is made again for each move alone, while the other agent carries on.
#[test]
fn two_agents_and_a_refusal() {
    check(
        2,
        5,
        Budget {
            refusals: 1,
            ..CALM
        },
    );
}

/// The guard that is removed here is needed: a call is sent although its move is further by then.
#[test]
fn without_the_read_before_a_request_two_agents_break_a_move() {
    let model = Batching {
        executors: 2,
        budget: CALM,
        checks: false,
        intents: 4,
    };
    let checker = model.checker().threads(2).spawn_bfs().join();
    let found = [ONE, OWNED].map(|property| checker.discovery(property).is_some());
    assert!(found.contains(&true), "nothing depends on it");
}
