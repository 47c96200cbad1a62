//! The reference plugins (CNI 1.1) delegate to Berth in network namespaces, driven by cnitool as a runtime would:
//! what Berth answers is what the containers have, and they reach each other.

use std::path::Path;
use std::process::Output;

use berth_testkit::{Machine as Bare, Netns};
use serde_json::{Value, json};

use crate::node::TestNode;
use crate::on_sqlite;

/// A machine with a node's agent.
struct Machine {
    bare: Bare,
    node: TestNode,
}

impl Machine {
    fn with_network(plugin: Value, mut ipam: Value) -> Machine {
        ipam["type"] = json!("whereabouts");
        Machine {
            bare: Bare::with_network(plugin, ipam).unwrap(),
            node: on_sqlite(),
        }
    }

    fn cnitool(&self, verb: &str, pod: &Netns) -> Output {
        let bin = self.node.plugin.parent().unwrap();
        let socket = [("BERTH_SOCKET", bin.join("berth.sock"))];
        self.bare.cnitool(verb, pod, bin, &socket).unwrap()
    }

    fn run(&self, verb: &str, pod: &Netns) -> String {
        let output = self.cnitool(verb, pod);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{verb}: {text}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Adds the pod; returns the addresses of the result, which are the ones that it has.
    fn add(&self, pod: &Netns) -> Vec<String> {
        let result: Value = serde_json::from_str(&self.run("add", pod)).unwrap();
        let ips = result["ips"].as_array().unwrap();
        let text: Vec<String> = ips
            .iter()
            .map(|ip| ip["address"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(pod.addresses_of("eth0").unwrap(), text);
        text
    }
}

fn reach(from: &Netns, to: &str) {
    let address = Path::new(to).parent().unwrap().display().to_string();
    assert!(from.ping(&address).unwrap(), "{address} does not answer");
}

/// The whole life of two pods on a network.
fn live(plugin: Value) {
    let ipam = json!({"range": "10.77.0.0/24", "gateway": "10.77.0.1", "ipRanges": [{"range": "fd77::/64", "gateway": "fd77::1"}]});
    let machine = Machine::with_network(plugin, ipam);
    let (a, b) = (Netns::new().unwrap(), Netns::new().unwrap());
    machine.run("status", &a);
    let (of_a, of_b) = (machine.add(&a), machine.add(&b));
    assert_eq!(of_a, ["10.77.0.2/24", "fd77::2/64"]);
    assert_eq!(of_b, ["10.77.0.3/24", "fd77::3/64"]);
    machine.run("check", &a);
    machine.run("check", &b);
    for address in &of_b {
        reach(&a, address);
    }
    machine.run("del", &a);
    machine.run("del", &a);
    assert!(!machine.cnitool("check", &a).status.success());
    let c = Netns::new().unwrap();
    assert_eq!(machine.add(&c), of_a);
    // cnitool's GC knows of no attachment that lives.
    machine.run("gc", &c);
    assert_eq!(machine.add(&Netns::new().unwrap()), of_a);
}

#[test]
fn bridge() {
    live(json!({"type": "bridge", "bridge": "cni0", "isGateway": true}));
}

#[test]
fn macvlan() {
    live(json!({"type": "macvlan", "master": "eth0", "mode": "bridge"}));
}

#[test]
fn ptp_routes_through_the_host() {
    let machine = Machine::with_network(
        json!({"type": "ptp"}),
        json!({"range": "10.77.0.0/24", "gateway": "10.77.0.1"}),
    );
    let (a, b) = (Netns::new().unwrap(), Netns::new().unwrap());
    let forward = machine
        .bare
        .host()
        .exec(&["sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"])
        .unwrap();
    assert!(forward.status.success());
    let (of_a, of_b) = (machine.add(&a), machine.add(&b));
    assert_eq!((of_a.len(), of_b.len()), (1, 1));
    reach(&a, &of_b[0]);
    machine.run("check", &a);
    machine.run("del", &a);
    machine.run("del", &b);
}

#[test]
fn an_exhausted_range_is_reported_to_the_runtime() {
    let machine = Machine::with_network(
        json!({"type": "bridge", "bridge": "cni0"}),
        json!({"range": "10.77.0.0/30", "gateway": "10.77.0.1"}),
    );
    let (a, b) = (Netns::new().unwrap(), Netns::new().unwrap());
    assert_eq!(machine.add(&a), ["10.77.0.2/30"]);
    let refused = machine.cnitool("add", &b);
    assert!(!refused.status.success());
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(text.contains("Could not allocate IP in range"), "{text}");
    // What a runtime does after a failed ADD: the bridge plugin had already made an interface.
    machine.run("del", &b);
    let status = machine.cnitool("status", &b);
    let text = String::from_utf8_lossy(&status.stderr);
    assert!(
        !status.status.success() && text.contains("exhausted"),
        "{text}"
    );
    machine.run("del", &a);
    machine.run("status", &b);
    assert_eq!(machine.add(&b), ["10.77.0.2/30"]);
}
