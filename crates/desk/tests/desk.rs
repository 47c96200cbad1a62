//! The desk under load, conflict, cancellation and failure.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout
)]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use berth_core::dialect::WHEREABOUTS;
use berth_core::plan::Selector;
use berth_core::{
    Address, AddressRequest, Allocate, Answer, Handle, Owner, RangeSpec, Record, Refusal, Release,
    Request, Space,
};
use berth_desk::{Desk, DeskError, DeskMetrics, DeskSettings};
use berth_ledger::{Ledger, LedgerError, MemoryLedger, PoolKey, RetryPolicy, SharedLedger};
use faulty::{Fault, FaultyLedger};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

mod faulty;
mod random;

fn mk_pool() -> PoolKey {
    PoolKey::named("pool")
}

fn mk_space(range: &str) -> Arc<Space> {
    Arc::new(
        Space::build(&RangeSpec::parse(range).unwrap(), WHEREABOUTS)
            .unwrap()
            .0,
    )
}

fn mk_record(name: &str) -> Record {
    Record::new(Owner::new(name, "net1"), Handle::new(format!("id-{name}")))
}

fn mk_claim(name: &str, range: &str) -> Request {
    Request::Allocate(Allocate {
        record: mk_record(name),
        wants: vec![AddressRequest::any(mk_space(range))],
    })
}

fn mk_release(name: &str) -> Request {
    let selector = Selector::Handle {
        handle: mk_record(name).handle,
        part: Some("net1".into()),
    };
    Request::Release(Release {
        selector,
        cooldown: Duration::ZERO,
    })
}

fn mk_settings() -> DeskSettings {
    let retry = RetryPolicy {
        timeout: Duration::from_secs(10),
        base: Duration::from_millis(2),
        // Debts that can't be paid are tried again so often.
        max: Duration::from_millis(100),
        ..RetryPolicy::default()
    };
    DeskSettings {
        retry,
        ..DeskSettings::default()
    }
}

fn mk_desk(ledger: &Arc<FaultyLedger>, settings: &DeskSettings) -> Desk {
    let ledger: SharedLedger = Arc::clone(ledger) as SharedLedger;
    Desk::open(
        ledger,
        mk_pool(),
        settings,
        DeskMetrics::default().of("pool"),
    )
}

/// A ledger that fails so, and a desk on it.
fn mk_scene(ledger: FaultyLedger) -> (Arc<FaultyLedger>, Desk) {
    let ledger = Arc::new(ledger);
    let desk = mk_desk(&ledger, &mk_settings());
    (ledger, desk)
}

/// `a` has asked, and did not wait for the answer. Commits take a while, and these faults befall them.
async fn left_waiting(faults: impl Into<Vec<Fault>>) -> (Arc<FaultyLedger>, Desk) {
    let (ledger, desk) = mk_scene(FaultyLedger {
        delay: Duration::from_millis(400),
        ..FaultyLedger::failing(faults)
    });
    let request = desk.submit(mk_claim("a", "10.0.0.0/24"));
    let left = tokio::time::timeout(Duration::from_millis(30), request).await;
    assert!(left.is_err(), "the commit was not under way");
    (ledger, desk)
}

fn address(answer: Answer) -> Address {
    match answer {
        Answer::Granted(granted) => granted[0].address,
        other => panic!("{other:?}"),
    }
}

async fn held(ledger: &MemoryLedger) -> BTreeSet<Address> {
    let snapshot = ledger.load(&mk_pool()).await.unwrap();
    snapshot
        .pool
        .records()
        .map(|(address, _)| address)
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_goes_into_one_commit() {
    let (ledger, desk) = mk_scene(FaultyLedger::default());
    let requests = (0..64).map(|n| {
        let desk = desk.clone();
        tokio::spawn(async move { desk.submit(mk_claim(&format!("p{n}"), "10.0.0.0/24")).await })
    });
    let mut given = BTreeSet::new();
    for request in requests.collect::<Vec<_>>() {
        assert!(
            given.insert(address(request.await.unwrap().unwrap())),
            "given twice (I1)"
        );
    }
    assert_eq!(held(&ledger.inner).await, given);
    let commits = ledger.commits.load(Ordering::SeqCst);
    assert!(commits <= 16, "64 requests took {commits} commits");
}

/// A desk that lingers commits the first request at once, and those that come soon after it together.
#[tokio::test(flavor = "multi_thread")]
async fn what_comes_soon_after_a_commit_goes_into_one_more() {
    let ledger = Arc::new(FaultyLedger::default());
    let settings = DeskSettings {
        linger: Duration::from_secs(2),
        ..mk_settings()
    };
    let desk = mk_desk(&ledger, &settings);
    let first = desk.submit(mk_claim("first", "10.0.0.0/24")).await.unwrap();
    let mut given = BTreeSet::from([address(first)]);
    let mut requests = Vec::new();
    for n in 0..20 {
        let desk = desk.clone();
        let claim = mk_claim(&format!("p{n}"), "10.0.0.0/24");
        requests.push(tokio::spawn(async move { desk.submit(claim).await }));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for request in requests {
        assert!(given.insert(address(request.await.unwrap().unwrap())), "I1");
    }
    assert_eq!(held(&ledger.inner).await, given);
    assert_eq!(ledger.commits.load(Ordering::SeqCst), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_desks_on_one_pool_meet_and_part() {
    let store = Arc::new(MemoryLedger::new());
    let mut given = BTreeSet::new();
    let mut tasks = Vec::new();
    for side in 0..4 {
        let desk = mk_desk(
            &Arc::new(FaultyLedger::new(Arc::clone(&store))),
            &mk_settings(),
        );
        for n in 0..25 {
            let desk = desk.clone();
            let name = format!("s{side}-{n}");
            tasks.push(tokio::spawn(async move {
                desk.submit(mk_claim(&name, "10.0.0.0/24")).await
            }));
        }
    }
    for task in tasks {
        assert!(
            given.insert(address(task.await.unwrap().unwrap())),
            "given twice (I1)"
        );
    }
    assert_eq!(held(&store).await, given);
}

/// A pod whose node is lost runs on two nodes for a while. Their copies differ, so each would choose another address, and
/// no precondition on an address can tell.
#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_two_desks_serve_ends_with_one_address() {
    let (ledger, one) = mk_scene(FaultyLedger::default());
    let two = mk_desk(&ledger, &mk_settings());
    let claim = |name: &str| mk_claim(name, "10.0.0.0/24");
    one.submit(claim("first")).await.unwrap();
    two.submit(claim("second")).await.unwrap();
    // Only the first desk knows that the lowest address is free again.
    one.submit(mk_release("first")).await.unwrap();
    let of_one = address(one.submit(claim("pod")).await.unwrap());
    let mut elsewhere = claim("pod");
    if let Request::Allocate(claim) = &mut elsewhere {
        claim.record.handle = Handle::new("on-the-other-node");
    }
    let of_two = address(two.submit(elsewhere).await.unwrap());
    assert_eq!(of_one, of_two, "the same owner, the same answer (I3)");
    let now = ledger.inner.load(&mk_pool()).await.unwrap().pool;
    let held: Vec<Address> = now.held_by(&mk_record("pod").owner).collect();
    assert_eq!(held, [of_one]);
    let holder = now.get(of_one).unwrap();
    assert_eq!(holder.handle, Handle::new("on-the-other-node"));
}

/// The same at once and often: whatever they meet in, nothing is left twice.
#[tokio::test(flavor = "multi_thread")]
async fn owners_that_two_desks_serve_at_once_end_with_one_address_each() {
    let (ledger, one) = mk_scene(FaultyLedger::default());
    let desks = [one, mk_desk(&ledger, &mk_settings())];
    for n in 0..40 {
        let name = format!("p{n}");
        let [one, two] = desks.each_ref().map(|desk| {
            let mut request = mk_claim(&name, "10.0.0.0/24");
            if let Request::Allocate(claim) = &mut request {
                claim.record.handle = Handle::new(format!("{:p}", desk.pool()));
            }
            let desk = desk.clone();
            tokio::spawn(async move { address(desk.submit(request).await.unwrap()) })
        });
        // Others come and go, which sets the desks' copies apart.
        let other = desks[n % 2].clone();
        other
            .submit(mk_claim(&format!("other{n}"), "10.0.0.0/24"))
            .await
            .unwrap();
        other
            .submit(mk_release(&format!("other{n}")))
            .await
            .unwrap();
        assert_eq!(one.await.unwrap(), two.await.unwrap(), "{name}");
        let now = ledger.inner.load(&mk_pool()).await.unwrap().pool;
        let held = now.held_by(&Owner::new(&name, "net1")).count();
        assert_eq!(held, 1, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_request_leaves_nothing_behind() {
    let (ledger, desk) = mk_scene(FaultyLedger {
        delay: Duration::from_millis(400),
        ..FaultyLedger::default()
    });
    let first = desk.submit(mk_claim("gone", "10.0.0.0/24"));
    let given_up = tokio::time::timeout(Duration::from_millis(50), first).await;
    assert!(given_up.is_err(), "the commit was not under way");
    // The owner asks again at once: it gets an address that stays.
    let again = address(desk.submit(mk_claim("gone", "10.0.0.0/24")).await.unwrap());
    let other = address(desk.submit(mk_claim("other", "10.0.0.0/24")).await.unwrap());
    assert_ne!(again, other);
    assert_eq!(held(&ledger.inner).await, BTreeSet::from([again, other]));
    // And one that nobody asks for again is freed.
    let third = desk.submit(mk_claim("third", "10.0.0.0/24"));
    assert!(
        tokio::time::timeout(Duration::from_millis(50), third)
            .await
            .is_err()
    );
    until(&ledger.inner, |held| held.len() == 3).await;
    let left = BTreeSet::from([again, other]);
    until(&ledger.inner, |held| *held == left).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_reply_gives_one_address() {
    let (ledger, desk) = mk_scene(FaultyLedger::failing([
        Fault::LostReply,
        Fault::LostRequest,
    ]));
    let first = address(desk.submit(mk_claim("a", "10.0.0.0/24")).await.unwrap());
    let second = address(desk.submit(mk_claim("b", "10.0.0.0/24")).await.unwrap());
    assert_eq!(held(&ledger.inner).await, BTreeSet::from([first, second]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_reply_to_a_caller_who_left_leaves_nothing() {
    let (ledger, _desk) = left_waiting([Fault::LostReply]).await;
    filled(&ledger.inner).await;
    emptied(&ledger.inner).await;
}

/// Waits until what is held is as it should be, while nobody asks the desk for anything.
async fn until(store: &MemoryLedger, right: impl Fn(&BTreeSet<Address>) -> bool) {
    let wait = async {
        while !right(&held(store).await) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let done = tokio::time::timeout(Duration::from_secs(30), wait).await;
    assert!(done.is_ok(), "held: {:?}", held(store).await);
}

async fn emptied(store: &MemoryLedger) {
    until(store, BTreeSet::is_empty).await;
}

async fn filled(store: &MemoryLedger) {
    until(store, |held| !held.is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_heard_is_taken_back_at_the_second_try_though_nobody_asks_again() {
    let (ledger, _desk) = left_waiting([Fault::None, Fault::Unavailable]).await;
    filled(&ledger.inner).await;
    emptied(&ledger.inner).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_found_is_not_under_way() {
    let (ledger, desk) = left_waiting([Fault::None, Fault::Unavailable]).await;
    let found = desk.find(&mk_record("a").handle).await.unwrap();
    assert_eq!(found, []);
    assert_eq!(held(&ledger.inner).await, BTreeSet::new());
}

/// The desk's copy is older than another writer's commit.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_found_was_read_after_the_call() {
    let ledger = Arc::new(FaultyLedger::default());
    let (here, there) = (
        mk_desk(&ledger, &mk_settings()),
        mk_desk(&ledger, &mk_settings()),
    );
    let first = address(here.submit(mk_claim("a", "10.0.0.0/24")).await.unwrap());
    let second = address(there.submit(mk_claim("b", "10.0.0.0/24")).await.unwrap());
    let found = here.find(&mk_record("b").handle).await.unwrap();
    assert_eq!(found, [(second, mk_record("b"))]);
    let found = there.find(&mk_record("a").handle).await.unwrap();
    assert_eq!(found, [(first, mk_record("a"))]);
    there.submit(mk_release("a")).await.unwrap();
    assert_eq!(here.find(&mk_record("a").handle).await.unwrap(), []);
}

/// How late a commit may be. Far more than the late ones are: a store that broke this promise would be another fault,
/// and a loaded machine holds up a timer by a tenth of a second.
const IN_DOUBT: Duration = Duration::from_secs(2);

/// `a` is refused before its commit is carried out.
async fn refused_too_early(late: Fault) -> (Arc<FaultyLedger>, Desk) {
    let (ledger, desk) = mk_scene(FaultyLedger {
        in_doubt: IN_DOUBT,
        ..FaultyLedger::failing([vec![late], vec![Fault::Unavailable; 10]].concat())
    });
    let limit = Duration::from_millis(30);
    let refused = desk
        .submit_within(mk_claim("a", "10.0.0.0/24"), limit)
        .await;
    refused.expect_err("no commit came through in time");
    (ledger, desk)
}

/// A commit that is carried out when its caller has given up and the runtime has asked for the release.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_is_not_outrun_by_a_late_commit() {
    let late = Fault::Late(Duration::from_millis(400));
    let (ledger, desk) = refused_too_early(late).await;
    assert!(held(&ledger.inner).await.is_empty(), "it is not late");
    let other = address(desk.submit(mk_claim("b", "10.0.1.0/24")).await.unwrap());
    desk.submit(mk_release("a")).await.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(held(&ledger.inner).await, BTreeSet::from([other]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_commit_is_taken_back_unless_its_owner_got_it_after_all() {
    let late = Fault::Late(Duration::from_millis(200));
    let (ledger, desk) = refused_too_early(late).await;
    filled(&ledger.inner).await;
    emptied(&ledger.inner).await;
    *ledger.faults.lock().await = vec![late];
    let kept = address(desk.submit(mk_claim("a", "10.0.0.0/24")).await.unwrap());
    tokio::time::sleep(IN_DOUBT + Duration::from_millis(300)).await;
    assert_eq!(held(&ledger.inner).await, BTreeSet::from([kept]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_says_why_and_leaves_nothing() {
    let (ledger, desk) = mk_scene(FaultyLedger::failing(vec![Fault::Unavailable; 10_000]));
    let limit = Duration::from_millis(300);
    let error = desk
        .submit_within(mk_claim("a", "10.0.0.0/24"), limit)
        .await
        .unwrap_err();
    assert!(
        matches!(error.ledger(), Some(LedgerError::Unavailable { .. })),
        "{error}"
    );
    assert!(error.to_string().contains("refused"), "{error}");
    ledger.faults.lock().await.clear();
    let address = address(desk.submit(mk_claim("b", "10.0.0.0/24")).await.unwrap());
    assert_eq!(held(&ledger.inner).await, BTreeSet::from([address]));
}

/// 0 means none: the caller hears of the first failure, and nothing is left of the request.
#[tokio::test(flavor = "multi_thread")]
async fn without_retries_the_first_failure_is_the_answer() {
    for fault in [Fault::Unavailable, Fault::LostReply, Fault::LostRequest] {
        let ledger = Arc::new(FaultyLedger::failing([fault]));
        let mut settings = mk_settings();
        settings.retry.retries = 0;
        let desk = mk_desk(&ledger, &settings);
        let failed = desk.submit(mk_claim("a", "10.0.0.0/24")).await;
        assert!(failed.is_err(), "{fault:?}: {failed:?}");
        until(&ledger.inner, BTreeSet::is_empty).await;
        desk.submit(mk_claim("b", "10.0.0.0/24")).await.unwrap();
        assert_eq!(held(&ledger.inner).await.len(), 1, "{fault:?}");
    }
}

/// A lost reply to an exchange: the repeat finds what the first got, and it is not taken back later.
#[tokio::test(flavor = "multi_thread")]
async fn an_exchange_whose_reply_is_lost_has_one_address() {
    let (ledger, desk) = mk_scene(FaultyLedger::failing([Fault::None, Fault::LostReply]));
    let first = address(desk.submit(mk_claim("a", "10.0.0.0/24")).await.unwrap());
    let Request::Allocate(claim) = mk_claim("a", "10.0.0.0/24") else {
        panic!("a claim is a claim");
    };
    let exchange = Request::Exchange {
        address: first,
        expected: mk_record("a"),
        claim,
    };
    let second = address(desk.submit(exchange).await.unwrap());
    assert_ne!(first, second);
    let found = desk.find(&mk_record("a").handle).await.unwrap();
    assert_eq!(found, [(second, mk_record("a"))]);
    desk.submit(mk_claim("b", "10.0.0.0/24")).await.unwrap();
    let held = held(&ledger.inner).await;
    assert!(held.contains(&second) && held.len() == 2, "{held:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_queue_is_bounded() {
    let ledger = Arc::new(FaultyLedger {
        delay: Duration::from_millis(200),
        ..FaultyLedger::default()
    });
    let settings = DeskSettings {
        queue: 4,
        batch: 1,
        ..mk_settings()
    };
    let desk = mk_desk(&ledger, &settings);
    let requests = (0..12).map(|n| {
        let desk = desk.clone();
        tokio::spawn(async move { desk.submit(mk_claim(&format!("p{n}"), "10.0.0.0/24")).await })
    });
    let answers = futures::future::join_all(requests.collect::<Vec<_>>()).await;
    let busy = answers
        .iter()
        .filter(|answer| matches!(answer.as_ref().unwrap(), Err(DeskError::Busy { .. })))
        .count();
    assert!(busy >= 6, "{busy} of 12 were told that the desk is busy");
    assert!(
        answers
            .iter()
            .any(|answer| answer.as_ref().unwrap().is_ok())
    );
}

/// "Nothing to free" and "nothing left" are claims about the store, not about a copy of it.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_without_a_change_is_never_from_an_old_copy() {
    let store = Arc::new(MemoryLedger::new());
    let here = mk_desk(
        &Arc::new(FaultyLedger::new(Arc::clone(&store))),
        &mk_settings(),
    );
    let there = mk_desk(
        &Arc::new(FaultyLedger::new(Arc::clone(&store))),
        &mk_settings(),
    );
    here.submit(mk_claim("a", "10.0.0.0/30")).await.unwrap();
    there.submit(mk_claim("b", "10.0.0.0/30")).await.unwrap();
    // `here` has not seen b: freeing it must not answer "nothing held".
    let freed = here.submit(mk_release("b")).await.unwrap();
    assert!(
        matches!(&freed, Answer::Released(list) if list.len() == 1),
        "{freed:?}"
    );
    // `there` still thinks that both are held.
    let given = there.submit(mk_claim("c", "10.0.0.0/30")).await.unwrap();
    assert!(matches!(given, Answer::Granted(_)), "{given:?}");
    let full = there.submit(mk_claim("d", "10.0.0.0/30")).await.unwrap();
    assert!(
        matches!(full, Answer::Refused(Refusal::Exhausted { .. })),
        "{full:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_object_refuses_claims_and_still_takes_releases() {
    let (ledger, desk) = mk_scene(FaultyLedger {
        room: 5,
        ..FaultyLedger::default()
    });
    let claims = (0..8).map(|n| {
        let desk = desk.clone();
        tokio::spawn(async move { desk.submit(mk_claim(&format!("p{n}"), "10.0.0.0/24")).await })
    });
    let answers = futures::future::join_all(claims.collect::<Vec<_>>()).await;
    let full = answers
        .iter()
        .filter(|answer| {
            let error = answer
                .as_ref()
                .unwrap()
                .as_ref()
                .err()
                .and_then(DeskError::ledger);
            matches!(error, Some(LedgerError::Full { .. }))
        })
        .count();
    assert_eq!(full, 3, "{answers:?}");
    assert_eq!(held(&ledger.inner).await.len(), 5);
    let (freed, refused) = tokio::join!(
        desk.submit(mk_release("p0")),
        desk.submit(mk_claim("q", "10.0.0.0/24"))
    );
    assert!(freed.is_ok(), "{freed:?}");
    drop(refused);
}
