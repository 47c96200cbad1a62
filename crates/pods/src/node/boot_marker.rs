//! The boot in which the node's own file was last freed of what a reboot left: a note beside the database.
//!
//! It spares a process that serves one call the walk over all pools. It proves nothing: where it is lost, or can't be written,
//! the walk is made again, and frees by the boots of the records alone (I4).

use std::fs;
use std::path::{Path, PathBuf};

use crate::boot;

/// The present boot, and where it is noted.
#[derive(Debug)]
pub(crate) struct BootMarker {
    name: String,
    note: PathBuf,
}

impl BootMarker {
    pub(crate) fn beside(database: &Path) -> BootMarker {
        BootMarker {
            name: boot::current(),
            note: database.with_extension("boot"),
        }
    }

    /// Empty where the kernel has no name for it.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether the file was walked over in this boot.
    pub(crate) fn is_swept(&self) -> bool {
        let noted = fs::read_to_string(&self.note);
        self.name.is_empty() || noted.is_ok_and(|noted| noted.trim() == self.name)
    }

    /// Notes that it was.
    pub(crate) fn swept(&self) {
        if self.is_swept() {
            return;
        }
        if let Err(error) = fs::write(&self.note, format!("{}\n", self.name)) {
            tracing::warn!(note = %self.note.display(), %error, "the next call looks again for what a reboot left");
        }
    }
}
