//! Unused slices: those of nodes that are gone, and those that a new cut would drop.
//!
//! Guarantees: none is reclaimed that was not found unused twice, a grace period apart, and once more after it was
//! recalled (I4, I8); its IPPool is deleted before. Each is judged separately: one that has to stay does not block
//! others.

use std::collections::BTreeSet;

use berth_core::slice::assigned::LiveClaim;
use berth_core::slice::grace::Verdict;
use berth_core::slice::{Cut, Holding};
use berth_core::{Moment, Prefix};
use berth_whereabouts::slicepools::StoredSlicePool;

use super::memory::{Memory, Suspect};
use super::{Outcome, ReconcileError, Reconciler, Task};
use crate::plan::{Change, Returns};
use crate::usage::UsageError;

impl Reconciler {
    /// Holdings whose nodes are provably gone: recalled, and in a later pass reclaimed.
    pub(super) async fn losses(
        &self,
        task: &Task<'_>,
        stored: &StoredSlicePool,
        networks: &[String],
        definitions: &[String],
        memory: &mut Memory,
        outcome: &mut Outcome,
    ) -> Result<Returns, ReconcileError> {
        let missing: Vec<Holding> = stored
            .pool
            .table
            .holdings()
            .filter(|holding| !task.view.nodes.contains(&holding.node))
            .collect();
        let suspects: BTreeSet<Suspect> =
            missing.iter().map(|holding| loss(task, holding)).collect();
        memory
            .suspicions
            .retain(|known| !matches!(known, Suspect::Loss(..)) || suspects.contains(known));
        let is_missing = |slice: &Prefix| missing.iter().any(|holding| holding.slice == *slice);
        memory.unread.retain(|slice, _| is_missing(slice));
        let mut due = Vec::new();
        for holding in missing {
            let suspected = memory.suspicions.due(&loss(task, &holding), self.grace);
            match suspected.max(self.settled(memory, holding.slice)) {
                Some(until) if until > task.now => outcome.recheck_at(until),
                _ => due.push(holding),
            }
        }
        let mut returns = Returns::default();
        if due.is_empty() {
            return Ok(returns);
        }
        let nodes = due.iter().map(|holding| &holding.node).collect();
        let gone = self
            .usage_reader
            .gone(nodes)
            .await
            .map_err(UsageError::from)?;
        let used = self.usage_reader.uses(&due, networks, definitions).await?;
        for holding in due {
            match used.unread.get(&holding.slice) {
                Some(why) => memory.unread.insert(holding.slice, why.clone()),
                None => memory.unread.remove(&holding.slice),
            };
            let gone = gone.contains(&holding.node) && !used.live.contains_key(&holding.slice);
            let suspect = loss(task, &holding);
            match memory
                .suspicions
                .observe(suspect, gone, self.grace, task.now)
            {
                Verdict::Kept => outcome.recheck_at(task.now.plus(self.pause())),
                Verdict::Suspected { until } => outcome.recheck_at(until),
                Verdict::Proved if is_recalled(stored, &holding) => {
                    let pools = used.of(&BTreeSet::from([holding.slice]));
                    match self.usage_reader.retire(&pools).await {
                        Ok(()) => returns.reclaimed.push(holding),
                        Err(error) if error.is_passing() => return Err(error.into()),
                        Err(error) => {
                            tracing::warn!(slice = %holding.slice, node = %holding.node, %error, "its IPPool stays, and so does the slice");
                            outcome.recheck_at(task.now.plus(self.pause()));
                        }
                    }
                }
                Verdict::Proved => {
                    outcome.recheck_at(task.now.plus(self.pause()));
                    returns.recalled.push(holding);
                }
            }
        }
        Ok(returns)
    }

    /// Until when a recalled slice is left alone: a node that was about to allocate from it has noticed by then.
    fn settled(&self, memory: &Memory, slice: Prefix) -> Option<Moment> {
        let since = memory.recalled.get(&slice)?;
        Some(since.plus(self.pause()))
    }

    /// Whether the pool may be cut as its definitions want it now.
    pub(super) async fn change(
        &self,
        task: &Task<'_>,
        stored: &StoredSlicePool,
        (cut, networks, definitions): (Cut, &[String], &[String]),
        memory: &mut Memory,
        returns: &mut Returns,
        outcome: &mut Outcome,
    ) -> Result<Change, ReconcileError> {
        let table = &stored.pool.table;
        let suspect = Suspect::Change(cut.range(), cut.size());
        memory
            .suspicions
            .retain(|known| !matches!(known, Suspect::Change(..)) || *known == suspect);
        let recut = table.recut(cut);
        if table.cut() == cut || recut.dropped.is_empty() {
            memory.suspicions.forget(&suspect);
            return Ok(Change::Free);
        }
        if let Some(until) = memory.suspicions.due(&suspect, self.grace)
            && until > task.now
        {
            outcome.recheck_at(until);
            return Ok(Change::Pending);
        }
        let used = self
            .usage_reader
            .uses(&recut.dropped, networks, definitions)
            .await?;
        let stranded: Vec<(Holding, LiveClaim)> = recut
            .stranded(&used.live)
            .map(|(holding, claim)| (holding.clone(), claim.clone()))
            .collect();
        let unused = stranded.is_empty();
        match memory
            .suspicions
            .observe(suspect, unused, self.grace, task.now)
        {
            Verdict::Kept => {
                outcome.recheck_at(task.now.plus(self.pause()));
                Ok(Change::Refused(stranded))
            }
            Verdict::Suspected { until } => {
                outcome.recheck_at(until);
                Ok(Change::Pending)
            }
            Verdict::Proved => {
                if let Some(until) = self.unsettled(task, stored, &recut.dropped, memory) {
                    outcome.recheck_at(until);
                    returns.recalled.extend(recut.dropped);
                    return Ok(Change::Pending);
                }
                let slices = recut.dropped.iter().map(|holding| holding.slice).collect();
                self.usage_reader.retire(&used.of(&slices)).await?;
                tracing::info!(
                    pool = task.name, from = %table.cut().range(), to = %cut.range(), size = cut.size(), "range resized"
                );
                Ok(Change::Free)
            }
        }
    }

    /// When to check slices that are being dropped: as long as one of them is not recalled, or not for long enough.
    pub(super) fn unsettled(
        &self,
        task: &Task<'_>,
        stored: &StoredSlicePool,
        going: &[Holding],
        memory: &Memory,
    ) -> Option<Moment> {
        let pause = task.now.plus(self.pause());
        let settled = going.iter().map(|holding| {
            let known = is_recalled(stored, holding);
            let settled = self.settled(memory, holding.slice);
            settled.filter(|_| known).unwrap_or(pause)
        });
        settled.max().filter(|until| *until > task.now)
    }
}

pub(super) fn loss(task: &Task<'_>, holding: &Holding) -> Suspect {
    let uid = task.view.gone_uid(&holding.node);
    Suspect::Loss(holding.slice, holding.node.to_string(), uid)
}

pub(super) fn is_recalled(stored: &StoredSlicePool, holding: &Holding) -> bool {
    stored.pool.table.is_recalled(holding.slice)
}
