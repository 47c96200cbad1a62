//! Which addresses of a pool pods can have, and how the object counts them.

use std::net::Ipv4Addr;

use berth_core::{Address, Block, Space};
use ipnet::Ipv4Net;

/// The gateway of every pod: the pool's base plus one. `ptp` puts it on each host-side interface, so no pod can have it.
pub fn gateway(cidr: Ipv4Net) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(cidr.network()).wrapping_add(1))
}

/// Everything but network, gateway and broadcast; empty for a /31 or /32.
pub fn space(cidr: Ipv4Net) -> Space {
    let (first, last) = (u32::from(cidr.network()), u32::from(cidr.broadcast()));
    let (first, last) = (first.saturating_add(2), last.saturating_sub(1));
    let at = |bits: u32| Address::from(std::net::IpAddr::from(Ipv4Addr::from(bits)));
    Space::list((cidr.prefix_len() < 31 && first <= last).then(|| Block::new(at(first), at(last))))
}

/// As upstream counts: without network and broadcast. The gateway is counted though no pod gets it, so a pool is exhausted at
/// `available: 1`.
pub fn capacity(cidr: Ipv4Net) -> u64 {
    let size = 1_u64 << (32 - u32::from(cidr.prefix_len()));
    size.saturating_sub(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gateway_is_counted_and_never_allocated() {
        let cidr: Ipv4Net = "10.111.0.0/16".parse().unwrap();
        assert_eq!(capacity(cidr), 65_534);
        let space = space(cidr);
        assert_eq!(space.count(), 65_533);
        assert_eq!(space.first(), Some("10.111.0.2".parse().unwrap()));
        for withheld in ["10.111.0.0", "10.111.0.1", "10.111.255.255"] {
            assert!(!space.contains(withheld.parse().unwrap()), "{withheld}");
        }
    }

    #[test]
    fn the_smallest_pools() {
        for (cidr, count, addresses) in [
            ("10.0.0.0/29", 6, 5),
            ("10.0.0.0/30", 2, 1),
            ("10.0.0.0/31", 0, 0),
            ("10.0.0.0/32", 0, 0),
        ] {
            let cidr: Ipv4Net = cidr.parse().unwrap();
            assert_eq!(
                (capacity(cidr), space(cidr).count()),
                (count, addresses),
                "{cidr}"
            );
        }
        assert_eq!(capacity("0.0.0.0/0".parse().unwrap()), (1 << 32) - 2);
    }
}
