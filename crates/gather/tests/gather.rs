//! The common desk on a real API server: many nodes, a leader that goes, and those whom it must not serve.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use berth_core::dialect::WHEREABOUTS;
use berth_core::{
    Address, Answer, Claim, Handle, Owner, Prefix, RangeSpec, Record, Request, Space, Want,
};
use berth_desk::{Away, CommonDesk, Desk, DeskMetrics, DeskSettings, Desks};
use berth_gather::{AUDIENCE, Counter, GatherSettings, Guard, Identity, Leader, Notice, serve};
use berth_ledger::kube::{Connect, Connection};
use berth_ledger::{KubeLedger, Ledger, PoolKey, SharedLedger};
use berth_testkit::{Account, Cluster};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{OnceCell, watch};
use tokio_util::sync::CancellationToken;

const LEASE: &str = "berth-controller";

struct World {
    cluster: &'static Cluster,
    namespace: String,
    agent: Account,
    controller: Account,
}

/// A leader that serves in this process.
struct Serving {
    address: SocketAddr,
    leads: watch::Sender<bool>,
    end: CancellationToken,
    desks: Desks,
    pool: PoolKey,
}

fn rule(group: &str, resources: &[&str], verbs: &[&str]) -> Value {
    json!({ "apiGroups": [group], "resources": resources, "verbs": verbs })
}

impl World {
    async fn new(name: &str) -> World {
        static DEFINED: OnceCell<()> = OnceCell::const_new();
        let cluster = Cluster::shared().await;
        let define = || async {
            for crd in berth_api::crds().unwrap() {
                cluster.apply_object(crd).await.unwrap();
            }
        };
        DEFINED.get_or_init(define).await;
        let namespace = cluster.namespace(name).await.unwrap();
        let pools = rule(
            "whereabouts.cni.cncf.io",
            &["ippools"],
            &["patch", "get", "list", "watch", "create"],
        );
        let agent = json!([
            pools.clone(),
            rule("coordination.k8s.io", &["leases"], &["get"])
        ]);
        let controller = json!([
            pools,
            rule("coordination.k8s.io", &["leases"], &["create"]),
            rule("authentication.k8s.io", &["tokenreviews"], &["create"]),
            rule(
                "authorization.k8s.io",
                &["subjectaccessreviews"],
                &["create"]
            ),
        ]);
        let agent = cluster.service_account(&namespace, "agent", agent);
        let agent = agent.await.unwrap();
        let controller = cluster.service_account(&namespace, "controller", controller);
        World {
            cluster,
            agent,
            controller: controller.await.unwrap(),
            namespace,
        }
    }

    /// A leader, told by its Lease.
    async fn lead(&self) -> Serving {
        let connection = open(&self.controller).await;
        let ledger: SharedLedger = Arc::new(KubeLedger::new(connection.clone()));
        let desks = Desks::new(ledger, DeskSettings::default(), DeskMetrics::default());
        let identity = Identity::make().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (leads, led) = watch::channel(true);
        let guard = Guard::new(
            connection.client.clone(),
            &self.namespace,
            Duration::from_secs(5),
        );
        let counter = Counter::new(desks.clone(), guard, move || *led.borrow());
        let end = CancellationToken::new();
        let (until, notice) = (end.clone(), Notice::of(address.to_string(), &identity));
        tokio::spawn(async move { serve(listener, &identity, counter, until).await });
        let lease = json!({
            "metadata": { "name": LEASE, "annotations": notice.annotations() },
            "spec": {
                "holderIdentity": "one", "leaseDurationSeconds": 3600,
                "renewTime": format!("{:.6}", Timestamp::now()),
            },
        });
        Api::<Lease>::namespaced(connection.client, &self.namespace)
            .create(
                &PostParams::default(),
                &serde_json::from_value(lease).unwrap(),
            )
            .await
            .unwrap();
        Serving {
            address,
            leads,
            end,
            desks,
            pool: mk_pool(),
        }
    }

    async fn settings(&self, node: &str, account: &Account, audience: &str) -> GatherSettings {
        let token = self
            .cluster
            .pod_token(account, node, audience)
            .await
            .unwrap();
        let file = self.token_file(node);
        std::fs::write(&file, token).unwrap();
        GatherSettings::new(node, file)
    }

    fn token_file(&self, node: &str) -> PathBuf {
        let dir = self.agent.kubeconfig().parent().unwrap();
        dir.join(format!("{}-{node}.token", self.namespace))
    }

    async fn leader(&self, settings: GatherSettings) -> Arc<Leader> {
        let connection = open(&self.agent).await;
        Arc::new(Leader::new(connection.client, &self.namespace, settings))
    }

    /// One claim, put to the leader as an agent with these settings would.
    async fn ask(&self, settings: GatherSettings) -> Result<Vec<Option<Answer>>, Away> {
        let leader = self.leader(settings).await;
        let limit = Duration::from_secs(5);
        leader.put(&mk_pool(), &[mk_claim("x")], limit).await
    }

    /// A node's desk, which asks the leader first.
    async fn desk(&self, node: &str) -> Desk {
        let mut settings = self.settings(node, &self.agent, AUDIENCE).await;
        settings.pause = Duration::from_millis(200);
        settings.look = Duration::from_millis(200);
        let settings = DeskSettings {
            common: Some(self.leader(settings).await),
            ..DeskSettings::default()
        };
        let ledger: SharedLedger = Arc::new(KubeLedger::new(open(&self.agent).await));
        let metrics = DeskMetrics::default().of(node);
        Desk::open(ledger, mk_pool(), &settings, metrics)
    }

    /// Who holds what, by the object itself.
    async fn held(&self) -> BTreeMap<Address, String> {
        let ledger = KubeLedger::new(open(&self.agent).await);
        let now = ledger.load(&mk_pool()).await.unwrap();
        assert_eq!(now.pool.rivals().count(), 0, "I1");
        let entries = now.pool.records();
        entries
            .map(|(address, record)| (address, record.owner.subject.clone()))
            .collect()
    }
}

async fn open(account: &Account) -> Connection {
    let connect = Connect {
        kubeconfig: Some(account.kubeconfig().to_owned()),
        ..Connect::default()
    };
    connect.open().await.unwrap()
}

fn mk_pool() -> PoolKey {
    let network: Prefix = "10.0.0.0/16".parse().unwrap();
    PoolKey::of_network("10.0.0.0-16", network)
}

fn mk_claim(pod: &str) -> Request {
    let spec = RangeSpec::parse("10.0.0.0/16").unwrap();
    let space = Arc::new(Space::build(&spec, WHEREABOUTS).unwrap().0);
    Request::Claim(Claim {
        record: Record::new(
            Owner::new(format!("default/{pod}"), "net1"),
            Handle::new(format!("id-{pod}")),
        ),
        wants: vec![Want::any(space)],
    })
}

fn granted(answer: &Answer) -> Address {
    match answer {
        Answer::Granted(grants) => grants[0].address,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_claims_of_all_nodes_are_committed_together_by_the_leader() {
    let world = World::new("together").await;
    let serving = world.lead().await;
    let mut desks = Vec::new();
    for node in 0..8 {
        desks.push(world.desk(&format!("n{node}")).await);
    }
    let mut asks = Vec::new();
    for (node, desk) in desks.iter().enumerate() {
        for pod in 0..10 {
            let desk = desk.clone();
            asks.push(tokio::spawn(async move {
                let answer = desk.submit(mk_claim(&format!("p{node}-{pod}"))).await;
                granted(&answer.unwrap())
            }));
        }
    }
    let mut given = BTreeSet::new();
    for ask in asks {
        assert!(given.insert(ask.await.unwrap()), "I1");
    }
    assert_eq!(
        world.held().await.into_keys().collect::<BTreeSet<_>>(),
        given
    );
    let alone: u64 = desks.iter().map(|desk| desk.metrics().alone.get()).sum();
    let wrote: u64 = desks.iter().map(|desk| desk.metrics().commits.get()).sum();
    assert_eq!((alone, wrote), (0, 0), "the leader wrote for everybody");
    let commits = serving.desks.of(&serving.pool).metrics().commits.get();
    assert!(
        commits < 40,
        "80 claims in {commits} commits: they were not gathered"
    );
    serving.end.cancel();
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_go_on_alone_when_the_leader_goes_and_meet_again_in_the_next() {
    let world = World::new("alone").await;
    let serving = world.lead().await;
    let desk = world.desk("n1").await;
    desk.submit(mk_claim("a")).await.unwrap();
    assert_eq!(desk.metrics().common.get(), 1);

    serving.leads.send_replace(false);
    desk.submit(mk_claim("b")).await.unwrap();
    assert_eq!(
        (desk.metrics().common.get(), desk.metrics().alone.get()),
        (1, 1)
    );

    serving.leads.send_replace(true);
    let again = async {
        for pod in 0.. {
            let first = desk.submit(mk_claim("a")).await.unwrap();
            assert_eq!(granted(&first), "10.0.0.1".parse().unwrap(), "I3");
            if desk.metrics().common.get() > 1 {
                break;
            }
            assert!(pod < 500, "the leader is never asked again");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    again.await;

    serving.end.cancel();
    let before = desk.metrics().alone.get();
    // What a leader that is ending was asked already, it still answers.
    for pod in 0.. {
        desk.submit(mk_claim("c")).await.unwrap();
        if desk.metrics().alone.get() > before {
            break;
        }
        assert!(pod < 500, "a leader that has ended is still asked");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let pods: BTreeSet<String> = world.held().await.into_values().collect();
    let all = ["a", "b", "c"].map(|pod| format!("default/{pod}"));
    assert_eq!(pods, BTreeSet::from(all));
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_served_beyond_the_node_and_the_rights_of_its_token() {
    let world = World::new("guarded").await;
    let serving = world.lead().await;
    let reader = json!([rule("coordination.k8s.io", &["leases"], &["get"])]);
    let reader = world
        .cluster
        .service_account(&world.namespace, "reader", reader);
    let reader = reader.await.unwrap();

    let mut stolen = world.settings("n1", &world.agent, AUDIENCE).await;
    stolen.node = "n2".into();
    let foreign = world.settings("n3", &world.agent, "somewhere-else").await;
    let powerless = world.settings("n4", &reader, AUDIENCE).await;
    let mut unbound = GatherSettings::new("n5", world.token_file("n5"));
    std::fs::write(&unbound.token_file, world.agent.token()).unwrap();
    for (settings, why) in [
        (
            stolen,
            "the token is bound to node n1, the request is of n2",
        ),
        (foreign, "401"),
        (powerless, "may not patch ippools"),
        (unbound.clone(), "401"),
    ] {
        match world.ask(settings).await {
            Err(Away::Unheard(text)) => assert!(text.contains(why), "{text}"),
            other => panic!("{why}: {other:?}"),
        }
    }
    unbound.token_file = "/nonexistent/token".into();
    let text = world.ask(unbound).await.unwrap_err().to_string();
    assert!(text.contains("/nonexistent/token"), "{text}");
    assert_eq!(world.held().await, BTreeMap::new());
    serving.end.cancel();
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_listens_at_the_leaders_address_is_not_the_leader_without_its_key() {
    let world = World::new("impostor").await;
    let serving = world.lead().await;
    serving.end.cancel();
    let listener = loop {
        match TcpListener::bind(serving.address).await {
            Ok(listener) => break listener,
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    };
    let identity = Identity::make().unwrap();
    let connection = open(&world.controller).await;
    let guard = Guard::new(connection.client, &world.namespace, Duration::from_secs(5));
    let counter = Counter::new(serving.desks.clone(), guard, || true);
    let end = CancellationToken::new();
    let until = end.clone();
    tokio::spawn(async move { serve(listener, &identity, counter, until).await });

    let settings = world.settings("n1", &world.agent, AUDIENCE).await;
    match world.ask(settings).await {
        Err(Away::Unheard(text)) => assert!(text.contains("certificate"), "{text}"),
        other => panic!("{other:?}"),
    }
    end.cancel();
}
