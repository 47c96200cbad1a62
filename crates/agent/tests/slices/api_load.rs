//! Nodes and an overloaded API server: a node that needs a slice honours Retry-After, and background work is
//! deferred.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use berth_testkit::{Asked, Fate};
use serde_json::Value;

use crate::cni_call::{fast, fast_cut};
use crate::test_node::{Site, quick, until};
use crate::without_agent::Bare;

const CLAIMS: &str = "/leases";

fn is_claim(asked: &Asked) -> bool {
    asked.method == "POST" && asked.path.ends_with(CLAIMS)
}

fn small(range: &str) -> Value {
    fast_cut(range, "/30")
}

/// Of a slice of four addresses, each of these pods except the last may get one: some of them need a second slice.
const PODS: [&str; 4] = ["p0", "p1", "p2", "p3"];

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_waits_for_a_second_slice_while_the_api_server_is_overloaded() {
    let site = Site::shared().await;
    let ipam = small("10.23.0.0/24");
    let node = Bare::idle(&site, "told-later", quick()).await;
    node.add("first", &ipam).await;
    node.relay.rule(|asked| match is_claim(asked) {
        true => Fate::Refuse {
            code: 429,
            retry_after: Some(1),
        },
        false => Fate::Pass,
    });
    let refused = || {
        let refused = node.made(CLAIMS).into_iter();
        let refused = refused.filter(|(_, code)| *code == Some(429));
        refused.map(|(asked, _)| asked.at).collect::<Vec<Instant>>()
    };
    let adds = async {
        for pod in PODS {
            node.add(pod, &ipam).await;
        }
    };
    let relief = async {
        until("three refusals", async || {
            let now = refused().len();
            (now >= 3).then_some(()).ok_or(format!("{now}"))
        })
        .await;
        node.relay.rule(|_| Fate::Pass);
    };
    tokio::join!(adds, relief);
    for pair in refused().windows(2) {
        let pause = pair[1] - pair[0];
        assert!(pause >= Duration::from_secs(1), "asked after {pause:?}");
    }
}

/// Kubelet retries, and the pod's other networks may not need it.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_does_not_wait_for_a_second_slice_while_the_api_server_is_away() {
    let site = Site::shared().await;
    let away = [
        Fate::Refuse {
            code: 503,
            retry_after: None,
        },
        Fate::Cut,
    ];
    for (n, fate) in away.into_iter().enumerate() {
        let ipam = small(&format!("10.24.{n}.0/24"));
        let node = Bare::idle(&site, &format!("away-{n}"), quick()).await;
        node.add("first", &ipam).await;
        // On a busy machine the first claim may have been sent again.
        let claims = node.made(CLAIMS).len();
        node.relay.rule(move |_| fate);
        let mut refused = None;
        for pod in PODS {
            if refused.is_none() && node.try_add(pod, &ipam).await.is_err() {
                refused = Some(pod);
            }
        }
        let refused = refused.expect("there is a slice for all of them");
        let more = node.made(CLAIMS).len() - claims;
        assert_eq!(more, 1, "{fate:?}: one claim for the second slice");
        node.relay.rule(|_| Fate::Pass);
        node.add(refused, &ipam).await;
    }
}

/// Settings that read a range only on request.
fn seldom(publish_within: Duration) -> berth_slices::SliceSettings {
    berth_slices::SliceSettings {
        look: Duration::from_secs(600),
        publish_within,
        ..quick()
    }
}

/// A node whose claims take a second: ten minutes would be long enough to defer its publications.
async fn slowed(site: &Site, name: &str, publish_within: Duration) -> Bare {
    let node = Bare::start(site, name, seldom(publish_within)).await;
    node.relay.rule(|asked| match is_claim(asked) {
        true => Fate::Later(Duration::from_secs(1)),
        false => Fate::Pass,
    });
    node
}

/// When the pool of a slice of that node was created.
fn published_at(node: &Bare) -> Option<Instant> {
    let made = node.made("/ippools").into_iter();
    let mut views = made.filter(|(asked, _)| {
        let name = asked.body["metadata"]["name"].as_str();
        name.is_some_and(|name| name.starts_with(&node.name))
    });
    views.next().map(|(asked, _)| asked.at)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publication_is_deferred_while_claims_are_slow_up_to_the_limit() {
    let site = Site::shared().await;
    let ipam = fast("10.25.0.0/24");
    let limit = Duration::from_secs(4);
    let node = slowed(&site, "stands-back", limit).await;
    let mut given = BTreeMap::new();
    for pod in PODS {
        given.insert(node.add(pod, &ipam).await, format!("ns/{pod}"));
    }
    let answered = node.made(CLAIMS)[0].0.at + Duration::from_secs(1);
    // Without the limit it would follow after a thousand claims: more than a quarter of an hour.
    site.shows("published", &given).await;
    let stood_back = published_at(&node).unwrap() - answered;
    // Nodes differ from each other by a quarter.
    assert!(stood_back >= limit.mul_f64(0.75), "{stood_back:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deferred_publication_is_made_before_the_end() {
    let site = Site::shared().await;
    let ipam = fast("10.26.0.0/24");
    let node = slowed(&site, "ends", Duration::from_secs(600)).await;
    let given = BTreeMap::from([(node.add("p", &ipam).await, "ns/p".to_owned())]);
    // Not to wait for it, but to notice if it is made.
    tokio::time::sleep(quick().gather * 10).await;
    assert_eq!(published_at(&node), None);
    node.stop().await;
    assert_eq!(site.published().await, given);
}

/// The API server refuses writes of pools with a Retry-After: the node retries after that, with one request.
#[tokio::test(flavor = "multi_thread")]
async fn berth_15_24_a_publication_waits_as_long_as_retry_after_says() {
    let site = Site::shared().await;
    // Two slices in use, so that a pass has a second one to continue with.
    let ipam = small("10.27.0.0/24");
    let settings = berth_slices::SliceSettings {
        look: Duration::from_secs(600),
        ..quick()
    };
    let node = Bare::start(&site, "refused-views", settings).await;
    let mut given = BTreeMap::new();
    given.insert(node.add("p0", &ipam).await, "ns/p0".to_owned());
    let is_write = |asked: &Asked| {
        let writes = ["PATCH", "PUT"].contains(&asked.method.as_str());
        writes && asked.path.contains("/ippools/refused-views-")
    };
    for pod in ["p1", "p2", "p3"] {
        given.insert(node.add(pod, &ipam).await, format!("ns/{pod}"));
    }
    site.shows("published", &given).await;
    let wait = Duration::from_secs(3);
    node.relay.rule(move |asked| match is_write(asked) {
        true => Fate::Refuse {
            code: 429,
            retry_after: Some(3),
        },
        false => Fate::Pass,
    });
    for pod in ["p0", "p1", "p2", "p3"] {
        node.del(pod, &ipam).await;
    }
    let refused = || {
        let seen = node.relay.seen().into_iter();
        let seen = seen.filter(|(asked, code)| is_write(asked) && *code == Some(429));
        seen.map(|(asked, _)| asked.at).collect::<Vec<Instant>>()
    };
    until("three refusals", async || {
        let now = refused().len();
        (now >= 3).then_some(()).ok_or(format!("{now}"))
    })
    .await;
    for pair in refused().windows(2) {
        let pause = pair[1] - pair[0];
        assert!(pause >= wait, "asked after {pause:?}");
    }
    node.relay.rule(|_| Fate::Pass);
    site.shows("published after it", &BTreeMap::new()).await;
}
