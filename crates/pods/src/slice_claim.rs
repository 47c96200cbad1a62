//! Allocates from this node's slices, and from more of them when they are full.

use std::sync::Arc;

use berth_core::{AddressRequest, Allocate, Answer, Prefix, Refusal, Request, Space};
use berth_desk::DeskError;
use berth_ledger::{LedgerError, PoolKey};
use berth_slices::{SliceError, Sliced, Slices};
use berth_whereabouts::UNCHECKED;

use crate::error::PodError;
use crate::layout::{Layout, PoolWants};
use crate::store::Store;

/// How often a claim is repeated because its range changed: each slice is lost once, and others may open a plain pool at
/// the same time. More than that is an error.
const MOVES: usize = 8;

/// Limits every want to slices that an ADD would allocate from. Nothing is claimed and nothing is written; a node
/// that would have to claim a slice keeps its wants as they are.
pub(crate) async fn limit_to_slices(store: &Store, layout: &mut Layout) -> Result<(), PodError> {
    for pool in &mut layout.pools {
        let Some((slices, of)) = sliced(store, pool) else {
            continue;
        };
        let within = slices.foreseen(of).await?;
        if within.is_empty() {
            continue;
        }
        let limits = SliceLimits::of(slices, of, within);
        for (_, want) in &mut pool.wants {
            *want = limits.clip(want)?;
        }
    }
    Ok(())
}

/// Whether this node has slices of its own in the range of a network of claimed slices.
pub(crate) fn has_slices(store: &Store, pool: &PoolWants) -> bool {
    sliced(store, pool).is_some_and(|(slices, of)| slices.has_active(of))
}

/// Whether the range has room beside what this node has.
pub(crate) async fn has_room(store: &Store, pool: &PoolWants) -> Result<bool, PodError> {
    match sliced(store, pool) {
        Some((slices, of)) => Ok(slices.has_room(of).await?),
        None => Ok(false),
    }
}

/// Claims; where the pool is one of slices, in those that this node has, and in more when they are full.
pub(crate) async fn claim(
    store: &Store,
    pool: &PoolWants,
    claim: Allocate,
) -> Result<Answer, PodError> {
    let Some((slices, of)) = sliced(store, pool) else {
        return claim_plain(store, pool, claim).await;
    };
    if let Some(again) = held_before(store, pool, &claim).await? {
        return Ok(again);
    }
    let mut active = match slices.active(of).await {
        Ok(active) => active,
        // The last slice may have been lost while another one was waited for.
        Err(error) => {
            let again = held_before(store, pool, &claim).await?;
            return again.ok_or(error.into());
        }
    };
    let mut moves = 0;
    loop {
        let mut within = active.slices.clone();
        if !active.lost.is_empty() {
            within.extend(kept(store, pool, &claim, &active.lost).await?);
        }
        let clipped = SliceLimits::of(slices, of, within).clipped(&claim)?;
        let answer = match store.ask(&pool.key, Request::Allocate(clipped)).await {
            // A slice was lost or released between the read and the commit.
            Err(error) if is_moved(&error) && moves < MOVES => {
                moves += 1;
                active = slices.active(of).await?;
                continue;
            }
            asked => asked?,
        };
        let Answer::Refused(Refusal::Exhausted { want, .. }) = answer else {
            return Ok(answer);
        };
        // Of several ranges of one CIDR this one needs more: a slice that only another range allocates from does not help.
        let space = claim.wants.get(want).map_or(&of.usable, |want| &want.space);
        match slices.more(&of.wanting(space), &active).await {
            Ok(now) if now == active => return Ok(answer),
            Ok(now) => active = now,
            // All of the range is in use: that is what the user has to know.
            Err(SliceError::NoSlice { donors, .. }) => {
                tracing::warn!(range = %of.range, donors, "no slice is free");
                return Ok(answer);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// What this very container holds, where the node has lost all its slices of the range: a repeat gets it again, and
/// waits neither for a controller nor for the API server (I3).
async fn held_before(
    store: &Store,
    pool: &PoolWants,
    claim: &Allocate,
) -> Result<Option<Answer>, PodError> {
    let Some((slices, of)) = sliced(store, pool) else {
        return Ok(None);
    };
    let lost = slices.lost_without_others(of).await?;
    if lost.is_empty() {
        return Ok(None);
    }
    let kept = kept(store, pool, claim, &lost).await?;
    // An address that is asked for by name and not held: it has to wait for a slice.
    let is_none = kept.is_empty();
    let (false, Ok(again)) = (is_none, SliceLimits::of(slices, of, kept).clipped(claim)) else {
        return Ok(None);
    };
    match store.ask(&pool.key, Request::Allocate(again)).await? {
        Answer::Refused(_) => Ok(None),
        answer => Ok(Some(answer)),
    }
}

/// Claims in a plain pool; where the range was sliced, after it was made plain again.
async fn claim_plain(store: &Store, pool: &PoolWants, claim: Allocate) -> Result<Answer, PodError> {
    let Some(of) = &pool.plain else {
        return Ok(store.ask(&pool.key, Request::Allocate(claim)).await?);
    };
    let claim = match store.in_cluster && !of.checked {
        true => Allocate {
            record: claim.record.with(UNCHECKED, "true"),
            ..claim
        },
        false => claim,
    };
    let mut moves = 0;
    loop {
        match store.ask(&pool.key, Request::Allocate(claim.clone())).await {
            Err(error) if is_moved(&error) && moves < MOVES => moves += 1,
            asked => return Ok(asked?),
        }
        if let Some(plain) = &store.plain {
            plain.open(of).await?;
        }
        if let Some(slices) = store.slices() {
            slices.retire(of).await?;
        }
    }
}

fn is_moved(error: &DeskError) -> bool {
    matches!(error.ledger(), Some(LedgerError::Moved { .. }))
}

/// Where else a container of this network may hold an address: the range was moved to slices, or back, since the ADD.
pub(crate) fn elsewhere(store: &Store, pool: &PoolWants) -> Option<PoolKey> {
    let slices = store.slices()?;
    match (&pool.sliced, &pool.plain) {
        (Some(of), _) => slices.plain_may_hold(of).then(|| of.plain()),
        (None, Some(of)) => slices.slices_may_hold(of).then(|| of.key()),
        (None, None) => None,
    }
}

/// What this very container holds of slices that this node has lost: a repeat gets it again (I3).
async fn kept(
    store: &Store,
    pool: &PoolWants,
    claim: &Allocate,
    lost: &[Prefix],
) -> Result<Vec<Prefix>, PodError> {
    let now = store.load(&pool.key).await?;
    let mine = now
        .pool
        .held_under(&claim.record.handle)
        .filter(|(_, record)| record.owner == claim.record.owner)
        .map(|(address, _)| address)
        .filter(|address| lost.iter().any(|slice| slice.contains(*address)));
    Ok(mine
        .filter_map(|address| Prefix::containing(address, address.family().bits()))
        .collect())
}

fn sliced<'a>(store: &'a Store, pool: &'a PoolWants) -> Option<(&'a Slices, &'a Arc<Sliced>)> {
    Some((store.slices()?, pool.sliced.as_ref()?))
}

/// The slices of a range that this node may allocate from.
struct SliceLimits {
    range: Prefix,
    within: Vec<Prefix>,
    /// What some network of the range allocates without a request by address.
    by_choice: Arc<Space>,
}

impl SliceLimits {
    fn of(slices: &Slices, of: &Arc<Sliced>, within: Vec<Prefix>) -> Self {
        Self {
            by_choice: slices.by_choice(of),
            range: of.range,
            within,
        }
    }

    fn clipped(&self, claim: &Allocate) -> Result<Allocate, PodError> {
        let wants = claim.wants.iter().map(|want| self.clip(want));
        Ok(Allocate {
            record: claim.record.clone(),
            wants: wants.collect::<Result<Vec<AddressRequest>, PodError>>()?,
        })
    }

    /// A want within slices. A requested address must be in one, unless networks allocate it only on request.
    fn clip(&self, want: &AddressRequest) -> Result<AddressRequest, PodError> {
        let space = match want.exact {
            None => want.space.clipped_to(&self.within),
            Some(address) => {
                let ours = self.within.iter().any(|slice| slice.contains(address));
                if self.by_choice.contains(address) && !ours {
                    return Err(PodError::Named {
                        address,
                        why: format!("it is in no slice of {} that this node has", self.range),
                    });
                }
                Space::only(address)
            }
        };
        Ok(AddressRequest {
            space: Arc::new(space),
            ..want.clone()
        })
    }
}
