//! 500 generated policies with captures of pools and of the host's state: Berth's state is that of nmpolicyctl.
//!
//! nmpolicyctl gets the pools' results as captured states, which is how the proposal would have done it. What is generated is what both
//! engines know: nmpolicy has `!=` and an empty result for what is not there, nmstate has templates inside of texts.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};

use crate::tools::{Files, formatted, printed, yaml};

const POLICIES: u64 = 500;
const THREADS: usize = 4;

/// SplitMix64: a policy is its seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }

    fn heads(&mut self) -> bool {
        self.roll(2) == 0
    }
}

/// A host with some NICs, a default route and others.
struct Current {
    nics: u64,
    gateway_nic: u64,
    state: Value,
}

fn mac(nic: u64) -> String {
    format!("02:00:00:00:00:{nic:02X}")
}

fn current(dice: &mut Dice) -> Current {
    let nics = 1 + dice.roll(4);
    let gateway_nic = dice.roll(nics);
    let nic = |n: u64| {
        let address = json!({ "ip": format!("192.168.{n}.5"), "prefix-length": 24 });
        json!({
            "name": format!("eth{n}"), "type": "ethernet", "state": "up", "mac-address": mac(n), "mtu": 1500,
            "ipv4": { "enabled": true, "dhcp": false, "address": [address] }, "ipv6": { "enabled": false },
        })
    };
    let route = |destination: String, n: u64| {
        json!({
            "destination": destination, "next-hop-interface": format!("eth{n}"),
            "next-hop-address": format!("192.168.{n}.1"), "metric": 100, "table-id": 254,
        })
    };
    let mut routes = vec![route("0.0.0.0/0".to_owned(), gateway_nic)];
    for n in 0..dice.roll(4) {
        routes.push(route(format!("172.16.{n}.0/24"), dice.roll(nics)));
    }
    let interfaces: Vec<Value> = (0..nics).map(nic).collect();
    let routes = json!({ "running": routes, "config": routes });
    Current {
        nics,
        gateway_nic,
        state: json!({ "interfaces": interfaces, "routes": routes }),
    }
}

/// A policy while it is made.
#[derive(Default)]
struct Draft {
    capture: Map<String, Value>,
    captured: Map<String, Value>,
    interfaces: Vec<Value>,
    desired: Map<String, Value>,
}

fn template(path: &str) -> String {
    format!("{{{{ {path} }}}}")
}

impl Draft {
    /// A capture of a pool, and its result.
    fn pool(&mut self, dice: &mut Dice, n: u64, ipv6: bool) -> String {
        let name = format!("address-{n}");
        let host = 1 + dice.roll(200);
        let mut state = match ipv6 {
            false => {
                json!({ "ip": format!("10.{n}.0.{host}"), "prefix-length": 16 + dice.roll(9) })
            }
            true => json!({ "ip": format!("fd00:{n}::{host:x}"), "prefix-length": 64 }),
        };
        if !ipv6 {
            state["gateway"] = json!(format!("10.{n}.0.254"));
            state["dns"] = json!(["9.9.9.9", "8.8.8.8"]);
        }
        self.capture
            .insert(name.clone(), json!(format!("ippool.traffic-{n}.allocate")));
        self.captured
            .insert(name.clone(), json!({ "state": state }));
        name
    }

    /// A NIC with static addresses from pools.
    fn nic(&mut self, dice: &mut Dice, n: u64) {
        let address = |name: &str| {
            let field = |field: &str| template(&format!("capture.{name}.{field}"));
            json!({ "ip": field("ip"), "prefix-length": field("prefix-length") })
        };
        let name = format!("nic{n}");
        let mut nic = json!({ "name": name, "type": "ethernet", "state": "up" });
        let first = self.pool(dice, 2 * n, false);
        nic["ipv4"] = json!({ "enabled": true, "dhcp": false, "address": [address(&first)] });
        if dice.heads() {
            let second = self.pool(dice, 2 * n + 1, true);
            nic["ipv6"] = json!({ "enabled": true, "dhcp": false, "autoconf": false, "address": [address(&second)] });
        }
        if dice.heads() {
            let gateway = template(&format!("capture.{first}.gateway"));
            let route = json!({ "destination": "198.18.0.0/15", "next-hop-address": gateway, "next-hop-interface": name });
            self.desired
                .insert("routes".to_owned(), json!({ "config": [route] }));
        }
        if dice.heads() {
            let servers = template(&format!("capture.{first}.dns"));
            let config = json!({ "server": servers, "search": [] });
            self.desired
                .insert("dns-resolver".to_owned(), json!({ "config": config }));
        }
        self.interfaces.push(nic);
    }

    fn capture(&mut self, name: &str, expression: &str) {
        self.capture.insert(name.to_owned(), json!(expression));
    }

    /// A bridge on the NIC of the default route, with its address.
    fn bridge_on_default_route(&mut self, dice: &mut Dice) {
        self.capture("default-gw", r#"routes.running.destination=="0.0.0.0/0""#);
        self.capture(
            "base",
            "interfaces.name==capture.default-gw.routes.running.0.next-hop-interface",
        );
        let field = |field: &str| template(&format!("capture.base.interfaces.0.{field}"));
        let ports = json!({ "port": [{ "name": field("name") }] });
        let mut bridge = json!({
            "name": "br1", "type": "linux-bridge", "state": "up", "bridge": ports, "ipv4": field("ipv4"),
        });
        if dice.heads() {
            bridge["mac-address"] = json!(field("mac-address"));
        }
        self.interfaces.push(bridge);
        if dice.heads() {
            self.capture(
                "base-routes",
                "routes.running.next-hop-interface==capture.default-gw.routes.running.0.next-hop-interface",
            );
            self.capture(
                "bridge-routes",
                r#"capture.base-routes | routes.running.next-hop-interface:="br1""#,
            );
            let moved = template("capture.bridge-routes.routes.running");
            self.desired
                .insert("routes".to_owned(), json!({ "config": moved }));
        }
    }

    /// NICs found by name, by MAC address or by type.
    fn found(&mut self, dice: &mut Dice, host: &Current) {
        let n = dice.roll(host.nics);
        let expression = match dice.roll(3) {
            0 => format!(r#"interfaces.name=="eth{n}""#),
            1 => format!(r#"interfaces.mac-address=="{}""#, mac(n)),
            _ => r#"interfaces.type=="ethernet""#.to_owned(),
        };
        self.capture("found", &expression);
        let source = match dice.heads() {
            true => {
                self.capture(
                    "changed",
                    r#"capture.found | interfaces.description:="by Berth""#,
                );
                "changed"
            }
            false => "found",
        };
        let name = template(&format!("capture.{source}.interfaces.0.name"));
        self.interfaces.push(json!({
            "name": "found0", "type": "vlan", "state": "up", "vlan": { "base-iface": name, "id": 1 + n },
        }));
    }

    fn policy(mut self) -> (Value, Value) {
        self.desired
            .insert("interfaces".to_owned(), json!(self.interfaces));
        let policy = json!({ "capture": self.capture, "desiredState": self.desired });
        (policy, Value::Object(self.captured))
    }
}

fn files(seed: u64) -> Files {
    let mut dice = Dice(seed);
    let host = current(&mut dice);
    let mut draft = Draft::default();
    for n in 0..1 + dice.roll(3) {
        draft.nic(&mut dice, n);
    }
    if dice.heads() {
        draft.bridge_on_default_route(&mut dice);
    }
    if dice.heads() {
        draft.found(&mut dice, &host);
    }
    debug_assert!(host.gateway_nic < host.nics);
    let (policy, captured) = draft.policy();
    Files::new(&policy, &host.state, &captured)
}

/// What differs, for the test's message.
fn compare(seed: u64) -> Result<(), String> {
    let files = files(seed);
    let by_peer = files.by_nmpolicyctl();
    let peers = files.read("out");
    let by_berth = files.by_berth();
    let ours = files.read("out");
    let (expected, state) = (formatted(&printed(&by_peer)), yaml(&printed(&by_berth)));
    let policy = files.read("policy");
    if state != expected {
        return Err(format!("{policy}\nBerth: {state}\nnmpolicyctl: {expected}"));
    }
    // And the same captures, those of pools with the same results.
    for (name, captured) in peers.as_object().into_iter().flatten() {
        let ours = &ours[name]["State"];
        let is_pool = captured["State"].get("ip").is_some();
        if ours.is_null() || (is_pool && *ours != captured["State"]) {
            return Err(format!(
                "{policy}\ncapture {name}: {ours}, nmpolicyctl: {captured}"
            ));
        }
    }
    Ok(())
}

#[test]
fn five_hundred_policies_give_the_state_that_nmpolicyctl_makes() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let seed = match std::env::var("BERTH_SEED") {
        Ok(text) => text.parse().unwrap(),
        Err(_) => u64::from(now.subsec_nanos()) ^ now.as_secs(),
    };
    println!("BERTH_SEED={seed}");
    let next = AtomicU64::new(0);
    let wrong = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while let n @ 0..POLICIES = next.fetch_add(1, Ordering::Relaxed) {
                    if let Err(difference) = compare(seed.wrapping_add(n)) {
                        wrong
                            .lock()
                            .unwrap()
                            .push(format!("policy {n}: {difference}"));
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    let first = wrong.first().cloned().unwrap_or_default();
    assert!(
        wrong.is_empty(),
        "BERTH_SEED={seed}: {} differ, such as {first}",
        wrong.len()
    );
}
