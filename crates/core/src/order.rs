//! Which free address is chosen.
//!
//! Randomness comes in with the request as a `draw`, so that a plan can be replayed from a seed.

use md5::{Digest, Md5};
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// The lowest free address: what a person expects to see.
    #[default]
    Lowest,
    /// The place in the free list that the MD5 of the owner's subject points at. Writers that do not
    /// know of each other spread out, and the same owner tries the same place first.
    HashIndex,
    /// One of the next few free ones. After a conflict all losers would run to the same lowest
    /// address again; a draw parts them.
    Scatter { among: u32, draw: u64 },
    /// Never used before ones first, then the one that was released longest ago.
    LongestReleased,
}

/// The index into a free list of `count` for `subject`: the first four bytes of its MD5, big
/// endian, modulo the count.
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

#[cfg(test)]
mod tests {
    use super::hash_index;

    #[test]
    fn the_hash_is_the_one_that_live_pools_use() {
        // 0xa4f4841a is even.
        assert_eq!(hash_index("test-allocation-1", 2), 0);
        assert_eq!(hash_index("test-allocation-1", 0xa4f4_841b), 0xa4f4_841a);
        assert_eq!(hash_index("anything", 1), 0);
        assert_eq!(hash_index("anything", 0), 0);
    }
}
