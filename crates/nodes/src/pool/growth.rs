//! Whether an update of a pool's spec only grows it: every offset keeps its address, and nothing that could be allocated is lost.
//!
//! The definition's rules check the same at admission; this checks objects that were admitted without them, and is the rules' model in tests.

use berth_core::{Address, Block};
use thiserror::Error;

use super::range::Segment;
use super::space::PoolSpace;

/// An update that would renumber or take away addresses.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Shrinks {
    #[error("spec.{field}: the range {bounds} is gone; ranges are only appended")]
    RangeGone { field: String, bounds: Block },
    #[error("spec.{field}.start: {old} became {new}; offsets count from it, so it can't change")]
    Start {
        field: String,
        old: Address,
        new: Address,
    },
    #[error("spec.{field}.end: {old} became {new}; a pool does not shrink")]
    End {
        field: String,
        old: Address,
        new: Address,
    },
    #[error(
        "spec.{field}: it grew, but offsets of the ranges after it follow its end; append to spec.ranges instead"
    )]
    Renumbers { field: String },
    #[error(
        "spec.{field}.cidr: {address} has another offset in the larger network; append to spec.ranges instead"
    )]
    Numbering { field: String, address: Address },
    #[error("spec.{field}: {address} could be allocated and no longer can; a pool does not shrink")]
    Withheld { field: String, address: Address },
}

/// Checks that `new` has every address of `old` under the offset that it had.
pub fn check_growth(old: &PoolSpace, new: &PoolSpace) -> Result<(), Shrinks> {
    let last = old.segments.len().saturating_sub(1);
    for (index, before) in old.segments.iter().enumerate() {
        let Some(after) = new.segments.get(index) else {
            return Err(Shrinks::RangeGone {
                field: before.field.clone(),
                bounds: before.bounds,
            });
        };
        check_segment(before, after)?;
        if index < last && before.offsets != after.offsets {
            let field = before.field.clone();
            return Err(Shrinks::Renumbers { field });
        }
    }
    Ok(())
}

fn check_segment(before: &Segment, after: &Segment) -> Result<(), Shrinks> {
    let field = before.field.clone();
    let (old, new) = (before.bounds, after.bounds);
    if old.first() != new.first() {
        let (old, new) = (old.first(), new.first());
        return Err(Shrinks::Start { field, old, new });
    }
    if new.last() < old.last() {
        let (old, new) = (old.last(), new.last());
        return Err(Shrinks::End { field, old, new });
    }
    // Both number consecutively from the same start, but for addresses that one of them skips: the ends are where they part.
    for address in [old.last(), first_block_end(old)] {
        if before.space.offset(address) != after.space.offset(address) {
            return Err(Shrinks::Numbering { field, address });
        }
    }
    let lost = before
        .space
        .blocks()
        .iter()
        .find_map(|block| withheld(*block, after));
    match lost {
        Some(address) => Err(Shrinks::Withheld { field, address }),
        None => Ok(()),
    }
}

/// The first address of a block that ends in .255, where there is one: the first that a larger network may skip.
fn first_block_end(block: Block) -> Address {
    let distance = u128::from(255 - block.first().last_octet());
    let end = block.first().plus(distance);
    end.filter(|end| block.contains(*end))
        .unwrap_or_else(|| block.first())
}

/// An address of `block` that `after` does not allocate, apart from those without an offset.
fn withheld(block: Block, after: &Segment) -> Option<Address> {
    let mut next = Some(block.first());
    while let Some(address) = next.filter(|address| block.contains(*address)) {
        if after.space.offset(address).is_none() {
            next = address.next();
            continue;
        }
        if !after.space.contains(address) {
            return Some(address);
        }
        // On to the end of the block that holds it.
        let held = after
            .space
            .blocks()
            .iter()
            .find(|held| held.contains(address))?;
        next = held.last().next();
    }
    None
}

#[cfg(test)]
mod tests {
    use berth_api::nmstate::{NodeIPPoolSpec, Range};
    use proptest::prelude::*;

    use super::*;

    fn range(cidr: &str, start: &str, end: &str, exclude: &[&str]) -> Range {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Range {
            cidr: cidr.to_owned(),
            start: some(start),
            end: some(end),
            exclude: exclude.iter().map(|entry| (*entry).to_owned()).collect(),
            gateway: None,
        }
    }

    fn pool(ranges: &[Range]) -> PoolSpace {
        let spec = NodeIPPoolSpec {
            range: ranges[0].clone(),
            ranges: ranges[1..].to_vec(),
            ..Default::default()
        };
        PoolSpace::read(&spec).unwrap()
    }

    #[test]
    fn a_pool_grows_at_its_end_and_nowhere_else() {
        let one = range(
            "10.10.10.0/24",
            "10.10.10.1",
            "10.10.10.10",
            &["10.10.10.4"],
        );
        let cases: &[(&str, Vec<Range>, &str)] = &[
            ("the same", vec![one.clone()], ""),
            (
                "a later end",
                vec![range(
                    "10.10.10.0/24",
                    "10.10.10.1",
                    "10.10.10.20",
                    &["10.10.10.4"],
                )],
                "",
            ),
            (
                "a larger network",
                vec![range(
                    "10.10.0.0/16",
                    "10.10.10.1",
                    "10.10.11.20",
                    &["10.10.10.4"],
                )],
                "",
            ),
            (
                "no end",
                vec![range("10.10.10.0/24", "10.10.10.1", "", &["10.10.10.4"])],
                "",
            ),
            (
                "an exclude removed",
                vec![range("10.10.10.0/24", "10.10.10.1", "10.10.10.10", &[])],
                "",
            ),
            (
                "another range",
                vec![one.clone(), range("10.10.12.0/24", "", "", &[])],
                "",
            ),
            (
                "start left out, and the same",
                vec![range("10.10.10.0/24", "", "10.10.10.10", &["10.10.10.4"])],
                "",
            ),
            (
                "a higher start",
                vec![range(
                    "10.10.10.0/24",
                    "10.10.10.2",
                    "10.10.10.10",
                    &["10.10.10.4"],
                )],
                "start: 10.10.10.1 became 10.10.10.2",
            ),
            (
                "an earlier end",
                vec![range(
                    "10.10.10.0/24",
                    "10.10.10.1",
                    "10.10.10.9",
                    &["10.10.10.4"],
                )],
                "end: 10.10.10.10 became 10.10.10.9",
            ),
            (
                "another exclude",
                vec![range(
                    "10.10.10.0/24",
                    "10.10.10.1",
                    "10.10.10.10",
                    &["10.10.10.4", "10.10.10.6"],
                )],
                "10.10.10.6 could be allocated",
            ),
        ];
        for (what, new, expected) in cases {
            let found = check_growth(&pool(std::slice::from_ref(&one)), &pool(new));
            match (found, *expected) {
                (Ok(()), "") => {}
                (Err(error), expected) if !expected.is_empty() => {
                    assert!(error.to_string().contains(expected), "{what}: {error}");
                }
                (found, _) => panic!("{what}: {found:?}"),
            }
        }
    }

    #[test]
    fn only_the_last_range_grows() {
        let first = range("10.10.10.0/24", "10.10.10.1", "10.10.10.10", &[]);
        let longer = range("10.10.10.0/24", "10.10.10.1", "10.10.10.11", &[]);
        let second = range("10.10.12.0/24", "10.10.12.1", "10.10.12.10", &[]);
        let second_longer = range("10.10.12.0/24", "10.10.12.1", "10.10.12.99", &[]);
        let old = pool(&[first.clone(), second.clone()]);
        let grown = pool(&[first.clone(), second_longer]);
        assert_eq!(check_growth(&old, &grown), Ok(()));
        let renumbered = check_growth(&old, &pool(&[longer, second])).unwrap_err();
        assert!(matches!(renumbered, Shrinks::Renumbers { .. }));
        let gone = check_growth(&old, &pool(&[first])).unwrap_err();
        assert!(gone.to_string().contains("ranges[0]"), "{gone}");
    }

    #[test]
    fn a_network_of_two_addresses_numbers_what_a_larger_one_skips() {
        let tiny = pool(&[range("10.0.0.254/31", "10.0.0.254", "10.0.0.255", &[])]);
        let large = pool(&[range("10.0.0.0/16", "10.0.0.254", "10.0.1.9", &[])]);
        let error = check_growth(&tiny, &large).unwrap_err();
        assert!(matches!(error, Shrinks::Numbering { .. }), "{error}");
    }

    proptest! {
        /// Against a model that compares every address.
        #[test]
        fn what_passes_moves_no_address(
            lengths in (20u8..=32, 20u8..=32),
            starts in (0u32..600, 0u32..600),
            sizes in (0u32..600, 0u32..600),
        ) {
            let base = u32::from(std::net::Ipv4Addr::new(10, 0, 16, 0));
            let mk = |length: u8, start: u32, size: u32| {
                let at = |n: u32| std::net::Ipv4Addr::from(base + n).to_string();
                let spec = NodeIPPoolSpec {
                    range: range(&format!("{}/{length}", at(start)), &at(start), &at(start + size), &[]),
                    ..Default::default()
                };
                PoolSpace::read(&spec)
            };
            let old = mk(lengths.0, starts.0, sizes.0);
            let new = mk(lengths.1, starts.0 + (starts.1 % 2), sizes.1);
            if let (Ok(old), Ok(new)) = (old, new) {
                let moved = (0..old.offsets()).any(|n| {
                    let offset = berth_core::Offset(n);
                    old.address(offset) != new.address(offset)
                });
                let bounds = |pool: &PoolSpace| pool.segments[0].bounds;
                let shrunk = bounds(&new).last() < bounds(&old).last() || bounds(&new).first() != bounds(&old).first();
                prop_assert_eq!(check_growth(&old, &new).is_err(), moved || shrunk);
            }
        }
    }
}
