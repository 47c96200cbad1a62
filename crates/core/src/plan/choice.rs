//! The search for a free address.
//!
//! It skips runs of held addresses and holes of the space, so its cost is the number of runs it meets, never the number
//! of addresses:
//!
//! ```text
//!   space  [.1 ................ .99]      [.120 ... .254]
//!   held    ######   ####   #              #####
//!   skips   ----->^ lowest free            (the n-th free one counts gaps, not addresses)
//! ```

use crate::order::{Rendezvous, hash_index};
use crate::plan::{AddressRequest, Refusal};
use crate::{Address, Block, Moment, Order, Owner, Pool, Space};

/// The most addresses that one choice ranks: more than any list of VMs has.
const MOST_RANKED: u128 = 65_536;

pub(super) fn choose(
    pool: &Pool,
    (place, want): (usize, &AddressRequest),
    chosen: &[Address],
    owner: &Owner,
    now: Moment,
) -> Result<Address, Refusal> {
    let search = Search {
        pool,
        want,
        chosen,
        owner,
        now,
    };
    if let Some(address) = want.exact {
        return search.exact(address);
    }
    // During the cooldown, the last owner gets its own address first.
    let found = search.cooled_for_owner().or_else(|| match want.order {
        Order::Lowest => search.lowest(),
        Order::HashIndex => search.hashed(),
        Order::Rendezvous => search.rendezvous(),
        Order::Scatter { among, draw } => search.scattered(among, draw),
        Order::LongestReleased => search.longest_released(),
    });
    found.ok_or_else(|| Refusal::Exhausted {
        space: describe(&want.space),
        capacity: want.space.count(),
        want: place,
    })
}

struct Search<'a> {
    pool: &'a Pool,
    want: &'a AddressRequest,
    /// The addresses chosen for earlier requests of the same claim.
    chosen: &'a [Address],
    owner: &'a Owner,
    now: Moment,
}

impl Search<'_> {
    fn exact(&self, address: Address) -> Result<Address, Refusal> {
        if !self.want.space.contains(address) {
            return Err(Refusal::Outside {
                address,
                space: describe(&self.want.space),
            });
        }
        if let Some(held) = self.pool.get(address) {
            return Err(Refusal::Held {
                address,
                by: held.owner.clone(),
            });
        }
        if self.avoided().any(|avoid| avoid == address) {
            return Err(Refusal::Avoided { address });
        }
        match self.pool.cooldown(address) {
            Some(cooldown) if self.cools_for_another(address) => Err(Refusal::CoolingDown {
                address,
                owner: cooldown.owner.clone(),
                until: cooldown.until,
            }),
            _ => Ok(address),
        }
    }

    fn cools_for_another(&self, address: Address) -> bool {
        let cooldown = self.pool.cooldown(address);
        cooldown.is_some_and(|cooldown| cooldown.until > self.now && cooldown.owner != *self.owner)
    }

    fn open(&self, address: Address) -> bool {
        !self.cools_for_another(address) && !self.avoided().any(|avoid| avoid == address)
    }

    fn avoided(&self) -> impl Iterator<Item = Address> {
        self.want.avoid.iter().chain(self.chosen).copied()
    }

    fn cooled_for_owner(&self) -> Option<Address> {
        let mine = self.pool.cooldowns_of(self.owner);
        mine.filter(|(_, cooldown)| cooldown.until > self.now)
            .map(|(address, _)| address)
            .find(|address| {
                self.want.space.contains(*address)
                    && !self.pool.is_held(*address)
                    && self.open(*address)
            })
    }

    /// The lowest address from `from` on that is neither held nor cooling down for another owner.
    fn free_from(&self, from: Address) -> Option<Address> {
        let mut candidate = self.want.space.at_or_after(from)?;
        loop {
            candidate = match self.pool.held_until(candidate) {
                Some(end) => self.want.space.at_or_after(end.next()?)?,
                None if self.open(candidate) => return Some(candidate),
                None => self.want.space.at_or_after(candidate.next()?)?,
            };
        }
    }

    fn lowest(&self) -> Option<Address> {
        self.free_from(self.want.space.first()?)
    }

    fn scattered(&self, among: u32, draw: u64) -> Option<Address> {
        let mut next = self.lowest();
        let mut few = Vec::new();
        while let Some(address) = next.filter(|_| few.len() < among.max(1) as usize) {
            few.push(address);
            next = address.next().and_then(|from| self.free_from(from));
        }
        let place = draw.checked_rem(few.len() as u64)?;
        few.get(usize::try_from(place).ok()?).copied()
    }

    fn longest_released(&self) -> Option<Address> {
        if let Some(listing) = self.pool.listing() {
            let mut listed = listing.iter().copied();
            return listed
                .find(|address| self.want.space.contains(*address) && self.open(*address));
        }
        self.nth_never_released(0)
            .or_else(|| self.released_before().next())
    }

    /// The position in the free list that the owner's hash selects. The list is the store's own, or the space in its
    /// order followed by released addresses, oldest first: what a store with a list would contain.
    fn hashed(&self) -> Option<Address> {
        if let Some(listing) = self.pool.listing() {
            let free: Vec<Address> = listing
                .iter()
                .copied()
                .filter(|address| self.want.space.contains(*address) && self.open(*address))
                .collect();
            let index = hash_index(&self.owner.subject, free.len() as u128);
            return free.get(usize::try_from(index).ok()?).copied();
        }
        let untouched: u128 = self
            .gaps()
            .fold(0, |sum, gap| sum.saturating_add(gap.count()));
        let released_before: Vec<Address> = self.released_before().collect();
        let count = untouched.saturating_add(released_before.len() as u128);
        let index = hash_index(&self.owner.subject, count);
        match index.checked_sub(untouched) {
            None => self.nth_never_released(index),
            Some(place) => released_before.get(usize::try_from(place).ok()?).copied(),
        }
    }

    /// The highest-ranked free address. Each address is scored, so a space that is larger than any list of VMs uses
    /// the hash instead.
    fn rendezvous(&self) -> Option<Address> {
        let rank = Rendezvous::new(&self.owner.subject);
        if let Some(listing) = self.pool.listing() {
            let free = listing.iter().copied();
            return rank.choose(
                free.filter(|address| self.want.space.contains(*address) && self.open(*address)),
            );
        }
        if self.want.space.count() > MOST_RANKED {
            return self.hashed();
        }
        rank.choose(std::iter::successors(self.lowest(), |address| {
            self.free_from(address.next()?)
        }))
    }

    /// Free addresses that were released before, the longest released first.
    fn released_before(&self) -> impl Iterator<Item = Address> {
        self.pool
            .cooldowns_by_age()
            .map(|(address, _)| address)
            .filter(|address| {
                self.want.space.contains(*address)
                    && !self.pool.is_held(*address)
                    && self.open(*address)
            })
    }

    fn nth_never_released(&self, n: u128) -> Option<Address> {
        let mut left = n;
        for gap in self.gaps() {
            match left.checked_sub(gap.count()) {
                None => return gap.nth(left),
                Some(rest) => left = rest,
            }
        }
        None
    }

    /// Addresses that are free and were never released, in the listing's order.
    fn gaps(&self) -> impl Iterator<Item = Space> {
        self.want.space.listed().flat_map(|part| {
            let whole = part.blocks().first().copied();
            let taken = whole
                .into_iter()
                .flat_map(|block| self.taken(block))
                .collect();
            part.without(taken)
        })
    }

    fn taken(&self, block: Block) -> Vec<Block> {
        let held = self
            .pool
            .held_runs(block.first(), block.last())
            .map(|(a, b)| Block::new(a, b));
        let cooldowns = self.pool.cooldowns_within(block).map(Block::single);
        let avoid = self.avoided().map(Block::single);
        held.chain(cooldowns).chain(avoid).collect()
    }
}

fn describe(space: &Space) -> String {
    match (space.prefix(), space.blocks()) {
        (Some(prefix), [one]) => format!("{prefix} ({one})"),
        (Some(prefix), blocks) => format!("{prefix} ({} blocks)", blocks.len()),
        (None, [one]) => one.to_string(),
        (None, blocks) => format!("a list of {} blocks", blocks.len()),
    }
}
