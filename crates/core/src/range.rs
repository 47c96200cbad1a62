//! Ranges as people write them.
//!
//! Guarantees: every text form of the fronts becomes the same [`RangeSpec`]; a parse error names the field, the value
//! and what would be right. The dialect, not this parser, decides whether a bound that makes no sense is refused or
//! ignored with a warning.

use std::fmt;

use thiserror::Error;

use crate::{Address, Family, Prefix};

/// Addresses from `first` to `last`, both included, of one family.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Block {
    first: Address,
    last: Address,
}

impl Block {
    /// The two ends in either order.
    pub fn new(a: Address, b: Address) -> Self {
        Self {
            first: a.min(b),
            last: a.max(b),
        }
    }

    pub fn single(address: Address) -> Self {
        Self {
            first: address,
            last: address,
        }
    }

    pub const fn first(self) -> Address {
        self.first
    }

    pub const fn last(self) -> Address {
        self.last
    }

    pub const fn family(self) -> Family {
        self.first.family()
    }

    pub fn contains(self, address: Address) -> bool {
        self.first <= address && address <= self.last
    }

    /// How many addresses it has; saturates at `u128::MAX` for the whole of IPv6.
    pub fn count(self) -> u128 {
        (self.last.bits() - self.first.bits()).saturating_add(1)
    }

    /// Parses `a`, `a-b` or `a/len`: the forms of exclude lists and VM lists.
    pub fn parse(field: &'static str, text: &str) -> Result<Self, RangeError> {
        const RIGHT: &str =
            "an address, a CIDR or first-last, such as 10.0.0.4, 10.0.0.0/28 or 10.0.0.4-10.0.0.9";
        let text = text.trim();
        if text.contains('/') {
            return match Prefix::parse_lenient(field, text) {
                Ok(prefix) => Ok(prefix.block()),
                Err(_) => Err(RangeError::malformed(field, text, RIGHT)),
            };
        }
        let address = |part: &str| {
            Address::parse_lenient(part).ok_or_else(|| RangeError::malformed(field, text, RIGHT))
        };
        match text.split_once('-') {
            None => Ok(Self::single(address(text)?)),
            Some((first, last)) => {
                let (first, last) = (address(first)?, address(last)?);
                if first.family() != last.family() {
                    return Err(RangeError::mixed(field, first, last));
                }
                if first > last {
                    return Err(RangeError::Reversed { field, first, last });
                }
                Ok(Self { first, last })
            }
        }
    }
}

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            write!(f, "{}", self.first)
        } else {
            write!(f, "{}-{}", self.first, self.last)
        }
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A range before a dialect is applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeSpec {
    pub prefix: Prefix,
    pub start: Option<Address>,
    pub end: Option<Address>,
    pub exclude: Vec<Block>,
    pub gateway: Option<Address>,
}

impl RangeSpec {
    pub fn of(prefix: Prefix) -> Self {
        Self {
            prefix,
            start: None,
            end: None,
            exclude: Vec::new(),
            gateway: None,
        }
    }

    /// Parses `10.0.0.0/24` or `10.0.0.5-10.0.0.9/24`. In the second form the CIDR belongs to the end, and the start
    /// must lie in it.
    pub fn parse(text: &str) -> Result<Self, RangeError> {
        let Some((first, rest)) = text.split_once('-') else {
            return Ok(Self::of(Prefix::parse_lenient("range", text)?));
        };
        let malformed = || {
            RangeError::malformed(
                "range",
                text,
                "first-last/length, such as 10.0.0.5-10.0.0.9/24",
            )
        };
        let start = Address::parse_lenient(first).ok_or_else(malformed)?;
        let prefix = Prefix::parse_lenient("range", rest).map_err(|_| malformed())?;
        let end = rest
            .split('/')
            .next()
            .and_then(Address::parse_lenient)
            .ok_or_else(malformed)?;
        if !prefix.contains(start) {
            return Err(RangeError::StartOutside { prefix, start });
        }
        Ok(Self {
            start: Some(start),
            end: Some(end),
            ..Self::of(prefix)
        })
    }

    /// Adds entries of an exclude list. An entry of the other family excludes nothing and is refused as a typing error.
    pub fn excluding<S: AsRef<str>>(
        mut self,
        entries: impl IntoIterator<Item = S>,
    ) -> Result<Self, RangeError> {
        for entry in entries {
            let block = Block::parse("exclude", entry.as_ref())?;
            if block.family() != self.prefix.family() {
                return Err(RangeError::Family {
                    field: "exclude",
                    value: entry.as_ref().to_owned(),
                    expected: self.prefix.family(),
                    of: self.prefix,
                });
            }
            self.exclude.push(block);
        }
        Ok(self)
    }
}

/// A range that can't be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RangeError {
    #[error("{field}: `{value}` can't be read; expected {expected}")]
    Malformed {
        field: &'static str,
        value: String,
        expected: &'static str,
    },
    #[error("{field}: start {first} is above end {last}; swap them")]
    Reversed {
        field: &'static str,
        first: Address,
        last: Address,
    },
    #[error("{field}: {first} and {last} are of different families; use two {family} addresses", family = .first.family())]
    Mixed {
        field: &'static str,
        first: Address,
        last: Address,
    },
    #[error("{field}: `{value}` is not {expected}, but the range {of} is")]
    Family {
        field: &'static str,
        value: String,
        expected: Family,
        of: Prefix,
    },
    #[error("invalid range start for CIDR {prefix}: {start}")]
    StartOutside { prefix: Prefix, start: Address },
    #[error("{field}: {value} is not a usable address of {prefix}; use one from {usable}")]
    BoundOutside {
        field: &'static str,
        value: Address,
        prefix: Prefix,
        usable: Block,
    },
    #[error("exclude: {a} and {b} overlap; name each address once")]
    ExcludesOverlap { a: Block, b: Block },
    #[error("range: {prefix} leaves no address to allocate: net mask is too short; {hint}")]
    TooSmall { prefix: Prefix, hint: &'static str },
    #[error("range: {prefix} with {excluded} excluded blocks leaves no address to allocate")]
    Nothing { prefix: Prefix, excluded: usize },
}

impl RangeError {
    pub(crate) fn malformed(field: &'static str, value: &str, expected: &'static str) -> Self {
        Self::Malformed {
            field,
            value: value.to_owned(),
            expected,
        }
    }

    fn mixed(field: &'static str, first: Address, last: Address) -> Self {
        Self::Mixed { field, first, last }
    }
}

/// Something that a lenient dialect ignored. A front logs it, so that an old typing error becomes visible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    pub field: &'static str,
    pub value: String,
    pub why: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: `{}` is ignored: {}",
            self.field, self.value, self.why
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dash_range_takes_its_cidr_from_the_end() {
        let spec = RangeSpec::parse("192.168.1.11-192.168.1.23/24").unwrap();
        assert_eq!(spec.prefix.to_string(), "192.168.1.0/24");
        assert_eq!(spec.start.unwrap().to_string(), "192.168.1.11");
        assert_eq!(spec.end.unwrap().to_string(), "192.168.1.23");
    }

    #[test]
    fn a_start_outside_the_cidr_is_refused_in_the_words_users_know() {
        let error = RangeSpec::parse("192.168.1.5-192.168.2.25/28").unwrap_err();
        assert_eq!(
            error.to_string(),
            "invalid range start for CIDR 192.168.2.16/28: 192.168.1.5"
        );
    }

    #[test]
    fn every_malformed_range_names_field_and_value() {
        for bad in [
            "",
            "x",
            "10.0.0.0",
            "10.0.0.1-",
            "-10.0.0.1/24",
            "10.0.0.1-10.0.0.9",
            "10.0.0.0/24/24",
        ] {
            let error = RangeSpec::parse(bad).unwrap_err().to_string();
            assert!(error.starts_with("range: "), "{bad}: {error}");
        }
        let spec = RangeSpec::parse("10.0.0.0/24").unwrap();
        for bad in [
            "192.168.0.1/123",
            "nonsense",
            "10.0.0.9-10.0.0.1",
            "10.0.0.1-fd00::1",
            "fd00::/64",
        ] {
            let error = spec.clone().excluding([bad]).unwrap_err().to_string();
            assert!(error.starts_with("exclude: "), "{bad}: {error}");
        }
    }
}
