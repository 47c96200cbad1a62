//! The front on a ledger in memory, with VMs that do what the test says: every order of failures,
//! without waiting for it. Real ledgers and real SSH servers have tests of their own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod script;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use berth_core::{Address, Rendezvous};
use berth_ledger::{MemoryLedger, SharedLedger};
use berth_vms::settings::{PoolSettings, Readiness, Settings};
use berth_vms::{Allocation, Applicant, Fleet, PoolError, Quarantine, Returned, Store};
use script::{ScriptedVms, settings};

struct Bench {
    fleet: Fleet,
    vms: Arc<ScriptedVms>,
    ledger: SharedLedger,
}

impl Bench {
    async fn new(env: &[(&str, &str)]) -> Self {
        Self::on(
            Arc::new(MemoryLedger::new()),
            Arc::default(),
            &settings(env),
        )
        .await
    }

    async fn on(ledger: SharedLedger, vms: Arc<ScriptedVms>, settings: &Settings) -> Self {
        let store = Store::Local(Arc::clone(&ledger));
        let fleet = Fleet::new(
            settings,
            store,
            vms.clone(),
            Default::default(),
            Default::default(),
        );
        fleet.resize(&settings.pools).await.unwrap();
        Self { fleet, vms, ledger }
    }

    async fn allocate(&self, id: &str) -> Result<Allocation, PoolError> {
        self.fleet.allocate(None, applicant(id)).await
    }

    async fn ip(&self, id: &str) -> String {
        self.allocate(id).await.unwrap().ip.to_string()
    }

    /// Waits until this many cleanups of the allocation's VM have failed.
    async fn failed_cleanup(&self, id: &str, tries: u32) -> Quarantine {
        loop {
            let allocation = self.fleet.by_id(None, id).await.unwrap();
            match allocation.quarantine {
                Some(quarantine) if quarantine.tries >= tries => return quarantine,
                _ => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    }

    /// Waits until the pool has this many VMs in (available, in use, quarantined).
    async fn until(&self, counts: (usize, usize, usize)) {
        for _ in 0..400 {
            let status = self.fleet.status(None).await.unwrap().remove(0);
            if (status.available, status.in_use, status.quarantined) == counts {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!(
            "{:?} is not {counts:?}",
            self.fleet.status(None).await.unwrap()
        );
    }
}

fn applicant(id: &str) -> Applicant {
    Applicant {
        allocation_id: id.into(),
        pod_name: "nginx".into(),
        pod_namespace: "default".into(),
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

const SIX: (&str, &str) = ("VM_POOL_IPS", "192.168.3.10-192.168.3.15");

#[tokio::test]
async fn the_hash_chooses_what_live_pools_choose() {
    let bench = Bench::new(&[SIX]).await;
    for (id, last) in [
        ("pod-1", 13),
        ("pod-2", 12),
        ("pod-3", 11),
        ("pod-4", 15),
        ("pod-5", 10),
    ] {
        assert_eq!(bench.ip(id).await, format!("192.168.3.{last}"), "{id}");
    }
    let two = Bench::new(&[("VM_POOL_IPS", "192.168.1.10,192.168.1.11")]).await;
    assert_eq!(two.ip("test-allocation-1").await, "192.168.1.10");
    assert_eq!(two.ip("test-allocation-2").await, "192.168.1.11");
    let exhausted = two.allocate("test-allocation-3").await.unwrap_err();
    assert_eq!(exhausted.to_string(), "no available IPs in pool");
}

#[tokio::test]
async fn the_same_id_gets_the_same_vm_and_releases_it_once() {
    let bench = Bench::new(&[SIX, ("VM_CLEANUP", "false")]).await;
    let first = bench.allocate("a").await.unwrap();
    let again = bench.allocate("a").await.unwrap();
    assert_eq!(first, again);
    assert_eq!(
        (first.node_name.as_str(), first.pod_namespace.as_str()),
        ("worker", "default")
    );
    assert_eq!(bench.fleet.by_id(None, "a").await.unwrap(), first);
    assert_eq!(bench.fleet.by_ip(first.ip).await.unwrap(), first);
    let all = bench.fleet.list(None).await.unwrap();
    assert_eq!(all, std::slice::from_ref(&first));
    assert_eq!(
        bench.fleet.deallocate(None, "a", false).await.unwrap(),
        Returned::Released
    );
    assert_eq!(
        bench.fleet.deallocate(None, "a", false).await.unwrap(),
        Returned::Nothing
    );
    assert_eq!(
        bench.fleet.deallocate(None, "never", false).await.unwrap(),
        Returned::Nothing
    );
    assert!(matches!(
        bench.fleet.by_ip(first.ip).await,
        Err(PoolError::UnknownIp(_))
    ));
}

#[tokio::test]
async fn many_at_once_get_different_vms() {
    let bench = Bench::new(&[("VM_POOL_IPS", "10.0.0.1-10.0.0.50")]).await;
    let ids: Vec<String> = (0..60).map(|n| format!("pod-{n}")).collect();
    let got = futures::future::join_all(ids.iter().map(|id| bench.allocate(id))).await;
    let (won, lost): (Vec<_>, Vec<_>) = got.into_iter().partition(Result::is_ok);
    let ips: std::collections::BTreeSet<IpAddr> = won.into_iter().map(|a| a.unwrap().ip).collect();
    assert_eq!((ips.len(), lost.len()), (50, 10));
    assert!(
        lost.iter()
            .all(|e| matches!(e, Err(PoolError::Exhausted { .. })))
    );
}

#[tokio::test]
async fn a_dead_vm_is_passed_over() {
    let bench = Bench::new(&[SIX]).await;
    bench.vms.kill("192.168.3.13");
    // The hash selects .13, which is dead: the next choice is among the others.
    let got = bench.ip("pod-1").await;
    assert_ne!(got, "192.168.3.13");
    bench.until((5, 1, 0)).await;
    let status = bench.fleet.status(None).await.unwrap().remove(0);
    assert_eq!(status.silent, [ip("192.168.3.13")]);
    // It is asked once, not again and again.
    for n in 0..3 {
        bench.ip(&format!("other-{n}")).await;
    }
    assert_eq!(bench.vms.asked("192.168.3.13"), 1);
    bench.ip("other-3").await;
    let error = bench.allocate("one-too-many").await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "no available IPs in pool: 1 VMs do not answer (192.168.3.13)"
    );
}

#[tokio::test]
async fn a_dead_vm_gets_another_chance_after_its_silence() {
    let bench = Bench::new(&[("VM_POOL_IPS", "10.0.0.1"), ("VM_DEAD_FOR", "1ms")]).await;
    bench.vms.kill("10.0.0.1");
    for _ in 0..3 {
        assert!(matches!(
            bench.allocate("a").await,
            Err(PoolError::Exhausted { .. })
        ));
    }
    bench.vms.revive("10.0.0.1");
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(bench.ip("a").await, "10.0.0.1");
}

#[tokio::test]
async fn a_deallocated_vm_is_free_only_after_its_reboot() {
    let bench = Bench::new(&[("VM_POOL_IPS", "10.0.0.1")]).await;
    bench.ip("a").await;
    bench.vms.hold_down("10.0.0.1");
    assert_eq!(
        bench.fleet.deallocate(None, "a", false).await.unwrap(),
        Returned::Quarantined
    );
    bench.until((0, 0, 1)).await;
    // Neither another nor the same ID gets it meanwhile.
    assert!(matches!(
        bench.allocate("b").await,
        Err(PoolError::Exhausted { .. })
    ));
    assert!(matches!(
        bench.allocate("a").await,
        Err(PoolError::BeingCleaned { .. })
    ));
    assert_eq!(
        bench.fleet.deallocate(None, "a", false).await.unwrap(),
        Returned::Quarantined
    );
    bench.vms.let_up("10.0.0.1");
    bench.until((1, 0, 0)).await;
    assert_eq!(bench.vms.reboots("10.0.0.1"), 1);
    assert_eq!(bench.ip("b").await, "10.0.0.1");
}

#[tokio::test]
async fn a_failed_cleanup_keeps_the_vm_shows_why_and_is_tried_again() {
    let env = [
        ("VM_POOL_IPS", "10.0.0.1"),
        ("VM_CLEANUP_RETRY", "20ms"),
        ("VM_READINESS", "off"),
    ];
    let bench = Bench::new(&env).await;
    bench.ip("a").await;
    bench.vms.kill("10.0.0.1");
    bench.fleet.deallocate(None, "a", false).await.unwrap();
    let shown = bench.failed_cleanup("a", 2).await;
    assert_eq!(shown.by, "worker");
    assert!(
        shown.error.unwrap().contains("does not answer"),
        "why is shown"
    );
    bench.until((0, 0, 1)).await;
    bench.vms.revive("10.0.0.1");
    bench.until((1, 0, 0)).await;
}

#[tokio::test]
async fn a_vm_that_ignores_its_reboot_is_not_allocated_again() {
    let env = [
        ("VM_POOL_IPS", "10.0.0.1"),
        ("VM_CLEANUP_LIMIT", "30ms"),
        ("VM_CLEANUP_WAIT", "1ms"),
        ("VM_CLEANUP_RETRY", "10ms"),
    ];
    let bench = Bench::new(&env).await;
    bench.vms.ignore_reboots("10.0.0.1");
    bench.ip("a").await;
    bench.fleet.deallocate(None, "a", false).await.unwrap();
    let shown = bench.failed_cleanup("a", 1).await;
    assert!(shown.error.unwrap().contains("was not rebooted"));
    bench.until((0, 0, 1)).await;
    // An operator who knows better can force it.
    assert_eq!(
        bench.fleet.deallocate(None, "a", true).await.unwrap(),
        Returned::Released
    );
    bench.until((1, 0, 0)).await;
}

#[tokio::test]
async fn recovery_takes_back_this_nodes_vms_and_no_others() {
    let ledger: SharedLedger = Arc::new(MemoryLedger::new());
    let vms: Arc<ScriptedVms> = Arc::default();
    let mine = Bench::on(ledger.clone(), vms.clone(), &settings(&[SIX])).await;
    let other = Bench::on(
        ledger.clone(),
        vms.clone(),
        &settings(&[SIX, ("NODE_NAME", "other")]),
    )
    .await;
    mine.ip("mine-1").await;
    mine.ip("mine-2").await;
    let kept = other.ip("theirs").await;

    // The same node, restarted.
    let reborn = Bench::on(ledger, vms.clone(), &settings(&[SIX])).await;
    let careful = reborn.fleet.recover(None, false).await.unwrap().remove(0);
    assert_eq!((careful.taken_back, careful.resumed), (0, 0));
    let recovered = reborn.fleet.recover(None, true).await.unwrap().remove(0);
    assert_eq!(recovered.taken_back, 2);
    reborn.until((5, 1, 0)).await;
    assert_eq!(vms.reboots(&kept), 0);
    assert_eq!(
        reborn
            .fleet
            .by_id(None, "theirs")
            .await
            .unwrap()
            .ip
            .to_string(),
        kept
    );
}

#[tokio::test]
async fn a_cleanup_that_was_cut_off_is_resumed() {
    let ledger: SharedLedger = Arc::new(MemoryLedger::new());
    let vms: Arc<ScriptedVms> = Arc::default();
    let one = [("VM_POOL_IPS", "10.0.0.1")];
    let bench = Bench::on(ledger.clone(), vms.clone(), &settings(&one)).await;
    bench.ip("a").await;
    vms.hold_down("10.0.0.1");
    bench.fleet.deallocate(None, "a", false).await.unwrap();
    bench.until((0, 0, 1)).await;
    let end = tokio_util::sync::CancellationToken::new();
    end.cancel();
    bench.fleet.clone().run(Default::default(), end).await;
    drop(bench);
    vms.let_up("10.0.0.1");

    let reborn = Bench::on(ledger, vms.clone(), &settings(&one)).await;
    reborn.until((0, 0, 1)).await;
    let recovered = reborn.fleet.recover(None, true).await.unwrap().remove(0);
    assert_eq!((recovered.taken_back, recovered.resumed), (0, 1));
    reborn.until((1, 0, 0)).await;
}

/// A node that quarantined a VM and never comes back: a deallocation at another node takes the cleanup over, but not
/// as long as the first node may be at work.
#[tokio::test]
async fn berth_15_6_a_cleanup_that_its_node_abandoned_is_taken_over() {
    let ledger: SharedLedger = Arc::new(MemoryLedger::new());
    let vms: Arc<ScriptedVms> = Arc::default();
    let quick = |node: &str| {
        let env = [
            ("VM_POOL_IPS", "10.0.0.1"),
            ("NODE_NAME", node),
            ("VM_CLEANUP_LIMIT", "800ms"),
        ];
        let mut settings = settings(&env);
        if let Some(cleanup) = &mut settings.cleanup {
            cleanup.timing.pause = Duration::from_millis(5);
        }
        settings
    };
    let lost = Bench::on(ledger.clone(), vms.clone(), &quick("lost")).await;
    lost.ip("a").await;
    vms.hold_down("10.0.0.1");
    lost.fleet.deallocate(None, "a", false).await.unwrap();
    while vms.reboots("10.0.0.1") == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let end = tokio_util::sync::CancellationToken::new();
    end.cancel();
    lost.fleet.clone().run(Default::default(), end).await;
    vms.let_up("10.0.0.1");

    let other = Bench::on(ledger, vms.clone(), &quick("worker")).await;
    let deallocate = || other.fleet.deallocate(None, "a", false);
    assert_eq!(deallocate().await.unwrap(), Returned::Quarantined);
    let shown = other.fleet.by_id(None, "a").await.unwrap();
    assert_eq!(shown.quarantine.unwrap().by, "lost", "it may be at work");
    for _ in 0..400 {
        if deallocate().await.unwrap() == Returned::Nothing {
            break;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    other.until((1, 0, 0)).await;
    assert_eq!(vms.reboots("10.0.0.1"), 2, "only a reboot frees it");
}

#[tokio::test]
async fn pools_grow_and_shrink_while_vms_are_in_use() {
    let bench = Bench::new(&[
        ("VM_POOL_IPS", "10.0.0.1,10.0.0.2"),
        ("VM_CLEANUP", "false"),
    ])
    .await;
    let first = bench.allocate("a").await.unwrap();
    bench.ip("b").await;
    assert!(bench.allocate("c").await.is_err());
    let pool = |ips: &[&str]| {
        vec![PoolSettings {
            name: "default".into(),
            ips: ips.iter().map(|text| ip(text)).collect(),
            configmap: "byom-ip-pool-state".into(),
        }]
    };
    bench
        .fleet
        .resize(&pool(&["10.0.0.1", "10.0.0.2", "10.0.0.3"]))
        .await
        .unwrap();
    assert_eq!(bench.ip("c").await, "10.0.0.3");

    // Everything leaves the settings while it is in use.
    bench.fleet.resize(&pool(&["10.0.0.9"])).await.unwrap();
    assert_eq!(
        bench.allocate("a").await.unwrap().ip,
        first.ip,
        "its owner still finds it"
    );
    bench.until((1, 3, 0)).await;
    bench.fleet.deallocate(None, "a", false).await.unwrap();
    bench.until((1, 2, 0)).await;
    assert_eq!(
        bench.ip("d").await,
        "10.0.0.9",
        "a removed VM is not allocated again"
    );
    assert!(bench.allocate("e").await.is_err());
}

#[tokio::test]
async fn a_vm_that_moves_to_another_pool_waits_for_its_owner() {
    let bench = Bench::new(&[
        ("VM_POOL_IPS", "10.0.0.1,10.0.0.2"),
        ("VM_CLEANUP", "false"),
    ])
    .await;
    let pools = |default: &[&str], gpu: &[&str]| -> Vec<PoolSettings> {
        [("default", default), ("gpu", gpu)]
            .map(|(name, ips)| PoolSettings {
                name: name.into(),
                ips: ips.iter().map(|text| ip(text)).collect(),
                configmap: name.into(),
            })
            .into()
    };
    bench
        .fleet
        .resize(&pools(&["10.0.0.1"], &["10.0.0.2"]))
        .await
        .unwrap();
    assert_eq!(bench.ip("a").await, "10.0.0.1");
    bench
        .fleet
        .resize(&pools(&[], &["10.0.0.1", "10.0.0.2"]))
        .await
        .unwrap();
    assert_eq!(bench.fleet.waiting(), [ip("10.0.0.1")]);
    let gpu = bench
        .fleet
        .allocate(Some("gpu"), applicant("b"))
        .await
        .unwrap();
    assert_eq!(gpu.ip, ip("10.0.0.2"));
    assert!(
        bench
            .fleet
            .allocate(Some("gpu"), applicant("c"))
            .await
            .is_err()
    );

    bench.fleet.deallocate(None, "a", false).await.unwrap();
    bench
        .fleet
        .resize(&pools(&[], &["10.0.0.1", "10.0.0.2"]))
        .await
        .unwrap();
    assert_eq!(bench.fleet.waiting(), [] as [IpAddr; 0]);
    let moved = bench
        .fleet
        .allocate(Some("gpu"), applicant("c"))
        .await
        .unwrap();
    assert_eq!((moved.ip, moved.pool.as_str()), (ip("10.0.0.1"), "gpu"));
}

#[tokio::test]
async fn pools_are_chosen_by_name() {
    let bench = Bench::new(&[("VM_POOL_IPS", "10.0.0.1")]).await;
    let error = bench
        .fleet
        .allocate(Some("gpu"), applicant("a"))
        .await
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "there is no pool \"gpu\"; there are default"
    );
}

#[tokio::test]
async fn other_orders_by_setting() {
    let five = ("VM_POOL_IPS", "10.0.0.5,10.0.0.1-10.0.0.4");
    let off = ("VM_CLEANUP", "false");
    let lowest = Bench::new(&[five, off, ("VM_ORDER", "lowest")]).await;
    assert_eq!(lowest.ip("a").await, "10.0.0.1");
    assert_eq!(lowest.ip("b").await, "10.0.0.2");
    lowest.fleet.deallocate(None, "a", false).await.unwrap();
    assert_eq!(lowest.ip("c").await, "10.0.0.1");
}

/// The order reaches the allocation: the first choice among the free VMs, also after others were taken.
#[tokio::test]
async fn rendezvous_allocates_the_first_choice_among_free_vms() {
    let range = ("VM_POOL_IPS", "10.0.0.1-10.0.0.9");
    let env = [range, ("VM_CLEANUP", "false"), ("VM_ORDER", "rendezvous")];
    let bench = Bench::new(&env).await;
    let mut free: Vec<Address> = (1..=9)
        .map(|n| format!("10.0.0.{n}").parse().unwrap())
        .collect();
    for n in 0..9 {
        let id = format!("pod-{n}-8b317899");
        let first = Rendezvous::new(&id).choose(free.iter().copied());
        let first = first.unwrap();
        assert_eq!(bench.ip(&id).await, first.to_string(), "{id}");
        free.retain(|vm| *vm != first);
    }
}

#[tokio::test]
async fn user_data_goes_to_the_vm_of_the_allocation() {
    let bench = Bench::new(&[SIX]).await;
    let allocation = bench.allocate("a").await.unwrap();
    bench
        .fleet
        .put_user_data(None, "a", b"#cloud-config")
        .await
        .unwrap();
    assert_eq!(bench.vms.user_data(allocation.ip), b"#cloud-config");
    let error = bench.fleet.put_user_data(None, "b", b"").await.unwrap_err();
    assert!(matches!(error, PoolError::UnknownAllocation(_)));
}

#[tokio::test]
async fn readiness_is_as_deep_as_the_settings_say() {
    for (readiness, works) in [("off", true), ("tcp", true), ("ssh", false)] {
        let env = [("VM_POOL_IPS", "10.0.0.1"), ("VM_READINESS", readiness)];
        assert_eq!(
            settings(&env).readiness == Readiness::Ssh,
            readiness == "ssh"
        );
        let bench = Bench::new(&env).await;
        bench.vms.refuse_logins("10.0.0.1");
        assert_eq!(bench.allocate("a").await.is_ok(), works, "{readiness}");
        let _ = &bench.ledger;
    }
}
