//! Addresses that this node must not give though they lie in a slice of its own: held in its pool by nobody, so that one
//! commit, guarded by each address, takes them out of every hand at once.
//!
//! A row names the part that it belongs to, whom that is for, and which surrender of it this is: another process of the node
//! may have put the part into use and lent it again since somebody looked, and only the rows that were looked at are freed.
//! Rows outlive a crash; which of them still mean something, the offers on this node's claims say.

use std::collections::BTreeSet;
use std::sync::Arc;

use berth_core::slice::NodeName;
use berth_core::slice::elastic::{Claimed, Offer};
use berth_core::{Address, Change, Handle, Owner, Pool, Prefix, Record};
use berth_ledger::Guard;
use berth_whereabouts::SliceObject;
use rand::RngExt;

use crate::error::SliceError;
use crate::holdings::Holding;
use crate::pool::SlicePool;
use crate::publish::SURRENDERED;
use crate::sliced::Sliced;
use crate::world::now;

/// No part has more addresses than that: each is a row. A whole slice may have any number.
pub(crate) const MOST: u128 = 1024;

/// What ends a node's name in the handle of a row.
const END: char = '#';

/// Addresses of a part that are out of use, as they were seen.
pub(crate) type Rows = Vec<(Address, Record)>;

/// The row of a surrender; no two are alike.
fn record(part: Prefix, to: &NodeName) -> Record {
    let which = rand::rng().random_range(0..u64::MAX);
    Record::new(
        Owner::new(SURRENDERED, part.to_string()),
        Handle::new(format!("{to}{END}{which:x}")),
    )
}

/// Whether a row is of that part and for that node.
fn is_for(row: &Record, part: Prefix, to: &NodeName) -> bool {
    let name = row.handle.as_str().split(END).next();
    part_of(row) == Some(part) && name == Some(to.as_str())
}

/// The part that a row belongs to; none for the record of a pod.
fn part_of(record: &Record) -> Option<Prefix> {
    (record.owner.subject == SURRENDERED)
        .then(|| record.owner.part.parse().ok())
        .flatten()
}

/// The parts of a slice that are lent by the node's own pool, and to whom.
pub(crate) fn lent(pool: &Pool, slice: Prefix) -> Vec<Offer> {
    let mut offers: Vec<Offer> = Vec::new();
    for (_, row) in pool.records() {
        let node = row.handle.as_str().split(END).next().unwrap_or_default();
        match part_of(row) {
            Some(range) if range != slice && slice.covers(range) => offers.push(Offer {
                range,
                node: NodeName::new(node),
            }),
            _ => {}
        }
    }
    offers.sort();
    offers.dedup();
    offers
}

fn rows_in(pool: &Pool, which: impl Fn(Prefix) -> bool) -> Rows {
    let rows = pool.records();
    let of_part = rows.filter(|(_, row)| part_of(row).is_some_and(&which));
    of_part
        .map(|(address, row)| (address, row.clone()))
        .collect()
}

/// All of a part, as far as it may have rows: what this network does not give of it, another one of the range may.
fn addresses(part: Prefix) -> impl Iterator<Item = Address> {
    let count = part.block().count().min(MOST);
    (0..count).filter_map(move |n| part.network().plus(n))
}

/// Whether anybody has an address of a slice, or one cools down. What is out of use is nobody's.
fn is_held_in(pool: &Pool, slice: Prefix) -> bool {
    let records = pool.records().filter(|(_, row)| part_of(row).is_none());
    let held = records.map(|(address, _)| address);
    held.chain(pool.cooling(now()))
        .any(|address| slice.contains(address))
}

/// The claim that a part was split off.
pub(crate) fn parent_of(part: Prefix, claims: &[SliceObject]) -> Option<&SliceObject> {
    claims
        .iter()
        .filter(|other| other.claim.range != part && other.claim.range.covers(part))
        .max_by_key(|other| other.claim.range.length())
}

impl SlicePool {
    /// Takes every address of a part out of use, all or none; none if one of them is held.
    pub async fn surrender(
        &self,
        of: &Arc<Sliced>,
        part: Prefix,
        to: &NodeName,
    ) -> Result<Option<Rows>, SliceError> {
        if part.block().count() > MOST {
            return Ok(None);
        }
        let addresses: Vec<Address> = addresses(part).collect();
        let record = record(part, to);
        let rows = |pool: &Pool| -> Vec<Change> {
            if addresses.iter().any(|address| pool.is_held(*address)) {
                return Vec::new();
            }
            let claim = |address: &Address| Change::Allocate {
                address: *address,
                record: record.clone(),
            };
            addresses.iter().map(claim).collect()
        };
        let made = self.world.amend(&of.key(), rows).await?;
        let all = made.len() == addresses.len();
        if all {
            self.world.note_given_up(of).await?;
        }
        let rows = addresses.into_iter();
        Ok(all.then(|| rows.map(|address| (address, record.clone())).collect()))
    }

    /// Stops giving from a whole slice, if nothing in it is held: its holding goes. False: something is, or it is not given from
    /// any more.
    ///
    /// A slice that lies in another one of this node stays out of use there, row by row. One that lies in none needs no rows:
    /// whoever has planned to give from it finds at its commit that it is not held, however large it is.
    pub async fn shut(
        &self,
        of: &Arc<Sliced>,
        slice: Prefix,
        to: &NodeName,
    ) -> Result<bool, SliceError> {
        let _closed = self.giving.write().await;
        let around = |one: &Holding| one.slice != slice && one.slice.covers(slice);
        let mut aside = false;
        loop {
            // As the file has it: another process of this node may have taken on a slice around it, or ended this one.
            self.reread_held().await?;
            let held = self.held();
            let given_from = |one: &&Holding| one.slice == slice && one.is_active();
            let Some(holding) = held.iter().find(given_from) else {
                return Ok(false);
            };
            let local = self.world.local.load(&of.key()).await?;
            if is_held_in(&local.pool, slice) {
                return Ok(false);
            }
            if !aside && held.iter().any(around) {
                if self.surrender(of, slice, to).await?.is_none() {
                    return Ok(false);
                }
                aside = true;
                continue;
            }
            let unchanged = Guard {
                pool: of.key(),
                version: local.version,
            };
            match self.holdings.remove(holding, &unchanged).await {
                // Another process has given an address since, of this slice or of another.
                Err(error) if error.is_of(&unchanged) => {}
                left => {
                    self.set_held(left?);
                    self.world.note_given_up(of).await?;
                    return Ok(true);
                }
            }
        }
    }

    /// Puts the addresses of a slice that was granted into use, whatever took them out, but for the parts of it that are
    /// others': in one commit, for this node may give from a slice inside it. What is out of use in that one stays so.
    pub async fn put_into_use(&self, of: &Arc<Sliced>, claim: &Claimed) -> Result<(), SliceError> {
        let nested = self.active_inside(claim.range);
        let rows = |pool: &Pool| -> Vec<Change> {
            let inside = pool.records().filter(|(address, row)| {
                claim.range.contains(*address)
                    && part_of(row).is_some()
                    && !nested.iter().any(|slice| slice.contains(*address))
            });
            let change = |(address, row): (Address, &Record)| {
                let mut offers = claim.offers.iter();
                let offer = offers.find(|offer| offer.range.contains(address));
                let expected = row.clone();
                match offer {
                    Some(offer) if is_for(row, offer.range, &offer.node) => None,
                    Some(offer) => Some(Change::Update {
                        address,
                        expected,
                        record: record(offer.range, &offer.node),
                    }),
                    None => Some(Change::Release {
                        address,
                        expected,
                        cooldown: None,
                    }),
                }
            };
            inside.filter_map(change).collect()
        };
        self.amend_undisturbed(&of.key(), rows).await
    }

    /// Whether anything is out of use.
    pub async fn has_rows(&self, of: &Arc<Sliced>) -> Result<bool, SliceError> {
        let local = self.world.local.load(&of.key()).await?;
        Ok(local.pool.records().any(|(_, row)| part_of(row).is_some()))
    }

    /// What is others' already when a claim becomes this node's.
    pub async fn surrender_offers(
        &self,
        of: &Arc<Sliced>,
        claim: &Claimed,
    ) -> Result<(), SliceError> {
        for offer in &claim.offers {
            let mut nested = self.active_inside(offer.range);
            let held = self.held();
            let itself = held.iter().filter(|one| one.slice == offer.range);
            nested.extend(itself.filter(|one| one.is_active()).map(|one| one.slice));
            let addresses: Vec<Address> = addresses(offer.range)
                .filter(|address| !nested.iter().any(|slice| slice.contains(*address)))
                .collect();
            let record = record(offer.range, &offer.node);
            let rows = |pool: &Pool| -> Vec<Change> {
                let free = addresses.iter().filter(|address| !pool.is_held(**address));
                free.map(|address| Change::Allocate {
                    address: *address,
                    record: record.clone(),
                })
                .collect()
            };
            self.world.amend(&of.key(), rows).await?;
        }
        Ok(())
    }

    /// Takes a part out of use that is lent by its slice's claim, whatever the pool says of it: nothing of it was held when it
    /// was lent, so a pod that has an address of it here is of before.
    pub async fn surrender_stale(
        &self,
        of: &Arc<Sliced>,
        part: Prefix,
        to: &NodeName,
    ) -> Result<(), SliceError> {
        let mut back = self.active_inside(part);
        let held = self.held();
        let itself = held.iter().filter(|one| one.slice == part);
        back.extend(itself.filter(|one| one.is_active()).map(|one| one.slice));
        let addresses: Vec<Address> = addresses(part)
            .filter(|address| !back.iter().any(|slice| slice.contains(*address)))
            .collect();
        let row = record(part, to);
        let rows = |pool: &Pool| -> Vec<Change> {
            let change = |address: &Address| match pool.get(*address) {
                Some(held) if part_of(held).is_some() => None,
                Some(held) => Some(Change::Update {
                    address: *address,
                    expected: held.clone(),
                    record: row.clone(),
                }),
                None => Some(Change::Allocate {
                    address: *address,
                    record: row.clone(),
                }),
            };
            addresses.iter().filter_map(change).collect()
        };
        let made = self.world.amend(&of.key(), rows).await?;
        if !made.is_empty() {
            tracing::warn!(%part, %to, "the node's database is older than the loan of this part; it is taken out of use");
        }
        Ok(())
    }

    /// What is out of use of parts, as it is now.
    pub async fn rows_of(
        &self,
        of: &Arc<Sliced>,
        which: impl Fn(Prefix) -> bool,
    ) -> Result<Rows, SliceError> {
        let local = self.world.local.load(&of.key()).await?;
        Ok(rows_in(&local.pool, which))
    }

    /// Puts addresses back into use that are out of it as they were seen: what is so by a later surrender stays.
    pub async fn free_rows(&self, of: &Arc<Sliced>, seen: &Rows) -> Result<(), SliceError> {
        let rows = |pool: &Pool| -> Vec<Change> {
            let still = seen.iter().filter(|(address, row)| {
                let mut holders = pool.holders(*address);
                holders.any(|held| held.same_holder(row))
            });
            still
                .map(|(address, row)| Change::Release {
                    address: *address,
                    expected: row.clone(),
                    cooldown: None,
                })
                .collect()
        };
        self.world.amend(&of.key(), rows).await?;
        Ok(())
    }

    /// Frees the rows that no offer stands behind: a crash came between the row and the offer, or after the offer went.
    /// The gate must be held. Whether it wrote claims.
    pub async fn settle_surrenders(&self, of: &Arc<Sliced>) -> Result<bool, SliceError> {
        let _donating = self.donating.lock().await;
        if !self.has_rows(of).await? {
            return Ok(false);
        }
        // Read under the lock: a donation may have been written since the last look.
        let of_range = Some((of.network.as_str(), of.range));
        let cluster = &self.world.cluster;
        let now = cluster
            .list_slices(of_range, Some(&self.world.node))
            .await?;
        let local = self.world.local.load(&of.key()).await?;
        let parts = local.pool.records().filter_map(|(_, row)| part_of(row));
        let parts: BTreeSet<Prefix> = parts.collect();
        let mut wrote = false;
        for part in parts {
            let rows = rows_in(&local.pool, |row| row == part);
            // A slice that is held lies in itself: what is out of use of all of it was left by a crash, on its way out.
            let held = self.held();
            let is_held = held.iter().any(|one| one.slice == part && one.is_active());
            if now.may_hide(&of.network, part) {
                // The claim that says whose it is may be one that can't be read.
                continue;
            }
            let around = now.claims.iter().filter(|object| {
                object.claim.range.covers(part) && (object.claim.range != part || is_held)
            });
            // The smallest: the offers of that one say whose the part is.
            let Some(object) = around.max_by_key(|object| object.claim.range.length()) else {
                // No slice of ours lies around it: nothing is given from there.
                self.free_rows(of, &rows).await?;
                continue;
            };
            let mut offers = object.claim.offers.iter();
            if offers.any(|offer| offer.range.covers(part)) {
                continue;
            }
            // An offer that was sent before a crash may still arrive; after this write it can't. Lost: the next look.
            let written = self.world.cluster.amend_slice(object, &object.claim);
            if written.await?.is_some() {
                self.free_rows(of, &rows).await?;
                wrote = true;
            }
        }
        Ok(wrote)
    }
}
