//! ADD: allocates one address from every range and every static address, all or none.
//!
//! ```text
//!  claim in every pool ──► reserve across pools, probe ──► answer
//!      ▲ refused: roll back     │ used by another
//!      └── release it, avoid it ◄┘
//! ```
//! A call that fails never releases what the owner held before it (I3): only what is fresh is rolled back. A rollback that
//! fails too leaves a record under this container's id, which its DEL releases.

mod conflict_checks;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::time::Duration;

use berth_attachment::search::{Driver, Held, Search};
use berth_cni::result::IpamResult;
use berth_core::plan::Selector;
use berth_core::{Address, AddressRequest, Allocate, Answer, Record, Refusal, Release, Request};
use berth_ledger::{LedgerError, PoolKey};
use berth_slices::sliced::is_sliced;
use futures::future::join_all;

use crate::attachment::{Attachment, HostContext, attribute};
use crate::by_hand::Allocated;
use crate::config::PodNetwork;
use crate::error::PodError;
use crate::garbage::reboot;
use crate::layout::{Layout, PoolWants};
use crate::reserve::Reservations;
use crate::slice_claim;
use crate::store::Store;

/// After so many rounds of running into others' reservations one by one, all of them are read at once.
pub(crate) const ROUNDS_BEFORE_LISTING: usize = 2;

/// An address of this call, the pool it is allocated in and the slot of the result that it fills.
#[derive(Debug, Clone, PartialEq, Eq)]
struct SlotAddress {
    slot: usize,
    pool: PoolKey,
    address: Address,
}

impl SlotAddress {
    fn allocated(self) -> Allocated {
        Allocated {
            pool: self.pool,
            address: self.address,
        }
    }

    fn key(&self) -> (PoolKey, Address) {
        (self.pool.clone(), self.address)
    }
}

/// Allocates the addresses of `who` on `network`.
pub async fn add(
    store: &Store,
    network: &PodNetwork,
    who: &Attachment,
    host: &HostContext,
) -> Result<IpamResult, PodError> {
    let layout = Layout::of(network);
    let mut record = who.record(&network.name, host);
    if store.in_cluster && store.journal.is_none() {
        record.attributes.remove(attribute::NODE);
    }
    let mut addition = Addition::new(store, network, &layout, record);
    let held = addition.settle().await?;
    if !store.in_cluster {
        let before = held.iter().filter(|held| !held.fresh);
        let before: Vec<_> = before.map(|held| held.item.key()).collect();
        reboot::renew(store, &before, &addition.record).await?;
    }
    if let Some(journal) = &store.journal {
        // A slice's own pool says all that the journal would.
        let shared = held.iter().filter(|held| !is_sliced(&held.item.pool));
        let shared: Vec<_> = shared.map(|held| held.item.key()).collect();
        if !shared.is_empty() && !journal.note(&network.name, &addition.record, &shared).await {
            addition.withhold_node(&shared).await;
        }
    }
    let mut ips = Vec::with_capacity(layout.slots.len());
    for (index, slot) in layout.slots.iter().enumerate() {
        let recorded = held.iter().find(|held| held.item.slot == index);
        let address = recorded.map(|held| held.item.address).or(slot.named);
        ips.extend(address.map(|address| slot.ip_config(address)));
    }
    Ok(IpamResult {
        ips,
        routes: network.routes.clone(),
        dns: network.dns.clone(),
    })
}

/// Allocates an address of every range to `record`, for requests that no runtime makes: the node's journal gets no entry.
pub(crate) async fn allocate(
    store: &Store,
    network: &PodNetwork,
    record: Record,
) -> Result<Vec<Allocated>, PodError> {
    let layout = Layout::of(network);
    let mut addition = Addition::new(store, network, &layout, record);
    let mut held = addition.settle().await?;
    held.sort_by_key(|held| held.item.slot);
    let allocated = held.into_iter().map(|held| held.item.allocated());
    Ok(allocated.collect())
}

/// One call; drives the search for addresses that no other owner uses.
struct Addition<'a> {
    store: &'a Store,
    network: &'a PodNetwork,
    layout: &'a Layout,
    record: Record,
    /// Fresh addresses that this call asked a reservation for: a rollback ends these and no others.
    reserved: BTreeSet<Address>,
}

impl Driver for Addition<'_> {
    type Item = SlotAddress;
    type Key = Address;
    type Error = PodError;

    fn key(&self, item: &SlotAddress) -> Address {
        item.address
    }

    /// Claims in all pools at once.
    async fn allocate(
        &mut self,
        avoid: &BTreeSet<Address>,
        _released: &[SlotAddress],
        held: &mut Vec<Held<SlotAddress>>,
    ) -> Result<(), PodError> {
        let avoid: Vec<Address> = avoid.iter().copied().collect();
        let pools = self.layout.pools.iter();
        let mut outcome = Ok(());
        for claimed in join_all(pools.map(|pool| self.claim(pool, &avoid))).await {
            match claimed {
                Ok(some) => held.extend(some),
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        outcome
    }

    fn is_exhausted(&self, error: &PodError) -> bool {
        matches!(error, PodError::NoAddress(Refusal::Exhausted { .. }))
    }

    fn hints_dropped(&mut self) {
        let hints = &self.store.reservation_hints;
        hints.forget_all(&self.network.network_name);
    }

    async fn verify(&mut self, held: &[Held<SlotAddress>]) -> Result<Vec<SlotAddress>, PodError> {
        let taken = self.held_by_others(held).await;
        let taken = taken.map_err(|error| self.unchecked(error))?;
        match taken.is_empty() {
            true => self.used_on_link(held).await,
            false => Ok(taken),
        }
    }

    async fn release(&mut self, rejected: Vec<SlotAddress>) -> Result<Vec<SlotAddress>, PodError> {
        self.free(&rejected).await?;
        let Some(named) = rejected.iter().find(|lost| self.is_named(lost.slot)) else {
            return Ok(Vec::new());
        };
        let network = &self.network.network_name;
        Err(PodError::Named {
            address: named.address,
            why: format!("it is reserved for another owner in network {network:?}"),
        })
    }

    async fn survey(&mut self) -> Result<Vec<Address>, PodError> {
        Ok(self.reserved_by_others().await?)
    }
}

impl<'a> Addition<'a> {
    fn new(
        store: &'a Store,
        network: &'a PodNetwork,
        layout: &'a Layout,
        record: Record,
    ) -> Addition<'a> {
        Addition {
            store,
            network,
            layout,
            record,
            reserved: BTreeSet::new(),
        }
    }

    /// Searches until no other owner has any of the addresses. On a failure, what this call was the first to hold is
    /// released again.
    async fn settle(&mut self) -> Result<Vec<Held<SlotAddress>>, PodError> {
        let mut search = Search::new(self.hints(), ROUNDS_BEFORE_LISTING);
        let found = search.run(self).await;
        if found.is_err() {
            self.roll_back(search.left()).await;
        }
        found
    }

    async fn claim(
        &self,
        pool: &PoolWants,
        avoid: &[Address],
    ) -> Result<Vec<Held<SlotAddress>>, PodError> {
        // An address that is asked for by name is judged by its own reservation, not by what was read before.
        let wants = pool.wants.iter().map(|(_, want)| match want.exact {
            Some(_) => want.clone(),
            None => AddressRequest {
                avoid: avoid.to_vec(),
                ..want.clone()
            },
        });
        let claim = Allocate {
            record: self.record.clone(),
            wants: wants.collect(),
        };
        match slice_claim::claim(self.store, pool, claim).await? {
            Answer::Granted(granted) => {
                let slots = pool.wants.iter().map(|(slot, _)| *slot);
                let held = slots.zip(granted).map(|(slot, granted)| Held {
                    item: SlotAddress {
                        slot,
                        pool: pool.key.clone(),
                        address: granted.address,
                    },
                    fresh: granted.fresh,
                });
                Ok(held.collect())
            }
            Answer::Refused(refusal) => Err(PodError::NoAddress(refusal)),
            Answer::Released(_) | Answer::Transferred => Ok(Vec::new()),
        }
    }

    /// Frees pool records of this call.
    async fn free(&self, lost: &[SlotAddress]) -> Result<(), PodError> {
        let all = join_all(lost.iter().map(|lost| {
            let release = Release {
                selector: Selector::Address {
                    address: lost.address,
                    holder: self.record.clone(),
                },
                cooldown: Duration::ZERO,
            };
            self.store.ask(&lost.pool, Request::Release(release))
        }))
        .await;
        for freed in all {
            freed?;
        }
        Ok(())
    }

    /// Removes the node from entries that its journal lacks: only the node's own collector would free them, and that one
    /// does not know of them. Entries without a node are judged by their pods alone.
    async fn withhold_node(&self, entries: &[(PoolKey, Address)]) {
        let mut record = self.record.clone();
        record.attributes.remove(attribute::NODE);
        for (pool, address) in entries {
            let without = Request::Transfer {
                address: *address,
                expected: self.record.clone(),
                record: record.clone(),
            };
            if let Err(error) = self.store.ask(pool, without).await {
                tracing::warn!(%address, %pool, %error, "the entry names this node, whose journal lacks it; DEL releases it");
            }
        }
    }

    /// Undoes what this call did, as far as it can.
    async fn roll_back(&self, left: &[SlotAddress]) {
        let reserved = left
            .iter()
            .filter(|left| self.reserved.contains(&left.address));
        if let Err(error) = self.end_reservations(reserved).await {
            tracing::warn!(owner = %self.record.owner, %error, "rollback: reservations stay until DEL");
        }
        if let Err(error) = self.free(left).await {
            tracing::warn!(owner = %self.record.owner, %error, "rollback: records stay until DEL");
        }
    }

    async fn end_reservations(
        &self,
        lost: impl Iterator<Item = &SlotAddress>,
    ) -> Result<(), LedgerError> {
        let reservations = self.reservations();
        let all = lost.map(|lost| reservations.end(&lost.pool, lost.address, &self.record));
        join_all(all).await.into_iter().collect()
    }

    fn is_named(&self, slot: usize) -> bool {
        self.layout
            .slots
            .get(slot)
            .is_some_and(|slot| slot.named.is_some())
    }

    fn reservations(&self) -> Reservations<'_> {
        Reservations::of(self.store, &self.network.network_name)
    }
}
