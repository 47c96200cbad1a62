//! The series of the nodes front, as agent and controller serve them, judged by Prometheus' own tool.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use berth_parts::Parts;

use crate::site::{OBJECTS, PATIENCE, Site, message, metrics};

/// Whether promtool accepts a page of metrics; it complains about names, units and missing help.
fn check(page: &str) {
    let mut promtool = Command::new(Parts::find().unwrap().promtool().unwrap())
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = promtool.stdin.take().unwrap();
    stdin.write_all(page.as_bytes()).unwrap();
    drop(stdin);
    let output = promtool.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}\n{page}");
}

fn until(what: &str, page: impl Fn() -> Option<String>) -> String {
    let begun = Instant::now();
    loop {
        let found = page();
        if let Some(page) = found.as_ref().filter(|page| page.contains(what)) {
            return page.clone();
        }
        assert!(begun.elapsed() < PATIENCE, "no {what} in {found:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn promtool_accepts_the_series_of_the_nodes_front() {
    let site = Site::new().await;
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = free.local_addr().unwrap().to_string();
    drop(free);
    let kubeconfig = site.controller.kubeconfig();
    let _controller = site.controller_with("one", kubeconfig, &["--listen", &listen]);
    site.node("node01").await;
    let agent = site.agent("node01", &[]).await;
    site.cluster.apply(OBJECTS).await.unwrap();
    let all = "1/1 nodes successfully configured";
    site.until("nncp", "static-ip", |policy| message(policy) == all);

    let page = metrics(UnixStream::connect(&agent.socket).unwrap());
    check(&page);
    for series in [
        "berth_nodes_allocations_total{pool=\"traffic-1\",outcome=\"success\"} 1",
        "berth_nodes_applies_total{outcome=\"success\"} 1",
        "berth_nodes_apply_seconds_count 1",
        "berth_nodes_withdrawals_total 0",
    ] {
        assert!(page.contains(series), "no {series} in:\n{page}");
    }

    let served = || Some(metrics(TcpStream::connect(&listen).ok()?));
    let used = "berth_node_pool_addresses{pool=\"traffic-1\",state=\"used\"} 1";
    let page = until(used, served);
    for series in [
        "berth_node_pool_addresses{pool=\"traffic-1\",state=\"free\"} 7",
        "berth_node_pool_condition{pool=\"traffic-1\",reason=\"ReconciledPool\"} 1",
        "berth_node_enactments{phase=\"available\"} 1",
    ] {
        assert!(page.contains(series), "no {series} in:\n{page}");
    }
    check(&page);
    // The node goes, its address is released, and that is counted.
    drop(agent);
    site.kubectl(&["delete", "node", "node01"]);
    let released = "berth_node_pool_releases_total{pool=\"traffic-1\",why=\"node_gone\"} 1";
    check(&until(released, served));
}
