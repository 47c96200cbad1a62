//! The input of each target, and the invariants of what it parsed.

use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::routing::{get, post};
use berth_cni::wire::{Answer, Request};
use berth_cni::{Args, Call, Environment, NetConf};
use berth_core::dialect::WHEREABOUTS;
use berth_core::{Address, Prefix, RangeSpec, Space};
use berth_leader::{Batch, Replies};
use berth_ledger::configmap::Document;
use berth_listen::{Limits, Peer};
use berth_networks::definitions;
use berth_pods::config::PodNetwork;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Runtime;

/// The CNI environment, one variable a line, an empty line, and what comes on stdin.
pub fn cni(data: &[u8]) {
    if let Ok(request) = Request::decode(data)
        && let Ok(again) = request.encode()
    {
        assert!(Request::decode(&again).is_ok_and(|read| read == request));
    }
    let _ = Answer::decode(data);
    let text = String::from_utf8_lossy(data);
    let (head, stdin) = text.split_once("\n\n").unwrap_or((&text, ""));
    let mut lines = head.lines().map(str::to_owned);
    let mut line = || lines.next().unwrap_or_default();
    let environment = Environment {
        command: line(),
        container_id: line(),
        netns: line(),
        ifname: line(),
        args: line(),
        path: line(),
    };
    let call = environment.call();
    let args = match &call {
        Ok(Call::Add(target) | Call::Del(target) | Call::Check(target)) => target.args.clone(),
        _ => Args::parse(&environment.args).unwrap_or_default(),
    };
    let _ = NetConf::version_of(stdin);
    if let Ok(conf) = NetConf::parse(stdin) {
        let _ = PodNetwork::read(&conf, &args, "whereabouts", Default::default());
        if let Ok(network) =
            PodNetwork::read_to_release(&conf, &args, "whereabouts", Default::default())
        {
            assert!(is_bounded(&network), "{conf:?}");
        }
    }
    let _ = berth_cni::http::parse_answer(data);
}

/// Ranges, prefixes and addresses in all their forms. Allocatable addresses lie in the range.
pub fn ranges(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for line in text.lines().take(16) {
        let _ = line.parse::<Prefix>();
        let _ = line.parse::<Address>();
        let _ = Address::parse_lenient(line);
        let Ok(spec) = RangeSpec::parse(line) else {
            continue;
        };
        if let Ok((space, _)) = Space::build(&spec, WHEREABOUTS) {
            let first = space.first();
            assert!(
                first.is_none_or(|address| spec.prefix.contains(address)),
                "{line}"
            );
        }
    }
}

/// An IPPool object as the API server sends it.
pub fn pools(data: &[u8]) {
    if let Ok(object) = serde_json::from_slice(data) {
        let _ = berth_whereabouts::pool_of(object);
    }
}

/// The state of a VM pool, whole or broken.
pub fn configmaps(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Ok(document) = Document::decode(&text)
        && let Ok(again) = document.encode()
    {
        assert!(
            Document::decode(&again).is_ok_and(|read| read == document),
            "{again}"
        );
    }
    let _ = berth_ledger::configmap::salvage_of(&text);
}

/// A batch that an agent sends to the leader, on the first line, and the replies on the next. A batch within its
/// bounds is written as it was read.
pub fn desk(data: &[u8]) {
    let end = data.iter().position(|byte| *byte == b'\n');
    let (batch, replies) = match end.and_then(|end| data.split_at_checked(end)) {
        Some((batch, replies)) => (batch, replies),
        None => (data, data),
    };
    let batch = serde_json::from_slice::<Batch>(batch).ok();
    let replies = serde_json::from_slice::<Replies>(replies).ok();
    let requests = batch.as_ref().map_or(&[][..], |batch| &batch.requests);
    if let Some(replies) = &replies {
        let _ = replies.fault(requests);
    }
    if let Some(batch) = &batch
        && batch.fault().is_none()
    {
        let again = serde_json::to_vec(batch).ok();
        let again = again.and_then(|text| serde_json::from_slice::<Batch>(&text).ok());
        let fits = again.is_some_and(|again| again.fault().is_none());
        assert!(fits, "{batch:?}");
    }
}

/// A network definition's configuration.
pub fn definitions(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let read = definitions::read("net", &text, &[]);
    assert!(read.networks.len() <= 64, "{}", read.networks.len());
    for network in read.networks {
        assert!(network.network.map_or(true, |network| is_bounded(&network)));
    }
}

/// The result for a network contains its names once for each of its addresses.
fn is_bounded(network: &PodNetwork) -> bool {
    let names = network.name.len().max(network.network_name.len());
    names <= 253 && network.ranges.len() + network.addresses.len() <= 64
}

/// What a client sends to a listener. The server ends the connection, and answers in HTTP if it answers.
pub fn heads(data: &[u8]) {
    thread_local! {
        static RUNTIME: Option<Runtime> = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .ok();
    }
    RUNTIME.with(|runtime| {
        if let Some(runtime) = runtime {
            runtime.block_on(converse(data));
        }
    });
}

async fn converse(data: &[u8]) {
    let routes = Router::new().route("/", get(|| async { "ok" })).route(
        "/size",
        post(|body: Bytes| async move { body.len().to_string() }),
    );
    let limits = Limits {
        head: Duration::from_millis(200),
        body: Duration::from_millis(200),
        ..Limits::default()
    };
    let (mut client, server) = tokio::io::duplex(256 * 1024);
    let served = tokio::spawn(berth_listen::drive(server, Peer::Local, routes, limits));
    // A server that refuses a request early does not read all of it.
    let _ = client.write_all(data).await;
    let _ = client.shutdown().await;
    let mut answer = Vec::new();
    let _ = client.read_to_end(&mut answer).await;
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1."));
    assert!(served.await.is_ok(), "the connection's task panicked");
}
