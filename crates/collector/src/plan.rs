//! What follows from one read. Pure: observed state, the suspicions of earlier reads and the time in; steps out.
//!
//! ```text
//!   first read: gone      -> suspected from now on
//!   a later read: still gone, the same holder, the grace period over -> a step
//!   any read: alive, unjudged, another holder -> no longer suspected
//! ```
//! Nothing is freed by a plan: the executor reads the owner once more, with a quorum read, and names
//! the holder that was judged (I4, I6). A read that took long, or is old, can therefore do no harm.

use super::liveness::{Reason, Verdict, verdict};
use super::observed::{Held, Observed, Owners};
use super::suspicions::Round;

/// What to do. `E` is what ends with an entry, `R` what else a front repairs.
// A sweep has few steps at a time, and most of them free an entry.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step<E, R> {
    /// The entry's owner is gone: free it, then what ends with it.
    Free {
        held: Held,
        reason: Reason,
        ends: E,
    },
    Repair(R),
}

/// The entries to free, by their places in `observed.held`, and why. `judge` is the front's ([`crate::Policy::judge`]).
pub fn plan(
    observed: &Observed,
    judge: impl Fn(&Held, &Owners) -> Verdict,
    round: &mut Round<'_>,
) -> Vec<(usize, Reason)> {
    let mut free = Vec::new();
    for (place, held) in observed.held.iter().enumerate() {
        let judged = judge(held, &observed.owners);
        if let Verdict::Gone(reason) = verdict(held, judged, observed)
            && round.frees(held, &reason, &observed.owners)
        {
            free.push((place, reason));
        }
    }
    free
}

#[cfg(test)]
mod tests;
