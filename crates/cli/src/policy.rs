//! `berth policy gen`: the state that a policy produces, offline.
//!
//! Arguments and output are those of nmpolicyctl. Results of pool captures come from the captured states, so nothing is
//! allocated; nmstate evaluates all other captures and the state, as on a node.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use berth_core::Address;
use berth_nodes::capture::{Granted, PoolPolicy};
use clap::{Args, Parser};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::documents;
use crate::exit::Negative;
use crate::host_program::{Evaluated, Evaluation, HostProgram};

const POLICY: &str = "a policy with capture and desiredState, or a NodeNetworkConfigurationPolicy";
const CAPTURED: &str = "captured states, each as NAME: {state: {...}}";

/// Parsed separately from the other commands: nmpolicyctl's `-o` is a file, Berth's own is a format.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct PolicyArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

#[derive(Debug, Parser)]
#[command(name = "berth policy", arg_required_else_help = true)]
enum Policy {
    /// Generate the state of a policy.
    Gen(Gen),
}

#[derive(Debug, Args)]
struct Gen {
    /// The policy: capture and desiredState, or a NodeNetworkConfigurationPolicy.
    policy: PathBuf,
    /// The current state [default: stdin].
    #[arg(long, short = 's', value_name = "FILE")]
    current_state: Option<PathBuf>,
    /// Known captured states: those of pools, and either all or none of the other captures.
    #[arg(long, short = 'i', value_name = "FILE")]
    captured_states_input: Option<PathBuf>,
    /// Where to write the captured states.
    #[arg(long, short = 'o', value_name = "FILE")]
    captured_states_output: Option<PathBuf>,
    /// The program that evaluates with nmstate: berth-host, or nmstatectl [default: berth-host].
    #[arg(long, value_name = "PROGRAM", env = "BERTH_HOST_PROGRAM")]
    host_program: Option<PathBuf>,
}

impl PolicyArgs {
    pub fn run(self) -> anyhow::Result<()> {
        let name = OsString::from("berth policy");
        let Policy::Gen(generate) = Policy::parse_from(std::iter::once(name).chain(self.arguments));
        generate.run()
    }
}

impl Gen {
    fn run(self) -> anyhow::Result<()> {
        let spec = spec(&self.policy)?;
        let policy = PoolPolicy::read(&spec).map_err(|error| usage(&self.policy, error))?;
        let stdin = PathBuf::from("-");
        let current = self.current_state.as_ref().unwrap_or(&stdin);
        let current = documents::text(current)?;
        let given = match &self.captured_states_input {
            Some(file) => captured(file)?,
            None => BTreeMap::new(),
        };
        let granted = granted(&policy, &given)?;
        let rendered = policy
            .render(&granted)
            .map_err(|error| usage(&self.policy, error))?;
        let known = known(&rendered.capture, &given)?;
        let bare = json!({ "capture": rendered.capture, "desiredState": rendered.desired_state });
        let evaluated = HostProgram::new(self.host_program).evaluate(&Evaluation {
            policy: &bare,
            current: &current,
            captured: known.as_ref(),
        })?;
        if let Some(file) = &self.captured_states_output {
            write_captured(file, &evaluated, &rendered.captured)?;
        }
        print(evaluated.state.as_ref())
    }
}

fn usage(file: &Path, error: impl std::fmt::Display) -> Negative {
    Negative::Usage(format!("{}: {error}", file.display()))
}

/// `{capture, desiredState}` of a file.
fn spec(file: &Path) -> anyhow::Result<Value> {
    let mut all = documents::all(file, POLICY)?;
    let (Some(one), true) = (all.pop(), all.is_empty()) else {
        bail!(usage(file, format!("give one document: {POLICY}")));
    };
    let spec = one.get("spec").unwrap_or(&one);
    let known = ["capture", "desiredState", "desired"];
    if !known.iter().any(|field| spec.get(field).is_some()) {
        bail!(usage(
            file,
            format!("it has no desiredState; give {POLICY}")
        ));
    }
    let mut spec = spec.clone();
    // nmstate's own name of the field.
    if let Some(desired) = spec
        .as_object_mut()
        .and_then(|map| map.shift_remove("desired"))
    {
        spec["desiredState"] = desired;
    }
    Ok(spec)
}

/// The states of a file of captured states; Go writes `State`, nmstate `state`. A missing file means no states, as with
/// nmpolicyctl.
fn captured(file: &Path) -> anyhow::Result<BTreeMap<String, Value>> {
    if !file.exists() {
        return Ok(BTreeMap::new());
    }
    let mut states = BTreeMap::new();
    for document in documents::all(file, CAPTURED)? {
        let Value::Object(map) = document else {
            bail!(usage(file, format!("it is not a map; give {CAPTURED}")));
        };
        for (name, entry) in map {
            let state = ["state", "State"].iter().find_map(|key| entry.get(key));
            let state = state.unwrap_or(&entry).clone();
            states.insert(name, state);
        }
    }
    Ok(states)
}

/// The results of the policy's pool captures.
fn granted(
    policy: &PoolPolicy,
    given: &BTreeMap<String, Value>,
) -> anyhow::Result<BTreeMap<String, Granted>> {
    let mut all = BTreeMap::new();
    for (name, pool) in policy.wanted() {
        let Some(state) = given.get(name) else {
            bail!(Negative::Usage(format!(
                "capture {name}: there is no address of pool {pool} for it; add `{name}: {{state: {{ip: IP, prefix-length: N}}}}` to the captured states (-i)"
            )));
        };
        all.insert(name.to_owned(), grant(name, pool, state)?);
    }
    Ok(all)
}

fn grant(name: &str, pool: &str, state: &Value) -> anyhow::Result<Granted> {
    let wrong = |field: &str, value: &Value, right: &str| {
        Negative::Usage(format!(
            "captured state {name}.{field}: `{value}` can't be read; give {right}"
        ))
    };
    let address = |field: &str, value: &Value| {
        let text = value.as_str().and_then(|text| text.parse::<Address>().ok());
        text.ok_or_else(|| wrong(field, value, "an address such as 10.10.10.8"))
    };
    let field = |field: &str| state.get(field).unwrap_or(&Value::Null);
    let ip = address("ip", field("ip"))?;
    let most = ip.family().bits();
    let length = field("prefix-length").as_u64();
    let length = length.and_then(|length| u8::try_from(length).ok());
    let length = length.filter(|length| *length <= most);
    let length = length.ok_or_else(|| {
        let right = format!("a number from 0 to {most}");
        wrong("prefix-length", field("prefix-length"), &right)
    })?;
    let gateway = state.get("gateway").map(|value| address("gateway", value));
    let dns = state.get("dns").and_then(Value::as_array);
    let dns = dns.into_iter().flatten().map(|value| address("dns", value));
    Ok(Granted {
        pool: pool.to_owned(),
        address: ip,
        prefix_length: length,
        gateway: gateway.transpose()?,
        dns: dns.collect::<Result<_, _>>()?,
    })
}

/// The known states of ordinary captures: all of them, or none.
fn known(
    captures: &BTreeMap<String, String>,
    given: &BTreeMap<String, Value>,
) -> anyhow::Result<Option<BTreeMap<String, Value>>> {
    let (have, lack): (Vec<&String>, Vec<&String>) =
        captures.keys().partition(|name| given.contains_key(*name));
    match (have.as_slice(), lack.as_slice()) {
        ([], _) => Ok(None),
        (_, []) => {
            let states = have.iter().filter_map(|name| given.get_key_value(*name));
            Ok(Some(
                states
                    .map(|(name, state)| (name.clone(), state.clone()))
                    .collect(),
            ))
        }
        ([have, ..], [lack, ..]) => bail!(Negative::Usage(format!(
            "the captured states have {have} and lack {lack}; nmstate takes those of all captures or evaluates all: add {lack}, or leave {have} out"
        ))),
    }
}

/// In nmpolicyctl's format.
fn write_captured(
    file: &Path,
    evaluated: &Evaluated,
    pools: &BTreeMap<String, Value>,
) -> anyhow::Result<()> {
    let time = Timestamp::now().to_string();
    let entry = |(name, state): (&String, &Value)| {
        let meta_info = json!({ "TimeStamp": time, "Version": "0" });
        (
            name.clone(),
            json!({ "MetaInfo": meta_info, "State": state }),
        )
    };
    let all: BTreeMap<&String, &Value> = evaluated.captured.iter().chain(pools).collect();
    let entries: Map<String, Value> = all.into_iter().map(entry).collect();
    let text = match entries.is_empty() {
        true => String::new(),
        false => serde_saphyr::to_string(&entries)?,
    };
    std::fs::write(file, text).with_context(|| format!("write {}", file.display()))
}

/// Only the state: the next command may be `nmstatectl apply -`.
fn print(state: Option<&Value>) -> anyhow::Result<()> {
    let Some(state) = state else {
        return Ok(());
    };
    let text = serde_saphyr::to_string(state)?;
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}
