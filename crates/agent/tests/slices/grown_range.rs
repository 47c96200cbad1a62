//! A range that grew: the same slice is part of two ranges.

use std::time::Duration;

use berth_api::whereabouts::NodeSlicePool;
use berth_slices::SliceSettings;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::test_node::{Machine, Site, quick, until};

/// Definitions are changed one after another: from the first ADD with the new range on, nothing is allocated under
/// the old one, and its addresses stay with their pods, published or not.
#[tokio::test(flavor = "multi_thread")]
async fn a_slice_is_allocated_from_as_part_of_one_range() {
    let site = Site::shared().await;
    let slices = [("grower", "10.90.0.0/26")];
    site.assign("net", "10.90.0.0/24", "/26", &slices).await;
    let settings = SliceSettings {
        gather: Duration::from_secs(3600),
        look: Duration::from_secs(3600),
        ..quick()
    };
    let machine = Machine::start_with(&site, "grower", settings).await;
    let ipam = |range: &str| json!({ "range": range, "node_slice_size": "/26", "enable_overlapping_ranges": false });
    let (old, new) = (ipam("10.90.0.0/24"), ipam("10.90.0.0/22"));
    assert_eq!(machine.add("a", &old).await, "10.90.0.1/24");
    let grown = Patch::Merge(json!({ "spec": { "range": "10.90.0.0/22" } }));
    let tables = site.api::<NodeSlicePool>();
    let params = PatchParams::default();
    tables.patch("net", &params, &grown).await.unwrap();
    assert_eq!(machine.add("b", &new).await, "10.90.0.2/22");
    let (code, why) = machine.try_add("c", &old).await.unwrap_err();
    assert_eq!(code, 11, "{why}");
    assert!(why.contains("10.90.0.0/22"), "{why}");
    assert_eq!(machine.add("a", &old).await, "10.90.0.1/24");
    machine.del("a", &old).await;
    assert_eq!(machine.add("d", &new).await, "10.90.0.3/22");
}

/// A table lists recalled slices for every range.
#[tokio::test(flavor = "multi_thread")]
async fn a_recall_counts_for_the_old_range_too() {
    let site = Site::shared().await;
    let slice = "10.91.0.0/26";
    site.assign("net", "10.91.0.0/24", "/26", &[("shrunk", slice)])
        .await;
    let machine = Machine::start(&site, "shrunk").await;
    let ipam = json!({ "range": "10.91.0.0/24", "node_slice_size": "/26", "enable_overlapping_ranges": false });
    machine.add("a", &ipam).await;
    let annotations = json!({
        "berth.dev/recalled": format!("[{slice:?}]"), "berth.dev/epochs": format!("{{{slice:?}:1}}"),
    });
    let recalled = Patch::Merge(
        json!({ "metadata": { "annotations": annotations }, "spec": { "range": "10.91.0.0/22" } }),
    );
    let tables = site.api::<NodeSlicePool>();
    let params = PatchParams::default();
    tables.patch("net", &params, &recalled).await.unwrap();
    until("the recall is noticed", async || {
        let events = site.node_events("shrunk").await;
        let mut told = events.iter().map(|(_, message)| message);
        let heard = told.any(|text| text.contains(slice) && text.contains("recalled"));
        heard.then_some(()).ok_or(format!("{events:?}"))
    })
    .await;
    let (code, why) = machine.try_add("b", &ipam).await.unwrap_err();
    assert_eq!(code, 11, "{why}");
}
