//! Moves of an address between two VMs of the local cloud.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use berth_gcp::cloud::{Cloud, CloudError, Endpoints, Metadata, TokenSource};
use berth_gcp::migrate::executor::{MoveError, Mover, Moves, Vm};
use berth_gcp::migrate::machine::{Move, Phase, Winner};
use berth_testcloud::{AliasRange as Seen, ApiError, Cloud as LocalCloud, Fault, Project};
use tokio::time::Instant;

const REGION: &str = "us-central1";
const UPDATE: &str = "instances.updateNetworkInterface";
const IP: &str = "10.111.0.5";

#[derive(Clone, Debug)]
struct Record(Arc<Mutex<State>>);

/// The move under way, the version of the record, and who won the last one.
type State = (Option<Move<Vm>>, u64, Option<Winner>);

impl Moves for Record {
    type Version = u64;

    async fn read(&self, _: Ipv4Addr) -> Result<Option<(Move<Vm>, u64)>, String> {
        let state = self.0.lock().unwrap();
        Ok(state.0.clone().map(|step| (step, state.1)))
    }

    async fn record(&self, _: Ipv4Addr, version: &u64, phase: Phase) -> Result<bool, String> {
        let mut state = self.0.lock().unwrap();
        if state.1 != *version {
            return Ok(false);
        }
        state.1 += 1;
        state.0.as_mut().unwrap().phase = phase;
        Ok(true)
    }

    async fn finish(&self, _: Ipv4Addr, version: &u64, winner: Winner) -> Result<bool, String> {
        let mut state = self.0.lock().unwrap();
        if state.1 != *version {
            return Ok(false);
        }
        *state = (None, state.1 + 1, Some(winner));
        Ok(true)
    }
}

struct Scene {
    local: LocalCloud,
    record: Record,
    mover: Arc<Mover<Record>>,
}

/// The source is in another zone than the destination.
fn vm(name: &str) -> Vm {
    let zone = if name == "node-a" {
        "us-central1-a"
    } else {
        "us-central1-b"
    };
    Vm {
        zone: zone.to_owned(),
        instance: name.to_owned(),
    }
}

async fn scene() -> Scene {
    let mut project = Project::new("berth-test");
    project.operation_time = Duration::from_millis(50);
    project.add_subnetwork(REGION, "nodes", "10.128.0.0/20");
    project.add_secondary_range(REGION, "nodes", "pods", "10.4.0.0/14");
    project.add_secondary_range(REGION, "nodes", "live", "10.111.0.0/16");
    let alias = Seen::of("live", "10.111.0.5/32");
    let (a, b) = (vm("node-a"), vm("node-b"));
    project.add_instance(
        &a.zone,
        "node-a",
        (REGION, "nodes"),
        vec![Seen::of("pods", "10.4.0.0/24"), alias],
    );
    project.add_instance(
        &b.zone,
        "node-b",
        (REGION, "nodes"),
        vec![Seen::of("pods", "10.4.1.0/24")],
    );
    let local = LocalCloud::start(project).await.unwrap();
    let host = local.metadata(&b.zone, "node-b").await.unwrap();
    let endpoint = local.endpoint();
    let endpoints = Endpoints::new(Some(&endpoint), Some(&endpoint)).unwrap();
    let source = TokenSource::Metadata(Metadata::new(Some(&host)));
    let step = Move {
        address: IP.parse().unwrap(),
        source: a,
        destination: b,
        phase: Phase::Reserved,
    };
    let record = Record(Arc::new(Mutex::new((Some(step), 0, None))));
    let mover = Mover {
        cloud: Cloud::new("berth-test", endpoints, source, Duration::from_secs(10)),
        moves: record.clone(),
        nic: "nic0".to_owned(),
        range: Some("live".to_owned()),
        lock: None,
        updates: Arc::default(),
    };
    Scene {
        local,
        record,
        mover: Arc::new(mover),
    }
}

impl Scene {
    async fn run(&self) -> Result<berth_gcp::migrate::executor::Over, MoveError> {
        self.run_if(|| false).await
    }

    async fn run_if(
        &self,
        ended: impl Fn() -> bool + Sync,
    ) -> Result<berth_gcp::migrate::executor::Over, MoveError> {
        let deadline = Instant::now() + Duration::from_secs(60);
        self.mover.run(IP.parse().unwrap(), &ended, deadline).await
    }

    fn holders(&self) -> Vec<String> {
        let holders = self.local.project(|project| project.holders(IP));
        holders.into_iter().map(|(_, name)| name).collect()
    }

    fn winner(&self) -> Option<Winner> {
        self.record.0.lock().unwrap().2
    }
}

#[tokio::test]
async fn a_move_costs_two_operations_and_crosses_zones() {
    let scene = scene().await;
    let over = scene.run().await.unwrap();
    assert_eq!(
        (over.winner, over.refused),
        (Some(Winner::Destination), None)
    );
    assert_eq!(scene.holders(), ["node-b"]);
    assert_eq!(
        (
            scene.local.count(UPDATE),
            scene.local.count("zoneOperations.wait")
        ),
        (2, 2)
    );
}

#[tokio::test]
async fn two_executors_at_once_make_one_move() {
    let scene = scene().await;
    let (one, other) = tokio::join!(scene.run(), scene.run());
    let winners = [one.unwrap().winner, other.unwrap().winner];
    assert!(winners.contains(&Some(Winner::Destination)), "{winners:?}");
    assert_eq!(scene.holders(), ["node-b"]);
}

#[tokio::test]
async fn a_refused_attach_goes_back_to_the_source() {
    let scene = scene().await;
    scene.local.faults(|request| {
        let attach = request.call == UPDATE && request.path.contains("node-b");
        attach.then(|| {
            Fault::FailOperation(
                "QUOTA_EXCEEDED".to_owned(),
                "ALIASES_PER_NETWORK_GLOBAL".to_owned(),
            )
        })
    });
    let over = scene.run().await.unwrap();
    assert_eq!(over.winner, Some(Winner::Source));
    assert!(
        matches!(&over.refused, Some(CloudError::Quota(text)) if text.contains("ALIASES")),
        "{over:?}"
    );
    assert_eq!(scene.holders(), ["node-a"]);
}

#[tokio::test]
async fn a_source_that_is_gone_counts_as_detached() {
    let scene = scene().await;
    scene
        .local
        .project(|project| project.remove_instance(&vm("node-a").zone, "node-a"));
    assert_eq!(scene.run().await.unwrap().winner, Some(Winner::Destination));
    assert_eq!(scene.holders(), ["node-b"]);
}

#[tokio::test]
async fn a_move_that_ends_before_it_began_changes_nothing() {
    let scene = scene().await;
    assert_eq!(
        scene.run_if(|| true).await.unwrap().winner,
        Some(Winner::Source)
    );
    assert!(scene.local.requests().is_empty());
    // One that was detached goes back.
    let later = self::scene().await;
    let seen = later.record.clone();
    let detached = move || {
        matches!(
            seen.0.lock().unwrap().0.as_ref().map(|step| step.phase),
            Some(Phase::Detached)
        )
    };
    assert_eq!(
        later.run_if(detached).await.unwrap().winner,
        Some(Winner::Source)
    );
    assert_eq!(later.holders(), ["node-a"]);
}

#[tokio::test]
async fn a_crash_after_every_request_is_resumed() {
    for stop in 1..=6 {
        let scene = scene().await;
        let mover = Arc::clone(&scene.mover);
        let task = tokio::spawn(async move {
            let deadline = Instant::now() + Duration::from_secs(60);
            mover.run(IP.parse().unwrap(), &|| false, deadline).await
        });
        while scene
            .local
            .requests()
            .iter()
            .filter(|request| request.call != "metadata")
            .count()
            < stop
        {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        task.abort();
        scene.run().await.unwrap();
        assert_eq!(
            scene.winner(),
            Some(Winner::Destination),
            "after {stop} requests"
        );
        assert_eq!(scene.holders(), ["node-b"], "after {stop} requests");
    }
}

#[tokio::test]
async fn every_fault_that_passes_is_outlived() {
    let refuse = |code, reason: &str| Fault::Refuse(ApiError::new(code, reason, "a test says so"));
    let faults = [
        ("instances.get", refuse(503, "backendError")),
        (UPDATE, refuse(412, "conditionNotMet")),
        (UPDATE, refuse(403, "rateLimitExceeded")),
        (UPDATE, refuse(400, "resourceNotReady")),
        (UPDATE, Fault::LoseAnswer),
        (UPDATE, Fault::Cut),
        (
            UPDATE,
            Fault::FailOperation("CONDITION_NOT_MET".to_owned(), String::new()),
        ),
        ("zoneOperations.wait", Fault::Cut),
    ];
    for (call, fault) in faults {
        let scene = scene().await;
        let shown = format!("{call} {fault:?}");
        let mut seen = std::collections::BTreeSet::new();
        // Once for each VM.
        scene.local.faults(move |request| {
            let first = request.call == call && seen.insert(request.path.clone());
            first.then(|| fault.clone())
        });
        assert_eq!(
            scene.run().await.unwrap().winner,
            Some(Winner::Destination),
            "{shown}"
        );
        assert_eq!(scene.holders(), ["node-b"], "{shown}");
    }
}

#[test]
fn a_vm_is_found_by_its_provider_id() {
    assert_eq!(
        Vm::of_provider_id("gce://p/us-central1-a/node-a"),
        Some(vm("node-a"))
    );
    for wrong in [
        "",
        "aws:///x/y",
        "gce://p/zone",
        "gce://p//x",
        "gce://p/z/n/more",
    ] {
        assert_eq!(Vm::of_provider_id(wrong), None, "{wrong}");
    }
}
