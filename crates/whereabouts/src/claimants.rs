//! Which nodes have claims: for the work on nodes that are gone, and on claims that are deleted under nodes that
//! live.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::claim::{NODE, RANGE};
use berth_core::slice::NodeName;
use futures::StreamExt;
use futures::stream::BoxStream;
use kube::ResourceExt;
use kube::api::{DynamicObject, PartialObjectMeta};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as start};
use serde_json::Value;

use super::KubeLedger;
use super::label::label;
use super::resource::SLICES;
use berth_ledger::LedgerError;

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
        let strange = self.client.pick_metadata(&SLICES, "", PAGE, node).await?;
        Ok(strange.into_iter().collect())
    }

    /// Claims as they are deleted, by any client: the claim's name and the node that had it. One that was deleted while the
    /// watch was broken is among them.
    pub fn deleted_claims(&self) -> BoxStream<'static, (String, NodeName)> {
        let api = self.client.api::<PartialObjectMeta<DynamicObject>>(&SLICES);
        let ours = watcher::Config::default().labels(RANGE);
        let mut known: BTreeMap<String, String> = BTreeMap::new();
        let mut listed: BTreeMap<String, String> = BTreeMap::new();
        start(api, ours)
            .default_backoff()
            .flat_map(move |event| {
                let deleted = match event {
                    Ok(Event::Init) => {
                        listed.clear();
                        Vec::new()
                    }
                    Ok(Event::InitApply(claim)) => {
                        listed.insert(claim.name_any(), node_of(&claim));
                        Vec::new()
                    }
                    Ok(Event::InitDone) => {
                        let before = std::mem::replace(&mut known, std::mem::take(&mut listed));
                        let gone = before.into_iter();
                        gone.filter(|(name, _)| !known.contains_key(name)).collect()
                    }
                    Ok(Event::Apply(claim)) => {
                        known.insert(claim.name_any(), node_of(&claim));
                        Vec::new()
                    }
                    Ok(Event::Delete(claim)) => {
                        known.remove(&claim.name_any());
                        vec![(claim.name_any(), node_of(&claim))]
                    }
                    Err(error) => {
                        tracing::debug!(%error, "the watch of claims is renewed");
                        Vec::new()
                    }
                };
                let held = deleted.into_iter().filter(|(_, node)| !node.is_empty());
                let held = held.map(|(name, node)| (name, NodeName::new(node)));
                futures::stream::iter(held.collect::<Vec<_>>())
            })
            .boxed()
    }
}

fn node_of(claim: &PartialObjectMeta<DynamicObject>) -> String {
    claim.labels().get(NODE).cloned().unwrap_or_default()
}
