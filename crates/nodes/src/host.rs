//! The program that shows and changes this host's network: `berth-host`, or the node's own `nmstatectl`.
//!
//! Guarantees: a change is made under a checkpoint that undoes itself unless it is committed in time; a program that hangs is killed and its
//! change rolled back; what it says of a failure is passed on word for word, shortened if it is long.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::time::Duration;

use berth_core::Address;
use serde_json::{Value, json};
use tempfile::NamedTempFile;
use thiserror::Error;
use tokio::process::Command;

use crate::capture::Rendered;

/// The longest message of the program that is passed on.
const LONGEST: usize = 2_000;
/// The longest time, after its limit, for a program to undo a change and say why.
const UNDO: Duration = Duration::from_secs(30);

#[derive(Debug, Error)]
pub enum HostError {
    #[error(
        "host program {program} can't be run: {why}; install berth-host or name another with --host-program"
    )]
    Missing { program: String, why: String },
    #[error(
        "host program {program} does not know `{command}`: {message}; berth-host, or nmstatectl 2.2.62 or later is needed"
    )]
    TooOld {
        program: String,
        command: String,
        message: String,
    },
    #[error("{command}: {message}")]
    Failed { command: String, message: String },
    #[error("{command} gave no result within {} s", .limit.as_secs())]
    Hung { command: String, limit: Duration },
    #[error("{command} printed no JSON: {why}")]
    Output { command: String, why: String },
    #[error("a file for the host program can't be written: {0}")]
    File(#[from] std::io::Error),
}

/// The program and how it is called.
#[derive(Clone, Debug)]
pub struct Host {
    pub program: PathBuf,
    /// Without NetworkManager: `--kernel`.
    pub kernel: bool,
    /// How long one call may take; the checkpoint of an apply undoes itself after it.
    pub limit: Duration,
}

/// A state without captures, and what the captures were.
#[derive(Clone, Debug, PartialEq)]
pub struct Resolved {
    pub desired_state: Value,
    /// The results of nmstate's own captures.
    pub captured: BTreeMap<String, Value>,
}

impl Host {
    pub fn new(program: impl Into<PathBuf>) -> Host {
        Host {
            program: program.into(),
            kernel: false,
            limit: Duration::from_secs(120),
        }
    }

    /// The host's current state.
    pub async fn show(&self) -> Result<Value, HostError> {
        let mut arguments = vec!["show", "--json"];
        arguments.extend(self.kernel.then_some("--kernel"));
        let output = self.run(&arguments).await?;
        json_of("show", &output.stdout)
    }

    /// Evaluates nmstate's own captures and templates; a policy without any is as it stands.
    pub async fn resolve(&self, rendered: &Rendered) -> Result<Resolved, HostError> {
        if rendered.capture.is_empty() && !has_template(&rendered.desired_state) {
            return Ok(Resolved {
                desired_state: rendered.desired_state.clone(),
                captured: BTreeMap::new(),
            });
        }
        let current = file(&self.show().await?)?;
        let policy = json!({ "capture": rendered.capture, "desiredState": rendered.desired_state });
        let policy = file(&policy)?;
        let captured = NamedTempFile::new()?;
        let path = |file: &NamedTempFile| file.path().display().to_string();
        let (current, policy, out) = (path(&current), path(&policy), path(&captured));
        let arguments = ["policy", "--current", &current, "--json"];
        let arguments = [&arguments[..], &["--output-captured", &out, &policy]].concat();
        let output = self.run(&arguments).await?;
        let text = tokio::fs::read(captured.path()).await?;
        let captured = match text.is_empty() {
            true => BTreeMap::new(),
            false => serde_json::from_slice(&text).unwrap_or_default(),
        };
        Ok(Resolved {
            desired_state: json_of("policy", &output.stdout)?,
            captured,
        })
    }

    /// Applies a state, checks it with `probe`, and commits it; on any failure it is rolled back.
    pub async fn apply(
        &self,
        desired: &Value,
        probe: impl Future<Output = Result<(), String>>,
    ) -> Result<(), HostError> {
        let state = file(desired)?;
        let path = state.path().display().to_string();
        let limit = self.limit.as_secs().max(1).to_string();
        let mut arguments = vec!["apply", "--no-commit", "--timeout", &limit];
        arguments.extend(self.kernel.then_some("--kernel"));
        arguments.push(&path);
        if let Err(error) = self.run_within(&arguments, self.apply_limit()).await {
            self.roll_back().await;
            return Err(error);
        }
        let probed = tokio::time::timeout(self.limit / 2, probe).await;
        let probed = probed.unwrap_or_else(|_| Err("the probe gave no result in time".to_owned()));
        if let Err(message) = probed {
            self.roll_back().await;
            return Err(HostError::Failed {
                command: "probe".to_owned(),
                message: format!("{message}; the change is rolled back"),
            });
        }
        self.run(&["commit"]).await.map(drop)
    }

    /// The program ends an apply that hangs by itself, within its timeout (twice that with NetworkManager, whose checkpoint nmstate
    /// extends), undoes it, and says so.
    fn apply_limit(&self) -> Duration {
        let own = if self.kernel { 1 } else { 2 };
        self.limit * own + self.limit.min(UNDO)
    }

    async fn roll_back(&self) {
        if let Err(error) = self.run(&["rollback"]).await {
            tracing::warn!(%error, "the rollback failed; the checkpoint undoes the change when its time is over");
        }
    }

    async fn run(&self, arguments: &[&str]) -> Result<Output, HostError> {
        self.run_within(arguments, self.limit).await
    }

    async fn run_within(&self, arguments: &[&str], limit: Duration) -> Result<Output, HostError> {
        let program = || self.program.display().to_string();
        let command = || arguments.first().copied().unwrap_or_default().to_owned();
        let mut child = Command::new(&self.program);
        child
            .args(arguments)
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let output = tokio::time::timeout(limit, child.output()).await;
        let output = output
            .map_err(|_| HostError::Hung {
                command: command(),
                limit,
            })?
            .map_err(|error| HostError::Missing {
                program: program(),
                why: error.to_string(),
            })?;
        if output.status.success() {
            return Ok(output);
        }
        let text = String::from_utf8_lossy(&output.stderr);
        let message: String = text.trim().chars().take(LONGEST).collect();
        let unknown = [
            "unexpected argument",
            "unrecognized subcommand",
            "wasn't expected",
        ];
        if unknown.iter().any(|sign| message.contains(sign)) {
            return Err(HostError::TooOld {
                program: program(),
                command: arguments.join(" "),
                message,
            });
        }
        let message = match message.is_empty() {
            true => format!("it ended with {}", output.status),
            false => message,
        };
        Err(HostError::Failed {
            command: command(),
            message,
        })
    }
}

fn file(value: &Value) -> Result<NamedTempFile, HostError> {
    let mut file = tempfile::Builder::new().suffix(".json").tempfile()?;
    file.write_all(value.to_string().as_bytes())?;
    file.flush()?;
    Ok(file)
}

fn json_of(command: &str, bytes: &[u8]) -> Result<Value, HostError> {
    serde_json::from_slice(bytes).map_err(|error| HostError::Output {
        command: command.to_owned(),
        why: error.to_string(),
    })
}

fn has_template(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains("{{"),
        Value::Array(list) => list.iter().any(has_template),
        Value::Object(map) => map.values().any(has_template),
        _ => false,
    }
}

/// The addresses of each interface in a state: (interface, address).
pub fn addresses(state: &Value) -> Vec<(String, Address)> {
    let interfaces = state.get("interfaces").and_then(Value::as_array);
    let mut found = Vec::new();
    for interface in interfaces.into_iter().flatten() {
        let name = interface["name"].as_str().unwrap_or_default();
        for family in ["ipv4", "ipv6"] {
            let list = interface.pointer(&format!("/{family}/address"));
            for entry in list.and_then(Value::as_array).into_iter().flatten() {
                let text = entry["ip"].as_str().unwrap_or_default();
                if let Ok(address) = text.parse() {
                    found.push((name.to_owned(), address));
                }
            }
        }
    }
    found
}

/// The hardware addresses of a state's interfaces, in lower case.
pub fn macs(state: &Value) -> BTreeSet<String> {
    let interfaces = state.get("interfaces").and_then(Value::as_array);
    let macs = interfaces.into_iter().flatten();
    let macs = macs.filter_map(|interface| interface["mac-address"].as_str());
    macs.map(str::to_ascii_lowercase).collect()
}

/// The state that takes these addresses off the interfaces which have them; none if no interface does.
pub fn without(current: &Value, gone: &[Address]) -> Option<Value> {
    let listed = current.get("interfaces").and_then(Value::as_array)?;
    let mut interfaces = Vec::new();
    for interface in listed {
        let mut next =
            json!({ "name": interface["name"], "type": interface["type"], "state": "up" });
        let mut changed = false;
        for family in ["ipv4", "ipv6"] {
            let entries = interface.pointer(&format!("/{family}/address"));
            let entries = entries.and_then(Value::as_array);
            let is_gone = |entry: &&Value| {
                let text = entry["ip"].as_str().unwrap_or_default();
                text.parse().is_ok_and(|address| gone.contains(&address))
            };
            let (away, left): (Vec<&Value>, Vec<&Value>) =
                entries.into_iter().flatten().partition(is_gone);
            if away.is_empty() {
                continue;
            }
            changed = true;
            next[family] = match left.is_empty() {
                true => json!({ "enabled": false }),
                false => json!({ "enabled": true, "address": left }),
            };
        }
        if changed {
            interfaces.push(next);
        }
    }
    (!interfaces.is_empty()).then(|| json!({ "interfaces": interfaces }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_off_and_the_others_stay() {
        let current = json!({ "interfaces": [
            { "name": "eth0", "type": "ethernet", "ipv4": { "address": [{ "ip": "10.0.0.1", "prefix-length": 24 }] } },
            { "name": "eth1", "type": "ethernet", "ipv4": { "address": [{ "ip": "10.0.0.2", "prefix-length": 24 }, { "ip": "10.0.0.3", "prefix-length": 24 }] },
              "ipv6": { "address": [{ "ip": "fe80::1", "prefix-length": 64 }] } },
        ] });
        let gone = ["10.0.0.1".parse().unwrap(), "10.0.0.3".parse().unwrap()];
        let state = without(&current, &gone).unwrap();
        assert_eq!(state["interfaces"][0]["ipv4"], json!({ "enabled": false }));
        assert_eq!(
            state["interfaces"][1]["ipv4"]["address"],
            json!([{ "ip": "10.0.0.2", "prefix-length": 24 }])
        );
        assert_eq!(state["interfaces"][1].get("ipv6"), None);
        assert_eq!(without(&current, &["10.0.0.9".parse().unwrap()]), None);
        assert_eq!(addresses(&current).len(), 4);
    }

    #[tokio::test]
    async fn a_program_that_is_missing_is_named() {
        let host = Host::new("/no/such/berth-host");
        let error = host.show().await.unwrap_err().to_string();
        assert!(error.contains("/no/such/berth-host") && error.contains("--host-program"));
    }
}
