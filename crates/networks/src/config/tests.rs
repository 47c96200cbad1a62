//! Configuration cases: what whereabouts' users write, and what it must mean.

mod statics;

use berth_cni::{Args, NetConf};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn read(ipam: Value) -> Result<PodNetwork, ConfigError> {
    read_with(ipam, json!({}), "", None)
}

fn read_with(
    mut ipam: Value,
    envelope: Value,
    args: &str,
    flat: Option<Value>,
) -> Result<PodNetwork, ConfigError> {
    if ipam.get("type").is_none() {
        ipam["type"] = json!("whereabouts");
    }
    let mut document =
        json!({"cniVersion": "0.3.1", "name": "net", "type": "macvlan", "ipam": ipam});
    for (key, value) in envelope.as_object().unwrap() {
        document[key] = value.clone();
    }
    let conf = NetConf::parse(&document.to_string()).unwrap();
    let flat = flat.map(|object| FlatFile {
        path: "/etc/flat.conf".into(),
        object,
    });
    let found = Found {
        flat,
        ..Found::default()
    };
    PodNetwork::read(&conf, &Args::parse(args).unwrap(), "whereabouts", found)
}

fn spans(network: &PodNetwork) -> Vec<String> {
    let span = |range: &RangeConfig| {
        let blocks: Vec<String> = range.space.blocks().iter().map(|b| b.to_string()).collect();
        format!("{} of {}", blocks.join(","), range.spec.prefix)
    };
    network.ranges.iter().map(span).collect()
}

#[test]
fn ranges_mean_what_they_mean_to_whereabouts() {
    let table = [
        // The number of the case in the list of known cases, the configuration, what can be allocated.
        (
            "1",
            json!({"range": "192.168.1.0/24", "gateway": "192.168.10.1"}),
            vec!["192.168.1.1-192.168.1.254 of 192.168.1.0/24"],
        ),
        (
            "3",
            json!({"range": "192.168.1.11-192.168.1.23/24"}),
            vec!["192.168.1.11-192.168.1.23 of 192.168.1.0/24"],
        ),
        (
            "4",
            json!({"range": "2001:db8:480:603d:0304:0403:000:0000-2001:db8:480:603d:0304:0403:0000:0004/64"}),
            vec![
                "2001:db8:480:603d:304:403::-2001:db8:480:603d:304:403:0:4 of 2001:db8:480:603d::/64",
            ],
        ),
        (
            "5",
            json!({"range": "2001:db8:5422:0005::-2001:db8:5422:0005:7fff:ffff:ffff:ffff/64"}),
            vec!["2001:db8:5422:5::1-2001:db8:5422:5:7fff:ffff:ffff:ffff of 2001:db8:5422:5::/64"],
        ),
        (
            "6",
            json!({"range": "192.168.1.0/24", "exclude": ["192.168.1.0/28", "192.168.1.16/28"]}),
            vec!["192.168.1.32-192.168.1.254 of 192.168.1.0/24"],
        ),
        (
            "7",
            json!({"range": "caa5::0/112", "exclude": ["caa5::0/113"]}),
            vec!["caa5::8000-caa5::fffe of caa5::/112"],
        ),
        (
            "9",
            json!({"ipRanges": [{"range": "192.168.10.1/24"}, {"range": "abcd::1/64"}]}),
            vec![
                "192.168.10.1-192.168.10.254 of 192.168.10.0/24",
                "abcd::1-abcd::ffff:ffff:ffff:fffe of abcd::/64",
            ],
        ),
        (
            "10",
            json!({"ipRanges": [{"range": "192.168.10.1/24"}], "range": "abcd::1/64"}),
            vec![
                "abcd::1-abcd::ffff:ffff:ffff:fffe of abcd::/64",
                "192.168.10.1-192.168.10.254 of 192.168.10.0/24",
            ],
        ),
        (
            "11",
            json!({"range": "192.168.1.0/24", "range_start": "192.168.1.5", "range_end": "192.168.1.12"}),
            vec!["192.168.1.5-192.168.1.12 of 192.168.1.0/24"],
        ),
        (
            "14",
            json!({"range": "192.168.0.0/29", "exclude": ["192.168.0.1"]}),
            vec!["192.168.0.2-192.168.0.6 of 192.168.0.0/29"],
        ),
        (
            "16",
            json!({"range": "192.168.0.0/28",
            "exclude": ["192.168.0.0/30", "192.168.0.6/31", "192.168.0.8/31", "192.168.0.4/30"]}),
            vec!["192.168.0.10-192.168.0.14 of 192.168.0.0/28"],
        ),
        (
            "17",
            json!({"range": "192.168.2.200/24", "range_start": "192.168.2.100", "range_end": "192.168.2.50"}),
            vec!["192.168.2.100-192.168.2.254 of 192.168.2.0/24"],
        ),
        (
            "19",
            json!({"range": "00192.00168.1.0/24", "range_start": "00192.00168.1.44"}),
            vec!["192.168.1.44-192.168.1.254 of 192.168.1.0/24"],
        ),
        (
            "bounds inside a range of ipRanges",
            json!({"ipRanges": [{"range": "10.0.0.0/24",
            "range_start": "10.0.0.8", "range_end": "10.0.0.9", "exclude": ["10.0.0.8/32"]}]}),
            vec!["10.0.0.9 of 10.0.0.0/24"],
        ),
        ("no range at all", json!({}), vec![]),
    ];
    for (case, ipam, expected) in table {
        let network = read(ipam).unwrap_or_else(|error| panic!("case {case}: {error}"));
        assert_eq!(spans(&network), expected, "case {case}");
    }
}

#[test]
fn what_is_refused_is_refused_in_known_words() {
    let table = [
        (
            "15",
            json!({"range": "192.168.0.0/29", "exclude": ["192.168.0.1/123"]}),
            "could not parse exclude range",
            Code::Config,
        ),
        (
            "18",
            json!({"range": "192.168.21.100/31"}),
            "net mask is too short",
            Code::Config,
        ),
        (
            "20",
            json!({"range": "192.168.1.5-192.168.2.25/28"}),
            "invalid range start for CIDR 192.168.2.16/28: 192.168.1.5",
            Code::Config,
        ),
        (
            "type",
            json!({"type": "host-local"}),
            "\"host-local\"",
            Code::Config,
        ),
        (
            "gateway",
            json!({"range": "10.0.0.0/8", "gateway": "x"}),
            "gateway: \"x\"",
            Code::Config,
        ),
        (
            "address",
            json!({"addresses": [{"address": "10.0.0.1"}]}),
            "addresses[0].address",
            Code::Config,
        ),
        (
            "route",
            json!({"routes": [{"dst": "everywhere"}]}),
            "routes[0].dst",
            Code::Config,
        ),
        (
            "slice",
            json!({"node_slice_size": "/x"}),
            "node_slice_size",
            Code::Config,
        ),
        (
            "wrong type",
            json!({"range": 5}),
            "ipam.range must be a string",
            Code::Decode,
        ),
        (
            "wrong item",
            json!({"ipRanges": ["10.0.0.0/8"]}),
            "ipRanges[0] must be an object",
            Code::Decode,
        ),
    ];
    for (case, ipam, words, code) in table {
        let error = match read(ipam) {
            Ok(_) => panic!("case {case}: accepted"),
            Err(error) => CniError::from(error),
        };
        assert!(error.msg.contains(words), "case {case}: {}", error.msg);
        assert_eq!(error.code, code, "case {case}");
    }
}

#[test]
fn defaults_are_those_of_whereabouts() {
    let network = read(json!({"range": "10.0.0.0/8"})).unwrap();
    assert!(network.overlap_checks);
    assert_eq!(network.network_name, "");
    assert_eq!(network.node_slice_size, None);
    assert_eq!(network.kubeconfig, None);
    assert_eq!(network.compatible.leader_lease_duration.as_millis(), 1500);
    assert_eq!(network.compatible.leader_renew_deadline.as_millis(), 1000);
    assert_eq!(network.compatible.leader_retry_period.as_millis(), 500);
    assert_eq!(network.compatible.reconciler_cron_expression, "30 4 * * *");
    assert!(network.settings.exclude_gateway && network.settings.check_addresses);
    assert!(!network.settings.tiny_networks && !network.settings.probe);
    assert!(network.warnings.is_empty());
}

#[test]
fn keys_match_in_any_case_and_unknown_ones_are_ignored() {
    let network = read(json!({
        "RANGE": "10.0.0.0/24", "Range_Start": "10.0.0.7", "IPRANGES": [{"Range": "fd00::/64"}],
        "Enable_Overlapping_Ranges": false, "etcd_host": "10.0.0.1:2379", "datastore": "etcd", "x": [1],
        "sleep_for_race": 2, "log_level": "debug", "log_file": "/tmp/x",
    }))
    .unwrap();
    assert_eq!(network.ranges.len(), 2);
    assert_eq!(
        network.ranges[0].space.first().unwrap().to_string(),
        "10.0.0.7"
    );
    assert!(!network.overlap_checks);
}

#[test]
fn typing_errors_that_whereabouts_ignores_are_ignored_with_a_warning() {
    let table = [
        (
            json!({"range": "10.0.0.0/24", "range_start": "10.0.0.x"}),
            "range_start",
            "10.0.0.1",
        ),
        (
            json!({"range": "10.0.0.0/24", "range_start": "10.9.0.1"}),
            "range_start",
            "10.0.0.1",
        ),
        (
            json!({"range": "10.0.0.0/24", "range_end": "nowhere"}),
            "range_end",
            "10.0.0.1",
        ),
        (
            json!({"range": "10.0.0.0/24", "exclude": ["fd00::/64"]}),
            "exclude",
            "10.0.0.1",
        ),
    ];
    for (ipam, field, first) in table {
        let network = read(ipam).unwrap();
        assert_eq!(network.ranges[0].space.first().unwrap().to_string(), first);
        assert_eq!(network.warnings.len(), 1, "{field}");
        assert_eq!(network.warnings[0].field, field);
    }
}

#[test]
fn the_gateway_is_withheld_unless_a_setting_says_so_and_goes_to_its_own_family() {
    let dual = json!({"range": "10.0.0.0/24", "gateway": "10.0.0.1", "ipRanges": [{"range": "fd00::/64"}]});
    let network = read(dual.clone()).unwrap();
    assert_eq!(
        network.ranges[0].space.first().unwrap().to_string(),
        "10.0.0.2"
    );
    assert_eq!(network.ranges[0].gateway.unwrap().to_string(), "10.0.0.1");
    assert_eq!(network.ranges[1].gateway, None);
    let mut without_exclusion = dual;
    without_exclusion["exclude_gateway"] = json!(false);
    let network = read(without_exclusion).unwrap();
    assert_eq!(
        network.ranges[0].space.first().unwrap().to_string(),
        "10.0.0.1"
    );
    let own = read(json!({"ipRanges": [{"range": "fd00::/64", "gateway": "fd00::1"}]})).unwrap();
    assert_eq!(own.ranges[0].space.first().unwrap().to_string(), "fd00::2");
}

#[test]
fn small_networks_are_served_behind_their_setting() {
    for range in [
        "192.168.21.100/31",
        "192.168.21.100/32",
        "fd00::/127",
        "fd00::/128",
    ] {
        assert!(read(json!({"range": range})).is_err(), "{range}");
        assert!(
            read(json!({"range": range, "enable_l3": true})).is_ok(),
            "{range}"
        );
    }
}

#[test]
fn slices_are_switched_on_by_their_size() {
    let size = |ipam| read(ipam).unwrap().node_slice_size;
    assert_eq!(size(json!({"node_slice_size": "/22"})), Some(22));
    assert_eq!(size(json!({"node_slice_size": "22"})), Some(22));
    let both = read(json!({"fast_ipam": true, "node_slice_size": "/22"})).unwrap();
    assert_eq!((both.fast_ipam, both.node_slice_size), (true, Some(22)));
}

/// whereabouts never built `fast_ipam`: a manifest with it must keep working as the plain range that it is.
#[test]
fn fast_ipam_is_accepted() {
    let network = read(json!({"fast_ipam": true})).unwrap();
    assert_eq!((network.fast_ipam, network.node_slice_size), (true, None));
    assert!(!read(json!({})).unwrap().fast_ipam);
    assert!(read(json!({"fast_ipam": "yes"})).is_err());
}

#[test]
fn the_flat_file_fills_only_what_is_empty() {
    let network = read_with(
        json!({
            "range": "10.0.0.0/24", "range_start": "unreadable", "log_level": "",
            "dns": {"nameservers": ["10.0.0.53"]},
            "enable_overlapping_ranges": true, "exclude": [],
        }),
        json!({}),
        "",
        Some(json!({
            "range": "172.16.0.0/16", "range_start": "10.0.0.20", "log_level": "error",
            "exclude": ["10.0.0.20"],
            "dns": {"nameservers": ["1.1.1.1"], "domain": "example.org"},
            "enable_overlapping_ranges": false, "exclude_gateway": false,
            "routes": [{"dst": "0.0.0.0/0"}],
        })),
    )
    .unwrap();
    assert_eq!(spans(&network), ["10.0.0.21-10.0.0.254 of 10.0.0.0/24"]);
    assert_eq!(network.dns.nameservers, ["10.0.0.53"]);
    assert_eq!(network.dns.domain, "example.org");
    assert!(
        network.overlap_checks,
        "the flat file's value is never used"
    );
    assert!(!network.settings.exclude_gateway);
    assert_eq!(network.routes.len(), 1);
    assert_eq!(network.compatible.log_level, "error");
}

#[test]
fn flat_files_are_found_in_order_and_none_is_needed() {
    let dir = tempfile::tempdir().unwrap();
    let second = dir.path().join("second.conf");
    std::fs::write(&second, r#"{"range": "10.0.0.0/8"}"#).unwrap();
    let places = vec![dir.path().join("first.conf"), second.clone()];
    let flat = |places: &[std::path::PathBuf]| {
        NodeFiles::new(places.to_vec(), vec![dir.path().to_owned()]).flat()
    };
    assert_eq!(flat(&places[..1]).unwrap(), None);
    assert_eq!(flat(&places).unwrap().unwrap().path, second);

    // The directory's own file may be named as well as the directory; a path without a file is reported.
    let own = dir.path().join("own");
    std::fs::create_dir(&own).unwrap();
    std::fs::write(own.join("whereabouts.conf"), "{}").unwrap();
    let messages = |path: &std::path::Path| {
        let ipam = json!({"type": "whereabouts", "configuration_path": path});
        let conf = json!({"name": "net", "ipam": ipam}).to_string();
        let conf = NetConf::parse(&conf).unwrap();
        let files = NodeFiles::new(places.clone(), vec![dir.path().to_owned()]);
        let found = files.find(&NamedPaths::of(&conf).unwrap()).unwrap();
        let network = PodNetwork::read(&conf, &Args::default(), "whereabouts", found).unwrap();
        let messages = network.warnings.iter().map(ToString::to_string);
        messages.collect::<Vec<String>>()
    };
    assert_eq!(messages(&own), [""; 0]);
    assert_eq!(messages(&own.join("whereabouts.conf")), [""; 0]);
    let warnings = messages(&dir.path().join("typo"));
    assert_eq!(warnings.len(), 1);
    for part in ["configuration_path", "typo", "second.conf is used"] {
        assert!(warnings[0].contains(part), "{warnings:?}");
    }

    std::fs::write(&second, "{").unwrap();
    let broken = flat(&places).unwrap_err();
    assert!(broken.to_string().contains("second.conf"), "{broken}");
}

#[test]
fn what_would_burn_addresses_is_refused_and_released_all_the_same() {
    for (seconds, used, faults) in [
        (json!(86_400), 86_400, 0),
        (json!(86_401), 86_400, 1),
        (json!(i64::MAX), 86_400, 1),
        (json!(-1), 0, 1),
    ] {
        let network = read(json!({"range": "10.0.0.0/28", "cooldown_seconds": seconds})).unwrap();
        assert_eq!(network.settings.cooldown.as_secs(), used, "{seconds}");
        assert_eq!(network.faults.len(), faults, "{seconds}");
    }
    let many: Vec<Value> = (0..65)
        .map(|n| json!({"range": format!("10.{n}.0.0/24")}))
        .collect();
    let refused = read(json!({ "ipRanges": many })).unwrap_err().to_string();
    assert!(
        refused.contains("65") && refused.contains("64"),
        "{refused}"
    );
    let network = to_release(json!({ "ipRanges": many }), json!({}), "IP=10.0.0.7/24");
    assert_eq!((network.ranges.len(), network.addresses.len()), (64, 0));
}

/// The name is copied for each range: 64 KB of it and 2,600 ranges took 500 MB.
#[test]
fn a_network_name_is_not_longer_than_an_objects_name() {
    let named = |length: usize| json!({"range": "10.0.0.0/24", "network_name": "n".repeat(length)});
    assert_eq!(read(named(253)).unwrap().network_name.len(), 253);
    let refused = read(named(64 * 1024)).unwrap_err();
    assert!(matches!(
        refused,
        ConfigError::LongNetworkName { length: 65_536, .. }
    ));
    let refused = refused.to_string();
    assert!(
        refused.contains("network_name") && refused.contains("253"),
        "{refused}"
    );
    assert!(refused.len() < 200, "{refused}");
}

fn to_release(mut ipam: Value, more: Value, args: &str) -> PodNetwork {
    ipam["type"] = json!("whereabouts");
    let mut conf = more;
    conf["name"] = json!("net");
    conf["ipam"] = ipam;
    let conf = NetConf::parse(&conf.to_string()).unwrap();
    let args = Args::parse_for_del(args);
    PodNetwork::read_to_release(&conf, &args, "whereabouts", Found::default()).unwrap()
}

#[test]
fn a_release_leaves_out_requests_that_can_not_be_read() {
    let ipam = json!({"range": "10.0.0.0/24"});
    let addresses = |network: &PodNetwork| {
        let texts = network.addresses.iter().map(|one| one.address.to_string());
        texts.collect::<Vec<String>>()
    };
    let read = to_release(
        ipam.clone(),
        json!({}),
        "IP=nonsense,10.1.0.7/24,10.9.0.1;GATEWAY=nowhere",
    );
    assert_eq!(addresses(&read), ["10.1.0.7"]);
    // The form of 0.2.0 has room for one address of a family: an ADD with two is refused.
    let old = json!({"cniVersion": "0.2.0"});
    let read = to_release(ipam.clone(), old, "IP=10.1.0.7/24,10.1.0.8/24");
    assert_eq!(addresses(&read), ["10.1.0.7", "10.1.0.8"]);
    let asked = json!({"runtimeConfig": {"ips": ["what", "10.0.0.9"]},
        "args": {"cni": {"ips": ["10.2.0.1/99", "10.2.0.1/24"]}}});
    let read = to_release(ipam, asked, "");
    assert_eq!(addresses(&read), ["10.2.0.1"]);
    assert_eq!(read.ranges[0].wanted.unwrap().to_string(), "10.0.0.9");
}

#[test]
fn an_exclude_without_an_address_of_the_range_is_reported() {
    let network =
        read(json!({"range": "10.0.0.0/24", "exclude": ["10.0.1.0/28", "10.0.0.7"]})).unwrap();
    let messages: Vec<String> = network.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(messages.len(), 1, "{messages:?}");
    assert!(messages[0].contains("10.0.1.0/28"), "{messages:?}");
}

proptest! {
    #[test]
    fn no_text_makes_it_panic(
        range in ".{0,40}", start in ".{0,40}", exclude in ".{0,40}", address in ".{0,40}",
        slice in ".{0,6}", dst in ".{0,20}",
    ) {
        let _ = read(json!({"range": range, "range_start": start, "exclude": [exclude],
            "addresses": [{"address": address}], "node_slice_size": slice, "routes": [{"dst": dst}]}));
        let _ = read(json!({"range": format!("10.0.0.0/{slice}"), "exclude": [exclude]}));
    }
}
