//! Probes in network namespaces, with the kernel's own stack as the one who answers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs::File;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::Arc;

use berth_cni::Environment;
use berth_cni::wire::Request;
use berth_core::Address;
use berth_desk::DeskMetrics;
use berth_ledger::{ClaimKind, Ledger, MemoryLedger};
use berth_pods::probe::{Link, ProbeError, in_use};
use berth_pods::{Front, Store};
use berth_testkit::Netns;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::{Value, json};

fn addresses(texts: &[&str]) -> Vec<Address> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn link(netns: &Netns, interface: &str) -> Link {
    Link {
        interface: interface.to_owned(),
        netns: Some(netns.path().to_owned()),
    }
}

#[tokio::test]
async fn whoever_has_an_address_on_the_link_is_found() {
    let (host, other) = (Netns::new().unwrap(), Netns::new().unwrap());
    host.veth("uplink", &other, "eth0").unwrap();
    for address in ["10.0.0.5/24", "fd00::5/64"] {
        // Without nodad the kernel itself would still be proving its IPv6 address unique.
        let arguments: &[&str] = match address.contains(':') {
            true => &["addr", "add", address, "dev", "eth0", "nodad"],
            false => &["addr", "add", address, "dev", "eth0"],
        };
        other.ip(arguments).unwrap();
    }
    let asked = addresses(&["10.0.0.4", "10.0.0.5", "10.0.0.6", "fd00::4", "fd00::5"]);
    let used = in_use(link(&host, "uplink"), asked).await.unwrap();
    assert_eq!(used, addresses(&["10.0.0.5", "fd00::5"]));

    // The asker's own address is in use too, though its kernel does not answer itself.
    host.ip(&["addr", "add", "10.0.0.9/24", "dev", "uplink"])
        .unwrap();
    let used = in_use(link(&host, "uplink"), addresses(&["10.0.0.9", "10.0.0.8"]))
        .await
        .unwrap();
    assert_eq!(used, addresses(&["10.0.0.9"]));

    other
        .ip(&["addr", "del", "10.0.0.5/24", "dev", "eth0"])
        .unwrap();
    let used = in_use(link(&host, "uplink"), addresses(&["10.0.0.5"]))
        .await
        .unwrap();
    assert_eq!(used, []);
}

#[tokio::test]
async fn a_link_that_nobody_can_be_asked_on_is_named() {
    let host = Netns::new().unwrap();
    let failed = in_use(link(&host, "nothing"), addresses(&["10.0.0.5"])).await;
    assert!(matches!(failed, Err(ProbeError::NoInterface(name)) if name == "nothing"));
}

/// Runs the front as an agent in that namespace would: whatever thread it starts is in there too.
fn add_in(netns: &Netns, link: &str, address: Option<&str>) -> (i32, Value) {
    let path = netns.path().to_owned();
    let mut network = json!({
        "cniVersion": "1.0.0", "name": "blue", "type": "macvlan", "master": link,
        "ipam": { "type": "berth", "range": "10.0.0.0/24", "probe": true },
    });
    if let Some(address) = address {
        network["ipam"]["addresses"] = json!([{ "address": address }]);
    }
    let environment = Environment {
        command: "ADD".into(),
        container_id: "c1".into(),
        netns: "/run/netns/x".into(),
        ifname: "net1".into(),
        path: "/opt/cni/bin".into(),
        ..Environment::default()
    };
    let request = Request::new("berth", environment, network.to_string());
    let thread = std::thread::spawn(move || {
        let netns = File::open(path).unwrap();
        move_into_link_name_space(netns.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let ledger = Arc::new(MemoryLedger::new());
            let store = Store::standalone(ledger.clone(), DeskMetrics::default());
            let front =
                Front::new(Arc::new(Arc::new(store)), "machine").with_flat_places(Vec::new());
            let answer = front.answer(&request).await;
            if answer.exit != 0 {
                let left = ledger.claims(ClaimKind::Reservation).await.unwrap();
                assert_eq!(left, [], "a call that fails leaves nothing");
            }
            (answer.exit, serde_json::from_str(&answer.stdout).unwrap())
        })
    });
    thread.join().unwrap()
}

/// The agent's container has no capability; deploy/probe adds this one. A program of root's has what its bounding set
/// leaves it.
#[test]
fn a_probe_needs_one_capability_and_says_which() {
    let (host, other) = (Netns::new().unwrap(), Netns::new().unwrap());
    host.veth("uplink", &other, "eth0").unwrap();
    other
        .ip(&["addr", "add", "10.0.0.1/24", "dev", "eth0"])
        .unwrap();
    let with = |bounding: &str| {
        let output = Command::new("nsenter")
            .arg(format!("--net={}", host.path().display()))
            .args(["setpriv", &format!("--bounding-set={bounding}")])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "prober", "--ignored", "--nocapture"])
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{told}");
        told
    };
    let probed = with("-all,+net_raw");
    assert!(probed.contains("in use: [\"10.0.0.1\"]"), "{probed}");
    let refused = with("-all");
    assert!(
        refused.contains("NET_RAW") && refused.contains("docs/install.md"),
        "{refused}"
    );
}

#[tokio::test]
#[ignore = "the child of a_probe_needs_one_capability_and_says_which"]
#[allow(clippy::print_stdout)]
async fn prober() {
    let link = Link {
        interface: "uplink".to_owned(),
        netns: None,
    };
    match in_use(link, addresses(&["10.0.0.1", "10.0.0.2"])).await {
        Ok(used) => {
            let used: Vec<String> = used.iter().map(Address::to_string).collect();
            println!("in use: {used:?}");
        }
        Err(error) => println!("{error}"),
    }
}

#[test]
fn an_address_that_somebody_uses_is_not_given() {
    let (host, other) = (Netns::new().unwrap(), Netns::new().unwrap());
    host.veth("uplink", &other, "eth0").unwrap();
    for address in ["10.0.0.1/24", "10.0.0.2/24", "10.0.0.77/24"] {
        other.ip(&["addr", "add", address, "dev", "eth0"]).unwrap();
    }
    let (exit, result) = add_in(&host, "uplink", None);
    assert_eq!(exit, 0, "{result}");
    assert_eq!(result["ips"][0]["address"], "10.0.0.3/24");

    let (exit, refused) = add_in(&host, "uplink", Some("10.0.0.77/24"));
    assert_eq!(exit, 1);
    let why = refused["msg"].as_str().unwrap();
    assert!(
        why.contains("10.0.0.77") && why.contains("answers"),
        "{why}"
    );

    let (exit, refused) = add_in(&host, "", None);
    assert_eq!(exit, 1);
    assert!(refused["msg"].as_str().unwrap().contains("master"));
}
