//! `berth offsets` on files, as a user runs it: every example of the proposal with its errata, and bad input.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::process::{Command, Output};

use berth_testkit::{fed, isolated};
use serde_json::{Value, json};

/// Runs `berth offsets -f -` with a document on stdin.
fn offsets(document: &str, arguments: &[&str]) -> Output {
    let mut command = isolated(Command::new(env!("CARGO_BIN_EXE_berth")));
    command
        .args(["offsets", "-f", "-"])
        .args(arguments)
        .stderr(std::process::Stdio::piped());
    fed(&mut command, document).unwrap()
}

fn rows(document: &str, arguments: &[&str]) -> Vec<Value> {
    let output = offsets(document, &[arguments, &["-o", "json"]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The complaint of a command that ends with this code.
fn failed(document: &str, arguments: &[&str], code: i32) -> String {
    let output = offsets(document, arguments);
    assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
    assert!(output.stdout.is_empty(), "an answer and a failure");
    stderr(&output)
}

fn pool(range: &str) -> String {
    format!(
        "apiVersion: nmstate.io/v1\nkind: NodeIPPool\nmetadata: {{name: traffic-1}}\nspec:\n  range: {{{range}}}\n"
    )
}

const SLASH_24: &str = r#"cidr: 10.10.11.0/24, start: 10.10.11.4, end: 10.10.11.10, exclude: ["10.10.11.5", "10.10.11.7"]"#;
const SLASH_16: &str = r#"cidr: 10.10.11.0/16, start: 10.10.11.4, end: 10.10.12.10, exclude: ["10.10.11.5", "10.10.12.7"]"#;
const SLASH_116: &str = r#"cidr: "2001:4860:4860::/116", start: "2001:4860:4860::000F", end: "2001:4860:4860::00FF", exclude: ["2001:4860:4860::0010", "2001:4860:4860::001F"]"#;

/// A range, and the offset, address and state of some of it.
type Case = (&'static str, &'static [(u64, &'static str, &'static str)]);

/// Errata: `end` of five octets is 10.10.11.10 (10.10.12.10), 10.10.11.0/16 is 10.10.0.0/16, and the IPv6 offsets from 0x1F on are
/// one less than printed in the proposal.
#[test]
fn every_example_of_the_proposal_both_ways() {
    let cases: &[Case] = &[
        (
            SLASH_24,
            &[
                (0, "10.10.11.4", "free"),
                (1, "10.10.11.5", "excluded"),
                (2, "10.10.11.6", "free"),
                (3, "10.10.11.7", "excluded"),
                (4, "10.10.11.8", "free"),
                (5, "10.10.11.9", "free"),
                (6, "10.10.11.10", "free"),
            ],
        ),
        (
            SLASH_16,
            &[
                (0, "10.10.11.4", "free"),
                (1, "10.10.11.5", "excluded"),
                (250, "10.10.11.254", "free"),
                (251, "10.10.12.1", "free"),
                (252, "10.10.12.2", "free"),
                (257, "10.10.12.7", "excluded"),
                (258, "10.10.12.8", "free"),
                (259, "10.10.12.9", "free"),
                (260, "10.10.12.10", "free"),
            ],
        ),
        (
            SLASH_116,
            &[
                (0, "2001:4860:4860::f", "free"),
                (1, "2001:4860:4860::10", "excluded"),
                (16, "2001:4860:4860::1f", "excluded"),
                (17, "2001:4860:4860::20", "free"),
                (240, "2001:4860:4860::ff", "free"),
            ],
        ),
    ];
    for (range, expected) in cases {
        let document = pool(range);
        let numbers: Vec<String> = expected.iter().map(|(n, ..)| n.to_string()).collect();
        let numbers: Vec<&str> = numbers.iter().map(String::as_str).collect();
        let addresses: Vec<&str> = expected.iter().map(|(_, ip, _)| *ip).collect();
        let expected: Vec<Value> = expected
            .iter()
            .map(|(offset, ip, state)| json!({ "offset": offset, "ip": ip, "state": state }))
            .collect();
        assert_eq!(rows(&document, &numbers), expected, "{range}");
        assert_eq!(rows(&document, &addresses), expected, "{range}");
    }
}

/// The proposal's first object: six first fits beside two excluded addresses.
#[test]
fn the_proposals_pool_with_its_status() {
    let range = r#"cidr: 10.10.10.0/24, start: 10.10.10.1, end: 10.10.10.10, exclude: ["10.10.10.4", "10.10.10.7"]"#;
    let status = "status:\n  allocated-offsets: [0, 1, 2, 4, 5, 7]\n  allocations:\n  - {ip: 10.10.10.2, offset: 1, node: node01, policy: static-ip, capture: a}\n";
    let document = pool(range) + status;
    let states: Vec<String> = rows(&document, &[])
        .iter()
        .map(|row| {
            format!(
                "{} {} {}",
                row["offset"],
                row["ip"].as_str().unwrap(),
                row["state"].as_str().unwrap()
            )
        })
        .collect();
    assert_eq!(
        states,
        [
            "0 10.10.10.1 allocated",
            "1 10.10.10.2 allocated",
            "2 10.10.10.3 allocated",
            "3 10.10.10.4 excluded",
            "4 10.10.10.5 allocated",
            "5 10.10.10.6 allocated",
            "6 10.10.10.7 excluded",
            "7 10.10.10.8 allocated",
            "8 10.10.10.9 free",
            "9 10.10.10.10 free",
        ]
    );
    let one = &rows(&document, &["10.10.10.2"])[0];
    assert_eq!(
        (&one["node"], &one["policy"]),
        (&json!("node01"), &json!("static-ip"))
    );
    assert_eq!(rows(&document, &["--allocated"]).len(), 6);
}

#[test]
fn skipped_addresses_are_shown_without_an_offset() {
    let document = pool(SLASH_16);
    let skipped = rows(&document, &["10.10.11.255", "10.10.12.0"]);
    for (row, ip) in skipped.iter().zip(["10.10.11.255", "10.10.12.0"]) {
        assert_eq!(
            *row,
            json!({ "offset": null, "ip": ip, "state": "skipped" })
        );
    }
    let output = offsets(&document, &["250", "10.10.12.0", "251"]);
    let table = String::from_utf8(output.stdout.clone()).unwrap();
    let table: Vec<String> = table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    assert_eq!(
        table,
        [
            "OFFSET IP STATE NODE POLICY",
            "250 10.10.11.254 free",
            "- 10.10.12.0 skipped",
            "251 10.10.12.1 free",
        ]
    );
    assert!(
        stderr(&output).contains("10.10.11.0/16 has host bits and is read as 10.10.0.0/16"),
        "{}",
        stderr(&output)
    );
    // A listing has them too.
    let states = rows(&document, &[]);
    let skipped = states.iter().filter(|row| row["state"] == "skipped");
    assert_eq!((states.len(), skipped.count()), (263, 2));
}

#[test]
fn a_listing_has_an_end_and_says_so() {
    let output = offsets(&pool("cidr: 10.0.0.0/8"), &["-o", "json"]);
    assert_eq!(
        serde_json::from_slice::<Vec<Value>>(&output.stdout)
            .unwrap()
            .len(),
        4096
    );
    assert!(
        stderr(&output).contains("first 4096"),
        "{}",
        stderr(&output)
    );
    // The last address of a /8 is found without counting to it.
    let last = rows(&pool("cidr: 10.0.0.0/8"), &["10.255.255.254"]);
    assert_eq!(last[0]["offset"], json!(254 * 65536 - 1));
}

#[test]
fn several_pools_of_a_file_are_told_apart_by_name() {
    let second = pool("cidr: 10.20.0.0/24").replace("traffic-1", "traffic-2");
    let document = format!("{}---\n{second}", pool(SLASH_24));
    assert_eq!(rows(&document, &["traffic-2", "0"])[0]["ip"], "10.20.0.1");
    assert_eq!(rows(&document, &["traffic-1", "0"])[0]["ip"], "10.10.11.4");
    let complaint = failed(&document, &["0"], 2);
    assert!(complaint.contains("traffic-1, traffic-2"), "{complaint}");
}

#[test]
fn bad_input_is_refused_with_field_value_and_remedy() {
    let five = SLASH_24.replace("end: 10.10.11.10", "end: 10.10.10.11.10");
    let reversed = SLASH_24.replace("start: 10.10.11.4", "start: 10.10.11.11");
    let outside = SLASH_24.replace("end: 10.10.11.10", "end: 10.10.12.10");
    let mixed = SLASH_24.replace("start: 10.10.11.4", r#"start: "fd00::4""#);
    let specs: &[(&str, &[&str])] = &[
        (
            &five,
            &[
                "spec.range.end",
                "10.10.10.11.10",
                "give an IPv4 or IPv6 address",
            ],
        ),
        (&reversed, &["spec.range", "10.10.11.11", "10.10.11.10"]),
        (
            &outside,
            &["spec.range.end", "10.10.12.10", "10.10.11.0/24"],
        ),
        (&mixed, &["spec.range.start", "fd00::4", "second pool"]),
        ("start: 10.0.0.1", &["spec", "cidr"]),
        (
            "cidr: 10.0.0.0",
            &["spec.range.cidr", "10.0.0.0", "such as 10.10.10.0/24"],
        ),
        (
            r#"cidr: 10.0.0.0/30, exclude: ["10.0.0.0/30"]"#,
            &["spec.range.exclude", "leave addresses"],
        ),
    ];
    for (range, words) in specs {
        let complaint = failed(&pool(range), &["0"], 2);
        for word in *words {
            assert!(
                complaint.contains(word),
                "{range}: {word} is not in: {complaint}"
            );
        }
    }
    let good = pool(SLASH_24);
    for (value, code, words) in [
        ("7", 3, ["offset 7", "0 to 6"]),
        ("10.10.11.11", 3, ["10.10.11.11", "10.10.11.4-10.10.11.10"]),
        ("fd00::1", 3, ["fd00::1", "10.10.11.4-10.10.11.10"]),
        (
            "10.10.10.11.10",
            2,
            ["10.10.10.11.10", "a number from 0 to 6"],
        ),
        ("-1", 2, ["-1", ""]),
        ("", 2, ["``", "a number from 0 to 6"]),
    ] {
        let complaint = failed(&good, &[value], code);
        for word in words {
            assert!(
                complaint.contains(word),
                "{value}: {word} is not in: {complaint}"
            );
        }
    }
    // The proposal's two pools in one document, another kind, nothing, no YAML.
    for (document, word) in [
        (format!("{good}{good}"), "separated by lines of ---"),
        (
            good.replace("NodeIPPool", "IPPool"),
            "`IPPool` is not NodeIPPool",
        ),
        (
            good.replace("nmstate.io/v1", "nmstate.io/v2"),
            "`nmstate.io/v2` is not nmstate.io/v1",
        ),
        (String::new(), "is empty"),
        ("{".to_owned(), "give NodeIPPools"),
    ] {
        let complaint = failed(&document, &["0"], 2);
        assert!(complaint.contains(word), "{word} is not in: {complaint}");
    }
}

#[test]
fn without_a_cluster_and_without_a_file_it_says_what_to_name() {
    for (arguments, word) in [
        (["offsets", "traffic-1"].as_slice(), "--kubeconfig"),
        (&["offsets"], "-f"),
        (
            &["offsets", "-f", "/nonexistent/pool.yaml"],
            "/nonexistent/pool.yaml",
        ),
    ] {
        let output = isolated(Command::new(env!("CARGO_BIN_EXE_berth")))
            .args(arguments)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(stderr(&output).contains(word), "{}", stderr(&output));
    }
}
