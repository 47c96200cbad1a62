//! docs/regressions.md lists the failures of other projects that have tests here, and the tests carry their names:
//! neither exists without the other.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

const PROJECTS: [&str; 11] = [
    "antrea",
    "aws",
    "azure",
    "azure_cns",
    "berth",
    "calico",
    "cilium",
    "kube_ovn",
    "plugins",
    "spiderpool",
    "whereabouts",
];

/// `calico_3589_6244` of `calico_3589_6244_a_node_that_returns`: project and numbers.
fn failure(name: &str) -> Option<String> {
    PROJECTS.iter().find_map(|project| {
        let rest = name.strip_prefix(project)?.strip_prefix('_')?;
        let is_number = |word: &&str| word.bytes().all(|byte| byte.is_ascii_digit());
        let numbers: Vec<&str> = rest.split('_').take_while(is_number).collect();
        (!numbers.is_empty()).then(|| format!("{project}_{}", numbers.join("_")))
    })
}

fn tested(dir: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            tested(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let names = text.split("fn ").skip(1);
            found.extend(names.filter_map(failure_of_word));
        }
    }
}

fn failure_of_word(text: &str) -> Option<String> {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_')?;
    failure(text.get(..end)?)
}

#[test]
fn every_failure_that_is_listed_has_a_test_and_the_other_way_round() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let text = fs::read_to_string(root.join("docs/regressions.md")).unwrap();
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `"));
    let rows: Vec<String> = rows.filter_map(failure_of_word).collect();
    let listed: BTreeSet<String> = rows.iter().cloned().collect();
    let twice = |name: &&String| rows.iter().filter(|row| row == name).count() > 1;
    let twice: Vec<&String> = listed.iter().filter(twice).collect();
    assert!(twice.is_empty(), "more than one row of {twice:?}");
    assert!(!listed.is_empty(), "the list is not as it was");
    let mut found = BTreeSet::new();
    tested(&root.join("crates"), &mut found);
    assert_eq!(listed, found);
}
