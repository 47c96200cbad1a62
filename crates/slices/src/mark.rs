//! The mark on a range's plain pool, without which nobody gives from slices of it: who makes it, and when.
//!
//! A new network begins on many nodes at once. Each could make the mark, after a look at what else is claimed of the
//! network ([`crate::overlap`]); a few do, and the others wait for it. Nobody has to be elected for that: every node rolls a die, with
//! better odds each time, so that one of many is soon found and one by itself does not wait for long.
//!
//! Only who has claimed makes one: it looks for claims of other ranges after its own, so that of two one sees the other.

use std::sync::Arc;
use std::time::Duration;

use berth_core::slice::Cut;
use berth_core::slice::elastic::{Mark, MarkState, usual_size};
use berth_ledger::LedgerError;
use rand::RngExt;
use tokio::time::sleep;

use crate::error::SliceError;
use crate::pool::SlicePool;
use crate::sliced::{Mode, Sliced};

/// How long a range may be on its way back before a network that is sliced takes it again.
const LEAVING_LIMIT: Duration = Duration::from_secs(30);
/// Marks that somebody else wrote at the same time, or that nobody here can write over.
const TRIES: usize = 20;
/// The odds, one in so many, that a node makes a mark that is not there, each time it is found missing.
const ODDS: [u32; 4] = [64, 16, 4, 1];
/// How long it waits for others before it looks again: somewhat longer than it takes to make one.
const PAUSE: Duration = Duration::from_millis(60);

/// The size of slices that a network asks for, where nobody has cut its range yet.
pub(crate) fn wished_size(of: &Sliced) -> u8 {
    match of.mode {
        Mode::Elastic {
            size: Some(size), ..
        } => size,
        _ => usual_size(of.range),
    }
}

impl SlicePool {
    /// The range's mark as it is now, for whoever has not claimed yet.
    pub async fn look_for_mark(&self, of: &Arc<Sliced>) -> Result<Option<Mark>, SliceError> {
        let found = self.world.cluster.mark(&of.plain()).await?;
        if found.is_some_and(|mark| mark.state == MarkState::Leaving) {
            return self.marked(of, found).await.map(Some);
        }
        self.leaving_for(false);
        self.set_mark(found.filter(|mark| mark.for_network(of.checked) == *mark));
        Ok(found)
    }

    /// The range's mark; made, if there is none that says what this network does. For whoever has claimed a slice of it.
    pub async fn mark(&self, of: &Arc<Sliced>) -> Result<Mark, SliceError> {
        let says = |mark: &Mark| mark.for_network(of.checked) == *mark;
        if let Some(mark) = self.known_mark().filter(says) {
            return Ok(mark);
        }
        // Whoever claims by it looks again after its claim.
        let mut found = self.world.cluster.recent_mark(&of.plain()).await?;
        if !found.is_some_and(|mark| mark.state == MarkState::Sliced && says(&mark)) {
            found = self.world.cluster.mark(&of.plain()).await?;
        }
        self.marked(of, found).await
    }

    /// The same after a look at the plain pool that has found this.
    pub async fn marked(
        &self,
        of: &Arc<Sliced>,
        mut found: Option<Mark>,
    ) -> Result<Mark, SliceError> {
        let says = |mark: &Mark| mark.for_network(of.checked) == *mark;
        let size = wished_size(of);
        Cut::new(of.range, size)?;
        let mut odds = ODDS.into_iter();
        for _ in 0..TRIES + ODDS.len() {
            match found {
                Some(mark) if mark.state == MarkState::Leaving => {
                    // Nobody finished going back: the network is sliced again.
                    if self.leaving_for(true) < LEAVING_LIMIT {
                        return Err(SliceError::Leaving { range: of.range });
                    }
                    let again = Some(Mark {
                        state: MarkState::Sliced,
                        ..mark
                    });
                    self.world
                        .cluster
                        .set_mark(&of.plain(), Some(mark), again)
                        .await?;
                }
                Some(mark) if says(&mark) => {
                    self.leaving_for(false);
                    self.set_mark(Some(mark));
                    return Ok(mark);
                }
                None if !odds.next().is_none_or(falls) => {
                    let part = rand::rng().random_range(0.5..1.5);
                    sleep(PAUSE.mul_f64(part)).await;
                    // It may be old, and be seen to be missing once more.
                    found = self.world.cluster.recent_mark(&of.plain()).await?;
                    continue;
                }
                known => {
                    // What a controller has assigned is still given from; whoever claims looks again after its claim.
                    self.world.plain.open(of).await?;
                    self.part_from_others(of).await?;
                    let mark = known.unwrap_or(Mark::sliced(size));
                    let mark = Some(mark.for_network(of.checked));
                    let plain = of.plain();
                    self.world.cluster.set_mark(&plain, known, mark).await?;
                }
            }
            found = self.world.cluster.mark(&of.plain()).await?;
        }
        Err(SliceError::Store(LedgerError::Conflict {
            pool: of.plain().name,
            held: Vec::new(),
        }))
    }
}

/// Rolls a die with so many sides.
fn falls(sides: u32) -> bool {
    rand::rng().random_range(0..sides) == 0
}
