//! kill -9 of the plugin, with an agent and without one, at each request of an ADD and a DEL.

use std::time::Duration;

use serde_json::json;

use crate::site::{Host, Site};

/// Begins a call and kills the plugin once so many requests of the cloud were made; false if it ended before.
async fn kill_after(site: &Site, host: &Host, verb: &str, pod: &str, stop: usize) -> bool {
    let before = site.requests();
    let (mut command, network) = site.command(host, verb, pod);
    let mut child = berth_testkit::begun(&mut command, network).unwrap();
    while child.try_wait().unwrap().is_none() {
        if site.requests() >= before + stop {
            child.kill().unwrap();
            child.wait().unwrap();
            return true;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    false
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_plugin_leaves_nothing_behind_beside_an_agent() {
    let site = Site::new(300).await;
    let host = site.host("a").await;
    let _agent = site.agent(&host);
    for stop in 1..=3 {
        let pod = format!("web-{stop}");
        site.pod(&pod, &host, json!({})).await;
        assert!(kill_after(&site, &host, "ADD", &pod, stop).await);
        if stop == 2 {
            // The runtime tries again: one address, on this VM.
            let address = site.add(&host, &pod);
            assert_eq!(site.holder(&address), host.name);
        }
        site.del(&host, &pod);
        site.until_empty(&host).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_engine_is_resumed_by_the_next_call() {
    let site = Site::new(300).await;
    let host = site.host("a").await;
    for stop in 1..=4 {
        let pod = format!("web-{stop}");
        site.pod(&pod, &host, json!({})).await;
        assert!(kill_after(&site, &host, "ADD", &pod, stop).await);
        let address = site.add(&host, &pod);
        assert_eq!(site.holder(&address), host.name, "killed after {stop}");
        assert!(kill_after(&site, &host, "DEL", &pod, stop).await);
        site.del(&host, &pod);
        site.until_empty(&host).await;
    }
}

/// A marked pod's DEL and its clone's ADD, each killed and repeated.
async fn move_with_killed_plugins(site: &Site, stops: std::ops::RangeInclusive<usize>) {
    let (a, b) = (site.host("a").await, site.host("b").await);
    for stop in stops {
        // Every other time without agents.
        let agents = (stop % 2 == 0).then(|| [site.agent(&a), site.agent(&b)]);
        let (pod, clone) = (format!("cart-{stop}"), format!("clone-{stop}"));
        site.pod(&pod, &a, json!({})).await;
        let ip = site.add(&a, &pod);
        site.clone_of(&pod, &ip, (&a, &b), &clone).await;
        assert!(kill_after(site, &a, "DEL", &pod, 0).await);
        site.del(&a, &pod);
        assert_eq!(site.holder(&ip), a.name, "it is marked to move out");
        assert!(kill_after(site, &b, "ADD", &clone, stop / 2).await);
        assert_eq!(site.add(&b, &clone), ip, "killed after {}", stop / 2);
        assert_eq!(site.holder(&ip), b.name);
        assert_eq!(site.entry(&ip).await["podName"], json!(clone));
        site.del(&b, &clone);
        site.until_free(&ip).await;
        drop(agents);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_plugin_leaves_a_move_that_is_completed() {
    let site = Site::new(300).await;
    // 2n: with agents, 2n + 1: without; each killed after n requests.
    move_with_killed_plugins(&site, 2..=13).await;
}
