//! `cargo xtask size`: lines of code and public items of each crate of the product, at any revision.
//!
//! A line of code is neither empty nor a comment, and not in a test: tests/, `tests.rs` and `#[cfg(test)]` are left out. Crates
//! that only tests and benchmarks use are left out too. Files are read as rustfmt writes them: an item ends where a brace
//! stands at its own indentation.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Crates that no shipped program has.
const TOOLS: [&str; 6] = ["bench", "fuzz", "model", "parts", "testcloud", "testkit"];

#[derive(clap::Args)]
pub struct Size {
    /// Count a commit instead of the files as they are.
    #[arg(long, value_name = "REV")]
    at: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    lines: usize,
    public: usize,
}

impl Size {
    #[allow(clippy::print_stdout)]
    pub fn run(&self) -> Result<()> {
        let mut crates: BTreeMap<String, Count> = BTreeMap::new();
        for path in self.files()? {
            let Some(name) = product_crate(&path) else {
                continue;
            };
            let found = count(&self.text(&path)?);
            let of = crates.entry(name.to_owned()).or_default();
            of.lines += found.lines;
            of.public += found.public;
        }
        let mut all = Count::default();
        println!("{:<12} {:>7} {:>7}", "crate", "lines", "public");
        for (name, of) in &crates {
            println!("{name:<12} {:>7} {:>7}", of.lines, of.public);
            all.lines += of.lines;
            all.public += of.public;
        }
        println!("{:<12} {:>7} {:>7}", "all", all.lines, all.public);
        Ok(())
    }

    /// Paths of all files of the crates.
    fn files(&self) -> Result<Vec<String>> {
        let listed = match &self.at {
            Some(at) => git(&["ls-tree", "-r", "--name-only", at, "crates"])?,
            None => git(&[
                "ls-files",
                "--cached",
                "--others",
                "--exclude-standard",
                "crates",
            ])?,
        };
        Ok(listed.lines().map(str::to_owned).collect())
    }

    /// The text of a file; empty for one that was deleted and not committed.
    fn text(&self, path: &str) -> Result<String> {
        if let Some(at) = &self.at {
            return git(&["show", &format!("{at}:{path}")]);
        }
        match std::fs::read_to_string(root().join(path)) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
            read => read.with_context(|| format!("read {path}")),
        }
    }
}

fn root() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn git(arguments: &[&str]) -> Result<String> {
    let mut command = Command::new("git");
    let output = command.args(arguments).current_dir(root()).output();
    let output = output.context("run git")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "git {arguments:?}: {said}");
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The crate whose product code that file has.
fn product_crate(path: &str) -> Option<&str> {
    let (name, rest) = path.strip_prefix("crates/")?.split_once('/')?;
    let source = rest.strip_prefix("src/")?.strip_suffix(".rs")?;
    let test = source.split('/').any(|part| part == "tests");
    (!test && !TOOLS.contains(&name)).then_some(name)
}

fn count(text: &str) -> Count {
    let mut found = Count::default();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let code = line.trim_start();
        if code.is_empty() || code.starts_with("//") {
            continue;
        }
        if code.starts_with("#[cfg(test)]") || code.starts_with("#[cfg(all(test") {
            skip_item(&mut lines);
            continue;
        }
        found.lines += 1;
        found.public += usize::from(is_public_item(code));
    }
    found
}

/// Passes over the item that an attribute is of.
fn skip_item<'a>(lines: &mut impl Iterator<Item = &'a str>) {
    let indent_of = |line: &str| line.len() - line.trim_start().len();
    let mut next = lines.find(|line| !line.trim_start().starts_with("#["));
    let indent = next.map_or(0, indent_of);
    while let Some(line) = next {
        let ends = [";", "}", "{}"].iter().any(|mark| line.ends_with(mark));
        if ends && indent_of(line) == indent {
            return;
        }
        next = lines.next();
    }
}

/// A function, type or constant that other crates may use. Re-exports and modules are no items of their own.
fn is_public_item(code: &str) -> bool {
    let Some(rest) = code.strip_prefix("pub ") else {
        return false;
    };
    let item = rest
        .split(' ')
        .find(|word| !["async", "unsafe"].contains(word));
    ["fn", "struct", "enum", "trait", "type", "const", "static"].contains(&item.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_comments_and_private_items_are_not_counted() {
        let text = "\
//! A module.
use std::fmt;

#[cfg(test)]
use std::io;

/// A pool.
pub struct Pool {
    pub name: String,
}

pub(crate) fn inner() {}

impl Pool {
    pub const fn name(&self) -> &str {
        &self.name
    }

    #[cfg(test)]
    fn for_tests() {
        inner();
    }

    // Why.
    pub async fn read(&self) {}
}

#[cfg(test)]
mod tests {
    fn one() {
        loop {}
    }
}
";
        let expected = Count {
            lines: 11,
            public: 3,
        };
        assert_eq!(count(text), expected);
    }

    #[test]
    fn only_product_code_is_counted() {
        assert_eq!(
            product_crate("crates/desk/src/worker/serve.rs"),
            Some("desk")
        );
        for other in [
            "crates/desk/tests/desk.rs",
            "crates/gcp/src/plan/tests.rs",
            "crates/gcp/src/tests/one.rs",
            "crates/testkit/src/lib.rs",
            "crates/desk/Cargo.toml",
            "xtask/src/main.rs",
        ] {
            assert_eq!(product_crate(other), None, "{other}");
        }
    }
}
