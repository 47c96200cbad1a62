//! Pools of a second kind at the leader's desk: routed to their own ledger, guarded by the right on that kind, and committed
//! by the node itself where the leader does not know the kind.

use berth_core::Pool;
use berth_kube::{Place, Resource};
use berth_leader::{Owners, PoolKind, Route};
use berth_ledger::object::{Codec, Commit, EncodeError, ObjectLedger};

use super::*;

const RACKS: Resource = Resource {
    group: "test.berth.dev",
    version: "v1",
    plural: "racks",
    kind: "Rack",
    place: Place::Namespaced,
};

/// A kind of this test's own: entries in `spec.entries`, by address.
#[derive(Clone, Copy, Debug)]
struct Racks;

impl Codec for Racks {
    fn resource(&self) -> &'static Resource {
        &RACKS
    }

    fn decode(&self, _key: &PoolKey, object: &Value) -> Result<Pool, String> {
        let mut pool = Pool::new();
        let entries = object["spec"]["entries"].as_object();
        for (key, entry) in entries.into_iter().flatten() {
            let address = key.parse().map_err(|_| format!("{key} is no address"))?;
            let record: Record =
                serde_json::from_value(entry.clone()).map_err(|error| error.to_string())?;
            pool.restore(address, record);
        }
        Ok(pool)
    }

    fn encode(&self, object: &mut Value, commit: &Commit<'_>) -> Result<(), EncodeError> {
        let entries = commit.after.records();
        let entries = entries.map(|(address, record)| (address.to_string(), json!(record)));
        object["spec"]["entries"] = Value::Object(entries.collect());
        Ok(())
    }
}

fn mk_rack() -> PoolKey {
    PoolKey::named("rack-1")
}

struct Kinds {
    world: World,
    /// An account that may write racks, and no IPPools.
    porter: Account,
}

impl Kinds {
    async fn new(name: &str) -> Kinds {
        let world = World::new(name).await;
        let kept = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
        let definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": { "name": RACKS.name() },
            "spec": {
                "group": RACKS.group, "scope": "Namespaced",
                "names": { "plural": RACKS.plural, "singular": "rack", "kind": RACKS.kind },
                "versions": [{
                    "name": RACKS.version, "served": true, "storage": true,
                    "schema": { "openAPIV3Schema": {
                        "type": "object", "properties": { "spec": kept },
                    } },
                }],
            },
        });
        world.cluster.apply_object(definition).await.unwrap();
        let verbs = ["get", "list", "watch", "update"];
        let rules = json!([
            rule(RACKS.group, &[RACKS.plural], &verbs),
            rule("coordination.k8s.io", &["leases"], &["get"]),
        ]);
        let porter = world
            .cluster
            .service_account(&world.namespace, "porter", rules);
        let kinds = Kinds {
            porter: porter.await.unwrap(),
            world,
        };
        kinds.plant().await;
        kinds
    }

    /// The object, once the server serves the kind.
    async fn plant(&self) {
        let object = json!({
            "apiVersion": RACKS.api_version(), "kind": RACKS.kind,
            "metadata": { "name": mk_rack().name }, "spec": {},
        });
        for _ in 0..200 {
            let ledger = self.ledger().await;
            if ledger.client().create(&RACKS, &object).await.is_ok() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("the API server does not serve the kind after 20 s");
    }

    /// By the rights of the cluster's administrator: the leader's role is not what is tested here.
    async fn ledger(&self) -> ObjectLedger<Racks> {
        let connect = Connect {
            kubeconfig: Some(self.world.cluster.kubeconfig()),
            namespace: Some(self.world.namespace.clone()),
            ..Connect::default()
        };
        ObjectLedger::new(&connect.open().await.unwrap(), Racks)
    }

    async fn route(&self, owners: Owners) -> (Route, Desks) {
        let ledger: SharedLedger = Arc::new(self.ledger().await);
        let desks = Desks::new(ledger, DeskSettings::default(), DeskMetrics::default());
        let route = Route {
            kind: PoolKind::of(&Racks),
            owners,
            move_of: None,
            desks: desks.clone(),
            admits: Arc::new(|pool| Box::pin(async move { pool == mk_rack() })),
        };
        (route, desks)
    }

    /// A node's desk for the rack, which asks the leader first.
    async fn desk(&self, node: &str, account: &Account) -> Desk {
        let mut settings = self.world.settings(node, account, AUDIENCE).await;
        settings.pause = Duration::from_secs(3600);
        let leader = self.world.leader_of(account, settings).await;
        let settings = DeskSettings {
            leader: Some(Arc::new(leader.of_kind(PoolKind::of(&Racks)))),
            ..DeskSettings::default()
        };
        let ledger: SharedLedger = Arc::new(ObjectLedger::new(&open(account).await, Racks));
        let metrics = DeskMetrics::default().of(node);
        Desk::open(ledger, mk_rack(), &settings, metrics)
    }

    async fn racked(&self) -> usize {
        let now = self.ledger().await.load(&mk_rack()).await.unwrap();
        now.pool.len()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_goes_to_the_desks_of_its_kind() {
    let kinds = Kinds::new("routed").await;
    let (route, desks) = kinds.route(Owners::Pods).await;
    let serving = kinds.world.lead_with(|server| server.serving(route)).await;
    let desk = kinds.desk("n1", &kinds.porter).await;
    let answer = desk.submit(mk_claim("a")).await.unwrap();
    assert_eq!(granted(&answer), "10.0.0.1".parse().unwrap());
    let metrics = desk.metrics();
    assert_eq!((metrics.by_leader.get(), metrics.commits.get()), (1, 0));
    assert_eq!(desks.of(&mk_rack()).metrics().commits.get(), 1);
    assert_eq!(
        (kinds.racked().await, kinds.world.held().await.len()),
        (1, 0)
    );
    serving.end.cancel();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_right_on_one_kind_is_none_on_another() {
    let kinds = Kinds::new("rights").await;
    let (route, _) = kinds.route(Owners::Pods).await;
    let serving = kinds.world.lead_with(|server| server.serving(route)).await;
    let limit = Duration::from_secs(5);
    let refused = |outcome: Result<Vec<Option<Answer>>, LeaderAway>, why: &str| match outcome {
        Err(LeaderAway::NotReceived(text)) => assert!(text.contains(why), "{text}"),
        other => panic!("{why}: {other:?}"),
    };
    // The agent may patch IPPools and no racks: refused for these, and served for those by the same leader.
    let agent = kinds.world.at("n1").await;
    let racks = agent.of_kind(PoolKind::of(&Racks));
    let outcome = racks.put(&mk_rack(), &[mk_claim("a")], limit).await;
    refused(outcome, "may not update racks in ");
    let served = agent.put(&mk_pool(), &[mk_claim("a")], limit).await;
    assert!(served.unwrap()[0].is_some());
    // And the other way round.
    let settings = kinds.world.settings("n2", &kinds.porter, AUDIENCE).await;
    let porter = kinds.world.leader_of(&kinds.porter, settings).await;
    let outcome = porter.put(&mk_pool(), &[mk_claim("b")], limit).await;
    refused(outcome, "may not patch ippools in ");
    let racks = porter.of_kind(PoolKind::of(&Racks));
    let served = racks.put(&mk_rack(), &[mk_claim("b")], limit).await;
    assert!(served.unwrap()[0].is_some());
    assert_eq!(
        (kinds.racked().await, kinds.world.held().await.len()),
        (1, 1)
    );
    serving.end.cancel();
}

/// A leader from before a kind, as one without its route: both answer 404.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_does_not_know_the_kind_refuses_and_the_node_commits_by_itself() {
    let kinds = Kinds::new("unknown").await;
    let serving = kinds.world.lead().await;
    let desk = kinds.desk("n1", &kinds.porter).await;
    desk.submit(mk_claim("a")).await.unwrap();
    let metrics = desk.metrics();
    assert_eq!((metrics.by_leader.get(), metrics.commits.get()), (0, 1));
    assert_eq!(kinds.racked().await, 1);
    // What it says, and that other kinds are asked still.
    let agent = kinds.world.at("n2").await;
    let limit = Duration::from_secs(5);
    let racks = agent.of_kind(PoolKind::of(&Racks));
    match racks.put(&mk_rack(), &[mk_claim("b")], limit).await {
        Err(LeaderAway::NotReceived(text)) => {
            assert!(
                text.contains("404") && text.contains("commit by yourself"),
                "{text}"
            );
            assert!(text.contains("ippools.whereabouts.cni.cncf.io"), "{text}");
        }
        other => panic!("{other:?}"),
    }
    let served = agent.put(&mk_pool(), &[mk_claim("b")], limit).await;
    assert!(served.unwrap()[0].is_some());
    serving.end.cancel();
}

#[tokio::test(flavor = "multi_thread")]
async fn where_nodes_are_the_owners_none_writes_for_another() {
    let kinds = Kinds::new("owners").await;
    let (route, _) = kinds.route(Owners::Nodes).await;
    let serving = kinds.world.lead_with(|server| server.serving(route)).await;
    let settings = kinds.world.settings("n1", &kinds.porter, AUDIENCE).await;
    let leader = kinds.world.leader_of(&kinds.porter, settings).await;
    let racks = leader.of_kind(PoolKind::of(&Racks));
    let limit = Duration::from_secs(5);
    let claim = |subject: &str| {
        let Request::Allocate(mut claim) = mk_claim("x") else {
            unreachable!("mk_claim makes claims");
        };
        claim.record.owner = Owner::new(subject, "first");
        claim.record = claim.record.with(NODE, "n1");
        Request::Allocate(claim)
    };
    let served = racks.put(&mk_rack(), &[claim("n1/policy")], limit).await;
    assert!(served.unwrap()[0].is_some());
    match racks.put(&mk_rack(), &[claim("n2/policy")], limit).await {
        Err(LeaderAway::NotReceived(text)) => assert!(text.contains("n2/policy"), "{text}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(kinds.racked().await, 1);
    serving.end.cancel();
}
