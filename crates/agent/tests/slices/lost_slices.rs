//! Slices that were lost: forgotten when their last pod is gone.

use std::collections::BTreeMap;

use berth_api::whereabouts::IPPool;

use crate::cni_call::{bare, fast};
use crate::test_node::{Machine, Site, until};
use crate::without_agent::take_claims;

/// The pool of a lost slice stays until its last pod is gone; then it is like one of a returned slice.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_slice_without_pods_is_forgotten() {
    let site = Site::shared().await;
    let ipam = fast("10.85.0.0/24");
    let machine = Machine::start(&site, "forgetful").await;
    let first = bare(&machine.add("first", &ipam).await);
    let lost = site.holders().await.into_keys().next().unwrap();
    site.shows(
        "published",
        &BTreeMap::from([(first.clone(), "ns/first".to_owned())]),
    )
    .await;
    take_claims(&site, &machine.node).await;
    let second = bare(&machine.add("second", &ipam).await);
    let both = BTreeMap::from([
        (first, "ns/first".to_owned()),
        (second, "ns/second".to_owned()),
    ]);
    site.shows("both are published", &both).await;
    machine.del("first", &ipam).await;
    let pool = format!("{}-{}", machine.node, lost.replace('/', "-"));
    until("its pool is labelled for the controller", async || {
        let found = site.api::<IPPool>().get(&pool).await.unwrap();
        let labels = found.metadata.labels.clone().unwrap_or_default();
        labels
            .contains_key("berth.dev/given-back")
            .then_some(())
            .ok_or(format!("{found:?}"))
    })
    .await;
    let rows = machine.rows().await;
    assert!(!rows.contains("lost"), "{rows}");
}
