//! A CIDR with its host bits masked.
//!
//! Not from a crate: every rule here is arithmetic on one number type for both families, and the existing crates have a
//! type for each.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::range::RangeError;
use crate::{Address, Block, Family};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    network: Address,
    length: u8,
}

impl Prefix {
    /// The prefix of that length that contains `address`; `None` if the family has fewer bits.
    pub fn containing(address: Address, length: u8) -> Option<Self> {
        let host_bits = address.family().bits().checked_sub(length)?;
        // A shift by the whole width is undefined for integers, so /0 is handled separately.
        let bits = address.bits().checked_shr(host_bits.into()).unwrap_or(0);
        let bits = bits.checked_shl(host_bits.into()).unwrap_or(0);
        Some(Self {
            network: Address::new(address.family(), bits)?,
            length,
        })
    }

    /// Parses `address/length`; host bits are masked, leading zeros are accepted.
    pub fn parse_lenient(field: &'static str, text: &str) -> Result<Self, RangeError> {
        let malformed =
            || RangeError::malformed(field, text, "a CIDR such as 10.0.0.0/24 or fd00::/64");
        let (address, length) = text.trim().split_once('/').ok_or_else(malformed)?;
        let address = Address::parse_lenient(address).ok_or_else(malformed)?;
        let digits = length.bytes().all(|b| b.is_ascii_digit());
        let length: u8 = if digits { length.parse().ok() } else { None }.ok_or_else(malformed)?;
        Self::containing(address, length).ok_or_else(malformed)
    }

    pub const fn network(self) -> Address {
        self.network
    }

    pub const fn length(self) -> u8 {
        self.length
    }

    pub const fn family(self) -> Family {
        self.network.family()
    }

    pub const fn host_bits(self) -> u8 {
        self.network.family().bits() - self.length
    }

    /// The broadcast address in IPv4, the highest one in IPv6.
    pub fn last(self) -> Address {
        let host = match self.host_bits() {
            128 => u128::MAX,
            bits => (1u128 << bits) - 1,
        };
        self.network.plus(host).unwrap_or(self.network)
    }

    /// Its index among all prefixes of its length.
    pub fn ordinal(self) -> u128 {
        let bits = self.network.bits();
        bits.checked_shr(self.host_bits().into())
            .unwrap_or_default()
    }

    pub fn block(self) -> Block {
        Block::new(self.network, self.last())
    }

    pub fn contains(self, address: Address) -> bool {
        self.block().contains(address)
    }

    pub fn covers(self, other: Self) -> bool {
        self.length <= other.length && self.contains(other.network)
    }

    pub fn overlaps(self, other: Self) -> bool {
        self.covers(other) || other.covers(self)
    }
}

impl FromStr for Prefix {
    type Err = RangeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse_lenient("range", text)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.length)
    }
}

impl fmt::Debug for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Prefix {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Prefix {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_bits_are_masked() {
        let text = |t: &str| t.parse::<Prefix>().unwrap().to_string();
        assert_eq!(text("192.168.1.44/28"), "192.168.1.32/28");
        assert_eq!(text("abcd::1/64"), "abcd::/64");
        assert_eq!(text("1.2.3.4/0"), "0.0.0.0/0");
        assert_eq!(text("ffff::/0"), "::/0");
        assert_eq!("::/0".parse::<Prefix>().unwrap().last().bits(), u128::MAX);
    }

    #[test]
    fn a_malformed_prefix_is_named() {
        for bad in [
            "",
            "10.0.0.0",
            "10.0.0.0/33",
            "10.0.0.0/-1",
            "10.0.0/8",
            "fd00::/129",
            "/24",
            "10.0.0.0/+8",
        ] {
            let error = bad.parse::<Prefix>().unwrap_err().to_string();
            assert!(error.contains("range") && error.contains(bad), "{error}");
        }
    }
}
