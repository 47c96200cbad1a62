//! docs/security.md names the test that shows each protection: all of these tests exist.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Every function's name below `dir`.
fn functions(dir: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            functions(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let name = |rest: &str| {
                rest.split(|c: char| !is_of_name(c))
                    .next()
                    .map(str::to_owned)
            };
            found.extend(text.split("fn ").skip(1).filter_map(name));
        }
    }
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The names between backticks in the last column of the tables: a test's name is a sentence.
fn tests(text: &str) -> BTreeSet<&str> {
    let rows = text.lines().filter(|line| line.starts_with("| "));
    let last = rows.filter_map(|row| row.trim_end_matches(" |").rsplit(" | ").next());
    let names = last.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    names
        .filter(|name| name.chars().all(is_of_name) && name.matches('_').count() >= 2)
        .collect()
}

#[test]
fn every_test_that_the_threat_model_names_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let text = fs::read_to_string(root.join("docs/security.md")).unwrap();
    let named = tests(&text);
    assert!(
        named.len() > 40,
        "the tables are not as they were: {named:?}"
    );
    let mut found = BTreeSet::new();
    functions(&root.join("crates"), &mut found);
    let missing: Vec<&&str> = named
        .iter()
        .filter(|name| !found.contains(**name))
        .collect();
    assert!(missing.is_empty(), "no such tests: {missing:?}");
    assert!(!text.contains("(issue "), "a row without a test");
}
