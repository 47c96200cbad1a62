//! The reference plugins (CNI 1.1) delegate to Berth in network namespaces, driven by cnitool as a runtime would:
//! what Berth answers is what the containers have, and they reach each other.

use std::path::Path;
use std::process::Output;

use berth_parts::Parts;
use berth_testkit::Netns;
use serde_json::{Value, json};

use crate::node::TestNode;
use crate::on_sqlite;

/// A machine of its own: a network namespace with an uplink, a node's agent and a network.
struct Machine {
    host: Netns,
    _switch: Netns,
    node: TestNode,
    conf: tempfile::TempDir,
}

impl Machine {
    fn with_network(plugin: Value, ipam: Value) -> Machine {
        let (host, switch) = (Netns::new().unwrap(), Netns::new().unwrap());
        host.veth("eth0", &switch, "uplink").unwrap();
        let mut plugin = plugin;
        plugin["ipam"] = ipam;
        plugin["ipam"]["type"] = json!("whereabouts");
        let list = json!({"cniVersion": "1.1.0", "name": "net", "plugins": [plugin]});
        let conf = tempfile::tempdir().unwrap();
        std::fs::write(conf.path().join("net.conflist"), list.to_string()).unwrap();
        std::fs::create_dir(conf.path().join("cache")).unwrap();
        Machine {
            host,
            _switch: switch,
            node: on_sqlite(),
            conf,
        }
    }

    /// `cnitool <verb> net <namespace>` on the machine, with a cache of its own in place of the machine's.
    fn cnitool(&self, verb: &str, pod: &Netns) -> Output {
        let parts = Parts::find().unwrap();
        let bin = self.node.plugin.parent().unwrap();
        let script = "mkdir -p /var/lib/cni && mount --bind \"$0\" /var/lib/cni && exec \"$@\"";
        self.host
            .command("unshare")
            .args(["--mount", "sh", "-c", script])
            .arg(self.conf.path().join("cache"))
            .arg(parts.cnitool())
            .args([verb, "net"])
            .arg(pod.path())
            .env("NETCONFPATH", self.conf.path())
            .env(
                "CNI_PATH",
                format!("{}:{}", bin.display(), parts.cni_dir().display()),
            )
            .env("BERTH_SOCKET", bin.join("berth.sock"))
            .output()
            .unwrap()
    }

    fn run(&self, verb: &str, pod: &Netns) -> String {
        let output = self.cnitool(verb, pod);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{verb}: {told}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Adds the pod; gives back the addresses of the result, which are the ones that it has.
    fn add(&self, pod: &Netns) -> Vec<String> {
        let result: Value = serde_json::from_str(&self.run("add", pod)).unwrap();
        let ips = result["ips"].as_array().unwrap();
        let told: Vec<String> = ips
            .iter()
            .map(|ip| ip["address"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(pod.addresses_of("eth0").unwrap(), told);
        told
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
        .host
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
fn an_exhausted_range_is_told_to_the_runtime() {
    let machine = Machine::with_network(
        json!({"type": "bridge", "bridge": "cni0"}),
        json!({"range": "10.77.0.0/30", "gateway": "10.77.0.1"}),
    );
    let (a, b) = (Netns::new().unwrap(), Netns::new().unwrap());
    assert_eq!(machine.add(&a), ["10.77.0.2/30"]);
    let refused = machine.cnitool("add", &b);
    assert!(!refused.status.success());
    let told = String::from_utf8_lossy(&refused.stderr);
    assert!(told.contains("Could not allocate IP in range"), "{told}");
    // What a runtime does after a failed ADD: the bridge plugin had made an interface already.
    machine.run("del", &b);
    let status = machine.cnitool("status", &b);
    let told = String::from_utf8_lossy(&status.stderr);
    assert!(
        !status.status.success() && told.contains("exhausted"),
        "{told}"
    );
    machine.run("del", &a);
    machine.run("status", &b);
    assert_eq!(machine.add(&b), ["10.77.0.2/30"]);
}
