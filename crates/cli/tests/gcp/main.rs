//! gcp-ipam as it runs on a node: the built agent, plugin and engine, a real API server, the local cloud, and the CNI
//! project's ptp and host-local in network namespaces.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod connection;
mod killed;
mod leader;
mod namespaces;
mod policies;
mod site;
mod takeover;

use serde_json::json;

use leader::counted;
use site::{Site, until};

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_agent_resumes_its_adds_and_dels() {
    let site = Site::new(300).await;
    let host = site.host("a").await;
    let mut agent = site.agent(&host);
    for stop in 1..=3 {
        let pod = format!("web-{stop}");
        site.pod(&pod, &host, json!({})).await;
        let before = site.requests();
        let (mut command, network) = site.command(&host, "ADD", &pod);
        let asked = std::thread::spawn(move || berth_testkit::fed(&mut command, network).unwrap());
        until("the requests are made", async || {
            site.requests() >= before + stop
        })
        .await;
        agent.process.kill().unwrap();
        let output = asked.join().unwrap();
        assert!(
            !output.status.success(),
            "the agent was killed before its answer"
        );
        agent = site.agent(&host);
        // The runtime asks again.
        let address = site.add(&host, &pod);
        assert_eq!(site.holder(&address), host.name);

        // Its DEL is answered when it is recorded; the agent dies before it is carried out.
        let before = site.requests();
        site.del(&host, &pod);
        until("the requests are made", async || {
            site.requests() >= before + stop - 1
        })
        .await;
        agent.process.kill().unwrap();
        agent = site.agent(&host);
        site.until_free(&address).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_move_survives_the_death_of_either_agent() {
    let site = Site::new(300).await;
    let (a, b) = (site.host("a").await, site.host("b").await);
    let (mut source, mut destination) = (site.agent(&a), site.agent(&b));
    site.pod("warm-up", &b, json!({})).await;
    site.add(&b, "warm-up");
    // Read, detach, its operation, read, attach, its operation.
    for (stop, source_dies) in (1..=6).flat_map(|stop| [(stop, false), (stop, true)]) {
        let shown = format!("stopped after {stop}, the source: {source_dies}");
        let (pod, clone) = (
            format!("cart-{stop}-{source_dies}"),
            format!("clone-{stop}-{source_dies}"),
        );
        site.pod(&pod, &a, json!({})).await;
        let ip = site.add(&a, &pod);
        site.clone_of(&pod, &ip, (&a, &b), &clone).await;
        let before = site.requests();
        let (mut command, network) = site.command(&b, "ADD", &clone);
        let asked = std::thread::spawn(move || berth_testkit::fed(&mut command, network).unwrap());
        until("the requests are made", async || {
            site.requests() >= before + stop
        })
        .await;
        if source_dies {
            source.process.kill().unwrap();
            assert!(
                asked.join().unwrap().status.success(),
                "the destination needs no agent at the source: {shown}"
            );
            source = site.agent(&a);
        } else {
            destination.process.kill().unwrap();
            assert!(!asked.join().unwrap().status.success(), "{shown}");
            destination = site.agent(&b);
        }
        assert_eq!(site.add(&b, &clone), ip, "{shown}");
        assert_eq!(site.holder(&ip), b.name, "{shown}");
        assert_eq!(site.entry(&ip).await["podName"], json!(clone));
        site.del(&a, &pod);
        assert_eq!(site.holder(&ip), b.name, "{shown}");
    }
    drop((source, destination));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_starts_during_an_engines_update_waits_for_it() {
    let site = Site::new(3000).await;
    let host = site.host("a").await;
    for pod in ["one", "two"] {
        site.pod(pod, &host, json!({})).await;
    }
    let call = |pod: &str| {
        let (mut command, network) = site.command(&host, "ADD", pod);
        std::thread::spawn(move || berth_testkit::fed(&mut command, network).unwrap())
    };
    let engine = call("one");
    until("the engine's update runs", async || site.updates() == 1).await;
    let _agent = site.agent(&host);
    let through_agent = call("two");
    for asked in [engine, through_agent] {
        let output = asked.join().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}");
    }
    assert_eq!(site.updates(), 2);
    let requests = site.cloud.requests();
    let refused: Vec<_> = requests
        .iter()
        .filter(|request| request.code != Some(200))
        .collect();
    assert!(refused.is_empty(), "two updates at once: {refused:?}");
    assert_eq!(site.aliases(&host.name).len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_happened_is_counted() {
    let site = Site::new(50).await;
    let (a, b) = (site.host("a").await, site.host("b").await);
    let (source, destination) = (site.agent(&a), site.agent(&b));
    site.pod("cart", &a, json!({})).await;
    let ip = site.add(&a, "cart");
    site.clone_of("cart", &ip, (&a, &b), "clone").await;
    assert_eq!(site.add(&b, "clone"), ip);
    let moved = "berth_gcp_moves_total{outcome=\"moved\"}";
    assert_eq!(counted(&destination, moved), 1.0);
    let wrong = json!({ "annotations": { "live.cast.ai/ip": "ten" } });
    site.pod("wrong", &b, wrong).await;
    assert!(!site.run(&b, "ADD", "wrong").status.success());
    let refused = "berth_gcp_calls_total{verb=\"ADD\",outcome=\"refused\"}";
    assert_eq!(counted(&destination, refused), 1.0);
    let done = "berth_gcp_calls_total{verb=\"ADD\",outcome=\"done\"}";
    assert_eq!(counted(&source, done), 1.0);
    assert_eq!(counted(&destination, "berth_gcp_add_seconds_count"), 1.0);
    // A pod that goes without a DEL.
    site.pod("dies", &b, json!({})).await;
    let dies = site.add(&b, "dies");
    site.delete_pod("dies").await;
    site.until_free(&dies).await;
    let collected = "berth_gcp_collected_total{gone=\"pod\"}";
    until("it is counted", async || {
        counted(&destination, collected) == 1.0
    })
    .await;
    for group in ["read", "change", "wait"] {
        let series = format!("berth_gcp_requests_total{{group=\"{group}\",outcome=\"ok\"}}");
        assert!(counted(&destination, &series) > 0.0, "{series}");
    }
    assert!(counted(&destination, "berth_gcp_operation_seconds_count") >= 3.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_agent_the_engine_serves_one_call_at_a_time() {
    let site = Site::new(200).await;
    let host = site.host("a").await;
    let pods = ["one", "two", "three"];
    for pod in pods {
        site.pod(pod, &host, json!({})).await;
    }
    let calls = pods.map(|pod| {
        let (mut command, network) = site.command(&host, "ADD", pod);
        std::thread::spawn(move || berth_testkit::fed(&mut command, network).unwrap())
    });
    for call in calls {
        let output = call.join().unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stdout)
        );
    }
    let refused = site
        .cloud
        .requests()
        .iter()
        .filter(|request| request.code != Some(200))
        .count();
    assert_eq!(refused, 0, "no two updates at once, no stale fingerprint");
    site.del(&host, "one");
    assert!(
        site.holders("10.111.0.2").len()
            + site.holders("10.111.0.3").len()
            + site.holders("10.111.0.4").len()
            == 2
    );
    // The agent that starts then ends the others.
    let _agent = site.agent(&host);
    for pod in ["two", "three"] {
        site.del(&host, pod);
    }
    for address in ["10.111.0.2", "10.111.0.3", "10.111.0.4"] {
        site.until_free(address).await;
    }
}
