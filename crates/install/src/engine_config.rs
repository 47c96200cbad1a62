//! The file beside the engine that names the node's configuration, and its agent's database and socket.
//!
//! The directories of a node may be any: an engine that is run without an agent finds by this file the node's flat file, with
//! it the cluster, and the database that the agent allocates slices from (I1). The plugin finds the agent's socket by it. A
//! node that has it was installed for a cluster.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::error::InstallError;

pub(crate) const NAME: &str = "berth-full.json";

/// Where an installation has its configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineConfig {
    /// The file that says so.
    pub path: PathBuf,
    /// The directory of flat file, kubeconfig and node name.
    pub configuration: PathBuf,
    /// The node's database; none where an older installer did not write it.
    pub database: Option<PathBuf>,
    /// The agent's socket; none where an older installer did not write it.
    pub socket: Option<PathBuf>,
}

#[derive(Serialize, Deserialize)]
struct Text {
    configuration_path: PathBuf,
    #[serde(default)]
    database: Option<PathBuf>,
    #[serde(default)]
    socket: Option<PathBuf>,
}

impl EngineConfig {
    /// What the installation of the program `engine` left; none where it was not installed, or for no cluster.
    pub fn beside(engine: &Path) -> Result<Option<EngineConfig>, InstallError> {
        let path = engine.with_file_name(NAME);
        let unreadable = |what: String| InstallError::EngineConfig {
            path: path.clone(),
            what,
        };
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(unreadable(error.kind().to_string())),
        };
        let text: Text =
            serde_json::from_slice(&text).map_err(|error| unreadable(error.to_string()))?;
        Ok(Some(EngineConfig {
            configuration: text.configuration_path,
            database: text.database,
            socket: text.socket,
            path,
        }))
    }
}

/// `own` is the directory of the configuration, as the host sees it; so are `database` and `socket`.
pub(crate) fn text(own: &Path, database: &Path, socket: &Path) -> String {
    let text = json!({ "configuration_path": own, "database": database, "socket": socket });
    format!("{text:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back_and_what_is_not_there_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let engine = dir.path().join("berth-full");
        assert_eq!(EngineConfig::beside(&engine).unwrap(), None);
        let own = Path::new("/srv/networks/whereabouts.d");
        let database = Path::new("/srv/berth/berth.db");
        let socket = Path::new("/srv/berth/berth.sock");
        fs::write(dir.path().join(NAME), text(own, database, socket)).unwrap();
        let found = EngineConfig::beside(&engine).unwrap().unwrap();
        assert_eq!(found.configuration, own);
        assert_eq!(found.database.as_deref(), Some(database));
        assert_eq!(found.socket.as_deref(), Some(socket));
        let older = json!({ "configuration_path": own }).to_string();
        fs::write(dir.path().join(NAME), older).unwrap();
        let found = EngineConfig::beside(&engine).unwrap().unwrap();
        assert_eq!((found.database, found.socket), (None, None));
        fs::write(dir.path().join(NAME), "{}").unwrap();
        let error = EngineConfig::beside(&engine).unwrap_err().to_string();
        assert!(error.contains(NAME), "{error}");
    }
}
