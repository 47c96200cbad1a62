//! No agent at all: the plugin, called `berth`, runs the engine that lies beside it, on the machine's SQLite file.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use berth_testkit::{Machine, Netns, fed, plugin_beside};
use serde_json::{Value, json};

use crate::{BERTH, asked};

/// A directory of plugins as `berth install` leaves it, and a database.
struct Installed {
    dir: tempfile::TempDir,
}

fn plugin() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| plugin_beside(BERTH).unwrap())
}

impl Installed {
    fn new() -> Installed {
        let dir = tempfile::tempdir().unwrap();
        for name in ["berth", "whereabouts"] {
            // Not a link: the plugin looks for the engine beside the file that it is.
            fs::hard_link(plugin(), dir.path().join(name))
                .or_else(|_| fs::copy(plugin(), dir.path().join(name)).map(drop))
                .unwrap();
        }
        symlink(BERTH, dir.path().join("berth-full")).unwrap();
        Installed { dir }
    }

    fn variables(&self) -> [(&'static str, PathBuf); 2] {
        let at = |name: &str| self.dir.path().join(name);
        [
            ("BERTH_SOCKET", at("nobody.sock")),
            ("BERTH_DATABASE", at("berth.db")),
        ]
    }

    fn call(&self, name: &str, verb: &str, pod: &str, conf: &Value) -> (i32, Value) {
        let mut command = asked(self.dir.path().join(name), verb, pod);
        command.envs(self.variables());
        let output = fed(&mut command, conf.to_string()).unwrap();
        let body = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
        (output.status.code().unwrap(), body)
    }
}

#[test]
fn the_plugin_runs_the_engine_beside_it_under_either_name() {
    let installed = Installed::new();
    let conf = |name: &str| {
        json!({"cniVersion": "1.1.0", "name": "net", "type": "macvlan",
            "ipam": {"type": name, "range": "10.0.0.0/30"}})
    };
    let address = |name: &str, pod: &str| {
        let (exit, body) = installed.call(name, "ADD", pod, &conf(name));
        assert_eq!(exit, 0, "{body}");
        body["ips"][0]["address"].as_str().unwrap().to_owned()
    };
    assert_eq!(address("berth", "a"), "10.0.0.1/30");
    assert_eq!(address("whereabouts", "b"), "10.0.0.2/30");
    assert_eq!(address("whereabouts", "a"), "10.0.0.1/30", "one store (I3)");
    let (exit, refused) = installed.call("berth", "ADD", "c", &conf("berth"));
    assert_eq!((exit, &refused["code"]), (1, &json!(11)), "{refused}");
    let (exit, status) = installed.call("berth", "STATUS", "x", &conf("berth"));
    assert_eq!((exit, &status["code"]), (1, &json!(50)), "{status}");
    // The name that it is called by is the type that it answers to.
    let (exit, other) = installed.call("berth", "ADD", "a", &conf("whereabouts"));
    assert_eq!((exit, &other["code"]), (1, &json!(7)), "{other}");
    let done = (0, Value::Null);
    assert_eq!(installed.call("berth", "CHECK", "b", &conf("berth")), done);
    assert_eq!(installed.call("berth", "DEL", "b", &conf("berth")), done);
    assert_eq!(address("berth", "c"), "10.0.0.2/30");
    let mut collect = conf("berth");
    collect["cni.dev/valid-attachments"] = json!([]);
    assert_eq!(installed.call("berth", "GC", "x", &collect), done);
    assert_eq!(address("berth", "d"), "10.0.0.1/30");
}

/// Two pods of a network that a reference plugin makes: their whole life.
fn live(plugin: Value, gateway: bool) {
    let installed = Installed::new();
    let ipam = json!({"type": "berth", "range": "10.77.0.0/24", "gateway": "10.77.0.1"});
    let machine = Machine::with_network(plugin, ipam).unwrap();
    let run = |verb: &str, pod: &Netns| {
        let output = machine.cnitool(verb, pod, installed.dir.path(), &installed.variables());
        let output = output.unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{verb}: {told}");
        output.stdout
    };
    if gateway {
        let forward = ["sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"];
        assert!(machine.host().exec(&forward).unwrap().status.success());
    }
    let (a, b) = (Netns::new().unwrap(), Netns::new().unwrap());
    run("status", &a);
    for (pod, address) in [(&a, "10.77.0.2/24"), (&b, "10.77.0.3/24")] {
        let result: Value = serde_json::from_slice(&run("add", pod)).unwrap();
        assert_eq!(result["ips"][0]["address"], address);
        assert_eq!(pod.addresses_of("eth0").unwrap(), [address]);
    }
    assert!(a.ping("10.77.0.3").unwrap(), "the pods reach each other");
    run("check", &a);
    run("del", &a);
    run("gc", &b);
    let c = Netns::new().unwrap();
    run("add", &c);
    assert_eq!(c.addresses_of("eth0").unwrap(), ["10.77.0.2/24"]);
}

#[test]
fn bridge() {
    live(
        json!({"type": "bridge", "bridge": "cni0", "isGateway": true}),
        false,
    );
}

#[test]
fn macvlan() {
    live(
        json!({"type": "macvlan", "master": "eth0", "mode": "bridge"}),
        false,
    );
}

#[test]
fn ptp() {
    live(json!({"type": "ptp"}), true);
}
