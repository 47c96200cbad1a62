//! Runs the three modes in every order of their steps, for one address, each with overlap checks and without.

use std::collections::HashSet;

use super::super::elastic::MarkState;
use super::*;

const PLAIN: usize = 0;
const ASSIGNED: usize = 1;
const CLAIMED: usize = 2;
const DONE: u8 = 9;

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct State {
    marks: PlainMarks,
    /// The mode that holds the address in the plain pool, and by its reservation.
    entry: Option<usize>,
    reservation: Option<usize>,
    /// A node has claimed the slice of the address.
    claim: bool,
    /// That node has the address in its ledger.
    local: bool,
    holds: [bool; 3],
    steps: [u8; 3],
}

/// A precaution that is left out, to show that it is needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Careless {
    Nothing,
    /// Checked allocations in the plain pool ignore slices that allocated without reservations.
    Plain,
    /// Checked assignments do not wait until such claims are returned.
    Leave,
    /// Checked claims ignore such assignments.
    Claim,
    /// Claims do not record that they allocate without reservations.
    Mark,
    /// The plain pool's entries are read before it is closed.
    Early,
}

struct Modes {
    checked: [bool; 3],
    careless: Careless,
}

impl Modes {
    fn reserve(&self, next: &mut State, mode: usize) -> bool {
        if !self.checked[mode] {
            return true;
        }
        let free = next.reservation.is_none();
        next.reservation.get_or_insert(mode);
        free
    }

    fn plain(&self, state: &State) -> Option<State> {
        let mut next = *state;
        let checked = self.checked[PLAIN];
        next.steps[PLAIN] = match state.steps[PLAIN] {
            0 => {
                let mut marks = state.marks;
                marks.unreserved &= self.careless != Careless::Plain;
                if marks.sliced.is_some() || marks.bars(checked) || state.entry.is_some() {
                    DONE
                } else {
                    next.entry = Some(PLAIN);
                    1
                }
            }
            1 => {
                next.holds[PLAIN] = self.reserve(&mut next, PLAIN);
                if !next.holds[PLAIN] {
                    next.entry = None;
                }
                DONE
            }
            _ => return None,
        };
        Some(next)
    }

    fn assigned(&self, state: &State) -> Option<State> {
        let mut next = *state;
        let checked = self.checked[ASSIGNED];
        let early = self.careless == Careless::Early;
        next.steps[ASSIGNED] = match state.steps[ASSIGNED] {
            0 if early && state.entry.is_some() => DONE,
            0 => 1,
            step @ (1 | 2) => {
                match Exclusion::closed_by(checked).get(usize::from(step) - 1) {
                    Some(Exclusion::Assigned) => next.marks.assigned = true,
                    Some(Exclusion::Unreserved) => next.marks.unreserved = true,
                    None => {}
                }
                step + 1
            }
            3 => {
                let mut marks = state.marks;
                if let (Careless::Leave, Some(mark)) = (self.careless, &mut marks.sliced) {
                    mark.unreserved = false;
                }
                if marks.must_leave(checked) {
                    if let Some(mark) = &mut next.marks.sliced {
                        mark.state = MarkState::Leaving;
                    }
                    4
                } else {
                    5
                }
            }
            4 if state.claim => return None,
            4 => {
                next.marks.sliced = None;
                5
            }
            5 if state.entry.is_some() && !early => DONE,
            5 => 6,
            6 => {
                next.holds[ASSIGNED] = self.reserve(&mut next, ASSIGNED);
                DONE
            }
            _ => return None,
        };
        Some(next)
    }

    fn claimed(&self, state: &State) -> Option<State> {
        let mut next = *state;
        let checked = self.checked[CLAIMED];
        let reserves = checked || self.careless == Careless::Mark;
        let excluded = |mut marks: PlainMarks| {
            marks.unreserved &= self.careless != Careless::Claim;
            marks.bars(checked)
        };
        let sliced = |mark: Mark| mark.state == MarkState::Sliced;
        next.steps[CLAIMED] = match state.steps[CLAIMED] {
            0 => {
                next.claim = true;
                1
            }
            1 => match state.marks.sliced {
                Some(mark) if !sliced(mark) => 7,
                Some(mark) if mark.for_network(reserves) == mark => 2,
                _ if excluded(state.marks) => 7,
                found => {
                    let mark = found.unwrap_or(Mark::sliced(28)).for_network(reserves);
                    next.marks.sliced = Some(mark);
                    2
                }
            },
            2 if excluded(state.marks) || !state.marks.sliced.is_some_and(sliced) => 7,
            2 if state.entry.is_some() => 4,
            2 => 3,
            3 => {
                next.local = true;
                4
            }
            4 if state.local && !state.holds[CLAIMED] => {
                next.holds[CLAIMED] = self.reserve(&mut next, CLAIMED);
                if !next.holds[CLAIMED] {
                    next.local = false;
                    next.entry = next.entry.filter(|mode| *mode != CLAIMED);
                }
                DONE
            }
            // The claim is invalid.
            7 => {
                next.claim = false;
                DONE
            }
            _ => return None,
        };
        Some(next)
    }

    /// The node that claimed the slice returns it, at any moment.
    fn leave(&self, state: &State) -> Option<State> {
        let leaving = |mark: Mark| mark.state == MarkState::Leaving;
        if !state.claim || !state.marks.sliced.is_some_and(leaving) {
            return None;
        }
        let mut next = *state;
        next.claim = false;
        if state.local {
            next.entry.get_or_insert(CLAIMED);
        } else {
            next.steps[CLAIMED] = DONE;
        }
        Some(next)
    }

    /// All reachable states, and whether the address has two holders in one of them.
    fn run(&self, start: State) -> (HashSet<State>, bool) {
        let (mut seen, mut open, mut twice) = (HashSet::new(), vec![start], false);
        while let Some(state) = open.pop() {
            if !seen.insert(state) {
                continue;
            }
            twice |= state.holds.iter().filter(|holds| **holds).count() > 1;
            let steps = [
                self.plain(&state),
                self.assigned(&state),
                self.claimed(&state),
                self.leave(&state),
            ];
            open.extend(steps.into_iter().flatten());
        }
        (seen, twice)
    }
}

/// Nothing is allocated yet, or two modes already allocate with reservations and one of them continues without.
fn starts() -> Vec<State> {
    let none = State {
        marks: PlainMarks::default(),
        entry: None,
        reservation: None,
        claim: false,
        local: false,
        holds: [false; 3],
        steps: [0; 3],
    };
    let mut claimed = none;
    claimed.claim = true;
    claimed.marks.sliced = Some(Mark::sliced(28));
    claimed.steps[CLAIMED] = 1;
    let mut assigned = none;
    assigned.marks.assigned = true;
    let mut both = claimed;
    both.marks.assigned = true;
    vec![none, claimed, assigned, both]
}

fn in_every_order(careless: Careless) -> bool {
    let mut twice = false;
    for checks in 0..8 {
        let checked = [0, 1, 2].map(|mode| checks & (1 << mode) != 0);
        let modes = Modes { checked, careless };
        for start in starts() {
            let (seen, found) = modes.run(start);
            twice |= found;
            // Assigned slices may wait, but not for ever.
            let allocates = seen.iter().any(|state| state.holds[ASSIGNED]);
            assert!(allocates, "{checked:?}");
        }
    }
    twice
}

#[test]
fn in_every_order_an_address_has_one_holder() {
    assert!(!in_every_order(Careless::Nothing));
}

#[test]
fn every_precaution_is_needed() {
    use Careless::{Claim, Early, Leave, Mark, Plain};
    for careless in [Plain, Leave, Claim, Mark, Early] {
        assert!(in_every_order(careless), "{careless:?}");
    }
}

#[test]
fn modes_that_reserve_allocate_side_by_side() {
    let mut marks = PlainMarks {
        assigned: true,
        sliced: Some(Mark::sliced(28)),
        unreserved: false,
    };
    assert!(!marks.bars(true) && marks.bars(false));
    assert!(!marks.must_leave(true) && marks.must_leave(false));
    marks.unreserved = true;
    assert!(marks.bars(true));
    marks.sliced = Some(Mark::sliced(28).for_network(false));
    assert!(marks.must_leave(true));
}

#[test]
fn an_annotation_of_an_older_version_is_read_and_written_unchanged() {
    let text = r#"{"state":"sliced","size":28}"#;
    let mark: Mark = serde_json::from_str(text).unwrap();
    assert_eq!(mark, Mark::sliced(28).for_network(true));
    assert_eq!(serde_json::to_string(&mark).unwrap(), text);
    let text = serde_json::to_string(&mark.for_network(false)).unwrap();
    assert_eq!(text, r#"{"state":"sliced","size":28,"unreserved":true}"#);
}
