//! Names of the objects that a live cluster holds: pools and reservations.
//!
//! They are what whereabouts writes, to the letter: both must find each other's objects.

use berth_core::{Address, Prefix};

/// The pool of a range: `10.0.0.0-8`, `blue-10.0.0.0-8`, `caa5---64`.
pub fn pool(network_name: &str, prefix: Prefix) -> String {
    join(network_name, &dashed(&prefix.to_string()))
}

/// The pool of a node's slice: `node-10.0.0.0-10`, `blue-node-10.0.0.0-10`.
pub fn slice_pool(network_name: &str, node: &str, slice: Prefix) -> String {
    join(network_name, &join(node, &dashed(&slice.to_string())))
}

/// The reservation of an address across pools: `10.0.0.1`, `blue-10.0.0.1`, `caa5--1`, `caa5--0`.
pub fn reservation(network_name: &str, address: Address) -> String {
    join(network_name, &dashed(&address.to_string()))
}

/// Colons and slashes cannot stand in an object's name, nor can a dash end it.
fn dashed(text: &str) -> String {
    let zero = if text.ends_with(':') { "0" } else { "" };
    format!("{text}{zero}").replace([':', '/'], "-")
}

fn join(prefix: &str, name: &str) -> String {
    if prefix.is_empty() {
        name.to_owned()
    } else {
        format!("{prefix}-{name}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_live_clusters() {
        let net = |text: &str| text.parse::<Prefix>().unwrap();
        let ip = |text: &str| text.parse::<Address>().unwrap();
        assert_eq!(pool("", net("10.0.0.0/8")), "10.0.0.0-8");
        assert_eq!(pool("test", net("10.0.0.0/8")), "test-10.0.0.0-8");
        assert_eq!(pool("", net("caa5::/64")), "caa5---64");
        assert_eq!(
            slice_pool("", "testnode", net("10.0.0.0/8")),
            "testnode-10.0.0.0-8"
        );
        assert_eq!(
            slice_pool("testnetwork", "testnode", net("10.0.0.0/8")),
            "testnetwork-testnode-10.0.0.0-8"
        );
        assert_eq!(reservation("", ip("10.0.0.1")), "10.0.0.1");
        assert_eq!(reservation("blue", ip("10.0.0.1")), "blue-10.0.0.1");
        assert_eq!(reservation("", ip("caa5::")), "caa5--0");
        assert_eq!(reservation("", ip("caa5::1")), "caa5--1");
    }
}
