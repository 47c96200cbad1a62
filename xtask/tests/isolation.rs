//! Tests and benchmarks start Berth's programs isolated from the machine that they run on.
//!
//! whereabouts or Berth itself may be installed here, and a person's shell may name a cluster: a program that saw
//! either would allocate by another definition, or in another cluster, than its test says.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::path::{Path, PathBuf};

/// Programs of which none is Berth's and none runs Berth's. What is not listed starts with `isolated`.
const OTHERS: &[&str] = &[
    r#""kill""#,
    r#""cc""#,
    r#""cp""#,
    r#""strip""#,
    r#""ldd""#,
    r#""/bin/busybox""#,
    "Parts::find(",
];

/// Where the built programs are started.
const PLACES: &[&str] = &[
    "crates/cli/tests",
    "crates/plugin/tests",
    "crates/bench/src",
];

/// What starts a program, up to its name.
const STARTS: &[&str] = &["Command::new(", "guarded("];

/// Lines that look like it and start something else: Go, this test again, and the plugin, which reads no file.
const EXEMPT: &[(&str, &str)] = &[
    ("vms/go_client.rs", "program)"),
    ("src/vms.rs", "std::env::current_exe()"),
    ("pods/plugin.rs", "&self.binary)"),
    ("pods/plugin.rs", "program)"),
];

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") {
            found.push(path);
        }
    }
}

/// The starts in this text that are not isolated, and lines that undo the isolation.
fn bare(name: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let text = |what: &str| format!("{name}:{}: {what}: {}", number + 1, line.trim());
        if line.contains(".env_clear()") && !name.contains("bench/src") {
            found.push(text("clears what `isolated` sets"));
        }
        for start in STARTS {
            for (at, _) in line.match_indices(start) {
                let before = line[..at].trim_end_matches("std::process::");
                let program = &line[at + start.len()..];
                // A declaration, or a name that only ends like it.
                let is_start = !before.ends_with("fn ")
                    && !before.ends_with(|c: char| c.is_alphanumeric() || c == '_');
                let is_other = OTHERS.iter().any(|other| program.starts_with(other));
                let is_exempt = EXEMPT
                    .iter()
                    .any(|(file, what)| name.ends_with(file) && program.starts_with(what));
                if is_start && !is_other && !is_exempt && !before.ends_with("isolated(") {
                    found.push(text("not isolated"));
                }
            }
        }
    }
    found
}

#[test]
fn berth_15_25_tests_start_every_program_isolated_from_the_machine() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut files = Vec::new();
    for place in PLACES {
        sources(&root.join(place), &mut files);
    }
    let mut found = Vec::new();
    let mut isolated = 0;
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        isolated += text.matches("isolated(").count();
        found.extend(bare(&file.display().to_string(), &text));
    }
    assert!(isolated > 20, "{isolated} starts: this test sees none");
    assert!(
        found.is_empty(),
        "start these as `isolated(…)` (berth-testkit):\n{}",
        found.join("\n")
    );
}

#[test]
fn a_start_that_is_not_isolated_is_found() {
    for line in [
        "Command::new(BERTH)",
        "let c = guarded(&berth);",
        r#"std::process::Command::new("sh")"#,
        "isolated(Command::new(BERTH)).env_clear()",
    ] {
        assert_eq!(bare("x.rs", line).len(), 1, "{line}");
    }
    for line in [
        "isolated(Command::new(BERTH))",
        "isolated(std::process::Command::new(BERTH))",
        r#"Command::new("kill")"#,
        "commit_guarded(x)",
    ] {
        assert!(bare("x.rs", line).is_empty(), "{line}");
    }
}
