use super::*;
use crate::dialect::WHEREABOUTS;
use crate::invariant::{epochs_grow, slices_apart};
use crate::{RangeError, RangeSpec};
use proptest::prelude::*;

fn mk_table(range: &str, size: u8) -> Assignments {
    Assignments::new(Cut::new(range.parse().unwrap(), size).unwrap())
}

fn mk_usable(range: &str, exclude: &[&str]) -> Result<Space, RangeError> {
    let spec = RangeSpec::parse(range)?.excluding(exclude)?;
    Ok(Space::build(&spec, WHEREABOUTS)?.0)
}

fn nodes(names: &[&str]) -> BTreeSet<NodeName> {
    names.iter().map(|name| NodeName::new(*name)).collect()
}

fn rows(table: &Assignments) -> Vec<String> {
    table
        .holdings()
        .map(|h| format!("{} {} {}", h.slice, h.node, h.epoch.0))
        .collect()
}

#[test]
fn nodes_get_the_lowest_slices_in_the_order_of_their_names() {
    let usable = mk_usable("10.0.0.0/8", &[]).unwrap();
    let mut table = mk_table("10.0.0.0/8", 10);
    let assigned = table.assign(&nodes(&["b", "a"]), &[&usable]);
    assert_eq!(rows(&table), ["10.0.0.0/10 a 0", "10.64.0.0/10 b 0"]);
    assert_eq!((assigned.fresh.len(), assigned.unserved.len()), (2, 0));
    // A later node gets a free slice; a node that has one keeps it.
    let assigned = table.assign(&nodes(&["0", "1", "2", "a", "b"]), &[&usable]);
    assert_eq!(assigned.unserved, [NodeName::new("2")]);
    assert_eq!(
        rows(&table),
        [
            "10.0.0.0/10 a 0",
            "10.64.0.0/10 b 0",
            "10.128.0.0/10 0 0",
            "10.192.0.0/10 1 0"
        ]
    );
}

#[test]
fn a_slice_must_have_an_address_for_every_network_that_shares_it() {
    let low = mk_usable("10.0.0.0/24", &["10.0.0.0/25"]).unwrap();
    let high = mk_usable("10.0.0.0/24", &["10.0.0.192/26"]).unwrap();
    let mut table = mk_table("10.0.0.0/24", 26);
    let assigned = table.assign(&nodes(&["a", "b"]), &[&low, &high]);
    assert_eq!(rows(&table), ["10.0.0.128/26 a 0"]);
    assert_eq!(assigned.unserved, [NodeName::new("b")]);
}

#[test]
fn a_reclaimed_slice_has_a_new_epoch() {
    let usable = mk_usable("10.0.0.0/24", &[]).unwrap();
    let mut table = mk_table("10.0.0.0/24", 25);
    table.assign(&nodes(&["a"]), &[&usable]);
    let slice = "10.0.0.0/25".parse().unwrap();
    let a = NodeName::new("a");
    let error = table.recall(slice, &NodeName::new("b")).unwrap_err();
    assert!(matches!(error, SliceError::Foreign { .. }));
    let error = table.reclaim(slice, &a).unwrap_err();
    assert!(matches!(error, SliceError::InHand { .. }), "in two steps");
    assert_eq!(table.recall(slice, &a), Ok(Epoch(1)));
    assert_eq!(table.recall(slice, &a), Ok(Epoch(1)));
    assert_eq!(rows(&table), ["10.0.0.0/25 a 1"]);
    assert_eq!(table.reclaim(slice, &a), Ok(Epoch(1)));
    assert!(matches!(
        table.reclaim(slice, &a),
        Err(SliceError::Free { .. })
    ));
    table.assign(&nodes(&["a"]), &[&usable]);
    assert_eq!(rows(&table), ["10.0.0.0/25 a 1"]);
    assert_eq!(table.epochs().collect::<Vec<_>>(), [(slice, Epoch(1))]);
}

#[test]
fn a_node_that_returns_after_a_recall_keeps_its_slice_at_the_new_epoch() {
    let usable = mk_usable("10.0.0.0/24", &[]).unwrap();
    let mut table = mk_table("10.0.0.0/24", 25);
    table.assign(&nodes(&["a"]), &[&usable]);
    let slice = "10.0.0.0/25".parse().unwrap();
    table.recall(slice, &NodeName::new("a")).unwrap();
    // Its node still has it: that node gets no other slice, and no other node gets this one.
    let assigned = table.assign(&nodes(&["a", "b"]), &[&usable]);
    assert_eq!(assigned.fresh.len(), 1);
    assert!(table.is_recalled(slice));
    table.keep(slice);
    assert!(!table.is_recalled(slice));
    assert_eq!(rows(&table), ["10.0.0.0/25 a 1", "10.0.0.128/25 b 0"]);
    // Cutting the range in another way does not raise the epoch of a recalled slice again.
    table.recall(slice, &NodeName::new("a")).unwrap();
    let recut = table.recut(Cut::new("10.0.0.0/24".parse().unwrap(), 26).unwrap());
    assert_eq!(recut.table.epoch(slice), Epoch(2));
    assert_eq!(recut.table.recalled().count(), 0);
}

#[test]
fn a_grown_range_drops_nothing_and_another_size_drops_all() {
    let usable = mk_usable("10.0.1.0/24", &[]).unwrap();
    let mut table = mk_table("10.0.1.0/24", 26);
    table.assign(&nodes(&["a", "b"]), &[&usable]);
    let grown = table.recut(Cut::new("10.0.0.0/22".parse().unwrap(), 26).unwrap());
    assert!(grown.dropped.is_empty());
    assert_eq!(rows(&grown.table), rows(&table));
    let finer = table.recut(Cut::new("10.0.1.0/24".parse().unwrap(), 27).unwrap());
    assert_eq!(finer.dropped.len(), 2);
    assert_eq!(finer.table.epochs().count(), 2);
    let claim = LiveClaim {
        pod: "ns/p".into(),
        address: "10.0.1.65".parse().ok(),
    };
    let live = BTreeMap::from([("10.0.1.64/26".parse().unwrap(), vec![claim.clone()])]);
    let stranded: Vec<_> = finer.stranded(&live).collect();
    assert_eq!(stranded.len(), 1);
    assert_eq!((stranded[0].0.node.as_str(), stranded[0].1), ("b", &claim));
}

#[test]
fn a_holding_that_overlaps_another_is_refused() {
    let mut table = mk_table("10.0.0.0/24", 26);
    let slice: Prefix = "10.0.0.0/26".parse().unwrap();
    table.restore(slice, NodeName::new("a")).unwrap();
    table.restore(slice, NodeName::new("a")).unwrap();
    for met in ["10.0.0.0/26", "10.0.0.0/25", "10.0.0.32/27"] {
        let error = table
            .restore(met.parse().unwrap(), NodeName::new("b"))
            .unwrap_err()
            .to_string();
        assert!(error.contains("belongs to a"), "{error}");
    }
}

/// The naive way: try every slice in turn and compare it with every holding.
fn model(
    cut: Cut,
    held: &BTreeMap<Prefix, NodeName>,
    wanted: &BTreeSet<NodeName>,
    usable: &[&Space],
) -> BTreeMap<Prefix, NodeName> {
    let mut after = held.clone();
    for node in wanted {
        if after.values().any(|holder| holder == node) {
            continue;
        }
        let fits = |slice: &Prefix| {
            after.keys().all(|held| !held.overlaps(*slice))
                && usable.iter().all(|space| !space.clipped(*slice).is_empty())
        };
        let slices = (0..cut.count()).filter_map(|n| cut.nth(n));
        if let Some(slice) = slices.into_iter().find(fits) {
            after.insert(slice, node.clone());
        }
    }
    after
}

proptest! {
    #[test]
    fn any_sequence_of_joins_and_leaves_matches_the_model(
        sizes in prop::collection::vec(25..29u8, 1..3),
        excluded in 0..4u8,
        steps in prop::collection::vec((0..12u8, 0..5u8), 1..60),
    ) {
        let exclude = format!("10.0.0.{}/26", u16::from(excluded) * 64);
        let first = mk_usable("10.0.0.0/24", &[&exclude]).unwrap();
        let second = mk_usable("10.0.0.0/24", &["10.0.0.240/28"]).unwrap();
        let usable = [&first, &second];
        let mut table = mk_table("10.0.0.0/24", sizes[0]);
        let mut wanted = BTreeSet::new();
        for (place, (name, action)) in steps.into_iter().enumerate() {
            let before: Vec<Holding> = table.holdings().collect();
            let held: BTreeMap<Prefix, NodeName> =
                before.iter().map(|h| (h.slice, h.node.clone())).collect();
            let node = NodeName::new(format!("n{name}"));
            match action {
                0 => {
                    wanted.remove(&node);
                    if let Some(mine) = before.iter().find(|h| h.node == node) {
                        table.recall(mine.slice, &node).unwrap();
                        table.reclaim(mine.slice, &node).unwrap();
                    }
                }
                1 => {
                    let size = sizes[place % sizes.len()];
                    let recut = table.recut(Cut::new("10.0.0.0/24".parse().unwrap(), size).unwrap());
                    let kept: Vec<Holding> = recut.table.holdings().collect();
                    prop_assert_eq!(kept.len() + recut.dropped.len(), before.len());
                    prop_assert!(kept.iter().all(|h| h.slice.length() == size));
                    table = recut.table;
                }
                _ => {
                    wanted.insert(node);
                    let cut = table.cut();
                    table.assign(&wanted, &usable);
                    let now: BTreeMap<Prefix, NodeName> =
                        table.holdings().map(|h| (h.slice, h.node)).collect();
                    prop_assert_eq!(now, model(cut, &held, &wanted, &usable));
                }
            }
            let after: Vec<Holding> = table.holdings().collect();
            slices_apart(&after).map_err(TestCaseError::fail)?;
            epochs_grow(&before, &after).map_err(TestCaseError::fail)?;
        }
    }
}
