//! Static addresses.

use berth_core::Address;
use serde_json::json;

use super::{ConfigError, read, read_with};

#[test]
fn static_addresses_keep_their_host_bits() {
    // Case 8.
    let network = read(json!({
        "range": "192.168.1.44/28", "gateway": "192.168.1.1",
        "addresses": [
            {"address": "10.10.0.1/24", "gateway": "10.10.0.254"},
            {"address": "3ffe:ffff:0:01ff::1/64", "gateway": "3ffe:ffff:0::1"},
        ],
    }))
    .unwrap();
    assert_eq!(
        network.ranges[0].space.first().unwrap().to_string(),
        "192.168.1.33"
    );
    let messages: Vec<String> = network
        .addresses
        .iter()
        .map(|one| format!("{}/{} {:?}", one.address, one.network.length(), one.gateway))
        .collect();
    assert_eq!(
        messages,
        [
            "10.10.0.1/24 Some(10.10.0.254)",
            "3ffe:ffff:0:1ff::1/64 Some(3ffe:ffff::1)"
        ]
    );
}

#[test]
fn cni_args_add_addresses_and_gateways() {
    let network = read_with(
        json!({"addresses": [{"address": "10.10.0.1/24"}]}),
        json!({}),
        "IP=10.20.0.1/24,fd00::5/64;GATEWAY=10.20.0.254,10.10.0.254",
        None,
    )
    .unwrap();
    let gateways: Vec<Option<String>> = network
        .addresses
        .iter()
        .map(|one| one.gateway.map(|gw| gw.to_string()))
        .collect();
    assert_eq!(
        gateways,
        [Some("10.10.0.254".into()), Some("10.20.0.254".into()), None]
    );
}

#[test]
fn old_forms_carry_one_static_address_of_each_family() {
    let two = json!({"addresses": [{"address": "10.0.0.1/24"}, {"address": "10.0.0.2/24"}]});
    for version in ["", "0.1.0", "0.2.0"] {
        let result = read_with(two.clone(), json!({"cniVersion": version}), "", None);
        assert!(
            matches!(result, Err(ConfigError::TooManyAddresses { .. })),
            "{version}"
        );
    }
    assert!(read_with(two, json!({"cniVersion": "0.3.0"}), "", None).is_ok());
}

#[test]
fn what_the_runtime_asks_for_takes_the_place_of_its_ranges_choice() {
    let ranges = json!({"range": "10.0.0.0/24", "gateway": "10.0.0.1", "ipRanges": [{"range": "fd00::/64"}]});
    let network = read_with(
        ranges,
        json!({"runtimeConfig": {"ips": ["fd00::9", "10.0.0.7/24", "172.16.0.1/16"]},
               "args": {"cni": {"ips": ["10.0.0.7/24"]}}}),
        "",
        None,
    )
    .unwrap();
    let wanted: Vec<Option<Address>> = network.ranges.iter().map(|range| range.wanted).collect();
    assert_eq!(wanted, ["10.0.0.7".parse().ok(), "fd00::9".parse().ok()]);
    assert_eq!(network.addresses.len(), 1);
    assert_eq!(network.addresses[0].address.to_string(), "172.16.0.1");
    let nowhere = read_with(
        json!({}),
        json!({"runtimeConfig": {"ips": ["10.0.0.7"]}}),
        "",
        None,
    );
    assert!(nowhere.is_err());
}

/// Multus passes a selection's `ips` in both ways at once.
#[test]
fn an_address_that_is_asked_for_twice_is_one() {
    let network = read_with(
        json!({"range": "10.0.0.0/24"}),
        json!({"runtimeConfig": {"ips": ["10.0.0.7/24", "172.16.0.1/16"]}}),
        "IP=10.0.0.7/24,172.16.0.1/16",
        None,
    )
    .unwrap();
    assert_eq!(network.ranges[0].wanted, "10.0.0.7".parse().ok());
    let named: Vec<String> = network
        .addresses
        .iter()
        .map(|one| one.address.to_string())
        .collect();
    assert_eq!(named, ["172.16.0.1"]);

    let network = read_with(
        json!({"addresses": [{"address": "172.16.0.1/16", "gateway": "172.16.0.254"}]}),
        json!({}),
        "IP=172.16.0.1/16,172.16.0.2/16,172.16.0.2/16",
        None,
    )
    .unwrap();
    let named: Vec<String> = network
        .addresses
        .iter()
        .map(|one| one.address.to_string())
        .collect();
    assert_eq!(named, ["172.16.0.1", "172.16.0.2"]);
    assert_eq!(
        network.addresses[0].gateway,
        "172.16.0.254".parse().ok(),
        "the network's own counts"
    );
}
