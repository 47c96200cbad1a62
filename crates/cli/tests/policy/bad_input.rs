//! Policies and captured states that can't be used.

use std::process::Command;

use berth_testkit::isolated;
use serde_json::{Value, json};

use crate::tools::{Files, printed, yaml};

fn policy(expression: &str, ip: &str) -> Value {
    let address = json!({ "ip": ip, "prefix-length": 24 });
    let ipv4 = json!({ "address": [address], "dhcp": false, "enabled": true });
    json!({
        "capture": { "a": expression },
        "desiredState": { "interfaces": [{ "name": "eth1", "type": "ethernet", "state": "up", "ipv4": ipv4 }] },
    })
}

fn granted(state: Value) -> Value {
    json!({ "a": { "state": state } })
}

#[track_caller]
fn refused(policy: &Value, captured: &Value, words: &[&str]) {
    let files = Files::new(policy, &json!({ "interfaces": [] }), captured);
    let output = files.by_berth();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{policy}");
    assert!(output.stdout.is_empty(), "an answer and a failure");
    for word in words {
        assert!(complaint.contains(word), "{word} is not in: {complaint}");
    }
}

#[test]
fn bad_captures_name_field_value_and_remedy() {
    let good = granted(json!({ "ip": "10.0.0.4", "prefix-length": 24 }));
    let ip = "{{ capture.a.ip }}";
    for (policy, words) in [
        (
            policy("ippool.x.alocate", ip),
            ["spec.capture.a", "`alocate`", "allocate"],
        ),
        (
            policy("ippool.x.allocate | interfaces.0", ip),
            ["spec.capture.a", "pipes", "templates"],
        ),
        (
            policy("ippool.x.allocate", "{{ capture.a.ipx }}"),
            ["address[0].ip", "capture.a.ipx", "prefix-length"],
        ),
        (
            policy("ippool.x.allocate", "{{ capture.a.gateway }}"),
            ["capture.a.gateway", "pool x", "spec.gateway"],
        ),
    ] {
        refused(&policy, &good, &words);
    }
    let v6 = granted(json!({ "ip": "fd00::4", "prefix-length": 64 }));
    refused(
        &policy("ippool.x.allocate", ip),
        &v6,
        &["fd00::4", "ipv4.address[0].ip", "IPv4"],
    );
    let mut unequal = policy("ippool.x.allocate", ip);
    unequal["capture"]["b"] = json!("interfaces.name != \"eth1\"");
    refused(&unequal, &good, &["spec.capture.b", "!=", "use =="]);
}

#[test]
fn bad_captured_states_name_field_value_and_remedy() {
    let policy = policy("ippool.x.allocate", "{{ capture.a.ip }}");
    for (captured, words) in [
        (json!({}), ["capture a", "pool x", "prefix-length: N"]),
        (
            granted(json!({ "ip": "10.0.0.300", "prefix-length": 24 })),
            ["a.ip", "10.0.0.300", "such as"],
        ),
        (
            granted(json!({ "ip": "10.0.0.4", "prefix-length": 33 })),
            ["a.prefix-length", "33", "0 to 32"],
        ),
        (
            granted(json!({ "ip": "10.0.0.4" })),
            ["a.prefix-length", "null", "0 to 32"],
        ),
    ] {
        refused(&policy, &captured, &words);
    }
    // Of ordinary captures: all or none.
    let two = json!({
        "capture": { "x": "interfaces.name==\"eth1\"", "y": "interfaces.name==\"eth2\"" },
        "desiredState": { "interfaces": [] },
    });
    let one = json!({ "x": { "state": { "interfaces": [] } } });
    refused(&two, &one, &["have x and lack y", "leave x out"]);
}

#[test]
fn nmstates_own_words_reach_the_user() {
    let nowhere = json!({
        "capture": { "a": "interfaces.name==\"eth7\"" },
        "desiredState": { "interfaces": [{ "name": "{{ capture.a.interfaces.0.name }}" }] },
    });
    refused(&nowhere, &json!({}), &["eth7", "not found"]);
}

#[test]
fn a_missing_host_program_is_named_with_what_to_do() {
    let files = Files::new(
        &json!({ "desiredState": { "interfaces": [] } }),
        &json!({}),
        &json!({}),
    );
    let output = isolated(Command::new(env!("CARGO_BIN_EXE_berth")))
        .args([
            "policy",
            "gen",
            &files.path("policy"),
            "-s",
            &files.path("current"),
        ])
        .args(["--host-program", "/nonexistent/nmstatectl"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(3));
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(
        complaint.contains("/nonexistent/nmstatectl") && complaint.contains("install berth-host"),
        "{complaint}"
    );
}

#[test]
fn captured_states_of_ordinary_captures_are_used_instead_of_the_current_state() {
    let policy = json!({
        "capture": { "nic": "interfaces.name==\"eth1\"" },
        "desiredState": { "interfaces": [{ "name": "{{ capture.nic.interfaces.0.name }}", "type": "ethernet", "state": "up" }] },
    });
    let nic = json!({ "name": "eth9", "type": "ethernet", "state": "up" });
    let captured = json!({ "nic": { "state": { "interfaces": [nic] } } });
    let files = Files::new(&policy, &json!({ "interfaces": [] }), &captured);
    let state = yaml(&printed(&files.by_berth()));
    assert_eq!(state["interfaces"][0]["name"], "eth9");
}
