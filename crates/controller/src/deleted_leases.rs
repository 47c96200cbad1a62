//! Claims that are deleted while their nodes live: the nodes are notified, and claim again what their pods use (I1).
//!
//! A node that has returned the slice is notified without effect. This is only a hint: a node also checks its claims by
//! itself, later.

use std::sync::Arc;

use berth_kube::election::Leadership;
use berth_whereabouts::KubeLedger;
use futures::StreamExt;

use crate::watch_cache::WatchCache;

/// Notifies nodes while this controller leads.
pub(crate) async fn call_nodes(
    ledger: &KubeLedger,
    seen: &Arc<WatchCache>,
    leadership: &Leadership,
) {
    let mut deleted = ledger.deleted_claims();
    while let Some((claim, node)) = deleted.next().await {
        let lives = seen.view().is_some_and(|view| view.nodes.contains(&node));
        if !lives || !leadership.is_leading() {
            continue;
        }
        if let Err(error) = ledger.call_about(&node, &claim).await {
            tracing::warn!(%node, claim, %error, "can't notify the node; it checks its claims by itself later");
        }
    }
}
