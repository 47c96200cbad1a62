//! Whose turn it is to write an object that several processes write.
//!
//! An object takes one write at a time: of those that were prepared on the same version one counts and
//! the others were for nothing, at full cost to the server. So writers that met take turns. The ring of
//! those who want one is in annotations, one key each, with a number: the lowest is next. To sign up is a merge
//! patch of one's own annotation, which can't conflict. Where the annotations are is the ledger's choice:
//! ```text
//!   ConfigMap      on the object itself: its write passes the turn on, and takes out who let theirs pass
//!   IPPool         on a Lease beside it: the object stays as whereabouts made it; a writer that is done leaves
//! ```
//! A writer that is alone leaves no ring behind.
//!
//! Promises order, and nothing else: a write counts because of its own preconditions (I1), whatever the ring says. A member that died costs the others one turn's time, once.

use std::collections::BTreeMap;

/// What the keys of a ring begin with, followed by the ID of a ledger, which is a process's. One that orders the writers
/// of the very object that it is on needs no more.
pub(crate) const PREFIX: &str = "turn.berth.dev/";

/// Members in the order of their turns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ring {
    members: Vec<(u64, String)>,
}

impl Ring {
    pub(crate) fn read(prefix: &str, annotations: Option<&BTreeMap<String, String>>) -> Self {
        let signed = annotations
            .into_iter()
            .flatten()
            .filter_map(|(key, value)| {
                let member = key.strip_prefix(prefix)?;
                // What is no number is no place, but somebody waits.
                Some((value.parse().unwrap_or(0), member.to_string()))
            });
        let mut members: Vec<_> = signed.collect();
        members.sort_unstable();
        Self { members }
    }

    /// How many come before `member`, if it is in the ring.
    pub(crate) fn place(&self, member: &str) -> Option<usize> {
        self.members.iter().position(|(_, id)| id == member)
    }

    pub(crate) fn next(&self) -> Option<&str> {
        self.members.first().map(|(_, id)| id.as_str())
    }

    /// The `count` members that come first.
    pub(crate) fn first(&self, count: usize) -> impl Iterator<Item = &str> {
        let first = self.members.iter().take(count);
        first.map(|(_, id)| id.as_str())
    }

    /// Whether only `member` is in it.
    pub(crate) fn is_alone(&self, member: &str) -> bool {
        self.members.iter().all(|(_, id)| id == member)
    }

    /// A place behind everybody.
    pub(crate) fn end(&self) -> u64 {
        let last = self.members.last();
        last.map_or(1, |(place, _)| place.saturating_add(1))
    }

    /// The ring after a write of `writer`, who has waited for the first `passed` members in vain, and may
    /// keep the turn that it has.
    pub(crate) fn after_write(&self, writer: &str, passed: usize, keeps: bool) -> Self {
        let left = self.members.iter().skip(passed);
        let mut members: Vec<_> = left.filter(|(_, id)| id != writer).cloned().collect();
        let own = self.members.get(passed).filter(|(_, id)| id == writer);
        match (own, members.last()) {
            (_, None) => {}
            (Some(own), _) if keeps => members.insert(0, own.clone()),
            (_, Some((last, _))) => members.push((last.saturating_add(1), writer.into())),
        }
        Self { members }
    }

    /// Puts the ring in place of the one that is there; other annotations stay (I7).
    pub(crate) fn write(&self, annotations: &mut Option<BTreeMap<String, String>>) {
        if let Some(others) = annotations {
            others.retain(|key, _| !key.starts_with(PREFIX));
        }
        for (place, member) in &self.members {
            annotations
                .get_or_insert_default()
                .insert(format!("{PREFIX}{member}"), place.to_string());
        }
    }

    /// The merge patch that puts a member before all others.
    pub(crate) fn sign_up(member: &str) -> serde_json::Value {
        patch(PREFIX, [(member, Some(0))])
    }
}

/// The merge patch that gives members these places, or takes them out.
pub(crate) fn patch<'a>(
    prefix: &str,
    places: impl IntoIterator<Item = (&'a str, Option<u64>)>,
) -> serde_json::Value {
    let places = places.into_iter().map(|(member, place)| {
        let place = place.map(|place| place.to_string());
        (format!("{prefix}{member}"), serde_json::json!(place))
    });
    let annotations: serde_json::Map<_, _> = places.collect();
    serde_json::json!({ "metadata": { "annotations": annotations } })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(members: &[(u64, &str)]) -> Ring {
        let members = members.iter().map(|(n, id)| (*n, (*id).to_string()));
        Ring {
            members: members.collect(),
        }
    }

    #[test]
    fn turns_go_round_and_a_newcomer_is_next() {
        let mut turns = Vec::new();
        let mut now = ring(&[(3, "a"), (4, "b"), (5, "c")]);
        for round in 0..7 {
            if round == 2 {
                now.members.insert(0, (0, "new".into()));
            }
            let next = now.next().unwrap().to_string();
            now = now.after_write(&next, 0, false);
            turns.push(next);
        }
        assert_eq!(turns, ["a", "b", "new", "c", "a", "b", "new"]);
    }

    #[test]
    fn who_lets_a_turn_pass_is_out_and_the_last_one_leaves_no_ring() {
        let now = ring(&[(1, "dead"), (2, "gone"), (3, "a"), (4, "b")]);
        assert_eq!(now.place("a"), Some(2));
        let now = now.after_write("a", 2, false);
        assert_eq!(now, ring(&[(4, "b"), (5, "a")]));
        let now = now.after_write("a", 1, true);
        assert_eq!(now, Ring::default());
        assert_eq!(now.after_write("b", 0, true), Ring::default());
    }

    #[test]
    fn a_writer_who_came_without_a_turn_joins_and_puts_nobody_out() {
        let now = ring(&[(1, "a"), (2, "b")]);
        let after = now.after_write("stranger", 0, true);
        assert_eq!(after, ring(&[(1, "a"), (2, "b"), (3, "stranger")]));
    }

    #[test]
    fn a_turn_that_is_kept_is_the_next_one_too() {
        let now = ring(&[(1, "dead"), (2, "a"), (3, "b")]);
        let after = now.after_write("a", 1, true);
        assert_eq!(after, ring(&[(2, "a"), (3, "b")]));
        assert_eq!(after.after_write("b", 0, true), ring(&[(2, "a"), (3, "b")]));
    }

    #[test]
    fn several_rings_share_one_object() {
        let both = BTreeMap::from([
            ("turn.berth.dev/p1-a".to_string(), "3".to_string()),
            ("turn.berth.dev/p1-b".to_string(), "2".to_string()),
            ("turn.berth.dev/p2-a".to_string(), "1".to_string()),
        ]);
        let first = Ring::read("turn.berth.dev/p1-", Some(&both));
        assert_eq!(first, ring(&[(2, "b"), (3, "a")]));
        assert_eq!((first.end(), first.is_alone("a")), (4, false));
        assert_eq!(first.first(1).collect::<Vec<_>>(), ["b"]);
        let second = Ring::read("turn.berth.dev/p2-", Some(&both));
        assert!(second.is_alone("a"));
        assert_eq!(Ring::default().end(), 1);
        let expected = serde_json::json!({ "metadata": { "annotations": {
            "turn.berth.dev/p1-a": null, "turn.berth.dev/p1-c": "4",
        } } });
        let patched = patch("turn.berth.dev/p1-", [("a", None), ("c", Some(4))]);
        assert_eq!(patched, expected);
    }

    #[test]
    fn the_annotations_of_others_stay() {
        let foreign = BTreeMap::from([("example.com/note".to_string(), "kept".to_string())]);
        let mut annotations = Some(foreign.clone());
        let now = ring(&[(0, "b"), (7, "a")]);
        now.write(&mut annotations);
        assert_eq!(annotations.as_ref().unwrap().len(), 3);
        assert_eq!(Ring::read(PREFIX, annotations.as_ref()), now);
        Ring::default().write(&mut annotations);
        assert_eq!(annotations, Some(foreign));
        let odd = BTreeMap::from([("turn.berth.dev/x".to_string(), "soon".to_string())]);
        assert_eq!(Ring::read(PREFIX, Some(&odd)), ring(&[(0, "x")]));
    }
}
