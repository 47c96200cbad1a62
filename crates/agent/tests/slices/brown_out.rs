//! An API server that refuses all publications for a while: how much a node asks of it meanwhile, and what it publishes after.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_testkit::{Asked, Fate};
use serde_json::Value;

use crate::cni_call::fast;
use crate::test_node::{Site, quick, until};
use crate::without_agent::Bare;

const NETWORKS: usize = 10;

fn is_publication(asked: &Asked) -> bool {
    asked.path.contains("/ippools") && asked.method != "GET"
}

#[tokio::test(flavor = "multi_thread")]
async fn berth_20_2_publications_of_a_node_back_off_together_and_catch_up() {
    let site = Site::shared().await;
    let node = Bare::start(&site, "browned-out", quick()).await;
    let networks: Vec<Value> = (0..NETWORKS)
        .map(|n| fast(&format!("10.163.{n}.0/24")))
        .collect();
    let mut shown = BTreeMap::new();
    let mut add = async |pod: String, ipam: &Value| {
        shown.insert(node.add(&pod, ipam).await, format!("ns/{pod}"));
    };
    for (n, ipam) in networks.iter().enumerate() {
        add(format!("first-{n}"), ipam).await;
    }
    node.relay.rule(|asked| match is_publication(asked) {
        true => Fate::Refuse {
            code: 503,
            retry_after: None,
        },
        false => Fate::Pass,
    });
    let refused = || {
        let seen = node.relay.seen().into_iter();
        let refused = seen.filter(|(asked, code)| is_publication(asked) && *code == Some(503));
        refused.map(|(asked, _)| asked.at).collect::<Vec<_>>()
    };
    for (n, ipam) in networks.iter().enumerate() {
        add(format!("second-{n}"), ipam).await;
    }
    // Ten ranges with something to publish: what begins together fails together, and after that one goes at a time.
    let tries = until("some tries", async || {
        let now = refused();
        let together = now
            .iter()
            .filter(|at| **at - now[0] < Duration::from_secs(1));
        let after = now.len() - together.count();
        (after >= 4).then_some(now).ok_or(format!("{after}"))
    })
    .await;
    let last = &tries[tries.len() - 3..];
    for pair in last.windows(2) {
        let pause = pair[1] - pair[0];
        assert!(
            pause >= Duration::from_secs(1),
            "one of ten ranges tried after {pause:?}"
        );
    }
    node.relay.rule(|_| Fate::Pass);
    site.shows("all of it after that", &shown).await;
    node.stop().await;
}
