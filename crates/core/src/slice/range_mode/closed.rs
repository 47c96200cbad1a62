//! The annotation that closes a plain pool while the controller assigns slices of its range.
//!
//! An allocation in the plain pool that checks no reservation does not see what slices allocated. So the pool is closed
//! to such allocations before the first slice is allocated from, and opened when the NodeSlicePools are gone (I1):
//!
//! ```text
//!   a node starts with a slice:  reads the NodeSlicePool -> closes the pool, or finds it closed -> reads its entries
//!                                -> allocates
//!   the pool is to be opened:    writes `opening` with a token of its own -> reads that no NodeSlicePool is left
//!                                -> removes exactly that annotation
//! ```
//! A NodeSlicePool that is created after the opener looked for one is read by its nodes after the token was written.
//! They find the token or no annotation, and close the pool again before they allocate. Each attempt has its own token,
//! so a late one removes nothing that was written since.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// A plain pool is closed to allocations without reservations, or to all ([`super::Exclusion`]).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Closed {
    /// The NodeSlicePools that assign slices of the range.
    pub by: BTreeSet<String>,
    /// The token of a process that is opening the pool and has yet to read that the NodeSlicePools are gone.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    opening: String,
}

impl Closed {
    /// What to write before a slice of that table is allocated from; `None` if the table already closes the pool.
    pub fn by(now: Option<&Closed>, table: &str) -> Option<Closed> {
        let mut by = now.map(|now| now.by.clone()).unwrap_or_default();
        let new = by.insert(table.to_owned());
        let opens = now.is_some_and(|now| !now.opening.is_empty());
        let opening = String::new();
        (new || opens).then_some(Closed { by, opening })
    }

    /// The same, while the pool is being opened under `token`.
    #[must_use]
    pub fn opening(&self, token: impl Into<String>) -> Closed {
        Closed {
            by: self.by.clone(),
            opening: token.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_closed_once_by_each_table_and_again_while_it_is_being_opened() {
        let blue = Closed::by(None, "blue").unwrap();
        assert_eq!(Closed::by(Some(&blue), "blue"), None);
        let both = Closed::by(Some(&blue), "red").unwrap();
        assert_eq!(both.by.len(), 2);
        let opening = both.opening("w");
        assert_ne!(opening, both.opening("x"));
        assert_eq!(Closed::by(Some(&opening), "blue"), Some(both));
    }

    #[test]
    fn it_is_read_as_it_was_written() {
        let closed = Closed::by(None, "blue").unwrap();
        let text = serde_json::to_string(&closed).unwrap();
        assert_eq!(text, r#"{"by":["blue"]}"#);
        let opening = closed.opening("w");
        let text = serde_json::to_string(&opening).unwrap();
        assert_eq!(serde_json::from_str::<Closed>(&text).unwrap(), opening);
    }

    /// Two processes open the pool, the controller creates the table again, a node starts with a slice of it: in every
    /// order of their steps the pool is closed when the node allocates.
    #[test]
    fn in_every_order_a_node_allocates_only_while_the_pool_is_closed() {
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
        struct State {
            table: bool,
            mark: Option<Closed>,
            /// What each opener read or wrote last, and its step.
            openers: [(u8, Option<Closed>); 2],
            node: (u8, Option<Closed>),
            allocates: bool,
        }
        fn opener(state: &State, n: usize) -> Option<State> {
            let mut next = state.clone();
            let (step, known) = state.openers[n].clone();
            next.openers[n] = match step {
                0 => (1, Some(state.mark.clone()?)),
                // The first read saves a write if a table exists.
                1 | 3 if state.table => (5, None),
                1 => (2, known),
                2 => {
                    let opening = known.as_ref()?.opening(n.to_string());
                    if state.mark != known {
                        (5, None)
                    } else {
                        next.mark = Some(opening.clone());
                        (3, Some(opening))
                    }
                }
                3 => (4, known),
                4 => {
                    if state.mark == known {
                        next.mark = None;
                    }
                    (5, None)
                }
                _ => return None,
            };
            Some(next)
        }
        fn node(state: &State) -> Option<State> {
            let mut next = state.clone();
            let (step, known) = state.node.clone();
            next.node = match step {
                0 if state.table => (1, None),
                1 => (2, state.mark.clone()),
                2 => match Closed::by(known.as_ref(), "t") {
                    None => (3, None),
                    Some(_) if state.mark != known => (1, None),
                    Some(closed) => {
                        next.mark = Some(closed);
                        (1, None)
                    }
                },
                3 => {
                    next.allocates = true;
                    (4, None)
                }
                _ => return None,
            };
            Some(next)
        }
        fn run(state: &State, seen: &mut BTreeSet<State>) {
            if !seen.insert(state.clone()) {
                return;
            }
            assert!(!state.allocates || state.mark.is_some());
            let mut steps = vec![opener(state, 0), opener(state, 1), node(state)];
            if !state.table {
                steps.push(Some(State {
                    table: true,
                    ..state.clone()
                }));
            }
            for next in steps.into_iter().flatten() {
                run(&next, seen);
            }
        }
        let mut seen = BTreeSet::new();
        let start = State {
            table: false,
            mark: Closed::by(None, "t"),
            openers: [(0, None), (0, None)],
            node: (0, None),
            allocates: false,
        };
        run(&start, &mut seen);
        assert!(seen.iter().any(|state| state.allocates));
        let opened = |state: &State| state.mark.is_none() && !state.table;
        assert!(seen.iter().any(opened));
    }
}
