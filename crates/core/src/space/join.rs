//! Set operations on spaces of one range: what several networks, or several ranges of one network, may allocate.

use super::Space;
use crate::Block;

impl Space {
    /// Whether every address of `other` is also in this space.
    pub fn covers(&self, other: &Self) -> bool {
        let is_in = |block: &Block| {
            let around = self.block_at_or_after(block.first());
            around.is_some_and(|around| {
                around.first() <= block.first() && block.last() <= around.last()
            })
        };
        (other.octet_ends_withheld || !self.octet_ends_withheld) && other.blocks.iter().all(is_in)
    }

    /// The union of the two, ascending; with the rules of the first where they differ.
    #[must_use]
    pub fn joined(&self, other: &Self) -> Self {
        let mut all = [self.blocks.as_slice(), &other.blocks].concat();
        all.sort_unstable();
        let mut blocks: Vec<Block> = Vec::with_capacity(all.len());
        for block in all {
            match blocks.last_mut() {
                Some(last) if last.last().next().is_none_or(|next| block.first() <= next) => {
                    *last = Block::new(last.first(), last.last().max(block.last()));
                }
                _ => blocks.push(block),
            }
        }
        Self {
            listing: blocks.clone(),
            blocks,
            octet_ends_withheld: self.octet_ends_withheld && other.octet_ends_withheld,
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Address;

    fn space(blocks: &[(u8, u8)]) -> Space {
        let address = |n: u8| -> Address { format!("10.0.0.{n}").parse().unwrap() };
        Space::list(blocks.iter().map(|(a, b)| {
            let (first, last) = (*a.min(b), *a.max(b));
            Block::new(address(first), address(last))
        }))
    }

    proptest! {
        #[test]
        fn what_is_joined_has_what_either_has(
            a in prop::collection::vec(any::<(u8, u8)>(), 0..5),
            b in prop::collection::vec(any::<(u8, u8)>(), 0..5),
        ) {
            let (a, b) = (space(&a), space(&b));
            let both = a.joined(&b);
            let mut expected = 0;
            for n in 0..=255u8 {
                let address: Address = format!("10.0.0.{n}").parse().unwrap();
                let in_one = a.contains(address) || b.contains(address);
                prop_assert_eq!(both.contains(address), in_one);
                expected += u128::from(in_one);
            }
            prop_assert_eq!(both.count(), expected);
            prop_assert!(both.covers(&a) && both.covers(&b) && both.covers(&both));
            prop_assert_eq!(both.joined(&a), both.clone());
            prop_assert_eq!(a.joined(&b) == a.joined(&a), a.joined(&a).covers(&b));
        }
    }
}
