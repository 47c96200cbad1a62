//! The provisioner against the local cloud.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use berth_gcp::cloud::{Cloud, Endpoints, Metadata, TokenSource};
use berth_gcp::provision::Step;
use berth_gcp::provision::executor::{Direction, Pools, PoolsError, ProvisionError, Provisioner};
use berth_gcp::provision::plan::{Method, Wanted};
use berth_testcloud::{AliasRange as Seen, ApiError, Cloud as LocalCloud, Fault, Project};
use serde_json::{Value, json};

const ZONE: &str = "us-central1-a";
const REGION: &str = "us-central1";

#[derive(Clone, Debug, Default)]
struct Objects(Arc<Mutex<BTreeMap<String, Value>>>);

fn name(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap().to_owned()
}

impl Pools for Objects {
    async fn get(&self, name: &str) -> Result<Option<Value>, PoolsError> {
        Ok(self.0.lock().unwrap().get(name).cloned())
    }

    async fn create(&self, object: &Value) -> Result<(), PoolsError> {
        self.0.lock().unwrap().insert(name(object), object.clone());
        Ok(())
    }

    async fn replace(&self, object: &Value) -> Result<(), PoolsError> {
        self.create(object).await
    }

    async fn delete(&self, object: &Value) -> Result<(), PoolsError> {
        self.0.lock().unwrap().remove(&name(object));
        Ok(())
    }
}

struct Scene {
    local: LocalCloud,
    objects: Objects,
    provisioner: Provisioner<Objects>,
}

async fn scene() -> Scene {
    let mut project = Project::new("berth-test");
    project.operation_time = Duration::from_millis(10);
    project.add_subnetwork(REGION, "nodes", "10.128.0.0/20");
    project.add_secondary_range(REGION, "nodes", "pods", "10.4.0.0/14");
    project.add_instance(
        ZONE,
        "node-a",
        (REGION, "nodes"),
        vec![Seen::of("pods", "10.4.0.0/24")],
    );
    let local = LocalCloud::start(project).await.unwrap();
    let host = local.metadata(ZONE, "node-a").await.unwrap();
    let endpoint = local.endpoint();
    let endpoints = Endpoints::new(Some(&endpoint), Some(&endpoint)).unwrap();
    let source = TokenSource::Metadata(Metadata::new(Some(&host)));
    let objects = Objects::default();
    let provisioner = Provisioner {
        cloud: Cloud::new("berth-test", endpoints, source, Duration::from_secs(10)),
        pools: objects.clone(),
        region: REGION.to_owned(),
        subnetwork: "nodes".to_owned(),
        wanted: Wanted {
            method: Method::Secondary {
                range: "live".to_owned(),
                prefix_length: 16,
            },
            pool: "ippool-nodes".to_owned(),
            subnet: "projects/berth-test/regions/us-central1/subnetworks/nodes".to_owned(),
        },
        within: vec!["10.0.0.0/8".to_owned()],
        excluded: Vec::new(),
        patience: Duration::from_secs(10),
    };
    Scene {
        local,
        objects,
        provisioner,
    }
}

impl Scene {
    async fn run(&self, direction: Direction) -> Result<Vec<Step>, ProvisionError> {
        let mut steps = Vec::new();
        self.provisioner
            .run(direction, |step| steps.push(step.clone()))
            .await?;
        Ok(steps)
    }

    fn pool(&self) -> Option<Value> {
        self.objects.0.lock().unwrap().get("ippool-nodes").cloned()
    }

    async fn ranges(&self) -> Vec<String> {
        let subnet = self
            .provisioner
            .cloud
            .subnetwork(REGION, "nodes")
            .await
            .unwrap();
        subnet
            .secondary
            .into_iter()
            .map(|range| range.name)
            .collect()
    }
}

#[tokio::test]
async fn a_subnet_is_provisioned_once_and_undone_in_reverse() {
    let scene = scene().await;
    let planned = scene.provisioner.steps(Direction::Provision).await.unwrap();
    assert_eq!(planned.len(), 3, "a dry run shows every step: {planned:?}");
    assert!(
        scene.pool().is_none() && scene.ranges().await == ["pods"],
        "a dry run changes nothing"
    );
    let steps = scene.run(Direction::Provision).await.unwrap();
    assert_eq!(steps.len(), 3, "{steps:?}");
    assert_eq!(scene.ranges().await, ["pods", "live"]);
    let pool = scene.pool().unwrap();
    assert_eq!(
        pool["status"],
        json!({ "capacity": 65534, "allocated": 0, "available": 65534 })
    );
    assert_eq!(pool["spec"]["secondaryRangeName"], "live");
    assert!(
        scene.run(Direction::Provision).await.unwrap().is_empty(),
        "idempotent"
    );
    let undone = scene.run(Direction::Undo).await.unwrap();
    assert_eq!(
        undone.first(),
        Some(&Step::DeletePool {
            name: "ippool-nodes".to_owned()
        })
    );
    assert_eq!(scene.ranges().await, ["pods"]);
    assert!(scene.pool().is_none());
    assert!(scene.run(Direction::Undo).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_run_that_was_cut_off_anywhere_is_resumed() {
    for call in [
        "internalRanges.create",
        "subnetworks.patch",
        "subnetworks.get",
        "regionOperations.wait",
    ] {
        let scene = scene().await;
        let refused = ApiError::new(403, "forbidden", "a test says so");
        scene
            .local
            .faults(move |request| (request.call == call).then(|| Fault::Refuse(refused.clone())));
        let error = scene
            .run(Direction::Provision)
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains("a test says so"), "{call}: {error}");
        scene.local.faults(|_| None);
        scene.run(Direction::Provision).await.unwrap();
        assert_eq!(scene.ranges().await, ["pods", "live"], "{call}");
        assert!(scene.pool().is_some());
    }
}

#[tokio::test]
async fn a_subnet_that_changes_meanwhile_is_read_again() {
    let scene = scene().await;
    let mut left = 1;
    scene.local.faults(move |request| {
        let first = request.call == "subnetworks.patch" && std::mem::take(&mut left) == 1;
        first.then(|| Fault::Refuse(ApiError::new(412, "conditionNotMet", "stale")))
    });
    assert_eq!(scene.run(Direction::Provision).await.unwrap().len(), 3);
}

#[tokio::test]
async fn what_would_break_pods_is_refused_before_the_first_step() {
    let scene = scene().await;
    let entry = json!({ "podName": "p", "podNamespace": "d", "podUID": "u", "nodeName": "n" });
    let object = json!({
        "metadata": { "name": "ippool-nodes", "labels": { "keep": "me" } },
        "spec": { "cidr": "10.200.0.0/16", "subnet": scene.provisioner.wanted.subnet, "allocations": { "10.200.0.7": entry } },
    });
    scene.objects.create(&object).await.unwrap();
    let error = scene.run(Direction::Provision).await.unwrap_err();
    assert!(matches!(error, ProvisionError::Refused(_)), "{error}");
    assert_eq!(
        scene.local.count("internalRanges.create"),
        0,
        "nothing half done"
    );
    assert!(matches!(
        scene.run(Direction::Undo).await,
        Err(ProvisionError::Refused(_))
    ));
    // Without pods it is updated, and keeps what is not Berth's.
    let mut free = object;
    free["spec"]["allocations"] = json!({});
    scene.objects.create(&free).await.unwrap();
    scene.run(Direction::Provision).await.unwrap();
    let pool = scene.pool().unwrap();
    assert_eq!(pool["metadata"]["labels"]["keep"], "me");
    assert_ne!(pool["spec"]["cidr"], "10.200.0.0/16");
}
