//! Deletes a pool that no definition wants any more.
//!
//! Guarantees: it is deleted at once if no entry of its slices belongs to a running pod and, by a quorum read, no pod
//! of the cluster requests the network: no node can be allocating from it. Otherwise it is deleted when nothing was in
//! use at two reads, a grace period apart, and at one more after all of it was recalled; until then its conditions list
//! what is in use.

use std::collections::BTreeMap;

use berth_api::names;
use berth_core::Prefix;
use berth_core::slice::Holding;
use berth_core::slice::assigned::LiveClaim;
use berth_core::slice::grace::Verdict;
use berth_whereabouts::slicepools::StoredSlicePool;
use k8s_openapi::jiff::Timestamp;

use super::memory::{Memory, Suspect};
use super::{Outcome, ReconcileError, Reconciler, Task};
use crate::networks::{Problem, reason};
use crate::plan::{conditions, describe, list};
use crate::usage::UsageError;

impl Reconciler {
    /// Deletes a pool that no definition wants any more.
    pub(super) async fn end(
        &self,
        task: &Task<'_>,
        stored: Option<StoredSlicePool>,
        memory: &mut Memory,
    ) -> Result<Outcome, ReconcileError> {
        let mut outcome = Outcome::default();
        let Some(stored) = stored else {
            outcome.forgotten = true;
            return Ok(outcome);
        };
        let networks = stored.pool.marks.networks.iter();
        let definitions: Vec<String> = networks
            .filter_map(|key| Some(key.split_once('/')?.1.to_owned()))
            .collect();
        let due = memory.suspicions.due(&Suspect::Deletion, self.grace);
        if let Some(until) = due.filter(|until| *until > task.now)
            && (definitions.is_empty() || self.is_requested_by_a_pod(&definitions).await?)
        {
            // A pod that only waits for its address may give up before the grace period is over.
            outcome.recheck_at(until.min(task.now.plus(self.pause())));
            memory.known = Some(Some(stored));
            return Ok(outcome);
        }
        let range = stored.pool.table.cut().range();
        let networks = names::slice_networks(task.name, range);
        let holdings: Vec<Holding> = stored.pool.table.holdings().collect();
        let usage = self
            .usage_reader
            .last_uses(&holdings, &networks, &definitions);
        let used = usage.await?;
        let unused = used.live.is_empty() && stored.unparsed.is_empty();
        if unused && !definitions.is_empty() && !self.is_requested_by_a_pod(&definitions).await? {
            self.usage_reader.retire(&used.pools).await?;
            self.pools.remove(&stored).await?;
            tracing::info!(
                pool = task.name,
                "deleted: no definition wants it, and no pod asks for its network"
            );
            self.ended.note(task.name, stored.pool.table, task.now);
            outcome.forgotten = true;
            return Ok(outcome);
        }
        memory.note_recalled(&stored, task.now);
        match memory
            .suspicions
            .observe(Suspect::Deletion, unused, self.grace, task.now)
        {
            Verdict::Proved => {
                if let Some(until) = self.unsettled(task, &stored, &holdings, memory) {
                    outcome.recheck_at(until);
                    let mut pool = stored.pool.clone();
                    for holding in &holdings {
                        let _ = pool.table.recall(holding.slice, &holding.node);
                    }
                    let written = self.pools.write(task.name, Some(&stored), &pool).await?;
                    memory.known = Some(Some(written));
                    return Ok(outcome);
                }
                self.usage_reader.retire(&used.pools).await?;
                self.pools.remove(&stored).await?;
                tracing::info!(pool = task.name, "deleted: no definition wants it any more");
                outcome.forgotten = true;
                return Ok(outcome);
            }
            Verdict::Suspected { until } => outcome.recheck_at(until),
            Verdict::Kept => outcome.recheck_at(task.now.plus(self.pause())),
        }
        let written = self.report_refusal(task, stored, &used.live).await?;
        memory.known = Some(Some(written));
        Ok(outcome)
    }

    async fn is_requested_by_a_pod(&self, definitions: &[String]) -> Result<bool, ReconcileError> {
        let asked = self.usage_reader.reader.asks_any_pod(definitions).await;
        Ok(asked.map_err(UsageError::from)?)
    }

    /// The definitions are gone, so the pool itself reports why it stays.
    async fn report_refusal(
        &self,
        task: &Task<'_>,
        stored: StoredSlicePool,
        live: &BTreeMap<Prefix, Vec<LiveClaim>>,
    ) -> Result<StoredSlicePool, ReconcileError> {
        let holdings = stored.pool.table.holdings();
        let in_use: Vec<String> = holdings
            .flat_map(|holding| {
                let claims = live.get(&holding.slice).cloned().unwrap_or_default();
                claims
                    .into_iter()
                    .map(move |claim| describe(&(holding.clone(), claim)))
            })
            .collect();
        let problems: Vec<Problem> = (!in_use.is_empty())
            .then(|| Problem {
                definition: String::new(),
                reason: reason::DELETION_REFUSED,
                message: format!(
                    "NodeSlicePool {}: no definition wants it any more; it stays while addresses of it are in use: {}",
                    task.name,
                    list(&in_use)
                ),
            })
            .into_iter()
            .collect();
        let mut pool = stored.pool.clone();
        for slice in stored.pool.table.recalled() {
            pool.table.keep(slice);
        }
        let now = Timestamp::now().to_string();
        let before = &stored.pool.marks.conditions;
        pool.marks.conditions = conditions(&problems, &stored.unparsed, before, &now);
        pool.marks.disjoint = false;
        pool.marks.managed |= !stored.owners.is_empty();
        if pool == stored.pool && stored.owners.is_empty() {
            return Ok(stored);
        }
        for problem in &problems {
            tracing::warn!(pool = task.name, "{}", problem.message);
        }
        Ok(self.pools.write(task.name, Some(&stored), &pool).await?)
    }
}
