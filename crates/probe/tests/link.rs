//! Probes in network namespaces, answered by the kernel.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::process::Command;

use berth_core::Address;
use berth_probe::{Link, ProbeError, User, in_use, users};
use berth_testkit::Netns;

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
async fn a_machine_that_has_an_address_on_the_link_is_found() {
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

/// The machine that answers is named by its hardware address, also for an address that this host has too.
#[tokio::test]
async fn the_machine_that_answers_is_named() {
    let (host, other) = (Netns::new().unwrap(), Netns::new().unwrap());
    host.veth("uplink", &other, "eth0").unwrap();
    let mac = "02:00:00:00:00:77";
    other.ip(&["link", "set", "eth0", "address", mac]).unwrap();
    for address in ["10.0.0.5/24", "10.0.0.9/24"] {
        other.ip(&["addr", "add", address, "dev", "eth0"]).unwrap();
    }
    for address in ["10.0.0.8/24", "10.0.0.9/24"] {
        host.ip(&["addr", "add", address, "dev", "uplink"]).unwrap();
    }
    let asked = addresses(&["10.0.0.5", "10.0.0.6", "10.0.0.8", "10.0.0.9"]);
    let found = users(link(&host, "uplink"), asked).await.unwrap();
    let named = |text: &str| match found.get(&text.parse().unwrap()) {
        Some(User::Other(mac)) => mac.to_string(),
        Some(User::ThisHost) => "this host".to_owned(),
        None => "unused".to_owned(),
    };
    assert_eq!(named("10.0.0.5"), mac);
    assert_eq!(named("10.0.0.6"), "unused");
    assert_eq!(named("10.0.0.8"), "this host");
    assert_eq!(named("10.0.0.9"), mac);
}

/// Linux answers for an address on each of its interfaces: a second interface on the same link is not another
/// machine.
#[tokio::test]
async fn another_interface_of_this_host_is_no_other_machine() {
    let (host, switch) = (Netns::new().unwrap(), Netns::new().unwrap());
    for (nic, port) in [("nic1", "port1"), ("nic2", "port2")] {
        host.veth(nic, &switch, port).unwrap();
    }
    switch
        .ip(&["link", "add", "lan", "type", "bridge"])
        .unwrap();
    for port in ["port1", "port2"] {
        switch.ip(&["link", "set", port, "master", "lan"]).unwrap();
    }
    switch.ip(&["link", "set", "lan", "up"]).unwrap();
    host.ip(&["addr", "add", "10.0.0.5/24", "dev", "nic1"])
        .unwrap();
    let asked = addresses(&["10.0.0.5"]);
    let found = users(link(&host, "nic1"), asked).await.unwrap();
    let users: Vec<User> = found.into_values().collect();
    assert_eq!(users, [User::ThisHost]);
}

#[tokio::test]
async fn a_link_that_can_not_be_probed_is_named() {
    let host = Netns::new().unwrap();
    let failed = in_use(link(&host, "nothing"), addresses(&["10.0.0.5"])).await;
    assert!(matches!(failed, Err(ProbeError::NoInterface(name)) if name == "nothing"));
}

/// The agent's container has no capability; deploy/probe adds this one. A program run by root has what is in its
/// bounding set.
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
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}");
        text
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
