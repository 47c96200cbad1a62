//! The names of pools, reservations and slices: exactly as live clusters have them.
//!
//! Kubernetes allows neither `:` nor `/` in a name, so both become `-`. An address whose text ends in `:` gets a `0`
//! before that, because a name can't end in `-`. What begins with `:` (`::1`) has no valid name in this scheme, here as
//! in whereabouts: the API server refuses it.

use berth_core::{Address, Prefix};

/// The pool of a range: `10.0.0.0-8`, of a named network `test-10.0.0.0-8`, of a node's slice
/// `[network-]node-10.0.0.0-10` (the range is the slice's). Empty names count as none.
pub fn pool(network: &str, node: &str, range: Prefix) -> String {
    join(&[network, node, &plain(&range.to_string())])
}

/// The range of the pool with this name, if the network is known and the pool belongs to no node.
pub fn range_of_pool(network: &str, name: &str) -> Option<Prefix> {
    let text = match network {
        "" => name,
        network => name.strip_prefix(network)?.strip_prefix('-')?,
    };
    let (address, length) = text.rsplit_once('-')?;
    let range: Prefix = format!("{}/{length}", address.replace('-', ":"))
        .parse()
        .ok()?;
    (pool(network, "", range) == name).then_some(range)
}

/// The reservation of one address across pools: `[network-]address`.
pub fn reservation(network: &str, address: Address) -> String {
    join(&[network, &plain(&address.to_string())])
}

/// Whether `name` is the reservation of `address`, in any network.
pub fn reserves(name: &str, address: Address) -> bool {
    let plain = reservation("", address);
    name.strip_suffix(&plain)
        .is_some_and(|network| network.is_empty() || network.ends_with('-'))
}

/// The network and the address that a reservation is named after. Known network names are tried first: the rest is
/// ambiguous.
pub fn reserved<'a>(
    name: &'a str,
    networks: impl IntoIterator<Item = &'a str>,
) -> Option<(&'a str, Address)> {
    let of_network = |network: &'a str| {
        let rest = name.strip_prefix(network)?.strip_prefix('-')?;
        Some((network, address_text(rest)?))
    };
    let known = networks.into_iter().filter(|network| !network.is_empty());
    let known = known.filter_map(of_network).next();
    known
        .or_else(|| Some(("", address_text(name)?)))
        .or_else(|| {
            let ends = name.match_indices('-').map(|(end, _)| end);
            ends.filter_map(|end| of_network(name.get(..end)?)).next()
        })
}

/// Whether the pool of that name may contain the entry of the reservation of that name, in any interpretation of both:
/// names with IPv6 addresses have several. A name without a range or an address proves nothing, so it may.
pub fn may_enter(pool: &str, reservation: &str) -> bool {
    let ranges: Vec<(&str, Prefix)> = readings(pool).filter_map(range_reading).collect();
    let addresses: Vec<(&str, Address)> = readings(reservation)
        .filter_map(|(network, text)| Some((network, address_text(text)?)))
        .collect();
    if ranges.is_empty() || addresses.is_empty() {
        return true;
    }
    // A node may be named between the network and the range.
    let in_network = |before: &str, network: &str| {
        let rest = before.strip_prefix(network);
        rest.is_some_and(|rest| network.is_empty() || rest.is_empty() || rest.starts_with('-'))
    };
    ranges.iter().any(|(before, range)| {
        addresses
            .iter()
            .any(|(network, address)| range.contains(*address) && in_network(before, network))
    })
}

/// The ways to split a name into its last part and what comes before.
fn readings(name: &str) -> impl Iterator<Item = (&str, &str)> {
    let parted = name
        .match_indices('-')
        .map(|(at, _)| (&name[..at], &name[at + 1..]));
    std::iter::once(("", name)).chain(parted)
}

fn range_reading<'a>((before, text): (&'a str, &str)) -> Option<(&'a str, Prefix)> {
    let (address, length) = text.rsplit_once('-')?;
    let range = format!("{}/{length}", address.replace('-', ":"));
    Some((before, range.parse().ok()?))
}

fn address_text(text: &str) -> Option<Address> {
    Address::parse_lenient(text).or_else(|| Address::parse_lenient(&text.replace('-', ":")))
}

/// The claim of a slice: `[network-]slice`. The node is not part of it: the first node that creates it owns the slice.
pub fn slice(network: &str, slice: Prefix) -> String {
    join(&[network, &plain(&slice.to_string())])
}

/// The NodeSlicePool of a network's first range: its `network_name`, else its CNI name. Each further range has its own,
/// with the range in its name; whereabouts does not know those.
pub fn slice_pool(network: &str, cni_name: &str, further: Option<Prefix>) -> String {
    let name = if network.is_empty() {
        cni_name
    } else {
        network
    };
    match further {
        None => name.to_owned(),
        Some(range) => join(&[name, &plain(&range.to_string())]),
    }
}

/// Whether a name can be used in the path of a URL unchanged: no object can have another name. An API server decodes
/// `%2F` before it splits a path, so nothing is escaped here; a name that would need it is refused.
pub fn is_path_segment(name: &str) -> bool {
    let plain =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b':');
    !matches!(name, "" | "." | "..") && name.len() <= 253 && name.bytes().all(plain)
}

/// The network names that the pools of a NodeSlicePool's slices may have, when no definition is left.
pub fn slice_networks(slice_pool: &str, range: Prefix) -> Vec<String> {
    let further = format!("-{}", plain(&range.to_string()));
    let first = slice_pool.strip_suffix(&further);
    let names = [Some(""), Some(slice_pool), first];
    names.into_iter().flatten().map(str::to_owned).collect()
}

fn join(parts: &[&str]) -> String {
    let named: Vec<&str> = parts
        .iter()
        .copied()
        .filter(|part| !part.is_empty())
        .collect();
    named.join("-")
}

fn plain(text: &str) -> String {
    let mut text = text.replace([':', '/'], "-");
    // Only a bare address can end like this: a CIDR ends in its length.
    if text.ends_with('-') {
        text.push('0');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_are_named_as_live_clusters_have_them() {
        for (network, node, range, name) in [
            ("", "", "10.0.0.0/8", "10.0.0.0-8"),
            ("test", "", "10.0.0.0/8", "test-10.0.0.0-8"),
            ("", "testnode", "10.0.0.0/8", "testnode-10.0.0.0-8"),
            (
                "testnetwork",
                "testnode",
                "10.0.0.0/8",
                "testnetwork-testnode-10.0.0.0-8",
            ),
            ("", "", "caa5::/64", "caa5---64"),
            ("", "", "2001:db8:480:603d::/64", "2001-db8-480-603d---64"),
        ] {
            assert_eq!(pool(network, node, range.parse().unwrap()), name);
        }
    }

    #[test]
    fn a_name_that_would_lead_elsewhere_is_no_path_segment() {
        for good in ["10.0.0.0-8", "blue-caa5---64", "system:node", "A_b"] {
            assert!(is_path_segment(good), "{good}");
        }
        let long = "a".repeat(254);
        for bad in [
            "", ".", "..", "a/b", "a%2Fb", "a?b", "a#b", "a b", "a\nb", "é", &long,
        ] {
            assert!(!is_path_segment(bad), "{bad:?}");
        }
    }

    #[test]
    fn a_pools_name_tells_its_range() {
        for network in ["", "blue", "blue-1"] {
            for range in ["10.0.0.0/8", "caa5::/64", "2001:db8:480:603d::/64"] {
                let range = range.parse().unwrap();
                let name = pool(network, "", range);
                assert_eq!(range_of_pool(network, &name), Some(range));
            }
        }
        for name in [
            "red-10.0.0.0-8",
            "blue10.0.0.0-8",
            "blue-node-10.0.0.0-8",
            "blue-10.0.0.0",
        ] {
            assert_eq!(range_of_pool("blue", name), None, "{name}");
        }
    }

    #[test]
    fn a_reservation_is_known_by_its_name() {
        let address = "10.0.0.1".parse().unwrap();
        assert!(reserves("10.0.0.1", address) && reserves("blue-10.0.0.1", address));
        assert!(!reserves("110.0.0.1", address) && !reserves("10.0.0.12", address));
    }

    #[test]
    fn a_reservations_name_tells_its_network_and_address() {
        for (name, known, network, address) in [
            ("10.0.0.1", "", "", "10.0.0.1"),
            ("blue-10.0.0.1", "", "blue", "10.0.0.1"),
            ("blue-1-10.0.0.1", "blue", "blue-1", "10.0.0.1"),
            ("fd00--1", "", "", "fd00::1"),
            ("fd00--0", "", "", "fd00::"),
            ("blue-fd00--1", "", "blue", "fd00::1"),
            ("a-fd00--1", "a", "a", "fd00::1"),
        ] {
            let found = reserved(name, [known]);
            assert_eq!(found, Some((network, address.parse().unwrap())), "{name}");
        }
        assert_eq!(reserved("no-address", ["no"]), None);
    }

    #[test]
    fn a_pool_may_enter_the_reservations_of_its_range_and_network() {
        for (pool, reservation) in [
            ("10.0.0.0-24", "10.0.0.7"),
            ("blue-10.0.0.0-24", "blue-10.0.0.7"),
            // `blue` may be a node, and `n1` certainly looks like one.
            ("blue-10.0.0.0-24", "10.0.0.7"),
            ("blue-n1-10.0.0.0-24", "blue-10.0.0.7"),
            ("fd00---64", "fd00--1"),
            ("blue-fd00---64", "blue-fd00--1"),
            ("a-fd00---64", "fd00--1"),
            ("handmade", "10.0.0.7"),
            ("10.0.0.0-24", "handmade"),
        ] {
            assert!(may_enter(pool, reservation), "{pool} {reservation}");
        }
        for (pool, reservation) in [
            ("10.0.0.0-24", "10.0.1.7"),
            ("10.0.0.0-24", "blue-10.0.0.7"),
            ("blue-10.0.0.0-24", "blu-10.0.0.7"),
            ("blue-10.0.0.0-24", "red-10.0.0.7"),
            ("fd00---64", "fd00-0-0-1--1"),
            ("fd00---64", "10.0.0.7"),
        ] {
            assert!(!may_enter(pool, reservation), "{pool} {reservation}");
        }
    }

    #[test]
    fn reservations_are_named_after_the_address() {
        for (network, address, name) in [
            ("", "192.168.1.1", "192.168.1.1"),
            ("blue", "192.168.1.1", "blue-192.168.1.1"),
            ("", "fd00::1", "fd00--1"),
            ("", "fd00::", "fd00--0"),
            ("blue", "2001:db8::", "blue-2001-db8--0"),
        ] {
            assert_eq!(reservation(network, address.parse().unwrap()), name);
        }
    }

    #[test]
    fn slice_pools_are_named_after_the_network() {
        assert_eq!(slice_pool("", "cni", None), "cni");
        assert_eq!(slice_pool("blue", "cni", None), "blue");
        let further = Some("fd00::/64".parse().unwrap());
        assert_eq!(slice_pool("blue", "cni", further), "blue-fd00---64");
    }

    #[test]
    fn a_slice_is_named_after_its_range_alone() {
        let range = "10.0.4.0/26".parse().unwrap();
        assert_eq!(slice("", range), "10.0.4.0-26");
        assert_eq!(slice("blue", range), "blue-10.0.4.0-26");
    }
}
