//! Failures that this field has had, each under the name of the project and the issue that told of it: none of
//! them may be ours.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod faulty;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use berth_cni::Environment;
use berth_cni::wire::{Answer, Request};
use berth_desk::DeskMetrics;
use berth_ledger::{ClaimKind, MemoryLedger, PoolKey, SharedLedger};
use berth_pods::{Front, Store};
use faulty::Faulty;
use futures::future::join_all;
use serde_json::{Value, json};

/// A front over a ledger that can be looked into.
struct Bench {
    front: Front,
    ledger: SharedLedger,
}

impl Bench {
    fn new() -> Bench {
        Bench::over(Arc::new(MemoryLedger::new()))
    }

    fn over(ledger: SharedLedger) -> Bench {
        let store = Arc::new(Store::standalone(
            SharedLedger::clone(&ledger),
            DeskMetrics::default(),
        ));
        let front = Front::new(Arc::new(store), "node-1").with_flat_places(Vec::new());
        Bench { front, ledger }
    }

    async fn call(&self, verb: &str, pod: &str, container: &str, ipam: Value) -> Answer {
        let mut ipam = ipam;
        ipam["type"] = json!("whereabouts");
        let conf = json!({"cniVersion": "1.0.0", "name": "net", "type": "macvlan", "ipam": ipam});
        let environment = Environment {
            command: verb.into(),
            container_id: container.into(),
            netns: "/var/run/netns/x".into(),
            ifname: "net1".into(),
            args: format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME={pod}"),
            path: "/opt/cni/bin".into(),
        };
        self.front
            .answer(&Request::new("whereabouts", environment, conf.to_string()))
            .await
    }

    async fn add(&self, pod: &str, ipam: Value) -> Answer {
        self.call("ADD", pod, &format!("{pod}-c"), ipam).await
    }

    async fn del(&self, pod: &str, ipam: Value) {
        let answer = self.call("DEL", pod, &format!("{pod}-c"), ipam).await;
        assert_eq!(answer, Answer::success(String::new()));
    }

    /// How many addresses are held, and how many reserved, anywhere.
    async fn held_and_reserved(&self) -> (usize, usize) {
        let mut held = 0;
        for pool in self.ledger.pools().await.unwrap() {
            held += self.ledger.load(&pool).await.unwrap().pool.len();
        }
        (
            held,
            self.ledger
                .claims(ClaimKind::Reservation)
                .await
                .unwrap()
                .len(),
        )
    }
}

fn addresses(answer: &Answer) -> Vec<String> {
    assert_eq!(answer.exit, 0, "{}", answer.stdout);
    let result: Value = serde_json::from_str(&answer.stdout).unwrap();
    let ips = result["ips"].as_array().unwrap();
    ips.iter()
        .map(|ip| ip["address"].as_str().unwrap().to_owned())
        .collect()
}

fn error(answer: &Answer) -> Value {
    assert_eq!(answer.exit, 1, "{}", answer.stdout);
    serde_json::from_str(&answer.stdout).unwrap()
}

/// The pool could not be written, the reservation could, and the pod was told an address that nobody recorded.
#[tokio::test]
async fn whereabouts_712_an_address_that_is_not_recorded_is_not_given() {
    let faulty = Arc::new(Faulty::new());
    let bench = Bench::over(Arc::clone(&faulty) as SharedLedger);
    faulty.full.store(true, Ordering::SeqCst);
    let refused = error(&bench.add("a", json!({"range": "10.0.0.0/24"})).await);
    assert!(
        refused["msg"].as_str().unwrap().contains("is full"),
        "{refused}"
    );
    assert_eq!(bench.held_and_reserved().await, (0, 0));
}

/// The record was written, the reservation could not be: the record must not stay.
#[tokio::test]
async fn whereabouts_409_pool_and_reservations_do_not_part() {
    let faulty = Arc::new(Faulty::new());
    let bench = Bench::over(Arc::clone(&faulty) as SharedLedger);
    faulty.no_claims.store(true, Ordering::SeqCst);
    let both = json!({"ipRanges": [{"range": "10.0.0.0/24"}, {"range": "fd00::/64"}]});
    assert_eq!(error(&bench.add("a", both.clone()).await)["code"], 11);
    faulty.no_claims.store(false, Ordering::SeqCst);
    assert_eq!(bench.held_and_reserved().await, (0, 0));
    assert_eq!(
        addresses(&bench.add("a", both.clone()).await),
        ["10.0.0.1/24", "fd00::1/64"]
    );
    assert_eq!(bench.held_and_reserved().await, (2, 2));
    // What a failed repeat finds held stays held: the pod may be using it.
    faulty.no_claims.store(true, Ordering::SeqCst);
    assert_eq!(error(&bench.add("a", both.clone()).await)["code"], 11);
    faulty.no_claims.store(false, Ordering::SeqCst);
    assert_eq!(bench.held_and_reserved().await, (2, 2));
}

/// Two ranges within one CIDR gave the same address twice.
#[tokio::test]
async fn whereabouts_722_two_ranges_in_one_cidr() {
    let bench = Bench::new();
    let ipam = json!({"ipRanges": [
        {"range": "10.0.0.0/24", "range_start": "10.0.0.10", "range_end": "10.0.0.20"},
        {"range": "10.0.0.0/24", "range_start": "10.0.0.15", "range_end": "10.0.0.25"}]});
    let given = addresses(&bench.add("a", ipam.clone()).await);
    assert_eq!(given, ["10.0.0.10/24", "10.0.0.15/24"]);
    assert_eq!(addresses(&bench.add("a", ipam.clone()).await), given);
    bench.del("a", ipam).await;
    assert_eq!(bench.held_and_reserved().await, (0, 0));
}

/// Many at once, overlapping ranges: no address twice, none lost.
#[tokio::test(flavor = "multi_thread")]
async fn whereabouts_97_and_110_no_duplicates_when_ranges_overlap() {
    let bench = Bench::new();
    let ranges = ["10.0.0.0/24", "10.0.0.0/25", "10.0.0.0/26", "10.0.0.0/23"];
    let pods = (0..60).map(|n| {
        let ipam = json!({"range": ranges[n % 4], "range_end": "10.0.0.62"});
        let bench = &bench;
        async move { (n, bench.add(&format!("p{n}"), ipam).await) }
    });
    let mut given = BTreeSet::new();
    for (n, answer) in join_all(pods).await {
        let address = addresses(&answer).remove(0);
        let bare = address.split('/').next().unwrap().to_owned();
        assert!(given.insert(bare), "p{n} got {address} a second time");
    }
    assert_eq!(bench.held_and_reserved().await, (60, 60));
    let ends = (0..60).map(|n| bench.del_range(n, ranges[n % 4]));
    join_all(ends).await;
    assert_eq!(bench.held_and_reserved().await, (0, 0));
}

impl Bench {
    async fn del_range(&self, n: usize, range: &str) {
        self.del(
            &format!("p{n}"),
            json!({"range": range, "range_end": "10.0.0.62"}),
        )
        .await;
    }
}

/// A pool with exactly as many addresses as pods, pods being replaced all the time: every one must get its address,
/// because one is always free by then.
#[tokio::test(flavor = "multi_thread")]
async fn antrea_7996_a_tight_pool_serves_to_the_last_address() {
    let bench = Bench::new();
    let ipam = json!({"range": "10.0.0.0/28", "exclude": ["10.0.0.13", "10.0.0.14"]});
    for n in 0..12 {
        addresses(&bench.add(&format!("p{n}"), ipam.clone()).await);
    }
    for round in 0..5 {
        let swaps = (0..12).map(|n| {
            let (bench, ipam) = (&bench, ipam.clone());
            async move {
                let old = if round == 0 {
                    format!("p{n}")
                } else {
                    format!("p{n}-{}", round - 1)
                };
                bench.del(&old, ipam.clone()).await;
                addresses(&bench.add(&format!("p{n}-{round}"), ipam).await)
            }
        });
        let given: BTreeSet<String> = join_all(swaps).await.into_iter().flatten().collect();
        assert_eq!(given.len(), 12);
    }
    assert_eq!(bench.held_and_reserved().await, (12, 12));
}

/// DEL went by the pod's name and freed what the pod's next container had.
#[tokio::test]
async fn azure_885_del_goes_by_container() {
    let bench = Bench::new();
    let ipam = json!({"range": "10.0.0.0/24"});
    addresses(&bench.call("ADD", "web-0", "old", ipam.clone()).await);
    addresses(&bench.call("ADD", "web-0", "new", ipam.clone()).await);
    assert_eq!(
        bench.call("DEL", "web-0", "old", ipam.clone()).await.exit,
        0
    );
    assert_eq!(bench.held_and_reserved().await, (1, 1));
    assert_eq!(addresses(&bench.add("other", ipam).await), ["10.0.0.2/24"]);
}

/// An ADD in a wide range took a minute: the cost must follow what is held, not the size of the range.
#[tokio::test]
async fn spiderpool_3541_wide_ranges_cost_nothing() {
    let bench = Bench::new();
    for ipam in [
        json!({"range": "10.0.0.0/8", "exclude": ["10.0.0.0/9", "10.128.0.0/10"]}),
        json!({"range": "fd00::/16", "exclude": ["fd00::/17"]}),
        json!({"range": "::/0", "range_start": "2000::"}),
    ] {
        assert_eq!(addresses(&bench.add("a", ipam).await).len(), 1);
    }
}

/// A static address was given to whoever asked.
#[tokio::test]
async fn whereabouts_static_addresses_are_nobody_elses() {
    let bench = Bench::new();
    let fixed = json!({"addresses": [{"address": "10.0.0.5/24"}]});
    addresses(&bench.add("a", fixed.clone()).await);
    let refused = error(&bench.add("b", fixed).await);
    assert!(
        refused["msg"].as_str().unwrap().contains("ns/a"),
        "{refused}"
    );
    let pool = PoolKey::of_network("10.0.0.0-24", "10.0.0.0/24".parse().unwrap());
    assert_eq!(bench.ledger.load(&pool).await.unwrap().pool.len(), 1);
}

/// The runtime lost patience and asked again while the first call was still under way.
#[tokio::test(flavor = "multi_thread")]
async fn calico_3589_a_call_repeated_too_early_gives_one_address() {
    let bench = Bench::new();
    let ipam = json!({"ipRanges": [{"range": "10.0.0.0/24"}, {"range": "fd00::/64"}]});
    let calls = (0..16).map(|_| bench.add("a", ipam.clone()));
    let given: BTreeSet<Vec<String>> = join_all(calls).await.iter().map(addresses).collect();
    assert_eq!(given.len(), 1, "{given:?}");
    assert_eq!(bench.held_and_reserved().await, (2, 2));
}
