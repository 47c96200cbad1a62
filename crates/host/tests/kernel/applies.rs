//! Applies, commits and rollbacks.

use serde_json::{Value, json};

use crate::host::{Host, NIC, until, with};

#[test]
fn an_applied_address_is_there_and_answers() {
    let host = Host::with_nic_down();
    let state = with(&["192.0.2.7/24", "2001:db8::7/64"]);
    let changed = host.apply(&state, &[]).succeeded();
    assert!(changed.contains("192.0.2.7"), "{changed}");
    assert_eq!(host.addresses(), ["192.0.2.7/24", "2001:db8::7/64"]);
    assert!(host.switch.ping("192.0.2.7").unwrap());
    assert!(!host.has_record(), "a committed change has no way back");
    // Again: nothing changes.
    host.apply(&state, &[]).succeeded();
    assert_eq!(host.addresses(), ["192.0.2.7/24", "2001:db8::7/64"]);
}

/// The probe pings a gateway that is not there; a node's handler then rolls back.
#[test]
fn the_probe_fails_and_the_address_is_gone() {
    let host = Host::new();
    host.netns
        .ip(&["addr", "add", "198.51.100.4/24", "dev", NIC])
        .unwrap();
    host.apply(
        &with(&["192.0.2.7/24"]),
        &["--no-commit", "--timeout", "60"],
    )
    .succeeded();
    assert_eq!(host.addresses(), ["192.0.2.7/24"]);
    assert!(!host.netns.ping("192.0.2.254").unwrap(), "nobody has it");
    host.run(&["rollback"]).succeeded();
    assert_eq!(
        host.addresses(),
        ["198.51.100.4/24"],
        "what was there is there again"
    );
    assert!(host.is_up() && !host.has_record());
}

#[test]
fn the_probe_fails_and_the_address_is_gone_where_the_link_was_down() {
    let host = Host::with_nic_down();
    let state = with(&["192.0.2.7/24", "2001:db8::7/64"]);
    host.apply(&state, &["--no-commit"]).succeeded();
    assert!(host.is_up());
    host.run(&["rollback"]).succeeded();
    assert_eq!(host.addresses(), Vec::<String>::new());
    assert!(!host.is_up(), "the link is down as before");
}

#[test]
fn a_committed_change_stays() {
    let host = Host::with_nic_down();
    host.apply(&with(&["192.0.2.7/24"]), &["--no-commit", "--timeout", "5"])
        .succeeded();
    assert!(host.has_record());
    host.run(&["commit"]).succeeded();
    assert!(!host.has_record());
    // The guard sees that there is nothing to undo, and ends.
    until("the guard has ended", || host.guard().is_none());
    assert_eq!(host.addresses(), ["192.0.2.7/24"]);
}

#[test]
fn a_change_that_nobody_commits_is_undone_in_time() {
    let host = Host::with_nic_down();
    let state = with(&["192.0.2.7/24"]);
    host.apply(&state, &["--no-commit", "--timeout", "5"])
        .succeeded();
    until("the guard has undone the change", || !host.has_record());
    assert_eq!(host.addresses(), Vec::<String>::new());
    assert!(!host.is_up());
    let complaint = host.run(&["commit", "kernel"]).failed();
    assert!(complaint.contains("not committed in time"), "{complaint}");
}

#[test]
fn one_change_at_a_time_waits_for_its_commit() {
    let host = Host::new();
    host.apply(&with(&["192.0.2.7/24"]), &["--no-commit"])
        .succeeded();
    let complaint = host.apply(&with(&["192.0.2.8/24"]), &[]).failed();
    assert!(
        complaint.contains("waits for its commit") && complaint.contains("roll it back first"),
        "{complaint}"
    );
    assert_eq!(host.addresses(), ["192.0.2.7/24"]);
    host.run(&["rollback"]).succeeded();
    host.apply(&with(&["192.0.2.8/24"]), &[]).succeeded();
    assert_eq!(host.addresses(), ["192.0.2.8/24"]);
}

/// I5: what it says of the way back is unknown, so nothing is changed over it.
#[test]
fn a_record_that_can_not_be_read_is_kept_and_named() {
    let host = Host::new();
    host.put_record("{");
    let complaint = host.apply(&with(&["192.0.2.7/24"]), &[]).failed();
    assert!(
        complaint.contains("change.json") && complaint.contains("remove the file"),
        "{complaint}"
    );
    assert!(host.has_record() && host.addresses().is_empty());
}

/// I7: addresses that others have put on the NIC meanwhile are none of this change's.
#[test]
fn a_rollback_leaves_what_others_added_meanwhile() {
    let host = Host::new();
    host.apply(&with(&["192.0.2.7/24"]), &["--no-commit"])
        .succeeded();
    host.netns
        .ip(&["addr", "add", "203.0.113.9/24", "dev", NIC])
        .unwrap();
    host.run(&["rollback"]).succeeded();
    assert_eq!(host.addresses(), ["203.0.113.9/24"]);
}

#[test]
fn a_new_bridge_and_its_route_are_gone_after_a_rollback() {
    let host = Host::new();
    let bridge: Value = json!({
        "interfaces": [{
            "name": "br7", "type": "linux-bridge", "state": "up", "bridge": { "port": [{ "name": NIC }] },
            "ipv4": { "enabled": true, "dhcp": false, "address": [{ "ip": "192.0.2.7", "prefix-length": 24 }] },
        }],
        "routes": { "config": [{ "destination": "198.51.100.0/24", "next-hop-address": "192.0.2.1", "next-hop-interface": "br7" }] },
    });
    host.apply(&bridge, &["--no-commit"]).succeeded();
    assert_eq!(host.netns.addresses_of("br7").unwrap(), ["192.0.2.7/24"]);
    assert!(
        host.netns
            .ip(&["route"])
            .unwrap()
            .contains("198.51.100.0/24")
    );
    host.run(&["rollback"]).succeeded();
    let links = host.netns.ip(&["link"]).unwrap();
    assert!(!links.contains("br7"), "{links}");
    assert!(
        !host
            .netns
            .ip(&["route"])
            .unwrap()
            .contains("198.51.100.0/24")
    );
}

#[test]
fn bad_input_changes_nothing_and_says_what_is_wrong() {
    let host = Host::new();
    let before = host.addresses();
    let mut absent = with(&["192.0.2.7/24"]);
    absent["interfaces"][0]["name"] = json!("eth9");
    let mut down = with(&["192.0.2.7/24"]);
    down["interfaces"][0]["state"] = json!("down");
    let mut unknown = with(&["192.0.2.7/24"]);
    unknown["interfaces"][0]["ipv4"]["adress"] = json!([]);
    let mut mixed = with(&["192.0.2.7/24"]);
    mixed["interfaces"][0]["ipv4"]["address"][0]["ip"] = json!("2001:db8::7");
    for (state, words) in [
        (absent, ["eth9", "no such interface"]),
        (down, ["interfaces.eth1.state", "use up or absent"]),
        (unknown, ["adress", "unknown field"]),
        (mixed, ["2001:db8::7", "IPv6"]),
    ] {
        let complaint = host.apply(&state, &[]).failed();
        for word in words {
            assert!(complaint.contains(word), "{word} is not in: {complaint}");
        }
        assert_eq!(host.addresses(), before);
        assert!(!host.has_record());
    }
}
