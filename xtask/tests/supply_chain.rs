//! What ships: an image with nothing but three static programs, which runs as `nobody` unless a manifest sets another
//! user; no advisory is excused without a reason.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_owned()
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}

#[test]
fn the_image_is_three_programs_and_runs_as_nobody() {
    let text = read("deploy/Containerfile");
    let (_, last) = text.rsplit_once("\nFROM ").unwrap();
    let lines: Vec<&str> = last.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(lines.first(), Some(&"scratch"));
    let copies: Vec<_> = lines
        .iter()
        .filter(|line| line.starts_with("COPY"))
        .collect();
    let expected = [
        &"COPY --from=build /out/berth /out/berth-host /out/berth-cni /",
        // The same plugin, under the name that GKE's nodes get it by.
        &"COPY --from=build /out/berth-cni /app/gcp-ipam",
    ];
    assert_eq!(copies, expected);
    let user = lines.iter().find_map(|line| line.strip_prefix("USER "));
    assert_eq!(user, Some("65532:65532"));
}

/// A container that needs root sets it explicitly: with the image's own user it would fail on the node.
#[test]
fn who_needs_root_says_so_in_its_manifest() {
    for manifest in [
        "agent/daemonset.yaml",
        "vms/daemonset.yaml",
        "gcp/installer.yaml",
    ] {
        let text = read(&format!("deploy/{manifest}"));
        let containers = text.matches("        image: berth\n").count();
        let roots = text.matches("          runAsUser: 0\n").count();
        assert!(containers > 0);
        assert_eq!(containers, roots, "{manifest}");
    }
    let controller = read("deploy/controller/deployment.yaml");
    assert!(controller.contains("        runAsNonRoot: true\n"));
}

#[test]
fn every_advisory_that_is_excused_has_its_reason() {
    let text = read("deny.toml");
    let (_, advisories) = text.split_once("[advisories]").unwrap();
    let excused: Vec<&str> = advisories
        .lines()
        .filter(|line| line.contains("RUSTSEC-"))
        .collect();
    assert!(!excused.is_empty());
    for line in excused {
        assert!(line.contains("reason = \""), "{line}");
    }
}

#[test]
fn there_is_a_way_to_report_a_vulnerability() {
    assert!(read("SECURITY.md").contains("in private"));
}
