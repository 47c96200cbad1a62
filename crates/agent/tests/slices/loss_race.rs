//! A slice that is lost while an address of it is being given: after the front has looked, before the desk has
//! committed.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use berth_api::berth::SliceCall;
use berth_api::claim::SliceClaim;
use berth_core::{Address, Block, Change, Prefix, Record, Space};
use berth_desk::DeskMetrics;
use berth_ledger::{
    DelegatingLedger, DelegatingRecords, Guard, Ledger, LedgerError, MemoryLedger, PoolKey,
    Records, SharedRecordLedger, Snapshot, Version,
};
use berth_pods::{Front, Store, Stores};
use berth_slices::slices::Setup;
use berth_slices::{Mode, SliceMetrics, Sliced, Slices, sliced};
use berth_testkit::answered_addresses;
use kube::api::{Api, ListParams, Patch, PatchParams};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::cni_call::{bare, fast, request};
use crate::test_node::{Site, quick};
use crate::without_agent::pass;

#[derive(Debug, Default)]
enum Trap {
    #[default]
    Open,
    Set,
    /// The desk of that task waits for the loss.
    Sprung(tokio::task::Id),
    Done,
}

/// The node's ledger. Once the trap is set, the next address that is about to be committed is refused for the moment,
/// its slice's claim is taken away, and the desk that tries again is held until the node has lost the slice.
#[derive(Debug)]
struct Node {
    below: SharedRecordLedger,
    claims: Api<SliceClaim>,
    calls: Api<SliceCall>,
    name: String,
    range: Prefix,
    trap: Mutex<Trap>,
    /// Another network of the range that is called for while the desk is held.
    meanwhile: Mutex<Option<(Slices, Arc<Sliced>)>>,
}

impl Node {
    /// Like every process that takes a claim, notifies its node.
    async fn take_claim(&self) {
        for claim in self.claims.list(&ListParams::default()).await.unwrap() {
            let name = claim.metadata.name.unwrap();
            let mut spec = claim.spec;
            pass(&mut spec, "another");
            let params = PatchParams::default();
            let patch = Patch::Merge(spec.merge());
            self.claims.patch(&name, &params, &patch).await.unwrap();
        }
        let call = json!({ "metadata": { "name": self.name }, "spec": { "call": "1" } });
        let call = serde_json::from_value(call).unwrap();
        self.calls.create(&Default::default(), &call).await.unwrap();
    }

    async fn await_loss(&self) {
        let plain = berth_api::names::pool("", "", self.range);
        let holdings = PoolKey::of_network(format!("{}{plain}", sliced::HOLDINGS), self.range);
        let started = Instant::now();
        loop {
            let now = self.below.load(&holdings).await.unwrap();
            let lost = |record: &Record| record.attribute("state") == Some("lost");
            if now.pool.records().any(|(_, record)| lost(record)) {
                return;
            }
            let patient = started.elapsed() < Duration::from_secs(60);
            assert!(patient, "the slice is not lost: {:?}", now.pool);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

#[async_trait]
impl DelegatingLedger for Node {
    fn below(&self, _pool: Option<&PoolKey>) -> &dyn Ledger {
        &*self.below
    }

    async fn load(&self, pool: &PoolKey) -> Result<Snapshot, LedgerError> {
        let held = {
            let trap = self.trap.lock().unwrap();
            matches!(*trap, Trap::Sprung(desk) if tokio::task::try_id() == Some(desk))
        };
        if held {
            self.await_loss().await;
            if let Some((slices, of)) = &*self.meanwhile.lock().unwrap() {
                slices.is_disjoint(of);
            }
            *self.trap.lock().unwrap() = Trap::Done;
        }
        self.below.load(pool).await
    }

    async fn commit(
        &self,
        pool: &PoolKey,
        base: &Version,
        changes: &[Change],
        guard: Option<&Guard>,
    ) -> Result<Version, LedgerError> {
        let sprung = {
            let mut trap = self.trap.lock().unwrap();
            let is_set = guard.is_some() && matches!(*trap, Trap::Set) && sliced::is_sliced(pool);
            if is_set {
                *trap = Trap::Sprung(tokio::task::id());
            }
            is_set
        };
        if sprung {
            self.take_claim().await;
            return Err(LedgerError::Unavailable {
                target: "the node's ledger".to_owned(),
                why: "a trap".to_owned(),
                retry_after: None,
            });
        }
        let below = &self.below;
        below.commit(pool, base, changes, guard).await
    }
}

#[async_trait]
impl DelegatingRecords for Node {
    fn records_below(&self) -> &dyn Records {
        &*self.below
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_was_chosen_before_its_slice_was_lost_is_not_allocated() {
    allocate_while_lost("racer", "10.21.0.0/24", None).await;
}

/// Nor while another network of the same range is requested that excludes that address.
#[tokio::test(flavor = "multi_thread")]
async fn nor_is_one_that_another_network_of_the_range_excludes() {
    let range: Prefix = "10.89.0.0/24".parse().unwrap();
    let last: Address = "10.89.0.254".parse().unwrap();
    let narrow = Sliced {
        network: String::new(),
        slice_pool: "net".to_owned(),
        range,
        usable: Arc::new(Space::list([Block::single(last)])),
        mode: Mode::Elastic {
            size: None,
            borrow: true,
        },
        checked: false,
    };
    allocate_while_lost("racer-beside", "10.89.0.0/24", Some(narrow)).await;
}

async fn allocate_while_lost(name: &str, range: &str, beside: Option<Sliced>) {
    let site = Site::shared().await;
    site.register(name).await;
    let node = Arc::new(Node {
        below: Arc::new(MemoryLedger::new()),
        claims: site.claim_api(),
        calls: site.api(),
        name: name.to_owned(),
        range: range.parse().unwrap(),
        trap: Mutex::default(),
        meanwhile: Mutex::default(),
    });
    let stop = CancellationToken::new();
    let slices = Slices::new(Setup {
        connection: site.connect_as(name, 10).await.open().await.unwrap(),
        local: Arc::clone(&node) as SharedRecordLedger,
        database: "memory".into(),
        file: name.to_owned(),
        node: name.to_owned(),
        boot: "b".to_owned(),
        settings: quick(),
        metrics: SliceMetrics::default(),
        daemon: Some((TaskTracker::new(), stop.clone())),
    });
    slices.open().await.unwrap();
    *node.meanwhile.lock().unwrap() = beside.map(|of| (slices.clone(), Arc::new(of)));
    let store = Store::cluster(slices.ledger(), DeskMetrics::default()).with_slices(slices);
    let stores: Arc<dyn Stores> = Arc::new(Arc::new(store));
    let front = Front::new(stores, name).with_flat_places(Vec::new());
    let ipam = fast(range);
    let add = async |pod: &str| -> String {
        let call = request("ADD", "ns", pod, &format!("{pod}-container"), &ipam);
        bare(&answered_addresses(&front.answer(&call).await).unwrap()[0])
    };
    let first = add("a").await;
    let claims = site.claims().await.into_iter();
    let slices = claims.map(|one| one.spec.range);
    let slices: Vec<Prefix> = slices.map(|range| range.parse().unwrap()).collect();
    *node.trap.lock().unwrap() = Trap::Set;
    let second = add("b").await;
    assert!(matches!(*node.trap.lock().unwrap(), Trap::Done));
    let lost = |address: &str| {
        let address = address.parse().unwrap();
        slices.iter().any(|slice| slice.contains(address))
    };
    assert!(lost(&first) && !lost(&second), "{first}, {second}");
    assert_eq!(add("a").await, first, "a pod keeps what it has");
    stop.cancel();
}
