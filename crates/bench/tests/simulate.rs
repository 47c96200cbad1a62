//! The simulation itself, small: every answer matches the API server's objects.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::process::Command;

#[test]
fn twenty_nodes_on_three_networks_get_an_address_each_and_none_twice() {
    let output = Command::new(env!("CARGO_BIN_EXE_berth-bench"))
        .args([
            "simulate",
            "--nodes",
            "20",
            "--networks",
            "3",
            "--pods",
            "2",
        ])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}\n{errors}");
    assert!(text.contains("20 nodes x 3 networks x 2 pods"), "{text}");
    assert!(!text.contains("FAIL"), "{text}");
}
