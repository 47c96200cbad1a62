//! What the built agent serves under `/metrics`, judged by Prometheus' own tool.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use berth_cni::wire::Request;
use berth_cni::{Environment, http};
use berth_parts::Parts;
use berth_testkit::Agent;
use serde_json::json;

fn metrics(socket: &Path, accept: &str) -> (String, String) {
    let mut stream = UnixStream::connect(socket).unwrap();
    let request = format!(
        "GET /metrics HTTP/1.1\r\nhost: x\r\naccept: {accept}\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.to_ascii_lowercase(), body.to_owned())
}

fn add(socket: &Path, network: usize) {
    let conf = json!({
        "cniVersion": "1.0.0", "name": format!("net{network}"), "type": "macvlan",
        "ipam": { "type": "whereabouts", "range": format!("10.{network}.0.0/24") },
    });
    let environment = Environment {
        command: "ADD".into(),
        container_id: format!("c{network}"),
        netns: "/var/run/netns/none".into(),
        ifname: "net1".into(),
        args: "K8S_POD_NAMESPACE=ns;K8S_POD_NAME=p".into(),
        path: "/opt/cni/bin".into(),
    };
    let request = Request::new("whereabouts", environment, conf.to_string());
    let answer = http::call(socket, &request, Duration::from_secs(60)).unwrap();
    assert_eq!(answer.exit, 0, "{}", answer.stdout);
}

#[test]
fn berth_15_28_promtool_accepts_what_an_agent_with_eleven_pools_serves() {
    let dir = tempfile::tempdir().unwrap();
    let agent = Agent::start(
        env!("CARGO_BIN_EXE_berth"),
        dir.path(),
        "counted",
        |command| {
            command.args(["--node", "n1"]);
        },
    )
    .unwrap();
    for network in 0..11 {
        add(&agent.socket, network);
    }
    let (head, text) = metrics(&agent.socket, "*/*");
    assert!(
        head.contains("content-type: text/plain; version=0.0.4"),
        "{head}"
    );
    let mut promtool = Command::new(Parts::find().unwrap().promtool().unwrap())
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    promtool
        .stdin
        .take()
        .unwrap()
        .write_all(text.as_bytes())
        .unwrap();
    let judged = promtool.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&judged.stderr).into_owned()
        + &String::from_utf8_lossy(&judged.stdout);
    assert!(judged.status.success(), "{told}\n{text}");
    let series: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    assert!(
        series.len() <= 200,
        "{} series:\n{}",
        series.len(),
        series.join("\n")
    );
    let is_build_info = |line: &&&str| line.starts_with("berth_build_info{version=");
    assert_eq!(series.iter().filter(is_build_info).count(), 1);

    let (head, text) = metrics(&agent.socket, "application/openmetrics-text; version=1.0.0");
    assert!(
        head.contains("content-type: application/openmetrics-text"),
        "{head}"
    );
    assert!(text.ends_with("# EOF\n"));
}
