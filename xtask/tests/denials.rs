//! Every message of the admission policies in deploy/ is matched by a test of a denied write: a rule that no test would
//! miss is no protection.
//!
//! A test names what denies as a pair of literals: `("berth-agents-slices", "may only say that it wants a part")`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// Policies that are not about agents: a person's mistakes, and who is asked first.
const OTHERS: &[&str] = &[
    "berth-ippools",
    "berth-nodeippools",
    "berth-pool-capture-syntax",
    "berth-pool-captures",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

fn files(dir: &Path, ending: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, ending, found);
        } else if path.extension().is_some_and(|end| end == ending) {
            found.push(path);
        }
    }
}

/// Policy and literal texts of each message.
fn messages() -> Vec<(String, Vec<String>)> {
    let mut manifests = Vec::new();
    files(&root().join("deploy"), "yaml", &mut manifests);
    let mut found = Vec::new();
    for manifest in manifests {
        let text = fs::read_to_string(&manifest).unwrap();
        if !text.contains("kind: ValidatingAdmissionPolicy\n") {
            continue;
        }
        let documents: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
        for document in documents {
            let policy = document["metadata"]["name"].as_str().unwrap_or_default();
            if !policy.starts_with("berth-agents-") {
                assert!(
                    document["kind"] != "ValidatingAdmissionPolicy" || OTHERS.contains(&policy),
                    "{policy}: neither about agents nor listed here"
                );
                continue;
            }
            let validations = document["spec"]["validations"].as_array();
            for validation in validations.into_iter().flatten() {
                let texts = match validation["message"].as_str() {
                    Some(message) => vec![message.to_owned()],
                    None => literals(validation["messageExpression"].as_str().unwrap()),
                };
                found.push((policy.to_owned(), texts));
            }
        }
    }
    found
}

/// The texts between quotes of an expression.
fn literals(expression: &str) -> Vec<String> {
    let texts = expression.split('\'').skip(1).step_by(2);
    texts.map(str::to_owned).collect()
}

/// The pairs of a policy and words in Rust source.
fn pairs(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for rest in text.split("\"berth-agents-").skip(1) {
        let Some((policy, rest)) = rest.split_once("\",") else {
            continue;
        };
        let words = rest.trim_start().strip_prefix('"');
        if let Some((words, _)) = words.and_then(|words| words.split_once('"')) {
            found.push((format!("berth-agents-{policy}"), words.to_owned()));
        }
    }
    found
}

#[test]
fn every_denial_of_the_policies_has_a_test() {
    let messages = messages();
    assert!(messages.len() > 30, "{} messages", messages.len());
    let mut sources = Vec::new();
    files(&root().join("crates"), "rs", &mut sources);
    let mut tested = Vec::new();
    for source in sources {
        tested.extend(pairs(&fs::read_to_string(&source).unwrap()));
    }
    // Words may go on after a literal with what the expression inserts, such as a node's name.
    let matches = |text: &str, words: &str| {
        let long = |common: &str| common.trim().len() >= 10;
        text.contains(words) || (long(text) && words.contains(text.trim()))
    };
    let missing: Vec<_> = messages
        .iter()
        .filter(|(policy, texts)| {
            !tested
                .iter()
                .any(|(by, words)| by == policy && texts.iter().any(|text| matches(text, words)))
        })
        .collect();
    assert!(missing.is_empty(), "denied in no test: {missing:#?}");
}
