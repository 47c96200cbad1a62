//! The serialised form of a space.
//!
//! Guarantees: what is parsed equals what was written, and no input yields a space whose blocks overlap, mix families
//! or outnumber the input's length.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Space;
use crate::dialect::Dialect;
use crate::{Address, Block, Prefix};

/// The blocks in the order of the listing; sorted they are the space's own.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Form {
    dialect: Dialect,
    blocks: Vec<(Address, Address)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    prefix: Option<Prefix>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    start: Option<Address>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    octet_ends_withheld: bool,
}

impl Serialize for Space {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let ends = |block: &Block| (block.first(), block.last());
        Form {
            dialect: self.dialect,
            blocks: self.listing.iter().map(ends).collect(),
            prefix: self.prefix,
            start: self.start,
            octet_ends_withheld: self.octet_ends_withheld,
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Space {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let form = Form::deserialize(deserializer)?;
        let fail = |text: String| Err(serde::de::Error::custom(text));
        let mut listing = Vec::with_capacity(form.blocks.len());
        for (first, last) in form.blocks {
            if first.family() != last.family() || last < first {
                return fail(format!(
                    "blocks: {first}-{last} is not a block of addresses"
                ));
            }
            listing.push(Block::new(first, last));
        }
        let mut blocks = listing.clone();
        blocks.sort_unstable();
        for pair in blocks.windows(2) {
            let [one, next] = pair else { continue };
            if one.first().family() != next.first().family() || next.first() <= one.last() {
                return fail(format!(
                    "blocks: {one} and {next} overlap or are of two families"
                ));
            }
        }
        Ok(Self {
            dialect: form.dialect,
            blocks,
            listing,
            prefix: form.prefix,
            start: form.start,
            octet_ends_withheld: form.octet_ends_withheld,
        })
    }
}

/// For spaces that several requests share: each copy is written out, because the reader shares nothing with the writer.
pub(crate) mod shared {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::Space;

    pub(crate) fn serialize<S: Serializer>(
        space: &Arc<Space>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        space.as_ref().serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Arc<Space>, D::Error> {
        Space::deserialize(deserializer).map(Arc::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RangeSpec;
    use crate::dialect::{NODE_IP_POOL, WHEREABOUTS};

    fn mk_block(first: &str, last: &str) -> Block {
        Block::new(first.parse().unwrap(), last.parse().unwrap())
    }

    #[test]
    fn a_space_is_read_back_as_it_was_written() {
        let list = Space::list([
            mk_block("10.0.0.9", "10.0.0.9"),
            mk_block("10.0.0.1", "10.0.0.3"),
        ]);
        let mut spaces = vec![list];
        for (range, dialect) in [
            ("10.0.0.0/22", WHEREABOUTS),
            ("10.0.0.0/22", NODE_IP_POOL),
            ("fd00::/64", WHEREABOUTS),
        ] {
            spaces.push(
                Space::build(&RangeSpec::parse(range).unwrap(), dialect)
                    .unwrap()
                    .0,
            );
        }
        for space in spaces {
            let text = serde_json::to_string(&space).unwrap();
            assert_eq!(
                serde_json::from_str::<Space>(&text).unwrap(),
                space,
                "{text}"
            );
        }
    }

    #[test]
    fn blocks_that_no_space_has_are_refused() {
        let space = Space::list([mk_block("10.0.0.1", "10.0.0.3")]);
        let good = serde_json::to_value(&space).unwrap();
        for (blocks, why) in [
            (r#"[["10.0.0.3","10.0.0.1"]]"#, "10.0.0.3-10.0.0.1"),
            (r#"[["10.0.0.1","fd00::1"]]"#, "not a block"),
            (
                r#"[["10.0.0.1","10.0.0.3"],["10.0.0.2","10.0.0.5"]]"#,
                "overlap",
            ),
            (
                r#"[["10.0.0.1","10.0.0.3"],["fd00::1","fd00::2"]]"#,
                "two families",
            ),
            (r#"[["10.0.0.256","10.0.0.3"]]"#, "10.0.0.256"),
        ] {
            let mut bad = good.clone();
            bad["blocks"] = serde_json::from_str(blocks).unwrap();
            let error = serde_json::from_value::<Space>(bad)
                .unwrap_err()
                .to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
