//! Slices that nodes claim by themselves: the order in which a node tries slices, how many addresses it should hold,
//! which part it can spare, and what a claim that was read means for it.
//!
//! Every decision of the protocol (docs/decisions/0006-slices.md) is a function here, without I/O, so that the
//! agent and the model of the protocol run the same code.

use serde::{Deserialize, Serialize};

use super::{Cut, Epoch, NodeName};
use crate::{Address, Block, Family, Moment, Pool, Prefix, Space};

/// A part of a slice that its node has surrendered to another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Offer {
    pub range: Prefix,
    pub node: NodeName,
}

/// A claim as it was read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Claimed {
    pub range: Prefix,
    /// Empty: its node was lost while other nodes had parts of it.
    pub node: NodeName,
    pub node_uid: String,
    pub epoch: Epoch,
    pub offers: Vec<Offer>,
    /// The nodes that request a part of it.
    pub wants: Vec<NodeName>,
    /// The controller is about to reclaim it: no node allocates from it until its node has written it again (I8).
    pub recalled: bool,
}

impl Claimed {
    /// Whether the object may be deleted. Not while it has an offer: its name would be free while another node has a
    /// part of it.
    pub fn may_go(&self) -> bool {
        self.offers.is_empty()
    }

    /// Whether `taker` may hold `child`. The claim of `child` must have been made **before** this was read.
    pub fn lets(&self, child: Prefix, taker: &NodeName) -> bool {
        self.range.covers(child)
            && self
                .offers
                .iter()
                .any(|offer| offer.range == child && offer.node == *taker)
    }

    /// Whether its node may allocate from `part`: inside the range and outside all offers.
    pub fn is_free_of_offers(&self, part: Prefix) -> bool {
        self.range.covers(part) && !self.offers.iter().any(|offer| offer.range.overlaps(part))
    }
}

/// What a node has recorded about a slice that it holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Known {
    pub range: Prefix,
    pub node_uid: String,
    pub epoch: Epoch,
}

/// What a claim that was read means for a holding (I8).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Standing {
    Ours,
    /// No longer allocated from; `to` is the node that has it now, if any.
    Lost {
        to: Option<NodeName>,
        epoch: Epoch,
    },
}

/// Compares a holding with its claim as it was read; `None` if there is no such claim.
pub fn standing(me: &NodeName, known: &Known, claim: Option<&Claimed>) -> Standing {
    match claim {
        Some(claim)
            if claim.node == *me
                && !claim.recalled
                && claim.epoch == known.epoch
                && claim.range == known.range
                && claim.node_uid == known.node_uid =>
        {
            Standing::Ours
        }
        Some(claim) => Standing::Lost {
            to: (!claim.node.as_str().is_empty()).then(|| claim.node.clone()),
            epoch: claim.epoch,
        },
        None => Standing::Lost {
            to: None,
            epoch: known.epoch,
        },
    }
}

/// The slices of a cut in the order in which one node tries them, each once. Start and stride depend on the node, so
/// that nodes which start together rarely collide, and diverge when they do. Nodes with different numbers start at
/// different slices, as long as there are enough.
#[derive(Clone, Debug)]
pub struct Walk {
    cut: Cut,
    at: u128,
    stride: u128,
    mask: u128,
    left: u128,
}

/// The golden ratio of 64 bits, made odd.
const SPREAD: u128 = 0x9e37_79b9_7f4a_7c15;

impl Walk {
    /// `number`: one that no other node has, if there is one. A duplicate does no harm.
    pub fn of(cut: Cut, node: &NodeName, network: &str, number: Option<u128>) -> Self {
        let count = cut.count();
        // The count is a power of two, except the one that saturates the type.
        let mask = if count.is_power_of_two() {
            count - 1
        } else {
            u128::MAX
        };
        let whole = u128::from(u32::MAX);
        let seed =
            |salt: &str| crate::order::hash_index(&format!("{node}/{network}/{salt}"), whole);
        let start = match number {
            // Odd, so different numbers stay different; and neighbours start far apart, because they may need more
            // slices later.
            Some(number) => number
                .wrapping_mul(SPREAD)
                .wrapping_add(crate::order::hash_index(network, whole)),
            None => seed("start") << 16 ^ seed("more"),
        };
        Self {
            cut,
            at: start & mask,
            // Odd, so prime to a power of two: every slice is tried before one is tried again.
            stride: (seed("stride") << 1 | 1) & mask | 1,
            mask,
            left: count,
        }
    }
}

impl Iterator for Walk {
    type Item = Prefix;

    fn next(&mut self) -> Option<Prefix> {
        self.left = self.left.checked_sub(1)?;
        let slot = self.cut.nth(self.at);
        self.at = self.at.wrapping_add(self.stride) & self.mask;
        slot
    }
}

/// The default size of slices: half of the range's host bits, and no more than 64 addresses of IPv4 (256 of IPv6), so
/// that a small range serves several nodes and a large one needs few claims.
pub fn usual_size(range: Prefix) -> u8 {
    let most = match range.family() {
        Family::V4 => 6,
        Family::V6 => 8,
    };
    range.family().bits() - (range.host_bits() / 2).min(most)
}

/// How many addresses a node should hold that uses `used` of them, in slices of `batch`: `reserve` more than it uses,
/// in whole slices.
pub fn wanted(used: u128, batch: u128, reserve: u128) -> u128 {
    let batch = batch.max(1);
    used.saturating_add(reserve)
        .div_ceil(batch)
        .saturating_mul(batch)
}

/// The maximum size of a part: each of its addresses is a row in the donor's pool.
const LARGEST_PART_BITS: u32 = 8;

/// The part of a slice that its node can spare: the largest aligned one in which nothing is held or cools down, at
/// most half of what is free, or the last free address.
pub fn spare(slice: Prefix, usable: &Space, pool: &Pool, now: Moment) -> Option<Prefix> {
    let within = slice.block();
    let taken = pool
        .records()
        .map(|(address, _)| address)
        .chain(pool.cooling(now))
        .filter(|address| within.contains(*address))
        .map(Block::single)
        .collect::<Vec<_>>();
    let free: Vec<Block> = usable
        .clipped(slice)
        .listed()
        .flat_map(|block| block.without(taken.clone()))
        .flat_map(|space| space.blocks().to_vec())
        .collect();
    let count = free
        .iter()
        .fold(0u128, |sum, block| sum.saturating_add(block.count()));
    let most = count.div_ceil(2).max(1);
    let bits = most.ilog2().min(LARGEST_PART_BITS);
    (0..=bits).rev().find_map(|bits| {
        // From the end: a person expects the lowest addresses to be allocated first.
        free.iter()
            .rev()
            .find_map(|block| aligned(*block, bits, slice))
    })
}

/// The last aligned part of 2^bits addresses inside a block, if there is one.
fn aligned(block: Block, bits: u32, slice: Prefix) -> Option<Prefix> {
    let size = 1u128.checked_shl(bits)?;
    if block.count() < size {
        return None;
    }
    let length = slice
        .family()
        .bits()
        .checked_sub(u8::try_from(bits).ok()?)?;
    if length <= slice.length() {
        return None;
    }
    let last_start = block.last().bits().checked_sub(size - 1)?;
    let start = Address::new(slice.family(), last_start)?;
    let part = Prefix::containing(start, length)?;
    (part.network() >= block.first() && part.last() <= block.last()).then_some(part)
}

/// The annotation on the plain pool of a range that has claimed slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Mark {
    pub state: MarkState,
    /// The length of every slice of this range, for all nodes regardless of their settings: claims by name never
    /// overlap.
    pub size: u8,
    /// Some slices allocate addresses without a reservation.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unreserved: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MarkState {
    /// Addresses are allocated from slices.
    Sliced,
    /// On the way back to plain: no slice is claimed, all are returned.
    Leaving,
}

impl Mark {
    pub const fn sliced(size: u8) -> Self {
        Self {
            state: MarkState::Sliced,
            size,
            unreserved: false,
        }
    }

    /// The annotation that a network needs before it allocates from slices, with overlap checks or without.
    #[must_use]
    pub fn for_network(self, checked: bool) -> Self {
        Self {
            unreserved: self.unreserved || !checked,
            ..self
        }
    }

    /// Whether a claim that was made before this was read is valid.
    pub fn confirms(self, size: u8) -> bool {
        self.state == MarkState::Sliced && self.size == size
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::dialect::WHEREABOUTS;
    use crate::{Handle, Owner, RangeSpec, Record};

    fn prefix(text: &str) -> Prefix {
        text.parse().unwrap()
    }

    fn node(name: &str) -> NodeName {
        NodeName::new(name)
    }

    fn usable(range: &str) -> Space {
        Space::build(&RangeSpec::parse(range).unwrap(), WHEREABOUTS)
            .unwrap()
            .0
    }

    fn holding(addresses: &[&str]) -> Pool {
        let mut pool = Pool::new();
        for address in addresses {
            let record = Record::new(Owner::new("ns/p", "net1"), Handle::new("c"));
            pool.restore(address.parse().unwrap(), record);
        }
        pool
    }

    #[test]
    fn a_walk_visits_every_slice_once_from_a_start_of_its_own() {
        let cut = Cut::new(prefix("10.0.0.0/16"), 26).unwrap();
        let walk = |name: &str| Walk::of(cut, &node(name), "blue", None).collect::<Vec<_>>();
        for name in ["a", "b", "node-17"] {
            let slots = walk(name);
            assert_eq!(slots.len(), 1024);
            assert_eq!(slots.iter().collect::<BTreeSet<_>>().len(), 1024);
        }
        let firsts: BTreeSet<Prefix> = (0..200).map(|n| walk(&format!("n{n}"))[0]).collect();
        assert!(firsts.len() > 150, "{} of 200", firsts.len());
        assert_ne!(walk("a")[..8], walk("b")[..8]);
        let whole = Cut::new(prefix("::/0"), 128).unwrap();
        assert!(Walk::of(whole, &node("a"), "", Some(7)).take(9).count() == 9);
        let one = Cut::new(prefix("10.0.0.0/24"), 24).unwrap();
        assert_eq!(Walk::of(one, &node("a"), "", None).count(), 1);
    }

    #[test]
    fn nodes_with_different_numbers_do_not_collide() {
        let cut = Cut::new(prefix("10.0.0.0/12"), 26).unwrap();
        // A cluster numbers nodes by their pod CIDRs.
        let number = |n: u32| prefix(&format!("10.{}.{}.0/24", n / 256, n % 256)).ordinal();
        let first = |network: &str, n: u32| {
            let mut walk = Walk::of(cut, &node("a"), network, Some(number(n)));
            walk.next().unwrap()
        };
        let firsts: BTreeSet<Prefix> = (0..16_384).map(|n| first("blue", n)).collect();
        assert_eq!(firsts.len(), 16_384);
        assert_ne!(first("blue", 1), first("red", 1));
        let all: BTreeSet<Prefix> = Walk::of(cut, &node("a"), "blue", Some(3)).collect();
        assert_eq!(all.len(), 16_384);
        assert_eq!(prefix("::/0").ordinal(), 0);
    }

    #[test]
    fn the_default_size_lets_a_small_range_serve_several_nodes() {
        for (range, size) in [
            ("10.0.0.0/8", 26),
            ("10.0.0.0/24", 28),
            ("10.0.0.0/29", 31),
            ("10.0.0.0/32", 32),
            ("fd00::/64", 120),
        ] {
            assert_eq!(usual_size(prefix(range)), size, "{range}");
        }
    }

    #[test]
    fn a_node_wants_whole_slices_with_a_reserve() {
        for (used, expected) in [(0, 16), (12, 16), (13, 32), (28, 32), (29, 48)] {
            assert_eq!(wanted(used, 16, 4), expected, "{used}");
        }
        assert_eq!(wanted(5, 1, 1), 6);
    }

    #[test]
    fn at_most_half_of_what_is_free_is_spared_or_the_last_address() {
        let space = usable("10.0.0.0/24");
        let slice = prefix("10.0.0.16/28");
        let spared = |held: &[&str]| {
            let spared = spare(slice, &space, &holding(held), Moment(0));
            spared.map(|part| part.to_string())
        };
        assert_eq!(spared(&[]).as_deref(), Some("10.0.0.24/29"));
        assert_eq!(spared(&["10.0.0.30"]).as_deref(), Some("10.0.0.16/29"));
        let all: Vec<String> = (16..32).map(|n| format!("10.0.0.{n}")).collect();
        let mut held: Vec<&str> = all.iter().map(String::as_str).collect();
        assert_eq!(spared(&held), None);
        held.retain(|address| *address != "10.0.0.21");
        assert_eq!(spared(&held).as_deref(), Some("10.0.0.21/32"));
    }

    #[test]
    fn a_withheld_last_address_is_not_spared() {
        let slice = prefix("10.0.0.254/31");
        let space = usable("10.0.0.0/24");
        let spared = spare(slice, &space, &Pool::new(), Moment(0));
        assert_eq!(
            spared.map(|p| p.to_string()).as_deref(),
            Some("10.0.0.254/32")
        );
    }

    #[test]
    fn a_holding_is_kept_while_node_uid_and_epoch_match_and_it_is_not_recalled() {
        let known = Known {
            range: prefix("10.0.0.0/28"),
            node_uid: "u1".into(),
            epoch: Epoch(1),
        };
        let claim = Claimed {
            range: known.range,
            node: node("a"),
            node_uid: "u1".into(),
            epoch: Epoch(1),
            offers: Vec::new(),
            wants: Vec::new(),
            recalled: false,
        };
        let stands =
            |claim: Option<&Claimed>| standing(&node("a"), &known, claim) == Standing::Ours;
        assert!(stands(Some(&claim)));
        assert!(!stands(None));
        for other in [
            Claimed {
                node: node("b"),
                ..claim.clone()
            },
            Claimed {
                epoch: Epoch(2),
                ..claim.clone()
            },
            Claimed {
                node_uid: "u2".into(),
                ..claim.clone()
            },
            Claimed {
                recalled: true,
                ..claim.clone()
            },
        ] {
            assert!(!stands(Some(&other)), "{other:?}");
        }
    }

    #[test]
    fn a_child_needs_its_offer_and_its_parent_can_not_be_deleted() {
        let child = prefix("10.0.0.8/29");
        let parent = Claimed {
            range: prefix("10.0.0.0/28"),
            node: node("d"),
            node_uid: String::new(),
            epoch: Epoch(0),
            offers: vec![Offer {
                range: child,
                node: node("t"),
            }],
            wants: Vec::new(),
            recalled: false,
        };
        assert!(parent.lets(child, &node("t")));
        assert!(!parent.lets(child, &node("u")));
        assert!(!parent.lets(prefix("10.0.0.0/29"), &node("t")));
        assert!(!parent.may_go());
        assert!(parent.is_free_of_offers(prefix("10.0.0.0/29")));
        assert!(!parent.is_free_of_offers(prefix("10.0.0.12/30")));
    }
}
