//! A pool with more allocations than its status describes.

use berth_nodes::handler::Mode;
use berth_nodes::objects::{ENACTMENT, NODE_IP_POOL};
use berth_testkit::Fate;
use serde_json::{Value, json};

use crate::bed::{Bed, all_different, applied, offsets};

const BALLAST: usize = 1_100;

fn address(offset: usize) -> String {
    format!("10.26.{}.{}", offset / 254, offset % 254 + 1)
}

impl Bed {
    /// A pool whose first 1,100 offsets the enactments of five other nodes claim.
    async fn large_pool(&self) -> String {
        let spec = json!({ "range": { "cidr": "10.26.0.0/16", "start": "10.26.0.1", "end": "10.26.7.254" } });
        let pool = self.pool_with("large", spec).await;
        for number in 0..5 {
            let node = self.add_node(100 + number).await;
            let claims = (number..BALLAST).step_by(5);
            let captures: Value = claims
                .map(|offset| (format!("a{offset}"), json!(address(offset))))
                .collect::<serde_json::Map<String, Value>>()
                .into();
            let claims = json!({ pool.as_str(): { "captures": captures } });
            let name = format!("{node}.ballast");
            self.claiming_enactment(&name, &node, "ballast", &claims)
                .await;
        }
        let read = self
            .until(NODE_IP_POOL, &pool, |pool| offsets(pool).len() == BALLAST)
            .await;
        let described = read["status"]["allocations"].as_array().unwrap().len();
        assert!(described <= 1_000, "{described}");
        self.until_pool(&pool, "ReconciledPool").await;
        pool
    }

    pub async fn claiming_enactment(&self, name: &str, node: &str, policy: &str, claims: &Value) {
        let metadata = json!({
            "name": name,
            "labels": { "nmstate.io/node": node, "nmstate.io/policy": policy },
            "annotations": { "berth.dev/ippool": claims.to_string() },
        });
        self.create(ENACTMENT, json!({ "metadata": metadata }))
            .await;
    }
}

/// A node claims an address and is cut off for longer than the grace period before it writes its enactment. The address stays its own: the
/// node that joins meanwhile gets another one.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_cut_off_before_it_records_keeps_its_address() {
    let bed = Bed::new("large").await;
    let pool = bed.large_pool().await;
    let node = bed.add_node(1).await;
    let relay = bed.relay(&node).await;
    relay.rule(|asked| {
        let records = asked.method != "GET" && asked.path.contains("enactments");
        if records { Fate::Cut } else { Fate::Pass }
    });
    let handler = bed.handler_through(&node, Mode::Host, &relay).await;
    let mut spec = bed.policy_spec(&[&pool]);
    spec["nodeSelector"] = json!({ "bed": bed.name, "large": "yes" });
    let policy = bed.policy_with("static-ip", spec).await;
    bed.label_node(&node, "large", "yes").await;
    bed.until(NODE_IP_POOL, &pool, |pool| offsets(pool).len() > BALLAST)
        .await;
    // An offset that nothing claims was collected by now: the grace period is over.
    bed.add_stale(&pool, 2_000).await;
    bed.until(NODE_IP_POOL, &pool, |pool| !offsets(pool).contains(&2_000))
        .await;
    let second = bed.add_node(2).await;
    bed.label_node(&second, "large", "yes").await;
    let _second = bed.handler(&second).await;
    bed.until_enacted(&second, &policy, "Available").await;
    relay.rule(|_| Fate::Pass);
    let first = bed.until_enacted(&node, &policy, "Available").await;
    all_different(&bed.addresses(&policy).await);
    assert_eq!(applied(&first), [address(BALLAST)]);
    drop(handler);
    // An enactment that claims an address of another, which the pool no longer describes, does not get it.
    let taken = address(BALLAST - 1);
    let third = bed.add_node(3).await;
    let claim = json!({ pool.as_str(): { "captures": { "address-1": taken } } });
    let name = format!("{third}.{policy}");
    bed.claiming_enactment(&name, &third, &policy, &claim).await;
    bed.label_node(&third, "large", "yes").await;
    let third = {
        let _third = bed.handler(&third).await;
        bed.until_enacted(&third, &policy, "Available").await
    };
    assert_ne!(applied(&third), [taken]);
    all_different(&bed.addresses(&policy).await);
    bed.until_pool(&pool, "ReconciledPool").await;
}
