use berth_api::nmstate::{NodeIPPoolSpec, Range};

use super::*;

fn space(cidr: &str) -> PoolSpace {
    PoolSpace::read(&NodeIPPoolSpec {
        range: Range {
            cidr: cidr.to_owned(),
            ..Range::default()
        },
        ..Default::default()
    })
    .unwrap()
}

fn granted(pool: &str, cidr: &str, address: &str) -> Granted {
    Granted::of(pool, &space(cidr), address.parse().unwrap()).unwrap()
}

fn rich(address: &str) -> Granted {
    Granted {
        gateway: Some("10.10.10.254".parse().unwrap()),
        dns: vec!["10.0.0.53".parse().unwrap(), "10.0.0.54".parse().unwrap()],
        ..granted("traffic-1", "10.10.10.0/24", address)
    }
}

fn interface(name: &str, family: &str, address: Value) -> Value {
    json!({ "name": name, "type": "ethernet", "state": "up", family: { "address": [address], "dhcp": false, "enabled": true } })
}

fn template(capture: &str) -> Value {
    json!({ "ip": format!("{{{{ capture.{capture}.ip }}}}"), "prefix-length": format!("{{{{ capture.{capture}.prefix-length }}}}") })
}

/// The proposal's policy; capture and desiredState under spec, as upstream has them.
fn proposal() -> Value {
    json!({
        "capture": {
            "address-from-traffic-1": "ippool.traffic-1.allocate",
            "address-from-traffic-2": "ippool.traffic-2.allocate",
        },
        "desiredState": { "interfaces": [
            interface("eth1", "ipv4", template("address-from-traffic-1")),
            interface("eth2", "ipv4", template("address-from-traffic-2")),
        ] },
    })
}

fn both() -> [Granted; 2] {
    [
        granted("traffic-1", "10.10.10.0/24", "10.10.10.8"),
        granted("traffic-2", "10.10.11.0/24", "10.10.11.9"),
    ]
}

/// The proposal's enactment, its second capture under its own name.
#[test]
fn the_proposals_policy_gives_the_proposals_enactment() {
    let policy = PoolPolicy::read(&proposal()).unwrap();
    let wanted: Vec<(&str, &str)> = policy.wanted().collect();
    assert_eq!(
        wanted,
        [
            ("address-from-traffic-1", "traffic-1"),
            ("address-from-traffic-2", "traffic-2")
        ]
    );
    let [one, two] = both();
    let granted = BTreeMap::from([
        ("address-from-traffic-1".to_owned(), one),
        ("address-from-traffic-2".to_owned(), two),
    ]);
    let rendered = policy.render(&granted).unwrap();
    assert_eq!(
        rendered.desired_state,
        json!({ "interfaces": [
            interface("eth1", "ipv4", json!({ "ip": "10.10.10.8", "prefix-length": 24 })),
            interface("eth2", "ipv4", json!({ "ip": "10.10.11.9", "prefix-length": 24 })),
        ] })
    );
    assert_eq!(
        json!(rendered.captured),
        json!({
            "address-from-traffic-1": { "ip": "10.10.10.8", "prefix-length": 24 },
            "address-from-traffic-2": { "ip": "10.10.11.9", "prefix-length": 24 },
        })
    );
    assert!(rendered.capture.is_empty());
}

/// The proposal's alternative gives the same state.
#[test]
fn the_proposals_alternative_syntax_gives_the_same_state() {
    let ipam = |pool: &str| json!({ "ipam": { "pool": pool } });
    let spec = json!({ "desiredState": { "interfaces": [
        interface("eth1", "ipv4", ipam("traffic-1")),
        interface("eth2", "ipv4", ipam("traffic-2")),
    ] } });
    let policy = PoolPolicy::read(&spec).unwrap();
    let wanted: Vec<(&str, &str)> = policy.wanted().collect();
    assert_eq!(
        wanted,
        [("eth1.ipv4.0", "traffic-1"), ("eth2.ipv4.0", "traffic-2")]
    );
    let [one, two] = both();
    let granted = BTreeMap::from([
        ("eth1.ipv4.0".to_owned(), one.clone()),
        ("eth2.ipv4.0".to_owned(), two.clone()),
    ]);
    let inline = policy.render(&granted).unwrap();
    let granted = BTreeMap::from([
        ("address-from-traffic-1".to_owned(), one),
        ("address-from-traffic-2".to_owned(), two),
    ]);
    let captured = PoolPolicy::read(&proposal())
        .unwrap()
        .render(&granted)
        .unwrap();
    assert_eq!(inline.desired_state, captured.desired_state);
    assert!(inline.captured.is_empty());
}

#[test]
fn other_captures_and_templates_are_left_to_nmstate() {
    let spec = json!({
        "capture": {
            "a": "ippool.traffic-1.allocate",
            "eth": "interfaces.name == \"ippool.x | != \"",
            "gw": "routes.running.destination == \"0.0.0.0/0\"",
            "base": "interfaces.name == capture.gw.routes.running.0.next-hop-interface",
        },
        "desiredState": {
            "interfaces": [interface("{{ capture.base.interfaces.0.name }}", "ipv4", template("a"))],
            "text": "{{ capture.a.ip }}/{{ capture.a.prefix-length }} on {{ capture.base.interfaces.0.name }}",
            "gateway": "{{capture.a.gateway}}",
            "dns": "{{ capture.a.dns }}",
            "first": "{{ capture.a.dns.0 }}",
            "number": 7,
        },
    });
    let granted = BTreeMap::from([("a".to_owned(), rich("10.10.10.8"))]);
    let rendered = PoolPolicy::read(&spec).unwrap().render(&granted).unwrap();
    assert_eq!(
        rendered.capture.keys().collect::<Vec<_>>(),
        ["base", "eth", "gw"]
    );
    let state = rendered.desired_state;
    assert_eq!(
        state["interfaces"][0]["name"],
        "{{ capture.base.interfaces.0.name }}"
    );
    assert_eq!(
        state["text"],
        "10.10.10.8/24 on {{ capture.base.interfaces.0.name }}"
    );
    assert_eq!(state["gateway"], "10.10.10.254");
    assert_eq!(state["dns"], json!(["10.0.0.53", "10.0.0.54"]));
    assert_eq!(state["first"], "10.0.0.53");
    assert_eq!(state["number"], 7);
    assert_eq!(
        json!(rendered.captured)["a"]["dns"],
        json!(["10.0.0.53", "10.0.0.54"])
    );
}

#[test]
fn a_policy_without_pools_is_nmstates_alone() {
    let spec = json!({ "capture": { "a.b": "interfaces.name != \"x\"" }, "desiredState": { "x": "{{ capture.a.b }}" } });
    let policy = PoolPolicy::read(&spec).unwrap();
    assert!(!policy.uses_pools());
    assert_eq!(
        policy.render(&BTreeMap::new()).unwrap().desired_state,
        spec["desiredState"]
    );
    assert!(!PoolPolicy::read(&json!({})).unwrap().uses_pools());
}

fn failure(capture: Value, desired: Value) -> String {
    let spec = json!({ "capture": capture, "desiredState": desired });
    let pool = space("10.10.10.0/24");
    let six = space("fd00::/64");
    let outcome = PoolPolicy::read(&spec).and_then(|policy| {
        policy.rehearse(|name| match name {
            "six" => Some(&six),
            _ => Some(&pool),
        })
    });
    outcome.unwrap_err().to_string()
}

/// Each bad capture of the issue names the field, the value and what would be right, and is found before anything is allocated.
#[test]
fn bad_captures_are_refused() {
    let good = json!({ "a": "ippool.x.allocate" });
    let with = |name: &str, value: &str| {
        let mut captures = good.clone();
        captures[name] = value.into();
        captures
    };
    let state = |text: &str| json!({ "x": text });
    let none = Value::Null;
    let cases = [
        (
            json!({ "a": "ippool.x.alocate" }),
            none.clone(),
            vec!["spec.capture.a", "`alocate`", "allocate"],
        ),
        (
            json!({ "a": "ippool.x" }),
            none.clone(),
            vec!["spec.capture.a", "ippool.x", "ippool.NAME.allocate"],
        ),
        (
            json!({ "a": "ippool" }),
            none.clone(),
            vec!["spec.capture.a", "ippool.NAME.allocate"],
        ),
        (
            json!({ "a": "ippool..allocate" }),
            none.clone(),
            vec!["spec.capture.a", "ippool.NAME.allocate"],
        ),
        (
            json!({ "a": "ippool.My_Pool.allocate" }),
            none.clone(),
            vec!["spec.capture.a", "My_Pool", "names are of"],
        ),
        (
            json!({ "a": format!("ippool.{}.allocate", "p".repeat(64)) }),
            none.clone(),
            vec!["spec.capture.a", "63 characters"],
        ),
        (json!({ "a": 7 }), none.clone(), vec!["spec.capture.a", "7"]),
        (
            json!({ "my.addr": "ippool.x.allocate" }),
            none.clone(),
            vec!["spec.capture.my.addr", "letters, digits"],
        ),
        (json!([]), none.clone(), vec!["spec.capture", "a map"]),
        (
            json!({ "a": "ippool.x.allocate | interfaces.name == \"e\"" }),
            none.clone(),
            vec!["spec.capture.a", "pipes a pool capture"],
        ),
        (
            json!({ "a": "ippool.x.allocate == \"10.0.0.1\"" }),
            none.clone(),
            vec!["spec.capture.a", "compares"],
        ),
        (
            with("b", "capture.a | interfaces.name == \"e\""),
            none.clone(),
            vec![
                "spec.capture.b",
                "pipes a pool capture",
                "{{ capture.a.ip }}",
            ],
        ),
        (
            with("b", "interfaces.ipv4.address.ip == capture.a.ip"),
            none.clone(),
            vec!["spec.capture.b", "compares"],
        ),
        (
            with("b", "interfaces.description := ippool.x.allocate"),
            none.clone(),
            vec!["spec.capture.b", "compares or replaces"],
        ),
        (
            with("b", "interfaces.name != \"eth1\""),
            none.clone(),
            vec!["spec.capture.b", "`!=`", "nmstate does not know"],
        ),
        (
            good.clone(),
            state("{{ capture.a.ipx }}"),
            vec!["spec.desiredState.x", "capture.a.ipx", "prefix-length"],
        ),
        (
            good.clone(),
            state("{{ capture.a }}"),
            vec!["spec.desiredState.x", "capture.a", "prefix-length"],
        ),
        (
            good.clone(),
            state("{{ capture.a.gateway }}"),
            vec![
                "spec.desiredState.x",
                "pool x has no gateway",
                "spec.gateway",
            ],
        ),
        (
            good.clone(),
            state("{{ capture.a.dns.0 }}"),
            vec!["spec.desiredState.x", "pool x has no dns"],
        ),
        (
            json!({ "a": "ippool.six.allocate" }),
            json!({ "interfaces": [interface("eth1", "ipv4", template("a"))] }),
            vec![
                "spec.desiredState.interfaces[0].ipv4.address[0].ip",
                "fd00::1 of pool six is IPv6",
                "a pool of IPv4",
            ],
        ),
        (
            good.clone(),
            json!({ "interfaces": [interface("eth1", "ipv4", json!({ "ipam": { "name": "x" } }))] }),
            vec![
                "spec.desiredState.interfaces[0].ipv4.address[0]",
                "name",
                "ipam: {pool: NAME}",
            ],
        ),
        (
            good.clone(),
            json!({ "interfaces": [interface("eth1", "ipv4", json!({ "ip": "10.0.0.1", "ipam": { "pool": "x" } }))] }),
            vec!["address[0]", "ipam and ip", "leave ip out"],
        ),
        (
            json!({}),
            json!({ "interfaces": [interface("eth1", "ipv4", json!({ "ipam": { "pool": "six" } }))] }),
            vec!["ipv4.address[0].ip", "IPv6", "a pool of IPv4"],
        ),
    ];
    for (capture, desired, parts) in cases {
        let error = failure(capture.clone(), desired);
        for part in parts {
            assert!(
                error.contains(part),
                "{capture}: `{part}` is not in: {error}"
            );
        }
    }
}

#[test]
fn a_list_in_a_text_and_a_state_too_deep_are_refused() {
    let spec = json!({ "capture": { "a": "ippool.x.allocate" }, "desiredState": { "x": "dns: {{ capture.a.dns }}" } });
    let granted = BTreeMap::from([("a".to_owned(), rich("10.10.10.8"))]);
    let error = PoolPolicy::read(&spec)
        .unwrap()
        .render(&granted)
        .unwrap_err();
    assert!(matches!(error, CaptureError::ListInText { .. }), "{error}");
    let mut deep = json!("x");
    for _ in 0..200 {
        deep = json!([deep]);
    }
    let error = PoolPolicy::read(&json!({ "desiredState": deep })).unwrap_err();
    assert!(matches!(error, CaptureError::TooMany { .. }), "{error}");
}

#[test]
fn a_pool_that_is_not_there_is_waited_for() {
    let policy = PoolPolicy::read(&proposal()).unwrap();
    assert_eq!(policy.rehearse(|_| None), Ok(()));
}

#[test]
fn a_pool_name_may_have_dots() {
    let spec = json!({ "capture": { "a": " ippool.rack-1.traffic.allocate " } });
    let policy = PoolPolicy::read(&spec).unwrap();
    assert_eq!(
        policy.wanted().collect::<Vec<_>>(),
        [("a", "rack-1.traffic")]
    );
}
