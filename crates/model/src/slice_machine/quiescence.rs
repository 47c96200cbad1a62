//! Checks what is left when no more faults happen and all pods have ended.

use std::hash::{DefaultHasher, Hash, Hasher};

use berth_core::slice::machine::Event;
use berth_core::slice::machine::desk::DeskEvent;

use super::Slices;
use super::state::{Budget, State};
use super::steps::Step;

/// Longer than any run that ends.
const LIMIT: usize = 400;

pub fn is_sampled(state: &State) -> bool {
    let mut hasher = DefaultHasher::new();
    state.hash(&mut hasher);
    hasher.finish().is_multiple_of(16)
}

/// Runs on without faults until no step is left; returns what should not remain.
pub fn leftovers(model: &Slices, state: &State) -> Vec<String> {
    let mut state = state.clone();
    state.budget = Budget::default();
    for file in &mut state.files {
        file.copy = None;
    }
    for _ in 0..LIMIT {
        let steps = model.steps(&state);
        let Some(step) = steps.into_iter().filter(ends).min_by_key(rank) else {
            break;
        };
        model.act(&mut state, step);
        state.wire.sort_unstable();
    }
    let mut left = Vec::new();
    let server = &state.server;
    left.extend(server.leases.values().map(|lease| format!("{lease:?}")));
    left.extend(server.published.values().map(|pool| format!("{pool:?}")));
    left.extend(server.plain.iter().map(|entry| format!("{entry:?}")));
    for file in &state.files {
        left.extend(file.now.held.iter().map(|hold| format!("{hold:?}")));
        left.extend(file.now.slices.keys().map(|slice| format!("{slice:?}")));
    }
    left
}

/// Whether a step starts nothing new.
fn ends(step: &Step) -> bool {
    !matches!(
        step,
        Step::Deliver(
            _,
            Event::Allocate(_) | Event::Claim(_) | Event::Publish(_) | Event::Reclaim(_)
        ) | Step::Desk(DeskEvent::Allocate(_) | DeskEvent::Wanted)
            | Step::Desk(DeskEvent::Failed)
            | Step::Gone(_)
            | Step::StartOffline(_)
    )
}

fn rank(step: &Step) -> u8 {
    match step {
        Step::End(..) | Step::Run(_) | Step::Drop(_) => 0,
        Step::Exchange(_) | Step::DeskGo | Step::RecallGo | Step::Recall => 1,
        Step::Deliver(_, Event::Release(_)) | Step::ReleasePlain(_) => 2,
        Step::Deliver(_, Event::Resync | Event::Refresh(_)) => 5,
        Step::Return(_) => 3,
        _ => 4,
    }
}
