//! Networks whose addresses cool down: a slice in which nothing is held or cools down any more is free again.

use std::time::Duration;

use serde_json::{Value, json};

use crate::allocated::Given;
use crate::cni_call::{bare, fast_cut};
use crate::test_node::{Machine, Site, quick, until};

fn cooling(range: &str, size: &str) -> Value {
    let mut ipam = fast_cut(range, size);
    ipam["cooldown_seconds"] = json!(1);
    ipam
}

#[tokio::test(flavor = "multi_thread")]
async fn berth_15_13_a_slice_is_released_after_its_addresses_cooled_down() {
    let site = Site::shared().await;
    let ipam = cooling("10.147.0.0/28", "/28");
    let mut settings = quick();
    settings.idle = Duration::from_secs(1);
    let first = Machine::start_with(&site, "cooled-first", settings).await;
    let address = first.add("p", &ipam).await;
    first.del("p", &ipam).await;
    until("it is released", async || {
        let now = site.holders().await;
        now.is_empty().then_some(()).ok_or(format!("{now:?}"))
    })
    .await;
    let second = Machine::start(&site, "cooled-second").await;
    assert_eq!(second.add("q", &ipam).await, address);
}

/// The only slice is another node's, and everything in it has cooled down.
#[tokio::test(flavor = "multi_thread")]
async fn berth_15_13_what_cooled_down_is_lent() {
    let site = Site::shared().await;
    let ipam = cooling("10.148.0.0/28", "/28");
    let lender = Machine::start(&site, "cooled-lender").await;
    for n in 0..14 {
        lender.add(&format!("p{n}"), &ipam).await;
    }
    for n in 1..14 {
        lender.del(&format!("p{n}"), &ipam).await;
    }
    let borrower = Machine::start(&site, "cooled-borrower").await;
    let mut given = Given::default();
    given.note(&[lender.add("p0", &ipam).await], "p0");
    let lent = until("a part is lent", async || {
        let got = borrower.try_add("q", &ipam).await;
        got.map_err(|refused| format!("{refused:?}"))
    })
    .await;
    given.note(&lent, "q");
    assert!(bare(&lent[0]).starts_with("10.148.0."));
}
