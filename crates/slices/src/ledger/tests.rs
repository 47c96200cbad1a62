//! Two processes of a node over one file, as an agent and `berth cni` are while the one begins or ends: what one of them ends to
//! give from, the other does not give, whatever it knew of it.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use berth_core::slice::{Epoch, NodeName};
use berth_core::{Address, Change, Handle, Owner, Prefix, Record};
use berth_kube::Connection;
use berth_ledger::{
    DelegatingLedger, DelegatingRecords, Guard, Ledger, LedgerError, PoolKey, Records,
    SharedLedger, SqliteLedger, Version,
};
use kube::{Client, Config};
use tempfile::TempDir;

use crate::confirm::Confirmation;
use crate::error::SliceError;
use crate::holdings::{Holding, Source, State};
use crate::pool::SlicePool;
use crate::sliced::{HOLDINGS, Mode, Sliced, untold};
use crate::slices::{Setup, Slices};
use crate::world::locked;
use crate::{SliceMetrics, SliceSettings};

const RANGE: &str = "10.0.0.0/24";
const SLICE: &str = "10.0.0.16/28";

type Meanwhile = Pin<Box<dyn Future<Output = ()> + Send>>;

/// One process's way to the file, in which another does something between its look and its change of what is held.
#[derive(Default)]
struct Interlude {
    meanwhile: Mutex<Option<Meanwhile>>,
}

struct File {
    below: SqliteLedger,
    interlude: Arc<Interlude>,
}

impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("File")
    }
}

impl File {
    async fn step_aside(&self, pool: &PoolKey) {
        let meanwhile = match pool.name.starts_with(HOLDINGS) {
            true => locked(&self.interlude.meanwhile).take(),
            false => None,
        };
        if let Some(meanwhile) = meanwhile {
            meanwhile.await;
        }
    }
}

#[async_trait]
impl DelegatingLedger for File {
    fn below(&self, _pool: Option<&PoolKey>) -> &dyn Ledger {
        &self.below
    }

    async fn commit(
        &self,
        pool: &PoolKey,
        base: &Version,
        changes: &[Change],
        guard: Option<&Guard>,
    ) -> Result<Version, LedgerError> {
        self.step_aside(pool).await;
        self.below.commit(pool, base, changes, guard).await
    }
}

#[async_trait]
impl DelegatingRecords for File {
    fn records_below(&self) -> &dyn Records {
        &self.below
    }
}

fn mk_sliced(range: &str) -> Arc<Sliced> {
    let range: Prefix = range.parse().unwrap();
    Arc::new(Sliced {
        network: "blue".into(),
        slice_pool: "blue".into(),
        range,
        usable: untold(range),
        mode: Mode::Elastic {
            size: None,
            borrow: false,
        },
        checked: false,
    })
}

fn mk_holding(slice: &str) -> Holding {
    Holding {
        slice: slice.parse().unwrap(),
        epoch: Epoch(1),
        node: NodeName::new("a"),
        node_uid: "u".into(),
        boot: "b".into(),
        state: State::Active,
        disjoint: false,
        unreserved: true,
        source: Source::Claimed,
    }
}

/// A process of the node, with what it knows of the range. No API server is asked here.
struct Process {
    slices: Slices,
    pool: Arc<SlicePool>,
    interlude: Arc<Interlude>,
}

impl Process {
    fn open(dir: &TempDir) -> Process {
        let interlude = Arc::new(Interlude::default());
        let file = File {
            below: SqliteLedger::open(dir.path().join("berth.db")).unwrap(),
            interlude: Arc::clone(&interlude),
        };
        let nowhere = Config::new("http://127.0.0.1:1".parse().unwrap());
        let slices = Slices::new(Setup {
            connection: Connection {
                client: Client::try_from(nowhere).unwrap(),
                namespace: "ns".into(),
                timeout: Duration::from_secs(1),
            },
            local: Arc::new(file),
            database: dir.path().join("berth.db"),
            file: "f".into(),
            node: "a".into(),
            boot: "b".into(),
            settings: SliceSettings::default(),
            metrics: SliceMetrics::default(),
            daemon: None,
        });
        let pool = slices.pool(&mk_sliced(RANGE));
        Process {
            slices,
            pool,
            interlude,
        }
    }

    /// Reads what is held, once, as a process does when it begins.
    async fn begin(dir: &TempDir) -> Process {
        let process = Process::open(dir);
        let held = process.pool.holdings.load().await.unwrap();
        process.pool.set_held(held);
        *locked(&process.pool.confirmation) = Confirmation::Confirmed;
        process
    }

    /// Writes what it was granted, by looks that it began with that.
    async fn take_on(&self, holding: Holding) -> Result<(), SliceError> {
        let _gate = self.pool.gate.lock().await;
        self.pool.hold(holding).await
    }

    fn gives(&self) -> Vec<Prefix> {
        self.pool.active().slices
    }

    async fn give(&self, address: &str) -> Result<Version, LedgerError> {
        let key = self.pool.of().key();
        give(self.slices.ledger(), key, address.parse().unwrap()).await
    }

    /// Gives an address when `other` is about to change what is held, by what it has looked at.
    fn give_amid(&self, other: &Process, address: &str) {
        let (ledger, key) = (self.slices.ledger(), self.pool.of().key());
        let address = address.parse().unwrap();
        let given = async move {
            give(ledger, key, address).await.unwrap();
        };
        *locked(&other.interlude.meanwhile) = Some(Box::pin(given));
    }
}

async fn give(
    ledger: SharedLedger,
    key: PoolKey,
    address: Address,
) -> Result<Version, LedgerError> {
    let base = ledger.load(&key).await?.version;
    let record = Record::new(Owner::new("ns/p", "net1"), Handle::new("c"));
    let changes = [Change::Allocate { address, record }];
    ledger.commit(&key, &base, &changes, None).await
}

/// Two processes that hold the slice by what they have read.
async fn two(dir: &TempDir) -> (Process, Process) {
    let first = Process::open(dir);
    let held = first.pool.holdings.put(&mk_holding(SLICE)).await.unwrap();
    drop(held);
    (Process::begin(dir).await, Process::begin(dir).await)
}

fn is_moved(given: &Result<Version, LedgerError>) -> bool {
    matches!(given, Err(LedgerError::Moved { .. }))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_process_has_lost_another_does_not_give() {
    let dir = tempfile::tempdir().unwrap();
    let (agent, call) = two(&dir).await;
    agent.pool.lose(&mk_holding(SLICE), "b's").await.unwrap();
    assert_eq!(call.gives().len(), 1, "it has not looked again");
    let given = call.give("10.0.0.17").await;
    assert!(is_moved(&given), "{given:?}");
    assert!(call.gives().is_empty(), "and knows it from now on");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_process_has_shut_another_does_not_give() {
    let dir = tempfile::tempdir().unwrap();
    let (agent, call) = two(&dir).await;
    let (of, slice) = (agent.pool.of(), SLICE.parse().unwrap());
    let taker = NodeName::new("t");
    assert!(agent.pool.shut(&of, slice, &taker).await.unwrap());
    let given = call.give("10.0.0.17").await;
    assert!(is_moved(&given), "{given:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slice_that_another_process_gave_from_meanwhile_is_not_shut() {
    let dir = tempfile::tempdir().unwrap();
    let (agent, call) = two(&dir).await;
    let (of, slice) = (agent.pool.of(), SLICE.parse().unwrap());
    call.give_amid(&agent, "10.0.0.17");
    let taker = NodeName::new("t");
    assert!(!agent.pool.shut(&of, slice, &taker).await.unwrap());
    assert_eq!(agent.gives(), [slice]);
    agent.give("10.0.0.18").await.unwrap();
}

/// The same of one that lies in another slice: it is set aside there, address by address.
#[tokio::test(flavor = "multi_thread")]
async fn nor_is_a_slice_inside_another_one() {
    let dir = tempfile::tempdir().unwrap();
    let outer = Process::open(&dir);
    outer
        .pool
        .holdings
        .put(&mk_holding("10.0.0.0/27"))
        .await
        .unwrap();
    let (agent, call) = two(&dir).await;
    let (of, slice) = (agent.pool.of(), SLICE.parse().unwrap());
    let taker = NodeName::new("t");
    // Beside it: what is given there does not keep the inner one from being shut.
    call.give_amid(&agent, "10.0.0.1");
    assert!(agent.pool.shut(&of, slice, &taker).await.unwrap());
    let given = call.give("10.0.0.17").await.unwrap_err();
    assert!(given.needs_reload(), "it is set aside: {given:?}");
}

/// A process that was told of something else writes what it knows of a slice: that does not bring the slice back.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_lost_is_not_renewed() {
    let dir = tempfile::tempdir().unwrap();
    let (agent, call) = two(&dir).await;
    agent.pool.lose(&mk_holding(SLICE), "b's").await.unwrap();
    call.pool.prove(true).await.unwrap();
    assert!(call.gives().is_empty(), "{:?}", call.pool.held());
    let given = agent.give("10.0.0.17").await;
    assert!(is_moved(&given), "{given:?}");
}

/// A range that grew: the pool of the new one has what the old one gave to the last.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_given_while_a_slice_moved_is_held_in_its_new_range() {
    let dir = tempfile::tempdir().unwrap();
    let first = Process::open(&dir);
    let assigned = Holding {
        source: Source::Assigned {
            slice_pool: "blue".into(),
        },
        ..mk_holding(SLICE)
    };
    first.pool.holdings.put(&assigned).await.unwrap();
    let (agent, call) = (Process::begin(&dir).await, Process::begin(&dir).await);
    let grown = mk_sliced("10.0.0.0/16");
    call.give_amid(&agent, "10.0.0.17");
    let slice = SLICE.parse().unwrap();
    let pool = agent.slices.pool(&grown);
    pool.take_from_others(&grown, slice).await.unwrap();
    let now = pool.world.local.load(&grown.key()).await.unwrap();
    assert!(now.pool.is_held("10.0.0.17".parse().unwrap()));
    let given = call.give("10.0.0.18").await;
    assert!(is_moved(&given), "{given:?}");
}

/// Not even if this one is about to forget it.
#[tokio::test(flavor = "multi_thread")]
async fn a_slice_that_another_process_has_taken_on_stays_when_it_was_lost_here() {
    let dir = tempfile::tempdir().unwrap();
    let (agent, _) = two(&dir).await;
    agent.pool.lose(&mk_holding(SLICE), "b's").await.unwrap();
    let call = Process::begin(&dir).await;
    let again = Holding {
        epoch: Epoch(2),
        ..mk_holding(SLICE)
    };
    call.take_on(again).await.unwrap();
    agent.pool.forget_lost(&agent.pool.of()).await.unwrap();
    assert_eq!(agent.gives(), [SLICE.parse().unwrap()]);
    call.give("10.0.0.17").await.unwrap();
}

/// One process has claimed a slice and not written so yet; another finds the claim, takes it on, and passes it on.
#[tokio::test(flavor = "multi_thread")]
async fn a_slice_that_another_process_has_passed_on_is_not_taken_on_by_looks_of_before() {
    let dir = tempfile::tempdir().unwrap();
    let (agent, call) = (Process::begin(&dir).await, Process::begin(&dir).await);
    let (of, slice) = (agent.pool.of(), SLICE.parse().unwrap());
    let gate = call.pool.gate.lock().await;
    agent.take_on(mk_holding(SLICE)).await.unwrap();
    let taker = NodeName::new("t");
    assert!(agent.pool.shut(&of, slice, &taker).await.unwrap());
    let held = call.pool.hold(mk_holding(SLICE)).await.unwrap_err();
    assert!(held.is_passing(), "it looks again: {held:?}");
    drop(gate);
    for process in [&agent, &call] {
        let given = process.give("10.0.0.17").await;
        assert!(is_moved(&given), "{given:?}");
    }
    call.take_on(mk_holding(SLICE)).await.unwrap();
    call.give("10.0.0.17").await.unwrap();
}

/// Nor if this one has heard of that in between, by an address that it was asked for.
#[tokio::test(flavor = "multi_thread")]
async fn nor_if_it_has_heard_of_that() {
    let dir = tempfile::tempdir().unwrap();
    let (agent, call) = two(&dir).await;
    let _gate = call.pool.gate.lock().await;
    agent.pool.lose(&mk_holding(SLICE), "b's").await.unwrap();
    let given = call.give("10.0.0.17").await;
    assert!(is_moved(&given), "{given:?}");
    let held = call.pool.hold(mk_holding(SLICE)).await.unwrap_err();
    assert!(held.is_passing(), "{held:?}");
    let given = agent.give("10.0.0.17").await;
    assert!(is_moved(&given), "{given:?}");
}

/// One process takes on a claim as it was before another lent a part of it.
#[tokio::test(flavor = "multi_thread")]
async fn what_another_process_has_lent_stays_out_of_use() {
    let dir = tempfile::tempdir().unwrap();
    let (agent, call) = (Process::begin(&dir).await, Process::begin(&dir).await);
    let of = agent.pool.of();
    let _gate = call.pool.gate.lock().await;
    agent.take_on(mk_holding(SLICE)).await.unwrap();
    let (part, taker) = ("10.0.0.24/29".parse().unwrap(), NodeName::new("t"));
    let lent = agent.pool.surrender(&of, part, &taker).await.unwrap();
    assert!(lent.is_some());
    let claim = agent.pool.world.claimed(SLICE.parse().unwrap(), "u".into());
    let used = call.pool.put_into_use(&of, &claim).await.unwrap_err();
    assert!(used.is_passing(), "{used:?}");
    let given = agent.give("10.0.0.25").await.unwrap_err();
    assert!(given.needs_reload(), "it is lent: {given:?}");
}

/// Two processes take back what was lent, and the faster one lends it again, to the same node, before the slower one has put
/// it into use.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_lent_again_meanwhile_stays_out_of_use() {
    let dir = tempfile::tempdir().unwrap();
    let (agent, call) = two(&dir).await;
    let of = agent.pool.of();
    let (part, taker): (Prefix, _) = ("10.0.0.24/29".parse().unwrap(), NodeName::new("t"));
    agent.pool.surrender(&of, part, &taker).await.unwrap();
    let (fast, slow) = (&agent.pool, &call.pool);
    let seen = slow.rows_of(&of, |row| row == part).await.unwrap();
    assert_eq!(seen.len(), 8);
    fast.free_rows(&of, &seen).await.unwrap();
    let again = fast.surrender(&of, part, &taker).await.unwrap();
    slow.free_rows(&of, &seen).await.unwrap();
    let given = agent.give("10.0.0.25").await.unwrap_err();
    assert!(given.needs_reload(), "it is lent: {given:?}");
    fast.free_rows(&of, &again.unwrap()).await.unwrap();
    agent.give("10.0.0.25").await.unwrap();
}

/// Who brings a range back ends claims that are held by nobody: another process may be about to.
#[tokio::test(flavor = "multi_thread")]
async fn looks_of_before_a_range_went_back_are_worth_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (agent, call) = (Process::begin(&dir).await, Process::begin(&dir).await);
    let gate = call.pool.gate.lock().await;
    agent.pool.outdate_looks().await.unwrap();
    let held = call.pool.hold(mk_holding(SLICE)).await.unwrap_err();
    assert!(held.is_passing(), "{held:?}");
    drop(gate);
    // The other way round: what was taken on is seen by whoever brings it back.
    call.take_on(mk_holding(SLICE)).await.unwrap();
    let outdated = agent.pool.outdate_looks().await.unwrap_err();
    assert!(
        matches!(outdated, SliceError::Leaving { .. }),
        "{outdated:?}"
    );
}
