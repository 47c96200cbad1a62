//! Addresses that were found reserved by others a moment ago.
//!
//! A hint that spares an ADD the same walk into the same reservations that the ADD before it took: where two
//! ranges overlap, each step of the walk is a commit. It decides nothing (the reservation does), it is short-lived,
//! and what this process ends is forgotten at once.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use berth_core::{Address, Prefix};

/// How long a finding is trusted. Others free addresses without telling.
const TRUSTED: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
pub(crate) struct Foreign {
    /// When an address of a named network was last found reserved.
    seen: Mutex<BTreeMap<(String, Address), Instant>>,
}

impl Foreign {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<(String, Address), Instant>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn saw(&self, network_name: &str, addresses: &[Address]) {
        let now = Instant::now();
        let mut seen = self.lock();
        seen.retain(|_, at| now.duration_since(*at) < TRUSTED);
        seen.extend(
            addresses
                .iter()
                .map(|address| ((network_name.to_owned(), *address), now)),
        );
    }

    pub(crate) fn forget(&self, network_name: &str, address: Address) {
        self.lock().remove(&(network_name.to_owned(), address));
    }

    pub(crate) fn forget_all(&self, network_name: &str) {
        self.lock().retain(|(name, _), _| name != network_name);
    }

    /// What is thought to be taken in any of `networks`.
    pub(crate) fn known(
        &self,
        network_name: &str,
        networks: impl Iterator<Item = Prefix>,
    ) -> Vec<Address> {
        let seen = self.lock();
        let mut known = Vec::new();
        for network in networks {
            let block = network.block();
            let key = |address: Address| (network_name.to_owned(), address);
            let within = seen.range(key(block.first())..=key(block.last()));
            let trusted = within.filter(|(_, at)| at.elapsed() < TRUSTED);
            known.extend(trusted.map(|((_, address), _)| *address));
        }
        known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_by_network_and_range_until_forgotten() {
        let foreign = Foreign::default();
        let ip = |text: &str| text.parse::<Address>().unwrap();
        foreign.saw("", &[ip("10.0.0.1"), ip("10.0.1.1"), ip("fd00::1")]);
        foreign.saw("blue", &[ip("10.0.0.2")]);
        let known = |name: &str, range: &str| {
            let networks: Vec<Prefix> = vec![range.parse().unwrap()];
            foreign.known(name, networks.into_iter())
        };
        assert_eq!(known("", "10.0.0.0/24"), [ip("10.0.0.1")]);
        assert_eq!(known("", "10.0.0.0/16"), [ip("10.0.0.1"), ip("10.0.1.1")]);
        assert_eq!(known("", "fd00::/64"), [ip("fd00::1")]);
        assert_eq!(known("blue", "10.0.0.0/16"), [ip("10.0.0.2")]);
        foreign.forget("", ip("10.0.0.1"));
        assert_eq!(known("", "10.0.0.0/24"), []);
        foreign.forget_all("");
        assert_eq!(known("", "10.0.0.0/16"), []);
        assert_eq!(known("blue", "10.0.0.0/16"), [ip("10.0.0.2")]);
    }
}
