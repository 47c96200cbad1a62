//! All test programs, two at a time: most of a suite's time is spent waiting for what it has started.
//!
//! Promises: every program that `cargo test` would run is run, whatever fails before it; a program's output is printed
//! whole when it fails; the longest of the last run begin first. Programs that start a whole node do so one at a time.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::steps::bare_cargo;

/// Programs at a time.
const LANES: usize = 2;
/// What the long programs need, in seconds: for a first run, of which no other times are known.
const LONG: [(&str, u64); 8] = [
    ("berth/node", 180),
    ("berth-agent/slices", 165),
    ("berth/deploy", 95),
    ("berth-ledger/kube", 75),
    ("berth/takeover", 70),
    ("berth-controller/slices", 60),
    ("berth-model/slices", 60),
    ("berth/vms", 50),
];
/// What any other is taken to need.
const SHORT: u64 = 10;
/// Programs that start kubelet and containerd.
const NODES: [&str; 4] = [
    "berth/node",
    "berth/takeover",
    "berth-testkit/node",
    "berth-testkit/leftovers",
];

/// One test program.
#[derive(Clone, Debug)]
struct Program {
    /// `package/target`.
    name: String,
    file: PathBuf,
    /// Where cargo would run it.
    dir: PathBuf,
}

impl Program {
    fn is_node(&self) -> bool {
        NODES.contains(&self.name.as_str())
    }
}

/// Compiles and runs every test program of the workspace; fails after the last if one has failed.
#[allow(clippy::print_stderr)]
pub fn run() -> Result<()> {
    let programs = compile()?;
    let times = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/test-times.json");
    let known = read(&times);
    let mut queue = programs;
    // Taken from the end.
    queue.sort_by_key(|program| seconds(&known, &program.name));
    let total = queue.len();
    let state = Mutex::new(State {
        queue,
        node: false,
        done: 0,
        failed: Vec::new(),
        took: known,
    });
    std::thread::scope(|scope| {
        for _ in 0..LANES {
            scope.spawn(|| lane(&state, total));
        }
    });
    let state = state.into_inner().unwrap_or_else(PoisonError::into_inner);
    let text = serde_json::to_string_pretty(&state.took)?;
    std::fs::write(&times, text).with_context(|| format!("write {}", times.display()))?;
    if !state.failed.is_empty() {
        bail!("failed: {}", state.failed.join(", "));
    }
    Ok(())
}

struct State {
    queue: Vec<Program>,
    /// Whether a whole node is up.
    node: bool,
    done: usize,
    failed: Vec<String>,
    took: BTreeMap<String, u64>,
}

impl State {
    fn next(&mut self) -> Option<Program> {
        let fits = |program: &Program| !(self.node && program.is_node());
        let at = self.queue.iter().rposition(fits)?;
        let program = self.queue.remove(at);
        self.node |= program.is_node();
        Some(program)
    }
}

#[allow(clippy::print_stderr)]
fn lane(state: &Mutex<State>, total: usize) {
    let locked = || state.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let next = {
            let mut state = locked();
            if state.queue.is_empty() {
                return;
            }
            state.next()
        };
        let Some(program) = next else {
            // Only nodes are left, and one is up.
            std::thread::sleep(Duration::from_millis(500));
            continue;
        };
        let began = Instant::now();
        let outcome = execute(&program);
        let seconds = began.elapsed().as_secs();
        let mut state = locked();
        if program.is_node() {
            state.node = false;
        }
        state.done += 1;
        let place = format!("[{:>3} of {total}]", state.done);
        match outcome {
            Ok(summary) => eprintln!("{place} {seconds:>4} s  {}: {summary}", program.name),
            Err(output) => {
                eprintln!("{place} {seconds:>4} s  {}: FAILED\n{output}", program.name);
                state.failed.push(program.name.clone());
            }
        }
        state.took.insert(program.name, seconds);
    }
}

/// What the program says of its tests; all that it said, if one failed.
fn execute(program: &Program) -> Result<String, String> {
    let output = Command::new(&program.file)
        .current_dir(&program.dir)
        .env("CARGO_MANIFEST_DIR", &program.dir)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("can't start {}: {error}", program.file.display()))?;
    let (said, complained) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    if !output.status.success() {
        return Err(format!("{said}\n{complained}\n{}", output.status));
    }
    let summary = said.lines().rfind(|line| line.starts_with("test result:"));
    let summary = summary
        .unwrap_or("test result: none")
        .trim_start_matches("test result: ");
    Ok(summary.split("; ").take(3).collect::<Vec<_>>().join(", "))
}

/// Compiles the tests; every program that there is to run.
fn compile() -> Result<Vec<Program>> {
    let format = "--message-format=json-render-diagnostics";
    let compiled = bare_cargo()
        .args(["test", "--workspace", "--no-run", format])
        .stderr(Stdio::inherit())
        .output()
        .context("start cargo")?;
    if !compiled.status.success() {
        bail!("the tests do not compile");
    }
    let text = String::from_utf8_lossy(&compiled.stdout);
    let messages = text
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    let programs: Vec<Program> = messages.filter_map(|message| program(&message)).collect();
    if programs.is_empty() {
        bail!("cargo names no test program: was its output's form changed?");
    }
    Ok(programs)
}

fn program(message: &Value) -> Option<Program> {
    let tests = message["profile"]["test"].as_bool()?;
    let file = message["executable"].as_str().filter(|_| tests)?;
    let dir = Path::new(message["manifest_path"].as_str()?).parent()?;
    let package = message["package_id"].as_str()?;
    // `path+file:///…/crates/core#berth-core@0.1.0`, or `…/xtask#0.1.0` where the folder has the package's name.
    let (path, tail) = package.rsplit_once('#')?;
    let name = match tail.split_once('@') {
        Some((name, _)) => name,
        None => path.rsplit('/').next()?,
    };
    Some(Program {
        name: format!("{name}/{}", message["target"]["name"].as_str()?),
        file: file.into(),
        dir: dir.to_owned(),
    })
}

/// How long a program will take, as far as can be known.
fn seconds(known: &BTreeMap<String, u64>, name: &str) -> u64 {
    let long = LONG.iter().find(|(long, _)| *long == name);
    let guess = long.map_or(SHORT, |(_, seconds)| *seconds);
    known.get(name).copied().unwrap_or(guess)
}

/// How long each took when it was last run. A hint: what can't be read is as if there were none.
fn read(times: &Path) -> BTreeMap<String, u64> {
    let text = std::fs::read_to_string(times).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn message(id: &str, target: &str, test: bool) -> Value {
        json!({
            "reason": "compiler-artifact", "package_id": id, "manifest_path": "/src/crates/cli/Cargo.toml",
            "target": { "name": target }, "profile": { "test": test }, "executable": "/target/debug/deps/x-1",
        })
    }

    #[test]
    fn a_test_program_is_told_from_what_else_is_built() {
        let id = "path+file:///src/crates/cli#berth@0.1.0";
        let found = program(&message(id, "node", true)).unwrap();
        assert_eq!(found.name, "berth/node");
        assert_eq!(found.dir, Path::new("/src/crates/cli"));
        assert!(found.is_node());
        assert!(program(&message(id, "berth", false)).is_none());
        let id = "path+file:///src/xtask#0.1.0";
        assert_eq!(
            program(&message(id, "xtask", true)).unwrap().name,
            "xtask/xtask"
        );
    }

    #[test]
    fn a_first_run_begins_with_the_long_ones_too() {
        let mut known = BTreeMap::new();
        assert_eq!(seconds(&known, "berth/node"), 180);
        assert_eq!(seconds(&known, "berth-core/berth_core"), SHORT);
        known.insert("berth/node".to_owned(), 90);
        assert_eq!(seconds(&known, "berth/node"), 90);
    }

    #[test]
    fn nodes_start_one_at_a_time_and_the_longest_first() {
        let one = |name: &str| Program {
            name: name.to_owned(),
            file: PathBuf::new(),
            dir: PathBuf::new(),
        };
        let mut state = State {
            queue: ["berth-core/a", "berth/takeover", "berth/node"]
                .map(one)
                .into(),
            node: false,
            done: 0,
            failed: Vec::new(),
            took: BTreeMap::new(),
        };
        assert_eq!(state.next().unwrap().name, "berth/node");
        assert_eq!(state.next().unwrap().name, "berth-core/a");
        assert!(state.next().is_none(), "a node is up");
        state.node = false;
        assert_eq!(state.next().unwrap().name, "berth/takeover");
    }
}
