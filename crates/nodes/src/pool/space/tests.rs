use berth_api::nmstate::Range;
use proptest::prelude::*;

use super::*;

fn range(cidr: &str, start: &str, end: &str, exclude: &[&str]) -> Range {
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    Range {
        cidr: cidr.to_owned(),
        start: some(start),
        end: some(end),
        exclude: exclude.iter().map(|entry| (*entry).to_owned()).collect(),
        gateway: None,
    }
}

fn spec(range: Range) -> NodeIPPoolSpec {
    NodeIPPoolSpec {
        range,
        ..Default::default()
    }
}

fn at(text: &str) -> Address {
    text.parse().unwrap()
}

/// Every example of the proposal, with its errata: `end` of five octets is 10.10.11.10 (10.10.12.10), and the IPv6 offsets from 0x1F on are one
/// less than printed there.
#[test]
fn the_proposals_offsets() {
    type Case = (
        &'static [&'static str; 3],
        &'static [&'static str],
        &'static [(u128, &'static str, bool)],
    );
    let cases: &[Case] = &[
        (
            &["10.10.11.0/24", "10.10.11.4", "10.10.11.10"],
            &["10.10.11.5", "10.10.11.7"],
            &[
                (0, "10.10.11.4", true),
                (1, "10.10.11.5", false),
                (2, "10.10.11.6", true),
                (3, "10.10.11.7", false),
                (4, "10.10.11.8", true),
                (5, "10.10.11.9", true),
                (6, "10.10.11.10", true),
            ],
        ),
        (
            &["10.10.11.0/16", "10.10.11.4", "10.10.12.10"],
            &["10.10.11.5", "10.10.12.7"],
            &[
                (0, "10.10.11.4", true),
                (1, "10.10.11.5", false),
                (250, "10.10.11.254", true),
                (251, "10.10.12.1", true),
                (252, "10.10.12.2", true),
                (257, "10.10.12.7", false),
                (258, "10.10.12.8", true),
                (259, "10.10.12.9", true),
                (260, "10.10.12.10", true),
            ],
        ),
        (
            &[
                "2001:4860:4860::/116",
                "2001:4860:4860::000F",
                "2001:4860:4860::00FF",
            ],
            &["2001:4860:4860::0010", "2001:4860:4860::001F"],
            &[
                (0, "2001:4860:4860::f", true),
                (1, "2001:4860:4860::10", false),
                (16, "2001:4860:4860::1f", false),
                (17, "2001:4860:4860::20", true),
                (240, "2001:4860:4860::ff", true),
            ],
        ),
    ];
    for ([cidr, start, end], exclude, table) in cases {
        let pool = PoolSpace::read(&spec(range(cidr, start, end, exclude))).unwrap();
        for (offset, address, allocatable) in *table {
            let place = pool.place(at(address));
            assert_eq!(place.offset(), Some(Offset(*offset)), "{address}");
            assert_eq!(
                matches!(place, Place::Allocatable(_)),
                *allocatable,
                "{address}"
            );
            assert_eq!(pool.address(Offset(*offset)), Some(at(address)));
        }
        let (last, _, _) = table.last().unwrap();
        assert_eq!(pool.offsets(), last + 1);
        assert_eq!(pool.address(Offset(last + 1)), None);
    }
}

/// The two pools of the proposal's example: six first fits leave two excluded offsets out.
#[test]
fn first_fit_gives_the_offsets_of_the_proposals_status() {
    let pool = PoolSpace::read(&spec(range(
        "10.10.10.0/24",
        "10.10.10.1",
        "10.10.10.10",
        &["10.10.10.4", "10.10.10.7"],
    )))
    .unwrap();
    let space = pool.spaces().next().unwrap();
    let first: Vec<u128> = (0..6)
        .map(|n| pool.offset(space.nth(n).unwrap()).unwrap().0)
        .collect();
    assert_eq!(first, [0, 1, 2, 4, 5, 7]);
}

#[test]
fn host_bits_are_masked_and_noted() {
    let pool = PoolSpace::read(&spec(range("10.10.11.0/16", "10.10.11.4", "", &[]))).unwrap();
    assert_eq!(pool.prefix().to_string(), "10.10.0.0/16");
    let notes: Vec<String> = pool.warnings().collect();
    assert_eq!(
        notes,
        ["spec.range.cidr: 10.10.11.0/16 has host bits and is read as 10.10.0.0/16"]
    );
}

#[test]
fn offsets_run_on_from_range_to_range() {
    let mut spec = spec(range(
        "10.10.10.0/24",
        "10.10.10.1",
        "10.10.10.10",
        &["10.10.10.4"],
    ));
    spec.ranges = vec![
        range("10.10.10.0/24", "10.10.10.20", "10.10.10.21", &[]),
        range("10.9.0.0/16", "10.9.0.254", "10.9.1.1", &[]),
    ];
    let pool = PoolSpace::read(&spec).unwrap();
    for (offset, address) in [
        (9, "10.10.10.10"),
        (10, "10.10.10.20"),
        (11, "10.10.10.21"),
        (12, "10.9.0.254"),
        (13, "10.9.1.1"),
    ] {
        assert_eq!(pool.offset(at(address)), Some(Offset(offset)), "{address}");
        assert_eq!(pool.address(Offset(offset)), Some(at(address)));
    }
    assert_eq!((pool.offsets(), pool.total()), (14, 13));
    assert_eq!(pool.place(at("10.9.1.0")), Place::Skipped);
    assert_eq!(pool.place(at("10.10.10.15")), Place::Outside);
    assert_eq!(pool.prefix_length(at("10.9.1.1")), Some(16));
}

#[test]
fn a_gateway_goes_with_the_addresses_of_its_network_and_is_not_allocated() {
    let mut spec = spec(range("10.10.10.0/24", "", "", &[]));
    spec.gateway = Some("10.10.10.1".to_owned());
    spec.dns = vec!["10.10.10.53".to_owned()];
    spec.ranges = vec![
        range("10.10.11.0/24", "", "", &[]),
        range("10.10.12.0/24", "", "", &[]),
    ];
    spec.ranges[1].gateway = Some("10.10.12.254".to_owned());
    let pool = PoolSpace::read(&spec).unwrap();
    assert_eq!(pool.gateway(at("10.10.10.9")), Some(at("10.10.10.1")));
    assert_eq!(pool.gateway(at("10.10.11.9")), None);
    assert_eq!(pool.gateway(at("10.10.12.9")), Some(at("10.10.12.254")));
    assert_eq!(pool.place(at("10.10.10.1")), Place::Gateway(Offset(0)));
    assert_eq!(pool.dns(), [at("10.10.10.53")]);
    assert_eq!(pool.total(), 253 + 254 + 253);
}

#[test]
fn a_reservation_is_of_one_node() {
    let mut spec = spec(range("10.10.10.0/24", "", "", &[]));
    let reserve = |list: &[(&str, &str)]| {
        let pair = |(node, ip): &(&str, &str)| ((*node).to_owned(), (*ip).to_owned());
        list.iter().map(pair).collect()
    };
    spec.reservations = reserve(&[("node01", "10.10.10.7")]);
    let pool = PoolSpace::read(&spec).unwrap();
    assert_eq!(pool.reserved_for(at("10.10.10.7")), Some("node01"));
    assert_eq!(pool.reservation_of("node01"), Some(at("10.10.10.7")));
    spec.reservations = reserve(&[("a", "10.10.10.7"), ("b", "10.10.10.7")]);
    let error = PoolSpace::read(&spec).unwrap_err().to_string();
    assert!(
        error.contains("10.10.10.7 is reserved for a and b"),
        "{error}"
    );
}

#[test]
fn durations_are_those_of_go() {
    for (text, seconds) in [("90s", 90), ("10m", 600), ("1h30m", 5400), ("0s", 0)] {
        assert_eq!(duration(text), Some(Duration::from_secs(seconds)), "{text}");
    }
    for bad in ["", "10", "m", "-5m", "1.5h", "5 m", "99999999999999999999h"] {
        assert_eq!(duration(bad), None, "{bad}");
    }
}

#[test]
fn overlapping_pools_name_what_both_have() {
    let a = PoolSpace::read(&spec(range("10.10.0.0/16", "10.10.1.1", "10.10.1.9", &[]))).unwrap();
    let b = PoolSpace::read(&spec(range("10.10.1.0/24", "10.10.1.5", "", &[]))).unwrap();
    let c = PoolSpace::read(&spec(range("10.10.1.0/24", "10.10.1.10", "", &[]))).unwrap();
    assert_eq!(a.overlap(&b).unwrap().to_string(), "10.10.1.5-10.10.1.9");
    assert_eq!(a.overlap(&c), None);
    let v6 = PoolSpace::read(&spec(range("::/0", "::1", "::ffff:ffff:ffff", &[]))).unwrap();
    assert_eq!(a.overlap(&v6), None);
}

/// Each names the field, the value and what would be right.
#[test]
fn bad_specs_are_refused() {
    let one = |cidr: &str, start: &str, end: &str, exclude: &[&str]| {
        spec(range(cidr, start, end, exclude))
    };
    let good = || one("10.10.10.0/24", "10.10.10.1", "10.10.10.10", &[]);
    let with = |change: fn(&mut NodeIPPoolSpec)| {
        let mut spec = good();
        change(&mut spec);
        spec
    };
    let cases = [
        (
            one("10.10.10.0/24", "10.10.10.1", "10.10.10.11.10", &[]),
            ["range.end", "10.10.10.11.10", "give an IPv4"],
        ),
        (
            one("10.10.10.0/33", "", "", &[]),
            ["range.cidr", "10.10.10.0/33", "a network such as"],
        ),
        (
            one("10.10.10.0/24", "10.10.10.9", "10.10.10.1", &[]),
            ["range.end", "10.10.10.9", "swap"],
        ),
        (
            one("10.10.10.0/24", "10.10.11.1", "", &[]),
            [
                "range.start",
                "10.10.11.1",
                "use one from 10.10.10.1-10.10.10.254",
            ],
        ),
        (
            one("10.10.10.0/24", "10.10.10.0", "", &[]),
            ["range.start", "10.10.10.0", "use one from"],
        ),
        (
            one("10.10.10.0/24", "fd00::1", "", &[]),
            ["range.start", "fd00::1", "second pool"],
        ),
        (
            one("10.10.10.0/24", "", "", &["fd00::1"]),
            ["range.exclude", "fd00::1", "second pool"],
        ),
        (
            one("10.10.10.0/24", "", "10.10.10.9", &["10.10.10.20"]),
            ["range.exclude", "10.10.10.20", "remove"],
        ),
        (
            one("10.10.10.0/24", "", "", &["10.10.10"]),
            ["range.exclude", "10.10.10", "give"],
        ),
        (
            one("10.10.10.0/24", "", "", &["10.10.10.4", "10.10.10.0/28"]),
            ["range.exclude", "10.10.10.4", "once"],
        ),
        (
            one(
                "10.10.10.0/24",
                "10.10.10.4",
                "10.10.10.5",
                &["10.10.10.4", "10.10.10.5"],
            ),
            ["range.exclude", "10.10.10.4-10.10.10.5", "leave addresses"],
        ),
        (
            with(|spec| spec.ranges = vec![range("fd00::/64", "", "", &[])]),
            ["ranges[0].cidr", "fd00::/64", "second pool"],
        ),
        (
            with(|spec| spec.ranges = vec![range("10.10.10.0/24", "", "", &[])]),
            ["ranges[0]", "10.10.10.1-10.10.10.10", "once"],
        ),
        (
            with(|spec| spec.gateway = Some("10.9.9.9".into())),
            ["gateway", "10.9.9.9", "10.10.10.0/24"],
        ),
        (
            with(|spec| spec.range.gateway = Some("10.9.9.9".into())),
            ["range.gateway", "10.9.9.9", "10.10.10.0/24"],
        ),
        (
            with(|spec| spec.dns = vec!["dns".into()]),
            ["dns", "`dns`", "give an IPv4"],
        ),
        (
            with(|spec| spec.reservations = [("n".to_owned(), "10.9.9.9".to_owned())].into()),
            ["reservations", "10.9.9.9", "10.10.10.0/24"],
        ),
        (
            with(|spec| spec.reuse_delay = Some("soon".into())),
            ["reuse-delay", "soon", "90s"],
        ),
    ];
    for (spec, parts) in cases {
        let error = PoolSpace::read(&spec).unwrap_err().to_string();
        for part in parts {
            assert!(error.contains(part), "{part}: {error}");
        }
    }
}

proptest! {
    /// Against a model that counts.
    #[test]
    fn offsets_are_what_counting_gives(
        length in 16u8..=30,
        start in 1u32..2000,
        size in 0u32..2000,
        excluded in proptest::collection::btree_set(0u32..2000, 0..8),
    ) {
        let base = u32::from(std::net::Ipv4Addr::new(10, 32, 0, 0));
        let text = |n: u32| std::net::Ipv4Addr::from(base + n).to_string();
        let end = start + size;
        let inside: Vec<u32> = excluded.into_iter().map(|n| start + n % (size + 1)).collect::<std::collections::BTreeSet<_>>().into_iter().collect();
        let names: Vec<String> = inside.iter().map(|n| text(*n)).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let cidr = format!("{}/{length}", text(start));
        if let Ok(pool) = PoolSpace::read(&spec(range(&cidr, &text(start), &text(end), &names))) {
            let mut count = 0u128;
            let mut free = 0u128;
            for n in start..=end {
                let octet = n % 256;
                let skipped = length <= 24 && (octet == 0 || octet == 255);
                let address = at(&text(n));
                if skipped {
                    prop_assert_eq!(pool.place(address), Place::Skipped);
                    continue;
                }
                let expected = match inside.contains(&n) {
                    true => Place::Excluded(Offset(count)),
                    false => Place::Allocatable(Offset(count)),
                };
                prop_assert_eq!(pool.place(address), expected);
                prop_assert_eq!(pool.address(Offset(count)), Some(address));
                count += 1;
                free += u128::from(!inside.contains(&n));
            }
            prop_assert_eq!((pool.offsets(), pool.total()), (count, free));
            prop_assert_eq!(pool.address(Offset(count)), None);
        }
    }
}
