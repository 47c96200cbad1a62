//! A network whose range changes its mode under a running agent.

use std::time::Duration;

use berth_api::whereabouts::NodeSlicePool;
use berth_slices::SliceSettings;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::cni_call::without_size;
use crate::test_node::{Machine, Site, quick, until};
use crate::without_agent::take_claims;

/// From claimed to assigned: what is assigned is watched from then on. There is no periodic read meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_recall_is_noticed_when_slices_were_claimed_before() {
    let site = Site::shared().await;
    let settings = SliceSettings {
        look: Duration::from_secs(3600),
        ..quick()
    };
    let mut machine = Machine::start_with(&site, "turncoat", settings).await;
    let assigned = json!({ "range": "10.86.0.0/16", "node_slice_size": "/18" });
    let mut claimed = without_size(&assigned);
    claimed["fast_ipam"] = json!(true);
    machine.add("claimed", &claimed).await;
    take_claims(&site, "turncoat").await;
    let slice = "10.86.64.0/18";
    site.assign("net", "10.86.0.0/16", "/18", &[("turncoat", slice)])
        .await;
    machine.add("assigned", &assigned).await;
    let recalled = Patch::Merge(json!({ "metadata": { "annotations": {
        "berth.dev/recalled": format!("[{slice:?}]"), "berth.dev/epochs": format!("{{{slice:?}:1}}"),
    } } }));
    let tables = site.api::<NodeSlicePool>();
    let params = PatchParams::default();
    tables.patch("net", &params, &recalled).await.unwrap();
    until("the recall is noticed", async || {
        let events = site.node_events("turncoat").await;
        let mut told = events.iter().map(|(_, message)| message);
        let heard = told.any(|text| text.contains(slice) && text.contains("recalled"));
        heard.then_some(()).ok_or(format!("{events:?}"))
    })
    .await;
    machine.stop().await;
    let rows = machine.rows().await;
    let holding = rows
        .lines()
        .find(|row| row.contains(slice) && row.contains("slices/"));
    assert!(
        holding.is_some_and(|row| row.contains("assigned/net")),
        "{rows}"
    );
}
