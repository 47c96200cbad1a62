//! Reservations: one address across pools whose ranges overlap, claimed by the name of an object.
//!
//! A reservation is created after the pool's record. So the record, which everybody who shares the pool reads, exists
//! whenever the reservation does; a repeated ADD that finds a record without a reservation (after a crash in between) creates
//! the reservation.
//!
//! It names the container too. An ADD that takes over a pool's record writes its own container into the reservation before
//! it answers ([`make`]): the reservation is transferred, and its name is free at no time. So a late DEL of the former container
//! finds another container's reservation and ends nothing ([`end`]). Where a reservation names no container (whereabouts
//! writes none), the pool's record says whose it is.

use berth_api::names;
use berth_core::{Address, Owner, Record};
use berth_ledger::{ClaimKey, ClaimKind, LedgerError, PoolKey, RecordLedger};
use futures::future::join_all;

use crate::attachment::attribute;
use crate::store::Store;

/// Reads of a reservation that others change meanwhile.
const TRIES: usize = 3;

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

    /// Reserves each address for `holder`; returns those that another owner has.
    pub async fn reserve(
        &self,
        holder: &Record,
        addresses: &[Address],
    ) -> Result<Vec<Address>, LedgerError> {
        let keys: Vec<ClaimKey> = addresses.iter().map(|address| self.key(*address)).collect();
        let ledger = &*self.store.ledger;
        let all = join_all(keys.iter().map(|key| make(ledger, key, holder))).await;
        let mut taken = Vec::new();
        for (address, reserved) in addresses.iter().zip(all) {
            if !reserved? {
                taken.push(*address);
            }
        }
        if !taken.is_empty() {
            let hints = &self.store.reservation_hints;
            hints.note(self.network_name, &taken);
        }
        Ok(taken)
    }

    /// Ends the reservation of an address that `holder` has or had in that pool. One that is another's stays (I6).
    pub async fn end(
        &self,
        pool: &PoolKey,
        address: Address,
        holder: &Record,
    ) -> Result<(), LedgerError> {
        let hints = &self.store.reservation_hints;
        hints.forget(self.network_name, address);
        let key = self.key(address);
        end(&*self.store.ledger, &key, (pool, address), holder).await
    }

    /// Who has the reservation.
    pub async fn holder(&self, address: Address) -> Result<Option<Record>, LedgerError> {
        self.store.ledger.get(&self.key(address)).await
    }

    /// Transfers the reservation from one holder to another; false if `from` does not have it any more.
    pub async fn transfer(
        &self,
        address: Address,
        from: &Record,
        to: &Record,
    ) -> Result<bool, LedgerError> {
        let key = self.key(address);
        untaken(
            self.store
                .ledger
                .transfer(&key, from, &reservation_record(to))
                .await,
        )
    }

    /// Whether `owner` has the reservation.
    pub async fn is_held(&self, owner: &Owner, address: Address) -> Result<bool, LedgerError> {
        let held = self.store.ledger.get(&self.key(address)).await?;
        Ok(held.is_some_and(|held| is_ours(&held, owner)))
    }

    /// Whether anybody has the reservation.
    pub async fn is_taken(&self, address: Address) -> Result<bool, LedgerError> {
        let held = self.store.ledger.get(&self.key(address)).await?;
        Ok(held.is_some())
    }

    /// Every address that another owner has reserved: for a search that keeps running into them.
    pub async fn of_others(&self, owner: &Owner) -> Result<Vec<Address>, LedgerError> {
        self.addresses(|held| !is_ours(held, owner)).await
    }

    /// Every address that is reserved.
    pub async fn all(&self) -> Result<Vec<Address>, LedgerError> {
        self.addresses(|_| true).await
    }

    /// The addresses of those reservations; nothing else of them is kept.
    async fn addresses(
        &self,
        wanted: impl Fn(&Record) -> bool + Send + Sync,
    ) -> Result<Vec<Address>, LedgerError> {
        let mut found = Vec::new();
        let mut keep = |key: ClaimKey, held: Record| {
            if wanted(&held) {
                found.extend(self.address(&key.name));
            }
        };
        let ledger = &self.store.ledger;
        ledger.visit(ClaimKind::Reservation, &mut keep).await?;
        Ok(found)
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

/// Creates the reservation, or takes over the one that the same owner has; false if another owner has it.
pub(crate) async fn make(
    ledger: &dyn RecordLedger,
    key: &ClaimKey,
    holder: &Record,
) -> Result<bool, LedgerError> {
    let holder = reservation_record(holder);
    for _ in 0..TRIES {
        if untaken(ledger.create(key, &holder).await)? {
            return Ok(true);
        }
        match ledger.get(key).await? {
            Some(found) if !is_ours(&found, &holder.owner) => return Ok(false),
            Some(found) if untaken(ledger.transfer(key, &found, &holder).await)? => {
                return Ok(true);
            }
            // Ended, or transferred, between the two.
            _ => {}
        }
    }
    // Others keep changing it: another address is faster.
    Ok(false)
}

/// Ends a reservation that `holder` has, or that its owner has for no other container.
///
/// One that does not name the holder's container is judged by the pool, which is read after the reservation: a container that
/// took the record over is either seen there or has changed the reservation since, and then it is not ended.
pub(crate) async fn end(
    ledger: &dyn RecordLedger,
    key: &ClaimKey,
    (pool, address): (&PoolKey, Address),
    holder: &Record,
) -> Result<(), LedgerError> {
    for _ in 0..TRIES {
        if untaken(ledger.delete(key, holder).await)? {
            return Ok(());
        }
        let found = match ledger.get(key).await? {
            Some(found) if is_ours(&found, &holder.owner) => found,
            _ => return Ok(()),
        };
        let now = ledger.load(pool).await?;
        let transferred =
            |record: &Record| record.owner == holder.owner && record.handle != holder.handle;
        if now.pool.holders(address).any(transferred) {
            return Ok(());
        }
        if untaken(ledger.delete(key, &found).await)? {
            return Ok(());
        }
    }
    Ok(())
}

/// Whether it was done: false if another owner has it.
fn untaken(done: Result<(), LedgerError>) -> Result<bool, LedgerError> {
    match done {
        Ok(()) => Ok(true),
        Err(LedgerError::Taken { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// What a reservation keeps of a record.
fn reservation_record(holder: &Record) -> Record {
    let bare = Record::new(holder.owner.clone(), holder.handle.clone());
    match holder.attribute(attribute::NODE) {
        Some(node) => bare.with(attribute::NODE, node),
        None => bare,
    }
}

/// Reservations of older writers do not name the interface.
pub(crate) fn is_ours(held: &Record, owner: &Owner) -> bool {
    held.owner == *owner || (held.owner.subject == owner.subject && held.owner.part.is_empty())
}

#[cfg(test)]
mod tests {
    use berth_core::{Change, Handle};
    use berth_ledger::{Ledger, MemoryLedger, Records};

    use super::*;

    fn mk_holder(subject: &str, container: &str) -> Record {
        Record::new(Owner::new(subject, "net1"), Handle::new(container))
    }

    /// The DEL comes late: the pool's entry may be another container's by now.
    #[tokio::test]
    async fn a_reservation_goes_with_its_container_or_with_the_last_entry() {
        let address: Address = "10.0.0.7".parse().unwrap();
        let pool = PoolKey::of_network("10.0.0.0-24", "10.0.0.0/24".parse().unwrap());
        let key = ClaimKey::new(ClaimKind::Reservation, "10.0.0.7");
        let holder = mk_holder("ns/p", "old");
        for (reserved, entry, stays) in [
            (mk_holder("ns/p", "old"), Some("old"), false),
            (mk_holder("ns/p", "old"), None, false),
            (mk_holder("ns/p", "new"), Some("new"), true),
            (mk_holder("ns/q", "old"), None, true),
            // Another writer's, that does not name the container, or not the last one.
            (mk_holder("ns/p", ""), Some("old"), false),
            (mk_holder("ns/p", ""), None, false),
            (mk_holder("ns/p", ""), Some("new"), true),
            (mk_holder("ns/p", "older"), Some("old"), false),
        ] {
            let ledger = MemoryLedger::new();
            ledger.create(&key, &reserved).await.unwrap();
            if let Some(container) = entry {
                let record = mk_holder("ns/p", container);
                let claim = Change::Allocate { address, record };
                let base = ledger.load(&pool).await.unwrap().version;
                ledger.commit(&pool, &base, &[claim], None).await.unwrap();
            }
            end(&ledger, &key, (&pool, address), &holder).await.unwrap();
            let left = ledger.get(&key).await.unwrap();
            assert_eq!(left.is_some(), stays, "{reserved:?} {entry:?}");
        }
    }
}
