//! What one NodeSlicePool should be, given what it is and what is known. Pure.

use std::collections::BTreeSet;

use berth_api::cncf::Condition;
use berth_core::dialect::WHEREABOUTS;
use berth_core::slice::assigned::{Assigned, Assignments, LiveClaim};
use berth_core::slice::{Holding, NodeName};
use berth_core::{Prefix, RangeSpec, Space};
use berth_ledger::kube::slicepools::{Marks, SlicePool, StoredSlicePool};

use crate::networks::{Settled, Trouble, reason};

/// Names in one message: enough to begin with, few enough to read.
const NAMED: usize = 10;

/// What was decided about a pool whose definitions want another range or size.
#[derive(Debug)]
pub enum Change {
    /// None is wanted, or nothing stands in its way.
    Free,
    /// Addresses are in use that the new cut has no place for.
    Refused(Vec<(Holding, LiveClaim)>),
    /// Nobody uses what would be dropped; it is looked at once more.
    Pending,
}

/// Which slices are on their way back (I8): recalled in one write, free in a later one, with a look between.
#[derive(Debug, Default)]
pub struct Returns {
    /// Nothing is given from them from this write on.
    pub recalled: Vec<Holding>,
    /// Recalled before, and nobody uses them still.
    pub reclaimed: Vec<Holding>,
}

/// A pool as it should be, and what is wrong all the same.
#[derive(Debug)]
pub struct Draft {
    pub pool: SlicePool,
    pub troubles: Vec<Trouble>,
    pub assigned: Assigned,
}

/// What is known of a pool that definitions want.
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
    /// No other network has an address in the range that is wanted.
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
    let mut troubles: Vec<Trouble> = settled.mismatch(name).collect();
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
        // Its node is there after all.
        if !going(slice) && table.holder(slice).is_some_and(|node| nodes.contains(node)) {
            table.keep(slice);
        }
    }
    // What somebody else took back already is back.
    for holding in &returns.recalled {
        let _ = table.recall(holding.slice, &holding.node);
    }
    for holding in &returns.reclaimed {
        let _ = table.reclaim(holding.slice, &holding.node);
    }
    // Under the old cut the definitions' own limits may lie elsewhere: what the old range may give counts.
    let whole = Space::build(&RangeSpec::of(table.cut().range()), WHEREABOUTS).ok();
    let spaces = match &whole {
        Some((whole, _)) if !follows => vec![whole],
        _ => settled.spaces(),
    };
    let assigned = table.assign(nodes, &spaces);
    let cut = table.cut();
    let to_members = |reason: &'static str, message: String| {
        let members = settled.members.iter();
        members.map(move |wish| Trouble {
            definition: wish.definition.clone(),
            reason,
            message: message.clone(),
        })
    };
    if !assigned.unserved.is_empty() {
        let nodes: Vec<&str> = assigned.unserved.iter().map(NodeName::as_str).collect();
        let message = format!(
            "NodeSlicePool {name}: all slices /{} of {} are assigned; {} get none; give a larger range, or smaller slices",
            cut.size(),
            cut.range(),
            list(&nodes)
        );
        troubles.extend(to_members(reason::EXHAUSTED, message));
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
            let stranded: Vec<String> = stranded.iter().map(told).collect();
            let message = format!(
                "NodeSlicePool {name}: {wanted} is refused while addresses of it are in use: {}",
                list(&stranded)
            );
            troubles.extend(to_members(reason::CHANGE_REFUSED, message));
        }
        Change::Pending => {
            let message =
                format!("NodeSlicePool {name}: {wanted} once nobody has used it for a while");
            troubles.extend(to_members(reason::CHANGE_PENDING, message));
        }
    }
    let size_text = match stored {
        Some(stored) if !follows || stored.pool.table.cut() == cut => stored.pool.size_text.clone(),
        _ => settled.size_text.to_owned(),
    };
    let strays = stored.map_or(&[][..], |stored| &stored.strays);
    let before = stored.map_or(&[][..], |stored| &stored.pool.marks.conditions);
    let made = stored.is_none_or(|stored| stored.pool.marks.managed || !stored.owners.is_empty());
    let mut networks: Vec<String> = settled
        .members
        .iter()
        .map(|wish| wish.definition.clone())
        .collect();
    networks.sort();
    networks.dedup();
    let marks = Marks {
        managed: made,
        networks,
        disjoint: disjoint && follows,
        conditions: conditions(&troubles, strays, before, now),
    };
    let pool = SlicePool {
        table,
        size_text,
        marks,
    };
    Draft {
        pool,
        troubles,
        assigned,
    }
}

/// One condition of each reason, with the time at which it began.
pub fn conditions(
    troubles: &[Trouble],
    strays: &[String],
    before: &[Condition],
    now: &str,
) -> Vec<Condition> {
    let mut conditions: Vec<Condition> = Vec::new();
    let stray = (!strays.is_empty()).then(|| (reason::UNREADABLE, list(strays)));
    let told = troubles
        .iter()
        .map(|trouble| (trouble.reason, trouble.message.clone()))
        .chain(stray);
    for (reason, message) in told {
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
pub fn told((holding, claim): &(Holding, LiveClaim)) -> String {
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

    fn mk_trouble(reason: &'static str, message: &str) -> Trouble {
        Trouble {
            definition: "ns/a".into(),
            reason,
            message: message.into(),
        }
    }

    #[test]
    fn a_condition_keeps_the_time_at_which_it_began() {
        let first = conditions(&[mk_trouble(reason::EXHAUSTED, "a")], &[], &[], "then");
        let again = conditions(
            &[
                mk_trouble(reason::EXHAUSTED, "b"),
                mk_trouble(reason::EXHAUSTED, "b"),
                mk_trouble(reason::MISMATCH, "c"),
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
