//! Fuzzing: cargo-fuzz with the nightly toolchain if available, else the same targets with a simple mutator.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Result, bail};
use berth_parts::Tool;
use clap::Args;

use crate::parts;
use crate::steps::{self, bare_cargo, cargo, step};

/// How long each target runs in the long form of the tests.
pub const MINUTE: Duration = Duration::from_secs(60);

/// The targets, as crates/fuzz has them; a test there compares the two lists.
const TARGETS: [&str; 7] = [
    "cni",
    "configmaps",
    "definitions",
    "desk",
    "heads",
    "pools",
    "ranges",
];

#[derive(Args)]
pub struct Fuzz {
    /// One target; without it, all of them and the black-box fuzzer.
    target: Option<String>,
    /// Seconds per target.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
}

impl Fuzz {
    pub fn run(&self) -> Result<()> {
        let time = Duration::from_secs(self.seconds);
        match &self.target {
            Some(target) if TARGETS.contains(&target.as_str()) => {
                let engine = Engine::find()?;
                engine.run(target, time)
            }
            Some(target) => bail!("{target}: there are the targets {}", TARGETS.join(", ")),
            None => {
                all(time)?;
                step("black-box fuzzer", || black_box(time))
            }
        }
    }
}

/// Every target for `time`.
pub fn all(time: Duration) -> Result<()> {
    let engine = step("parts: the fuzzer", Engine::find)?;
    for target in TARGETS {
        step(&format!("fuzz: {target}"), || engine.run(target, time))?;
    }
    Ok(())
}

/// The built plugin and agent, called as a runtime calls them.
pub fn black_box(time: Duration) -> Result<()> {
    steps::run(
        bare_cargo()
            .args([
                "test",
                "--package",
                "berth",
                "--test",
                "black_box",
                "--",
                "--nocapture",
            ])
            .env("BERTH_FUZZ_SECONDS", time.as_secs().to_string()),
    )
}

enum Engine {
    LibFuzzer(PathBuf),
    Simple,
}

impl Engine {
    #[allow(clippy::print_stderr)]
    fn find() -> Result<Engine> {
        if nightly() {
            return parts::tool(Tool::Fuzz).map(Engine::LibFuzzer);
        }
        eprintln!(
            "    no nightly toolchain: the targets run with a simple mutator (rustup toolchain install nightly)"
        );
        Ok(Engine::Simple)
    }

    fn run(&self, target: &str, time: Duration) -> Result<()> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("..")
            .canonicalize()?;
        let seeds = root.join("fuzz/seeds").join(target);
        match self {
            Engine::LibFuzzer(program) => {
                let corpus = root.join("target/fuzz-corpus").join(target);
                fs::create_dir_all(&corpus)?;
                let mut command = Command::new(program);
                // Berth has no unsafe code: an address sanitizer would find nothing and cost half the speed.
                command
                    .args(["fuzz", "run", "--sanitizer", "none", "--fuzz-dir"])
                    .arg(root.join("fuzz"))
                    .args(["--target-dir"])
                    .arg(root.join("target/fuzz"))
                    .arg(target)
                    .arg(&corpus)
                    .arg(&seeds)
                    // A little more than the longest accepted input, and less memory than an amplification would need:
                    // 128 KiB once became more than a gigabyte. The corpus itself is in memory too.
                    .args(["--", "-max_len=140000", "-timeout=10", "-rss_limit_mb=512"])
                    .arg(format!("-max_total_time={}", time.as_secs()))
                    .current_dir(&root)
                    .env("RUSTUP_TOOLCHAIN", "nightly");
                steps::run(&mut command)
            }
            Engine::Simple => {
                let seconds = time.as_secs().to_string();
                cargo(&[
                    "run",
                    "--package",
                    "berth-fuzz",
                    "--",
                    target,
                    "--seconds",
                    &seconds,
                ])
            }
        }
    }
}

fn nightly() -> bool {
    let listed = Command::new("rustup")
        .args(["toolchain", "list"])
        .stdin(Stdio::null())
        .output();
    listed.is_ok_and(|listed| {
        let text = String::from_utf8_lossy(&listed.stdout);
        text.lines().any(|line| line.starts_with("nightly"))
    })
}
