//! The program that evaluates policies with nmstate: `berth-host`, or the node's own nmstatectl.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use serde_json::{Value, json};

use crate::exit::Negative;

/// The program to run by default.
const DEFAULT: &str = "berth-host";

#[derive(Debug)]
pub struct HostProgram(PathBuf);

/// What a policy is evaluated on.
#[derive(Debug)]
pub struct Evaluation<'a> {
    /// `{capture, desiredState}`, without pools.
    pub policy: &'a Value,
    /// The host's current state.
    pub current: &'a str,
    /// The results of its captures; evaluated if there are none.
    pub captured: Option<&'a BTreeMap<String, Value>>,
}

/// The result of an evaluation.
#[derive(Debug)]
pub struct Evaluated {
    pub state: Option<Value>,
    /// The state of each capture.
    pub captured: BTreeMap<String, Value>,
}

impl HostProgram {
    /// The named program; else `berth-host` next to this program; else on the PATH.
    pub fn new(named: Option<PathBuf>) -> HostProgram {
        let beside = std::env::current_exe().ok();
        let beside = beside.map(|this| this.with_file_name(DEFAULT));
        let beside = beside.filter(|file| file.is_file());
        HostProgram(named.or(beside).unwrap_or_else(|| DEFAULT.into()))
    }

    /// Evaluates a policy, as kubernetes-nmstate does: `policy --current F --json --output-captured F [--captured F]
    /// POLICY`.
    pub fn evaluate(&self, evaluation: &Evaluation<'_>) -> anyhow::Result<Evaluated> {
        let dir = tempfile::tempdir().context("make a directory for the policy")?;
        let file = |name: &str| dir.path().join(name);
        let (policy, current, output) = (file("policy"), file("current"), file("captured"));
        std::fs::write(&policy, evaluation.policy.to_string())?;
        std::fs::write(&current, evaluation.current)?;
        let mut command = Command::new(&self.0);
        command
            .args(["policy", "--json", "--current"])
            .arg(&current)
            .arg("--output-captured")
            .arg(&output);
        if let Some(captured) = evaluation.captured {
            let entry = |(name, state): (&String, &Value)| {
                let meta_info = json!({ "time": "", "version": "0" });
                (
                    name.clone(),
                    json!({ "metaInfo": meta_info, "state": state }),
                )
            };
            let entries: serde_json::Map<String, Value> = captured.iter().map(entry).collect();
            std::fs::write(file("given"), Value::Object(entries).to_string())?;
            command.arg("--captured").arg(file("given"));
        }
        let stdout = self.run(command.arg(&policy))?;
        let state = match stdout.trim() {
            "" => None,
            text => Some(serde_json::from_str(text).with_context(|| {
                format!(
                    "{} printed no JSON; is it nmstatectl 2.2.40 or later?",
                    self.0.display()
                )
            })?),
        };
        Ok(Evaluated {
            state,
            captured: captured_states(&output)?,
        })
    }

    fn run(&self, command: &mut Command) -> anyhow::Result<String> {
        let name = self.0.display();
        let output = match command.output() {
            Ok(output) => output,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                bail!(Negative::NotFound(format!(
                    "there is no program {name}; install berth-host beside berth, or name nmstatectl with --host-program"
                )))
            }
            Err(error) => return Err(error).with_context(|| format!("start {name}")),
        };
        if !output.status.success() {
            let message = String::from_utf8_lossy(&output.stderr);
            bail!(Negative::Refused(format!("{name}: {}", message.trim())));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// The states that the program has written; it writes nothing for an empty policy.
fn captured_states(file: &Path) -> anyhow::Result<BTreeMap<String, Value>> {
    let text = match std::fs::read_to_string(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(BTreeMap::new()),
        text => text?,
    };
    let read: BTreeMap<String, Value> = serde_json::from_str(&text)?;
    let state = |(name, entry): (String, Value)| {
        let state = entry.get("state").cloned().unwrap_or(Value::Null);
        (name, state)
    };
    Ok(read.into_iter().map(state).collect())
}
