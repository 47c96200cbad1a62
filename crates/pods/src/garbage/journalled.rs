//! This node's own entries, by its journal.

use std::sync::Arc;

use async_trait::async_trait;
use berth_collector::LocalEntries;
use berth_collector::observed::{Held, Note};
use berth_ledger::LedgerError;

use super::sandbox;
use crate::attachment::attribute;
use crate::journal::Journal;

#[derive(Debug)]
pub(super) struct Journalled {
    pub journal: Arc<Journal>,
    pub node: String,
    /// The boot that this node is in.
    pub boot: String,
}

#[async_trait]
impl LocalEntries for Journalled {
    async fn entries(&self) -> Result<Vec<Held>, LedgerError> {
        let mut held = Vec::new();
        let of_slices = self.journal.of_slices().await?;
        for (network, entry) in self.journal.all().await?.into_iter().chain(of_slices) {
            let mut record = entry.record;
            if record.attribute(attribute::NODE) != Some(&self.node) {
                // Imported from a shared pool: judged by its pod alone.
                record.attributes.remove(attribute::NODE);
                record.attributes.remove(attribute::NETNS);
            }
            let note = Note {
                network: Some(network),
                pod_uid: record.attribute(attribute::POD_UID).map(str::to_owned),
                node: None,
                rebooted: sandbox::is_of_older_boot(&record, &self.boot),
                sandbox: sandbox::of(&record, &self.boot),
            };
            held.push(Held {
                pool: entry.pool,
                address: entry.address,
                record,
                note,
            });
        }
        Ok(held)
    }

    async fn forget(&self, held: &Held) {
        if let Some(network) = &held.note.network {
            self.journal
                .forget_one(network, held.address, &held.record)
                .await;
        }
    }
}
