//! Which calls of several moves go out in one request, and what its outcome says of each; pure.

use berth_attachment::{Goal, IntentId};

use super::machine::Outcome;

/// What the outcome of a request says of one of its calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// The call ended like the request.
    Ended(Outcome),
    /// Which of the calls was refused can't be told: each is made again by itself.
    Alone,
}

/// Of the calls that wait for one VM, those that go out now: all that want what the one wants that has waited longest. The others
/// wait on: additions and removals are never in one request.
pub fn take<T>(waiting: Vec<T>, goal: impl Fn(&T) -> Goal) -> (Vec<T>, Vec<T>) {
    let Some(first) = waiting.first().map(&goal) else {
        return (Vec::new(), waiting);
    };
    waiting.into_iter().partition(|call| goal(call) == first)
}

/// The id of a request: the same calls under the same intents are the same request.
pub fn request_id(calls: impl IntoIterator<Item = IntentId>) -> IntentId {
    IntentId(calls.into_iter().fold(0, |id, call| id ^ call.0))
}

/// What the outcome of a request for `calls` calls says of each.
pub fn share(outcome: Outcome, calls: usize) -> Share {
    match outcome {
        Outcome::Refused if calls > 1 => Share::Alone,
        outcome => Share::Ended(outcome),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn additions_and_removals_are_never_in_one_request() {
        let waiting = vec![(1, Goal::Absent), (2, Goal::Present), (3, Goal::Absent)];
        let (now, later) = take(waiting, |call| call.1);
        assert_eq!(now, [(1, Goal::Absent), (3, Goal::Absent)]);
        assert_eq!(later, [(2, Goal::Present)]);
        assert_eq!(take(Vec::<Goal>::new(), |goal| *goal), (vec![], vec![]));
    }

    #[test]
    fn a_bad_call_fails_alone() {
        assert_eq!(share(Outcome::Refused, 2), Share::Alone);
        assert_eq!(share(Outcome::Refused, 1), Share::Ended(Outcome::Refused));
        assert_eq!(share(Outcome::Again, 2), Share::Ended(Outcome::Again));
    }
}
