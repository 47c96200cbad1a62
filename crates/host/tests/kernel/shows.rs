//! What only reads: show, policy, format.

use serde_json::{Value, json};

use crate::host::{Host, NIC, with};

#[test]
fn show_reads_what_apply_has_set() {
    let host = Host::new();
    host.apply(&with(&["192.0.2.7/24"]), &[]).succeeded();
    let all: Value =
        serde_json::from_str(&host.run(&["show", "--kernel", "--json"]).succeeded()).unwrap();
    let names: Vec<&str> = all["interfaces"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, [NIC, "lo"], "sorted by name");
    let one: Value =
        serde_json::from_str(&host.run(&["show", NIC, "-k", "--json"]).succeeded()).unwrap();
    assert_eq!(one["interfaces"].as_array().unwrap().len(), 1);
    assert_eq!(
        one["interfaces"][0]["ipv4"]["address"],
        json!([{ "ip": "192.0.2.7", "prefix-length": 24 }])
    );
    let yaml = host.run(&["show", NIC, "-k"]).succeeded();
    assert!(yaml.starts_with("interfaces:\n- name: eth1\n"), "{yaml}");
}

/// What kubernetes-nmstate runs: `policy --current F --json --output-captured F POLICY`.
#[test]
fn a_policy_is_evaluated_on_the_state_that_is_given() {
    let host = Host::new();
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let file = dir.path().join(name);
        std::fs::write(&file, text).unwrap();
        file.to_str().unwrap().to_owned()
    };
    let policy = file(
        "policy.yaml",
        "capture:\n  nic: interfaces.name==\"eth5\"\ndesiredState:\n  interfaces:\n  - name: br-{{ capture.nic.interfaces.0.name }}\n    type: linux-bridge\n    state: up\n",
    );
    let current = file(
        "current.yaml",
        "interfaces:\n- name: eth5\n  type: ethernet\n  state: up\n",
    );
    let output = file("captured.json", "");
    let arguments = [
        "policy",
        "--current",
        &current,
        "--json",
        "--output-captured",
        &output,
        &policy,
    ];
    let state: Value = serde_json::from_str(&host.run(&arguments).succeeded()).unwrap();
    assert_eq!(state["interfaces"][0]["name"], "br-eth5");
    let captured: Value = serde_json::from_slice(&std::fs::read(&output).unwrap()).unwrap();
    assert_eq!(captured["nic"]["state"]["interfaces"][0]["name"], "eth5");
    assert_eq!(captured["nic"]["metaInfo"]["version"], "0");
    // The captured states instead of the current one.
    let empty = file("empty.yaml", "");
    let arguments = ["policy", "-c", &empty, "-a", &output, "--json", &policy];
    let again: Value = serde_json::from_str(&host.run(&arguments).succeeded()).unwrap();
    assert_eq!(again, state);
    // nmstate's own words.
    let wrong = file(
        "wrong.yaml",
        "capture:\n  a: interfaces.name != \"eth1\"\ndesiredState: {}\n",
    );
    let complaint = host.run(&["policy", "-c", &current, &wrong]).failed();
    assert!(complaint.contains("Invalid equal action"), "{complaint}");
}

#[test]
fn format_prints_a_state_as_nmstate_reads_it() {
    let host = Host::new();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("state.yaml");
    std::fs::write(&file, "interfaces: [{name: eth1, type: ethernet, state: up, ipv4: {enabled: true, address: [{ip: 192.0.2.7, prefix-length: \"24\"}]}}]").unwrap();
    let text = host.run(&["format", file.to_str().unwrap()]).succeeded();
    assert!(text.contains("prefix-length: 24"), "{text}");
    assert_eq!(host.run(&["version"]).succeeded().trim(), "2.2.62");
}
