//! The addresses that may be allocated for one request.
//!
//! Guarantees: stores blocks, never addresses, so a /32 of IPv6 costs as much as a /30 of IPv4. Every query (contains,
//! next, n-th, offset) takes the logarithm of the number of blocks. Knows nothing about what is allocated.

pub(crate) mod form;
mod join;

use crate::dialect::{Bounds, Dialect, Numbering, Tiny, VM_LIST};
use crate::offset::{bits_without_octet_ends, ordinal_without_octet_ends};
use crate::{Address, Block, Family, Offset, Prefix, RangeError, RangeSpec, Warning};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Space {
    dialect: Dialect,
    /// Ascending and disjoint.
    blocks: Vec<Block>,
    /// The same blocks in the order in which they were listed.
    listing: Vec<Block>,
    /// None for a list.
    prefix: Option<Prefix>,
    /// Where offsets count from under [`Numbering::FromStart`].
    start: Option<Address>,
    /// Whether addresses that end in .0 or .255 are skipped.
    octet_ends_withheld: bool,
}

impl Space {
    /// Applies a dialect's rules to a range.
    pub fn build(spec: &RangeSpec, dialect: Dialect) -> Result<(Self, Vec<Warning>), RangeError> {
        let prefix = spec.prefix;
        let mut warnings = Vec::new();
        let octet_ends_withheld = prefix.family() == Family::V4
            && dialect
                .withheld
                .octet_ends_up_to
                .is_some_and(|longest| prefix.length() <= longest);
        let usable = usable(prefix, dialect)?;
        let mut bound = |field, value: Option<Address>, otherwise: Address| match value {
            None => Ok(otherwise),
            Some(address) if usable.contains(address) => Ok(address),
            Some(address)
                if address.family() != prefix.family() && dialect.bounds == Bounds::Refuse =>
            {
                Err(RangeError::Family {
                    field,
                    value: address.to_string(),
                    expected: prefix.family(),
                    of: prefix,
                })
            }
            Some(address) => match dialect.bounds {
                Bounds::Refuse => Err(RangeError::BoundOutside {
                    field,
                    value: address,
                    prefix,
                    usable,
                }),
                Bounds::Ignore => {
                    warnings.push(Warning {
                        field,
                        value: address.to_string(),
                        why: format!("not a usable address of {prefix} ({usable})"),
                    });
                    Ok(otherwise)
                }
            },
        };
        let start = bound("range_start", spec.start, usable.first())?;
        let mut end = bound("range_end", spec.end, usable.last())?;
        if end < start {
            if dialect.bounds == Bounds::Refuse {
                return Err(RangeError::Reversed {
                    field: "range_end",
                    first: start,
                    last: end,
                });
            }
            warnings.push(Warning {
                field: "range_end",
                value: end.to_string(),
                why: format!("below the start {start}"),
            });
            end = usable.last();
        }
        if !dialect.excludes_may_overlap {
            refuse_overlap(&spec.exclude)?;
        }
        let mut exclude = spec.exclude.clone();
        if dialect.withheld.gateway {
            exclude.extend(spec.gateway.map(Block::single));
        }
        let blocks = subtract(Block::new(start, end), exclude);
        if blocks.is_empty() && dialect.bounds == Bounds::Refuse {
            return Err(RangeError::Nothing {
                prefix,
                excluded: spec.exclude.len(),
            });
        }
        let space = Self {
            dialect,
            listing: blocks.clone(),
            blocks,
            prefix: Some(prefix),
            start: Some(start),
            octet_ends_withheld,
        };
        Ok((space, warnings))
    }

    /// A list of addresses and blocks, in its own order; duplicates count once.
    pub fn list(entries: impl IntoIterator<Item = Block>) -> Self {
        let mut blocks: Vec<Block> = Vec::new();
        let mut listing = Vec::new();
        for entry in entries {
            let fresh = subtract(entry, blocks.clone());
            listing.extend(fresh.iter().copied());
            blocks.extend(fresh);
            blocks.sort_unstable();
        }
        Self {
            dialect: VM_LIST,
            blocks,
            listing,
            prefix: None,
            start: None,
            octet_ends_withheld: false,
        }
    }

    /// One address, in any range: a static request.
    pub fn only(address: Address) -> Self {
        Self::list([Block::single(address)])
    }

    /// This space limited to `within`: the part of a range that a slice covers.
    #[must_use]
    pub fn clipped(&self, within: Prefix) -> Self {
        self.clipped_to(&[within])
    }

    /// This space limited to all of `within`, which are disjoint: what the slices of one node cover.
    #[must_use]
    pub fn clipped_to(&self, within: &[Prefix]) -> Self {
        let clip = |blocks: &[Block]| -> Vec<Block> {
            let parts = blocks.iter().flat_map(|block| {
                within.iter().filter_map(move |part| {
                    let part = part.block();
                    let first = block.first().max(part.first());
                    let last = block.last().min(part.last());
                    (first <= last).then(|| Block::new(first, last))
                })
            });
            let mut parts: Vec<Block> = parts.collect();
            parts.sort_unstable();
            parts
        };
        Self {
            blocks: clip(&self.blocks),
            listing: clip(&self.listing),
            ..self.clone()
        }
    }

    /// Each block of the listing as a separate space, in the listing's order.
    pub(crate) fn listed(&self) -> impl Iterator<Item = Self> {
        self.listing.iter().map(|block| Self {
            blocks: vec![*block],
            listing: vec![*block],
            ..self.emptied()
        })
    }

    /// A one-block space cut at `holes`, ascending.
    pub(crate) fn without(self, holes: Vec<Block>) -> Vec<Self> {
        let template = self.emptied();
        let blocks = self
            .blocks
            .into_iter()
            .flat_map(|block| subtract(block, holes.clone()));
        blocks
            .map(|block| Self {
                blocks: vec![block],
                listing: vec![block],
                ..template.clone()
            })
            .collect()
    }

    fn emptied(&self) -> Self {
        Self {
            dialect: self.dialect,
            blocks: Vec::new(),
            listing: Vec::new(),
            prefix: self.prefix,
            start: self.start,
            octet_ends_withheld: self.octet_ends_withheld,
        }
    }

    pub const fn prefix(&self) -> Option<Prefix> {
        self.prefix
    }

    pub const fn dialect(&self) -> Dialect {
        self.dialect
    }

    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    pub fn is_empty(&self) -> bool {
        self.first().is_none()
    }

    pub fn contains(&self, address: Address) -> bool {
        !self.skipped(address)
            && self
                .block_at_or_after(address)
                .is_some_and(|b| b.contains(address))
    }

    pub fn first(&self) -> Option<Address> {
        self.at_or_after(self.blocks.first()?.first())
    }

    /// The lowest address of the space that is not below `from`.
    pub fn at_or_after(&self, from: Address) -> Option<Address> {
        let mut candidate = from;
        loop {
            let block = self.block_at_or_after(candidate)?;
            candidate = candidate.max(block.first());
            if !self.skipped(candidate) {
                return Some(candidate);
            }
            candidate = candidate.next()?;
        }
    }

    /// How many addresses can be allocated, saturating.
    pub fn count(&self) -> u128 {
        self.blocks
            .iter()
            .fold(0, |sum, block| sum.saturating_add(self.size(*block)))
    }

    /// The n-th address in the order of the listing.
    pub fn nth(&self, n: u128) -> Option<Address> {
        let mut left = n;
        for block in &self.listing {
            let size = self.size(*block);
            if left < size {
                return if self.octet_ends_withheld {
                    let first = ordinal_without_octet_ends(block.first());
                    Address::new(Family::V4, bits_without_octet_ends(first + left))
                } else {
                    block.first().plus(left)
                };
            }
            left -= size;
        }
        None
    }

    /// The address's offset, for stores that keep offsets. Excluded addresses have one too.
    pub fn offset(&self, address: Address) -> Option<Offset> {
        let prefix = self.prefix?;
        if !prefix.contains(address) {
            return None;
        }
        let distance = match (self.dialect.numbering, self.start) {
            (Numbering::FromStart, Some(start)) if self.octet_ends_withheld => {
                if self.skipped(address) {
                    return None;
                }
                ordinal_without_octet_ends(address)
                    .checked_sub(ordinal_without_octet_ends(start))?
            }
            (Numbering::FromStart, Some(start)) => address.distance_from(start)?,
            _ => address.distance_from(prefix.network())?,
        };
        Some(Offset(distance))
    }

    /// The inverse of [`Space::offset`].
    pub fn address(&self, offset: Offset) -> Option<Address> {
        let prefix = self.prefix?;
        let address = match (self.dialect.numbering, self.start) {
            (Numbering::FromStart, Some(start)) if self.octet_ends_withheld => {
                let ordinal = ordinal_without_octet_ends(start).checked_add(offset.0)?;
                Address::new(Family::V4, bits_without_octet_ends(ordinal))?
            }
            (Numbering::FromStart, Some(start)) => start.plus(offset.0)?,
            _ => prefix.network().plus(offset.0)?,
        };
        prefix.contains(address).then_some(address)
    }

    fn skipped(&self, address: Address) -> bool {
        self.octet_ends_withheld && matches!(address.last_octet(), 0 | 255)
    }

    fn size(&self, block: Block) -> u128 {
        if !self.octet_ends_withheld {
            return block.count();
        }
        let whole =
            ordinal_without_octet_ends(block.last()) - ordinal_without_octet_ends(block.first());
        whole + u128::from(!self.skipped(block.last()))
    }

    fn block_at_or_after(&self, address: Address) -> Option<Block> {
        let index = self.blocks.partition_point(|block| block.last() < address);
        self.blocks.get(index).copied()
    }
}

/// What the dialect leaves of a prefix before bounds and excludes.
fn usable(prefix: Prefix, dialect: Dialect) -> Result<Block, RangeError> {
    if prefix.host_bits() < 2 {
        return match dialect.tiny {
            Tiny::Whole => Ok(prefix.block()),
            Tiny::Refuse => Err(RangeError::TooSmall {
                prefix,
                hint: "use a shorter prefix, or switch on networks without network and broadcast address",
            }),
        };
    }
    let last_withheld = match prefix.family() {
        Family::V4 => dialect.withheld.last_v4,
        Family::V6 => dialect.withheld.last_v6,
    };
    let whole = prefix.block();
    let first = if dialect.withheld.network {
        whole.first().next()
    } else {
        None
    };
    let last = if last_withheld {
        whole.last().previous()
    } else {
        None
    };
    Ok(Block::new(
        first.unwrap_or(whole.first()),
        last.unwrap_or(whole.last()),
    ))
}

fn refuse_overlap(exclude: &[Block]) -> Result<(), RangeError> {
    let mut sorted = exclude.to_vec();
    sorted.sort_unstable();
    match sorted
        .windows(2)
        .find(|pair| pair[1].first() <= pair[0].last())
    {
        Some(pair) => Err(RangeError::ExcludesOverlap {
            a: pair[0],
            b: pair[1],
        }),
        None => Ok(()),
    }
}

/// `from` without `holes`, ascending.
fn subtract(from: Block, mut holes: Vec<Block>) -> Vec<Block> {
    holes.sort_unstable();
    let mut left = Vec::with_capacity(holes.len() + 1);
    let mut next = Some(from.first());
    for hole in holes {
        let Some(begin) = next else { break };
        if hole.last() < begin {
            continue;
        }
        if hole.first() > from.last() {
            break;
        }
        if let Some(before) = hole.first().previous().filter(|before| *before >= begin) {
            left.push(Block::new(begin, before));
        }
        next = hole.last().next();
    }
    left.extend(
        next.filter(|begin| *begin <= from.last())
            .map(|begin| Block::new(begin, from.last())),
    );
    left
}

#[cfg(test)]
mod tests;
