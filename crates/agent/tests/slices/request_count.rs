//! The API requests of a first ADD from claimed slices, by the server's own count.

use std::time::Duration;

use berth_slices::SliceSettings;
use berth_testkit::Cluster;
use kube::api::ListParams;
use kube::core::Request;
use serde_json::json;

use crate::test_node::{Machine, Site, quick};

/// Requests of that verb on that kind since the server's start, refused ones too.
async fn count(site: &Site, verb: &str, resource: &str) -> u64 {
    let request = Request::new("/metrics").list(&ListParams::default());
    let text = site.client.request_text(request.unwrap()).await.unwrap();
    let (verb, resource) = (
        format!("verb=\"{verb}\""),
        format!("resource=\"{resource}\""),
    );
    text.lines()
        .filter(|line| line.starts_with("apiserver_request_total{"))
        .filter(|line| line.contains(&verb) && line.contains(&resource))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
        .sum()
}

/// Thousands of nodes do it at once. That slices allocate without reservations is written and read in the same
/// requests.
#[tokio::test(flavor = "multi_thread")]
async fn a_first_add_is_one_claim_and_one_read() {
    let cluster = Cluster::start().await.unwrap();
    let site = Site::of(&cluster).await;
    // Nothing is published or compared meanwhile.
    let hour = Duration::from_secs(3600);
    let settings = || SliceSettings {
        gather: hour,
        look: hour,
        ..quick()
    };
    let first = Machine::start_with(&site, "first", settings()).await;
    let second = Machine::start_with(&site, "second", settings()).await;
    for checked in [true, false] {
        let range = format!("10.{}.0.0/16", 68 + u8::from(checked));
        let ipam =
            json!({ "range": range, "fast_ipam": true, "enable_overlapping_ranges": checked });
        first.add("first", &ipam).await;
        let now = async || {
            let mut all = Vec::new();
            for verb in ["GET", "POST", "PATCH"] {
                all.push(count(&site, verb, "ippools").await);
            }
            // The API server reads and renews a Lease of its own.
            for verb in ["POST", "PATCH"] {
                all.push(count(&site, verb, "leases").await);
            }
            all
        };
        let before = now().await;
        second.add("second", &ipam).await;
        let after = now().await;
        let made: Vec<u64> = after.iter().zip(before).map(|(n, m)| n - m).collect();
        // The read of the plain pool, and the claim.
        assert_eq!(made, [1, 0, 0, 1, 0], "checks: {checked}");
        let before = now().await;
        second.add("more", &ipam).await;
        assert_eq!(now().await, before, "checks: {checked}");
    }
}
