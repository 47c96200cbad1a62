//! The front on a real API server with real SSH servers as VMs: recovery, changes of size, a server that is down.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod place;
mod script;
mod test_vm;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use berth_core::{Address, Rendezvous};
use berth_testkit::{Cluster, Part};
use berth_vms::PoolError;
use berth_vms::vm::{SshVms, Vms};
use place::{Place, applicant, counts, until};
use script::{ScriptedVms, settings};
use test_vm::{Lab, OnReboot};

const REBOOTS: OnReboot = OnReboot::DownFor(Duration::from_millis(800));

/// The main case: a node comes back, and its VMs must not be allocated to other pods before they were wiped.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_comes_back_cleans_its_vms_and_keeps_the_dead_one() {
    let (place, lab) = (Place::new().await, Lab::new());
    let ips: Vec<String> = (21..=24).map(|n| lab.ip(n).to_string()).collect();
    let list = ips.join(",");
    let port = lab.port.to_string();
    let env = [
        ("VM_POOL_IPS", list.as_str()),
        ("SSH_PORT", &port),
        ("VM_CLEANUP_WAIT", "50ms"),
        ("VM_CLEANUP_RETRY", "200ms"),
    ];
    let settings = settings(&env);
    let vms: Arc<dyn Vms> = Arc::new(SshVms::new(lab.access()));
    let mut machines = BTreeMap::new();
    for n in 21..=24 {
        machines.insert(lab.ip(n), lab.start(n, REBOOTS).await);
    }
    let before = place.fleet(&settings, Arc::clone(&vms)).await;
    let first = before.allocate(None, applicant("first")).await.unwrap().ip;
    let second = before.allocate(None, applicant("second")).await.unwrap().ip;
    let third = before.allocate(None, applicant("third")).await.unwrap().ip;
    before
        .put_user_data(None, "first", b"#cloud-config\nsecret: 1\n")
        .await
        .unwrap();
    assert_eq!(
        machines[&first].file("cidata/user-data").unwrap(),
        b"#cloud-config\nsecret: 1\n"
    );
    drop(before);
    // The node dies, and with it, unnoticed, one of its VMs.
    machines.remove(&third).unwrap().die().await;

    let reborn = place.fleet(&settings, vms).await;
    let recovered = reborn.recover(None, true).await.unwrap().remove(0);
    assert_eq!(recovered.taken_back, 3);
    let document = place.document().await;
    assert_eq!(
        document.allocated.len(),
        3,
        "nothing is free before it was clean"
    );
    assert!(
        document
            .allocated
            .values()
            .all(|a| a.others.contains_key("quarantinedAt"))
    );
    until(&reborn, (3, 0, 1)).await;
    assert_eq!(
        (machines[&first].boots(), machines[&second].boots()),
        (2, 2)
    );

    // The dead one stays quarantined with the reason, in the shared state.
    let left = &place.document().await.allocated["third"];
    assert_eq!(left.ip, third.to_string());
    let why = left.others["cleanupError"].as_str().unwrap();
    assert!(why.contains("does not answer"), "{why}");
    // Until it is back.
    let n = third
        .to_string()
        .rsplit('.')
        .next()
        .unwrap()
        .parse()
        .unwrap();
    machines.insert(third, lab.start(n, REBOOTS).await);
    until(&reborn, (4, 0, 0)).await;
    assert_eq!(machines[&third].boots(), 2);
}

/// Two processes that read one ConfigMap choose alike.
#[tokio::test]
async fn rendezvous_allocates_the_first_choice_from_a_configmap() {
    let place = Place::new().await;
    let env = [
        ("VM_POOL_IPS", "10.0.0.1-10.0.0.9"),
        ("VM_ORDER", "rendezvous"),
    ];
    let vms = Arc::<ScriptedVms>::default();
    let one = place.fleet(&settings(&env), vms.clone()).await;
    let two = place.fleet(&settings(&env), vms).await;
    let mut free: Vec<Address> = (1..=9)
        .map(|n| format!("10.0.0.{n}").parse().unwrap())
        .collect();
    for (n, fleet) in [&one, &two].iter().cycle().take(9).enumerate() {
        let id = format!("pod-{n}-8b317899");
        let first = Rendezvous::new(&id).choose(free.iter().copied());
        let first = first.unwrap();
        let given = fleet.allocate(None, applicant(&id)).await.unwrap();
        assert_eq!(given.ip.to_string(), first.to_string(), "{id}");
        free.retain(|vm| *vm != first);
    }
}

/// Two processes, one ConfigMap, one dead VM: both get VMs that work.
#[tokio::test(flavor = "multi_thread")]
async fn two_processes_share_a_pool_with_a_dead_vm() {
    let (place, lab) = (Place::new().await, Lab::new());
    let list = format!("{}-{}", lab.ip(31), lab.ip(33));
    let port = lab.port.to_string();
    let env = [("VM_POOL_IPS", list.as_str()), ("SSH_PORT", &port)];
    let vms: Arc<dyn Vms> = Arc::new(SshVms::new(lab.access()));
    let _living = [lab.start(31, REBOOTS).await, lab.start(33, REBOOTS).await];
    let one = place.fleet(&settings(&env), Arc::clone(&vms)).await;
    let two = place.fleet(&settings(&env), vms).await;
    let (a, b) = tokio::join!(
        one.allocate(None, applicant("a")),
        two.allocate(None, applicant("b"))
    );
    let got = [a.unwrap().ip, b.unwrap().ip];
    assert_ne!(got[0], got[1]);
    assert!(!got.contains(&lab.ip(32)));
    let error = one.allocate(None, applicant("c")).await.unwrap_err();
    assert!(
        error.to_string().starts_with("no available IPs in pool"),
        "{error}"
    );
}

#[tokio::test]
async fn a_server_that_is_away_resets_nothing() {
    let cluster = Cluster::start().await.unwrap();
    let place = Place::on(&cluster).await;
    let env = [
        ("VM_POOL_IPS", "10.0.0.1-10.0.0.3"),
        ("OPERATION_TIMEOUT", "2s"),
    ];
    let fleet = place
        .fleet(&settings(&env), Arc::<ScriptedVms>::default())
        .await;
    let allocated = fleet.allocate(None, applicant("a")).await.unwrap();
    let before = place.data().await;

    cluster.kill(Part::ApiServer).unwrap();
    let late = place.unopened(&settings(&env), Arc::<ScriptedVms>::default());
    assert!(
        late.resize(&settings(&env).pools).await.is_err(),
        "no state is not an empty state"
    );
    assert!(fleet.recover(None, true).await.is_err());
    assert!(fleet.allocate(None, applicant("b")).await.is_err());
    assert!(matches!(
        fleet.status(None).await,
        Err(PoolError::Ledger(_))
    ));

    cluster.restart(Part::ApiServer).await.unwrap();
    assert_eq!(place.data().await, before);
    assert_eq!(fleet.by_id(None, "a").await.unwrap(), allocated);
    late.resize(&settings(&env).pools).await.unwrap();
    assert_eq!(counts(&late).await, (2, 1, 0));
}

/// An edit that fails is not lost: the fleet is not ready until it was applied, which happens later.
#[tokio::test]
async fn berth_15_11_an_edit_while_the_server_is_away_is_done_later() {
    let cluster = Cluster::start().await.unwrap();
    let place = Place::on(&cluster).await;
    let wanted = |ips: &str| settings(&[("VM_POOL_IPS", ips), ("OPERATION_TIMEOUT", "2s")]);
    let fleet = place
        .fleet(&wanted("10.0.0.1"), Arc::<ScriptedVms>::default())
        .await;
    fleet.ready().await.unwrap();
    cluster.kill(Part::ApiServer).unwrap();
    let mut edited = wanted("10.0.0.1-10.0.0.3").pools;
    let mut gpu = wanted("10.0.1.1").pools;
    gpu[0].name = "gpu".into();
    gpu[0].configmap = "gpu".into();
    edited.extend(gpu);
    fleet.resize(&edited).await.unwrap_err();
    cluster.restart(Part::ApiServer).await.unwrap();
    let error = fleet.ready().await.unwrap_err();
    assert!(matches!(error, PoolError::Starting { .. }), "{error}");
    assert!(fleet.problem().is_some());
    // Open pools serve; new ones do not yet.
    fleet.by_id(Some("default"), "a").await.unwrap_err();
    let error = fleet.allocate(Some("gpu"), applicant("a")).await;
    let error = error.unwrap_err();
    assert!(matches!(error, PoolError::Starting { .. }), "{error}");

    let end = tokio_util::sync::CancellationToken::new();
    let running = tokio::spawn(fleet.clone().run(Default::default(), end.clone()));
    while fleet.ready().await.is_err() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(counts(&fleet).await, (3, 0, 0));
    fleet.allocate(Some("gpu"), applicant("a")).await.unwrap();
    end.cancel();
    running.await.unwrap();
}
