//! ADDs that probe their link, in network namespaces whose kernel answers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;

use berth_desk::DeskMetrics;
use berth_ledger::{ClaimKind, MemoryLedger, Records};
use berth_pods::{Front, Store};
use berth_testkit::{Netns, PodCall};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::{Value, json};

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
    let call = PodCall::new("berth", "ADD", "").of_container("c1");
    let request = call.with_args("").request_of(&network.to_string());
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
                let left = ledger.list(ClaimKind::Reservation).await.unwrap();
                assert_eq!(left, [], "a call that fails leaves nothing");
            }
            (answer.exit, serde_json::from_str(&answer.stdout).unwrap())
        })
    });
    thread.join().unwrap()
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
