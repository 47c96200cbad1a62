//! Notifications to a node, so that it reads its claims again: an object named after the node, which the sender writes.
//!
//! A hint and nothing more: a call that is lost costs time, because the node looks by itself too. A node watches the
//! one name. The API server keeps such a watch apart from all others, so 5,000 of them cost a write of anything else
//! nothing; by label, every write of every claim would be shown to every one of them.

use berth_core::slice::NodeName;
use berth_kube::{Failure, Verb};
use futures::StreamExt;
use futures::stream::BoxStream;
use kube::api::{DynamicObject, Patch, Preconditions};
use kube::runtime::{WatchStreamExt, watcher};
use rand::RngExt;
use serde_json::{Value, json};

use super::resource::SLICE_CALLS;
use super::{KubeLedger, SliceObject};
use berth_ledger::LedgerError;

/// What a node hears on its watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// A call, with the claim that it is about, if it says so.
    Call(Option<String>),
    /// The watch broke, and is tried again.
    Broken,
    /// It is complete again: what was called before was heard.
    Complete,
}

/// Objects in one answer of a list.
const PAGE: u32 = 500;

impl KubeLedger {
    /// Calls a node, after something was written on a claim of its, or it was made its own.
    pub async fn call_node(&self, node: &NodeName, claim: &SliceObject) -> Result<(), LedgerError> {
        self.call_about(node, &claim.name).await
    }

    /// The same by the claim's name: it may have been deleted.
    pub async fn call_about(&self, node: &NodeName, claim: &str) -> Result<(), LedgerError> {
        let name = node.as_str();
        let call = format!("{:x} {claim}", rand::rng().random_range(0..u64::MAX));
        let spec = json!({ "call": call });
        let patch = Patch::Merge(json!({ "spec": spec }));
        let ask = self.client.ask(Verb::Patch, &SLICE_CALLS, name);
        match self.client.patch(&SLICE_CALLS, name, &patch).await {
            Ok(_) => return Ok(()),
            Err(Failure::Refused(refusal)) if refusal.is_absence_of(name) => {}
            Err(failure) => return Err(failure.into_error(ask).into()),
        }
        let object = json!({
            "apiVersion": SLICE_CALLS.api_version(),
            "kind": SLICE_CALLS.kind,
            "metadata": { "name": name },
            "spec": spec,
        });
        match self.client.create(&SLICE_CALLS, &object).await {
            Ok(_) => Ok(()),
            // Somebody else's call, after what was written: it is heard for us too.
            Err(Failure::Refused(refusal)) if refusal.is_taken_name() => Ok(()),
            Err(failure) => Err(failure
                .into_error(self.client.ask(Verb::Create, &SLICE_CALLS, name))
                .into()),
        }
    }

    /// The nodes that calls are kept for.
    pub async fn called_nodes(&self) -> Result<Vec<NodeName>, LedgerError> {
        let name = |metadata: &Value| metadata["name"].as_str().map(NodeName::new);
        let nodes = self.client.pick_metadata(&SLICE_CALLS, "", PAGE, name);
        Ok(nodes.await?)
    }

    /// Deletes the calls to a node that is gone. One that is called again is heard of by a new object.
    pub async fn end_calls(&self, node: &NodeName) -> Result<(), LedgerError> {
        let any = Preconditions::default();
        Ok(self.client.delete(&SLICE_CALLS, node.as_str(), any).await?)
    }

    /// The calls to a node; one too when the watch had to begin again, because it may have missed some.
    pub fn calls(&self, node: &NodeName) -> BoxStream<'static, Heard> {
        let api = self.client.api::<DynamicObject>(&SLICE_CALLS);
        let own = watcher::Config::default().fields(&format!("metadata.name={node}"));
        watcher(api, own)
            .default_backoff()
            .filter_map(|event| async move {
                match event {
                    Ok(watcher::Event::Apply(call) | watcher::Event::InitApply(call)) => {
                        let text = call.data["spec"]["call"].as_str().unwrap_or_default();
                        let claim = text.split_once(' ').map(|(_, claim)| claim);
                        Some(Heard::Call(claim.map(str::to_owned)))
                    }
                    Ok(watcher::Event::InitDone) => Some(Heard::Complete),
                    Ok(watcher::Event::Init | watcher::Event::Delete(_)) => None,
                    Err(_) => Some(Heard::Broken),
                }
            })
            .boxed()
    }
}
