//! What an update of a pool may change.

use berth_nodes::pool::check_growth;

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn an_update_may_grow_a_pool_and_nothing_else() {
    let pools = pools().await;
    let two = with(
        &["ranges"],
        json!([{ "cidr": "10.10.12.0/24", "start": "10.10.12.1", "end": "10.10.12.9" }]),
    );
    let two_with = |pointer: &str, value: Value| {
        let mut spec = two.clone();
        *spec.pointer_mut(pointer).unwrap() = value;
        spec
    };
    let open = range("10.10.10.0/24", "", "", &[]);
    let tiny = range("10.0.0.254/31", "", "", &[]);
    let gateway = with(&["gateway"], json!("10.10.10.254"));
    let cases: Vec<(Value, Value, &str)> = vec![
        (good(), good(), ""),
        (good(), with(&["range", "end"], json!("10.10.10.20")), ""),
        (good(), with(&["range", "end"], Value::Null), ""),
        (
            good(),
            with(&["range", "exclude"], json!(["10.10.10.4"])),
            "",
        ),
        (good(), with(&["range", "exclude"], Value::Null), ""),
        (
            good(),
            range(
                "10.10.0.0/16",
                "10.10.10.1",
                "10.10.11.20",
                &["10.10.10.4", "10.10.10.7"],
            ),
            "",
        ),
        (good(), two.clone(), ""),
        (good(), with(&["dns"], json!(["10.0.0.53"])), ""),
        (
            good(),
            with(&["reservations"], json!({ "node01": "10.10.10.8" })),
            "",
        ),
        (good(), with(&["reuse-delay"], json!("5m")), ""),
        (
            two.clone(),
            two_with("/ranges/0/end", json!("10.10.12.90")),
            "",
        ),
        (open.clone(), range("10.10.10.0/23", "", "", &[]), ""),
        (
            open.clone(),
            range("10.10.10.0/23", "", "10.10.11.9", &[]),
            "",
        ),
        (
            good(),
            with(&["range", "start"], json!("10.10.10.2")),
            "spec.range.start: Forbidden: can not change from 10.10.10.1 to 10.10.10.2",
        ),
        (
            good(),
            with(&["range", "start"], Value::Null),
            "spec.range.start: Forbidden: can not change from 10.10.10.1 to none",
        ),
        (
            good(),
            with(&["range", "end"], json!("10.10.10.9")),
            "spec.range.end: Forbidden: can not change from 10.10.10.10 to 10.10.10.9",
        ),
        (
            open.clone(),
            range("10.10.10.0/24", "", "10.10.10.9", &[]),
            "spec.range.end: Forbidden: can not change from none to 10.10.10.9",
        ),
        (
            good(),
            with(&["range", "cidr"], json!("10.10.10.0/25")),
            "spec.range.cidr: Forbidden: can not change from 10.10.10.0/24 to 10.10.10.0/25",
        ),
        (
            open.clone(),
            range("10.10.0.0/16", "", "", &[]),
            "spec.range.cidr: Forbidden",
        ),
        (
            tiny,
            range("10.0.0.0/16", "10.0.0.254", "", &[]),
            "spec.range.cidr: Forbidden",
        ),
        (
            good(),
            with(
                &["range", "exclude"],
                json!(["10.10.10.4", "10.10.10.7", "10.10.10.8"]),
            ),
            "spec.range.exclude: Forbidden: 10.10.10.8 can not be added",
        ),
        (
            good(),
            with(&["range", "gateway"], json!("10.10.10.3")),
            "spec.range.gateway: Forbidden",
        ),
        (gateway.clone(), good(), "spec.gateway: Forbidden"),
        (
            two.clone(),
            two_with("/range/end", json!("10.10.10.20")),
            "spec.range.end: Forbidden",
        ),
        (
            two.clone(),
            two_with("/range/cidr", json!("10.10.8.0/22")),
            "spec.range.cidr: Forbidden",
        ),
        (
            two.clone(),
            good(),
            "spec.ranges: Forbidden: ranges are only appended",
        ),
        (
            two.clone(),
            two_with("/ranges/0/start", json!("10.10.12.2")),
            "spec.ranges: Forbidden",
        ),
        (
            two.clone(),
            two_with("/ranges/0/end", json!("10.10.12.8")),
            "spec.ranges: Forbidden",
        ),
        (
            two.clone(),
            with(
                &["ranges"],
                json!([{ "cidr": "10.10.13.0/24" }, two["ranges"][0].clone()]),
            ),
            "spec.ranges: Forbidden",
        ),
    ];
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let mut wrong = Vec::new();
    for (index, (old, new, expected)) in cases.into_iter().enumerate() {
        let name = format!("grows-{index}");
        let made = pools
            .create(&PostParams::default(), &object(&name, old.clone()))
            .await
            .unwrap();
        let mut update = object(&name, new.clone());
        update.metadata.resource_version = made.metadata.resource_version;
        let outcome = pools.replace(&name, &dry, &update).await;
        let error = outcome
            .err()
            .map(|error| error.to_string())
            .unwrap_or_default();
        let fits = match expected {
            "" => error.is_empty(),
            expected => error.contains(expected),
        };
        if !fits {
            wrong.push(format!(
                "{old} -> {new}\n  expected `{expected}`\n  {error}"
            ));
        }
        // What admission lets through moves no offset.
        if let (Ok(old), Ok(new), "") = (read(&old), read(&new), expected) {
            assert_eq!(check_growth(&old, &new), Ok(()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
