//! States that others wrote, by hand or by another program, on a real API server: read as intended, repaired, and
//! never the reason why a VM in use is allocated to another pod.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod place;
mod script;

use std::sync::Arc;

use berth_ledger::configmap::{Document, STATE_KEY};
use berth_vms::{PoolError, Recovery, Returned};
use k8s_openapi::api::core::v1::ConfigMap;
use place::{Place, applicant, counts, until};
use script::{ScriptedVms, settings};

#[tokio::test]
async fn states_that_were_written_by_hand() {
    // allocated, available -> after recovery: available, in use, doubled, unparsed.
    let old = r#"{"allocationID":"old-1","ip":"192.168.1.10","nodeName":"other","podName":"old","allocatedAt":"2026-04-23T09:56:00Z"}"#;
    let pool = "192.168.1.10,192.168.1.11,192.168.1.12";
    let cases = [
        // Without podNamespace, with a foreign address in use, unknown and doubled free ones.
        (
            pool,
            format!(
                r#"{{"allocatedIPs":{{"old-1":{old},"foreign":{{"allocationID":"foreign","ip":"10.0.0.1"}}}},
                "availableIPs":["192.168.1.11","10.0.0.2","192.168.1.11"],"version":5}}"#
            ),
            (vec!["192.168.1.11", "192.168.1.12"], 2, 0, 0),
        ),
        // Null maps.
        (
            pool,
            r#"{"allocatedIPs":null,"availableIPs":null,"lastUpdated":null,"version":0}"#.into(),
            (
                vec!["192.168.1.10", "192.168.1.11", "192.168.1.12"],
                0,
                0,
                0,
            ),
        ),
        // Settings changed under a VM in use.
        (
            "192.168.1.10,192.168.1.13,192.168.1.14",
            format!(
                r#"{{"allocatedIPs":{{"old-1":{old}}},"availableIPs":["192.168.1.11","192.168.1.12"],"version":5}}"#
            ),
            (vec!["192.168.1.13", "192.168.1.14"], 1, 0, 0),
        ),
        // Two allocations with one VM, an entry without an address, a VM in use and listed as free.
        (
            pool,
            format!(
                r#"{{"allocatedIPs":{{"old-1":{old},"twin":{{"allocationID":"twin","ip":"192.168.1.10"}},
                "lost":{{"allocationID":"lost","ip":"-"}}}},"availableIPs":["192.168.1.10","192.168.1.12"],"version":5}}"#
            ),
            // What the entry without an address may stand for is held: .11 is mentioned nowhere.
            (vec!["192.168.1.12"], 3, 1, 0),
        ),
        // Addresses and names as Go reads them too.
        (
            "10.9.0.2,10.9.0.3,10.9.0.4",
            r#"{"AllocatedIPs":{"a":{"AllocationID":"a","IP":"::ffff:10.9.0.2","NodeName":"other"}},
                "AvailableIPs":["10.9.0.2","::ffff:10.9.0.3"],"Version":5}"#
                .into(),
            (vec!["10.9.0.3", "10.9.0.4"], 1, 0, 0),
        ),
        // An empty document, and a ConfigMap that was created by hand.
        (
            pool,
            "{}".into(),
            (
                vec!["192.168.1.10", "192.168.1.11", "192.168.1.12"],
                0,
                0,
                0,
            ),
        ),
    ];
    for (pool, text, (available, in_use, doubled, unparsed)) in cases {
        let place = Place::new().await;
        place.write(&text).await;
        let before = Document::decode(&text).unwrap();
        let vms: Arc<ScriptedVms> = Arc::default();
        let fleet = place.fleet(&settings(&[("VM_POOL_IPS", pool)]), vms).await;
        fleet.recover(None, true).await.unwrap();
        let status = fleet.status(None).await.unwrap().remove(0);
        assert_eq!(status.in_use, in_use, "{text}");
        assert_eq!(status.total, available.len() + in_use, "{text}");
        assert_eq!(
            (status.doubled.len(), status.unparsed.len()),
            (doubled, unparsed),
            "{text}"
        );
        let after = place.document().await;
        assert_eq!(after.available, available, "{text}");
        for (id, entry) in &before.allocated {
            let moved = id == "lost";
            assert_eq!(
                after.allocated.get(id) == Some(entry),
                !moved,
                "{id} of {text}"
            );
        }
        let aside: Vec<String> = place.data().await.into_values().collect();
        let lost = |text: &String| text.contains("lost") && text.contains("\"ip\": \"-\"");
        assert_eq!(
            aside.iter().any(lost),
            text.contains("lost"),
            "never destroyed"
        );
        assert!(after.version > before.version, "{text}");
    }
}

#[tokio::test]
async fn the_table_of_the_recovery_rules() {
    let place = Place::new().await;
    place
        .write(
            r#"{"allocatedIPs":{"a":{"allocationID":"a","ip":"192.168.1.10","nodeName":"other"},
            "b":{"allocationID":"b","ip":"10.0.0.1","nodeName":"other"}},
            "availableIPs":["192.168.1.11","10.0.0.2","192.168.1.11"],"version":1}"#,
        )
        .await;
    let env = [
        ("VM_POOL_IPS", "192.168.1.10-192.168.1.12"),
        ("VM_CLEANUP", "false"),
    ];
    let fleet = place
        .fleet(&settings(&env), Arc::<ScriptedVms>::default())
        .await;
    let status = fleet.status(None).await.unwrap().remove(0);
    assert_eq!((status.available, status.in_use, status.total), (2, 2, 4));
    // An address that is no member is not free again when it is deallocated.
    fleet.deallocate(None, "b", false).await.unwrap();
    assert_eq!(
        place.document().await.available,
        ["192.168.1.11", "192.168.1.12"]
    );
}

#[tokio::test]
async fn an_unreadable_state_is_set_aside_and_frees_nothing_unproven() {
    let place = Place::new().await;
    let broken = r#"{"allocatedIPs":{"a":{"allocationID":"a","ip":"10.0.0.1","nodeName":"other"}},"availableIPs":["10.0.0.2"],"#;
    place.write(broken).await;
    let vms: Arc<ScriptedVms> = Arc::default();
    let fleet = place
        .fleet(
            &settings(&[("VM_POOL_IPS", "10.0.0.1-10.0.0.3")]),
            vms.clone(),
        )
        .await;
    let data = place.data().await;
    assert!(
        data.values().any(|text| text == broken),
        "never destroyed: {data:?}"
    );
    assert_eq!(counts(&fleet).await, (1, 2, 0));
    assert_eq!(
        fleet
            .allocate(None, applicant("n"))
            .await
            .unwrap()
            .ip
            .to_string(),
        "10.0.0.2"
    );
    // An unknown VM is freed like every other one: deallocated, rebooted, seen up.
    fleet
        .deallocate(None, "unreadable-10.0.0.3", false)
        .await
        .unwrap();
    until(&fleet, (1, 2, 0)).await;
    assert_eq!(vms.reboots("10.0.0.3"), 1);
}

/// Upstream's write: a stale copy under a fresh version. It erases this node's allocation and drops the fields of a
/// quarantine.
#[tokio::test]
async fn berth_15_10_what_another_program_erases_stays_held_and_is_restored() {
    let place = Place::new().await;
    let vms: Arc<ScriptedVms> = Arc::default();
    let env = [("VM_POOL_IPS", "10.0.0.1-10.0.0.3"), ("VM_ORDER", "lowest")];
    let fleet = place.fleet(&settings(&env), vms.clone()).await;
    let stale = place.data().await[STATE_KEY].clone();
    let mine = fleet.allocate(None, applicant("mine")).await.unwrap();
    let cleaned = fleet.allocate(None, applicant("cleaned")).await.unwrap();
    vms.hold_down(&cleaned.ip.to_string());
    fleet.deallocate(None, "cleaned", false).await.unwrap();
    let before = place.document().await;

    place.overwrite(&stale).await;
    // The address is the lowest and free in the state, but it is not allocated.
    let next = fleet.allocate(None, applicant("next")).await.unwrap();
    assert_eq!(next.ip.to_string(), "10.0.0.3");
    let error = fleet.allocate(None, applicant("more")).await.unwrap_err();
    assert!(matches!(error, PoolError::Exhausted { .. }), "{error}");
    let after = place.document().await;
    assert_eq!(after.allocated["mine"], before.allocated["mine"]);
    assert_eq!(after.allocated["cleaned"], before.allocated["cleaned"]);
    assert!(after.version > before.version, "it grows again");
    assert_eq!(fleet.by_id(None, "mine").await.unwrap(), mine);

    // The same without allocations: the periodic read restores it.
    place.overwrite(&stale).await;
    fleet.maintain().await.unwrap();
    assert_eq!(place.document().await.allocated.len(), 3);

    assert_eq!(place.counted("berth_vm_foreign_writes_total"), 2);
    assert_eq!(
        place.counted("berth_vm_restored_total"),
        5,
        "two, then three"
    );

    // Only the fields: a VM that is not clean must not seem to be in use.
    let mut stripped = place.document().await;
    for entry in stripped.allocated.values_mut() {
        entry.others.clear();
    }
    place.overwrite(&stripped.encode().unwrap()).await;
    let shown = fleet.by_id(None, "cleaned").await.unwrap();
    assert!(shown.quarantine.is_some(), "{shown:?}");
    vms.let_up(&cleaned.ip.to_string());
    until(&fleet, (1, 2, 0)).await;
    assert_eq!(vms.reboots(&cleaned.ip.to_string()), 1);
}

/// What other Berth processes release is released: no second process puts it back.
#[tokio::test]
async fn what_another_agent_releases_is_not_restored() {
    let place = Place::new().await;
    let vms: Arc<ScriptedVms> = Arc::default();
    let env = [("VM_POOL_IPS", "10.0.0.1-10.0.0.3")];
    let fleet = place.fleet(&settings(&env), vms.clone()).await;
    let other = settings(&[env[0], ("NODE_NAME", "other")]);
    let other = place.fleet(&other, vms).await;
    fleet.allocate(None, applicant("a")).await.unwrap();
    other.deallocate(None, "a", false).await.unwrap();
    until(&other, (3, 0, 0)).await;
    fleet.maintain().await.unwrap();
    assert_eq!(counts(&fleet).await, (3, 0, 0));
    assert_eq!(place.document().await.allocated.len(), 0);
}

/// Broken under a running agent: the next allocation repairs it, once, and goes on.
#[tokio::test]
async fn berth_15_12_a_state_that_breaks_under_a_running_agent_is_repaired_by_the_next_allocation()
{
    let place = Place::new().await;
    let vms: Arc<ScriptedVms> = Arc::default();
    let env = [("VM_POOL_IPS", "10.0.0.1-10.0.0.3")];
    let fleet = place.fleet(&settings(&env), vms).await;
    let mine = fleet.allocate(None, applicant("mine")).await.unwrap();
    let broken = format!(
        r#"{{"allocatedIPs":{{"mine":{{"ip":5}}}},"availableIPs":["{}"]"#,
        mine.ip
    );
    place.overwrite(&broken).await;
    let error = fleet.allocate(None, applicant("a")).await.unwrap_err();
    // The free VMs of the text are this node's own, and it lists no others.
    assert!(matches!(error, PoolError::Exhausted { .. }), "{error}");
    let document = place.document().await;
    assert_eq!(document.allocated["mine"].ip, mine.ip.to_string());
    assert_eq!(document.allocated.len(), 3);
    fleet.maintain().await.unwrap();
    assert_eq!(
        place.counted("berth_vm_unparsed_total"),
        2,
        "VMs held because of it"
    );
    let data = place.data().await;
    assert!(
        data.values().any(|text| *text == broken),
        "never destroyed: {data:?}"
    );

    let free = mine.ip.to_string();
    let free = if free == "10.0.0.3" {
        "10.0.0.2"
    } else {
        "10.0.0.3"
    };
    place
        .overwrite(&format!(r#"{{"availableIPs":["{free}"],"#))
        .await;
    let got = fleet.allocate(None, applicant("b")).await.unwrap();
    assert_eq!(got.ip.to_string(), free);
    fleet.allocate(None, applicant("mine")).await.unwrap();
}

/// IDs that no new allocation could have.
#[tokio::test]
async fn berth_15_11_old_ids_that_are_invalid_now_can_be_deallocated() {
    let place = Place::new().await;
    let odd = [
        "x".repeat(500),
        "a/../b".into(),
        "unreadable-10.0.0.3".into(),
    ];
    let entry = |(n, id): (usize, &String)| {
        let ip = format!("10.0.0.{}", n + 1);
        (
            id.clone(),
            serde_json::json!({ "allocationID": id, "ip": ip }),
        )
    };
    let entries: serde_json::Map<_, _> = odd.iter().enumerate().map(entry).collect();
    let state = serde_json::json!({ "allocatedIPs": entries, "version": 1 });
    place.write(&state.to_string()).await;
    let vms: Arc<ScriptedVms> = Arc::default();
    let env = [("VM_POOL_IPS", "10.0.0.1-10.0.0.3")];
    let fleet = place.fleet(&settings(&env), vms).await;
    for id in &odd {
        let refused = fleet.allocate(None, applicant(id)).await.unwrap_err();
        assert!(matches!(refused, PoolError::Invalid { .. }), "{refused}");
        let returned = fleet.deallocate(None, id, false).await.unwrap();
        assert_eq!(returned, Returned::Quarantined);
    }
    until(&fleet, (3, 0, 0)).await;
}

#[tokio::test]
async fn berth_15_11_an_unreadable_state_without_room_is_kept_in_a_second_configmap() {
    let place = Place::new().await;
    let broken = format!("{{{}", "x".repeat(700_000));
    place.write(&broken).await;
    let vms: Arc<ScriptedVms> = Arc::default();
    let env = [("VM_POOL_IPS", "10.0.0.1-10.0.0.3")];
    // Beside this and the text there is no room for a new document.
    place.fill("x".repeat(1_048_576 - broken.len() - 200)).await;
    let fleet = place.fleet(&settings(&env), vms).await;
    assert_eq!(
        counts(&fleet).await,
        (0, 3, 0),
        "nothing is free that was not listed"
    );
    let all = place.sheet.api.list(&Default::default()).await.unwrap();
    let second = |item: &&ConfigMap| {
        let name = item.metadata.name.as_deref().unwrap();
        name.ends_with("-unreadable")
    };
    let aside: Vec<_> = all.items.iter().filter(second).collect();
    assert_eq!(aside.len(), 1);
    let kept: Vec<_> = aside[0].data.as_ref().unwrap().values().collect();
    assert_eq!(kept, [&broken]);
    assert!(!place.data().await.values().any(|text| *text == broken));
}

#[tokio::test]
async fn a_full_state_is_refused_before_it_is_written() {
    let place = Place::new().await;
    let filler = "x".repeat(1_048_000);
    place.write("{}").await;
    place.fill(filler).await;
    let env = [
        ("VM_POOL_IPS", "10.0.0.1-10.0.0.3"),
        ("OPERATION_TIMEOUT", "2s"),
    ];
    let fleet = place
        .fleet(&settings(&env), Arc::<ScriptedVms>::default())
        .await;
    let before = place.data().await;
    let first = fleet.allocate(None, applicant("a")).await;
    let error = match first {
        Err(error) => error,
        Ok(_) => fleet
            .allocate(None, applicant(&"b".repeat(250)))
            .await
            .unwrap_err(),
    };
    assert!(error.to_string().contains("limit of 1048576"), "{error}");
    assert!(error.to_string().contains("several pools"), "{error}");
    assert_eq!(place.data().await["filler"], before["filler"]);
}

/// An allocation leaves room for its own quarantine.
#[tokio::test]
async fn berth_15_11_a_full_state_can_still_quarantine_what_it_holds() {
    let place = Place::new().await;
    let vms: Arc<ScriptedVms> = Arc::default();
    let list = "10.0.0.1-10.0.0.99";
    let env = [("VM_POOL_IPS", list), ("VM_ORDER", "lowest")];
    let fleet = place.fleet(&settings(&env), vms.clone()).await;
    let used: usize = place.data().await.values().map(String::len).sum();
    let filler = "x".repeat(1024 * 1024 - used - 12_000);
    place.fill(filler).await;
    let mut allocated = Vec::new();
    let error = loop {
        let id = format!("pod-{:020}", allocated.len());
        match fleet.allocate(None, applicant(&id)).await {
            Ok(_) => allocated.push(id),
            Err(error) => break error,
        }
    };
    assert!(error.to_string().contains("limit of 1048576"), "{error}");
    assert!(!allocated.is_empty());
    for n in 1..=99 {
        vms.ignore_reboots(&format!("10.0.0.{n}"));
    }
    // All of them at once, and none becomes clean meanwhile.
    for id in &allocated {
        let returned = fleet.deallocate(None, id, false).await.unwrap();
        assert_eq!(returned, Returned::Quarantined);
    }
    until(&fleet, (99 - allocated.len(), 0, allocated.len())).await;
}

/// 0 is none: a conflict is returned to the caller.
#[tokio::test]
async fn berth_15_11_without_retries_a_conflict_is_the_answer() {
    let place = Place::new().await;
    let env = [
        ("VM_POOL_IPS", "10.0.0.1-10.0.0.99"),
        ("MAX_RETRIES", "0"),
        ("VM_READINESS", "off"),
    ];
    let mut fleets = Vec::new();
    for _ in 0..4 {
        fleets.push(
            place
                .fleet(&settings(&env), Arc::<ScriptedVms>::default())
                .await,
        );
    }
    // Without a concurrent writer nothing fails: also after others wrote.
    for (n, fleet) in fleets.iter().enumerate() {
        fleet
            .allocate(None, applicant(&format!("alone-{n}")))
            .await
            .unwrap();
    }
    let mut conflicts = 0;
    for round in 0..50 {
        let ids: Vec<String> = (0..fleets.len()).map(|n| format!("r{round}-{n}")).collect();
        let wishes = fleets.iter().zip(&ids);
        let wishes = wishes.map(|(fleet, id)| fleet.allocate(None, applicant(id)));
        for outcome in futures::future::join_all(wishes).await {
            match outcome {
                Ok(_) => {}
                Err(PoolError::Exhausted { .. }) => return,
                Err(error) => {
                    assert!(error.to_string().contains("another writer"), "{error}");
                    conflicts += 1;
                }
            }
        }
        if conflicts > 0 {
            return;
        }
    }
    panic!("four writers never met in 50 rounds");
}

/// A restart resumes what was started and takes no pod's VM; an unknown boot is shown.
#[tokio::test]
async fn a_restart_takes_no_vm_from_a_running_pod() {
    let place = Place::new().await;
    let vms: Arc<ScriptedVms> = Arc::default();
    let env = [("VM_POOL_IPS", "10.0.0.1-10.0.0.3"), ("VM_ORDER", "lowest")];
    let fleet = place.fleet(&settings(&env), vms.clone()).await;
    let kept = fleet.allocate(None, applicant("kept")).await.unwrap();
    for (recovery, taken_back, shown) in [
        (Recovery::AtStart, 0, 0),
        (Recovery::UnknownBoot, 0, 1),
        (Recovery::AfterReboot, 1, 0),
    ] {
        let reborn = place.fleet(&settings(&env), vms.clone()).await;
        let recovered = reborn.recover_all(recovery).await.unwrap().remove(0);
        assert_eq!(recovered.taken_back, taken_back, "{recovery:?}");
        let status = reborn.status(None).await.unwrap().remove(0);
        assert_eq!(status.not_taken_back.len(), shown, "{recovery:?}");
        assert!(vms.reboots(&kept.ip.to_string()) <= taken_back);
        if shown > 0 {
            assert_eq!(status.not_taken_back, [kept.ip]);
            reborn.maintain().await.unwrap();
            assert_eq!(
                reborn.status(None).await.unwrap()[0].not_taken_back,
                [kept.ip]
            );
        }
    }
    until(&fleet, (3, 0, 0)).await;
    assert_eq!(vms.reboots(&kept.ip.to_string()), 1);
}

/// One entry that can't be parsed in a state that can be read: it is kept aside, counted, and frees nothing.
#[tokio::test]
async fn berth_15_12_a_single_unreadable_entry_is_counted_and_kept() {
    let place = Place::new().await;
    let env = [("VM_POOL_IPS", "10.0.0.1-10.0.0.3")];
    let vms: Arc<ScriptedVms> = Arc::default();
    let fleet = place.fleet(&settings(&env), vms).await;
    assert_eq!(place.counted("berth_vm_unparsed_total"), 0);
    // .2 is mentioned nowhere: it may be what the entry stands for.
    let strange = r#"{"allocatedIPs":{"lost":{"allocationID":"lost","ip":"ten.zero"}},
        "availableIPs":["10.0.0.1","10.0.0.3"],"version":9}"#;
    place.overwrite(strange).await;
    for id in ["a", "b"] {
        let allocated = fleet.allocate(None, applicant(id)).await.unwrap();
        assert_ne!(allocated.ip.to_string(), "10.0.0.2");
    }
    let error = fleet.allocate(None, applicant("c")).await.unwrap_err();
    assert!(matches!(error, PoolError::Exhausted { .. }), "{error}");
    fleet.maintain().await.unwrap();
    assert!(place.counted("berth_vm_unparsed_total") >= 1);
    let data = place.data().await;
    let aside = data.iter().filter(|(key, _)| *key != STATE_KEY);
    let aside: Vec<&String> = aside.map(|(_, text)| text).collect();
    assert!(
        aside.iter().any(|text| text.contains("ten.zero")),
        "{data:?}"
    );
}

/// VMs with IPv6 addresses, however the state spells them.
#[tokio::test]
async fn a_pool_of_ipv6_addresses() {
    let place = Place::new().await;
    place
        .write(
            r#"{"allocatedIPs":{"old":{"allocationID":"old","ip":"FD00:0:0::2","nodeName":"other"}},
            "availableIPs":["fd00:0::1"],"version":3}"#,
        )
        .await;
    for count in ["1", "3"] {
        let env = [
            ("VM_POOL_IPS", "fd00::1-fd00::6"),
            ("POOL_CONFIGMAP_COUNT", count),
        ];
        let vms: Arc<ScriptedVms> = Arc::default();
        let fleet = place.fleet(&settings(&env), vms).await;
        assert_eq!(counts(&fleet).await, (5, 1, 0), "{count}");
        let mut allocated = std::collections::BTreeSet::new();
        for n in 0..5 {
            let id = format!("pod-{n}");
            let allocation = fleet.allocate(None, applicant(&id)).await.unwrap();
            assert_eq!(fleet.by_ip(allocation.ip).await.unwrap(), allocation);
            assert!(allocated.insert(allocation.ip.to_string()));
        }
        assert!(!allocated.contains("fd00::2"), "it is in use");
        let error = fleet.allocate(None, applicant("more")).await.unwrap_err();
        assert!(matches!(error, PoolError::Exhausted { .. }), "{error}");
        for n in 0..5 {
            let id = format!("pod-{n}");
            let returned = fleet.deallocate(None, &id, false).await.unwrap();
            assert_eq!(returned, Returned::Quarantined);
        }
        until(&fleet, (5, 1, 0)).await;
    }
}
