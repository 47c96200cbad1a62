//! Writes that were carried out and whose answers were lost.

use std::collections::BTreeMap;

use berth_testkit::{Asked, Fate};

use crate::cni_call::fast;
use crate::test_node::{Site, quick, until};
use crate::without_agent::Bare;

/// Whether a request is about a pool that the node publishes.
fn is_of_view(asked: &Asked, node: &str) -> bool {
    let (_, pool) = asked.path.split_once("/ippools").unwrap_or_default();
    let made = asked.body["metadata"]["name"].as_str();
    let name = match pool.strip_prefix('/') {
        Some(name) => name,
        None => made.unwrap_or_default(),
    };
    name.starts_with(node)
}

/// A pod is published, the answer is lost, and the pod ends before the object can be read: its entry is removed too,
/// and is not held as another node's. For the object's first entry, and for another one.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_published_without_an_answer_is_removed() {
    let site = Site::shared().await;
    let ipam = fast("10.35.0.0/24");
    let node = Bare::start(&site, "unanswered", quick()).await;
    let mut stay = BTreeMap::new();
    for (verb, goes, stays) in [("POST", "p1", "q1"), ("PATCH", "p2", "q2")] {
        let name = node.name.clone();
        let mut lost = false;
        node.relay
            .rule(move |asked| match is_of_view(asked, &name) {
                false => Fate::Pass,
                true if asked.method == verb && !lost => {
                    lost = true;
                    Fate::Lose
                }
                true => Fate::Refuse {
                    code: 503,
                    retry_after: None,
                },
            });
        let before = node.relay.seen().len();
        let address = node.add(goes, &ipam).await;
        until("published, and read without success", async || {
            let mut seen = node.relay.seen();
            seen.drain(..before);
            seen.retain(|(asked, _)| is_of_view(asked, &node.name));
            let codes: Vec<_> = seen.iter().map(|(_, code)| *code).collect();
            codes
                .contains(&Some(503))
                .then_some(())
                .ok_or(format!("{seen:?}"))
        })
        .await;
        let mut both = stay.clone();
        both.insert(address, format!("ns/{goes}"));
        site.shows("it is there", &both).await;
        node.del(goes, &ipam).await;
        node.relay.rule(|_| Fate::Pass);
        site.shows("it is taken off", &stay).await;
        stay.insert(node.add(stays, &ipam).await, format!("ns/{stays}"));
        site.shows("others are published", &stay).await;
    }
}

/// An address changes its pod while nothing can be written: the object's old entry is still recognised as this
/// node's, at every read.
#[tokio::test(flavor = "multi_thread")]
async fn an_old_entry_that_could_not_be_replaced_is_recognised_as_own() {
    let site = Site::shared().await;
    let ipam = fast("10.36.0.0/24");
    let node = Bare::start(&site, "unchanged", quick()).await;
    let address = node.add("before", &ipam).await;
    let shown = |pod: &str| BTreeMap::from([(address.clone(), format!("ns/{pod}"))]);
    site.shows("it is there", &shown("before")).await;
    let name = node.name.clone();
    node.relay.rule(
        move |asked| match is_of_view(asked, &name) && asked.method == "PATCH" {
            true => Fate::Refuse {
                code: 409,
                retry_after: None,
            },
            false => Fate::Pass,
        },
    );
    let before = node.relay.seen().len();
    node.del("before", &ipam).await;
    assert_eq!(node.add("after", &ipam).await, address);
    until("read after a failed write", async || {
        let mut seen = node.relay.seen();
        seen.drain(..before);
        seen.retain(|(asked, _)| is_of_view(asked, &node.name));
        let written = seen.iter().position(|(_, code)| *code == Some(409));
        let later = seen.iter().skip(written.unwrap_or(seen.len()));
        let mut looks = later.filter(|(asked, code)| asked.method == "GET" && *code == Some(200));
        looks.next().map(|_| ()).ok_or(format!("{seen:?}"))
    })
    .await;
    node.relay.rule(|_| Fate::Pass);
    site.shows("it is replaced", &shown("after")).await;
}
