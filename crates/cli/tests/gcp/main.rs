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

use serde_json::json;

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
    for (stop, source_dies) in [(2, false), (3, true), (5, false)] {
        let site = Site::new(300).await;
        let (a, b) = (site.host("a").await, site.host("b").await);
        let (mut source, mut destination) = (site.agent(&a), site.agent(&b));
        site.pod("cart", &a, json!({})).await;
        let ip = site.add(&a, "cart");
        site.pod("warm-up", &b, json!({})).await;
        site.add(&b, "warm-up");
        site.mark_to_move_out("cart").await;
        let annotations =
            json!({ "live.cast.ai/ip": ip, "live.cast.ai/original-instance": a.name });
        site.pod("clone", &b, json!({ "annotations": annotations }))
            .await;
        let before = site.requests();
        let (mut command, network) = site.command(&b, "ADD", "clone");
        let asked = std::thread::spawn(move || berth_testkit::fed(&mut command, network).unwrap());
        until("the requests are made", async || {
            site.requests() >= before + stop
        })
        .await;
        if source_dies {
            source.process.kill().unwrap();
            assert!(
                asked.join().unwrap().status.success(),
                "the destination needs no agent at the source"
            );
            source = site.agent(&a);
        } else {
            destination.process.kill().unwrap();
            asked.join().unwrap();
            destination = site.agent(&b);
        }
        assert_eq!(site.add(&b, "clone"), ip, "stopped after {stop}");
        assert_eq!(site.holder(&ip), b.name);
        assert_eq!(site.entry(&ip).await["podName"], "clone");
        site.del(&a, "cart");
        assert_eq!(site.holder(&ip), b.name);
        drop((source, destination));
    }
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
