//! Whether somebody else has what an ADD has claimed: by a reservation, in another pool of the same call, or on the link.
//!
//! Promises: what another has is named, to be freed and avoided; an address goes unchecked only while the API server is
//! away, and only where no other network could have given it.

use berth_core::{Address, Record};
use berth_ledger::LedgerError;

use super::{Addition, Held, Search};
use crate::error::PodError;
use crate::layout::PoolWants;
use crate::probe::{self, Link};
use crate::release::is_away;

impl Addition<'_> {
    /// The slots whose address somebody else has: by reservation, or this same call in another pool.
    pub(super) async fn taken(&self, held: &[Held]) -> Result<Vec<usize>, LedgerError> {
        let mut taken: Vec<usize> = Vec::new();
        for (index, one) in held.iter().enumerate() {
            let before = held.iter().take(index);
            let twice = |other: &Held| {
                other.granted.address == one.granted.address && other.pool != one.pool
            };
            if before.into_iter().any(twice) {
                taken.push(one.slot);
            }
        }
        if self.network.overlap_checks {
            let free: Vec<&Held> = held
                .iter()
                .filter(|one| !taken.contains(&one.slot))
                .collect();
            let addresses: Vec<Address> = free.iter().map(|one| one.granted.address).collect();
            let reserved = self.reservations().reserve(&self.record, &addresses).await;
            let foreign = match reserved {
                Err(error) if is_away(&error) && self.may_reserve_later(&free) => {
                    self.reserve_later(&addresses).await?;
                    Vec::new()
                }
                reserved => {
                    let foreign = reserved?;
                    self.note_proofs().await;
                    foreign
                }
            };
            let lost = free
                .iter()
                .filter(|one| foreign.contains(&one.granted.address));
            taken.extend(lost.map(|one| one.slot));
        }
        Ok(taken)
    }

    /// Whether nobody else can have given these: they are of slices, of networks that overlap no other.
    fn may_reserve_later(&self, held: &[&Held]) -> bool {
        let proved = |pool: &PoolWants| match (self.store.slices(), &pool.sliced) {
            (Some(slices), Some(of)) => slices.is_disjoint(of),
            _ => false,
        };
        let of_slice = |held: &&Held| {
            let mut pools = self.layout.pools.iter();
            pools.any(|pool| pool.key == held.pool && proved(pool))
        };
        self.network.settings.reserve_later && held.iter().all(of_slice)
    }

    /// Learns what may be given unchecked later, while there is somebody to learn it from.
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
            tracing::warn!(%address, owner = %holder.owner, "given without a check: the API server is away, and no other network overlaps");
            slices.reserve_later(&name, &holder).await?;
        }
        Ok(())
    }

    /// The address is this node's, and nobody can be asked whether another network has given it too.
    pub(super) fn unchecked(&self, error: LedgerError) -> PodError {
        let sliced = self.layout.pools.iter().any(|pool| pool.sliced.is_some());
        if sliced && is_away(&error) {
            PodError::Unchecked(error)
        } else {
            error.into()
        }
    }

    /// Every address of our ranges that another has reserved, from one listing.
    pub(super) async fn everything_reserved(&self) -> Result<Vec<Address>, LedgerError> {
        let reserved = self.reservations().foreign(&self.record.owner).await?;
        self.store
            .foreign
            .saw(&self.network.network_name, &reserved);
        Ok(reserved)
    }

    /// What others had reserved a moment ago.
    pub(super) fn hints(&self) -> Vec<Address> {
        if !self.network.overlap_checks {
            return Vec::new();
        }
        let networks = self.layout.pools.iter().filter_map(|pool| pool.key.network);
        self.store
            .foreign
            .known(&self.network.network_name, networks)
    }

    /// What is held, if nobody on the link uses any of it; nothing if somebody does: that is freed and avoided.
    pub(super) async fn probed(
        &self,
        search: &mut Search,
        held: Vec<Held>,
    ) -> Result<Option<Vec<Held>>, (Vec<Held>, PodError)> {
        let fresh: Vec<Address> = held
            .iter()
            .map(|held| held.granted.address)
            .filter(|address| search.ours.contains(address))
            .collect();
        if !self.network.settings.probe || fresh.is_empty() {
            return Ok(Some(held));
        }
        if self.network.link.is_empty() {
            let why = "the configuration names neither a master nor a bridge to ask on";
            return Err((held, PodError::Probe(why.to_owned())));
        }
        let link = Link {
            interface: self.network.link.clone(),
            netns: None,
        };
        let used = match probe::in_use(link, fresh).await {
            Ok(used) => used,
            Err(error) => return Err((held, PodError::Probe(error.to_string()))),
        };
        let is_used = |held: &Held| used.contains(&held.granted.address);
        let Some(first) = held.iter().find(|held| is_used(held)) else {
            return Ok(Some(held));
        };
        if let Some(named) = held
            .iter()
            .find(|held| is_used(held) && self.is_named(held.slot))
        {
            let address = named.granted.address;
            let why = "somebody on the link answers for it".to_owned();
            return Err((held, PodError::Named { address, why }));
        }
        tracing::warn!(address = %first.granted.address, link = %self.network.link, "somebody on the link uses an address that its pool has free");
        let lost: Vec<Held> = held.iter().filter(|held| is_used(held)).cloned().collect();
        if self.network.overlap_checks
            && let Err(error) = self.end_reservations(&lost).await
        {
            return Err((held, error.into()));
        }
        if let Err(error) = self.free(&lost).await {
            return Err((held, error));
        }
        search.proven.extend(used);
        Ok(None)
    }
}
