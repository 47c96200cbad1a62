//! The NIC's reconciler against the local cloud, over HTTP.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use berth_attachment::{
    Entry, Goal, Intent, IntentId, Journal, MemoryJournal, Reconciler, Refusal,
};
use berth_gcp::cloud::{Cloud, CloudError, Endpoints, Metadata, TokenSource};
use berth_gcp::nic::{NicError, NicPlace, NicReconciler, NicTarget, NodeLock, Release};
use berth_testcloud::{AliasRange as Seen, ApiError, Cloud as LocalCloud, Fault, Project, Stale};
use tokio::time::Instant;

const ZONE: &str = "us-central1-a";
const REGION: &str = "us-central1";
const UPDATE: &str = "instances.updateNetworkInterface";

#[derive(Clone, Debug, Default)]
struct Released(Arc<Mutex<BTreeSet<Ipv4Addr>>>);

impl Release for Released {
    async fn release(&self, address: Ipv4Addr) -> Result<(), String> {
        self.0.lock().unwrap().insert(address);
        Ok(())
    }
}

struct Scene {
    local: Arc<LocalCloud>,
    released: Released,
    journal: Arc<MemoryJournal<Ipv4Addr>>,
    nic: NicReconciler,
    target: Arc<NicTarget<Released>>,
}

fn project(operation: u64) -> Project {
    let mut project = Project::new("berth-test");
    project.operation_time = Duration::from_millis(operation);
    project.add_subnetwork(REGION, "nodes", "10.128.0.0/20");
    project.add_secondary_range(REGION, "nodes", "pods", "10.4.0.0/14");
    project.add_secondary_range(REGION, "nodes", "live", "10.111.0.0/16");
    for (name, own) in [("node-a", "10.4.0.0/24"), ("node-b", "10.4.1.0/24")] {
        project.add_instance(ZONE, name, (REGION, "nodes"), vec![Seen::of("pods", own)]);
    }
    project
}

async fn scene_with(
    project: Project,
    operation_timeout: Duration,
    lock: Option<NodeLock>,
) -> Scene {
    let local = Arc::new(LocalCloud::start(project).await.unwrap());
    let host = local.metadata(ZONE, "node-a").await.unwrap();
    let endpoint = local.endpoint();
    let endpoints = Endpoints::new(Some(&endpoint), Some(&endpoint)).unwrap();
    let source = TokenSource::Metadata(Metadata::new(Some(&host)));
    let cloud = Cloud::new("berth-test", endpoints, source, operation_timeout);
    let released = Released::default();
    let place = NicPlace {
        zone: ZONE.to_owned(),
        instance: "node-a".to_owned(),
        nic: "nic0".to_owned(),
        range: Some("live".to_owned()),
    };
    let target = Arc::new(NicTarget {
        cloud,
        place,
        release: released.clone(),
        lock,
    });
    let journal = Arc::new(MemoryJournal::default());
    let nic = Reconciler::start(Arc::clone(&target), Arc::clone(&journal), Duration::ZERO)
        .await
        .unwrap();
    Scene {
        local,
        released,
        journal,
        nic,
        target,
    }
}

async fn scene(project: Project) -> Scene {
    scene_with(project, Duration::from_secs(20), None).await
}

fn address(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 111, 0, last)
}

fn in_time() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

impl Scene {
    async fn attach_all(&self, last: std::ops::Range<u8>) -> Vec<Result<(), Refusal<NicError>>> {
        let tasks: Vec<_> = last
            .map(|last| {
                let nic = self.nic.clone();
                tokio::spawn(async move { nic.attach(address(last), in_time()).await })
            })
            .collect();
        let mut answers = Vec::new();
        for task in tasks {
            answers.push(task.await.unwrap());
        }
        answers
    }

    fn aliases(&self, node: &str) -> Vec<String> {
        let aliases = self
            .local
            .project(|project| project.aliases(ZONE, node))
            .unwrap();
        aliases
            .into_iter()
            .map(|alias| alias.ip_cidr_range)
            .collect()
    }

    async fn settle(&self) {
        let until = in_time();
        loop {
            let status = self.nic.status().await.unwrap();
            if status.absent.is_empty() && status.present.iter().all(|(_, done)| *done) {
                return;
            }
            assert!(Instant::now() < until, "{status:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The next request of `call` meets the fault; later ones do not.
    fn fault_once(&self, call: &'static str, fault: Fault) {
        let mut left = Some(fault);
        self.local.faults(move |request| {
            if request.call == call {
                left.take()
            } else {
                None
            }
        });
    }
}

#[tokio::test]
async fn a_hundred_and_ten_pods_at_once_cost_two_operations() {
    let scene = scene(project(300)).await;
    let answers = scene.attach_all(2..112).await;
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    assert_eq!(scene.local.count(UPDATE), 2);
    assert_eq!(
        scene.local.count("zoneOperations.wait"),
        2,
        "one wait per operation"
    );
    assert_eq!(scene.local.count("zoneOperations.get"), 0, "no polling");
    assert_eq!(scene.aliases("node-a").len(), 111);
    assert_eq!(scene.aliases("node-a")[0], "10.4.0.0/24");

    // All of them end while others start: a DEL waits for no operation, an address is free only when its alias is gone.
    let adds = tokio::spawn({
        let nic = scene.nic.clone();
        async move { nic.attach(address(200), in_time()).await }
    });
    for last in 2..112 {
        scene.nic.detach(address(last)).await.unwrap();
    }
    let released = scene.released.0.lock().unwrap().clone();
    let left = scene.aliases("node-a");
    let is_gone = |address: &Ipv4Addr| !left.contains(&format!("{address}/32"));
    assert!(released.iter().all(is_gone), "{released:?} {left:?}");
    adds.await.unwrap().unwrap();
    scene.settle().await;
    assert_eq!(scene.released.0.lock().unwrap().len(), 110);
    assert_eq!(scene.aliases("node-a"), ["10.4.0.0/24", "10.111.0.200/32"]);
    assert!(
        scene.local.count(UPDATE) <= 5,
        "{}",
        scene.local.count(UPDATE)
    );
    for request in scene.local.requests() {
        assert!(request.code.is_none_or(|code| code == 200), "{request:?}");
    }
}

#[tokio::test]
async fn a_nic_without_foreign_aliases_gets_an_empty_list() {
    let scene = scene(project(20)).await;
    scene
        .local
        .project(|project| project.set_aliases(ZONE, "node-a", Vec::new()));
    scene.nic.attach(address(2), in_time()).await.unwrap();
    scene.nic.detach(address(2)).await.unwrap();
    scene.settle().await;
    let requests = scene.local.requests();
    let last = requests
        .iter()
        .rfind(|request| request.call == UPDATE)
        .unwrap();
    assert_eq!(last.body["aliasIpRanges"], serde_json::json!([]));
    assert!(scene.aliases("node-a").is_empty());
}

#[tokio::test]
async fn every_fault_that_passes_is_outlived() {
    let refuse = |code, reason: &str| Fault::Refuse(ApiError::new(code, reason, "a test says so"));
    let fail = |code: &str| Fault::FailOperation(code.to_owned(), "a test says so".to_owned());
    let faults: Vec<(&'static str, Fault)> = vec![
        ("instances.get", refuse(503, "backendError")),
        ("instances.get", refuse(403, "rateLimitExceeded")),
        ("instances.get", Fault::Cut),
        ("instances.get", Fault::NotJson(200)),
        (UPDATE, refuse(412, "conditionNotMet")),
        (UPDATE, refuse(403, "rateLimitExceeded")),
        (UPDATE, refuse(403, "userRateLimitExceeded")),
        (UPDATE, refuse(429, "tooManyRequests")),
        (UPDATE, refuse(400, "resourceNotReady")),
        (UPDATE, refuse(500, "internalError")),
        (UPDATE, refuse(503, "backendError")),
        (UPDATE, Fault::LoseAnswer),
        (UPDATE, Fault::Cut),
        (UPDATE, Fault::NotJson(502)),
        (UPDATE, fail("CONDITION_NOT_MET")),
        (UPDATE, fail("INTERNAL_ERROR")),
        (UPDATE, fail("RESOURCE_NOT_READY")),
        (UPDATE, fail("RESOURCE_OPERATION_RATE_EXCEEDED")),
        ("zoneOperations.wait", refuse(503, "backendError")),
        ("zoneOperations.wait", Fault::Cut),
        ("zoneOperations.wait", Fault::LoseAnswer),
        ("zoneOperations.wait", refuse(404, "notFound")),
        ("zoneOperations.wait", refuse(403, "rateLimitExceeded")),
    ];
    let mut all = tokio::task::JoinSet::new();
    for (call, fault) in faults {
        all.spawn(outlive(call, fault));
    }
    while let Some(done) = all.join_next().await {
        done.unwrap();
    }
}

async fn outlive(call: &'static str, fault: Fault) {
    let scene = scene(project(10)).await;
    let shown = format!("{call} {fault:?}");
    scene.fault_once(call, fault.clone());
    let attached = scene.nic.attach(address(9), in_time()).await;
    assert_eq!(attached, Ok(()), "{shown}");
    let both = ["10.4.0.0/24", "10.111.0.9/32"];
    assert_eq!(scene.aliases("node-a"), both, "{shown}");
    scene.fault_once(call, fault);
    scene.nic.detach(address(9)).await.unwrap();
    scene.settle().await;
    assert_eq!(scene.aliases("node-a"), ["10.4.0.0/24"], "{shown}");
}

#[tokio::test]
async fn a_request_id_is_new_after_a_412_and_the_same_after_a_lost_answer() {
    let scene = scene(project(10)).await;
    let ids = |scene: &Scene| -> Vec<String> {
        let requests = scene.local.requests();
        let updates = requests.iter().filter(|request| request.call == UPDATE);
        let id = |request: &berth_testcloud::Recorded| {
            request
                .query
                .iter()
                .find(|(name, _)| name == "requestId")
                .unwrap()
                .1
                .clone()
        };
        updates.map(id).collect()
    };
    scene.fault_once(
        UPDATE,
        Fault::Refuse(ApiError::new(412, "conditionNotMet", "stale")),
    );
    scene.nic.attach(address(2), in_time()).await.unwrap();
    let first = ids(&scene);
    assert_eq!(first.len(), 2);
    assert_ne!(first[0], first[1]);
    scene.fault_once(UPDATE, Fault::Cut);
    scene.nic.attach(address(3), in_time()).await.unwrap();
    let second = ids(&scene);
    assert_eq!(second.len(), 4);
    assert_eq!(second[2], second[3]);
}

#[tokio::test]
async fn what_needs_an_administrator_is_shown_and_refused() {
    let scene = scene(project(10)).await;
    let denied = "Required 'compute.instances.updateNetworkInterface' permission";
    let cases = [
        (
            Fault::Refuse(ApiError::new(403, "forbidden", denied)),
            denied,
        ),
        (
            Fault::FailOperation(
                "QUOTA_EXCEEDED".to_owned(),
                "ALIASES_PER_NETWORK_GLOBAL".to_owned(),
            ),
            "ALIASES_PER_NETWORK_GLOBAL",
        ),
    ];
    for (fault, text) in cases {
        scene.fault_once(UPDATE, fault);
        let Err(Refusal::Failed(error)) = scene.nic.attach(address(2), in_time()).await else {
            panic!("{text}");
        };
        assert!(
            error.to_string().contains(text) && error.to_string().contains("node-a"),
            "{error}"
        );
    }
    let status = scene.nic.status().await.unwrap();
    assert!(status.last_failure.is_some(), "{status:?}");
    scene.nic.attach(address(2), in_time()).await.unwrap();
}

#[tokio::test]
async fn an_address_of_another_vm_fails_alone() {
    let scene = scene(project(20)).await;
    scene.local.project(|project| {
        project.set_aliases(ZONE, "node-b", vec![Seen::of("live", "10.111.0.30/32")]);
    });
    let answers = scene.attach_all(2..50).await;
    let failed: Vec<usize> = (0..answers.len())
        .filter(|place| answers[*place].is_err())
        .collect();
    assert_eq!(failed, [28]);
    let Err(Refusal::Failed(NicError::Cloud {
        error: CloudError::InUse(text),
        ..
    })) = &answers[28]
    else {
        panic!("{:?}", answers[28]);
    };
    assert!(text.contains("10.111.0.30"), "{text}");
    assert_eq!(scene.aliases("node-a").len(), 48);
}

#[tokio::test]
async fn a_nic_takes_a_hundred_and_fifty_aliases_and_no_more() {
    let scene = scene(project(20)).await;
    let answers = scene.attach_all(2..162).await;
    let attached = answers.iter().filter(|answer| answer.is_ok()).count();
    assert_eq!(attached, 149);
    let error = answers
        .iter()
        .find_map(|answer| answer.as_ref().err())
        .unwrap();
    assert!(error.to_string().contains("150"), "{error}");
    assert_eq!(scene.aliases("node-a").len(), 150);
    // A removal that waits makes room first.
    let free = answers.iter().position(Result::is_ok).unwrap();
    let left = answers.iter().position(Result::is_err).unwrap();
    let at = |place: usize| address(u8::try_from(place).unwrap() + 2);
    scene.nic.detach(at(free)).await.unwrap();
    scene.nic.attach(at(left), in_time()).await.unwrap();
    assert_eq!(scene.aliases("node-a").len(), 150);
}

#[tokio::test]
async fn aliases_changed_by_hand_between_read_and_write_are_kept() {
    for stale in [Stale::Answer, Stale::Operation] {
        let mut project = project(10);
        project.stale = stale;
        let scene = scene(project).await;
        let local = Arc::downgrade(&scene.local);
        let mut left = true;
        // The first update arrives after somebody has added a range.
        let changes = std::sync::mpsc::channel::<()>();
        scene.local.faults(move |request| {
            let first = request.call == UPDATE && std::mem::take(&mut left);
            if first {
                let (local, done) = (local.clone(), changes.0.clone());
                std::thread::spawn(move || {
                    if let Some(local) = local.upgrade() {
                        local.project(|project| {
                            let own = vec![
                                Seen::of("pods", "10.4.0.0/24"),
                                Seen::of("pods", "10.4.9.0/24"),
                            ];
                            project.set_aliases(ZONE, "node-a", own);
                        });
                    }
                    let _ = done.send(());
                });
                let _ = changes.1.recv();
            }
            None
        });
        scene.nic.attach(address(2), in_time()).await.unwrap();
        assert_eq!(
            scene.aliases("node-a"),
            ["10.4.0.0/24", "10.4.9.0/24", "10.111.0.2/32"],
            "{stale:?}"
        );
        assert_eq!(scene.local.count(UPDATE), 2);
    }
}

#[tokio::test]
async fn an_operation_that_outlasts_its_time_is_known_in_the_end() {
    let scene = scene_with(project(1_500), Duration::from_millis(300), None).await;
    // The caller's own deadline comes first: it gets an error, and the address is removed and released once that is possible.
    let hasty = Instant::now() + Duration::from_millis(100);
    assert_eq!(
        scene.nic.attach(address(2), hasty).await,
        Err(Refusal::TooLate)
    );
    scene.settle().await;
    assert_eq!(scene.aliases("node-a"), ["10.4.0.0/24"]);
    assert_eq!(
        *scene.released.0.lock().unwrap(),
        BTreeSet::from([address(2)])
    );
    scene.nic.attach(address(3), in_time()).await.unwrap();
    assert_eq!(scene.aliases("node-a"), ["10.4.0.0/24", "10.111.0.3/32"]);
}

#[tokio::test]
async fn a_vm_that_is_gone_has_no_aliases() {
    let scene = scene(project(10)).await;
    scene.nic.attach(address(2), in_time()).await.unwrap();
    scene
        .local
        .project(|project| project.remove_instance(ZONE, "node-a"));
    let Err(Refusal::Failed(error)) = scene.nic.attach(address(3), in_time()).await else {
        panic!("there is no such VM");
    };
    assert!(error.to_string().contains("node-a"), "{error}");
    scene.nic.detach(address(2)).await.unwrap();
    scene.settle().await;
    assert_eq!(
        *scene.released.0.lock().unwrap(),
        BTreeSet::from([address(2)])
    );
}

#[tokio::test]
async fn an_intent_of_a_crashed_process_is_resumed_under_its_id() {
    let scene = scene(project(200)).await;
    // The process dies while the operation runs: the journal has the intent, the cloud the operation.
    let adding = tokio::spawn({
        let nic = scene.nic.clone();
        async move { nic.attach(address(2), in_time()).await }
    });
    while scene.local.count(UPDATE) == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    adding.abort();
    let recorded = scene.journal.load().await.unwrap();
    let intent = recorded.intent.unwrap();
    let Scene {
        local,
        released,
        target,
        nic,
        ..
    } = scene;
    drop(nic);
    let journal = Arc::new(MemoryJournal::default());
    journal
        .record(&[Entry::Begin(intent.clone())])
        .await
        .unwrap();
    let nic = Reconciler::start(Arc::clone(&target), Arc::clone(&journal), Duration::ZERO)
        .await
        .unwrap();
    nic.attach(address(2), in_time()).await.unwrap();
    assert_eq!(
        local.count(UPDATE),
        2,
        "sent again under the same id, carried out once"
    );
    let after = Scene {
        local,
        released,
        journal,
        nic,
        target,
    };
    assert_eq!(after.aliases("node-a"), ["10.4.0.0/24", "10.111.0.2/32"]);
    assert!(after.journal.load().await.unwrap().intent.is_none());
}

#[tokio::test]
async fn no_pods_no_calls() {
    let scene = scene(project(10)).await;
    assert!(scene.nic.status().await.unwrap().present.is_empty());
    assert!(scene.local.requests().is_empty());
    let open = Intent {
        id: IntentId(1),
        goal: Goal::Absent,
        items: BTreeSet::from([address(2)]),
    };
    let journal = Arc::new(MemoryJournal::default());
    journal.record(&[Entry::Begin(open)]).await.unwrap();
    let nic = Reconciler::start(
        Arc::clone(&scene.target),
        Arc::clone(&journal),
        Duration::ZERO,
    )
    .await
    .unwrap();
    nic.attach(address(3), in_time()).await.unwrap();
    assert!(journal.load().await.unwrap().intent.is_none());
}

#[tokio::test]
async fn an_update_waits_for_the_node_lock() {
    let dir = tempfile::tempdir().unwrap();
    let lock = NodeLock::new(dir.path().join("gcp-ipam.lock"));
    let held = lock.hold().await.unwrap();
    let scene = scene_with(project(10), Duration::from_secs(20), Some(lock.clone())).await;
    let hasty = Instant::now() + Duration::from_millis(200);
    assert_eq!(
        scene.nic.attach(address(2), hasty).await,
        Err(Refusal::TooLate)
    );
    assert!(
        scene.local.requests().is_empty(),
        "not even a read before the lock is held"
    );
    drop(held);
    scene.settle().await;
    scene.nic.attach(address(3), in_time()).await.unwrap();
    let directory = NodeLock::new(dir.path()).hold().await.unwrap_err();
    assert!(directory.to_string().contains("lock file"), "{directory}");
}
