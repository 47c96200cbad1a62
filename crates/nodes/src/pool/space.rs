//! The addresses of a NodeIPPool and their numbers.
//!
//! Guarantees: an offset names the same address for as long as the pool only grows; ranges are numbered one after the other. Excluded
//! addresses have an offset and are never allocated. In IPv4 networks of /24 and larger, addresses that end in .0 or .255 have none.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::nmstate::{MAX_RANGES, MAX_RESERVATIONS, NodeIPPoolSpec};
use berth_core::{Address, Block, Family, Offset, Prefix, Space};

use super::range::{Segment, SpecError, address};

/// A pool's spec, read.
#[derive(Clone, Debug)]
pub struct PoolSpace {
    /// The network of the first range.
    prefix: Prefix,
    pub(super) segments: Vec<Segment>,
    dns: Vec<Address>,
    reservations: BTreeMap<Address, String>,
    reuse_delay: Duration,
}

/// What an address is to a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// It can be allocated.
    Allocatable(Offset),
    /// It has an offset and is never allocated.
    Excluded(Offset),
    /// It has an offset and is never allocated, because it is the network's gateway.
    Gateway(Offset),
    /// It lies in a range and has no offset: an IPv4 address that ends in .0 or .255.
    Skipped,
    Outside,
}

impl Place {
    pub const fn offset(self) -> Option<Offset> {
        match self {
            Place::Allocatable(offset) | Place::Excluded(offset) | Place::Gateway(offset) => {
                Some(offset)
            }
            Place::Skipped | Place::Outside => None,
        }
    }

    /// One word for people.
    pub const fn word(self) -> &'static str {
        match self {
            Place::Allocatable(_) => "allocatable",
            Place::Excluded(_) => "excluded",
            Place::Gateway(_) => "gateway",
            Place::Skipped => "skipped",
            Place::Outside => "outside",
        }
    }
}

impl PoolSpace {
    pub fn read(spec: &NodeIPPoolSpec) -> Result<PoolSpace, SpecError> {
        let too_many = |field: &str, count: usize, most: usize| SpecError::TooMany {
            field: field.to_owned(),
            count,
            most,
        };
        if spec.ranges.len() > MAX_RANGES {
            return Err(too_many("ranges", spec.ranges.len(), MAX_RANGES));
        }
        if spec.reservations.len() > MAX_RESERVATIONS {
            let count = spec.reservations.len();
            return Err(too_many("reservations", count, MAX_RESERVATIONS));
        }
        let gateway = spec.gateway.as_deref();
        let gateway = gateway.map(|text| address("gateway", text)).transpose()?;
        let (prefix, segments) = segments(spec, gateway)?;
        let mut pool = PoolSpace {
            prefix,
            segments,
            dns: Vec::new(),
            reservations: BTreeMap::new(),
            reuse_delay: Duration::ZERO,
        };
        if let Some(lost) = gateway.filter(|gateway| pool.segment_of(*gateway).is_none()) {
            return Err(pool.not_ours("gateway", lost));
        }
        for text in &spec.dns {
            pool.dns.push(address("dns", text)?);
        }
        pool.reserve(&spec.reservations)?;
        if let Some(text) = &spec.reuse_delay {
            pool.reuse_delay = duration(text).ok_or_else(|| SpecError::Malformed {
                field: "reuse-delay".to_owned(),
                value: text.clone(),
                expected: "a duration such as 90s, 10m or 1h30m",
            })?;
        }
        Ok(pool)
    }

    fn reserve(&mut self, reservations: &BTreeMap<String, String>) -> Result<(), SpecError> {
        for (node, text) in reservations {
            let address = address("reservations", text)?;
            match self.place(address) {
                Place::Allocatable(_) => {}
                Place::Outside => return Err(self.not_ours("reservations", address)),
                other => {
                    return Err(SpecError::Unreservable {
                        node: node.clone(),
                        address,
                        place: other.word(),
                    });
                }
            }
            if let Some(first) = self.reservations.insert(address, node.clone()) {
                return Err(SpecError::ReservedTwice {
                    address,
                    a: first,
                    b: node.clone(),
                });
            }
        }
        Ok(())
    }

    fn not_ours(&self, field: &str, address: Address) -> SpecError {
        SpecError::Outside {
            field: field.to_owned(),
            value: address.to_string(),
            expected: self.prefix(),
        }
    }

    pub const fn family(&self) -> Family {
        self.prefix.family()
    }

    /// The network of the first range.
    pub const fn prefix(&self) -> Prefix {
        self.prefix
    }

    /// The spaces that addresses are allocated from, in the order of their offsets. First fit in this order is first fit by offset.
    pub fn spaces(&self) -> impl Iterator<Item = &Space> {
        self.segments.iter().map(|segment| &segment.space)
    }

    /// The first and last address of each range, in the order of their offsets.
    pub fn ranges(&self) -> impl Iterator<Item = Block> {
        self.segments.iter().map(|segment| segment.bounds)
    }

    /// How many addresses can be allocated.
    pub fn total(&self) -> u128 {
        let counts = self.spaces().map(Space::count);
        counts.fold(0, u128::saturating_add)
    }

    /// How many offsets there are: allocatable and excluded ones.
    pub fn offsets(&self) -> u128 {
        let last = self.segments.last();
        last.map_or(0, |last| last.base.saturating_add(last.offsets))
    }

    pub fn place(&self, address: Address) -> Place {
        let Some(segment) = self.segment_of_bounds(address) else {
            return Place::Outside;
        };
        let Some(offset) = segment.space.offset(address) else {
            return Place::Skipped;
        };
        let offset = Offset(offset.0.saturating_add(segment.base));
        if segment.space.contains(address) {
            Place::Allocatable(offset)
        } else if segment.gateway == Some(address) {
            Place::Gateway(offset)
        } else {
            Place::Excluded(offset)
        }
    }

    pub fn offset(&self, address: Address) -> Option<Offset> {
        self.place(address).offset()
    }

    /// The inverse of [`PoolSpace::offset`].
    pub fn address(&self, offset: Offset) -> Option<Address> {
        let after = self
            .segments
            .partition_point(|segment| segment.base <= offset.0);
        let segment = self.segments.get(after.checked_sub(1)?)?;
        let within = offset.0.checked_sub(segment.base)?;
        (within < segment.offsets).then_some(())?;
        let address = segment.space.address(Offset(within))?;
        segment.bounds.contains(address).then_some(address)
    }

    /// The prefix length that goes with an address of the pool.
    pub fn prefix_length(&self, address: Address) -> Option<u8> {
        let segment = self.segment_of_bounds(address)?;
        Some(segment.prefix.length())
    }

    /// The gateway that goes with an address of the pool.
    pub fn gateway(&self, address: Address) -> Option<Address> {
        self.segment_of_bounds(address)?.gateway
    }

    pub fn dns(&self) -> &[Address] {
        &self.dns
    }

    /// The node that alone may have an address.
    pub fn reserved_for(&self, address: Address) -> Option<&str> {
        self.reservations.get(&address).map(String::as_str)
    }

    /// The addresses that are reserved for a node each.
    pub fn reserved(&self) -> impl Iterator<Item = Address> {
        self.reservations.keys().copied()
    }

    /// The address that is reserved for a node.
    pub fn reservation_of(&self, node: &str) -> Option<Address> {
        let mut all = self.reservations.iter();
        all.find(|(_, of)| *of == node).map(|(address, _)| *address)
    }

    pub const fn reuse_delay(&self) -> Duration {
        self.reuse_delay
    }

    /// The first block that both pools have.
    pub fn overlap(&self, other: &PoolSpace) -> Option<Block> {
        let pairs = self
            .segments
            .iter()
            .flat_map(|a| other.segments.iter().map(move |b| (a.bounds, b.bounds)));
        pairs.filter_map(|(a, b)| common(a, b)).next()
    }

    /// What was read otherwise than it was written, for people: host bits in a CIDR.
    pub fn warnings(&self) -> impl Iterator<Item = String> {
        self.segments.iter().filter_map(|segment| {
            let written = segment.masked.as_ref()?;
            Some(format!(
                "spec.{}.cidr: {written} has host bits and is read as {}",
                segment.field, segment.prefix
            ))
        })
    }

    fn segment_of_bounds(&self, address: Address) -> Option<&Segment> {
        let mut all = self.segments.iter();
        all.find(|segment| segment.bounds.contains(address))
    }

    fn segment_of(&self, address: Address) -> Option<&Segment> {
        let mut all = self.segments.iter();
        all.find(|segment| segment.prefix.contains(address))
    }
}

/// The network of the first range, and all ranges with their offsets.
fn segments(
    spec: &NodeIPPoolSpec,
    gateway: Option<Address>,
) -> Result<(Prefix, Vec<Segment>), SpecError> {
    let first = Segment::read("range".to_owned(), &spec.range, gateway)?;
    let prefix = first.prefix;
    let mut next = first.offsets;
    let mut segments = vec![first];
    for (index, range) in spec.ranges.iter().enumerate() {
        let mut segment = Segment::read(format!("ranges[{index}]"), range, gateway)?;
        if segment.prefix.family() != prefix.family() {
            return Err(SpecError::Family {
                field: format!("{}.cidr", segment.field),
                value: segment.prefix.to_string(),
                found: segment.prefix.family(),
                expected: prefix.family(),
            });
        }
        let clash = segments
            .iter()
            .find_map(|other| Some((other, common(other.bounds, segment.bounds)?)));
        if let Some((other, block)) = clash {
            return Err(SpecError::Overlap {
                field: segment.field,
                other: other.field.clone(),
                block,
            });
        }
        segment.base = next;
        next = next.saturating_add(segment.offsets);
        segments.push(segment);
    }
    Ok((prefix, segments))
}

fn common(a: Block, b: Block) -> Option<Block> {
    let first = a.first().max(b.first());
    let last = a.last().min(b.last());
    (first <= last && a.family() == b.family()).then(|| Block::new(first, last))
}

/// `1h30m`, as Go writes durations, of whole numbers.
fn duration(text: &str) -> Option<Duration> {
    let mut left = text;
    let mut sum = Duration::ZERO;
    (!left.is_empty() && text.len() <= 32).then_some(())?;
    while !left.is_empty() {
        let digits = left.find(|c: char| !c.is_ascii_digit())?;
        let number: u64 = left.get(..digits)?.parse().ok()?;
        left = left.get(digits..)?;
        let units = [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000)];
        let (unit, millis) = units.iter().find(|(unit, _)| left.starts_with(unit))?;
        sum = sum.checked_add(Duration::from_millis(number.checked_mul(*millis)?))?;
        left = left.get(unit.len()..)?;
    }
    Some(sum)
}

#[cfg(test)]
mod tests;
