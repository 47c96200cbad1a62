//! What users of whereabouts rely on, case by case, numbered as in the list of known cases; and what they have long
//! requested. Each case runs on a node with empty pools, in every kind of store.

use serde_json::json;

use crate::node::{TestNode, pod};

/// Runs every case as a test of its own on a fresh node.
#[macro_export]
macro_rules! run_cases {
    ($setup:path: $($case:ident)*) => {
        $(#[test] fn $case() { $crate::cases::$case(&$setup()); })*
    };
    ($setup:path) => {
        $crate::run_cases! { $setup:
            case_01_the_lowest_address_with_the_gateway
            case_02_freed_and_allocated_again
            case_03_a_range_by_its_ends
            case_04_an_ipv6_range_by_its_ends
            case_05_a_wide_ipv6_range_by_its_ends
            case_06_excluded_blocks
            case_07_an_excluded_half
            case_08_static_addresses_come_last
            case_09_one_address_from_each_range
            case_10_the_plain_range_comes_first
            case_11_bounds_and_exhaustion
            case_12_overlapping_ranges
            case_13_a_pod_made_again_takes_over
            case_14_an_excluded_address
            case_15_an_unreadable_exclude
            case_16_excludes_that_overlap
            case_17_an_end_below_the_start
            case_18_a_network_without_addresses
            case_19_leading_zeros
            case_20_a_start_outside
            case_22_one_pod_three_interfaces
            case_23_the_form_of_1_0_0
            case_24_the_form_of_0_2_0
            case_25_del_of_the_unknown
            the_same_call_gets_the_same_answer
            a_late_del_of_the_old_container_frees_nothing
            a_range_that_fails_takes_nothing_from_the_others
            two_ranges_of_one_network_allocate_two_addresses
            del_frees_in_every_pool_even_if_one_has_nothing
            overlap_checks_can_be_switched_off
            a_static_address_is_allocated_once
            a_requested_address_is_allocated_or_refused
            the_gateway_is_not_allocated
            small_networks_behind_their_setting
            addresses_past_the_first_65_bits
            no_range_is_no_address
            another_plugins_type_is_refused
            check_verifies_the_record
            gc_frees_what_is_not_valid
            status_reports_exhaustion
            a_freed_address_cools_down_for_all_but_its_last_owner
        }
    };
}

pub fn case_01_the_lowest_address_with_the_gateway(node: &TestNode) {
    let outcome = node.add(
        &pod("a"),
        json!({"range": "192.168.1.0/24", "gateway": "192.168.10.1"}),
    );
    assert_eq!(
        outcome.result(),
        json!({"cniVersion": "0.3.1", "dns": {},
            "ips": [{"version": "4", "address": "192.168.1.1/24", "gateway": "192.168.10.1"}]})
    );
}

pub fn case_02_freed_and_allocated_again(node: &TestNode) {
    let ipam = json!({"range": "192.168.1.0/24"});
    assert_eq!(
        node.add(&pod("a"), ipam.clone()).addresses(),
        ["192.168.1.1/24"]
    );
    node.del(&pod("a"), ipam.clone()).succeeded();
    assert_eq!(node.add(&pod("b"), ipam).addresses(), ["192.168.1.1/24"]);
}

pub fn case_03_a_range_by_its_ends(node: &TestNode) {
    for n in 11..=22 {
        let outcome = node.add(
            &pod(&format!("p{n}")),
            json!({"range": "192.168.1.11-192.168.1.23/24"}),
        );
        assert_eq!(outcome.addresses(), [format!("192.168.1.{n}/24")]);
    }
}

pub fn case_04_an_ipv6_range_by_its_ends(node: &TestNode) {
    let range = "2001:db8:480:603d:0304:0403:000:0000-2001:db8:480:603d:0304:0403:0000:0004/64";
    let outcome = node.add(&pod("a"), json!({"range": range}));
    assert_eq!(outcome.addresses(), ["2001:db8:480:603d:304:403::/64"]);
    node.del(&pod("a"), json!({"range": range})).succeeded();
    assert_eq!(
        node.add(&pod("b"), json!({"range": range})).addresses(),
        ["2001:db8:480:603d:304:403::/64"]
    );
}

pub fn case_05_a_wide_ipv6_range_by_its_ends(node: &TestNode) {
    let range = "2001:db8:5422:0005::-2001:db8:5422:0005:7fff:ffff:ffff:ffff/64";
    let outcome = node.add(&pod("a"), json!({"range": range}));
    assert_eq!(outcome.addresses(), ["2001:db8:5422:5::1/64"]);
}

pub fn case_06_excluded_blocks(node: &TestNode) {
    let ipam = json!({"range": "192.168.1.0/24", "exclude": ["192.168.1.0/28", "192.168.1.16/28"]});
    assert_eq!(node.add(&pod("a"), ipam).addresses(), ["192.168.1.32/24"]);
}

pub fn case_07_an_excluded_half(node: &TestNode) {
    let ipam = json!({"range": "caa5::0/112", "exclude": ["caa5::0/113"]});
    assert_eq!(node.add(&pod("a"), ipam).addresses(), ["caa5::8000/112"]);
}

pub fn case_08_static_addresses_come_last(node: &TestNode) {
    let outcome = node.add(
        &pod("a"),
        json!({
            "range": "192.168.1.44/28", "gateway": "192.168.1.1",
            "addresses": [
                {"address": "10.10.0.1/24", "gateway": "10.10.0.254"},
                {"address": "3ffe:ffff:0:01ff::1/64", "gateway": "3ffe:ffff:0::1"},
            ],
        }),
    );
    assert_eq!(
        outcome.addresses(),
        ["192.168.1.33/28", "10.10.0.1/24", "3ffe:ffff:0:1ff::1/64"]
    );
    let ips = outcome.result()["ips"].clone();
    assert_eq!(ips[0]["gateway"], "192.168.1.1");
    assert_eq!(ips[1]["gateway"], "10.10.0.254");
    assert_eq!(ips[2]["gateway"], "3ffe:ffff::1");
}

pub fn case_09_one_address_from_each_range(node: &TestNode) {
    let ipam = json!({"ipRanges": [{"range": "192.168.10.1/24"}, {"range": "abcd::1/64"}]});
    let outcome = node.add(&pod("a"), ipam.clone());
    assert_eq!(outcome.addresses(), ["192.168.10.1/24", "abcd::1/64"]);
    node.del(&pod("a"), ipam.clone()).succeeded();
    assert_eq!(
        node.add(&pod("b"), ipam).addresses(),
        ["192.168.10.1/24", "abcd::1/64"]
    );
}

pub fn case_10_the_plain_range_comes_first(node: &TestNode) {
    let ipam = json!({"ipRanges": [{"range": "192.168.10.1/24"}], "range": "abcd::1/64"});
    assert_eq!(
        node.add(&pod("a"), ipam).addresses(),
        ["abcd::1/64", "192.168.10.1/24"]
    );
}

pub fn case_11_bounds_and_exhaustion(node: &TestNode) {
    let ipam = json!({"range": "192.168.1.0/24", "range_start": "192.168.1.5", "range_end": "192.168.1.12"});
    for n in 5..=12 {
        let outcome = node.add(&pod(&format!("p{n}")), ipam.clone());
        assert_eq!(outcome.addresses(), [format!("192.168.1.{n}/24")]);
    }
    let (code, message) = node.add(&pod("ninth"), ipam.clone()).error();
    assert_eq!(code, 11);
    assert!(
        message.contains("Could not allocate IP in range"),
        "{message}"
    );
    node.del(&pod("p7"), ipam.clone()).succeeded();
    assert_eq!(
        node.add(&pod("ninth"), ipam).addresses(),
        ["192.168.1.7/24"]
    );
}

pub fn case_12_overlapping_ranges(node: &TestNode) {
    let wide = json!({"range": "192.168.22.0/24"});
    let narrow = json!({"range": "192.168.22.0/28"});
    assert_eq!(
        node.add(&pod("a"), wide.clone()).addresses(),
        ["192.168.22.1/24"]
    );
    assert_eq!(
        node.add(&pod("b"), narrow.clone()).addresses(),
        ["192.168.22.2/28"]
    );
    assert_eq!(
        node.add(&pod("c"), wide.clone()).addresses(),
        ["192.168.22.3/24"]
    );
    node.del(&pod("a"), wide).succeeded();
    assert_eq!(node.add(&pod("d"), narrow).addresses(), ["192.168.22.1/28"]);
}

pub fn case_13_a_pod_made_again_takes_over(node: &TestNode) {
    let ipam = json!({"range": "192.168.1.0/24"});
    let old = pod("web-0").container("old");
    let new = pod("web-0").container("new");
    node.add(&pod("first"), ipam.clone()).result();
    assert_eq!(node.add(&old, ipam.clone()).addresses(), ["192.168.1.2/24"]);
    assert_eq!(node.add(&new, ipam.clone()).addresses(), ["192.168.1.2/24"]);
    node.del(&new, ipam.clone()).succeeded();
    assert_eq!(
        node.add(&pod("other"), ipam).addresses(),
        ["192.168.1.2/24"]
    );
}

pub fn case_14_an_excluded_address(node: &TestNode) {
    let ipam = json!({"range": "192.168.0.0/29", "exclude": ["192.168.0.1"]});
    assert_eq!(node.add(&pod("a"), ipam).addresses(), ["192.168.0.2/29"]);
}

pub fn case_15_an_unreadable_exclude(node: &TestNode) {
    let ipam = json!({"range": "192.168.0.0/29", "exclude": ["192.168.0.1/123"]});
    let (code, message) = node.add(&pod("a"), ipam).error();
    assert_eq!(code, 7);
    assert!(
        message.contains("could not parse exclude range"),
        "{message}"
    );
}

pub fn case_16_excludes_that_overlap(node: &TestNode) {
    let exclude = [
        "192.168.0.0/30",
        "192.168.0.6/31",
        "192.168.0.8/31",
        "192.168.0.4/30",
    ];
    let ipam = json!({"range": "192.168.0.0/28", "exclude": exclude});
    assert_eq!(node.add(&pod("a"), ipam).addresses(), ["192.168.0.10/28"]);
}

pub fn case_17_an_end_below_the_start(node: &TestNode) {
    let ipam = json!({"range": "192.168.2.200/24", "range_start": "192.168.2.100", "range_end": "192.168.2.50"});
    assert_eq!(node.add(&pod("a"), ipam).addresses(), ["192.168.2.100/24"]);
}

pub fn case_18_a_network_without_addresses(node: &TestNode) {
    let (_, message) = node
        .add(&pod("a"), json!({"range": "192.168.21.100/31"}))
        .error();
    assert!(message.contains("net mask is too short"), "{message}");
}

pub fn case_19_leading_zeros(node: &TestNode) {
    let ipam = json!({"range": "00192.00168.1.0/24", "range_start": "00192.00168.1.44"});
    assert_eq!(node.add(&pod("a"), ipam).addresses(), ["192.168.1.44/24"]);
}

pub fn case_20_a_start_outside(node: &TestNode) {
    let (_, message) = node
        .add(&pod("a"), json!({"range": "192.168.1.5-192.168.2.25/28"}))
        .error();
    assert!(
        message.contains("invalid range start for CIDR 192.168.2.16/28: 192.168.1.5"),
        "{message}"
    );
}

pub fn case_22_one_pod_three_interfaces(node: &TestNode) {
    let ipam = json!({"range": "10.0.0.0/24"});
    let interface = |n: u8| pod("a").ifname(&format!("net{n}"));
    for n in 1..=3 {
        assert_eq!(
            node.add(&interface(n), ipam.clone()).addresses(),
            [format!("10.0.0.{n}/24")]
        );
    }
    for n in 1..=3 {
        node.del(&interface(n), ipam.clone()).succeeded();
    }
    assert_eq!(node.add(&pod("b"), ipam).addresses(), ["10.0.0.1/24"]);
}

pub fn case_23_the_form_of_1_0_0(node: &TestNode) {
    let ipam = json!({"range": "192.168.1.0/24", "gateway": "192.168.10.1"});
    assert_eq!(
        node.add_at("1.0.0", &pod("a"), ipam).result(),
        json!({"cniVersion": "1.0.0", "ips": [{"address": "192.168.1.1/24", "gateway": "192.168.10.1"}]})
    );
}

pub fn case_24_the_form_of_0_2_0(node: &TestNode) {
    let ipam = json!({"range": "192.168.1.0/24", "gateway": "192.168.10.1"});
    assert_eq!(
        node.add_at("0.2.0", &pod("a"), ipam).result(),
        json!({"cniVersion": "0.2.0", "dns": {},
            "ip4": {"ip": "192.168.1.1/24", "gateway": "192.168.10.1"}})
    );
}

pub fn case_25_del_of_the_unknown(node: &TestNode) {
    node.del(&pod("nobody"), json!({"range": "192.168.1.0/24"}))
        .succeeded();
    node.del(
        &pod("nobody"),
        json!({"ipRanges": [{"range": "10.0.0.0/24"}, {"range": "fd00::/64"}]}),
    )
    .succeeded();
}

pub fn the_same_call_gets_the_same_answer(node: &TestNode) {
    let ipam = json!({"ipRanges": [{"range": "10.0.0.0/24"}, {"range": "fd00::/64"}],
        "addresses": [{"address": "10.1.0.7/16"}]});
    let first = node.add(&pod("a"), ipam.clone());
    assert_eq!(
        first.addresses(),
        ["10.0.0.1/24", "fd00::1/64", "10.1.0.7/16"]
    );
    assert_eq!(node.add(&pod("a"), ipam), first);
}

pub fn a_late_del_of_the_old_container_frees_nothing(node: &TestNode) {
    let ipam = json!({"range": "10.0.0.0/24"});
    let old = pod("web-0").container("old");
    let new = pod("web-0").container("new");
    node.add(&old, ipam.clone()).result();
    assert_eq!(node.add(&new, ipam.clone()).addresses(), ["10.0.0.1/24"]);
    node.del(&old, ipam.clone()).succeeded();
    assert_eq!(
        node.add(&pod("other"), ipam.clone()).addresses(),
        ["10.0.0.2/24"]
    );
    assert_eq!(node.add(&new, ipam).addresses(), ["10.0.0.1/24"]);
}

pub fn a_range_that_fails_takes_nothing_from_the_others(node: &TestNode) {
    let small = json!({"range": "10.9.0.0/30", "exclude": ["10.9.0.2"]});
    node.add(&pod("full"), small).result();
    let both = json!({"ipRanges": [{"range": "10.0.0.0/24"}, {"range": "10.9.0.0/30", "exclude": ["10.9.0.2"]}]});
    let (code, _) = node.add(&pod("a"), both).error();
    assert_eq!(code, 11);
    // Not even the reservation is left: another pool over the same addresses allocates the first.
    assert_eq!(
        node.add(&pod("b"), json!({"range": "10.0.0.0/25"}))
            .addresses(),
        ["10.0.0.1/25"]
    );
}

pub fn two_ranges_of_one_network_allocate_two_addresses(node: &TestNode) {
    let ipam = json!({"ipRanges": [{"range": "10.0.0.0/24"}, {"range": "10.0.0.0/24"}]});
    let first = node.add(&pod("a"), ipam.clone());
    assert_eq!(first.addresses(), ["10.0.0.1/24", "10.0.0.2/24"]);
    assert_eq!(node.add(&pod("a"), ipam), first);
    let nested = json!({"ipRanges": [{"range": "10.1.0.0/24"}, {"range": "10.1.0.0/28"}]});
    let first = node.add(&pod("b"), nested.clone());
    assert_eq!(first.addresses(), ["10.1.0.1/24", "10.1.0.2/28"]);
    assert_eq!(node.add(&pod("b"), nested), first);
}

pub fn del_frees_in_every_pool_even_if_one_has_nothing(node: &TestNode) {
    node.add(&pod("a"), json!({"range": "10.2.0.0/24"}))
        .result();
    // The first range has no record of this container.
    let both = json!({"ipRanges": [{"range": "10.1.0.0/24"}, {"range": "10.2.0.0/24"}]});
    node.del(&pod("a"), both).succeeded();
    assert_eq!(
        node.add(&pod("b"), json!({"range": "10.2.0.0/24"}))
            .addresses(),
        ["10.2.0.1/24"]
    );
}

pub fn overlap_checks_can_be_switched_off(node: &TestNode) {
    let off = |range: &str| json!({"range": range, "enable_overlapping_ranges": false});
    assert_eq!(
        node.add(&pod("a"), off("10.0.0.0/24")).addresses(),
        ["10.0.0.1/24"]
    );
    assert_eq!(
        node.add(&pod("b"), off("10.0.0.0/28")).addresses(),
        ["10.0.0.1/28"]
    );
    assert_eq!(
        node.add(&pod("c"), off("10.0.0.0/24")).addresses(),
        ["10.0.0.2/24"]
    );
    // Networks with different names are independent.
    let named = |name: &str| json!({"range": "10.5.0.0/24", "network_name": name});
    assert_eq!(
        node.add(&pod("d"), named("blue")).addresses(),
        ["10.5.0.1/24"]
    );
    assert_eq!(
        node.add(&pod("e"), named("green")).addresses(),
        ["10.5.0.1/24"]
    );
    node.del(&pod("a"), off("10.0.0.0/24")).succeeded();
    assert_eq!(
        node.add(&pod("f"), off("10.0.0.0/24")).addresses(),
        ["10.0.0.1/24"]
    );
}

pub fn a_static_address_is_allocated_once(node: &TestNode) {
    let fixed = json!({"addresses": [{"address": "10.3.0.1/24"}]});
    assert_eq!(
        node.add(&pod("a"), fixed.clone()).addresses(),
        ["10.3.0.1/24"]
    );
    let (code, message) = node.add(&pod("b"), fixed.clone()).error();
    assert_eq!(code, 11);
    assert!(
        message.contains("10.3.0.1") && message.contains("ns/a"),
        "{message}"
    );
    // A dynamic range over the same network skips it.
    assert_eq!(
        node.add(&pod("c"), json!({"range": "10.3.0.0/24"}))
            .addresses(),
        ["10.3.0.2/24"]
    );
    // So does CNI_ARGS' IP.
    let by_args = pod("d").args("IP=10.3.0.2/24");
    assert_eq!(node.add(&by_args, json!({})).error().0, 11);
    let shared = json!({"addresses": [{"address": "10.3.0.1/24"}], "check_addresses": false});
    assert_eq!(node.add(&pod("e"), shared).addresses(), ["10.3.0.1/24"]);
    node.del(&pod("a"), fixed.clone()).succeeded();
    assert_eq!(node.add(&pod("b"), fixed).addresses(), ["10.3.0.1/24"]);
}

pub fn a_requested_address_is_allocated_or_refused(node: &TestNode) {
    let asking = |ip: &str| {
        let mut conf = node.conf(
            "1.0.0",
            json!({"range": "10.4.0.0/24", "exclude": ["10.4.0.9"]}),
        );
        conf["runtimeConfig"] = json!({"ips": [ip]});
        conf
    };
    assert_eq!(
        node.run("ADD", &pod("a"), &asking("10.4.0.7")).addresses(),
        ["10.4.0.7/24"]
    );
    assert_eq!(
        node.run("ADD", &pod("a"), &asking("10.4.0.7")).addresses(),
        ["10.4.0.7/24"]
    );
    let (_, message) = node.run("ADD", &pod("b"), &asking("10.4.0.7/24")).error();
    assert!(message.contains("ns/a"), "{message}");
    let (_, message) = node.run("ADD", &pod("b"), &asking("10.4.0.9/24")).error();
    assert!(message.contains("10.4.0.9"), "{message}");
    let gateway = pod("c").args("IP=10.4.1.5/24;GATEWAY=10.4.1.1");
    let result = node.add(&gateway, json!({"range": "10.4.0.0/24"})).result();
    assert_eq!(result["ips"][0]["address"], "10.4.0.1/24");
    assert_eq!(result["ips"][1]["address"], "10.4.1.5/24");
    assert_eq!(result["ips"][1]["gateway"], "10.4.1.1");
}

pub fn the_gateway_is_not_allocated(node: &TestNode) {
    let ipam = json!({"range": "10.6.0.0/24", "gateway": "10.6.0.1"});
    assert_eq!(node.add(&pod("a"), ipam).addresses(), ["10.6.0.2/24"]);
    let without_exclusion =
        json!({"range": "10.6.0.0/24", "gateway": "10.6.0.1", "exclude_gateway": false});
    assert_eq!(
        node.add(&pod("b"), without_exclusion).addresses(),
        ["10.6.0.1/24"]
    );
}

pub fn small_networks_behind_their_setting(node: &TestNode) {
    let link = json!({"range": "10.7.0.4/31", "enable_l3": true});
    assert_eq!(
        node.add(&pod("a"), link.clone()).addresses(),
        ["10.7.0.4/31"]
    );
    assert_eq!(
        node.add(&pod("b"), link.clone()).addresses(),
        ["10.7.0.5/31"]
    );
    assert_eq!(node.add(&pod("c"), link).error().0, 11);
    let host = json!({"range": "fd00::7/128", "enable_l3": true});
    assert_eq!(node.add(&pod("d"), host).addresses(), ["fd00::7/128"]);
}

pub fn addresses_past_the_first_65_bits(node: &TestNode) {
    let ipam = json!({"range": "fd00::/32", "range_start": "fd00:0:8000::5"});
    assert_eq!(
        node.add(&pod("a"), ipam.clone()).addresses(),
        ["fd00:0:8000::5/32"]
    );
    assert_eq!(
        node.add(&pod("b"), ipam.clone()).addresses(),
        ["fd00:0:8000::6/32"]
    );
    assert_eq!(
        node.add(&pod("a"), ipam.clone()).addresses(),
        ["fd00:0:8000::5/32"]
    );
    node.del(&pod("a"), ipam.clone()).succeeded();
    assert_eq!(node.add(&pod("c"), ipam).addresses(), ["fd00:0:8000::5/32"]);
}

pub fn no_range_is_no_address(node: &TestNode) {
    let outcome = node.add(&pod("a"), json!({"routes": [{"dst": "0.0.0.0/0"}]}));
    assert_eq!(outcome.addresses(), Vec::<String>::new());
    assert_eq!(outcome.result()["routes"], json!([{"dst": "0.0.0.0/0"}]));
    node.del(&pod("a"), json!({})).succeeded();
}

pub fn another_plugins_type_is_refused(node: &TestNode) {
    let mut conf = node.conf("1.0.0", json!({"range": "10.0.0.0/24"}));
    conf["ipam"]["type"] = json!("host-local");
    let (code, message) = node.run("ADD", &pod("a"), &conf).error();
    assert_eq!(code, 7);
    assert!(message.contains("host-local"), "{message}");
}

pub fn check_verifies_the_record(node: &TestNode) {
    let ipam = json!({"ipRanges": [{"range": "10.0.0.0/24"}, {"range": "fd00::/64"}]});
    let (code, _) = node
        .run("CHECK", &pod("a"), &node.conf("1.1.0", ipam.clone()))
        .error();
    assert_eq!(code, 3, "nothing is known of the container");
    let result = node.add_at("1.1.0", &pod("a"), ipam.clone()).result();
    let mut conf = node.conf("1.1.0", ipam.clone());
    conf["prevResult"] = result;
    node.run("CHECK", &pod("a"), &conf).succeeded();
    conf["prevResult"]["ips"][0]["address"] = json!("10.0.0.9/24");
    let (code, message) = node.run("CHECK", &pod("a"), &conf).error();
    assert_eq!(code, 101);
    assert!(message.contains("10.0.0.9"), "{message}");
    assert_eq!(
        node.run("CHECK", &pod("a").container("other"), &conf)
            .error()
            .0,
        3
    );
    let (code, _) = node
        .run("CHECK", &pod("a"), &node.conf("0.3.1", ipam))
        .error();
    assert_eq!(code, 1, "0.3.1 has no CHECK");
}

pub fn gc_frees_what_is_not_valid(node: &TestNode) {
    let ipam = json!({"range": "10.0.0.0/24"});
    for name in ["a", "b", "c"] {
        node.add(&pod(name), ipam.clone()).result();
    }
    let mut other = node.conf("1.1.0", ipam.clone());
    other["name"] = json!("other-net");
    node.run("ADD", &pod("d"), &other).result();

    let without = node.conf("1.1.0", ipam.clone());
    assert_eq!(
        node.run("GC", &pod("x"), &without).error().0,
        7,
        "no list is not an empty list"
    );
    let mut conf = node.conf("1.1.0", ipam.clone());
    conf["cni.dev/valid-attachments"] = json!([{"containerID": "b-container", "ifname": "net1"},
        {"containerID": "c-container", "ifname": "net2"}]);
    node.run("GC", &pod("x"), &conf).succeeded();
    // a is gone; b lives; c's net1 is gone; d is of another network.
    let again: Vec<String> = ["e", "f", "g"]
        .iter()
        .flat_map(|name| node.add(&pod(name), ipam.clone()).addresses())
        .collect();
    assert_eq!(again, ["10.0.0.1/24", "10.0.0.3/24", "10.0.0.5/24"]);
}

pub fn status_reports_exhaustion(node: &TestNode) {
    let conf = node.conf("1.1.0", json!({"range": "10.0.0.0/30"}));
    node.run("STATUS", &pod("x"), &conf).succeeded();
    for name in ["a", "b"] {
        node.run("ADD", &pod(name), &conf).result();
    }
    let (code, message) = node.run("STATUS", &pod("x"), &conf).error();
    assert_eq!(code, 50);
    assert!(message.contains("exhausted"), "{message}");
}

pub fn a_freed_address_cools_down_for_all_but_its_last_owner(node: &TestNode) {
    let ipam = json!({"range": "10.0.0.0/29", "cooldown_seconds": 3600});
    assert_eq!(
        node.add(&pod("a"), ipam.clone()).addresses(),
        ["10.0.0.1/29"]
    );
    node.del(&pod("a"), ipam.clone()).succeeded();
    assert_eq!(
        node.add(&pod("b"), ipam.clone()).addresses(),
        ["10.0.0.2/29"]
    );
    let again = pod("a").container("second");
    assert_eq!(node.add(&again, ipam).addresses(), ["10.0.0.1/29"]);
}
