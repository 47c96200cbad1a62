//! Negative cache: addresses that were reserved by others a moment ago.
//!
//! Where two ranges overlap, an ADD commits an address, finds it reserved and tries the next; the hints spare the next ADD
//! the same rounds. They decide nothing (the reservation does), expire after [`TRUSTED`], and an address whose reservation
//! this process ends is forgotten at once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use berth_core::{Address, Prefix};
use parking_lot::{Mutex, MutexGuard};

/// How long a hint is trusted: others release addresses without notice.
const TRUSTED: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
pub(crate) struct ReservationHints {
    /// When an address of a named network was last found reserved.
    seen: Mutex<BTreeMap<(String, Address), Instant>>,
}

impl ReservationHints {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<(String, Address), Instant>> {
        self.seen.lock()
    }

    pub(crate) fn note(&self, network_name: &str, addresses: &[Address]) {
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

    /// The hints in any of `networks`.
    pub(crate) fn known(
        &self,
        network_name: &str,
        networks: impl Iterator<Item = Prefix>,
    ) -> BTreeSet<Address> {
        let seen = self.lock();
        let mut known = BTreeSet::new();
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
    fn hints_are_by_network_and_range_until_forgotten() {
        let hints = ReservationHints::default();
        let ip = |text: &str| text.parse::<Address>().unwrap();
        hints.note("", &[ip("10.0.0.1"), ip("10.0.1.1"), ip("fd00::1")]);
        hints.note("blue", &[ip("10.0.0.2")]);
        let known = |name: &str, range: &str| {
            let networks: Vec<Prefix> = vec![range.parse().unwrap()];
            Vec::from_iter(hints.known(name, networks.into_iter()))
        };
        assert_eq!(known("", "10.0.0.0/24"), [ip("10.0.0.1")]);
        assert_eq!(known("", "10.0.0.0/16"), [ip("10.0.0.1"), ip("10.0.1.1")]);
        assert_eq!(known("", "fd00::/64"), [ip("fd00::1")]);
        assert_eq!(known("blue", "10.0.0.0/16"), [ip("10.0.0.2")]);
        hints.forget("", ip("10.0.0.1"));
        assert_eq!(known("", "10.0.0.0/24"), []);
        hints.forget_all("");
        assert_eq!(known("", "10.0.0.0/16"), []);
        assert_eq!(known("blue", "10.0.0.0/16"), [ip("10.0.0.2")]);
    }
}
