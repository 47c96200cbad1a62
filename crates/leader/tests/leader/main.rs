//! The common desk on a real API server: many nodes, a leader that goes, and those whom it must not serve.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use berth_core::dialect::WHEREABOUTS;
use berth_core::plan::Selector;
use berth_core::{
    Address, AddressRequest, Allocate, Answer, Handle, NODE, Owner, Prefix, RangeSpec, Record,
    Release, Request, Space,
};
use berth_desk::{Desk, DeskMetrics, DeskSettings, Desks, LeaderAway, LeaderDesk};
use berth_kube::{Connect, Connection};
use berth_leader::{
    AUDIENCE, Admission, Authorizer, DeskServer, Endpoint, Leader, LeaderSettings, TlsIdentity,
    serve,
};
use berth_ledger::{Ledger, PoolKey, SharedLedger};
use berth_testkit::{Account, Agents, Cluster, Fate, FaultProxy};
use berth_whereabouts::KubeLedger;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{OnceCell, watch};
use tokio_util::sync::CancellationToken;

mod kinds;

const LEASE: &str = "berth-controller";

struct World {
    cluster: &'static Cluster,
    namespace: String,
    agents: Agents,
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
        let controller = json!([
            pools,
            rule("coordination.k8s.io", &["leases"], &["create"]),
            rule("authentication.k8s.io", &["tokenreviews"], &["create"]),
            rule(
                "authorization.k8s.io",
                &["subjectaccessreviews"],
                &["create"]
            ),
            rule("", &["pods"], &["get"]),
            rule("k8s.cni.cncf.io", &["ipamclaims"], &["get", "list"]),
        ]);
        let agents = cluster.agents(&namespace).await;
        let agents = agents.unwrap();
        let agent = agents.on("n0").await.unwrap();
        let controller = cluster.service_account(&namespace, "controller", controller);
        World {
            cluster,
            agents,
            agent,
            controller: controller.await.unwrap(),
            namespace,
        }
    }

    /// A leader, told by its Lease.
    async fn lead(&self) -> Serving {
        self.lead_with(|server| server).await
    }

    /// The same with a server that is changed before it serves.
    async fn lead_with(&self, change: impl FnOnce(DeskServer) -> DeskServer) -> Serving {
        let connection = open(&self.controller).await;
        let ledger: SharedLedger = Arc::new(KubeLedger::new(connection.clone()));
        let desks = Desks::new(ledger, DeskSettings::default(), DeskMetrics::default());
        let identity = TlsIdentity::make().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (leads, led) = watch::channel(true);
        let authorizer = Authorizer::new(
            connection.client.clone(),
            &self.namespace,
            Duration::from_secs(5),
        );
        let server = DeskServer::new(
            desks.clone(),
            authorizer,
            move || *led.borrow(),
            admission(),
        );
        let server = change(server);
        let end = CancellationToken::new();
        let (until, endpoint) = (end.clone(), Endpoint::of(address.to_string(), &identity));
        tokio::spawn(async move { serve(listener, &identity, server, until).await });
        let lease = json!({
            "metadata": { "name": LEASE, "annotations": endpoint.annotations() },
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

    async fn settings(&self, node: &str, account: &Account, audience: &str) -> LeaderSettings {
        let token = self
            .cluster
            .pod_token(account, node, audience)
            .await
            .unwrap();
        let file = self.token_file(node);
        std::fs::write(&file, token).unwrap();
        LeaderSettings::new(node, file)
    }

    fn token_file(&self, node: &str) -> PathBuf {
        let dir = self.agent.kubeconfig().parent().unwrap();
        dir.join(format!("{}-{node}.token", self.namespace))
    }

    async fn leader(&self, settings: LeaderSettings) -> Arc<Leader> {
        self.leader_of(&self.agent, settings).await
    }

    async fn leader_of(&self, account: &Account, settings: LeaderSettings) -> Arc<Leader> {
        let connection = open(account).await;
        Arc::new(Leader::new(connection.client, &self.namespace, settings))
    }

    /// One claim, put to the leader as an agent with these settings would.
    async fn ask(&self, settings: LeaderSettings) -> Result<Vec<Option<Answer>>, LeaderAway> {
        let leader = self.leader(settings).await;
        let limit = Duration::from_secs(5);
        leader.put(&mk_pool(), &[mk_claim("x")], limit).await
    }

    /// A node's desk, which asks the leader first.
    async fn desk(&self, node: &str) -> Desk {
        let mut settings = self.settings(node, &self.agent, AUDIENCE).await;
        settings.pause = Duration::from_millis(200);
        settings.search_pause = Duration::from_millis(200);
        let settings = DeskSettings {
            leader: Some(self.leader(settings).await),
            ..DeskSettings::default()
        };
        let account = self.agents.on(node).await.unwrap();
        let ledger: SharedLedger = Arc::new(KubeLedger::new(open(&account).await));
        let metrics = DeskMetrics::default().of(node);
        Desk::open(ledger, mk_pool(), &settings, metrics)
    }

    /// Who holds what, by the object itself.
    async fn held(&self) -> BTreeMap<Address, String> {
        let ledger = KubeLedger::new(open(&self.agent).await);
        let now = ledger.load(&mk_pool()).await.unwrap();
        assert_eq!(now.pool.duplicate_holders().count(), 0, "I1");
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

/// Of all pools there may be one.
fn admission() -> Admission {
    Arc::new(|pool| Box::pin(async move { pool == mk_pool() }))
}

fn mk_pool() -> PoolKey {
    let network: Prefix = "10.0.0.0/16".parse().unwrap();
    PoolKey::of_network("10.0.0.0-16", network)
}

fn mk_claim(pod: &str) -> Request {
    let spec = RangeSpec::parse("10.0.0.0/16").unwrap();
    let space = Arc::new(Space::build(&spec, WHEREABOUTS).unwrap().0);
    Request::Allocate(Allocate {
        record: Record::new(
            Owner::new(format!("default/{pod}"), "net1"),
            Handle::new(format!("id-{pod}")),
        ),
        wants: vec![AddressRequest::any(space)],
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

/// Many nodes that join at once make the API server slow. Committing alone goes through the same API server.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_read_of_the_lease_does_not_keep_a_node_from_the_leader() {
    let world = World::new("slow-lease").await;
    let serving = world.lead().await;
    let mut settings = world.settings("n1", &world.agent, AUDIENCE).await;
    settings.source = Some("127.1.0.9".parse().unwrap());
    let proxy = FaultProxy::of(&world.agent).await.unwrap();
    let slow = settings.connect * 2;
    proxy.rule(move |asked| match asked.path.contains("/leases/") {
        true => Fate::Later(slow),
        false => Fate::Pass,
    });
    let connect = Connect {
        kubeconfig: Some(proxy.kubeconfig()),
        ..Connect::default()
    };
    let client = connect.open().await.unwrap().client;
    let leader = Leader::new(client, &world.namespace, settings);
    let limit = Duration::from_secs(5);
    let answers = leader.put(&mk_pool(), &[mk_claim("x")], limit).await;
    assert!(answers.unwrap()[0].is_some());
    serving.end.cancel();
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_go_on_alone_when_the_leader_goes_and_meet_again_in_the_next() {
    let world = World::new("alone").await;
    let serving = world.lead().await;
    let desk = world.desk("n1").await;
    desk.submit(mk_claim("a")).await.unwrap();
    assert_eq!(desk.metrics().by_leader.get(), 1);

    serving.leads.send_replace(false);
    desk.submit(mk_claim("b")).await.unwrap();
    assert_eq!(
        (desk.metrics().by_leader.get(), desk.metrics().alone.get()),
        (1, 1)
    );

    serving.leads.send_replace(true);
    let again = async {
        for pod in 0.. {
            let first = desk.submit(mk_claim("a")).await.unwrap();
            assert_eq!(granted(&first), "10.0.0.1".parse().unwrap(), "I3");
            if desk.metrics().by_leader.get() > 1 {
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
    let mut unbound = LeaderSettings::new("n5", world.token_file("n5"));
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
            Err(LeaderAway::NotReceived(text)) => assert!(text.contains(why), "{text}"),
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
    let identity = TlsIdentity::make().unwrap();
    let connection = open(&world.controller).await;
    let authorizer = Authorizer::new(connection.client, &world.namespace, Duration::from_secs(5));
    let server = DeskServer::new(serving.desks.clone(), authorizer, || true, admission());
    let end = CancellationToken::new();
    let until = end.clone();
    tokio::spawn(async move { serve(listener, &identity, server, until).await });

    let settings = world.settings("n1", &world.agent, AUDIENCE).await;
    match world.ask(settings).await {
        Err(LeaderAway::NotReceived(text)) => assert!(text.contains("certificate"), "{text}"),
        other => panic!("{other:?}"),
    }
    end.cancel();
}

/// The same claim, with the node in its record as agents write it.
fn claim_on(node: &str, pod: &str, container: &str) -> Request {
    let Request::Allocate(mut claim) = mk_claim(pod) else {
        unreachable!("mk_claim makes claims");
    };
    claim.record.handle = Handle::new(container);
    claim.record = claim.record.with(NODE, node);
    Request::Allocate(claim)
}

fn release(selector: Selector) -> Request {
    let cooldown = Duration::ZERO;
    Request::Release(Release { selector, cooldown })
}

impl World {
    async fn put(&self, leader: &Leader, request: Request) -> Option<Answer> {
        let limit = Duration::from_secs(5);
        let answers = leader.put(&mk_pool(), &[request], limit).await.unwrap();
        answers.into_iter().next().unwrap()
    }

    async fn at(&self, node: &str) -> Arc<Leader> {
        let settings = self.settings(node, &self.agent, AUDIENCE).await;
        self.leader(settings).await
    }

    /// A pod that is bound to a node, or is moved there.
    async fn bind(&self, pod: &str, node: &str) {
        let pods: Api<Pod> = Api::namespaced(self.cluster.client().await.unwrap(), &self.namespace);
        let at_once = kube::api::DeleteParams::default().grace_period(0);
        let _ = pods.delete(pod, &at_once).await;
        let object = json!({
            "metadata": { "name": pod },
            "spec": { "nodeName": node, "containers": [{ "name": "c", "image": "nothing" }] },
        });
        let object: Pod = serde_json::from_value(object).unwrap();
        pods.create(&PostParams::default(), &object).await.unwrap();
    }

    fn named(&self, request: Request, pod: &str) -> Request {
        let Request::Allocate(mut claim) = request else {
            return request;
        };
        claim.record.owner = Owner::new(format!("{}/{pod}", self.namespace), "net1");
        Request::Allocate(claim)
    }
}

/// A token of node-a was stolen: at the leader's desk it frees nothing of node-b's, by whatever it names it.
#[tokio::test(flavor = "multi_thread")]
async fn the_leader_releases_no_entry_of_another_node() {
    let world = World::new("releases").await;
    let serving = world.lead().await;
    let (thief, owner) = (world.at("node-a").await, world.at("node-b").await);
    let given = world.put(&owner, claim_on("node-b", "victim", "c1")).await;
    let address = granted(&given.unwrap());
    let holder = Record::new(Owner::new("default/victim", "net1"), Handle::new("c1"));
    let selectors = || {
        let handle = holder.handle.clone();
        let holder = holder.clone();
        [
            Selector::Handle { handle, part: None },
            Selector::Owner(holder.owner.clone()),
            Selector::Address { address, holder },
        ]
    };
    for selector in selectors() {
        let answer = world.put(&thief, release(selector)).await;
        assert_eq!(answer, None, "left to whoever has the right");
    }
    // Nor does it take it over first: no pod of that name is on its node.
    let answer = world.put(&thief, claim_on("node-a", "victim", "stolen"));
    assert_eq!(answer.await, None);
    let transfer = Request::Transfer {
        address,
        expected: holder.clone(),
        record: Record::new(Owner::new("default/thief", "net1"), Handle::new("t")),
    };
    assert_eq!(world.put(&thief, transfer).await, None);
    assert_eq!(world.held().await.len(), 1);
    let [by_handle, ..] = selectors();
    let freed = world.put(&owner, release(by_handle)).await;
    assert!(matches!(freed, Some(Answer::Released(freed)) if freed.len() == 1));
    serving.end.cancel();
}

/// A StatefulSet's pod that is made again on another node takes its address along; a node that it is not on gets nothing.
#[tokio::test(flavor = "multi_thread")]
async fn an_entry_goes_to_the_node_that_its_pod_is_on() {
    let world = World::new("moved").await;
    let serving = world.lead().await;
    let (first, second) = (world.at("node-a").await, world.at("node-b").await);
    world.bind("db-0", "node-a").await;
    let claim =
        |node: &str, container: &str| world.named(claim_on(node, "db-0", container), "db-0");
    let given = world.put(&first, claim("node-a", "c1")).await.unwrap();
    assert_eq!(world.put(&second, claim("node-b", "c2")).await, None);
    world.bind("db-0", "node-b").await;
    let again = world.put(&second, claim("node-b", "c2")).await.unwrap();
    assert_eq!(granted(&again), granted(&given), "I3");
    // An entry that names no node (whereabouts') is its pod's node's, too.
    world.bind("old", "node-b").await;
    let old = world.named(mk_claim("old"), "old");
    world.put(&second, old).await.unwrap();
    let by_handle = || {
        let handle = Handle::new("id-old");
        release(Selector::Handle { handle, part: None })
    };
    assert_eq!(world.put(&first, by_handle()).await, None);
    let freed = world.put(&second, by_handle()).await;
    assert!(matches!(freed, Some(Answer::Released(freed)) if freed.len() == 1));
    serving.end.cancel();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_leader_bounds_what_a_request_may_ask_for() {
    let world = World::new("bounds").await;
    let serving = world.lead().await;
    let leader = world.at("node-a").await;
    let endless = Request::Release(Release {
        selector: Selector::Owner(Owner::new("default/p", "net1")),
        cooldown: Duration::from_secs(9_223_372_036_854_775_807),
    });
    let limit = Duration::from_secs(5);
    match leader.put(&mk_pool(), &[endless], limit).await {
        Err(LeaderAway::NotReceived(text)) => assert!(text.contains("cooldown"), "{text}"),
        other => panic!("{other:?}"),
    }
    let leader = world.at("node-a").await;
    let theirs = claim_on("node-b", "p", "c");
    match leader.put(&mk_pool(), &[theirs], limit).await {
        Err(LeaderAway::NotReceived(text)) => assert!(text.contains("node-b"), "{text}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(world.held().await, BTreeMap::new());
    serving.end.cancel();
}
