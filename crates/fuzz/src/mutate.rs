//! Inputs that are almost right: a seed with a few bytes, words or numbers changed.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Longer inputs are cut. A little more than the longest input that is read: 128 KiB.
const MOST: usize = 140_000;

/// Words that parsers recognise, and numbers at the edges of their types.
const WORDS: &[&str] = &[
    "0",
    "-1",
    "1e309",
    "255",
    "256",
    "4294967296",
    "9223372036854775807",
    "18446744073709551616",
    "null",
    "true",
    "[]",
    "{}",
    "\"\"",
    "[[[[",
    "{\"a\":",
    "/0",
    "/32",
    "/33",
    "/128",
    "/129",
    "0.0.0.0",
    "255.255.255.255",
    "::",
    "::ffff:1.2.3.4",
    "fd00::/8",
    "-",
    ",",
    ":",
    "\0",
    "\r\n",
    "\r\n\r\n",
    "content-length: ",
    "transfer-encoding: chunked",
    "range",
    "exclude",
    "ipRanges",
    "allocations",
    "node_slice_size",
    "K8S_POD_NAME=",
    ";",
    "=",
    "../",
    "\u{fffd}",
    "\u{202e}",
];

/// Makes inputs out of seeds. The same number makes the same inputs.
#[derive(Debug)]
pub struct Mutator {
    random: StdRng,
    seeds: Vec<Vec<u8>>,
}

impl Mutator {
    pub fn new(seed: u64, seeds: Vec<Vec<u8>>) -> Mutator {
        Mutator {
            random: StdRng::seed_from_u64(seed),
            seeds,
        }
    }

    fn below(&mut self, limit: usize) -> usize {
        match limit {
            0 => 0,
            limit => self.random.random_range(0..limit),
        }
    }

    fn seed(&mut self) -> Vec<u8> {
        let at = self.below(self.seeds.len());
        self.seeds.get(at).cloned().unwrap_or_default()
    }

    /// The next input.
    pub fn next_input(&mut self) -> Vec<u8> {
        let mut data = self.seed();
        for _ in 0..=self.below(6) {
            self.change(&mut data);
        }
        data.truncate(MOST);
        data
    }

    fn change(&mut self, data: &mut Vec<u8>) {
        let at = self.below(data.len() + 1);
        let end = (at + self.below(16)).min(data.len());
        match self.below(8) {
            0 => {
                let bit = 1_u8 << self.below(8);
                if let Some(byte) = data.get_mut(at) {
                    *byte ^= bit;
                }
            }
            1 => {
                data.drain(at..end);
            }
            2 => {
                let copy = data.get(at..end).unwrap_or_default().to_vec();
                data.splice(at..at, copy);
            }
            3 => {
                let other = self.seed();
                let from = self.below(other.len() + 1);
                data.truncate(at);
                data.extend(other.get(from..).unwrap_or_default());
            }
            4 => data.truncate(at),
            5 => {
                let byte = u8::try_from(self.below(256)).unwrap_or_default();
                data.insert(at, byte);
            }
            6 => {
                let count = self.below(2000);
                let byte = data.get(at).copied().unwrap_or(b'[');
                data.splice(at..at, std::iter::repeat_n(byte, count));
            }
            _ => {
                let word = self.below(WORDS.len());
                let word = WORDS.get(word).copied().unwrap_or_default();
                data.splice(at..end, word.bytes());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_number_makes_the_same_inputs() {
        let inputs = |seed| {
            let mut mutator = Mutator::new(seed, vec![b"{\"range\":\"10.0.0.0/24\"}".to_vec()]);
            (0..100).map(|_| mutator.next_input()).collect::<Vec<_>>()
        };
        assert_eq!(inputs(7), inputs(7));
        assert_ne!(inputs(7), inputs(8));
    }
}
