//! What others hold in a slice that becomes this node's: taken into its pool before anything is given from the slice.
//!
//! Four sources, because none has everything: the plain pool (the range was shared before), the slice's published pool
//! (whereabouts allocated from it, or this node's file was lost), the addresses that this node's pods say they have, and
//! those in the runtime's result cache (allocated, and not yet published when the file was lost). What two of them say
//! differently is reported; the address is held in any case.

use std::sync::Arc;

use berth_core::{Address, Change, Owner, Pool, Prefix, Record};
use berth_ledger::Ledger;

use crate::error::SliceError;
use crate::pool::SlicePool;
use crate::published::unknown;
use crate::sliced::{Mode, Sliced};

/// Where a record came from, if it is not this node's own.
pub(crate) const ORIGIN: &str = "origin";
/// The range's plain pool, where it is still kept.
pub(crate) const PLAIN: &str = "plain";

impl SlicePool {
    /// Takes in everything that may be held in a slice that this node knows nothing of.
    pub async fn adopt(&self, of: &Arc<Sliced>, slice: Prefix) -> Result<(), SliceError> {
        let published = of.published(&self.world.node, slice);
        let view = self.world.cluster.load(&published).await?;
        let noted = self.world.noted(of, slice).await?;
        let mut found = unknown(&view.pool, &noted, slice);
        {
            // What this process has put there and not taken off yet says nothing that its ledger does not.
            let publisher = self.publisher.lock().await;
            found.retain(|(address, record)| !publisher.has_put(slice, *address, record));
        }
        // Before the pods: it knows their containers.
        found.extend(self.world.cached(of, slice).await?);
        let of_pods = self.world.node_pods().await?.addresses.into_iter();
        found.extend(of_pods.filter(|(address, _)| slice.contains(*address)));
        self.take_in(of, found).await?;
        self.learn(of, slice).await?;
        self.adopt_plain(of, slice).await
    }

    /// Takes in what the plain pool holds in a slice.
    pub async fn adopt_plain(&self, of: &Arc<Sliced>, slice: Prefix) -> Result<(), SliceError> {
        let plain = self.world.cluster.load(&of.plain()).await?;
        self.adopt_entries(of, slice, &plain.pool).await
    }

    /// The same of a plain pool that was read after the slice was claimed.
    pub async fn adopt_entries(
        &self,
        of: &Arc<Sliced>,
        slice: Prefix,
        plain: &Pool,
    ) -> Result<(), SliceError> {
        self.note_plain(of, plain);
        let old = entries(plain, slice)
            .into_iter()
            .map(|(address, record)| (address, record.with(ORIGIN, PLAIN)));
        self.take_in(of, old.collect()).await?;
        Ok(())
    }

    /// Only a pool that was marked before, or that no network gives from, stays empty.
    pub fn note_plain(&self, of: &Sliced, plain: &Pool) {
        let closed = self.known_mark().is_some() || of.mode == Mode::Assigned;
        self.set_plain_is_empty(plain.is_empty() && closed);
    }

    /// Holds each address for whoever has it. Those that are held here for another are reported, and given back: what others
    /// have published of them stays (I7).
    pub async fn take_in(
        &self,
        of: &Arc<Sliced>,
        found: Vec<(Address, Record)>,
    ) -> Result<Vec<Address>, SliceError> {
        if found.is_empty() {
            return Ok(Vec::new());
        }
        let claims = |pool: &Pool| -> Vec<Change> {
            let mut taken = std::collections::BTreeSet::new();
            found
                .iter()
                .filter(|(address, _)| !pool.is_held(*address) && taken.insert(*address))
                .map(|(address, record)| Change::Allocate {
                    address: *address,
                    record: record.clone(),
                })
                .collect()
        };
        let taken = self.world.amend(&of.key(), claims).await?;
        if !taken.is_empty() {
            tracing::info!(range = %of.range, count = taken.len(), "addresses that others gave are held here too");
        }
        let now = self.world.local.load(&of.key()).await?;
        let mut disputed = Vec::new();
        for (address, record) in &found {
            let same = |held: &Record| held.owner.subject == record.owner.subject;
            if !now.pool.holders(*address).any(same) {
                let by = now.pool.get(*address).map(|held| held.owner.to_string());
                self.report_conflict(*address, &by.unwrap_or_default(), &record.owner);
                disputed.push(*address);
            }
        }
        Ok(disputed)
    }

    pub fn report_conflict(&self, address: Address, ours: &str, theirs: &Owner) {
        self.world
            .metrics
            .conflicts
            .get_or_create(&self.label())
            .inc();
        tracing::error!(%address, ours, %theirs, "an address of this node's slice has two holders; one of them has to go");
    }
}

pub(crate) fn entries(pool: &Pool, slice: Prefix) -> Vec<(Address, Record)> {
    pool.records()
        .chain(pool.duplicate_holders())
        .filter(|(address, _)| slice.contains(*address))
        .map(|(address, record)| (address, record.clone()))
        .collect()
}
