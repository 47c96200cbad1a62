//! Whether another owner has what an ADD has allocated: by a reservation, in another pool of the same call, or on the link.
//!
//! Guarantees: what another owner has is rejected, to be released and avoided; an address goes unchecked only while the API
//! server is away, and only where no other network could have allocated it.

use std::collections::BTreeSet;

use berth_attachment::search::Held;
use berth_core::{Address, Record};
use berth_ledger::LedgerError;

use super::{Addition, SlotAddress};
use crate::error::PodError;
use crate::layout::PoolWants;
use crate::release::is_away;
use berth_probe::Link;

impl Addition<'_> {
    /// The addresses that another owner has by reservation, or this same call in another pool. The others are reserved.
    pub(super) async fn held_by_others(
        &mut self,
        held: &[Held<SlotAddress>],
    ) -> Result<Vec<SlotAddress>, LedgerError> {
        let (mut kept, mut taken): (Vec<&Held<SlotAddress>>, Vec<&Held<SlotAddress>>) =
            (Vec::new(), Vec::new());
        for (index, one) in held.iter().enumerate() {
            let mut before = held.iter().take(index).map(|held| &held.item);
            let item = &one.item;
            match before.any(|other| other.address == item.address && other.pool != item.pool) {
                true => taken.push(one),
                false => kept.push(one),
            }
        }
        if self.network.overlap_checks {
            let fresh = kept.iter().filter(|held| held.fresh);
            self.reserved.extend(fresh.map(|held| held.item.address));
            let addresses: Vec<Address> = kept.iter().map(|held| held.item.address).collect();
            let others = match self.reservations().reserve(&self.record, &addresses).await {
                Err(error) if is_away(&error) && self.may_reserve_later(&kept) => {
                    self.reserve_later(&addresses).await?;
                    Vec::new()
                }
                reserved => {
                    let others = reserved?;
                    self.note_proofs().await;
                    others
                }
            };
            let lost = |held: &&Held<SlotAddress>| others.contains(&held.item.address);
            taken.extend(kept.into_iter().filter(lost));
        }
        Ok(taken.into_iter().map(|held| held.item.clone()).collect())
    }

    /// Whether no other network can have allocated these: they are of slices, of networks that overlap no other.
    fn may_reserve_later(&self, held: &[&Held<SlotAddress>]) -> bool {
        let proved = |pool: &PoolWants| match (self.store.slices(), &pool.sliced) {
            (Some(slices), Some(of)) => slices.is_disjoint(of),
            _ => false,
        };
        let of_slice = |held: &&Held<SlotAddress>| {
            let mut pools = self.layout.pools.iter();
            pools.any(|pool| pool.key == held.item.pool && proved(pool))
        };
        self.network.settings.reserve_later && held.iter().all(of_slice)
    }

    /// Records which networks are disjoint, for the time when the API server is away.
    async fn note_proofs(&self) {
        let Some(slices) = self.store.slices() else {
            return;
        };
        if self.network.settings.reserve_later {
            for of in self
                .layout
                .pools
                .iter()
                .filter_map(|pool| pool.sliced.as_ref())
            {
                slices.note_proof(of).await;
            }
        }
    }

    async fn reserve_later(&self, addresses: &[Address]) -> Result<(), LedgerError> {
        let Some(slices) = self.store.slices() else {
            return Ok(());
        };
        let holder = Record::new(self.record.owner.clone(), self.record.handle.clone());
        for address in addresses {
            let name = self.reservations().name(*address);
            tracing::warn!(%address, owner = %holder.owner, "allocated without a check: the API server is away, and no other network overlaps");
            slices.reserve_later(&name, &holder).await?;
        }
        Ok(())
    }

    /// The address is this node's, and the API server can't be asked whether another network has allocated it too.
    pub(super) fn unchecked(&self, error: LedgerError) -> PodError {
        let sliced = self.layout.pools.iter().any(|pool| pool.sliced.is_some());
        if sliced && is_away(&error) {
            PodError::Unchecked(error)
        } else {
            error.into()
        }
    }

    /// Every address of the network that another owner has reserved, from one listing.
    pub(super) async fn reserved_by_others(&self) -> Result<Vec<Address>, LedgerError> {
        if !self.network.overlap_checks {
            return Ok(Vec::new());
        }
        let reserved = self.reservations().of_others(&self.record.owner).await?;
        let hints = &self.store.reservation_hints;
        hints.note(&self.network.network_name, &reserved);
        Ok(reserved)
    }

    /// What others had reserved a moment ago.
    pub(super) fn hints(&self) -> BTreeSet<Address> {
        if !self.network.overlap_checks {
            return BTreeSet::new();
        }
        let networks = self.layout.pools.iter().filter_map(|pool| pool.key.network);
        let hints = &self.store.reservation_hints;
        hints.known(&self.network.network_name, networks)
    }

    /// The fresh addresses that a host on the link uses, where the network asks for a probe. Their reservations are ended.
    pub(super) async fn used_on_link(
        &self,
        held: &[Held<SlotAddress>],
    ) -> Result<Vec<SlotAddress>, PodError> {
        let fresh: Vec<&SlotAddress> = held
            .iter()
            .filter(|held| held.fresh)
            .map(|held| &held.item)
            .collect();
        if !self.network.settings.probe || fresh.is_empty() {
            return Ok(Vec::new());
        }
        if self.network.link.is_empty() {
            let why = "the configuration names neither a master nor a bridge to probe on";
            return Err(PodError::Probe(why.to_owned()));
        }
        let link = Link {
            interface: self.network.link.clone(),
            netns: None,
        };
        let addresses = fresh.iter().map(|held| held.address).collect();
        let used = berth_probe::in_use(link, addresses).await;
        let used = used.map_err(|error| PodError::Probe(error.to_string()))?;
        let lost = fresh.iter().filter(|held| used.contains(&held.address));
        let lost: Vec<SlotAddress> = lost.map(|held| (*held).clone()).collect();
        if let Some(named) = lost.iter().find(|lost| self.is_named(lost.slot)) {
            let why = "a host on the link answers for it".to_owned();
            let address = named.address;
            return Err(PodError::Named { address, why });
        }
        if let Some(first) = lost.first() {
            tracing::warn!(address = %first.address, link = %self.network.link, "a host on the link uses an address that is free in its pool");
        }
        if self.network.overlap_checks {
            self.end_reservations(lost.iter()).await?;
        }
        Ok(lost)
    }
}
