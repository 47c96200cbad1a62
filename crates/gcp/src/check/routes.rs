//! The host's own addresses, from the kernel's routing trie (`/proc/net/fib_trie`).
//!
//! Google's guest agent makes a local route for each alias range, on images other than GKE's. The host then takes the pod's
//! packets for its own. The trie names local routes of every origin, which is what matters here.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

/// Every single address with a local route.
pub fn local_addresses(trie: &str) -> BTreeSet<Ipv4Addr> {
    let mut found = BTreeSet::new();
    let mut leaf: Option<Ipv4Addr> = None;
    for line in trie.lines() {
        let line = line.trim_start();
        if let Some(address) = line.strip_prefix("|-- ") {
            leaf = address.trim().parse().ok();
        } else if line.starts_with("/32 host LOCAL") {
            found.extend(leaf);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_single_local_addresses_count() {
        let trie = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n     |-- 10.111.0.9\n        \
            /32 link UNICAST\nLocal:\n     +-- 127.0.0.0/8 2 0 2\n        |-- 127.0.0.0\n           /8 host LOCAL\n        \
            |-- 127.0.0.1\n           /32 host LOCAL\n     |-- 10.111.0.7\n        /32 host LOCAL\n     |-- 10.111.0.255\n        \
            /32 link BROADCAST\n";
        let found: Vec<String> = local_addresses(trie)
            .iter()
            .map(Ipv4Addr::to_string)
            .collect();
        assert_eq!(found, ["10.111.0.7", "127.0.0.1"]);
        assert!(local_addresses("nonsense\n/32 host LOCAL").is_empty());
    }
}
