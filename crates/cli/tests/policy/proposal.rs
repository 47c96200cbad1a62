//! The proposal's own policy, in both of its syntaxes.

use serde_json::{Value, json};

use crate::tools::{Files, formatted, printed, yaml};

fn nic(name: &str, address: Value) -> Value {
    let ipv4 = json!({ "address": [address], "dhcp": false, "enabled": true });
    json!({ "name": name, "type": "ethernet", "state": "up", "ipv4": ipv4 })
}

fn templates(capture: &str) -> Value {
    let field = |field: &str| format!("{{{{ capture.{capture}.{field} }}}}");
    json!({ "ip": field("ip"), "prefix-length": field("prefix-length") })
}

fn results() -> Value {
    json!({
        "address-from-traffic-1": { "state": { "ip": "10.10.10.8", "prefix-length": 24 } },
        "address-from-traffic-2": { "state": { "ip": "10.10.11.9", "prefix-length": 24 } },
    })
}

/// `status.desiredState` of the proposal's enactment.
fn enacted() -> Value {
    let address = |ip: &str| json!({ "ip": ip, "prefix-length": 24 });
    json!({ "interfaces": [nic("eth1", address("10.10.10.8")), nic("eth2", address("10.10.11.9"))] })
}

#[test]
fn the_proposals_policy_gives_the_proposals_enactment() {
    let spec = json!({
        "capture": {
            "address-from-traffic-1": "ippool.traffic-1.allocate",
            "address-from-traffic-2": "ippool.traffic-2.allocate",
        },
        "desiredState": { "interfaces": [
            nic("eth1", templates("address-from-traffic-1")),
            nic("eth2", templates("address-from-traffic-2")),
        ] },
    });
    // The object, as it is in the cluster, and its spec alone, as nmpolicyctl takes it.
    let object = json!({
        "apiVersion": "nmstate.io/v1", "kind": "NodeNetworkConfigurationPolicy", "metadata": { "name": "static-ip" },
        "spec": spec,
    });
    for policy in [&object, &spec] {
        let files = Files::new(policy, &json!({ "interfaces": [] }), &results());
        let state = yaml(&printed(&files.by_berth()));
        assert_eq!(state, formatted(&enacted().to_string()));
        assert_eq!(
            state["interfaces"][0]["ipv4"]["address"][0]["prefix-length"],
            24
        );
        let out = files.read("out");
        assert_eq!(
            out["address-from-traffic-2"]["State"],
            json!({ "ip": "10.10.11.9", "prefix-length": 24 })
        );
        assert_eq!(out["address-from-traffic-2"]["MetaInfo"]["Version"], "0");
    }
    let files = Files::new(&spec, &json!({ "interfaces": [] }), &results());
    let by_peer = printed(&files.by_nmpolicyctl());
    assert_eq!(formatted(&by_peer), formatted(&enacted().to_string()));
    assert_eq!(
        files.read("out")["address-from-traffic-1"]["State"]["ip"],
        "10.10.10.8"
    );
}

#[test]
fn the_proposals_alternative_syntax_gives_the_same() {
    let pool = |name: &str| json!({ "ipam": { "pool": name } });
    let policy = json!({ "desiredState": { "interfaces": [nic("eth1", pool("traffic-1")), nic("eth2", pool("traffic-2"))] } });
    let results = json!({
        "eth1.ipv4.0": { "ip": "10.10.10.8", "prefix-length": 24 },
        "eth2.ipv4.0": { "ip": "10.10.11.9", "prefix-length": 24 },
    });
    let files = Files::new(&policy, &json!({ "interfaces": [] }), &results);
    let state = yaml(&printed(&files.by_berth()));
    assert_eq!(state, formatted(&enacted().to_string()));
}
