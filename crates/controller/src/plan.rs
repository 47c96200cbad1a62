//! The desired state of one NodeSlicePool. Pure.

use std::collections::BTreeSet;

use berth_api::cncf::Condition;
use berth_core::dialect::WHEREABOUTS;
use berth_core::slice::assigned::{Assigned, Assignments, LiveClaim};
use berth_core::slice::{Holding, NodeName};
use berth_core::{Prefix, RangeSpec, Space};
use berth_whereabouts::slicepools::{Marks, SlicePool, StoredSlicePool};

use crate::networks::{Problem, Settled, reason};

/// Names in one message.
const NAMED: usize = 10;

/// The decision about a pool whose definitions want another range or size.
#[derive(Debug)]
pub enum Change {
    /// None is wanted, or nothing prevents it.
    Free,
    /// Addresses are in use that the new cut would drop.
    Refused(Vec<(Holding, LiveClaim)>),
    /// No address that would be dropped is in use; it is read once more.
    Pending,
}

/// Slices that are being reclaimed (I8): recalled in one write, free in a later one, with a read in between.
#[derive(Debug, Default)]
pub struct Returns {
    /// Nothing is allocated from them after this write.
    pub recalled: Vec<Holding>,
    /// Recalled before, and still unused.
    pub reclaimed: Vec<Holding>,
}

/// A pool as it should be, and its remaining problems.
#[derive(Debug)]
pub struct Draft {
    pub pool: SlicePool,
    pub problems: Vec<Problem>,
    pub assigned: Assigned,
}

/// What is known about a pool that definitions want.
#[derive(Debug)]
pub struct Known<'a> {
    pub name: &'a str,
    pub stored: Option<&'a StoredSlicePool>,
    /// The table as it was when it was deleted a moment ago.
    pub before: Option<&'a Assignments>,
    pub settled: &'a Settled<'a>,
    pub change: &'a Change,
    pub returns: &'a Returns,
    pub nodes: &'a BTreeSet<NodeName>,
    /// No other network has an address in the requested range.
    pub disjoint: bool,
}

/// Plans it. `now`: RFC 3339.
pub fn plan(known: &Known<'_>, now: &str) -> Draft {
    let Known {
        name,
        stored,
        before,
        settled,
        change,
        returns,
        nodes,
        disjoint,
    } = *known;
    let mut problems: Vec<Problem> = settled.mismatch(name).collect();
    let follows = matches!(change, Change::Free);
    let mut table = match stored {
        None => before.map_or_else(
            || Assignments::new(settled.cut),
            |before| before.recut(settled.cut).table,
        ),
        Some(stored) if follows => stored.pool.table.recut(settled.cut).table,
        Some(stored) => stored.pool.table.clone(),
    };
    let going = |slice: Prefix| {
        let mut going = returns.recalled.iter().chain(&returns.reclaimed);
        going.any(|holding| holding.slice == slice)
    };
    for slice in table.recalled().collect::<Vec<_>>() {
        // Its node exists after all.
        if !going(slice) && table.holder(slice).is_some_and(|node| nodes.contains(node)) {
            table.keep(slice);
        }
    }
    // What was already reclaimed is free.
    for holding in &returns.recalled {
        let _ = table.recall(holding.slice, &holding.node);
    }
    for holding in &returns.reclaimed {
        let _ = table.reclaim(holding.slice, &holding.node);
    }
    // Under the old cut the definitions' own limits may lie elsewhere: the whole old range counts.
    let whole = Space::build(&RangeSpec::of(table.cut().range()), WHEREABOUTS).ok();
    let spaces = match &whole {
        Some((whole, _)) if !follows => vec![whole],
        _ => settled.spaces(),
    };
    let assigned = table.assign(nodes, &spaces);
    let cut = table.cut();
    let to_members = |reason: &'static str, message: String| {
        let members = settled.members.iter();
        members.map(move |slice_request| Problem {
            definition: slice_request.definition.clone(),
            reason,
            message: message.clone(),
        })
    };
    if !assigned.unserved.is_empty() {
        let nodes: Vec<&str> = assigned.unserved.iter().map(NodeName::as_str).collect();
        let message = format!(
            "NodeSlicePool {name}: all slices /{} of {} are assigned; {} get none; use a larger range, or smaller slices",
            cut.size(),
            cut.range(),
            list(&nodes)
        );
        problems.extend(to_members(reason::EXHAUSTED, message));
    }
    let wanted = format!(
        "range {} by /{} instead of {} by /{}",
        settled.cut.range(),
        settled.cut.size(),
        cut.range(),
        cut.size()
    );
    match change {
        Change::Free => {}
        Change::Refused(stranded) => {
            let stranded: Vec<String> = stranded.iter().map(describe).collect();
            let message = format!(
                "NodeSlicePool {name}: {wanted} is refused while addresses of it are in use: {}",
                list(&stranded)
            );
            problems.extend(to_members(reason::CHANGE_REFUSED, message));
        }
        Change::Pending => {
            let message = format!(
                "NodeSlicePool {name}: {wanted} once it has been unused for the grace period"
            );
            problems.extend(to_members(reason::CHANGE_PENDING, message));
        }
    }
    let size_text = match stored {
        Some(stored) if !follows || stored.pool.table.cut() == cut => stored.pool.size_text.clone(),
        _ => settled.size_text.to_owned(),
    };
    let unparsed = stored.map_or(&[][..], |stored| &stored.unparsed);
    let before = stored.map_or(&[][..], |stored| &stored.pool.marks.conditions);
    let made = stored.is_none_or(|stored| stored.pool.marks.managed || !stored.owners.is_empty());
    let mut networks: Vec<String> = settled
        .members
        .iter()
        .map(|slice_request| slice_request.definition.clone())
        .collect();
    networks.sort();
    networks.dedup();
    let marks = Marks {
        managed: made,
        networks,
        disjoint: disjoint && follows,
        conditions: conditions(&problems, unparsed, before, now),
    };
    let pool = SlicePool {
        table,
        size_text,
        marks,
    };
    Draft {
        pool,
        problems,
        assigned,
    }
}

/// One condition per reason, with the time at which it started.
pub fn conditions(
    problems: &[Problem],
    unparsed: &[String],
    before: &[Condition],
    now: &str,
) -> Vec<Condition> {
    let mut conditions: Vec<Condition> = Vec::new();
    let unparsed_entry = (!unparsed.is_empty()).then(|| (reason::UNREADABLE, list(unparsed)));
    let reported = problems
        .iter()
        .map(|problem| (problem.reason, problem.message.clone()))
        .chain(unparsed_entry);
    for (reason, message) in reported {
        match conditions.iter_mut().find(|known| known.kind == reason) {
            Some(known) if !known.message.contains(&message) => {
                known.message = format!("{}; {message}", known.message);
            }
            Some(_) => {}
            None => conditions.push(Condition {
                kind: reason.to_owned(),
                status: "True".to_owned(),
                reason: reason.to_owned(),
                message,
                last_transition_time: now.to_owned(),
                observed_generation: None,
            }),
        }
    }
    for condition in &mut conditions {
        if let Some(known) = before.iter().find(|known| known.kind == condition.kind) {
            condition
                .last_transition_time
                .clone_from(&known.last_transition_time);
        }
    }
    conditions.sort_by(|a, b| a.kind.cmp(&b.kind));
    conditions
}

/// `10.0.0.65 of ns/pod on node-7`.
pub fn describe((holding, claim): &(Holding, LiveClaim)) -> String {
    match claim.address {
        Some(address) => format!("{address} of {} on {}", claim.pod, holding.node),
        None => format!("{} on {} (in {})", claim.pod, holding.node, holding.slice),
    }
}

pub fn list<T: AsRef<str>>(items: &[T]) -> String {
    let named: Vec<&str> = items.iter().take(NAMED).map(AsRef::as_ref).collect();
    let named = named.join(", ");
    match items.len().saturating_sub(NAMED) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_problem(reason: &'static str, message: &str) -> Problem {
        Problem {
            definition: "ns/a".into(),
            reason,
            message: message.into(),
        }
    }

    #[test]
    fn a_condition_keeps_the_time_at_which_it_started() {
        let first = conditions(&[mk_problem(reason::EXHAUSTED, "a")], &[], &[], "then");
        let again = conditions(
            &[
                mk_problem(reason::EXHAUSTED, "b"),
                mk_problem(reason::EXHAUSTED, "b"),
                mk_problem(reason::MISMATCH, "c"),
            ],
            &["a row".into()],
            &first,
            "now",
        );
        let rows: Vec<(&str, &str, &str)> = again
            .iter()
            .map(|c| {
                (
                    c.kind.as_str(),
                    c.message.as_str(),
                    c.last_transition_time.as_str(),
                )
            })
            .collect();
        assert_eq!(
            rows,
            [
                (reason::EXHAUSTED, "b", "then"),
                (reason::MISMATCH, "c", "now"),
                (reason::UNREADABLE, "a row", "now"),
            ]
        );
    }

    #[test]
    fn long_lists_are_cut() {
        let items: Vec<String> = (0..12).map(|n| n.to_string()).collect();
        assert_eq!(list(&items), "0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more");
    }
}
