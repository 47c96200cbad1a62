//! The controller ends moves whose two agents are dead.

use std::time::{Duration, Instant};

use berth_testkit::Agent;
use serde_json::json;

use crate::site::{Host, Site, until};

/// Begins a move and kills both agents once so many requests of the cloud were made; the address.
async fn abandoned(site: &Site, hosts: (&Host, &Host), stop: usize, agents: [Agent; 2]) -> String {
    let (a, b) = hosts;
    let (pod, clone) = (format!("cart-{stop}"), format!("clone-{stop}"));
    site.pod(&pod, a, json!({})).await;
    let ip = site.add(a, &pod);
    site.clone_of(&pod, &ip, (a, b), &clone).await;
    let before = site.requests();
    let (mut command, network) = site.command(b, "ADD", &clone);
    let asked = std::thread::spawn(move || berth_testkit::fed(&mut command, network).unwrap());
    until("the requests are made", async || {
        site.requests() >= before + stop
    })
    .await;
    for mut agent in agents {
        agent.process.kill().unwrap();
    }
    assert!(!asked.join().unwrap().status.success());
    ip
}

#[tokio::test(flavor = "multi_thread")]
async fn the_controller_takes_a_move_back_whose_time_is_over() {
    const TIME: Duration = Duration::from_secs(5);
    let site = Site::new(300).await;
    let hosts = (site.host("a").await, site.host("b").await);
    let (a, b) = (&hosts.0, &hosts.1);
    let limited = |host| {
        site.agent_with(
            host,
            &[("BERTH_GCP_MOVE_TIMEOUT", TIME.as_secs().to_string())],
        )
    };
    let agents = [limited(a), limited(b)];
    site.pod("known", b, json!({})).await;
    site.add(b, "known");
    // The detach is under way.
    let ip = abandoned(&site, (a, b), 2, agents).await;
    let dead = Instant::now();
    until("its time is over", async || dead.elapsed() > TIME).await;
    let _controller = site.controller("first").await;
    until("it is the source's again", async || {
        let attributes = site.attributes().await;
        site.holder(&ip) == a.name && !attributes.contains("clone-2")
    })
    .await;
    assert_eq!(site.entry(&ip).await["podName"], "cart-2");
}
