//! What is admitted and what is refused when a pool is created.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn good_pools_are_admitted() {
    let pools = pools().await;
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let cases = [
        good(),
        // The proposal's examples.
        range(
            "10.10.11.0/24",
            "10.10.11.4",
            "10.10.11.10",
            &["10.10.11.5", "10.10.11.7"],
        ),
        range(
            "10.10.11.0/16",
            "10.10.11.4",
            "10.10.12.10",
            &["10.10.11.5", "10.10.12.7"],
        ),
        range(
            "2001:4860:4860::/116",
            "2001:4860:4860::000F",
            "2001:4860:4860::00FF",
            &["2001:4860:4860::0010", "2001:4860:4860::001F"],
        ),
        range("10.10.10.0/24", "", "", &["10.10.10.0/28"]),
        range("10.10.10.0/31", "10.10.10.0", "10.10.10.1", &[]),
        range("10.10.10.4/32", "", "", &[]),
        range("fd00::/64", "", "fd00::ffff:ffff:ffff:ffff", &[]),
        with(
            &["ranges"],
            json!([{ "cidr": "10.10.10.0/24", "start": "10.10.10.11" }, { "cidr": "10.10.9.0/24" }, { "cidr": "10.10.0.0/16", "start": "10.10.11.1" }]),
        ),
        with(&["gateway"], json!("10.10.10.254")),
        with(&["dns"], json!(["10.0.0.53", "fd00::53"])),
        with(
            &["reservations"],
            json!({ "node01": "10.10.10.8", "node02.example.com": "10.10.10.9" }),
        ),
        with(&["reuse-delay"], json!("1h30m")),
    ];
    for spec in cases {
        let outcome = pools.create(&dry, &object("good", spec.clone())).await;
        assert!(outcome.is_ok(), "{spec}: {}", outcome.unwrap_err());
        assert!(read(&spec).is_ok(), "{spec}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_bad_pool_is_refused_with_field_value_and_what_would_be_right() {
    let pools = pools().await;
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let cases: Vec<(Value, [&str; 3])> = vec![
        (
            with(&["range", "cidr"], json!("10.10.10.0/33")),
            ["spec.range.cidr", "10.10.10.0/33", "10.10.10.0/24 or"],
        ),
        (
            with(&["range", "end"], json!("10.10.10.11.10")),
            [
                "spec.range.end",
                "10.10.10.11.10",
                "give an IPv4 or IPv6 address of 10.10.10.0/24",
            ],
        ),
        (
            with(&["range", "start"], json!("10.10.10")),
            ["spec.range.start", "10.10.10", "give an IPv4"],
        ),
        (
            range("10.10.10.0/24", "10.10.10.9", "10.10.10.1", &[]),
            [
                "spec.range.end",
                "10.10.10.1 is below the start 10.10.10.9",
                "swap",
            ],
        ),
        (
            range("fd00::/64", "fd00::1:0", "fd00::ffff", &[]),
            ["spec.range.end", "fd00::ffff is below", "swap"],
        ),
        (
            range("10.10.10.0/24", "10.10.11.1", "", &[]),
            [
                "spec.range.start",
                "10.10.11.1 lies outside",
                "of that network",
            ],
        ),
        (
            range("10.10.10.0/24", "", "10.10.11.1", &[]),
            [
                "spec.range.end",
                "10.10.11.1 lies outside",
                "of that network",
            ],
        ),
        (
            range("10.10.10.0/24", "10.10.10.0", "", &[]),
            [
                "spec.range.start",
                "10.10.10.0 is the first or the last",
                "give one between",
            ],
        ),
        (
            range("10.10.10.0/24", "", "10.10.10.255", &[]),
            [
                "spec.range.end",
                "10.10.10.255 is the first or the last",
                "give one between",
            ],
        ),
        (
            range("fd00::/64", "fd00::", "", &[]),
            [
                "spec.range.start",
                "fd00:: is the first",
                "give one between",
            ],
        ),
        (
            range("10.10.10.0/24", "fd00::1", "", &[]),
            [
                "spec.range.start",
                "fd00::1 is of another family",
                "of that network",
            ],
        ),
        (
            range("10.10.10.0/24", "", "fd00::1", &[]),
            [
                "spec.range.end",
                "fd00::1 is of another family",
                "of that network",
            ],
        ),
        (
            range("10.10.10.0/24", "", "", &["10.10.10"]),
            [
                "spec.range.exclude",
                "10.10.10",
                "neither an address nor a network",
            ],
        ),
        (
            range("10.10.10.0/24", "10.10.10.5", "", &["10.10.10.4"]),
            ["spec.range.exclude", "10.10.10.4 lies outside", "remove it"],
        ),
        (
            range("10.10.10.0/24", "", "10.10.10.9", &["10.10.10.10"]),
            [
                "spec.range.exclude",
                "10.10.10.10 lies outside",
                "remove it",
            ],
        ),
        (
            range("10.10.10.0/24", "10.10.10.17", "", &["10.10.10.0/28"]),
            [
                "spec.range.exclude",
                "10.10.10.0/28 lies outside",
                "remove it",
            ],
        ),
        (
            range("10.10.10.0/24", "", "", &["10.10.9.1"]),
            ["spec.range.exclude", "10.10.9.1 lies outside", "remove it"],
        ),
        (
            range("10.10.10.0/24", "", "", &["fd00::1"]),
            ["spec.range.exclude", "fd00::1 lies outside", "remove it"],
        ),
        (
            range("10.10.10.0/24", "", "", &["10.10.10.4", "10.10.10.0/28"]),
            ["spec.range.exclude", "overlaps another entry", "once"],
        ),
        (
            range("10.10.10.0/24", "", "", &["10.10.10.0/24"]),
            [
                "spec.range.exclude",
                "10.10.10.0/24 excludes the whole range",
                "leave addresses",
            ],
        ),
        (
            range(
                "10.10.10.0/24",
                "10.10.10.4",
                "10.10.10.7",
                &["10.10.10.4/30"],
            ),
            [
                "spec.range.exclude",
                "excludes the whole range",
                "leave addresses",
            ],
        ),
        (
            with(&["range", "gateway"], json!("10.9.9.9")),
            [
                "spec.range.gateway",
                "10.9.9.9 lies outside",
                "of that network",
            ],
        ),
        (
            with(&["ranges"], json!([{ "cidr": "fd00::/64" }])),
            [
                "spec.ranges",
                "fd00::/64 is of another family",
                "second pool",
            ],
        ),
        (
            with(
                &["ranges"],
                json!([{ "cidr": "10.10.11.0/24", "start": "10.10.12.1" }]),
            ),
            [
                "spec.ranges[0].start",
                "10.10.12.1 lies outside",
                "of that network",
            ],
        ),
        (
            with(&["ranges"], json!([{ "cidr": "10.10.10.0/24" }])),
            ["spec.ranges", "overlaps range 10.10.10.0/24", "once"],
        ),
        (
            with(
                &["ranges"],
                json!([{ "cidr": "10.11.0.0/24" }, { "cidr": "10.11.0.0/16", "end": "10.11.0.9" }]),
            ),
            ["spec.ranges", "two ranges of the list overlap", "once"],
        ),
        (
            with(&["gateway"], json!("10.9.9.9")),
            ["spec.gateway", "10.9.9.9", "give one of 10.10.10.0/24"],
        ),
        (
            with(&["dns"], json!(["ns1"])),
            ["spec.dns", "ns1", "give the IPv4"],
        ),
        (
            with(&["reservations"], json!({ "node01": "10.9.9.9" })),
            [
                "spec.reservations",
                "node01: \\\"10.9.9.9\\\"",
                "give one of 10.10.10.0/24",
            ],
        ),
        (
            with(
                &["reservations"],
                json!({ "a": "10.10.10.8", "b": "10.10.10.8" }),
            ),
            [
                "spec.reservations",
                "10.10.10.8 is reserved for two nodes",
                "each its own",
            ],
        ),
        (
            with(&["reuse-delay"], json!("soon")),
            ["spec.reuse-delay", "soon", "90s, 10m"],
        ),
    ];
    let mut wrong = Vec::new();
    for (spec, parts) in cases {
        let error = match pools.create(&dry, &object("bad", spec.clone())).await {
            Ok(_) => "admitted".to_owned(),
            Err(error) => error.to_string(),
        };
        let plain = error.replace("\\\"", "\"");
        if parts
            .iter()
            .any(|part| !plain.contains(&part.replace("\\\"", "\"")))
        {
            wrong.push(format!("{spec}\n  expected {parts:?}\n  {error}"));
        }
        assert!(
            read(&spec).is_err(),
            "the same rule is missing in PoolSpace: {spec}"
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Captures can name a pool of at most 63 characters.
#[tokio::test(flavor = "multi_thread")]
async fn a_name_over_63_characters_is_refused() {
    let pools = pools().await;
    let create = async |length: usize| {
        let object = object(&"p".repeat(length), good());
        pools.create(&PostParams::default(), &object).await
    };
    let refused = create(64).await.unwrap_err().to_string();
    assert!(
        refused.contains("metadata.name") && refused.contains("63 characters"),
        "{refused}"
    );
    create(63).await.unwrap();
}
