//! The three ways in every order of their steps, for one address, each with overlap checks and without.

use std::collections::HashSet;

use super::super::elastic::MarkState;
use super::*;

const PLAIN: usize = 0;
const ASSIGNED: usize = 1;
const CLAIMED: usize = 2;
const DONE: u8 = 9;

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct World {
    marks: PlainMarks,
    /// Who has the address in the plain pool, and by its reservation.
    entry: Option<usize>,
    reservation: Option<usize>,
    /// A node has a claim around the address.
    claim: bool,
    /// That node has it in its ledger.
    local: bool,
    holds: [bool; 3],
    steps: [u8; 3],
}

/// What could be left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Careless {
    Nothing,
    /// Checked claims in the plain pool do not mind slices that gave without reservations.
    Plain,
    /// Checked assignments do not have such claims brought back.
    Leave,
    /// Checked claims do not mind such assignments.
    Claim,
    /// Claims do not say that they give without reservations.
    Mark,
    /// What the plain pool holds is read before it is closed.
    Early,
}

struct Ways {
    checked: [bool; 3],
    careless: Careless,
}

impl Ways {
    fn reserve(&self, next: &mut World, way: usize) -> bool {
        if !self.checked[way] {
            return true;
        }
        let free = next.reservation.is_none();
        next.reservation.get_or_insert(way);
        free
    }

    fn plain(&self, world: &World) -> Option<World> {
        let mut next = *world;
        let checked = self.checked[PLAIN];
        next.steps[PLAIN] = match world.steps[PLAIN] {
            0 => {
                let mut marks = world.marks;
                marks.unreserved &= self.careless != Careless::Plain;
                if marks.sliced.is_some() || marks.bars(checked) || world.entry.is_some() {
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

    fn assigned(&self, world: &World) -> Option<World> {
        let mut next = *world;
        let checked = self.checked[ASSIGNED];
        let early = self.careless == Careless::Early;
        next.steps[ASSIGNED] = match world.steps[ASSIGNED] {
            0 if early && world.entry.is_some() => DONE,
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
                let mut marks = world.marks;
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
            4 if world.claim => return None,
            4 => {
                next.marks.sliced = None;
                5
            }
            5 if world.entry.is_some() && !early => DONE,
            5 => 6,
            6 => {
                next.holds[ASSIGNED] = self.reserve(&mut next, ASSIGNED);
                DONE
            }
            _ => return None,
        };
        Some(next)
    }

    fn claimed(&self, world: &World) -> Option<World> {
        let mut next = *world;
        let checked = self.checked[CLAIMED];
        let says = checked || self.careless == Careless::Mark;
        let bars = |mut marks: PlainMarks| {
            marks.unreserved &= self.careless != Careless::Claim;
            marks.bars(checked)
        };
        let sliced = |mark: Mark| mark.state == MarkState::Sliced;
        next.steps[CLAIMED] = match world.steps[CLAIMED] {
            0 => {
                next.claim = true;
                1
            }
            1 => match world.marks.sliced {
                Some(mark) if !sliced(mark) => 7,
                Some(mark) if mark.for_network(says) == mark => 2,
                _ if bars(world.marks) => 7,
                found => {
                    let mark = found.unwrap_or(Mark::sliced(28)).for_network(says);
                    next.marks.sliced = Some(mark);
                    2
                }
            },
            2 if bars(world.marks) || !world.marks.sliced.is_some_and(sliced) => 7,
            2 if world.entry.is_some() => 4,
            2 => 3,
            3 => {
                next.local = true;
                4
            }
            4 if world.local && !world.holds[CLAIMED] => {
                next.holds[CLAIMED] = self.reserve(&mut next, CLAIMED);
                if !next.holds[CLAIMED] {
                    next.local = false;
                    next.entry = next.entry.filter(|way| *way != CLAIMED);
                }
                DONE
            }
            // The claim may not stand.
            7 => {
                next.claim = false;
                DONE
            }
            _ => return None,
        };
        Some(next)
    }

    /// The node that claimed brings the range back, at whatever moment.
    fn leave(&self, world: &World) -> Option<World> {
        let leaving = |mark: Mark| mark.state == MarkState::Leaving;
        if !world.claim || !world.marks.sliced.is_some_and(leaving) {
            return None;
        }
        let mut next = *world;
        next.claim = false;
        if world.local {
            next.entry.get_or_insert(CLAIMED);
        } else {
            next.steps[CLAIMED] = DONE;
        }
        Some(next)
    }

    /// All states that can be reached; whether in one of them the address has two holders.
    fn run(&self, start: World) -> (HashSet<World>, bool) {
        let (mut seen, mut open, mut twice) = (HashSet::new(), vec![start], false);
        while let Some(world) = open.pop() {
            if !seen.insert(world) {
                continue;
            }
            twice |= world.holds.iter().filter(|holds| **holds).count() > 1;
            let steps = [
                self.plain(&world),
                self.assigned(&world),
                self.claimed(&world),
                self.leave(&world),
            ];
            open.extend(steps.into_iter().flatten());
        }
        (seen, twice)
    }
}

/// Nothing was given yet, or two ways give already, by reservations: one of them goes on without.
fn starts() -> Vec<World> {
    let none = World {
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
        let checked = [0, 1, 2].map(|way| checks & (1 << way) != 0);
        let ways = Ways { checked, careless };
        for start in starts() {
            let (seen, found) = ways.run(start);
            twice |= found;
            // What is assigned is waited for; assigned slices wait for nobody for ever.
            let gives = seen.iter().any(|world| world.holds[ASSIGNED]);
            assert!(gives, "{checked:?}");
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
fn ways_that_reserve_give_beside_each_other() {
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
fn a_mark_of_before_reads_and_is_written_as_it_was() {
    let text = r#"{"state":"sliced","size":28}"#;
    let mark: Mark = serde_json::from_str(text).unwrap();
    assert_eq!(mark, Mark::sliced(28).for_network(true));
    assert_eq!(serde_json::to_string(&mark).unwrap(), text);
    let says = serde_json::to_string(&mark.for_network(false)).unwrap();
    assert_eq!(says, r#"{"state":"sliced","size":28,"unreserved":true}"#);
}
