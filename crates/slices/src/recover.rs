//! A file that may be older than what was allocated from it: a copy that was put back, a disk or a VM snapshot.
//!
//! Promises: when a process begins, and before it allocates from a slice, every address that the slice's published object,
//! this node's pods or the runtime's result cache show is held (I1). None of them has everything: publication lags
//! behind, a pod's status is written after its last network, and the cache may be elsewhere. With the API server away
//! only the cache is read, and the rest when it is back.
//!
//! An entry that this file notes as published, and does not hold, was released by this node: it is not taken in
//! ([`crate::published`]).

use std::sync::Arc;

use berth_core::{Address, Change, Pool, Prefix, Record};
use berth_ledger::{Ledger, LedgerError, Rejection};

use crate::error::SliceError;
use crate::pods::NodePods;
use crate::pool::SlicePool;
use crate::publish::SURRENDERED;
use crate::published::unknown;
use crate::results::{self, CachedResult};
use crate::sliced::Sliced;
use crate::world::World;

impl World {
    /// What the runtime's result cache had when this process began.
    async fn cached_results(&self) -> Result<&Vec<CachedResult>, LedgerError> {
        let read = async || {
            let directories = self.settings.result_caches.clone();
            let read = tokio::task::spawn_blocking(move || results::read(&directories));
            let found = read.await.map_err(std::io::Error::other).flatten();
            found.map_err(|error| LedgerError::Rejected {
                operation: "read",
                target: "the runtime's CNI result cache".to_owned(),
                rejection: Rejection::Storage(error.to_string()),
            })
        };
        self.cached_results.get_or_try_init(read).await
    }

    /// What it has of a slice.
    pub async fn cached(
        &self,
        of: &Sliced,
        slice: Prefix,
    ) -> Result<Vec<(Address, Record)>, LedgerError> {
        let all = self.cached_results().await?.iter();
        let its = all.filter(|one| slice.contains(one.address) && one.may_be_of(&of.network));
        Ok(its.map(|one| (one.address, one.record.clone())).collect())
    }
}

/// What has to be held of `found`. An address that is held for a pod which is gone becomes that of the pod that has it now:
/// else it would be freed with the first one.
fn taken_in(pool: &Pool, found: &[(Address, Record)], pods: Option<&NodePods>) -> Vec<Change> {
    let mut changes: Vec<Change> = Vec::new();
    for (address, record) in found {
        let address = *address;
        if changes.iter().any(|change| change.address() == address) {
            continue;
        }
        match pool.get(address) {
            None => changes.push(Change::Allocate {
                address,
                record: record.clone(),
            }),
            Some(held) => {
                let is_over = held.owner.subject != SURRENDERED
                    && held.owner.subject != record.owner.subject
                    && pods.is_some_and(|pods| pods.lacks(held) && !pods.lacks(record));
                if is_over {
                    changes.push(Change::Update {
                        address,
                        expected: held.clone(),
                        record: record.clone(),
                    });
                }
            }
        }
    }
    changes
}

impl SlicePool {
    /// Holds what was allocated from this node's slices since its file was made. The gate must be held.
    pub async fn recover(&self, of: &Arc<Sliced>) -> Result<(), SliceError> {
        let held = self.held();
        for holding in held.iter().filter(|one| one.is_active()) {
            if let Err(error) = self.recover_slice(of, holding.slice).await {
                self.withhold(holding.slice, error)?;
                self.stop_giving(holding).await?;
            }
        }
        Ok(())
    }

    async fn recover_slice(&self, of: &Arc<Sliced>, slice: Prefix) -> Result<(), SliceError> {
        let pods = self.world.first_pods().await?;
        let published = of.published(&self.world.node, slice);
        let object = self.world.cluster.load(&published).await?;
        // After the object: what another process of this node has put there since is noted by now.
        let noted = self.world.noted(of, slice).await?;
        let mut found = unknown(&object.pool, &noted, slice);
        found.extend(self.world.cached(of, slice).await?);
        let of_pods = pods.addresses.iter();
        found.extend(
            of_pods
                .filter(|(address, _)| slice.contains(*address))
                .cloned(),
        );
        self.take_in_found(of, &found, Some(pods)).await
    }

    /// The same by what this machine knows without the API server.
    pub async fn recover_offline(&self, of: &Arc<Sliced>) -> Result<(), SliceError> {
        for slice in self.given_from() {
            let found = self.world.cached(of, slice).await?;
            self.take_in_found(of, &found, None).await?;
        }
        Ok(())
    }

    fn given_from(&self) -> Vec<Prefix> {
        let held = self.held();
        let active = held.iter().filter(|one| one.is_active());
        active.map(|one| one.slice).collect()
    }

    async fn take_in_found(
        &self,
        of: &Arc<Sliced>,
        found: &[(Address, Record)],
        pods: Option<&NodePods>,
    ) -> Result<(), SliceError> {
        let plan = |pool: &Pool| taken_in(pool, found, pods);
        let made = self.world.amend(&of.key(), plan).await?;
        if !made.is_empty() {
            let addresses: Vec<String> = made.iter().map(|one| one.address().to_string()).collect();
            tracing::warn!(
                range = %of.range, addresses = addresses.join(" "),
                "the node's database is older than these addresses; they are held for the pods that have them"
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use berth_core::{Handle, Owner};

    use super::*;

    fn mk_record(pod: &str) -> Record {
        Record::new(Owner::new(pod, "net1"), Handle::new(pod))
    }

    #[test]
    fn an_address_goes_to_the_pod_that_has_it_now_if_the_other_is_gone() {
        let address: Address = "10.0.0.1".parse().unwrap();
        let mut pool = Pool::new();
        pool.restore(address, mk_record("ns/old"));
        let new = [(address, mk_record("ns/new"))];
        let pods = |names: &[&str]| NodePods::of(names);
        let changed = |pods: Option<&NodePods>| taken_in(&pool, &new, pods).len();
        assert_eq!(changed(Some(&pods(&["ns/new"]))), 1);
        assert_eq!(changed(Some(&pods(&["ns/new", "ns/old"]))), 0);
        assert_eq!(changed(Some(&pods(&[]))), 0);
        assert_eq!(changed(None), 0);
        assert_eq!(taken_in(&Pool::new(), &new, None).len(), 1);
    }
}
