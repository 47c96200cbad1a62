use super::*;
use crate::dialect::{GCP, NODE_IP_POOL, WHEREABOUTS};

fn mk_space(range: &str, exclude: &[&str], dialect: Dialect) -> Space {
    let spec = RangeSpec::parse(range).unwrap().excluding(exclude).unwrap();
    Space::build(&spec, dialect).unwrap().0
}

fn at(text: &str) -> Address {
    text.parse().unwrap()
}

fn first(space: &Space) -> String {
    space.first().unwrap().to_string()
}

#[test]
fn whereabouts_withholds_both_ends_in_both_families() {
    let v4 = mk_space("192.168.1.0/24", &[], WHEREABOUTS);
    assert_eq!((first(&v4).as_str(), v4.count()), ("192.168.1.1", 254));
    let v6 = mk_space("fd00::/120", &[], WHEREABOUTS);
    assert_eq!((first(&v6).as_str(), v6.count()), ("fd00::1", 254));
    assert!(!v6.contains(at("fd00::ff")));
    assert!(mk_space("10.0.0.0/16", &[], WHEREABOUTS).contains(at("10.0.1.0")));
}

#[test]
fn whereabouts_cases_of_excludes() {
    let cases = [
        (
            "192.168.1.0/24",
            vec!["192.168.1.0/28", "192.168.1.16/28"],
            "192.168.1.32",
        ),
        ("caa5::0/112", vec!["caa5::0/113"], "caa5::8000"),
        ("192.168.0.0/29", vec!["192.168.0.1"], "192.168.0.2"),
        (
            "192.168.0.0/28",
            vec![
                "192.168.0.0/30",
                "192.168.0.6/31",
                "192.168.0.8/31",
                "192.168.0.4/30",
            ],
            "192.168.0.10",
        ),
    ];
    for (range, exclude, expected) in cases {
        assert_eq!(
            first(&mk_space(range, &exclude, WHEREABOUTS)),
            expected,
            "{range}"
        );
    }
}

#[test]
fn a_lenient_dialect_ignores_a_bound_with_a_warning() {
    let mut spec = RangeSpec::parse("192.168.2.200/24").unwrap();
    spec.start = Some(at("192.168.2.100"));
    spec.end = Some(at("192.168.2.50"));
    let (space, warnings) = Space::build(&spec, WHEREABOUTS).unwrap();
    assert_eq!(
        space.blocks(),
        [Block::parse("", "192.168.2.100-192.168.2.254").unwrap()]
    );
    assert_eq!(warnings[0].field, "range_end");

    spec.start = Some(at("10.9.9.9"));
    let (space, warnings) = Space::build(&spec, WHEREABOUTS).unwrap();
    assert_eq!((first(&space).as_str(), warnings.len()), ("192.168.2.1", 1));
    let error = Space::build(&spec, NODE_IP_POOL).unwrap_err().to_string();
    assert!(
        error.contains("range_start") && error.contains("10.9.9.9"),
        "{error}"
    );
}

#[test]
fn strict_dialects_refuse_bounds_outside_the_range() {
    let refuse = |range: &str, exclude: &[&str]| {
        let spec = RangeSpec::parse(range).unwrap().excluding(exclude).unwrap();
        Space::build(&spec, NODE_IP_POOL).unwrap_err().to_string()
    };
    assert!(refuse("10.0.0.9-10.0.0.1/24", &[]).contains("swap"));
    assert!(refuse("10.0.0.0/24", &["10.0.0.0/28", "10.0.0.8-10.0.0.20"]).contains("overlap"));
    assert!(refuse("10.0.0.0/24", &["10.0.0.0/24"]).contains("no address"));
    let mut spec = RangeSpec::parse("10.0.0.0/24").unwrap();
    spec.start = Some(at("fd00::1"));
    assert!(
        Space::build(&spec, NODE_IP_POOL)
            .unwrap_err()
            .to_string()
            .contains("IPv4")
    );
}

#[test]
fn tiny_networks_need_a_setting() {
    for range in [
        "192.168.21.100/31",
        "10.0.0.1/32",
        "fd00::/127",
        "fd00::/128",
    ] {
        let spec = RangeSpec::parse(range).unwrap();
        let error = Space::build(&spec, WHEREABOUTS).unwrap_err().to_string();
        assert!(error.contains("net mask is too short"), "{error}");
        let (space, _) = Space::build(&spec, WHEREABOUTS.with_tiny_networks()).unwrap();
        assert_eq!(space.count(), 1 << spec.prefix.host_bits());
    }
}

#[test]
fn node_ip_pool_offsets_follow_the_rule() {
    let large = mk_space(
        "10.10.11.4-10.10.12.10/16",
        &["10.10.11.5", "10.10.12.7"],
        NODE_IP_POOL,
    );
    let rows = [
        (0, "10.10.11.4"),
        (1, "10.10.11.5"),
        (250, "10.10.11.254"),
        (251, "10.10.12.1"),
        (257, "10.10.12.7"),
        (260, "10.10.12.10"),
    ];
    for (offset, address) in rows {
        assert_eq!(large.offset(at(address)), Some(Offset(offset)), "{address}");
        assert_eq!(large.address(Offset(offset)), Some(at(address)), "{offset}");
    }
    assert!(!large.contains(at("10.10.11.255")) && !large.contains(at("10.10.12.0")));
    assert_eq!(large.offset(at("10.10.12.0")), None);
    assert_eq!(large.count(), 261 - 2);
    let six = mk_space(
        "2001:4860:4860::f-2001:4860:4860::ff/116",
        &[],
        NODE_IP_POOL,
    );
    for (offset, address) in [
        (0, "2001:4860:4860::f"),
        (16, "2001:4860:4860::1f"),
        (240, "2001:4860:4860::ff"),
    ] {
        assert_eq!(six.offset(at(address)), Some(Offset(offset)));
    }
}

#[test]
fn the_nth_address_skips_what_is_withheld() {
    let space = mk_space("10.0.0.0/15", &["10.0.0.3"], NODE_IP_POOL);
    let mut expected = space.first();
    for n in 0..1000 {
        assert_eq!(space.nth(n), expected);
        expected = expected
            .and_then(|a| a.next())
            .and_then(|a| space.at_or_after(a));
    }
    assert_eq!(
        space
            .nth(space.count() - 1)
            .map(|a| a.to_string())
            .as_deref(),
        Some("10.1.255.254")
    );
    assert_eq!(space.nth(space.count()), None);
}

#[test]
fn gcp_withholds_the_gateway() {
    let mut spec = RangeSpec::parse("10.111.0.0/16").unwrap();
    spec.gateway = Some(at("10.111.0.1"));
    let (space, _) = Space::build(&spec, GCP).unwrap();
    assert_eq!(first(&space), "10.111.0.2");
}

#[test]
fn a_list_keeps_its_order_and_counts_once() {
    let entries = [
        "10.0.0.9",
        "10.0.0.3-10.0.0.5",
        "10.0.0.4",
        "fd00::1",
        "10.0.0.9",
    ];
    let space = Space::list(entries.map(|e| Block::parse("VM_POOL_IPS", e).unwrap()));
    let listed: Vec<String> = (0..space.count())
        .map(|n| space.nth(n).unwrap().to_string())
        .collect();
    assert_eq!(
        listed,
        ["10.0.0.9", "10.0.0.3", "10.0.0.4", "10.0.0.5", "fd00::1"]
    );
}

#[test]
fn a_huge_range_with_a_million_excluded_is_three_blocks() {
    let exclude = ["2001:db8::/109", "2001:db8:1::/109", "2001:db8:2::/109"];
    let space = mk_space("2001:db8::/32", &exclude, WHEREABOUTS);
    assert_eq!(space.blocks().len(), 3);
    assert_eq!(first(&space), "2001:db8::8:0");
}
