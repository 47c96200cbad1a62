//! One IP address as a number of its family.
//!
//! Guarantees: IPv4 sorts before IPv6, addresses of one family sort as numbers, and stepping past either end of a
//! family returns `None` instead of wrapping around.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    pub const fn bits(self) -> u8 {
        match self {
            Self::V4 => 32,
            Self::V6 => 128,
        }
    }

    /// The highest number of the family.
    pub const fn max(self) -> u128 {
        match self {
            Self::V4 => u32::MAX as u128,
            Self::V6 => u128::MAX,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

/// An address. The family is part of the identity: `::a00:1` and `10.0.0.1` are two addresses.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    family: Family,
    bits: u128,
}

impl Address {
    /// `None` when the number is past the end of the family.
    pub const fn new(family: Family, bits: u128) -> Option<Self> {
        if bits > family.max() {
            None
        } else {
            Some(Self { family, bits })
        }
    }

    pub const fn family(self) -> Family {
        self.family
    }

    pub const fn bits(self) -> u128 {
        self.bits
    }

    pub fn next(self) -> Option<Self> {
        self.plus(1)
    }

    pub fn previous(self) -> Option<Self> {
        let bits = self.bits.checked_sub(1)?;
        Some(Self { bits, ..self })
    }

    pub fn plus(self, distance: u128) -> Option<Self> {
        Self::new(self.family, self.bits.checked_add(distance)?)
    }

    /// How far `self` lies above `from`; `None` below it or in the other family.
    pub fn distance_from(self, from: Self) -> Option<u128> {
        (self.family == from.family).then_some(())?;
        self.bits.checked_sub(from.bits)
    }

    pub const fn last_octet(self) -> u8 {
        (self.bits & 0xff) as u8
    }

    /// Parses an address as people write it: leading zeros in IPv4 octets are decimal (`00192.168.001.1`), as CNI
    /// plugins have always parsed them, and an IPv4 address mapped into IPv6 (`::ffff:10.0.0.1`) is the IPv4 address.
    pub fn parse_lenient(text: &str) -> Option<Self> {
        let text = text.trim();
        if let Ok(ip) = text.parse::<IpAddr>() {
            return Some(ip.to_canonical().into());
        }
        let octets: Vec<&str> = text.split('.').collect();
        if octets.len() != 4 {
            return Self::parse_padded_v6(text);
        }
        let mut bits = 0u128;
        for octet in octets {
            let digits = octet.trim_start_matches('0');
            if octet.is_empty() || !octet.bytes().all(|b| b.is_ascii_digit()) || digits.len() > 3 {
                return None;
            }
            let value: u128 = if digits.is_empty() {
                0
            } else {
                digits.parse().ok()?
            };
            if value > 255 {
                return None;
            }
            bits = bits << 8 | value;
        }
        Self::new(Family::V4, bits)
    }

    /// IPv6 groups with more than four digits, all extra ones leading zeros (`00fd::1`).
    fn parse_padded_v6(text: &str) -> Option<Self> {
        if !text.contains(':') {
            return None;
        }
        let groups: Vec<String> = text
            .split(':')
            .map(|group| match group.trim_start_matches('0') {
                "" if group.is_empty() => String::new(),
                "" => "0".to_owned(),
                digits => digits.to_owned(),
            })
            .collect();
        let ip: Ipv6Addr = groups.join(":").parse().ok()?;
        Some(IpAddr::V6(ip).to_canonical().into())
    }
}

impl From<IpAddr> for Address {
    fn from(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(v4) => Self {
                family: Family::V4,
                bits: u128::from(u32::from(v4)),
            },
            IpAddr::V6(v6) => Self {
                family: Family::V6,
                bits: u128::from(v6),
            },
        }
    }
}

impl From<Address> for IpAddr {
    fn from(address: Address) -> Self {
        match address.family {
            Family::V4 => IpAddr::V4(Ipv4Addr::from(address.bits as u32)),
            Family::V6 => IpAddr::V6(Ipv6Addr::from(address.bits)),
        }
    }
}

impl FromStr for Address {
    type Err = std::net::AddrParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse::<IpAddr>().map(Self::from)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        IpAddr::from(*self).fmt(f)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Address {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Address {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(|_| {
            serde::de::Error::custom(format!("`{text}` is not an IPv4 or IPv6 address"))
        })
    }
}

/// Adjacency for interval sets. Saturates at the ends: an interval that touches the last address
/// has no neighbour above it.
impl rangemap::StepLite for Address {
    fn add_one(&self) -> Self {
        self.next().unwrap_or(*self)
    }

    fn sub_one(&self) -> Self {
        self.previous().unwrap_or(*self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leading_zeros_are_decimal() {
        let read = |text| Address::parse_lenient(text).map(|a| a.to_string());
        assert_eq!(read("00192.00168.1.044").as_deref(), Some("192.168.1.44"));
        assert_eq!(read("192.168.0.000").as_deref(), Some("192.168.0.0"));
        assert_eq!(
            read("2001:db8:480:603d:0304:0403:000:0000").as_deref(),
            Some("2001:db8:480:603d:304:403::")
        );
        assert_eq!(read("000fd::00001").as_deref(), Some("fd::1"));
        assert_eq!(read("::ffff:10.0.0.1").as_deref(), Some("10.0.0.1"));
        for bad in [
            "",
            "1.2.3",
            "1.2.3.256",
            "1.2.3.4.5",
            "a.b.c.d",
            "1..2.3",
            "::1::",
            "12345::",
        ] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_ends_of_a_family_do_not_wrap() {
        let last: Address = "255.255.255.255".parse().unwrap();
        assert_eq!(last.next(), None);
        assert_eq!(Address::new(Family::V4, 0).unwrap().previous(), None);
        let top = Address::new(Family::V6, u128::MAX).unwrap();
        assert_eq!(top.next(), None);
        assert_eq!(top.plus(u128::MAX), None);
    }
}
