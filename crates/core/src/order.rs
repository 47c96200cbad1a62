//! Which free address is chosen.
//!
//! Randomness is part of the request, as a `draw`, so that a plan can be replayed from a seed.

use md5::{Digest, Md5};
use serde::{Deserialize, Serialize};

use crate::Address;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// The lowest free address: what a person expects to see.
    #[default]
    Lowest,
    /// The position in the free list that the MD5 of the owner's subject selects. Independent writers spread out, and
    /// the same owner tries the same position first.
    HashIndex,
    /// The free address with the highest score for the owner's subject (rendezvous hashing). When an
    /// address joins or leaves, only the owners that it wins or loses change their choice.
    Rendezvous,
    /// A random one of the next few free addresses. After a conflict all losers would choose the same lowest address
    /// again; the draw separates them.
    Scatter { among: u32, draw: u64 },
    /// Addresses that were never used first, then the one that was released longest ago.
    LongestReleased,
}

/// The index into a free list of `count` for `subject`: the first four bytes of its MD5, big endian, modulo the count.
pub fn hash_index(subject: &str, count: u128) -> u128 {
    if count <= 1 {
        return 0;
    }
    let digest = Md5::digest(subject.as_bytes());
    let seed = digest
        .iter()
        .take(4)
        .fold(0u32, |seed, byte| seed << 8 | u32::from(*byte));
    u128::from(seed) % count
}

/// Rendezvous hashing: ranks candidates by a score of owner and candidate, so that the order of two candidates never
/// depends on a third.
#[derive(Clone, Copy, Debug)]
pub struct Rendezvous {
    seed: u64,
}

impl Rendezvous {
    pub fn new(subject: &str) -> Self {
        let digest = Md5::digest(subject.as_bytes());
        let fold = |seed: u64, byte: &u8| seed << 8 | u64::from(*byte);
        Self {
            seed: digest.iter().take(8).fold(0, fold),
        }
    }

    /// The rank of any number, higher first.
    pub fn score(self, candidate: u128) -> u64 {
        let (high, low) = ((candidate >> 64) as u64, candidate as u64);
        mix(self.seed ^ mix(low ^ mix(high)))
    }

    /// The highest-ranked address. Ties are broken by the address.
    pub fn choose(self, candidates: impl IntoIterator<Item = Address>) -> Option<Address> {
        let ranked = candidates.into_iter();
        ranked.max_by_key(|address| (self.score(address.bits()), *address))
    }
}

/// The finalizer of splitmix64: every bit of the input changes every bit of the output with an even chance.
const fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::{Rendezvous, hash_index};
    use crate::Address;

    /// Live pools rely on these values: a change would move every first choice.
    #[test]
    fn the_rendezvous_order_stays_as_it_is() {
        let all: Vec<Address> = (10..=15)
            .map(|n| format!("192.168.3.{n}").parse().unwrap())
            .collect();
        let chosen = ["pod-1", "pod-2", "pod-3", "pod-4", "pod-5"].map(|id| {
            let chosen = Rendezvous::new(id).choose(all.iter().copied());
            chosen.unwrap().to_string()
        });
        let expected = [13, 11, 14, 13, 11].map(|n| format!("192.168.3.{n}"));
        assert_eq!(chosen, expected);
        assert_eq!(Rendezvous::new("pod-1").choose([]), None);
    }

    #[test]
    fn the_hash_is_the_one_that_live_pools_use() {
        // 0xa4f4841a is even.
        assert_eq!(hash_index("test-allocation-1", 2), 0);
        assert_eq!(hash_index("test-allocation-1", 0xa4f4_841b), 0xa4f4_841a);
        assert_eq!(hash_index("anything", 1), 0);
        assert_eq!(hash_index("anything", 0), 0);
    }
}
