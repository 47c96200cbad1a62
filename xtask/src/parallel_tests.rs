//! Runs all test programs, two at a time: most of a suite's time is spent waiting for processes it has started.
//!
//! Guarantees: every program that `cargo test` would run is run, whatever fails before it; a failed program's output is
//! printed completely; the longest of the last run start first; none outlives this process, however it ends.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use berth_parts::wait_report;
use parking_lot::Mutex;
use serde_json::Value;

use crate::steps::bare_cargo;

/// Programs at a time.
const LANES: usize = 2;
/// Seconds that the long programs need: for a first run, without recorded times.
const LONG: [(&str, u64); 8] = [
    ("berth/node", 180),
    ("berth-agent/slices", 165),
    ("berth/deploy", 145),
    ("berth-ledger/kube", 75),
    ("berth/takeover", 70),
    ("berth-controller/slices", 60),
    ("berth-model/slices", 60),
    ("berth/vms", 50),
];
/// Seconds assumed for any other program.
const SHORT: u64 = 10;

/// One test program.
#[derive(Clone, Debug)]
struct Program {
    /// `package/target`.
    name: String,
    file: PathBuf,
    /// Where cargo would run it.
    dir: PathBuf,
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
        done: 0,
        failed: Vec::new(),
        took: known,
    });
    std::thread::scope(|scope| {
        for _ in 0..LANES {
            scope.spawn(|| lane(&state, total));
        }
    });
    let state = state.into_inner();
    let text = serde_json::to_string_pretty(&state.took)?;
    std::fs::write(&times, text).with_context(|| format!("write {}", times.display()))?;
    if !state.failed.is_empty() {
        bail!("failed: {}", state.failed.join(", "));
    }
    Ok(())
}

struct State {
    queue: Vec<Program>,
    done: usize,
    failed: Vec<String>,
    took: BTreeMap<String, u64>,
}

#[allow(clippy::print_stderr)]
fn lane(state: &Mutex<State>, total: usize) {
    let locked = || state.lock();
    loop {
        let Some(program) = locked().queue.pop() else {
            return;
        };
        let started = Instant::now();
        let outcome = execute(&program);
        let seconds = started.elapsed().as_secs();
        let mut state = locked();
        state.done += 1;
        let place = format!("[{:>3} of {total}]", state.done);
        let mut waited = 0;
        match outcome {
            Ok(passed) => {
                waited = passed.waited;
                eprintln!(
                    "{place} {seconds:>4} s  {}: {}",
                    program.name, passed.summary
                );
            }
            Err(output) => {
                eprintln!("{place} {seconds:>4} s  {}: FAILED\n{output}", program.name);
                state.failed.push(program.name.clone());
            }
        }
        // Otherwise two that wait for each other's node would start together, and wait, in every later run.
        state
            .took
            .insert(program.name, seconds - waited.min(seconds));
    }
}

/// What a program reports if none of its tests failed.
struct Passed {
    summary: String,
    /// Seconds in which it only waited for another program's node.
    waited: u64,
}

/// Runs a program; its whole output, if one of its tests failed.
fn execute(program: &Program) -> Result<Passed, String> {
    // setpriv has the kernel kill the program when the thread that started it ends, which waits here.
    let output = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "--"])
        .arg(&program.file)
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
    Ok(passed(&said, &complained))
}

fn passed(said: &str, complained: &str) -> Passed {
    let summary = said.lines().rfind(|line| line.starts_with("test result:"));
    let summary = summary
        .unwrap_or("test result: none")
        .trim_start_matches("test result: ");
    Passed {
        summary: summary.split("; ").take(3).collect::<Vec<_>>().join(", "),
        waited: complained.lines().filter_map(wait_report::seconds).sum(),
    }
}

/// Compiles the tests and returns every program to run.
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

/// How long a program will take, as far as known.
fn seconds(known: &BTreeMap<String, u64>, name: &str) -> u64 {
    let long = LONG.iter().find(|(long, _)| *long == name);
    let guess = long.map_or(SHORT, |(_, seconds)| *seconds);
    known.get(name).copied().unwrap_or(guess)
}

/// How long each took in its last run. A hint: an unreadable file counts as none.
fn read(times: &Path) -> BTreeMap<String, u64> {
    let text = std::fs::read_to_string(times).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    /// Set for a copy of this test program that is to be killed: the path of the program that it runs.
    const VICTIM: &str = "BERTH_XTASK_VICTIM";

    fn message(id: &str, target: &str, test: bool) -> Value {
        json!({
            "reason": "compiler-artifact", "package_id": id, "manifest_path": "/src/crates/cli/Cargo.toml",
            "target": { "name": target }, "profile": { "test": test }, "executable": "/target/debug/deps/x-1",
        })
    }

    #[test]
    fn a_test_program_is_distinguished_from_other_artifacts() {
        let id = "path+file:///src/crates/cli#berth@0.1.0";
        let found = program(&message(id, "node", true)).unwrap();
        assert_eq!(found.name, "berth/node");
        assert_eq!(found.dir, Path::new("/src/crates/cli"));
        assert!(program(&message(id, "berth", false)).is_none());
        let id = "path+file:///src/xtask#0.1.0";
        assert_eq!(
            program(&message(id, "xtask", true)).unwrap().name,
            "xtask/xtask"
        );
    }

    #[test]
    fn a_first_run_starts_with_the_long_ones_too() {
        let mut known = BTreeMap::new();
        assert_eq!(seconds(&known, "berth/node"), 180);
        assert_eq!(seconds(&known, "berth-core/berth_core"), SHORT);
        known.insert("berth/node".to_owned(), 90);
        assert_eq!(seconds(&known, "berth/node"), 90);
    }

    fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
        let started = Instant::now();
        loop {
            if let Some(found) = look() {
                return found;
            }
            assert!(
                started.elapsed() < Duration::from_secs(60),
                "not yet: {what}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    #[test]
    fn a_program_does_not_outlive_who_runs_it() {
        if let Some(dir) = std::env::var_os(VICTIM).map(PathBuf::from) {
            let name = "program".to_owned();
            let file = dir.join(&name);
            let _ = execute(&Program { name, file, dir });
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("program");
        fs::write(&program, "#!/bin/sh\necho $$ > pid\nexec sleep 600\n").unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let mut victim = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "parallel_tests::tests::a_program_does_not_outlive_who_runs_it",
            ])
            .env(VICTIM, dir.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let pid = until("the program runs", || {
            let text = fs::read_to_string(dir.path().join("pid")).ok()?;
            Some(text.strip_suffix('\n')?.to_owned())
        });
        victim.kill().unwrap();
        victim.wait().unwrap();
        // A process that is dead and not waited for has no command line.
        until("the program is gone", || {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.is_empty().then_some(())
        });
    }

    #[test]
    fn what_was_waited_for_another_node_is_known() {
        let waited =
            |seconds| wait_report::line(Duration::from_secs(seconds), "process 7 (node-1)");
        let complained = format!("waiting\n{}\n{}\n", waited(40), waited(2));
        let passed = passed("test result: ok. 1 passed; 0 failed", &complained);
        assert_eq!(passed.waited, 42);
        assert_eq!(passed.summary, "ok. 1 passed, 0 failed");
    }
}
