//! What happens while a VM is being checked: repeats, deallocations, processes that die. On a ledger in memory that
//! several fleets share, as processes share a ConfigMap.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod script;

use std::sync::Arc;
use std::time::Duration;

use berth_ledger::{MemoryLedger, SharedLedger};
use berth_vms::{Allocation, Applicant, Fleet, PoolError, Recovery, Returned, Store};
use script::{ScriptedVms, settings};

struct Bench {
    ledger: SharedLedger,
    vms: Arc<ScriptedVms>,
}

impl Bench {
    fn new() -> Self {
        Self {
            ledger: Arc::new(MemoryLedger::new()),
            vms: Arc::default(),
        }
    }

    /// A process, from the state's point of view.
    async fn process(&self, env: &[(&str, &str)]) -> Fleet {
        let settings = settings(env);
        let store = Store::Local(Arc::clone(&self.ledger));
        let (meters, desk) = Default::default();
        let fleet = Fleet::new(&settings, store, self.vms.clone(), meters, desk);
        fleet.resize(&settings.pools).await.unwrap();
        fleet
    }
}

fn applicant(id: &str) -> Applicant {
    Applicant {
        allocation_id: id.into(),
        pod_name: "nginx".into(),
        pod_namespace: "default".into(),
    }
}

type Outcome = tokio::task::JoinHandle<Result<Allocation, PoolError>>;

fn allocate(fleet: &Fleet, id: &str) -> Outcome {
    let (fleet, applicant) = (fleet.clone(), applicant(id));
    tokio::spawn(async move { fleet.allocate(None, applicant).await })
}

/// Waits until the ID's VM is being checked, and returns it.
async fn being_checked(fleet: &Fleet, id: &str) -> String {
    for _ in 0..2000 {
        if let Ok(allocation) = fleet.by_id(None, id).await {
            assert!(allocation.checking.is_some(), "{allocation:?}");
            return allocation.ip.to_string();
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("{id} never had a VM");
}

async fn until(fleet: &Fleet, counts: (usize, usize, usize)) {
    for _ in 0..2000 {
        let status = fleet.status(None).await.unwrap().remove(0);
        if (status.available, status.in_use, status.quarantined) == counts {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{:?} is not {counts:?}", fleet.status(None).await.unwrap());
}

const TWO: (&str, &str) = ("VM_POOL_IPS", "10.0.0.1,10.0.0.2");
const ONE: (&str, &str) = ("VM_POOL_IPS", "10.0.0.1");
const OTHER: (&str, &str) = ("NODE_NAME", "other");

/// Every repeat, of this process and of another, gets the VM that the first request finally gets: not the one that is
/// about to fail its check.
#[tokio::test]
async fn berth_15_5_a_repeat_waits_for_the_check_that_is_under_way() {
    for works in [true, false] {
        let bench = Bench::new();
        let (fleet, other) = (
            bench.process(&[TWO]).await,
            bench.process(&[TWO, OTHER]).await,
        );
        for ip in ["10.0.0.1", "10.0.0.2"] {
            bench.vms.hang(ip);
        }
        let first = allocate(&fleet, "a");
        let checked = being_checked(&fleet, "a").await;
        let repeats = [allocate(&fleet, "a"), allocate(&other, "a")];
        let error = fleet.put_user_data(None, "a", b"x").await.unwrap_err();
        assert!(matches!(error, PoolError::BeingChecked { .. }), "{error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(
            !repeats.iter().any(Outcome::is_finished),
            "answered before the check"
        );
        if !works {
            bench.vms.kill(&checked);
        }
        for ip in ["10.0.0.1", "10.0.0.2"] {
            bench.vms.go_on(ip);
        }
        let got = first.await.unwrap().unwrap();
        assert_eq!(got.ip.to_string() == checked, works);
        for repeat in repeats {
            assert_eq!(repeat.await.unwrap().unwrap().ip, got.ip);
        }
        let listed = fleet.list(None).await.unwrap();
        assert_eq!(listed.len(), 1, "one VM for one ID");
        assert!(listed[0].checking.is_none());
        // Another pod gets another VM, or none.
        match allocate(&other, "b").await.unwrap() {
            Ok(second) => assert_ne!(second.ip, got.ip),
            Err(error) => assert!(
                matches!(error, PoolError::Exhausted { .. }) && !works,
                "{error}"
            ),
        }
    }
}

/// Deallocated by this process or another, whether the check would have succeeded or not.
#[tokio::test]
async fn berth_15_6_a_deallocation_ends_the_check_and_no_request_gets_the_vm() {
    for (elsewhere, works) in [(false, true), (false, false), (true, true), (true, false)] {
        let bench = Bench::new();
        let (fleet, other) = (
            bench.process(&[TWO]).await,
            bench.process(&[TWO, OTHER]).await,
        );
        for ip in ["10.0.0.1", "10.0.0.2"] {
            bench.vms.hang(ip);
        }
        let first = allocate(&fleet, "a");
        let checked = being_checked(&fleet, "a").await;
        let by = if elsewhere { &other } else { &fleet };
        let returned = by.deallocate(None, "a", false).await.unwrap();
        assert_eq!(returned, Returned::Quarantined);
        if !works {
            bench.vms.refuse_logins(&checked);
        }
        for ip in ["10.0.0.1", "10.0.0.2"] {
            bench.vms.go_on(ip);
        }
        let error = first.await.unwrap().unwrap_err();
        assert!(
            matches!(error, PoolError::Deallocated(_)),
            "{elsewhere} {works}: {error}"
        );
        until(&fleet, (2, 0, 0)).await;
        assert_eq!(bench.vms.reboots(&checked), 1, "free only after a reboot");
        assert_eq!(
            fleet.list(None).await.unwrap(),
            [],
            "nothing is kept for an ID that is gone"
        );
    }
}

#[tokio::test]
async fn a_deallocation_by_force_ends_the_check_too() {
    let bench = Bench::new();
    let fleet = bench.process(&[ONE]).await;
    bench.vms.hang("10.0.0.1");
    let first = allocate(&fleet, "a");
    being_checked(&fleet, "a").await;
    let returned = fleet.deallocate(None, "a", true).await.unwrap();
    assert_eq!(returned, Returned::Released);
    // Another pod has the VM before the first request notices.
    let second = allocate(&fleet, "b");
    bench.vms.go_on("10.0.0.1");
    let error = first.await.unwrap().unwrap_err();
    assert!(matches!(error, PoolError::Deallocated(_)), "{error}");
    second.await.unwrap().unwrap();
    until(&fleet, (0, 1, 0)).await;
    assert_eq!(bench.vms.reboots("10.0.0.1"), 0);
}

/// A process that was killed in a check: the next one releases the VM, and the first, should it still run, does
/// nothing.
#[tokio::test]
async fn a_check_that_was_cut_off_is_undone_at_the_next_start() {
    let bench = Bench::new();
    let dead = bench.process(&[TWO]).await;
    for ip in ["10.0.0.1", "10.0.0.2"] {
        bench.vms.hang(ip);
    }
    let first = allocate(&dead, "a");
    being_checked(&dead, "a").await;
    let reborn = bench.process(&[TWO]).await;
    // A recovery on request while checks are under way leaves them alone.
    let asked = reborn.recover(None, true).await.unwrap().remove(0);
    assert_eq!((asked.undone, asked.taken_back), (0, 0));
    let recovered = reborn
        .recover_all(Recovery::AtStart)
        .await
        .unwrap()
        .remove(0);
    assert_eq!(recovered.undone, 1);
    until(&reborn, (2, 0, 0)).await;
    for ip in ["10.0.0.1", "10.0.0.2"] {
        bench.vms.go_on(ip);
    }
    first.await.unwrap().unwrap_err();
    assert_eq!(reborn.list(None).await.unwrap(), []);
    let again = allocate(&reborn, "a").await.unwrap().unwrap();
    assert_eq!(reborn.by_id(None, "a").await.unwrap(), again);
}

/// A node that died in a check and never comes back: a later request for the ID undoes it, and so does every other
/// node when the check has expired.
#[tokio::test]
async fn a_check_whose_time_is_over_is_undone_by_others() {
    for asks in [true, false] {
        let bench = Arc::new(Bench::new());
        bench.vms.hang("10.0.0.1");
        let killed = tokio::runtime::Builder::new_multi_thread();
        let killed = { killed }.enable_all().worker_threads(1).build().unwrap();
        let dead = Arc::clone(&bench);
        killed.spawn(async move {
            let fleet = dead.process(&[ONE, ("VM_ALLOCATE_TIMEOUT", "1s")]).await;
            fleet.allocate(None, applicant("a")).await
        });
        let other = bench.process(&[ONE, OTHER]).await;
        being_checked(&other, "a").await;
        killed.shutdown_background();
        bench.vms.go_on("10.0.0.1");
        if asks {
            let got = allocate(&other, "a").await.unwrap();
            assert_eq!(got.unwrap().node_name, "other");
        } else {
            for _ in 0..600 {
                other.maintain().await.unwrap();
                if other.list(None).await.unwrap().is_empty() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            until(&other, (1, 0, 0)).await;
        }
        assert_eq!(bench.vms.reboots("10.0.0.1"), 0, "it was never used");
    }
}

/// Three VMs that accept a connection and then hang: the answer comes when the allocation's own time is over, not
/// after the sum of theirs, and nothing stays allocated.
#[tokio::test]
async fn berth_15_11_hung_vms_do_not_hold_up_an_allocation() {
    let bench = Bench::new();
    let env = [
        ("VM_POOL_IPS", "10.0.0.1-10.0.0.3"),
        ("VM_ALLOCATE_TIMEOUT", "400ms"),
    ];
    let fleet = bench.process(&env).await;
    for ip in ["10.0.0.1", "10.0.0.2", "10.0.0.3"] {
        bench.vms.hang(ip);
    }
    let outcome = tokio::time::timeout(Duration::from_secs(120), allocate(&fleet, "a")).await;
    let error = outcome.expect("it never ends").unwrap().unwrap_err();
    assert!(
        matches!(
            error,
            PoolError::TooLate { .. } | PoolError::Exhausted { .. }
        ),
        "{error}"
    );
    assert!(
        error.to_string().contains("do not answer (10.0.0."),
        "{error}"
    );
    until(&fleet, (3, 0, 0)).await;
}

#[tokio::test]
async fn berth_15_11_a_vm_that_is_not_ready_is_reported_as_what_it_is() {
    let bench = Bench::new();
    let fleet = bench.process(&[("VM_POOL_IPS", "10.0.0.1-10.0.0.4")]).await;
    bench.vms.change_host_key("10.0.0.1");
    bench.vms.write_user_data("10.0.0.2");
    bench.vms.refuse_logins("10.0.0.3");
    bench.vms.kill("10.0.0.4");
    let error = allocate(&fleet, "a")
        .await
        .unwrap()
        .unwrap_err()
        .to_string();
    for text in [
        "1 VMs do not answer (10.0.0.4)",
        "1 VMs show a host key that is not allowed (10.0.0.1)",
        "1 VMs refuse the login (10.0.0.3)",
        "1 VMs still have user data of another pod (10.0.0.2)",
    ] {
        assert!(error.contains(text), "{error}");
    }
    let status = fleet.status(None).await.unwrap().remove(0);
    let ip = |text: &str| -> std::net::IpAddr { text.parse().unwrap() };
    assert_eq!(status.untrusted, [ip("10.0.0.1")]);
    assert_eq!(status.occupied, [ip("10.0.0.2")]);
    assert_eq!(status.locked, [ip("10.0.0.3")]);
    assert_eq!(status.silent, [ip("10.0.0.4")]);
    assert_eq!((status.available, status.in_use), (4, 0));
}
