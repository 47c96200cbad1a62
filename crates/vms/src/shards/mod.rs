//! One pool over several ConfigMaps ("shards"): where a VM belongs, and where an allocation is tried.
//!
//! ```text
//!   VM address ──rendezvous──► its shard, always            allocation ID ──rendezvous──► home shard, then the next:
//!                                                           full? the allocation spills over
//! ```
//!
//! Guarantees: a VM is listed in one shard, so the write under that ConfigMap's version keeps it from a second
//! owner (I1). An ID that has a VM in any shard gets that VM (I3): before the first ID leaves its home shard for
//! another, the home is marked, and where it is marked all shards are read before an ID gets a new VM. Requests of the
//! same ID at two agents in the same moment are outside of that: each may allocate a VM, and the deallocation releases
//! both.
//!
//! The shards of pool `gpu` are pools named `gpu`, `gpu/1`, `gpu/2`, ..: `/` is in no name that a user may set.

mod agree;
mod flights;
mod reads;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_core::{Address, Rendezvous};
use berth_ledger::LedgerError;
use futures::future::try_join_all;
use parking_lot::Mutex;

use crate::pool::{
    Allocation, Applicant, Deadline, Faults, PoolError, Returned, Status, Taken, VmPool,
};
use crate::settings::PoolSettings;
use agree::{is_marked, mark};
use flights::Flights;
use reads::{Reads, shared};

pub(crate) use agree::agree;

/// Spreads each pool over so many ConfigMaps. One is the pool itself, as live clusters have it.
pub(crate) fn spread(pools: Vec<PoolSettings>, count: u32) -> Vec<PoolSettings> {
    if count <= 1 {
        return pools;
    }
    let mut all = Vec::new();
    for pool in pools {
        let mut shards: Vec<PoolSettings> = (0..count)
            .map(|n| PoolSettings {
                name: numbered(&pool.name, n, "/"),
                ips: Vec::new(),
                configmap: numbered(&pool.configmap, n, "-shard-"),
            })
            .collect();
        for ip in pool.ips {
            let home = order(&Address::from(ip).to_string(), count)
                .first()
                .copied();
            if let Some(shard) = home.and_then(|n| shards.get_mut(n as usize)) {
                shard.ips.push(ip);
            }
        }
        all.extend(shards);
    }
    all
}

fn numbered(name: &str, n: u32, between: &str) -> String {
    match n {
        0 => name.to_owned(),
        n => format!("{name}{between}{n}"),
    }
}

/// The pool that a shard belongs to.
pub(crate) fn pool_of(shard: &str) -> &str {
    shard.split_once('/').map_or(shard, |(pool, _)| pool)
}

/// The pool of which these are all shards.
fn name_of(shards: &[VmPool]) -> &str {
    shards.first().map_or("", |shard| pool_of(shard.name()))
}

/// All shards for this subject, the best first. One more shard takes its share of subjects and moves no others.
fn order(subject: &str, count: u32) -> Vec<u32> {
    let rank = Rendezvous::new(subject);
    let mut order: Vec<u32> = (0..count).collect();
    order.sort_by_key(|n| std::cmp::Reverse(rank.score(u128::from(*n))));
    order
}

/// Several shards' numbers, added up for their pool.
pub(crate) fn merged(all: Vec<Status>) -> Vec<Status> {
    let mut pools: Vec<Status> = Vec::new();
    for mut status in all {
        status.pool = pool_of(&status.pool).to_owned();
        match pools.iter_mut().find(|pool| pool.pool == status.pool) {
            None => pools.push(status),
            Some(pool) => {
                pool.total += status.total;
                pool.available += status.available;
                pool.in_use += status.in_use;
                pool.quarantined += status.quarantined;
                pool.silent.extend(status.silent);
                pool.untrusted.extend(status.untrusted);
                pool.locked.extend(status.locked);
                pool.occupied.extend(status.occupied);
                pool.uncleaned.extend(status.uncleaned);
                pool.doubled.extend(status.doubled);
                pool.not_taken_back.extend(status.not_taken_back);
                pool.unparsed.extend(status.unparsed);
            }
        }
    }
    pools
}

/// The allocation under its pool's name.
pub(crate) fn named(mut allocation: Allocation) -> Allocation {
    allocation.pool = pool_of(&allocation.pool).to_owned();
    allocation
}

/// State that the requests of one process share.
#[derive(Debug, Default)]
pub(crate) struct Shards {
    flights: Flights,
    ids: Reads<Arc<Ids>>,
    /// Whether a shard is marked.
    marks: Reads<bool>,
    /// Shards that were read as marked: they stay marked.
    spilled: Mutex<BTreeSet<String>>,
}

/// The IDs of a shard, and whether their VMs are in use.
type Ids = BTreeMap<String, bool>;

impl Shards {
    /// Allocates a VM of the ID's home shard or, if that has none, of the next one. Requests for one ID run one after
    /// the other, until a deallocation ends them.
    pub(crate) async fn allocate(
        &self,
        shards: &[VmPool],
        applicant: &Applicant,
        deadline: Deadline,
    ) -> Result<Allocation, PoolError> {
        let id = &applicant.allocation_id;
        let passenger = self.flights.join(name_of(shards), id);
        let work = async {
            match shards {
                [only] => only.allocate(applicant, deadline).await,
                _ => self.allocate_in_order(shards, applicant, deadline).await,
            }
        };
        // After a deallocation nothing is released here: it releases what was recorded.
        passenger.run(deadline, work).await.map(named)
    }

    async fn allocate_in_order(
        &self,
        shards: &[VmPool],
        applicant: &Applicant,
        deadline: Deadline,
    ) -> Result<Allocation, PoolError> {
        let mut spill = Spill::new(deadline);
        let id = &applicant.allocation_id;
        let count = u32::try_from(shards.len()).unwrap_or(u32::MAX);
        let order: Vec<&VmPool> = order(id, count)
            .into_iter()
            .filter_map(|n| shards.get(n as usize))
            .collect();
        let Some(home) = order.first() else {
            return Err(PoolError::Exhausted {
                faults: Faults::new(),
            });
        };
        if deadline.bound(self.has_spilled(home)).await?
            && let Some(shard) = deadline.bound(self.shard_of(&order, id)).await?
        {
            return shard.allocate(applicant, deadline).await;
        }
        for (n, shard) in order.iter().enumerate() {
            // VMs that hang in one shard leave time for the others.
            let share = deadline.share(order.len() - n);
            spill.note(match shard.allocate(applicant, share).await {
                Err(error) => error,
                allocated => return allocated,
            })?;
            if n + 1 < order.len() {
                // Before any of its IDs is allocated elsewhere.
                deadline.bound(self.mark(home)).await?;
            }
        }
        Err(spill.end())
    }

    /// The shard that has the ID. If there are several, the one where its VM is in use: the others are left for a
    /// moment by a request that was too late.
    async fn shard_of<'a>(
        &self,
        order: &[&'a VmPool],
        id: &str,
    ) -> Result<Option<&'a VmPool>, PoolError> {
        let known = try_join_all(order.iter().map(|shard| self.ids(shard))).await?;
        let with = |in_use: bool| {
            let has = |ids: &Arc<Ids>| ids.get(id) == Some(&in_use);
            known.iter().position(has)
        };
        let place = with(true).or_else(|| with(false));
        Ok(place.and_then(|place| order.get(place).copied()))
    }

    async fn has_spilled(&self, shard: &VmPool) -> Result<bool, PoolError> {
        if self.spilled.lock().contains(shard.name()) {
            return Ok(true);
        }
        let read = shared(&self.marks, shard);
        let marked = read.answer(|| is_marked(shard)).await?;
        if marked {
            self.spilled.lock().insert(shard.name().to_owned());
        }
        Ok(marked)
    }

    async fn mark(&self, shard: &VmPool) -> Result<(), PoolError> {
        if !self.spilled.lock().contains(shard.name()) {
            mark(shard).await?;
            self.spilled.lock().insert(shard.name().to_owned());
        }
        Ok(())
    }

    /// Ends the allocations of the ID that are under way in this process. Their results are in the ledger after that.
    pub(crate) async fn cancel(&self, shards: &[VmPool], id: &str) -> Result<(), PoolError> {
        let pools: BTreeSet<&str> = shards.iter().map(|shard| pool_of(shard.name())).collect();
        for pool in pools {
            if self.flights.cancel(pool, id).await {
                let of_pool = shards.iter().filter(|shard| pool_of(shard.name()) == pool);
                try_join_all(of_pool.map(|shard| shard.settle(id))).await?;
            }
        }
        Ok(())
    }

    /// Deallocates a VM, in every shard that has the ID.
    pub(crate) async fn deallocate(
        &self,
        shards: &[VmPool],
        id: &str,
        force: bool,
    ) -> Result<Taken, PoolError> {
        self.cancel(shards, id).await?;
        if let [only] = shards {
            return only.deallocate(id, force).await;
        }
        let found = try_join_all(shards.iter().map(|shard| async move {
            match shard.by_id(id).await {
                Ok(_) => Ok(Some(shard)),
                Err(PoolError::UnknownAllocation(_)) => Ok(None),
                Err(error) => Err(error),
            }
        }))
        .await?;
        let mut ended = (Returned::Nothing, None);
        for shard in found.into_iter().flatten() {
            match shard.deallocate(id, force).await? {
                (Returned::Nothing, _) => {}
                // A caller waits for the one that is still being cleaned.
                taken if ended.0 != Returned::Quarantined => ended = taken,
                _ => {}
            }
        }
        Ok(ended)
    }

    async fn ids(&self, shard: &VmPool) -> Result<Arc<Ids>, PoolError> {
        let read = shared(&self.ids, shard);
        let list = || async {
            let all = match shard.list().await {
                // An allocation repairs a state that broke under a running agent.
                Err(error) if is_unreadable(&error) => {
                    shard.set_aside().await?.ok_or(error)?;
                    shard.list().await?
                }
                all => all?,
            };
            let is_in_use =
                |found: &Allocation| found.checking.is_none() && found.quarantine.is_none();
            let all = all.into_iter().map(|found| {
                let in_use = is_in_use(&found);
                (found.allocation_id, in_use)
            });
            Ok(Arc::new(all.collect()))
        };
        read.answer(list).await
    }
}

fn is_unreadable(error: &PoolError) -> bool {
    matches!(error.ledger(), Some(LedgerError::Unreadable { .. }))
}

/// The errors of the shards that had no VM.
struct Spill {
    deadline: Deadline,
    faults: Faults,
    was_late: bool,
    full: Option<PoolError>,
}

impl Spill {
    const fn new(deadline: Deadline) -> Self {
        Self {
            deadline,
            faults: Faults::new(),
            was_late: false,
            full: None,
        }
    }

    /// Continues with the next shard if this one has no VM, no VM that answers in time, or no room. Returns other
    /// errors.
    fn note(&mut self, error: PoolError) -> Result<(), PoolError> {
        match error {
            PoolError::Exhausted { faults } => self.faults.extend(faults),
            PoolError::TooLate { faults, .. } => {
                self.faults.extend(faults);
                self.was_late = true;
            }
            error if matches!(error.ledger(), Some(LedgerError::Full { .. })) => {
                self.full = Some(error);
            }
            error => return Err(error),
        }
        Ok(())
    }

    /// The error of the whole request, when no shard is left.
    fn end(self) -> PoolError {
        let faults = self.faults;
        match self.full {
            _ if self.was_late => self.deadline.missed(faults),
            Some(full) => full,
            None => PoolError::Exhausted { faults },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(name: &str, configmap: &str, vms: u32) -> PoolSettings {
        PoolSettings {
            name: name.into(),
            ips: (0..vms)
                .map(|n| std::net::Ipv4Addr::from_bits(0x0a00_0000 + n).into())
                .collect(),
            configmap: configmap.into(),
        }
    }

    #[test]
    fn every_vm_is_in_one_shard_and_a_further_shard_moves_few() {
        let whole = pool("gpu", "state", 5_000);
        assert_eq!(spread(vec![whole.clone()], 1), std::slice::from_ref(&whole));
        let five = spread(vec![whole.clone()], 5);
        let six = spread(vec![whole.clone()], 6);
        assert_eq!(
            (five[0].name.as_str(), five[0].configmap.as_str()),
            ("gpu", "state")
        );
        assert_eq!(
            (five[4].name.as_str(), five[4].configmap.as_str()),
            ("gpu/4", "state-shard-4")
        );
        assert!(five.iter().all(|shard| pool_of(&shard.name) == "gpu"));
        let place = |shards: &[PoolSettings]| -> BTreeMap<std::net::IpAddr, usize> {
            let each = shards.iter().enumerate();
            each.flat_map(|(n, shard)| shard.ips.iter().map(move |ip| (*ip, n)))
                .collect()
        };
        let (before, after) = (place(&five), place(&six));
        assert_eq!(before.len(), 5_000);
        assert_eq!(
            five.iter().map(|shard| shard.ips.len()).sum::<usize>(),
            5_000
        );
        let moved: Vec<_> = before.iter().filter(|(ip, n)| after[*ip] != **n).collect();
        assert!(moved.len() < 5_000 * 2 / 6, "{} moved", moved.len());
        assert!(moved.iter().all(|(ip, _)| after[*ip] == 5));
        // All fit into one ConfigMap: about 400 bytes each of 1 MiB.
        assert!(
            five.iter()
                .all(|shard| (800..1_200).contains(&shard.ips.len()))
        );
    }

    #[test]
    fn numbers_of_shards_are_those_of_their_pool() {
        let status = |pool: &str, total| Status {
            pool: pool.into(),
            total,
            available: total - 1,
            in_use: 1,
            ..Status::default()
        };
        let merged = merged(vec![status("a", 3), status("a/1", 4), status("b", 5)]);
        let numbers: Vec<_> = merged
            .iter()
            .map(|s| (s.pool.as_str(), s.total, s.available, s.in_use))
            .collect();
        assert_eq!(numbers, [("a", 7, 5, 2), ("b", 5, 4, 1)]);
    }
}
