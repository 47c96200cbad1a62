use super::*;
use crate::dialect::WHEREABOUTS;
use crate::invariant::{epochs_grow, slices_apart};
use crate::{Block, RangeSpec};
use proptest::prelude::*;

fn mk_table(range: &str, size: u8) -> SliceTable {
    SliceTable::new(Cut::new(range.parse().unwrap(), size).unwrap())
}

fn mk_usable(range: &str, exclude: &[&str]) -> Space {
    let spec = RangeSpec::parse(range).unwrap().excluding(exclude).unwrap();
    Space::build(&spec, WHEREABOUTS).unwrap().0
}

fn node(name: &str) -> NodeName {
    NodeName::new(name)
}

fn nodes(names: &[&str]) -> BTreeSet<NodeName> {
    names.iter().map(|name| node(name)).collect()
}

#[test]
fn ten_slash_eight_by_ten_for_two_nodes() {
    let mut table = mk_table("10.0.0.0/8", 10);
    let (fresh, unserved) = table.assign(&nodes(&["b", "a"]), &mk_usable("10.0.0.0/8", &[]));
    let rows: Vec<String> = fresh
        .iter()
        .map(|h| format!("{} {}", h.node, h.slice))
        .collect();
    assert_eq!(rows, ["a 10.0.0.0/10", "b 10.64.0.0/10"]);
    assert!(unserved.is_empty());
    assert_eq!(table.cut().count(), 4);
}

#[test]
fn a_returned_slice_has_a_new_epoch_and_the_old_one_is_stale() {
    let usable = mk_usable("10.0.0.0/24", &[]);
    let mut table = mk_table("10.0.0.0/24", 25);
    let old = table.claim(&node("a"), &usable, 0).unwrap();
    table.yield_back(old.slice, &node("a"), old.epoch).unwrap();
    let new = table.claim(&node("a"), &usable, 0).unwrap();
    assert_eq!((new.slice, new.epoch), (old.slice, Epoch(2)));
    assert!(matches!(
        table.verify(old.slice, &node("a"), old.epoch),
        Err(SliceError::Stale { .. })
    ));
    let error = table
        .yield_back(new.slice, &node("b"), new.epoch)
        .unwrap_err()
        .to_string();
    assert_eq!(error, "slice 10.0.0.0/25 belongs to a (epoch 2), not to b");
}

#[test]
fn several_slices_for_one_node_until_none_is_left() {
    let usable = mk_usable("10.0.0.0/24", &["10.0.0.64/26"]);
    let mut table = mk_table("10.0.0.0/24", 26);
    let claimed: Vec<String> = (0..3)
        .map(|_| {
            table
                .claim(&node("a"), &usable, 0)
                .unwrap()
                .slice
                .to_string()
        })
        .collect();
    assert_eq!(claimed, ["10.0.0.0/26", "10.0.0.128/26", "10.0.0.192/26"]);
    let error = table.claim(&node("b"), &usable, 0).unwrap_err().to_string();
    assert_eq!(
        error,
        "all slices /26 of 10.0.0.0/24 are assigned; b gets none"
    );
    assert_eq!(table.of_node(&node("a")).count(), 3);
}

#[test]
fn a_size_that_does_not_cut_is_named() {
    for size in [7, 33] {
        let error = Cut::new("10.0.0.0/8".parse().unwrap(), size)
            .unwrap_err()
            .to_string();
        let named = format!("/{size} does not cut 10.0.0.0/8");
        assert!(error.contains(&named), "{error}");
    }
}

#[test]
fn huge_ipv6_cuts_are_arithmetic() {
    let cut = Cut::new("::/0".parse().unwrap(), 128).unwrap();
    assert_eq!(cut.count(), u128::MAX);
    let cut = Cut::new("fd00::/32".parse().unwrap(), 120).unwrap();
    let last = cut.nth(cut.count() - 1).unwrap();
    assert_eq!(last.to_string(), "fd00:0:ffff:ffff:ffff:ffff:ffff:ff00/120");
    assert_eq!(cut.nth(cut.count()), None);
}

#[test]
fn a_live_slice_of_another_size_is_not_assigned_again() {
    let usable = mk_usable("10.0.0.0/24", &[]);
    let mut table = mk_table("10.0.0.0/24", 26);
    let old = Holding {
        slice: "10.0.0.0/25".parse().unwrap(),
        node: node("old"),
        epoch: Epoch(1),
    };
    table.restore(old);
    assert_eq!(
        table
            .claim(&node("b"), &usable, 0)
            .unwrap()
            .slice
            .to_string(),
        "10.0.0.128/26"
    );
    let all = Block::parse("", "10.0.0.0/24").unwrap();
    assert!(table.holdings().all(|h| all.contains(h.slice.network())));
}

proptest! {
    #[test]
    fn claims_and_yields_keep_slices_apart(
        steps in prop::collection::vec((0..6u8, any::<bool>(), 0..20u128), 1..80),
    ) {
        let usable = mk_usable("10.0.0.0/24", &["10.0.0.32/28"]);
        let mut table = mk_table("10.0.0.0/24", 28);
        for (name, claims, start) in steps {
            let before: Vec<Holding> = table.holdings().cloned().collect();
            let node = node(&format!("n{name}"));
            let mine = before.iter().find(|holding| holding.node == node);
            if claims {
                let free = 15 - before.len();
                prop_assert_eq!(table.claim(&node, &usable, start).is_ok(), free > 0);
            } else if let Some(mine) = mine {
                table.yield_back(mine.slice, &node, mine.epoch).unwrap();
            }
            let after: Vec<Holding> = table.holdings().cloned().collect();
            slices_apart(&after).map_err(TestCaseError::fail)?;
            epochs_grow(&before, &after).map_err(TestCaseError::fail)?;
        }
    }
}
