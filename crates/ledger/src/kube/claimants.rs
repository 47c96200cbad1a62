//! Which nodes have claims: for whoever looks after nodes that are gone.

use std::collections::BTreeSet;

use berth_core::slice::NodeName;
use kube::api::ListParams;

use super::KubeLedger;
use super::label::label;
use super::resource::SLICES;
use super::slices::NODE;
use super::status::Verb;
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
        let mut strange = BTreeSet::new();
        let mut params = ListParams::default().limit(PAGE);
        loop {
            let page = self.wire.list_metadata(&SLICES, &params).await;
            let page =
                page.map_err(|failure| failure.into_error(self.wire.ask(Verb::List, &SLICES, "")))?;
            for object in page["items"].as_array().into_iter().flatten() {
                let node = object["metadata"]["labels"][NODE].as_str();
                let node = node.filter(|node| !node.is_empty() && !known.contains(*node));
                strange.extend(node.map(str::to_owned));
            }
            match page["metadata"]["continue"].as_str() {
                Some(token) if !token.is_empty() => params.continue_token = Some(token.to_owned()),
                _ => return Ok(strange),
            }
        }
    }
}
