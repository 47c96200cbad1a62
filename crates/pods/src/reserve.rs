//! One address across pools whose ranges overlap: the reservation, a claim by name.
//!
//! A reservation is made after the pool's record and ended before it. So the pool's record, which everybody who
//! shares the pool reads, is there whenever the reservation is; and whoever finds a record without a reservation
//! (a crash in between) makes it good by asking again.

use berth_api::names;
use berth_core::{Address, Handle, Owner, Record};
use berth_ledger::{ClaimKey, ClaimKind, LedgerError};
use futures::future::join_all;

use crate::store::Store;

/// The reservations of one network.
#[derive(Debug, Clone, Copy)]
pub struct Reservations<'a> {
    store: &'a Store,
    network_name: &'a str,
}

impl<'a> Reservations<'a> {
    pub fn of(store: &'a Store, network_name: &'a str) -> Self {
        Reservations {
            store,
            network_name,
        }
    }

    /// Reserves each address for `owner`; gives back those that somebody else has.
    pub async fn reserve(
        &self,
        owner: &Owner,
        addresses: &[Address],
    ) -> Result<Vec<Address>, LedgerError> {
        let all = join_all(
            addresses
                .iter()
                .map(|address| self.reserve_one(owner, *address)),
        )
        .await;
        let mut taken = Vec::new();
        for (address, reserved) in addresses.iter().zip(all) {
            if !reserved? {
                taken.push(*address);
            }
        }
        if !taken.is_empty() {
            self.store.foreign.saw(self.network_name, &taken);
        }
        Ok(taken)
    }

    async fn reserve_one(&self, owner: &Owner, address: Address) -> Result<bool, LedgerError> {
        let key = self.key(address);
        match self.store.ledger.create(&key, &record(owner)).await {
            Ok(()) => Ok(true),
            Err(LedgerError::Taken { .. }) => match self.store.ledger.claim(&key).await? {
                Some(held) => Ok(is_ours(&held, owner)),
                // Ended between the two: the next round makes it.
                None => self
                    .store
                    .ledger
                    .create(&key, &record(owner))
                    .await
                    .map(|()| true),
            },
            Err(error) => Err(error),
        }
    }

    /// Ends the reservations that `owner` has. One that is another's stays (I6).
    pub async fn end(&self, owner: &Owner, addresses: &[Address]) -> Result<(), LedgerError> {
        let all = join_all(
            addresses
                .iter()
                .map(|address| self.end_one(owner, *address)),
        )
        .await;
        all.into_iter().collect()
    }

    async fn end_one(&self, owner: &Owner, address: Address) -> Result<(), LedgerError> {
        let key = self.key(address);
        self.store.foreign.forget(self.network_name, address);
        match self.store.ledger.remove(&key, &record(owner)).await {
            Err(LedgerError::Taken { .. }) => match self.store.ledger.claim(&key).await? {
                Some(held) if is_ours(&held, owner) => self.store.ledger.remove(&key, &held).await,
                _ => Ok(()),
            },
            other => other,
        }
    }

    /// Whether `owner` has the reservation.
    pub async fn is_held(&self, owner: &Owner, address: Address) -> Result<bool, LedgerError> {
        let held = self.store.ledger.claim(&self.key(address)).await?;
        Ok(held.is_some_and(|held| is_ours(&held, owner)))
    }

    /// Whether anybody has the reservation.
    pub async fn is_taken(&self, address: Address) -> Result<bool, LedgerError> {
        let held = self.store.ledger.claim(&self.key(address)).await?;
        Ok(held.is_some())
    }

    /// Every address that somebody else has reserved: for a search that keeps running into them.
    pub async fn foreign(&self, owner: &Owner) -> Result<Vec<Address>, LedgerError> {
        let claims = self.store.ledger.claims(ClaimKind::Reservation).await?;
        let foreign = claims.into_iter().filter(|(_, held)| !is_ours(held, owner));
        Ok(foreign
            .filter_map(|(key, _)| self.address(&key.name))
            .collect())
    }

    /// Every address that is reserved.
    pub async fn all(&self) -> Result<Vec<Address>, LedgerError> {
        let claims = self.store.ledger.claims(ClaimKind::Reservation).await?;
        Ok(claims
            .iter()
            .filter_map(|(key, _)| self.address(&key.name))
            .collect())
    }

    /// The address that a reservation of this network is named after.
    fn address(&self, name: &str) -> Option<Address> {
        let text = match self.network_name {
            "" => name,
            network => name.strip_prefix(network)?.strip_prefix('-')?,
        };
        Address::parse_lenient(text).or_else(|| Address::parse_lenient(&text.replace('-', ":")))
    }

    /// The name of an address's reservation.
    pub fn name(&self, address: Address) -> String {
        names::reservation(self.network_name, address)
    }

    fn key(&self, address: Address) -> ClaimKey {
        ClaimKey::new(ClaimKind::Reservation, self.name(address))
    }
}

/// A reservation names the pod and the interface, never the container: it outlives a container that is made
/// again, as the pool's record does.
fn record(owner: &Owner) -> Record {
    Record::new(owner.clone(), Handle::default())
}

/// Reservations of older writers do not name the interface.
fn is_ours(held: &Record, owner: &Owner) -> bool {
    held.owner == *owner || (held.owner.subject == owner.subject && held.owner.part.is_empty())
}
