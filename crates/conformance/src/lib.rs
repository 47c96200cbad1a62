//! What every ledger promises, as one suite that runs over all of them.
//!
//! A test file names a way to open the store anew (several handles to one store, as several
//! processes would have) and runs [`suite`]. Crash tests re-run the test binary as a child process
//! ([`crash`]).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a library of tests"
)]

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use berth_core::{Address, Change, Cooldown, Handle, Moment, Owner, Record};
use berth_ledger::{
    ClaimKey, ClaimKind, Guard, Ledger, LedgerError, PoolKey, Records, RetryPolicy, SharedLedger,
    SharedRecordLedger, Version,
};
use futures::StreamExt;

pub mod crash;

/// A store under test.
#[derive(Debug)]
pub struct Subject {
    /// A pool name that no other test uses, with its network 10.0.0.0/16.
    pub pool: PoolKey,
    /// Several handles to the same store.
    pub ledgers: Vec<SharedLedger>,
    /// Whether the store keeps cooldowns.
    pub cooldowns: bool,
    /// The same handles where it keeps named records; none where it does not.
    pub records: Vec<Arc<dyn Records>>,
    /// Whether it looks at another pool in the step of a commit.
    pub guarded: bool,
}

impl Subject {
    /// A store of pools alone that keeps cooldowns and refuses guards.
    pub fn new(pool: PoolKey, ledgers: Vec<SharedLedger>) -> Self {
        Self {
            pool,
            ledgers,
            cooldowns: true,
            records: Vec::new(),
            guarded: false,
        }
    }

    /// One that keeps named records too.
    pub fn with_records(pool: PoolKey, ledgers: &[SharedRecordLedger]) -> Self {
        let pools = ledgers.iter().map(|one| Arc::clone(one) as SharedLedger);
        let records = ledgers
            .iter()
            .map(|one| Arc::clone(one) as Arc<dyn Records>);
        Self {
            records: records.collect(),
            ..Self::new(pool, pools.collect())
        }
    }
}

pub fn mk_record(name: &str) -> Record {
    Record::new(
        Owner::new(format!("default/{name}"), "net1"),
        Handle::new(format!("id-{name}")),
    )
}

pub fn mk_address(n: u32) -> Address {
    Address::new(berth_core::Family::V4, u128::from(0x0a00_0000 + n)).unwrap()
}

pub fn claim(n: u32, name: &str) -> Change {
    Change::Allocate {
        address: mk_address(n),
        record: mk_record(name),
    }
}

pub fn release(n: u32, name: &str) -> Change {
    Change::Release {
        address: mk_address(n),
        expected: mk_record(name),
        cooldown: None,
    }
}

/// Commits on the newest version.
pub async fn write(
    ledger: &dyn Ledger,
    pool: &PoolKey,
    changes: &[Change],
) -> Result<Version, LedgerError> {
    let base = ledger.load(pool).await?.version;
    ledger.commit(pool, &base, changes, None).await
}

pub async fn held(ledger: &dyn Ledger, pool: &PoolKey) -> BTreeMap<Address, Record> {
    let snapshot = ledger.load(pool).await.unwrap();
    snapshot
        .pool
        .records()
        .map(|(address, record)| (address, record.clone()))
        .collect()
}

pub async fn suite(subject: Subject) {
    let ledger = Arc::clone(&subject.ledgers[0]);
    let ledger = ledger.as_ref();
    an_absent_pool_is_empty(ledger, &subject.pool).await;
    claims_are_kept_and_listed(&subject, ledger).await;
    a_claim_of_a_held_address_fails(ledger, &subject.pool).await;
    a_release_of_anothers_record_fails(ledger, &subject.pool).await;
    an_update_names_its_holder(ledger, &subject.pool).await;
    a_commit_is_all_or_none(ledger, &subject.pool).await;
    changes_of_one_address_apply_in_order(ledger, &subject.pool).await;
    refresh_tells_old_from_new(ledger, &subject.pool).await;
    a_watch_shows_that_a_copy_is_old(&subject).await;
    if subject.cooldowns {
        rests_are_kept_and_end_with_a_claim(ledger, &subject.pool).await;
    }
    if !subject.records.is_empty() {
        names_are_claimed_once(&subject.records).await;
    }
    match subject.guarded {
        true => a_commit_is_made_only_beside_what_was_read(&subject).await,
        false => a_guard_that_nobody_can_keep_is_refused(&subject).await,
    }
    many_writers_lose_nothing(&subject).await;
}

async fn an_absent_pool_is_empty(ledger: &dyn Ledger, pool: &PoolKey) {
    let snapshot = ledger.load(pool).await.unwrap();
    assert!(snapshot.pool.is_empty());
    let missing = write(ledger, pool, &[release(1, "nobody")]).await;
    assert!(
        matches!(missing, Err(LedgerError::Conflict { .. })),
        "{missing:?}"
    );
}

async fn claims_are_kept_and_listed(subject: &Subject, ledger: &dyn Ledger) {
    write(ledger, &subject.pool, &[claim(1, "a"), claim(2, "b")])
        .await
        .unwrap();
    for other in &subject.ledgers {
        let held = held(other.as_ref(), &subject.pool).await;
        assert_eq!(held.len(), 2);
        assert!(
            held[&mk_address(1)].same_holder(&mk_record("a")),
            "{held:?}"
        );
        let names: Vec<String> = other
            .pools()
            .await
            .unwrap()
            .into_iter()
            .map(|key| key.name)
            .collect();
        assert!(names.contains(&subject.pool.name), "{names:?}");
    }
}

/// I1.
async fn a_claim_of_a_held_address_fails(ledger: &dyn Ledger, pool: &PoolKey) {
    let before = held(ledger, pool).await;
    let refused = write(ledger, pool, &[claim(1, "thief")]).await;
    assert!(
        matches!(refused, Err(LedgerError::Conflict { .. })),
        "{refused:?}"
    );
    assert_eq!(held(ledger, pool).await, before);
}

/// I6.
async fn a_release_of_anothers_record_fails(ledger: &dyn Ledger, pool: &PoolKey) {
    let before = held(ledger, pool).await;
    let mut same_owner_other_handle = mk_record("a");
    same_owner_other_handle.handle = Handle::new("late");
    let late = Change::Release {
        address: mk_address(1),
        expected: same_owner_other_handle,
        cooldown: None,
    };
    for change in [release(1, "b"), late, release(9, "a")] {
        let refused = write(ledger, pool, std::slice::from_ref(&change)).await;
        assert!(
            matches!(refused, Err(LedgerError::Conflict { .. })),
            "{change:?}: {refused:?}"
        );
    }
    assert_eq!(held(ledger, pool).await, before);
}

async fn an_update_names_its_holder(ledger: &dyn Ledger, pool: &PoolKey) {
    let mut again = mk_record("a");
    again.handle = Handle::new("id-a-again");
    let update = |expected: Record, record: Record| Change::Update {
        address: mk_address(1),
        expected,
        record,
    };
    let refused = write(ledger, pool, &[update(mk_record("b"), again.clone())]).await;
    assert!(
        matches!(refused, Err(LedgerError::Conflict { .. })),
        "{refused:?}"
    );
    write(ledger, pool, &[update(mk_record("a"), again.clone())])
        .await
        .unwrap();
    assert!(held(ledger, pool).await[&mk_address(1)].same_holder(&again));
    write(ledger, pool, &[update(again, mk_record("a"))])
        .await
        .unwrap();
}

async fn a_commit_is_all_or_none(ledger: &dyn Ledger, pool: &PoolKey) {
    let before = held(ledger, pool).await;
    let refused = write(
        ledger,
        pool,
        &[claim(7, "c"), release(2, "b"), claim(1, "thief")],
    )
    .await;
    assert!(
        matches!(refused, Err(LedgerError::Conflict { .. })),
        "{refused:?}"
    );
    assert_eq!(held(ledger, pool).await, before);
}

async fn changes_of_one_address_apply_in_order(ledger: &dyn Ledger, pool: &PoolKey) {
    let changes = [
        claim(8, "x"),
        release(8, "x"),
        claim(8, "y"),
        release(2, "b"),
    ];
    write(ledger, pool, &changes).await.unwrap();
    let held = held(ledger, pool).await;
    assert!(held[&mk_address(8)].same_holder(&mk_record("y")));
    assert!(!held.contains_key(&mk_address(2)));
}

async fn refresh_tells_old_from_new(ledger: &dyn Ledger, pool: &PoolKey) {
    let base = ledger.load(pool).await.unwrap().version;
    assert!(ledger.refresh(pool, &base).await.unwrap().is_none());
    write(ledger, pool, &[claim(20, "r")]).await.unwrap();
    let newer = ledger
        .refresh(pool, &base)
        .await
        .unwrap()
        .expect("the pool has changed");
    assert!(newer.pool.is_held(mk_address(20)));
}

async fn a_watch_shows_that_a_copy_is_old(subject: &Subject) {
    let watcher = subject.ledgers.last().unwrap();
    let copy = watcher.load(&subject.pool).await.unwrap();
    let mut versions = watcher.watch_versions(&subject.pool).await.unwrap();
    let writer = subject.ledgers[0].as_ref();
    write(writer, &subject.pool, &[claim(21, "w")])
        .await
        .unwrap();
    let heard = tokio::time::timeout(Duration::from_secs(20), async {
        while let Some(version) = versions.next().await {
            if version.unwrap().order(&copy.version) == Some(Ordering::Greater) {
                return true;
            }
        }
        false
    });
    assert!(heard.await.expect("the watch never showed the claim"));
    let newer = watcher.refresh(&subject.pool, &copy.version).await.unwrap();
    assert!(newer.unwrap().pool.is_held(mk_address(21)));
}

/// I10's memory: a rest survives, and a claim ends it.
async fn rests_are_kept_and_end_with_a_claim(ledger: &dyn Ledger, pool: &PoolKey) {
    let millis = std::time::UNIX_EPOCH.elapsed().unwrap().as_millis();
    let now = Moment(u64::try_from(millis).unwrap());
    let cooldown = Cooldown {
        since: now,
        until: now.plus(Duration::from_secs(3600)),
        owner: mk_record("r").owner,
    };
    let release = Change::Release {
        address: mk_address(20),
        expected: mk_record("r"),
        cooldown: Some(cooldown.clone()),
    };
    write(ledger, pool, &[release]).await.unwrap();
    let cooldowns = |pool: &berth_core::Pool| -> Vec<(Address, Cooldown)> {
        pool.cooldowns()
            .map(|(address, cooldown)| (address, cooldown.clone()))
            .collect()
    };
    let kept = ledger.load(pool).await.unwrap();
    assert_eq!(cooldowns(&kept.pool), [(mk_address(20), cooldown)]);
    write(ledger, pool, &[claim(20, "r")]).await.unwrap();
    assert!(cooldowns(&ledger.load(pool).await.unwrap().pool).is_empty());
}

/// From a to c, by its other container; nobody else's word counts.
async fn names_are_transferred(records: &dyn Records, key: &ClaimKey) {
    let (first, last) = (mk_record("a"), mk_record("c"));
    let again = Record::new(first.owner.clone(), Handle::new("another container"));
    let is_taken = |passed: Result<(), LedgerError>| {
        assert!(
            matches!(passed, Err(LedgerError::Taken { .. })),
            "{passed:?}"
        );
    };
    is_taken(records.transfer(key, &mk_record("b"), &last).await);
    records.transfer(key, &first, &again).await.unwrap();
    is_taken(records.transfer(key, &first, &last).await);
    records.transfer(key, &again, &last).await.unwrap();
    records
        .transfer(key, &again, &last)
        .await
        .expect("it has it already (I3)");
    let held = records.get(key).await.unwrap().unwrap();
    assert!(held.same_holder(&last), "{held:?}");
    let nobodys = ClaimKey::new(ClaimKind::Reservation, "10.0.0.78");
    is_taken(records.transfer(&nobodys, &first, &last).await);
}

async fn names_are_claimed_once(all: &[Arc<dyn Records>]) {
    let records = all[0].as_ref();
    let key = ClaimKey::new(ClaimKind::Reservation, "10.0.0.77");
    assert_eq!(records.get(&key).await.unwrap(), None);
    records.delete(&key, &mk_record("a")).await.unwrap();
    records.create(&key, &mk_record("a")).await.unwrap();
    records
        .create(&key, &mk_record("a"))
        .await
        .expect("the same holder again (I3)");
    let taken = records.create(&key, &mk_record("b")).await.unwrap_err();
    assert!(
        matches!(&taken, LedgerError::Taken { by, .. } if by.contains("default/a")),
        "{taken}"
    );
    let refused = records.delete(&key, &mk_record("b")).await;
    assert!(
        matches!(refused, Err(LedgerError::Taken { .. })),
        "{refused:?}"
    );
    let listed = records.list(ClaimKind::Reservation).await.unwrap();
    assert!(
        listed
            .iter()
            .any(|(k, r)| *k == key && r.owner == mk_record("a").owner)
    );
    let again = Record::new(mk_record("a").owner, Handle::new("another container"));
    for strange in [records.create(&key, &again), records.delete(&key, &again)] {
        let refused = strange.await;
        assert!(
            matches!(refused, Err(LedgerError::Taken { .. })),
            "{refused:?}"
        );
    }
    names_are_transferred(records, &key).await;
    records.delete(&key, &mk_record("c")).await.unwrap();
    assert_eq!(records.get(&key).await.unwrap(), None);

    // Whoever creates first has it, and only one does.
    let key = ClaimKey::new(ClaimKind::Reservation, "10.0.0.79");
    let racers = (0..16).map(|n| {
        let records = Arc::clone(&all[n % all.len()]);
        let key = key.clone();
        tokio::spawn(async move { records.create(&key, &mk_record(&format!("racer{n}"))).await })
    });
    let outcomes = futures::future::join_all(racers.collect::<Vec<_>>()).await;
    let won = outcomes
        .iter()
        .filter(|outcome| outcome.as_ref().unwrap().is_ok())
        .count();
    assert_eq!(won, 1, "{outcomes:?}");
}

fn mk_guard(subject: &Subject, version: Version) -> Guard {
    let name = format!("{}-beside", subject.pool.name);
    let pool = PoolKey::of_network(name, subject.pool.network.unwrap());
    Guard { pool, version }
}

async fn a_commit_is_made_only_beside_what_was_read(subject: &Subject) {
    let last = subject.ledgers.len() - 1;
    let (ledger, other) = (&subject.ledgers[0], &subject.ledgers[last]);
    let pool = &subject.pool;
    // Nothing is there yet, and that is what was read.
    let absent = mk_guard(subject, Version::default());
    let attempt = async |n: u32, guard: &Guard| {
        let base = ledger.load(pool).await.unwrap().version;
        let changes = [claim(n, "guarded")];
        let guard = Some(guard);
        ledger.commit(pool, &base, &changes, guard).await
    };
    attempt(50, &absent).await.unwrap();
    // By another handle, as another process would.
    let guard = &absent.pool;
    let first = write(other.as_ref(), guard, &[claim(1, "a")])
        .await
        .unwrap();
    let refused = attempt(51, &absent).await.unwrap_err();
    assert!(refused.is_of(&absent), "{refused:?}");
    let known = mk_guard(subject, first);
    attempt(52, &known).await.unwrap();
    write(other.as_ref(), guard, &[release(1, "a")])
        .await
        .unwrap();
    let refused = attempt(53, &known).await.unwrap_err();
    assert!(refused.is_of(&known), "{refused:?}");
    // The pool's own preconditions are told from the guard's.
    let now = other.load(guard).await.unwrap().version;
    let held_already = attempt(52, &mk_guard(subject, now)).await.unwrap_err();
    assert!(held_already.needs_reload(), "{held_already:?}");
    assert!(!held_already.is_of(&known), "{held_already:?}");
    let now = held(other.as_ref(), pool).await;
    let has = |n: u32| now.contains_key(&mk_address(n));
    assert_eq!([50, 51, 52, 53].map(has), [true, false, true, false]);
}

async fn a_guard_that_nobody_can_keep_is_refused(subject: &Subject) {
    let (ledger, pool) = (&subject.ledgers[0], &subject.pool);
    let before = ledger.load(pool).await.unwrap();
    let guard = mk_guard(subject, Version::default());
    let changes = [claim(50, "guarded")];
    let refused = ledger
        .commit(pool, &before.version, &changes, Some(&guard))
        .await;
    let refused = refused.unwrap_err();
    assert!(
        matches!(refused, LedgerError::Rejected { .. }),
        "{refused:?}"
    );
    let now = held(ledger.as_ref(), pool).await;
    assert!(!now.contains_key(&mk_address(50)));
}

/// 32 writers, each with its own loop of load, lowest free, commit, retry: no address twice (I1),
/// every acknowledged one is there (I2), nothing else is.
async fn many_writers_lose_nothing(subject: &Subject) {
    const WRITERS: usize = 32;
    const EACH: usize = 4;
    let before = held(subject.ledgers[0].as_ref(), &subject.pool).await;
    let writers = (0..WRITERS).map(|n| {
        let ledger = Arc::clone(&subject.ledgers[n % subject.ledgers.len()]);
        let pool = subject.pool.clone();
        tokio::spawn(async move {
            let mut got = Vec::new();
            for round in 0..EACH {
                got.push(claim_lowest(ledger.as_ref(), &pool, &format!("w{n}-{round}")).await);
            }
            got
        })
    });
    let mut acknowledged = BTreeMap::new();
    for writer in writers.collect::<Vec<_>>() {
        for (address, record) in writer.await.unwrap() {
            let twice = acknowledged.insert(address, record);
            assert!(twice.is_none(), "{address} was given twice (I1)");
        }
    }
    let after = held(subject.ledgers[0].as_ref(), &subject.pool).await;
    for (address, record) in &acknowledged {
        assert!(
            after[address].same_holder(record),
            "{address} was acknowledged and lost (I2)"
        );
    }
    let expected: BTreeSet<Address> = before.into_keys().chain(acknowledged.into_keys()).collect();
    assert_eq!(after.into_keys().collect::<BTreeSet<_>>(), expected);
}

pub async fn claim_lowest(ledger: &dyn Ledger, pool: &PoolKey, name: &str) -> (Address, Record) {
    // Where a whole object is written on one version, 32 writers without turns wait for each other, on a busy machine for
    // minutes.
    let policy = RetryPolicy {
        timeout: Duration::from_secs(600),
        retries: 10_000,
        ..RetryPolicy::default()
    };
    let mut backoff = policy.start();
    let record = mk_record(name);
    loop {
        let snapshot = ledger.load(pool).await.unwrap();
        let mine = snapshot.pool.held_by(&record.owner).next();
        if let Some(address) = mine {
            return (address, record);
        }
        // After a conflict one of the next free ones, as a desk draws it: who collided once does not collide again.
        let drawn = rand::random::<u32>() % (4 * backoff.tries() + 1);
        let free = (100..)
            .map(mk_address)
            .filter(|address| !snapshot.pool.is_held(*address))
            .nth(drawn as usize);
        let address = free.expect("the test's network has room");
        let change = Change::Allocate {
            address,
            record: record.clone(),
        };
        match ledger
            .commit(pool, &snapshot.version, &[change], None)
            .await
        {
            Ok(_) => return (address, record),
            Err(error) if error.needs_reload() || error.is_passing() => {
                let pause = backoff.pause(None).expect("a writer starved");
                tokio::time::sleep(pause).await;
            }
            Err(error) => panic!("{error}"),
        }
    }
}
