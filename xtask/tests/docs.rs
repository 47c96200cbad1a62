//! The form of the documentation: short lines, short decision pages, links that lead somewhere.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Longer lines make diffs unreadable.
const LONGEST_LINE: usize = 120;
/// Two printed pages.
const LONGEST_DECISION: usize = 1_000;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// The Markdown files of the repository's root and of docs/.
fn pages() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root()).unwrap() {
        let path = entry.unwrap().path();
        if is_markdown(&path) {
            found.push(path);
        }
    }
    below(&root().join("docs"), &mut found);
    assert!(found.len() > 20, "{found:?}");
    found
}

fn below(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            below(&path, found);
        } else if is_markdown(&path) {
            found.push(path);
        }
    }
}

fn is_markdown(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "md")
}

/// The numbered lines outside code blocks.
fn prose(text: &str) -> Vec<(usize, &str)> {
    let mut in_code = false;
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        } else if !in_code {
            found.push((number + 1, line));
        }
    }
    found
}

fn too_long(text: &str) -> Vec<usize> {
    let is_long = |line: &str| line.chars().count() > LONGEST_LINE;
    let is_table = |line: &str| line.trim_start().starts_with('|');
    let lines = prose(text).into_iter();
    let long = lines.filter(|(_, line)| is_long(line) && !is_table(line));
    long.map(|(number, _)| number).collect()
}

#[test]
fn lines_are_short_outside_tables_and_code() {
    let mut found = Vec::new();
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        let lines = too_long(&text).into_iter();
        found.extend(lines.map(|number| format!("{}:{number}", page.display())));
    }
    assert!(
        found.is_empty(),
        "over {LONGEST_LINE} characters:\n{}",
        found.join("\n")
    );
}

#[test]
fn a_long_line_is_found() {
    let long = "x".repeat(LONGEST_LINE + 1);
    assert_eq!(too_long(&format!("a\n{long}\n")), [2]);
    assert!(too_long(&format!("| {long} |\n```\n{long}\n```\n")).is_empty());
}

#[test]
fn a_decision_has_at_most_two_pages() {
    let mut decisions = Vec::new();
    below(&root().join("docs/decisions"), &mut decisions);
    assert!(decisions.len() > 10, "{decisions:?}");
    for page in decisions {
        let words = fs::read_to_string(&page)
            .unwrap()
            .split_whitespace()
            .count();
        assert!(
            words <= LONGEST_DECISION,
            "{}: {words} words",
            page.display()
        );
    }
}

/// The headings of a page, as links name them.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = prose(text).into_iter();
    let headings = headings.filter_map(|(_, line)| line.strip_prefix('#'));
    headings
        .map(|heading| {
            let heading = heading.trim_start_matches('#').trim().to_lowercase();
            let kept = heading.chars().filter_map(|c| match c {
                ' ' => Some('-'),
                '-' | '_' => Some(c),
                _ => c.is_alphanumeric().then_some(c),
            });
            kept.collect()
        })
        .collect()
}

/// The targets of a page's links, except other sites.
fn targets(text: &str) -> Vec<&str> {
    let links = text.split("](").skip(1).filter_map(|rest| {
        let (target, _) = rest.split_once(')')?;
        Some(target)
    });
    links.filter(|target| !target.contains("://")).collect()
}

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    let mut broken = Vec::new();
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for target in targets(&text) {
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let path = match file {
                "" => page.clone(),
                file => page.parent().unwrap().join(file),
            };
            let is_there = path.exists()
                && (anchor.is_empty()
                    || anchors(&fs::read_to_string(&path).unwrap()).contains(anchor));
            if !is_there {
                broken.push(format!("{}: {target}", page.display()));
            }
        }
    }
    assert!(broken.is_empty(), "broken links:\n{}", broken.join("\n"));
}

#[test]
fn every_page_is_in_an_index() {
    for (index, dir) in [
        ("docs/README.md", "docs"),
        ("docs/decisions/README.md", "docs/decisions"),
    ] {
        let text = fs::read_to_string(root().join(index)).unwrap();
        for entry in fs::read_dir(root().join(dir)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let is_page = name.ends_with(".md") && name != "README.md";
            assert!(
                !is_page || text.contains(&format!("({name})")),
                "{index} lacks {name}"
            );
        }
    }
}
