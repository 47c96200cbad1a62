//! An exhausted range: how many requests are made before the refusal, and how often.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use berth_slices::SliceSettings;
use berth_testkit::Asked;
use serde_json::json;

use crate::cni_call::fast_cut;
use crate::test_node::{Site, quick};
use crate::without_agent::{Bare, claim, sliced};

/// The claims of others are their nodes', which do not answer.
async fn claimed(site: &Site, whole: &str, slots: impl Iterator<Item = String>) {
    for (n, slot) in slots.enumerate() {
        claim(site, whole, &slot, &format!("deaf-{n}"), 1, json!([])).await;
    }
}

fn is_want(asked: &Asked) -> bool {
    asked.method == "PATCH" && asked.path.contains("/namespaces/berth-")
}

/// However many claims there are: some nodes are asked, others by the next ADD.
#[tokio::test(flavor = "multi_thread")]
async fn one_add_asks_only_some_nodes() {
    let site = Site::shared().await;
    let whole = "10.100.0.0/25";
    sliced(&site, whole, 32).await;
    claimed(&site, whole, (0..128).map(|n| format!("10.100.0.{n}/32"))).await;
    let settings = SliceSettings {
        donor_wait: Duration::from_millis(50),
        ..quick()
    };
    let node = Bare::idle(&site, "asks-some", settings).await;
    let ipam = fast_cut(whole, "/32");
    let asked = || {
        let seen = node.relay.seen().into_iter();
        let wants = seen.filter(|(asked, _)| is_want(asked));
        wants
            .map(|(asked, _)| asked.path)
            .collect::<BTreeSet<String>>()
    };
    let mut before = 0;
    for pod in ["p", "q"] {
        let (code, why) = node.try_add(pod, &ipam).await.unwrap_err();
        assert_eq!(code, 11, "{why}");
        assert!(why.contains("32 other slices"), "{why}");
        let now = asked().len();
        assert!(now > before, "others are asked: {now}");
        assert!(now <= before + 32, "{now} were asked");
        before = now;
    }
}

/// Every change wakes the maintenance task, which wants one more slice: it does not search for one at each.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_found_nothing_free_does_not_search_at_every_change() {
    let site = Site::shared().await;
    let whole = "10.101.0.0/27";
    sliced(&site, whole, 30).await;
    claimed(
        &site,
        whole,
        (1..8).map(|n| format!("10.101.0.{}/30", n * 4)),
    )
    .await;
    let node = Bare::start(&site, "wants-more", quick()).await;
    let ipam = fast_cut(whole, "/30");
    let mut given = BTreeMap::new();
    for pod in ["a", "b"] {
        given.insert(node.add(pod, &ipam).await, format!("ns/{pod}"));
    }
    for n in 0..8 {
        let pod = format!("p{n}");
        let address = node.add(&pod, &ipam).await;
        given.insert(address.clone(), format!("ns/{pod}"));
        site.shows("published", &given).await;
        node.del(&pod, &ipam).await;
        given.remove(&address);
        site.shows("taken off", &given).await;
    }
    let tries = node.made("/leases");
    // Its own, and all others once.
    assert!(tries.len() <= 2 * 8, "{} tries", tries.len());
}
