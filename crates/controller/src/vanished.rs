//! Claims that are deleted under nodes that live: their nodes are called, and claim again what their pods use (I1).
//!
//! A node that has given a slice back is called in vain. A hint and nothing more: a node looks at its claims by itself too,
//! later.

use std::sync::Arc;

use berth_ledger::KubeLedger;
use futures::StreamExt;

use crate::election::Leadership;
use crate::seen::Seen;

/// Calls nodes for ever, as long as this controller leads.
pub(crate) async fn call_nodes(ledger: &KubeLedger, seen: &Arc<Seen>, leadership: &Leadership) {
    let mut deleted = ledger.deleted_claims();
    while let Some((claim, node)) = deleted.next().await {
        let lives = seen.view().is_some_and(|view| view.nodes.contains(&node));
        if !lives || !leadership.is_leading() {
            continue;
        }
        if let Err(error) = ledger.call_about(&node, &claim).await {
            tracing::warn!(%node, claim, %error, "the node was not called; it looks by itself later");
        }
    }
}
