//! `berth-host policy`: the network state of a policy, with its captures evaluated on the present or a given state.

use std::collections::HashMap;
use std::path::PathBuf;

use clap::Args;
use jiff::Timestamp;
use nmstate::{NetworkPolicy, NetworkState};
use serde::{Deserialize, Serialize};

use crate::error::HostError;
use crate::{input, show};

#[derive(Debug, Args)]
pub struct Policy {
    /// The policy.
    #[arg(value_name = "POLICY_FILE")]
    policy: PathBuf,
    /// Read the current state from a file.
    #[arg(long, short, value_name = "FILE")]
    current: Option<PathBuf>,
    /// Take captured states from a file instead of evaluating captures.
    #[arg(long, short = 'a', value_name = "FILE")]
    captured: Option<PathBuf>,
    /// Write the captured states to a file.
    #[arg(long, short, value_name = "FILE")]
    output_captured: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Captured {
    #[serde(rename = "metaInfo")]
    meta_info: MetaInfo,
    state: NetworkState,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct MetaInfo {
    time: String,
    version: String,
}

impl Policy {
    pub fn run(&self) -> Result<String, HostError> {
        let policy: NetworkPolicy = input::read(&self.policy)?;
        if policy.is_empty() {
            return Ok(String::new());
        }
        let captured = self.captured(&policy)?;
        if let Some(file) = &self.output_captured {
            self.write(file, &captured)?;
        }
        let state = policy.desired.fill_with_captured_data(&captured)?;
        match state.is_empty() {
            true => Ok(String::new()),
            false => show::print(&state, self.json),
        }
    }

    fn captured(&self, policy: &NetworkPolicy) -> Result<HashMap<String, NetworkState>, HostError> {
        if let Some(file) = &self.captured {
            let read: HashMap<String, Captured> = input::read(file)?;
            let states = read.into_iter().map(|(name, one)| (name, one.state));
            return Ok(states.collect());
        }
        let current = match &self.current {
            Some(file) => input::read(file)?,
            None => {
                let mut current = NetworkState::new();
                current.retrieve()?;
                current
            }
        };
        Ok(policy.capture.execute(&current)?)
    }

    fn write(
        &self,
        file: &PathBuf,
        captured: &HashMap<String, NetworkState>,
    ) -> Result<(), HostError> {
        let time = Timestamp::now().to_string();
        let entry = |(name, state): (&String, &NetworkState)| {
            let meta_info = MetaInfo {
                time: time.clone(),
                version: "0".to_owned(),
            };
            let state = state.clone();
            (name.clone(), Captured { meta_info, state })
        };
        let entries: HashMap<String, Captured> = captured.iter().map(entry).collect();
        let text = show::print(&entries, self.json)?;
        std::fs::write(file, text).map_err(HostError::io(file.display().to_string()))
    }
}
