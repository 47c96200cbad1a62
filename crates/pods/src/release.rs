//! Frees records of a pool together with their reservations.
//!
//! The reservation goes first, the record second: the reverse of the order in which they were made. A crash in
//! between leaves a record without a reservation, which the repeated DEL releases; the other order would leave a
//! reservation that no record leads to. Both name the container: where the pod was made again meanwhile, both stay.

use std::time::Duration;

use berth_core::plan::Selector;
use berth_core::{Address, Answer, Owner, Record, Refusal, Release, Request};
use berth_ledger::{LedgerError, PoolKey};
use berth_slices::sliced::is_sliced;
use futures::future::join_all;

use crate::config::PodNetwork;
use crate::error::PodError;
use crate::reserve::Reservations;
use crate::sticky::Retention;
use crate::store::Store;
use crate::teardown::Errors;
use berth_collector::observed::PodRef;

/// Releases each of `held`, whose holders were read from the pool; returns what was released.
///
/// A record that has another holder by now stays, and its new holder's reservation with it (I6).
pub(crate) async fn free(
    store: &Store,
    network: &PodNetwork,
    pool: &PoolKey,
    held: Vec<(Address, Record)>,
) -> Result<Vec<Address>, PodError> {
    let held = unkept(store, network, held).await?;
    let all = held
        .iter()
        .map(|(address, record)| free_one(store, network, pool, *address, record));
    let mut freed = Vec::new();
    let mut errors = Errors::default();
    for outcome in join_all(all).await {
        match outcome {
            Ok(address) => freed.extend(address),
            Err(error) => errors.push(error),
        }
    }
    errors.into_result(freed)
}

/// Those that are not kept beyond their pod.
async fn unkept(
    store: &Store,
    network: &PodNetwork,
    held: Vec<(Address, Record)>,
) -> Result<Vec<(Address, Record)>, PodError> {
    let retention = Retention::from(&network.settings);
    let Some(sticky) = store.sticky.as_ref().filter(|_| retention.any()) else {
        return Ok(held);
    };
    let mut free = Vec::with_capacity(held.len());
    for (address, record) in held {
        let kept = match PodRef::parse(&record.owner.subject) {
            Some(pod) => {
                let names = [network.name.as_str()];
                sticky.keeps(retention, &names, &pod, address).await?
            }
            None => false,
        };
        if !kept {
            free.push((address, record));
        }
    }
    Ok(free)
}

async fn free_one(
    store: &Store,
    network: &PodNetwork,
    pool: &PoolKey,
    address: Address,
    record: &Record,
) -> Result<Option<Address>, PodError> {
    let reservations = Reservations::of(store, &network.network_name);
    if network.overlap_checks {
        let ended = reservations.end(pool, address, record).await;
        match ended {
            // The node's own record decides; a reservation without one is ended by the next sweep.
            Err(error) if is_sliced(pool) && is_away(&error) => {
                tracing::warn!(%address, owner = %record.owner, %error, "a reservation stays until the next sweep");
            }
            ended => ended?,
        }
    }
    let selector = Selector::Address {
        address,
        holder: record.clone(),
    };
    let answer = release(store, pool, selector, network.settings.cooldown).await?;
    match answer {
        Answer::Released(freed) => Ok((!freed.is_empty()).then_some(address)),
        Answer::Refused(Refusal::Held { by, .. }) if by == record.owner => {
            if network.overlap_checks {
                reserve_again(store, &reservations, pool, address, &by).await?;
            }
            Ok(None)
        }
        _ => Ok(None),
    }
}

/// The pod was made again, by a writer that does not say so in the reservation, and took the record over between our read
/// and our release: what we deleted was its reservation.
async fn reserve_again(
    store: &Store,
    reservations: &Reservations<'_>,
    pool: &PoolKey,
    address: Address,
    owner: &Owner,
) -> Result<(), PodError> {
    let now = store.load(pool).await?;
    let Some(holder) = now.pool.holders(address).find(|held| held.owner == *owner) else {
        return Ok(());
    };
    if !reservations.reserve(holder, &[address]).await?.is_empty() {
        tracing::error!(%address, %owner, "another owner has reserved the address of a living pod; delete one of the two pods");
    }
    Ok(())
}

/// Whether the API server could not be asked, as opposed to what it answered.
pub(crate) fn is_away(error: &LedgerError) -> bool {
    matches!(
        error,
        LedgerError::Unavailable { .. } | LedgerError::Uncertain { .. }
    )
}

/// Releases by a selector, with the network's cooldown.
pub(crate) async fn release(
    store: &Store,
    pool: &PoolKey,
    selector: Selector,
    cooldown: Duration,
) -> Result<Answer, PodError> {
    let release = Release { selector, cooldown };
    Ok(store.ask(pool, Request::Release(release)).await?)
}
