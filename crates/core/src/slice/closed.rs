//! What the plain pool of a range says while a controller assigns slices of it.
//!
//! Whoever claims in the plain pool and looks at no reservation does not see what slices gave. So the pool is closed to
//! such claims before the first slice is given from, and opened again when the tables of assignments are gone (I1):
//!
//! ```text
//!   a node takes a slice on:  reads the table -> closes the pool, or finds it closed -> reads its entries -> gives
//!   the pool is wanted:       writes that it opens it, in a word of its own -> sees no table -> removes exactly that
//! ```
//! A table that is made after it was looked for is read by its nodes after the word was written. They find the word or
//! nothing, and close the pool again before they give. Each try has its own word: one that comes late removes nothing
//! that was written after it looked.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// The mark of a plain pool that is closed to claims without reservations, or to all ([`super::ways::Exclusion`]).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Closed {
    /// The tables of assignments (NodeSlicePools) that slices of the range come from.
    pub by: BTreeSet<String>,
    /// The word of whoever opens it and has still to see that the tables are gone.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    opening: String,
}

impl Closed {
    /// What whoever takes on a slice of that table has to write; nothing, if the pool is closed by it already.
    pub fn by(now: Option<&Closed>, table: &str) -> Option<Closed> {
        let mut by = now.map(|now| now.by.clone()).unwrap_or_default();
        let new = by.insert(table.to_owned());
        let opens = now.is_some_and(|now| !now.opening.is_empty());
        let opening = String::new();
        (new || opens).then_some(Closed { by, opening })
    }

    /// The same on the way to being opened.
    #[must_use]
    pub fn opening(&self, word: impl Into<String>) -> Closed {
        Closed {
            by: self.by.clone(),
            opening: word.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_closed_once_by_each_table_and_again_by_whoever_finds_it_opening() {
        let blue = Closed::by(None, "blue").unwrap();
        assert_eq!(Closed::by(Some(&blue), "blue"), None);
        let both = Closed::by(Some(&blue), "red").unwrap();
        assert_eq!(both.by.len(), 2);
        let opening = both.opening("w");
        assert_ne!(opening, both.opening("x"));
        assert_eq!(Closed::by(Some(&opening), "blue"), Some(both));
    }

    #[test]
    fn it_reads_as_it_was_written() {
        let closed = Closed::by(None, "blue").unwrap();
        let text = serde_json::to_string(&closed).unwrap();
        assert_eq!(text, r#"{"by":["blue"]}"#);
        let opening = closed.opening("w");
        let text = serde_json::to_string(&opening).unwrap();
        assert_eq!(serde_json::from_str::<Closed>(&text).unwrap(), opening);
    }

    /// Two who open, a controller that makes the table anew, a node that takes a slice of it on: in every order of their
    /// steps the pool is closed when the node gives.
    #[test]
    fn in_every_order_a_node_gives_only_while_the_pool_is_closed() {
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
        struct World {
            table: bool,
            mark: Option<Closed>,
            /// What each opener read or wrote last, and its step.
            openers: [(u8, Option<Closed>); 2],
            node: (u8, Option<Closed>),
            gives: bool,
        }
        fn opener(world: &World, n: usize) -> Option<World> {
            let mut next = world.clone();
            let (step, known) = world.openers[n].clone();
            next.openers[n] = match step {
                0 => (1, Some(world.mark.clone()?)),
                // The first look spares a write where a table is there.
                1 | 3 if world.table => (5, None),
                1 => (2, known),
                2 => {
                    let opening = known.as_ref()?.opening(n.to_string());
                    if world.mark != known {
                        (5, None)
                    } else {
                        next.mark = Some(opening.clone());
                        (3, Some(opening))
                    }
                }
                3 => (4, known),
                4 => {
                    if world.mark == known {
                        next.mark = None;
                    }
                    (5, None)
                }
                _ => return None,
            };
            Some(next)
        }
        fn node(world: &World) -> Option<World> {
            let mut next = world.clone();
            let (step, known) = world.node.clone();
            next.node = match step {
                0 if world.table => (1, None),
                1 => (2, world.mark.clone()),
                2 => match Closed::by(known.as_ref(), "t") {
                    None => (3, None),
                    Some(_) if world.mark != known => (1, None),
                    Some(closed) => {
                        next.mark = Some(closed);
                        (1, None)
                    }
                },
                3 => {
                    next.gives = true;
                    (4, None)
                }
                _ => return None,
            };
            Some(next)
        }
        fn run(world: &World, seen: &mut BTreeSet<World>) {
            if !seen.insert(world.clone()) {
                return;
            }
            assert!(!world.gives || world.mark.is_some());
            let mut steps = vec![opener(world, 0), opener(world, 1), node(world)];
            if !world.table {
                steps.push(Some(World {
                    table: true,
                    ..world.clone()
                }));
            }
            for next in steps.into_iter().flatten() {
                run(&next, seen);
            }
        }
        let mut seen = BTreeSet::new();
        let start = World {
            table: false,
            mark: Closed::by(None, "t"),
            openers: [(0, None), (0, None)],
            node: (0, None),
            gives: false,
        };
        run(&start, &mut seen);
        assert!(seen.iter().any(|world| world.gives));
        let opened = |world: &World| world.mark.is_none() && !world.table;
        assert!(seen.iter().any(opened));
    }
}
