//! One pool over several ConfigMaps, on a real API server: allocations spill over and are found again, also after a
//! change of the number of ConfigMaps; agents that disagree about the number refuse requests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod place;
mod script;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_vms::settings::Settings;
use berth_vms::{Fleet, PoolError, Recovery, Returned};
use kube::api::{Patch, PatchParams};
use place::{Place, STATE, applicant, counts, until};
use script::{ScriptedVms, settings};

const VMS: usize = 30;

fn spread(count: &str) -> Settings {
    settings(&[
        ("VM_POOL_IPS", "10.0.0.1-10.0.0.30"),
        ("POOL_CONFIGMAP_COUNT", count),
    ])
}

#[tokio::test]
async fn an_id_that_spilled_over_keeps_its_vm_and_releases_it() {
    let (place, vms) = (Place::new().await, Arc::<ScriptedVms>::default());
    let one = place.fleet(&spread("3"), vms.clone()).await;
    let two = place.fleet(&spread("3"), vms.clone()).await;
    let mut allocated: Vec<(String, IpAddr)> = Vec::new();
    for n in 0..VMS {
        let (id, fleet) = (format!("pod-{n}"), if n % 2 == 0 { &one } else { &two });
        let allocation = fleet.allocate(None, applicant(&id)).await.unwrap();
        assert_eq!(allocation.pool, "default");
        allocated.push((id, allocation.ip));
    }
    let ips: BTreeSet<IpAddr> = allocated.iter().map(|(_, ip)| *ip).collect();
    assert_eq!(ips.len(), VMS, "none twice, and all of them");
    let error = two.allocate(None, applicant("more")).await.unwrap_err();
    assert!(matches!(error, PoolError::Exhausted { .. }), "{error}");
    assert_eq!(counts(&two).await, (0, VMS, 0));

    // Room everywhere: no ID moves because of it. A third process has no memory of the others.
    for (id, _) in allocated.iter().step_by(3) {
        let returned = one.deallocate(None, id, true).await.unwrap();
        assert_eq!(returned, Returned::Released);
    }
    let three = place.fleet(&spread("3"), vms).await;
    for (n, (id, ip)) in allocated.iter().enumerate().filter(|(n, _)| n % 3 != 0) {
        let again = three.allocate(None, applicant(id)).await.unwrap();
        assert_eq!((n, again.ip), (n, *ip), "the same ID gets the same VM");
        assert_eq!(two.by_id(Some("default"), id).await.unwrap().ip, *ip);
        assert_eq!(two.by_ip(*ip).await.unwrap().allocation_id, *id);
    }
    assert_eq!(counts(&three).await, (10, 20, 0));

    // Deallocated with a cleanup, in any ConfigMap; user data goes to its VM.
    let (id, ip) = &allocated[1];
    three
        .put_user_data(None, id, b"#cloud-config\n")
        .await
        .unwrap();
    assert_eq!(
        two.deallocate(None, id, false).await.unwrap(),
        Returned::Quarantined
    );
    until(&two, (11, 19, 0)).await;
    assert!(two.by_ip(*ip).await.is_err());
    assert_eq!(
        two.deallocate(None, id, false).await.unwrap(),
        Returned::Nothing
    );
}

#[tokio::test]
async fn a_live_pool_is_spread_and_agents_that_disagree_refuse_requests() {
    let (place, vms) = (Place::new().await, Arc::<ScriptedVms>::default());
    let before = place.fleet(&spread("1"), vms.clone()).await;
    let mut allocated = Vec::new();
    for n in 0..10 {
        let id = format!("pod-{n}");
        allocated.push((before.allocate(None, applicant(&id)).await.unwrap(), id));
    }
    drop(before);
    let after = place.fleet(&spread("3"), vms.clone()).await;
    assert_eq!(counts(&after).await, (20, 10, 0));
    let mut ips = BTreeSet::new();
    for (allocation, id) in &allocated {
        let again = after.allocate(None, applicant(id)).await.unwrap();
        assert_eq!(again.ip, allocation.ip, "{id} keeps its VM");
        ips.insert(again.ip);
    }
    for n in 10..VMS {
        let fresh = after.allocate(None, applicant(&format!("pod-{n}"))).await;
        assert!(
            ips.insert(fresh.unwrap().ip),
            "a VM in use was allocated again"
        );
    }

    for count in ["1", "2", "4"] {
        let other = spread(count);
        let shut = place.unopened(&other, vms.clone());
        let error = shut.resize(&other.pools).await.unwrap_err().to_string();
        assert!(error.contains("set it to 3"), "{count}: {error}");
        let error = shut.ready().await.unwrap_err().to_string();
        assert!(error.contains("set it to 3"), "{count}: {error}");
        let error = shut.allocate(None, applicant("late")).await.unwrap_err();
        assert!(matches!(error, PoolError::Starting { .. }), "{error}");
    }
    // All stopped, the annotation removed: another number is accepted.
    let annotations = serde_json::json!({ "vms.berth.dev/configmap-count": null });
    let patch = serde_json::json!({ "metadata": { "annotations": annotations } });
    let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
    place.sheet.api.patch(STATE, &params, &patch).await.unwrap();
    let four = place.fleet(&spread("4"), vms).await;
    assert_eq!(counts(&four).await, (0, VMS, 0));
    for (allocation, id) in &allocated {
        let again = four.allocate(None, applicant(id)).await.unwrap();
        assert_eq!(again.ip, allocation.ip, "{id} keeps its VM");
    }
}

/// A fleet over three ConfigMaps in which every home has spilled over: all are read before an ID gets a new VM.
async fn spilled(place: &Place, vms: &Arc<ScriptedVms>, env: &[(&str, &str)]) -> Fleet {
    let before = place.fleet(&spread("1"), vms.clone()).await;
    before.allocate(None, applicant("first")).await.unwrap();
    let mut all = vec![
        ("VM_POOL_IPS", "10.0.0.1-10.0.0.30"),
        ("POOL_CONFIGMAP_COUNT", "3"),
    ];
    all.extend(env);
    place.fleet(&settings(&all), vms.clone()).await
}

#[tokio::test]
async fn berth_15_12_a_configmap_that_breaks_is_repaired_by_the_next_allocation() {
    let (place, vms) = (Place::new().await, Arc::<ScriptedVms>::default());
    let fleet = spilled(&place, &vms, &[]).await;
    for (broken, id) in [(STATE, "second"), ("byom-ip-pool-state-shard-1", "third")] {
        let allocated = fleet.allocate(None, applicant(id)).await.unwrap();
        let patch = serde_json::json!({ "data": { "allocation-state": "{\"allocatedIPs\": {" } });
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        place
            .sheet
            .api
            .patch(broken, &params, &patch)
            .await
            .unwrap();
        let fresh = fleet
            .allocate(None, applicant(&format!("after-{id}")))
            .await;
        let fresh = fresh.unwrap_or_else(|error| panic!("{broken}: {error}"));
        assert_ne!(fresh.ip, allocated.ip);
        let again = fleet.allocate(None, applicant(id)).await.unwrap();
        assert_eq!(again.ip, allocated.ip, "{broken}");
    }
}

/// VMs that accept a connection and hang, in two of three ConfigMaps: the third is still tried. In all of them: the
/// request has one deadline, not one for each.
#[tokio::test]
async fn berth_15_11_hung_vms_of_one_configmap_leave_time_for_the_others() {
    let (place, vms) = (Place::new().await, Arc::<ScriptedVms>::default());
    let limit = Duration::from_secs(6);
    let fleet = spilled(&place, &vms, &[("VM_ALLOCATE_TIMEOUT", "6s")]).await;
    let shards = spread("3").pools;
    let hang = |shard: usize| {
        for ip in &shards[shard].ips {
            vms.hang(&ip.to_string());
        }
    };
    hang(0);
    hang(1);
    for id in ["a", "b"] {
        let allocated = fleet.allocate(None, applicant(id)).await.unwrap();
        assert!(shards[2].ips.contains(&allocated.ip), "{allocated:?}");
        let again = fleet.allocate(None, applicant(id)).await.unwrap();
        assert_eq!(again.ip, allocated.ip);
    }
    hang(2);
    let started = Instant::now();
    let error = fleet.allocate(None, applicant("c")).await.unwrap_err();
    assert!(
        matches!(
            error,
            PoolError::TooLate { .. } | PoolError::Exhausted { .. }
        ),
        "{error}"
    );
    assert!(started.elapsed() < limit * 2, "{:?}", started.elapsed());
    until(&fleet, (27, 3, 0)).await;
}

/// A deallocation while the VM is being checked, in any ConfigMap.
#[tokio::test]
async fn berth_15_6_a_deallocation_ends_a_check_in_any_configmap() {
    let (place, vms) = (Place::new().await, Arc::<ScriptedVms>::default());
    let fleet = spilled(&place, &vms, &[]).await;
    for n in 1..=30 {
        vms.hang(&format!("10.0.0.{n}"));
    }
    let mut used = BTreeSet::new();
    for n in 0..4 {
        let id = format!("pod-{n}");
        let (asking, wish) = (fleet.clone(), applicant(&id));
        let asked = tokio::spawn(async move { asking.allocate(None, wish).await });
        let checked = loop {
            match fleet.by_id(None, &id).await {
                Ok(found) => break found,
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        };
        assert!(checked.checking.is_some());
        let returned = fleet.deallocate(None, &id, false).await.unwrap();
        assert_eq!(returned, Returned::Quarantined);
        let error = asked.await.unwrap().unwrap_err();
        assert!(matches!(error, PoolError::Deallocated(_)), "{error}");
        used.insert(checked.ip.to_string());
    }
    for n in 1..=30 {
        vms.go_on(&format!("10.0.0.{n}"));
    }
    until(&fleet, (29, 1, 0)).await;
    let reboots: usize = used.iter().map(|ip| vms.reboots(ip)).sum();
    assert_eq!(reboots, 4, "free only after a reboot");
}

/// A process that dies in a check, and another program that erases an entry, in any ConfigMap.
#[tokio::test]
async fn berth_15_10_restarts_and_foreign_writes_count_in_every_configmap() {
    let (place, vms) = (Place::new().await, Arc::<ScriptedVms>::default());
    let fleet = spilled(&place, &vms, &[]).await;
    let mut allocated = Vec::new();
    for n in 0..6 {
        let id = format!("pod-{n}");
        allocated.push(fleet.allocate(None, applicant(&id)).await.unwrap());
    }
    let shards = spread("3").pools;
    let erased = allocated
        .iter()
        .find(|one| !shards[0].ips.contains(&one.ip));
    let erased = erased.expect("all IDs have the same home");
    let place_of = |ip: &IpAddr| shards.iter().find(|shard| shard.ips.contains(ip));
    let configmap = &place_of(&erased.ip).unwrap().configmap;
    let object = place.sheet.api.get(configmap).await.unwrap();
    let text = &object.data.unwrap()["allocation-state"];
    let mut state: serde_json::Value = serde_json::from_str(text).unwrap();
    let entries = state["allocatedIPs"].as_object_mut().unwrap();
    entries.remove(&erased.allocation_id);
    let free = state["availableIPs"].as_array_mut().unwrap();
    free.push(erased.ip.to_string().into());
    let patch = serde_json::json!({ "data": { "allocation-state": state.to_string() } });
    let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
    place
        .sheet
        .api
        .patch(configmap, &params, &patch)
        .await
        .unwrap();
    fleet.maintain().await.unwrap();
    let again = fleet.by_id(None, &erased.allocation_id).await.unwrap();
    assert_eq!(again.ip, erased.ip, "it was restored");

    for n in 1..=30 {
        vms.hang(&format!("10.0.0.{n}"));
    }
    let (asking, wish) = (fleet.clone(), applicant("cut-off"));
    let asked = tokio::spawn(async move { asking.allocate(None, wish).await });
    while fleet.by_id(None, "cut-off").await.is_err() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let settings = settings(&[
        ("VM_POOL_IPS", "10.0.0.1-10.0.0.30"),
        ("POOL_CONFIGMAP_COUNT", "3"),
    ]);
    let reborn = place.unopened(&settings, vms.clone());
    reborn.start_with(Recovery::AtStart);
    reborn.resize(&settings.pools).await.unwrap();
    assert_eq!(counts(&reborn).await, (23, 7, 0));
    assert!(reborn.by_id(None, "cut-off").await.is_err());
    for n in 1..=30 {
        vms.go_on(&format!("10.0.0.{n}"));
    }
    asked.await.unwrap().unwrap_err();
    until(&reborn, (23, 7, 0)).await;
}
