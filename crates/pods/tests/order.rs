//! What another node does between two steps of a call: no address ever has two owners (I1), in pools that overlap
//! neither.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod interlude;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use berth_cni::CniError;
use berth_cni::wire::Answer;
use berth_core::{Handle, Owner, Record};
use berth_desk::DeskMetrics;
use berth_ledger::{
    ClaimKey, ClaimKind, Ledger, MemoryLedger, PoolKey, Records, SharedRecordLedger,
};
use berth_node::NodeFile;
use berth_pods::journal::Journal;
use berth_pods::{Front, PodNetwork, Store, Stores};
use berth_testkit::PodCall;
use futures::future::join_all;
use interlude::{Interlude, Step};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::Semaphore;

const RANGE: &str = "10.0.0.0/24";
const OVERLAPPING: &str = "10.0.0.0/25";

/// A node of a cluster that the ledger stands for.
async fn mk_node(dir: &TempDir, name: &str, ledger: SharedRecordLedger) -> Arc<Front> {
    let file = NodeFile::open(&dir.path().join(name)).await.unwrap();
    let journal = Arc::new(Journal::new(&file));
    let store = Store::cluster_once(ledger, DeskMetrics::default()).with_journal(journal);
    Arc::new(Front::new(Arc::new(Arc::new(store)), name).with_flat_places(Vec::new()))
}

async fn call(node: &Front, verb: &str, pod: &str, container: &str, range: &str) -> Answer {
    let mut conf = json!({"cniVersion": "1.1.0", "name": "net", "type": "macvlan",
        "ipam": {"type": "whereabouts", "range": range}});
    if verb == "GC" {
        conf["cni.dev/valid-attachments"] = json!([]);
    }
    let call = PodCall::new("whereabouts", verb, pod);
    let call = match verb {
        "GC" => call.of_no_container(),
        _ => call.of_container(container),
    };
    node.answer(&call.request_of(&conf.to_string())).await
}

async fn add(node: &Front, pod: &str, container: &str, range: &str) -> String {
    let answer = call(node, "ADD", pod, container, range).await;
    assert_eq!(answer.exit, 0, "{}", answer.stdout);
    let result: Value = serde_json::from_str(&answer.stdout).unwrap();
    let address = result["ips"][0]["address"].as_str().unwrap();
    address.split('/').next().unwrap().to_owned()
}

async fn succeeds(node: &Front, verb: &str, pod: &str, container: &str) {
    let answer = call(node, verb, pod, container, RANGE).await;
    assert_eq!(answer.exit, 0, "{}", answer.stdout);
}

fn pool() -> PoolKey {
    PoolKey::of_network("10.0.0.0-24", RANGE.parse().unwrap())
}

async fn reservation(ledger: &dyn Records, address: &str) -> Option<Record> {
    let key = ClaimKey::new(ClaimKind::Reservation, address);
    ledger.get(&key).await.unwrap()
}

/// Whoever the pool of the whole range has at the address.
async fn entry(ledger: &dyn Ledger, address: &str) -> Option<Record> {
    let now = ledger.load(&pool()).await.unwrap();
    now.pool.get(address.parse().unwrap()).cloned()
}

fn container_of(record: Option<&Record>) -> Option<&str> {
    record.map(|record| record.handle.as_str())
}

/// The old container's DEL has looked, and the pod is made again on another node: its reservation is not ended, and a
/// third pod does not get the address from a range that overlaps.
#[tokio::test]
async fn a_late_del_leaves_the_reservation_of_the_pods_next_container() {
    let dir = tempfile::tempdir().unwrap();
    let truth: SharedRecordLedger = Arc::new(MemoryLedger::new());
    let interlude = Arc::new(Interlude::over(SharedRecordLedger::clone(&truth)));
    let here = mk_node(&dir, "here", Arc::clone(&interlude) as SharedRecordLedger).await;
    let there = mk_node(&dir, "there", SharedRecordLedger::clone(&truth)).await;
    assert_eq!(add(&here, "web-0", "old", RANGE).await, "10.0.0.1");
    let other = Arc::clone(&there);
    interlude.before(Step::Delete, async move {
        assert_eq!(add(&other, "web-0", "new", RANGE).await, "10.0.0.1");
    });
    let other = Arc::clone(&there);
    interlude.after(Step::Delete, async move {
        assert_eq!(add(&other, "db-0", "db", OVERLAPPING).await, "10.0.0.2");
    });
    succeeds(&here, "DEL", "web-0", "old").await;
    assert!(interlude.is_over());
    let held = reservation(&*truth, "10.0.0.1").await;
    assert_eq!(held.unwrap().owner, Owner::new("ns/web-0", "net1"));
    let entry = entry(&*truth, "10.0.0.1").await;
    assert_eq!(container_of(entry.as_ref()), Some("new"));
}

/// The node's journal still has a pod that was made again elsewhere: a stale entry ends nobody's reservation, not for
/// a moment, whoever wrote it.
#[tokio::test]
async fn gc_of_a_stale_journal_leaves_the_reservation_of_the_living_pod() {
    for writer in ["berth", "whereabouts"] {
        let dir = tempfile::tempdir().unwrap();
        let truth: SharedRecordLedger = Arc::new(MemoryLedger::new());
        let interlude = Arc::new(Interlude::over(SharedRecordLedger::clone(&truth)));
        let here = mk_node(&dir, "here", Arc::clone(&interlude) as SharedRecordLedger).await;
        let there = mk_node(&dir, "there", SharedRecordLedger::clone(&truth)).await;
        add(&here, "web-0", "old", RANGE).await;
        assert_eq!(add(&there, "web-0", "new", RANGE).await, "10.0.0.1");
        let held = reservation(&*truth, "10.0.0.1").await.unwrap();
        if writer == "whereabouts" {
            let key = ClaimKey::new(ClaimKind::Reservation, "10.0.0.1");
            let bare = Record::new(held.owner.clone(), Handle::default());
            truth.delete(&key, &held).await.unwrap();
            truth.create(&key, &bare).await.unwrap();
        }
        succeeds(&here, "GC", "", "").await;
        assert_eq!(interlude.removed(), 0, "{writer}");
        assert!(reservation(&*truth, "10.0.0.1").await.is_some(), "{writer}");
        let entry = entry(&*truth, "10.0.0.1").await;
        assert_eq!(container_of(entry.as_ref()), Some("new"), "{writer}");
    }
}

/// A reservation that does not name the container, or names one before: it goes with its entry all the same.
#[tokio::test]
async fn a_reservation_of_another_writer_is_ended_with_its_entry() {
    for handle in ["", "before"] {
        let dir = tempfile::tempdir().unwrap();
        let truth: SharedRecordLedger = Arc::new(MemoryLedger::new());
        let here = mk_node(&dir, "here", SharedRecordLedger::clone(&truth)).await;
        add(&here, "web-0", "c1", RANGE).await;
        let key = ClaimKey::new(ClaimKind::Reservation, "10.0.0.1");
        let held = reservation(&*truth, "10.0.0.1").await.unwrap();
        truth.delete(&key, &held).await.unwrap();
        let foreign = Record::new(held.owner, Handle::new(handle));
        truth.create(&key, &foreign).await.unwrap();
        succeeds(&here, "DEL", "web-0", "c1").await;
        assert_eq!(reservation(&*truth, "10.0.0.1").await, None, "{handle:?}");
        assert_eq!(entry(&*truth, "10.0.0.1").await, None, "{handle:?}");
    }
}

/// A node's first call finds its store late; the others at once.
#[derive(Debug)]
struct Late {
    store: Arc<Store>,
    gate: Semaphore,
    first: AtomicBool,
}

#[async_trait]
impl Stores for Late {
    async fn of(&self, _network: &PodNetwork) -> Result<Arc<Store>, CniError> {
        if self.first.swap(false, Ordering::SeqCst) {
            let _opened = self.gate.acquire().await.unwrap();
        }
        Ok(Arc::clone(&self.store))
    }
}

/// The runtime lost patience: the plugin of an ADD was killed, and DEL comes while the agent is still at it. What is
/// given after a DEL that succeeded, nobody frees.
#[tokio::test]
async fn a_del_waits_for_the_add_of_its_container() {
    let truth: SharedRecordLedger = Arc::new(MemoryLedger::new());
    let store = Store::standalone(SharedRecordLedger::clone(&truth), DeskMetrics::default());
    let stores = Arc::new(Late {
        store: Arc::new(store),
        gate: Semaphore::new(0),
        first: AtomicBool::new(true),
    });
    let front = Front::new(Arc::clone(&stores) as Arc<dyn Stores>, "here");
    let here = Arc::new(front.with_flat_places(Vec::new()));
    let (front, other) = (Arc::clone(&here), Arc::clone(&here));
    let adding = tokio::spawn(async move { add(&front, "web-0", "c1", RANGE).await });
    while stores.first.load(Ordering::SeqCst) {
        tokio::task::yield_now().await;
    }
    let deleting = tokio::spawn(async move { succeeds(&other, "DEL", "web-0", "c1").await });
    // Another container's calls do not wait.
    let given = add(&here, "db-0", "c2", RANGE).await;
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    stores.gate.add_permits(1);
    adding.await.unwrap();
    deleting.await.unwrap();
    let now = truth.load(&pool()).await.unwrap();
    let held: Vec<String> = now.pool.records().map(|(at, _)| at.to_string()).collect();
    assert_eq!(held, [given]);
    let reserved = truth.list(ClaimKind::Reservation).await.unwrap();
    assert_eq!(reserved.len(), 1);
}

/// The runtime lost patience and asked again while the first call was still under way: one address, for all of them.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_repeated_too_early_gives_one_address() {
    let dir = tempfile::tempdir().unwrap();
    let truth: SharedRecordLedger = Arc::new(MemoryLedger::new());
    let here = mk_node(&dir, "here", SharedRecordLedger::clone(&truth)).await;
    let calls = (0..16).map(|_| add(&here, "web-0", "c1", RANGE));
    let given: BTreeSet<String> = join_all(calls).await.into_iter().collect();
    assert_eq!(given.len(), 1, "{given:?}");
    assert_eq!(truth.load(&pool()).await.unwrap().pool.len(), 1);
    let reserved = truth.list(ClaimKind::Reservation).await.unwrap();
    assert_eq!(reserved.len(), 1);
}

/// The pod's next container says that the reservation is its own, so that no late word of the last one counts.
#[tokio::test]
async fn a_reservation_names_the_container_that_the_entry_names() {
    let dir = tempfile::tempdir().unwrap();
    let truth: SharedRecordLedger = Arc::new(MemoryLedger::new());
    let here = mk_node(&dir, "here", SharedRecordLedger::clone(&truth)).await;
    for container in ["first", "second", "second"] {
        add(&here, "web-0", container, RANGE).await;
        let held = reservation(&*truth, "10.0.0.1").await;
        assert_eq!(container_of(held.as_ref()), Some(container));
    }
}

/// The name was free when it was looked at and taken again when it was made: the next address is tried.
#[tokio::test]
async fn an_address_whose_reservation_changes_hands_under_an_add_is_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    let truth: SharedRecordLedger = Arc::new(MemoryLedger::new());
    let interlude = Arc::new(Interlude::over(SharedRecordLedger::clone(&truth)));
    let here = mk_node(&dir, "here", Arc::clone(&interlude) as SharedRecordLedger).await;
    let key = ClaimKey::new(ClaimKind::Reservation, "10.0.0.1");
    let other = |name: &str| Record::new(Owner::new(name, "net1"), Handle::new(name));
    truth.create(&key, &other("ns/a")).await.unwrap();
    let (ledger, name, first) = (
        SharedRecordLedger::clone(&truth),
        key.clone(),
        other("ns/a"),
    );
    interlude.before(Step::Get, async move {
        ledger.delete(&name, &first).await.unwrap();
    });
    let (ledger, name, next) = (
        SharedRecordLedger::clone(&truth),
        key.clone(),
        other("ns/b"),
    );
    interlude.after(Step::Get, async move {
        ledger.create(&name, &next).await.unwrap();
    });
    assert_eq!(add(&here, "web-0", "c1", RANGE).await, "10.0.0.2");
    assert!(interlude.is_over());
    assert_eq!(entry(&*truth, "10.0.0.1").await, None);
}
