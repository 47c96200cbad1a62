//! The requestId of an intent.

use std::fmt;

use rand::RngExt;
use ring::digest::{Context, SHA256};

/// A UUID (version 4). Google carries out a request once per id: a repeat after a lost answer uses the same one, a new
/// intent (also the same change after a stale fingerprint) another.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(String);

impl RequestId {
    pub fn random() -> RequestId {
        RequestId::of(rand::rng().random())
    }

    /// The id of a recorded intent: the same bits, the same id.
    pub fn of(bits: u128) -> RequestId {
        // The version and the variant of a random UUID.
        let bits = (bits & !(0xF << 76) & !(0x3 << 62)) | (0x4 << 76) | (0x2 << 62);
        let hex = format!("{bits:032x}");
        let part = |from: usize, to: usize| hex.get(from..to).unwrap_or_default();
        RequestId(format!(
            "{}-{}-{}-{}-{}",
            part(0, 8),
            part(8, 12),
            part(12, 16),
            part(16, 20),
            part(20, 32)
        ))
    }

    /// The id of an intent that its words name: a repeat by another process is the same request.
    pub fn named(words: &[&str]) -> RequestId {
        let mut context = Context::new(&SHA256);
        for word in words {
            context.update(word.as_bytes());
            context.update(&[0]);
        }
        let digest = context.finish();
        let bits = digest.as_ref().iter().take(16);
        RequestId::of(bits.fold(0, |bits, byte| bits << 8 | u128::from(*byte)))
    }

    /// One that was recorded before.
    pub fn recorded(text: &str) -> RequestId {
        RequestId(text.to_owned())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_id_is_a_random_uuid() {
        let id = RequestId::random().to_string();
        let lengths: Vec<usize> = id.split('-').map(str::len).collect();
        assert_eq!(lengths, [8, 4, 4, 4, 12]);
        assert_eq!(&id[14..15], "4");
        assert!("89ab".contains(&id[19..20]));
        assert_ne!(RequestId::random(), RequestId::random());
    }

    #[test]
    fn the_same_words_are_the_same_request() {
        let id = RequestId::named(&["addresses.insert", "10.128.8.2", "uid"]);
        assert_eq!(
            id,
            RequestId::named(&["addresses.insert", "10.128.8.2", "uid"])
        );
        for other in [
            ["addresses.delete", "10.128.8.2", "uid"],
            ["addresses.insert", "10.128.8.", "2uid"],
        ] {
            assert_ne!(id, RequestId::named(&other));
        }
        assert_eq!(&id.to_string()[14..15], "4", "a UUID of version 4");
    }
}
