//! Which nodes have claims: for whoever looks after nodes that are gone.

use std::collections::BTreeSet;

use berth_api::claim::NODE;
use berth_core::slice::NodeName;
use serde_json::Value;

use super::KubeLedger;
use super::label::label;
use super::resource::SLICES;
use crate::LedgerError;

/// Claims in one answer: their metadata is small.
const PAGE: u32 = 1_000;

impl KubeLedger {
    /// The labels of nodes that have claims and are none of `known`. Only labels are read, some at a time: a large
    /// cluster has tens of thousands of claims.
    pub async fn strange_claimants(
        &self,
        known: &BTreeSet<NodeName>,
    ) -> Result<BTreeSet<String>, LedgerError> {
        let known: BTreeSet<String> = known.iter().map(|node| label(node.as_str())).collect();
        let node = |metadata: &Value| {
            let node = metadata["labels"][NODE].as_str()?;
            (!node.is_empty() && !known.contains(node)).then(|| node.to_owned())
        };
        let strange = self.wire.pick_metadata(&SLICES, "", PAGE, node).await?;
        Ok(strange.into_iter().collect())
    }
}
