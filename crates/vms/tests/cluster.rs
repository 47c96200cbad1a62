//! The front on a real API server with real SSH servers as VMs: recovery, states that others wrote
//! by hand, sizes that change, a server that goes away.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod script;
mod test_vm;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use berth_ledger::configmap::{ConfigMapLedger, Document, STATE_KEY};
use berth_testkit::{Cluster, Part, Sheet};
use berth_vms::settings::Settings;
use berth_vms::vm::{SshVms, Vms};
use berth_vms::{Applicant, Fleet, PoolError, Status, Store};
use script::{ScriptedVms, settings};
use test_vm::{Lab, OnReboot};

const STATE: &str = "byom-ip-pool-state";
const REBOOTS: OnReboot = OnReboot::DownFor(Duration::from_millis(800));

struct Place {
    sheet: Sheet,
}

impl Place {
    async fn new() -> Self {
        Self::on(Cluster::shared().await).await
    }

    async fn on(cluster: &Cluster) -> Self {
        let sheet = Sheet::new(cluster, "byom", STATE).await.unwrap();
        Self { sheet }
    }

    /// A manager's process, as far as the state can tell.
    async fn fleet(&self, settings: &Settings, vms: Arc<dyn Vms>) -> Fleet {
        let fleet = self.unopened(settings, vms);
        fleet.resize(&settings.pools).await.unwrap();
        fleet
    }

    fn unopened(&self, settings: &Settings, vms: Arc<dyn Vms>) -> Fleet {
        let ledger = ConfigMapLedger::new(
            self.sheet.client.clone(),
            &self.sheet.namespace,
            Duration::from_secs(10),
        );
        let store = Store::ConfigMap(Arc::new(ledger));
        Fleet::new(settings, store, vms, Default::default(), Default::default())
    }

    async fn write(&self, text: &str) {
        self.sheet.write(&[(STATE_KEY, text)]).await.unwrap();
    }

    async fn data(&self) -> BTreeMap<String, String> {
        self.sheet.data().await.unwrap()
    }

    async fn document(&self) -> Document {
        Document::decode(&self.data().await[STATE_KEY]).unwrap()
    }
}

fn applicant(id: &str) -> Applicant {
    Applicant {
        allocation_id: id.into(),
        pod_name: "nginx".into(),
        pod_namespace: "default".into(),
    }
}

async fn counts(fleet: &Fleet) -> (usize, usize, usize) {
    let Status {
        available,
        in_use,
        quarantined,
        ..
    } = fleet.status(None).await.unwrap().remove(0);
    (available, in_use, quarantined)
}

async fn until(fleet: &Fleet, wanted: (usize, usize, usize)) {
    for _ in 0..300 {
        if counts(fleet).await == wanted {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{:?} is not {wanted:?}", fleet.status(None).await.unwrap());
}

/// The reason why everything here exists: a node comes back, and its VMs must not go to other
/// pods before they were wiped.
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
    // The node dies, and with it, while nobody looks, one of its VMs.
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

    // The dead one stays where it is and says why, in the state that everybody can read.
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

/// Two processes, one ConfigMap, one dead VM: both get VMs that live.
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
async fn states_that_others_wrote_by_hand() {
    // allocated, available -> after recovery: available, in use, doubled, strays.
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
            (vec!["192.168.1.11", "192.168.1.12"], 2, 1, 1),
        ),
        // An empty document, and a ConfigMap that somebody made by hand.
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
    for (pool, text, (available, in_use, doubled, strays)) in cases {
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
            (status.doubled.len(), status.strays.len()),
            (doubled, strays),
            "{text}"
        );
        let after = place.document().await;
        assert_eq!(after.available, available, "{text}");
        assert_eq!(
            after.allocated, before.allocated,
            "another node's VMs are not touched"
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
    // An address that is no member is not free again when it is given back.
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
    // What nobody knows about is freed as everything else is: given back, rebooted, seen up.
    fleet
        .deallocate(None, "unreadable-10.0.0.3", false)
        .await
        .unwrap();
    until(&fleet, (1, 2, 0)).await;
    assert_eq!(vms.reboots("10.0.0.3"), 1);
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
    let given = fleet.allocate(None, applicant("a")).await.unwrap();
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
    assert_eq!(fleet.by_id(None, "a").await.unwrap(), given);
    late.resize(&settings(&env).pools).await.unwrap();
    assert_eq!(counts(&late).await, (2, 1, 0));
}

#[tokio::test]
async fn a_full_state_is_refused_before_it_is_written() {
    let place = Place::new().await;
    let filler = "x".repeat(1_048_000);
    place.write("{}").await;
    let patch = serde_json::json!({ "data": { "filler": filler } });
    let params = kube::api::PatchParams::default();
    place
        .sheet
        .api
        .patch(STATE, &params, &kube::api::Patch::Merge(&patch))
        .await
        .unwrap();
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
            .allocate(None, applicant(&"b".repeat(400)))
            .await
            .unwrap_err(),
    };
    assert!(error.to_string().contains("limit of 1048576"), "{error}");
    assert!(error.to_string().contains("several pools"), "{error}");
    assert_eq!(place.data().await["filler"], before["filler"]);
}
