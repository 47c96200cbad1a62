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
