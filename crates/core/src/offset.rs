//! The number that some stores keep instead of an address.
//!
//! Offsets are u128: an IPv6 range has addresses past the first /65, which a 64-bit offset would lose.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Address;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Offset(pub u128);

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Numbers the IPv4 addresses that end in neither .0 nor .255, without iterating: each block of 256 has 254 of them.
///
/// ```text
///   x.0   x.1   x.2  ..  x.254  x.255  (x+1).0  (x+1).1
///    -     0     1   ..   253     -       -       254
/// ```
pub(crate) fn ordinal_without_octet_ends(address: Address) -> u128 {
    let low = u128::from(address.last_octet());
    254 * (address.bits() >> 8) + low.saturating_sub(1).min(254)
}

/// The inverse of [`ordinal_without_octet_ends`].
pub(crate) fn bits_without_octet_ends(ordinal: u128) -> u128 {
    (ordinal / 254) << 8 | (ordinal % 254 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinals_and_addresses_are_inverse() {
        let base: Address = "10.10.11.1".parse().unwrap();
        let first = ordinal_without_octet_ends(base);
        for n in 0..2000u128 {
            let bits = bits_without_octet_ends(first + n);
            let address = Address::new(crate::Family::V4, bits).unwrap();
            assert!(!matches!(address.last_octet(), 0 | 255));
            assert_eq!(ordinal_without_octet_ends(address), first + n);
        }
    }
}
