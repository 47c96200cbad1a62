//! A front over a ledger that can be looked into: a machine by itself, or one node of a cluster that the ledger stands
//! for.

use std::sync::Arc;

use berth_cni::wire::Answer;
use berth_desk::DeskMetrics;
use berth_ledger::{ClaimKind, MemoryLedger, SharedRecordLedger};
use berth_pods::{Front, Store};
use berth_testkit::PodCall;
use serde_json::{Value, json};

pub struct Bench {
    front: Front,
    pub ledger: SharedRecordLedger,
}

impl Bench {
    pub fn new() -> Bench {
        Bench::over(Arc::new(MemoryLedger::new()))
    }

    pub fn over(ledger: SharedRecordLedger) -> Bench {
        let store = Store::standalone(SharedRecordLedger::clone(&ledger), DeskMetrics::default());
        Bench::of(store, ledger, "this-boot")
    }

    /// An agent that has just begun, in a boot of its node: all that it knows is in the ledger.
    pub fn agent(ledger: SharedRecordLedger, boot: &str) -> Bench {
        let store = Store::cluster(SharedRecordLedger::clone(&ledger), DeskMetrics::default());
        Bench::of(store, ledger, boot)
    }

    /// A process that serves a call where no agent does.
    pub fn once(ledger: SharedRecordLedger) -> Bench {
        let store = Store::cluster_once(SharedRecordLedger::clone(&ledger), DeskMetrics::default());
        Bench::of(store, ledger, "this-boot")
    }

    fn of(store: Store, ledger: SharedRecordLedger, boot: &str) -> Bench {
        let front = Front::new(Arc::new(Arc::new(store)), "node-1")
            .with_boot(boot)
            .with_flat_places(Vec::new());
        Bench { front, ledger }
    }

    pub async fn call(&self, verb: &str, pod: &str, container: &str, ipam: Value) -> Answer {
        let mut ipam = ipam;
        ipam["type"] = json!("whereabouts");
        let conf = json!({"cniVersion": "1.0.0", "name": "net", "type": "macvlan", "ipam": ipam});
        let call = PodCall::new("whereabouts", verb, pod).of_container(container);
        self.front.answer(&call.request_of(&conf.to_string())).await
    }

    pub async fn add(&self, pod: &str, ipam: Value) -> Answer {
        self.call("ADD", pod, &format!("{pod}-c"), ipam).await
    }

    pub async fn del(&self, pod: &str, ipam: Value) {
        let answer = self.call("DEL", pod, &format!("{pod}-c"), ipam).await;
        assert_eq!(answer, Answer::success(String::new()));
    }

    /// How many addresses are held, and how many reserved, anywhere.
    pub async fn held_and_reserved(&self) -> (usize, usize) {
        let mut held = 0;
        for pool in self.ledger.pools().await.unwrap() {
            held += self.ledger.load(&pool).await.unwrap().pool.len();
        }
        let reserved = self.ledger.list(ClaimKind::Reservation).await.unwrap();
        (held, reserved.len())
    }
}

pub fn addresses(answer: &Answer) -> Vec<String> {
    assert_eq!(answer.exit, 0, "{}", answer.stdout);
    let result: Value = serde_json::from_str(&answer.stdout).unwrap();
    let ips = result["ips"].as_array().unwrap();
    ips.iter()
        .map(|ip| ip["address"].as_str().unwrap().to_owned())
        .collect()
}

/// The one address that was given, without the length of its network.
pub fn bare(answer: &Answer) -> String {
    let given = addresses(answer);
    assert_eq!(given.len(), 1, "{given:?}");
    given[0].split('/').next().unwrap().to_owned()
}

pub fn error(answer: &Answer) -> Value {
    assert_eq!(answer.exit, 1, "{}", answer.stdout);
    serde_json::from_str(&answer.stdout).unwrap()
}
