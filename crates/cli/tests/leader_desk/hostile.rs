//! A neighbour on the network and a stolen token, against the built controller and agent.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use berth_testkit::RawClient;
use kube::api::Request as Asked;

use super::*;

/// Addresses of this machine, none of which is another's peer.
const HOSTILE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 66);
const SECOND: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 67);

/// What an attack may add to a process, in kilobytes. A debug build's own size says nothing about one that ships.
const GROWTH: u64 = 64 * 1024;

fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

struct Attacked {
    site: Site,
    controller: Process,
    /// Health and metrics of the controller and of the agent.
    health: SocketAddr,
    agent_health: SocketAddr,
    desk: SocketAddr,
    node: Node,
}

impl Attacked {
    async fn new() -> Attacked {
        let site = Site::new().await;
        let (health, agent_health) = (free_address(), free_address());
        let listen = ["--listen".to_owned(), health.to_string()];
        let controller = site.controller_with("first", 60, &listen);
        until("it leads", async || site.leader().await.is_some()).await;
        until("it is ready", async || {
            RawClient::get(health, "/readyz").is_ok()
        })
        .await;
        let listen = ["--listen".to_owned(), agent_health.to_string()];
        let node = site.node_with("n0", &listen).await;
        let desk = site.desk().await;
        Attacked {
            site,
            controller,
            health,
            agent_health,
            desk,
            node,
        }
    }

    /// An honest pod still starts, through the leader's desk, and the probes are still answered.
    fn assert_serves(&self, pod: &str) {
        let before = self.node.gathered();
        self.node.add(pod);
        assert_eq!(self.node.gathered(), before + 1, "the leader answered");
        RawClient::get(self.health, "/healthz").unwrap();
        RawClient::get(self.agent_health, "/healthz").unwrap();
    }
}

fn half_body(token: &str) -> String {
    format!(
        "POST /v1/desk HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\ncontent-length: 4194304\r\n\r\n"
    )
}

/// A batch of node n0 without a request in it.
fn batch(pool: &str, network: &str) -> String {
    let pool = json!({ "name": pool, "network": network });
    json!({ "node": "n0", "limit_ms": 1000, "requests": [], "pool": pool }).to_string()
}

fn asked(token: &str, batch: &str) -> String {
    let length = batch.len();
    format!(
        "POST /v1/desk HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\ncontent-length: {length}\r\n\r\n{batch}"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn berth_16_3_half_bodies_and_half_heads_lock_nobody_out_and_hold_little_memory() {
    let attacked = Attacked::new().await;
    attacked.assert_serves("before");
    let controller = attacked.controller.peak_rss().unwrap();
    let agent = attacked.node.0.process.peak_rss().unwrap();

    let mut held = Vec::new();
    let megabytes = vec![b' '; 4_000_000];
    for n in 0..66 {
        let mut stranger = RawClient::connect_tls(attacked.desk, HOSTILE).unwrap();
        stranger
            .send(half_body(&format!("forged{n}")).as_bytes())
            .unwrap();
        // Refused by the head: the rest finds nobody.
        let _ = stranger.send(&megabytes);
        held.push(stranger);
    }
    attacked.assert_serves("half-bodies");
    let head = format!("GET /metrics HTTP/1.1\r\nx: {}", "y".repeat(390_000));
    for address in [attacked.health, attacked.agent_health] {
        for n in 0..838 {
            let source = if n % 2 == 0 { HOSTILE } else { SECOND };
            let mut stranger = RawClient::connect(address, source).unwrap();
            let _ = stranger.send(head.as_bytes());
            held.push(stranger);
        }
    }
    for _ in 0..838 {
        let mut stranger = RawClient::connect_tls(attacked.desk, HOSTILE).unwrap();
        let _ = stranger.send(head.as_bytes());
        held.push(stranger);
    }
    attacked.assert_serves("half-heads");
    let grown = attacked.controller.peak_rss().unwrap() - controller;
    assert!(grown < GROWTH, "the controller grew by {grown} kB");
    let grown = attacked.node.0.process.peak_rss().unwrap() - agent;
    assert!(grown < GROWTH, "the agent grew by {grown} kB");
    drop(held);
}

/// A value of the API server's own metrics, summed over the lines that have all these words.
async fn api_metric(site: &Site, name: &str, words: &[&str]) -> u64 {
    let client = site.cluster.client().await.unwrap();
    let request = Asked::new("/metrics").list(&Default::default()).unwrap();
    let text = client.request_text(request).await.unwrap();
    let lines = text.lines().filter(|line| line.starts_with(name));
    let lines = lines.filter(|line| words.iter().all(|word| line.contains(word)));
    let values = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    values.sum::<f64>() as u64
}

async fn reviews(site: &Site) -> u64 {
    api_metric(
        site,
        "apiserver_request_total",
        &["\"tokenreviews\"", "POST"],
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn berth_16_3_forged_tokens_cost_few_reviews_and_lock_out_no_other_peer() {
    let attacked = Attacked::new().await;
    attacked.assert_serves("before");
    // Without any token: refused, and told at once.
    let mut stranger = RawClient::connect_tls(attacked.desk, SECOND).unwrap();
    let bare = "POST /v1/desk HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n";
    stranger.send(bare.as_bytes()).unwrap();
    assert_eq!(stranger.answer().unwrap().0, 401);
    let log = || std::fs::read_to_string(attacked.controller.log()).unwrap();
    assert!(log().contains("no Authorization: Bearer"), "{}", log());
    let before = reviews(&attacked.site).await;
    let mut refused = BTreeMap::<u16, usize>::new();
    let mut stranger = RawClient::connect_tls(attacked.desk, HOSTILE).unwrap();
    for n in 0..400 {
        let batch = batch("10.9.0.0-16", "10.9.0.0/16");
        let asked = asked(&format!("forged{n}"), &batch);
        let mut told = stranger
            .send(asked.as_bytes())
            .and_then(|()| stranger.answer());
        if told.is_err() {
            // The connection was closed with the last answer, whose body was not read.
            stranger = RawClient::connect_tls(attacked.desk, HOSTILE).unwrap();
            told = stranger
                .send(asked.as_bytes())
                .and_then(|()| stranger.answer());
        }
        *refused.entry(told.unwrap().0).or_default() += 1;
    }
    let made = reviews(&attacked.site).await - before;
    assert!(made <= 40, "400 forged tokens made {made} reviews");
    assert_eq!(refused.keys().copied().collect::<Vec<_>>(), [401, 429]);
    // The same token again and again is one review too.
    let mut stranger = RawClient::connect_tls(attacked.desk, SECOND).unwrap();
    let before = reviews(&attacked.site).await;
    for _ in 0..50 {
        stranger.send("POST /v1/desk HTTP/1.1\r\nhost: x\r\nauthorization: Bearer same\r\ncontent-length: 0\r\n\r\n".as_bytes()).unwrap();
        assert_eq!(stranger.answer().unwrap().0, 401);
    }
    assert!(reviews(&attacked.site).await - before <= 3);
    attacked.assert_serves("after");
    let log = log();
    let lines = log
        .lines()
        .filter(|line| line.contains("were refused at the leader"));
    let lines = lines.count();
    assert!((1..=5).contains(&lines), "{lines} lines for 450 refusals");
}

#[tokio::test(flavor = "multi_thread")]
async fn berth_16_3_a_token_that_names_4000_pools_opens_desks_for_none_that_does_not_exist() {
    let attacked = Attacked::new().await;
    attacked.assert_serves("before");
    let grown = attacked.controller.peak_rss().unwrap();
    // The agent's own.
    let token = std::fs::read_to_string(attacked.site.dir.path().join("n0.token")).unwrap();
    let mut stranger = RawClient::connect_tls(attacked.desk, HOSTILE).unwrap();
    for n in 0..4000 {
        let (b, c) = (n / 256, n % 256);
        let batch = batch(&format!("10.{b}.{c}.0-24"), &format!("10.{b}.{c}.0/24"));
        let asked = asked(&token, &batch);
        stranger.send(asked.as_bytes()).unwrap();
        let (status, body) = stranger.answer().unwrap();
        assert_eq!(status, 200, "{body}");
    }
    let grown = attacked.controller.peak_rss().unwrap() - grown;
    assert!(grown < GROWTH, "the controller grew by {grown} kB");
    let words = ["\"ippools\"", "\"WATCH\""];
    let watches = api_metric(&attacked.site, "apiserver_longrunning_requests", &words).await;
    assert!(watches < 20, "{watches} watches of pools");
    let metrics = RawClient::get(attacked.health, "/metrics").unwrap();
    let series = metrics
        .lines()
        .filter(|line| !line.starts_with('#'))
        .count();
    assert!(series < 200, "{series} series");
    attacked.assert_serves("after");
}

/// The controller's account is under no policy: the leader has to leave other nodes' published pools alone by itself.
#[tokio::test(flavor = "multi_thread")]
async fn berth_16_2_the_leader_writes_no_pool_that_a_node_publishes() {
    use berth_core::dialect::WHEREABOUTS;
    use berth_core::{AddressRequest, Allocate, Handle, Owner, RangeSpec, Record, Request, Space};

    let attacked = Attacked::new().await;
    let site = &attacked.site;
    let ipam = |network: &str, range: &str| {
        json!({ "type": "macvlan", "ipam": {
        "type": "berth", "range": range, "network_name": network } })
    };
    // A definition whose networks' pools have the names of pools that the nodes n1 and n2 would publish.
    let config = json!({ "cniVersion": "1.0.0", "name": "attack",
        "plugins": [ipam("n1", "10.8.0.0/26"), ipam("n2", "10.8.1.0/26")] });
    let definition = json!({
        "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": { "name": "attack", "namespace": site.namespace },
        "spec": { "config": config.to_string() },
    });
    site.cluster.apply_object(definition).await.unwrap();
    for (name, range) in [
        ("n1-10.8.0.0-26", "10.8.0.0/26"),
        ("n1-10.8.2.0-26", "10.8.2.0/26"),
    ] {
        let published = json!({
            "apiVersion": "whereabouts.cni.cncf.io/v1alpha1", "kind": "IPPool",
            "metadata": { "name": name, "namespace": site.namespace,
                "annotations": { "berth.dev/published-by": "n1" } },
            "spec": { "range": range, "allocations": {} },
        });
        site.cluster.apply_object(published).await.unwrap();
    }
    let token = std::fs::read_to_string(site.dir.path().join("n0.token")).unwrap();
    let claim = |name: &str, range: &str| {
        let spec = RangeSpec::parse(range).unwrap();
        let space = Space::build(&spec, WHEREABOUTS).unwrap().0;
        let request = Request::Allocate(Allocate {
            record: Record::new(Owner::new("ns/thief", "net1"), Handle::new("c1")),
            wants: vec![AddressRequest::any(space.into())],
        });
        let pool = json!({ "name": name, "network": range });
        let batch = json!({ "node": "n0", "limit_ms": 5000, "requests": [request], "pool": pool });
        let mut stranger = RawClient::connect_tls(attacked.desk, HOSTILE).unwrap();
        let asked = asked(&token, &batch.to_string());
        stranger.send(asked.as_bytes()).unwrap();
        let (status, body) = stranger.answer().unwrap();
        assert_eq!(status, 200, "{body}");
        serde_json::from_str::<Value>(&body).unwrap()["answers"][0].clone()
    };
    until(
        "the leader knows the definition: what nobody publishes is served",
        async || !claim("n2-10.8.1.0-26", "10.8.1.0/26").is_null(),
    )
    .await;
    let pools: Api<berth_api::whereabouts::IPPool> =
        Api::namespaced(site.cluster.client().await.unwrap(), &site.namespace);
    for (name, range) in [
        ("n1-10.8.0.0-26", "10.8.0.0/26"),
        ("n1-10.8.2.0-26", "10.8.2.0/26"),
    ] {
        assert_eq!(claim(name, range), Value::Null, "{name}");
        assert!(pools.get(name).await.unwrap().spec.allocations.is_empty());
    }
}
