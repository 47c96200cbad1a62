//! Network states and policies out of files: read as nmstatectl reads them, and no more than a host's state can be.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use nmstate::{NetworkPolicy, NetworkState};
use serde::de::DeserializeOwned;

use crate::error::HostError;

/// The state of a host with a thousand interfaces has less than 2 MB.
const LARGEST: u64 = 16 << 20;

/// The text of a file, or of stdin for `-`.
pub fn text(file: &Path) -> Result<String, HostError> {
    let name = file.display().to_string();
    let mut text = String::new();
    if file == Path::new("-") {
        std::io::stdin().take(LARGEST + 1).read_to_string(&mut text)
    } else {
        let open = File::open(file).map_err(HostError::io(&name))?;
        open.take(LARGEST + 1).read_to_string(&mut text)
    }
    .map_err(HostError::io(&name))?;
    if text.len() as u64 > LARGEST {
        return Err(HostError::Input(format!(
            "{name} is larger than {LARGEST} bytes; give a smaller file"
        )));
    }
    // Copied from a web page: no other blank may be there.
    Ok(text.replace('\u{A0}', " "))
}

/// A file in YAML, which JSON is too; an empty one is the default.
pub fn read<T: DeserializeOwned + Default>(file: &Path) -> Result<T, HostError> {
    let text = text(file)?;
    if text.trim().is_empty() {
        return Ok(T::default());
    }
    let read = serde_yaml::from_str(&text);
    read.map_err(|error| HostError::Input(format!("{}: {error}", file.display())))
}

/// A network state; a policy is evaluated on the host's present state.
pub fn state(file: &Path) -> Result<NetworkState, HostError> {
    let text = text(file)?;
    let wrong = match serde_yaml::from_str::<NetworkState>(&text) {
        Ok(state) => return Ok(state),
        Err(wrong) => wrong,
    };
    match serde_yaml::from_str::<NetworkPolicy>(&text) {
        Ok(policy) => Ok(NetworkState::try_from(policy)?),
        Err(as_policy) => {
            let is_policy = text.contains("desired");
            let wrong = if is_policy { as_policy } else { wrong };
            Err(HostError::Input(format!(
                "{} is no valid network state and no valid policy: {wrong}",
                file.display()
            )))
        }
    }
}
