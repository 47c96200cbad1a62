//! What of the CNI directories is Berth's: a file beside the flat file, written before the files it speaks of.
//!
//! An entry lists the digests a file of ours may have: the one being written and the one it had. So a crash at any
//! moment leaves a file that is known to be ours, or one that is known not to be.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::atomic_write::{self, Content, Digest};
use crate::error::InstallError;
use crate::layout::Dir;

const NAME: &str = "berth-install.json";
const VERSION: u32 = 1;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    version: u32,
    /// The Berth that wrote it.
    pub berth: String,
    pub files: Vec<Entry>,
    /// Directories that were not there before, as the host names them.
    pub directories: Vec<PathBuf>,
}

/// A file of ours. Paths are the host's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub path: PathBuf,
    pub sha256: Vec<Digest>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aside: Option<Aside>,
}

/// What was there before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Aside {
    pub path: PathBuf,
    /// None for what has no content, like a link to nowhere.
    pub sha256: Option<Digest>,
}

impl Manifest {
    pub fn path(own: &Dir) -> PathBuf {
        own.here.join(NAME)
    }

    pub fn new() -> Manifest {
        Manifest {
            version: VERSION,
            berth: env!("CARGO_PKG_VERSION").to_owned(),
            files: Vec::new(),
            directories: Vec::new(),
        }
    }

    pub fn load(path: &Path) -> Result<Option<Manifest>, InstallError> {
        let unreadable = |what: String| InstallError::Unreadable {
            path: path.to_owned(),
            what,
        };
        let text = match fs::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(unreadable(error.kind().to_string())),
        };
        let manifest: Manifest =
            serde_json::from_slice(&text).map_err(|error| unreadable(error.to_string()))?;
        if manifest.version != VERSION {
            return Err(unreadable(format!(
                "Berth {} wrote it in form {}; this one knows form {VERSION}",
                manifest.berth, manifest.version
            )));
        }
        Ok(Some(manifest))
    }

    pub fn save(&self, path: &Path) -> Result<(), InstallError> {
        let text = serde_json::to_string_pretty(self)
            .map_err(|error| InstallError::write(path)(error.into()))?;
        let content = Content::Text(text + "\n");
        atomic_write::write(path, 0o600, &content, &content.digest()?)
    }

    pub fn entry(&self, path: &Path) -> Option<&Entry> {
        self.files.iter().find(|entry| entry.path == path)
    }

    /// Adds the entry, or puts it in the place of the one for the same file.
    pub fn set(&mut self, entry: Entry) {
        match self.files.iter_mut().find(|known| known.path == entry.path) {
            Some(known) => *known = entry,
            None => self.files.push(entry),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_t_be_read_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(NAME);
        assert_eq!(Manifest::load(&path).unwrap(), None);
        Manifest::new().save(&path).unwrap();
        assert_eq!(Manifest::load(&path).unwrap(), Some(Manifest::new()));
        for text in [
            "",
            "{",
            "[]",
            r#"{"version":2,"berth":"9.0","files":[],"directories":[]}"#,
        ] {
            fs::write(&path, text).unwrap();
            let error = Manifest::load(&path).unwrap_err().to_string();
            assert!(
                error.contains(NAME) && error.contains("move it away"),
                "{error}"
            );
        }
    }
}
