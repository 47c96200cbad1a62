//! What this node's pods hold, by network: the node's journal, and the pools of its own slices.
//!
//! The journal proves what CNI GC and the node's collector may release (I4, [`berth_node::journal`]). Its own failures are
//! logged and change no answer.

use berth_core::{Address, Handle, Record};
use berth_ledger::{LedgerError, PoolKey, SharedRecordLedger};
use berth_node::NodeFile;
pub use berth_node::journal::Entry;
use berth_slices::sliced::{is_of_plain, is_sliced, plain_name};

use crate::attachment::attribute;

/// The node's records of its attachments.
#[derive(Debug)]
pub struct Journal {
    entries: berth_node::Journal,
    local: SharedRecordLedger,
}

impl Journal {
    pub fn new(file: &NodeFile) -> Journal {
        Journal {
            entries: file.journal().clone(),
            local: file.ledger(),
        }
    }

    /// Records what a call allocated; false if that failed.
    pub(crate) async fn note(
        &self,
        network: &str,
        record: &Record,
        allocated: &[(PoolKey, Address)],
    ) -> bool {
        match self.entries.add(network, record, allocated).await {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(network, owner = %record.owner, %error, "the node's journal lacks an ADD; the sweep releases it");
                false
            }
        }
    }

    /// Drops the entries of an interface of a container.
    pub(crate) async fn forget(&self, network: &str, handle: &Handle, ifname: &str) {
        if let Err(error) = self.entries.remove(network, handle, ifname).await {
            tracing::warn!(network, %handle, %error, "the node's journal keeps a stale entry");
        }
    }

    /// Drops the entry of one address, if it is that holder's.
    pub(crate) async fn forget_one(&self, network: &str, address: Address, holder: &Record) {
        let removed = self.entries.remove_address(network, address, holder);
        if let Err(error) = removed.await {
            tracing::warn!(network, %address, %error, "the node's journal keeps a stale entry");
        }
    }

    /// Every entry, with its network.
    pub async fn all(&self) -> Result<Vec<(String, Entry)>, LedgerError> {
        self.entries.all().await
    }

    /// The entries of a network.
    pub async fn entries(&self, network: &str) -> Result<Vec<Entry>, LedgerError> {
        self.entries.entries(network).await
    }

    /// What this node allocated from its slices: their pools are its own, and need no journal. What a plain pool has of them
    /// is judged there, once for all nodes.
    pub async fn of_slices(&self) -> Result<Vec<(String, Entry)>, LedgerError> {
        let mut all = Vec::new();
        for pool in self.local.pools().await? {
            if !is_sliced(&pool) {
                continue;
            }
            let now = self.local.load(&pool).await?;
            let plain = plain_name(&pool.name).to_owned();
            let records = now.pool.records();
            let own = records.filter(|(_, record)| !is_of_plain(record));
            all.extend(own.map(|(address, record)| {
                let network = record.attribute(attribute::NETWORK).unwrap_or(&plain);
                let entry = Entry {
                    pool: pool.clone(),
                    address,
                    record: record.clone(),
                };
                (network.to_owned(), entry)
            }));
        }
        Ok(all)
    }
}
