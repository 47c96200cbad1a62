//! Two files of one node, and slices that a controller has assigned to it: one of them allocates (I1).

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use crate::cni_call::bare;
use crate::test_node::{Machine, Site, quick, until};

fn assigned(range: &str) -> Value {
    json!({ "range": range, "node_slice_size": "/28", "enable_overlapping_ranges": false })
}

/// The agent has allocated but not published: the engine with another file refuses all the same.
#[tokio::test(flavor = "multi_thread")]
async fn berth_15_15_another_file_is_refused_before_the_first_publication() {
    let site = Site::shared().await;
    let slices = [("unpublished", "10.89.0.0/28")];
    site.assign("net", "10.89.0.0/24", "/28", &slices).await;
    let ipam = assigned("10.89.0.0/24");
    let mut other = Machine::start(&site, "unpublished").await;
    other.stop().await;
    let mut settings = quick();
    settings.gather = Duration::from_secs(3600);
    let agent = Machine::start_with(&site, "unpublished", settings).await;
    let address = agent.add("first", &ipam).await;
    assert_eq!(site.published().await, BTreeMap::new());
    let refused = other.add_alone("second", &ipam).await;
    let (_, why) = refused.expect_err(&address);
    assert!(why.contains("are kept in the database"), "{why}");
}

/// A second agent takes the slices over; the first one notices and allocates no more.
#[tokio::test(flavor = "multi_thread")]
async fn berth_15_15_an_agent_notices_a_second_one_of_its_node() {
    let site = Site::shared().await;
    let slices = [("twice", "10.90.0.0/28")];
    site.assign("net", "10.90.0.0/24", "/28", &slices).await;
    let ipam = assigned("10.90.0.0/24");
    let first = Machine::start(&site, "twice").await;
    let address = bare(&first.add("first", &ipam).await);
    let shown = BTreeMap::from([(address.clone(), "ns/first".to_owned())]);
    site.shows("published", &shown).await;
    let second = Machine::start(&site, "twice").await;
    let other = bare(&second.add("second", &ipam).await);
    assert_ne!(address, other);
    until("the first one notices", async || {
        let held = first.slices_held("10.90.0.0-24").await;
        (held == 0).then_some(()).ok_or(format!("{held}"))
    })
    .await;
    assert!(first.try_add("third", &ipam).await.is_err());
    assert_eq!(bare(&second.add("second", &ipam).await), other);
}
