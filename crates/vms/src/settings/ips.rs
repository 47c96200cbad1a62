//! `VM_POOL_IPS`: which VMs a pool has.
//!
//! Guarantees: the order is kept, duplicates count once, and every invalid entry is refused by name, with its place
//! in the list. Does not check whether a VM exists.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use thiserror::Error;

/// An invalid entry of a list of addresses.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum IpsError {
    #[error("pool IPs cannot be empty")]
    Empty,
    #[error("entry {place} {entry:?}: invalid IP address {part:?}{hint}")]
    Invalid {
        place: usize,
        entry: String,
        part: String,
        hint: &'static str,
    },
    #[error("entry {place} {entry:?}: a VM can't have the address {address}")]
    NoHost {
        place: usize,
        entry: String,
        address: IpAddr,
    },
    #[error("entry {place} {entry:?}: one end is IPv4 and the other IPv6")]
    Families { place: usize, entry: String },
    #[error("entry {place} {entry:?}: the end is below the start")]
    Reversed { place: usize, entry: String },
    #[error(
        "entry {place} {entry:?}: {count} addresses, a range has at most {max} (max-range-ips)"
    )]
    TooLarge {
        place: usize,
        entry: String,
        count: u128,
        max: u32,
    },
}

/// Reads a comma-separated list of addresses and inclusive ranges `a-b`. Blanks are skipped.
pub fn parse_ips(text: &str, max_range: u32) -> Result<Vec<IpAddr>, IpsError> {
    let mut ips = Vec::new();
    let mut seen = HashSet::new();
    for (index, entry) in text.split(',').enumerate() {
        let entry = entry.trim();
        if entry.is_empty() {
            continue;
        }
        let place = index + 1;
        match entry.split_once('-') {
            None => {
                let ip = address(place, entry, entry)?;
                if seen.insert(ip) {
                    ips.push(ip);
                }
            }
            Some((first, last)) => {
                let first = address(place, entry, first)?;
                let last = address(place, entry, last)?;
                let fresh = range(place, entry, first, last, max_range)?;
                ips.extend(fresh.filter(|ip| seen.insert(*ip)));
            }
        }
    }
    if ips.is_empty() {
        return Err(IpsError::Empty);
    }
    Ok(ips)
}

fn address(place: usize, entry: &str, part: &str) -> Result<IpAddr, IpsError> {
    let part = part.trim();
    let parsed: IpAddr = part.parse().map_err(|_| IpsError::Invalid {
        place,
        entry: entry.into(),
        part: part.into(),
        hint: if part.contains('/') {
            "; a range is written first-last"
        } else {
            ""
        },
    })?;
    // An IPv4 address mapped into IPv6 is the same VM.
    let ip = parsed.to_canonical();
    let broadcast = ip == IpAddr::V4(Ipv4Addr::BROADCAST);
    if ip.is_unspecified() || ip.is_multicast() || broadcast {
        return Err(IpsError::NoHost {
            place,
            entry: entry.into(),
            address: ip,
        });
    }
    Ok(ip)
}

fn range(
    place: usize,
    entry: &str,
    first: IpAddr,
    last: IpAddr,
    max: u32,
) -> Result<Box<dyn Iterator<Item = IpAddr>>, IpsError> {
    let (from, to): (u128, u128) = match (first, last) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits().into(), b.to_bits().into()),
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits(), b.to_bits()),
        _ => {
            return Err(IpsError::Families {
                place,
                entry: entry.into(),
            });
        }
    };
    let Some(distance) = to.checked_sub(from) else {
        return Err(IpsError::Reversed {
            place,
            entry: entry.into(),
        });
    };
    let count = distance.saturating_add(1);
    if count > max.into() {
        return Err(IpsError::TooLarge {
            place,
            entry: entry.into(),
            count,
            max,
        });
    }
    let is_v4 = first.is_ipv4();
    Ok(Box::new((from..=to).map(move |bits| {
        match u32::try_from(bits) {
            Ok(bits) if is_v4 => Ipv4Addr::from_bits(bits).into(),
            _ => Ipv6Addr::from_bits(bits).into(),
        }
    })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ips(text: &str) -> Vec<String> {
        let parsed = parse_ips(text, 100).unwrap_or_else(|error| panic!("{text:?}: {error}"));
        parsed.iter().map(IpAddr::to_string).collect()
    }

    #[test]
    fn lists_and_ranges_keep_their_order_and_lose_their_duplicates() {
        for (text, want) in [
            ("10.0.0.1", vec!["10.0.0.1"]),
            (" 10.0.0.9 ,, 10.0.0.1, ", vec!["10.0.0.9", "10.0.0.1"]),
            (
                "10.0.0.3-10.0.0.5,10.0.0.4,10.0.0.1",
                vec!["10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.1"],
            ),
            (
                "10.0.0.254 - 10.0.1.1",
                vec!["10.0.0.254", "10.0.0.255", "10.0.1.0", "10.0.1.1"],
            ),
            ("10.0.0.1-10.0.0.1", vec!["10.0.0.1"]),
            (
                "fd00::ffff-fd00::1:1",
                vec!["fd00::ffff", "fd00::1:0", "fd00::1:1"],
            ),
            ("fd00:0:0::1,FD00::1", vec!["fd00::1"]),
            ("::ffff:10.0.0.1,10.0.0.1", vec!["10.0.0.1"]),
        ] {
            assert_eq!(ips(text), want, "{text:?}");
        }
    }

    #[test]
    fn typos_are_refused_by_name() {
        for (text, want) in [
            ("", "pool IPs cannot be empty"),
            (" , ,", "pool IPs cannot be empty"),
            (
                "10.0.0.1,10.0.0.300",
                "entry 2 \"10.0.0.300\": invalid IP address \"10.0.0.300\"",
            ),
            ("10.0.0.1;10.0.0.2", "invalid IP address"),
            ("10.0.0.01", "invalid IP address"),
            (
                "10.0.0.1-",
                "entry 1 \"10.0.0.1-\": invalid IP address \"\"",
            ),
            ("-10.0.0.1", "invalid IP address \"\""),
            (
                "10.0.0.1-10.0.0.3-10.0.0.5",
                "invalid IP address \"10.0.0.3-10.0.0.5\"",
            ),
            ("10.0.0.0/30", "a range is written first-last"),
            ("10.0.0.9-10.0.0.1", "the end is below the start"),
            ("10.0.0.1-fd00::1", "one end is IPv4 and the other IPv6"),
            (
                "10.0.0.0-10.0.0.100",
                "101 addresses, a range has at most 100",
            ),
            ("::1-fdff::", "a range has at most 100"),
            ("0.0.0.0", "can't have the address 0.0.0.0"),
            ("255.255.255.255", "can't have"),
            ("224.0.0.1", "can't have"),
            ("ff02::1", "can't have"),
            ("localhost", "invalid IP address"),
        ] {
            let error = parse_ips(text, 100).expect_err(text).to_string();
            assert!(error.contains(want), "{text:?}: {error}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics_and_nothing_comes_twice(text in "[0-9a-f:., -]{0,60}") {
            if let Ok(ips) = parse_ips(&text, 50) {
                let unique: HashSet<_> = ips.iter().collect();
                prop_assert_eq!(unique.len(), ips.len());
            }
        }

        #[test]
        fn a_range_is_its_addresses_written_out(start in 0u32..0xDFFF_FF00, count in 1u32..100) {
            let start = start.max(1);
            let at = |n: u32| Ipv4Addr::from_bits(start + n).to_string();
            let range = format!("{}-{}", at(0), at(count - 1));
            let list: Vec<String> = (0..count).map(at).collect();
            prop_assert_eq!(parse_ips(&range, 100), parse_ips(&list.join(","), 100));
        }
    }
}
