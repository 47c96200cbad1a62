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
        kill_after(&site, &host, "ADD", &pod, stop).await;
        let address = site.add(&host, &pod);
        assert_eq!(site.holder(&address), host.name, "killed after {stop}");
        kill_after(&site, &host, "DEL", &pod, stop).await;
        site.del(&host, &pod);
        site.until_empty(&host).await;
    }
}
