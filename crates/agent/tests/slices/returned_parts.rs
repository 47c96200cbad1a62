//! A part that came back to the node that it was cut from, and is not needed there either.

use std::time::Duration;

use berth_slices::SliceSettings;
use serde_json::json;

use crate::cni_call::fast_cut;
use crate::test_node::{Machine, Site, quick, until};
use crate::without_agent::claim;

/// A node holds a slice, has lent a part of it, and got that part transferred back; then its last pod ends. The part
/// can be returned, then the offer of it withdrawn, then the slice returned.
#[tokio::test(flavor = "multi_thread")]
async fn a_part_that_came_back_is_returned_with_the_slice_around_it() {
    let site = Site::shared().await;
    let (whole, part) = ("10.35.0.0/27", "10.35.0.16/29");
    let lent = json!([{ "range": part, "node": "borrower" }]);
    claim(&site, whole, whole, "empty", 1, lent).await;
    claim(&site, whole, part, "empty", 2, json!([])).await;
    let settings = SliceSettings {
        idle: Duration::from_millis(400),
        look: Duration::from_millis(300),
        offer_wait: Duration::from_millis(300),
        ..quick()
    };
    let node = Machine::start_with(&site, "empty", settings).await;
    let ipam = fast_cut(whole, "/27");
    node.add("p", &ipam).await;
    node.del("p", &ipam).await;
    until("returned", async || {
        let now = site.holders().await;
        now.is_empty().then_some(()).ok_or(format!("{now:?}"))
    })
    .await;
}
