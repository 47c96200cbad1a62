//! A network whose range becomes wider or narrower while slices of the old range are held: the two are cut
//! independently, and a slice of one may overlap slices of the other.

use std::time::Duration;

use serde_json::json;

use crate::cni_call::{bare, fast_cut};
use crate::test_node::{Machine, Site, quick, until};
use crate::without_agent::claim;

#[tokio::test(flavor = "multi_thread")]
async fn a_wider_range_waits_for_the_slices_of_the_narrower() {
    let site = Site::shared().await;
    let mut settings = quick();
    settings.idle = Duration::from_millis(400);
    settings.look = Duration::from_millis(300);
    let before = Machine::start_with(&site, "narrow-range", settings.clone()).await;
    let after = Machine::start_with(&site, "wide-range", settings).await;
    // Two slices of the wider range, the first of which is all of the narrower one.
    let narrow = fast_cut("10.102.0.0/24", "/28");
    let wide = fast_cut("10.102.0.0/23", "/24");
    let held = bare(&before.add("p", &narrow).await);
    for pod in ["q", "r"] {
        let (code, why) = after.try_add(pod, &wide).await.unwrap_err();
        assert_eq!(code, 11, "{why}");
        for word in ["10.102.0.0/23", "10.102.0.0/24", "narrow-range"] {
            assert!(why.contains(word), "{word}: {why}");
        }
    }
    let now = site.holders().await;
    assert!(now.values().all(|node| node == "narrow-range"), "{now:?}");
    before.del("p", &narrow).await;
    until("the old slices are returned", async || {
        let got = after.try_add("q", &wide).await;
        got.map(|_| ()).map_err(|refused| format!("{refused:?}"))
    })
    .await;
    // The other way round, while the wider one is held.
    let (code, why) = before.try_add("again", &narrow).await.unwrap_err();
    assert_eq!(code, 11, "{held}: {why}");
}

/// All slices are other nodes', which are about to annotate the range: a node without a claim does not, because it
/// would check for claims of other ranges before those could see its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_finds_no_free_slice_annotates_nothing() {
    let site = Site::shared().await;
    let whole = "10.122.0.0/30";
    for n in 0..2 {
        let slot = format!("10.122.0.{}/31", 2 * n);
        claim(&site, whole, &slot, &format!("begins-{n}"), 1, json!([])).await;
    }
    let node = Machine::start(&site, "finds-none").await;
    let mut ipam = fast_cut(whole, "/31");
    ipam["slice_borrow"] = json!(false);
    let (code, why) = node.try_add("p", &ipam).await.unwrap_err();
    assert_eq!(code, 11, "{why}");
    assert_eq!(site.entries("10.122.0.0-30").await, None, "it is marked");
}

/// If every address has a reservation, that prevents duplicates.
#[tokio::test(flavor = "multi_thread")]
async fn with_overlap_checks_a_wider_range_does_not_wait() {
    let site = Site::shared().await;
    let before = Machine::start(&site, "narrow-checked").await;
    let after = Machine::start(&site, "wide-checked").await;
    let ipam =
        |range: &str, size: &str| json!({ "range": range, "fast_ipam": true, "slice_size": size });
    let mut given = std::collections::BTreeSet::new();
    for n in 0..3 {
        let narrow = ipam("10.103.0.0/25", "/27");
        given.insert(bare(&before.add(&format!("p{n}"), &narrow).await));
    }
    for n in 0..3 {
        let wide = ipam("10.103.0.0/24", "/24");
        given.insert(bare(&after.add(&format!("q{n}"), &wide).await));
    }
    assert_eq!(given.len(), 6, "{given:?}");
}
