//! ADD: one address from every range and every static address, all or none.
//!
//! ```text
//!  claim in every pool --> reserve across pools --> answer
//!      | refused               | taken by another
//!      v                       v
//!  free what is fresh      free it, avoid it, claim again
//! ```
//! What the owner held before the call is never freed by a call that fails (I3): only what is fresh is rolled
//! back. A rollback that fails too leaves a record under this container's id, which its DEL frees.

mod others;

use std::time::Duration;

use berth_cni::result::IpamResult;
use berth_core::plan::Selector;
use berth_core::{Address, Answer, Claim, Granted, Record, Refusal, Release, Request, Want};
use berth_ledger::{LedgerError, PoolKey};
use berth_slices::sliced::is_sliced;
use futures::future::join_all;

use crate::attachment::{Attachment, Place, attribute};
use crate::by_hand::Allocated;
use crate::config::PodNetwork;
use crate::cut;
use crate::error::PodError;
use crate::garbage::reboot;
use crate::layout::{Layout, PoolWants};
use crate::reserve::Reservations;
use crate::store::Store;

/// After so many rounds of running into others' reservations one by one, all of them are read at once.
pub(crate) const ROUNDS_BEFORE_LISTING: usize = 2;

/// An address that this call has, and where.
#[derive(Debug, Clone)]
struct Held {
    slot: usize,
    pool: PoolKey,
    granted: Granted,
}

/// Gives `who` its addresses on `network`.
pub async fn add(
    store: &Store,
    network: &PodNetwork,
    who: &Attachment,
    place: &Place,
) -> Result<IpamResult, PodError> {
    let layout = Layout::of(network);
    let mut record = who.record(&network.name, place);
    if store.in_cluster && store.journal.is_none() {
        record.attributes.remove(attribute::NODE);
    }
    let addition = Addition {
        store,
        network,
        layout: &layout,
        record,
    };
    let held = addition.settle().await?;
    if !store.in_cluster {
        let before: Vec<(PoolKey, Address)> = held
            .iter()
            .filter(|held| !held.granted.fresh)
            .map(|held| (held.pool.clone(), held.granted.address))
            .collect();
        reboot::renew(store, &before, &addition.record).await?;
    }
    if let Some(journal) = &store.journal {
        // A slice's own pool says all that the journal would.
        let given: Vec<(PoolKey, Address)> = held
            .iter()
            .filter(|held| !is_sliced(&held.pool))
            .map(|held| (held.pool.clone(), held.granted.address))
            .collect();
        if !given.is_empty() && !journal.note(&network.name, &addition.record, &given).await {
            addition.withhold_node(&given).await;
        }
    }
    let mut ips = Vec::with_capacity(layout.slots.len());
    for (index, slot) in layout.slots.iter().enumerate() {
        let recorded = held.iter().find(|held| held.slot == index);
        let address = recorded.map(|held| held.granted.address).or(slot.named);
        ips.extend(address.map(|address| slot.ip_config(address)));
    }
    Ok(IpamResult {
        ips,
        routes: network.routes.clone(),
        dns: network.dns.clone(),
    })
}

/// Gives `record` an address of every range. For what no runtime asks for: nothing is noted of a node.
pub(crate) async fn allocate(
    store: &Store,
    network: &PodNetwork,
    record: Record,
) -> Result<Vec<Allocated>, PodError> {
    let layout = Layout::of(network);
    let addition = Addition {
        store,
        network,
        layout: &layout,
        record,
    };
    let mut held = addition.settle().await?;
    held.sort_by_key(|held| held.slot);
    let allocated = held.into_iter().map(|held| Allocated {
        pool: held.pool,
        address: held.granted.address,
    });
    Ok(allocated.collect())
}

/// Where a search stands.
#[derive(Debug, Default)]
struct Search {
    rounds: usize,
    /// The addresses that this call was the first to hold.
    ours: Vec<Address>,
    /// Found to be another's in this call.
    proven: Vec<Address>,
    /// Found to be another's a moment ago.
    hints: Vec<Address>,
}

impl Search {
    fn avoid(&self) -> Vec<Address> {
        self.proven.iter().chain(&self.hints).copied().collect()
    }

    fn gain(&mut self, held: &[Held]) {
        let fresh = held.iter().filter(|held| held.granted.fresh);
        self.ours.extend(fresh.map(|held| held.granted.address));
    }

    /// Whether there were any.
    fn give_up_hints(&mut self) -> bool {
        !std::mem::take(&mut self.hints).is_empty()
    }
}

struct Addition<'a> {
    store: &'a Store,
    network: &'a PodNetwork,
    layout: &'a Layout,
    record: Record,
}

impl Addition<'_> {
    /// Rounds of claiming and reserving until nobody else has any of the addresses. Whatever goes wrong, what
    /// this call was the first to hold is freed again.
    async fn settle(&self) -> Result<Vec<Held>, PodError> {
        let mut search = Search {
            hints: self.hints(),
            ..Search::default()
        };
        loop {
            match self.round(&mut search).await {
                Ok(Some(held)) => return Ok(held),
                Ok(None) => {}
                Err((held, error)) => {
                    self.roll_back(held, &search.ours).await;
                    return Err(error);
                }
            }
        }
    }

    /// One round: the addresses, nothing if some of them are taken, or an error and what is held all the same.
    async fn round(&self, search: &mut Search) -> Result<Option<Vec<Held>>, (Vec<Held>, PodError)> {
        let held = match self.claim(&search.avoid()).await {
            Ok(held) => held,
            // Hints may be out of date: nobody is refused because of them.
            Err((held, PodError::NoAddress(Refusal::Exhausted { .. })))
                if search.give_up_hints() =>
            {
                search.gain(&held);
                self.store.foreign.forget_all(&self.network.network_name);
                return Ok(None);
            }
            Err(failed) => return Err(failed),
        };
        search.gain(&held);
        let taken = match self.taken(&held).await {
            Ok(taken) => taken,
            Err(error) => return Err((held, self.unchecked(error))),
        };
        if taken.is_empty() {
            return self.probed(search, held).await;
        }
        let (lost, kept): (Vec<Held>, Vec<Held>) = held
            .into_iter()
            .partition(|held| taken.contains(&held.slot));
        if let Err(error) = self.free(&lost).await {
            return Err((kept, error));
        }
        if let Some(named) = lost.iter().find(|held| self.is_named(held.slot)) {
            let address = named.granted.address;
            let network = &self.network.network_name;
            let why = format!("it is reserved for another owner in network {network:?}");
            return Err((kept, PodError::Named { address, why }));
        }
        let addresses = lost.iter().map(|held| held.granted.address);
        search.proven.extend(addresses);
        search.rounds += 1;
        if search.rounds > ROUNDS_BEFORE_LISTING {
            match self.everything_reserved().await {
                Ok(reserved) => search.proven.extend(reserved),
                Err(error) => return Err((kept, error.into())),
            }
        }
        Ok(None)
    }

    /// Claims in all pools at once. On a failure, gives back what was got all the same.
    async fn claim(&self, avoid: &[Address]) -> Result<Vec<Held>, (Vec<Held>, PodError)> {
        let all = join_all(
            self.layout
                .pools
                .iter()
                .map(|pool| self.claim_one(pool, avoid)),
        )
        .await;
        let mut held = Vec::new();
        let mut failure = None;
        for outcome in all {
            match outcome {
                Ok(some) => held.extend(some),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        match failure {
            Some(error) => Err((held, error)),
            None => Ok(held),
        }
    }

    async fn claim_one(&self, pool: &PoolWants, avoid: &[Address]) -> Result<Vec<Held>, PodError> {
        // An address that is asked for by name is judged by its own reservation, not by what was seen before.
        let wants = pool.wants.iter().map(|(_, want)| match want.exact {
            Some(_) => want.clone(),
            None => Want {
                avoid: avoid.to_vec(),
                ..want.clone()
            },
        });
        let claim = Claim {
            record: self.record.clone(),
            wants: wants.collect(),
        };
        let answer = cut::claim(self.store, pool, claim).await?;
        match answer {
            Answer::Granted(granted) => {
                let held = pool
                    .wants
                    .iter()
                    .zip(granted)
                    .map(|((slot, _), granted)| Held {
                        slot: *slot,
                        pool: pool.key.clone(),
                        granted,
                    });
                Ok(held.collect())
            }
            Answer::Refused(refusal) => Err(PodError::NoAddress(refusal)),
            Answer::Released(_) | Answer::Reowned => Ok(Vec::new()),
        }
    }

    /// Frees pool records of this call.
    async fn free(&self, lost: &[Held]) -> Result<(), PodError> {
        let all = join_all(lost.iter().map(|held| {
            let release = Release {
                selector: Selector::Address {
                    address: held.granted.address,
                    holder: self.record.clone(),
                },
                rest: Duration::ZERO,
            };
            self.store.ask(&held.pool, Request::Release(release))
        }))
        .await;
        for freed in all {
            freed?;
        }
        Ok(())
    }

    /// Takes the node out of entries that its journal lacks: no collector but the node's own would free them, and that one
    /// does not know of them. Entries without a node are judged by their pods alone.
    async fn withhold_node(&self, given: &[(PoolKey, Address)]) {
        let mut record = self.record.clone();
        record.attributes.remove(attribute::NODE);
        for (pool, address) in given {
            let without = Request::Reown {
                address: *address,
                expected: self.record.clone(),
                record: record.clone(),
            };
            if let Err(error) = self.store.ask(pool, without).await {
                tracing::warn!(%address, %pool, %error, "the entry names this node, whose journal lacks it: DEL frees it");
            }
        }
    }

    /// Undoes what this call did, as far as it can. `ours` are the addresses it was the first to hold.
    async fn roll_back(&self, held: Vec<Held>, ours: &[Address]) {
        let is_ours = |held: &Held| ours.contains(&held.granted.address) || held.granted.fresh;
        let fresh: Vec<Held> = held.into_iter().filter(is_ours).collect();
        if self.network.overlap_checks
            && let Err(error) = self.end_reservations(&fresh).await
        {
            tracing::warn!(owner = %self.record.owner, %error, "rollback: reservations stay until DEL");
        }
        if let Err(error) = self.free(&fresh).await {
            tracing::warn!(owner = %self.record.owner, %error, "rollback: records stay until DEL");
        }
    }

    async fn end_reservations(&self, lost: &[Held]) -> Result<(), LedgerError> {
        let reservations = self.reservations();
        let all = lost
            .iter()
            .map(|held| reservations.end(&held.pool, held.granted.address, &self.record));
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
