//! Which boot of the node this process is in, against the one that was noted last: no pod outlives a reboot of its node.
//!
//! Promises that a boot that nobody knows is never taken for another one: VMs of running pods would be rebooted.

use std::fs;
use std::path::{Path, PathBuf};

/// The kernel's name for the present boot, the same in every container of the node.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The present boot, and where the last one is noted.
#[derive(Clone, Debug, Default)]
pub struct BootNote {
    current: String,
    file: Option<PathBuf>,
}

/// What is known of the node since the note was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Since {
    SameBoot,
    Rebooted,
    Unknown,
}

impl BootNote {
    /// The file has to be on the node's own disk: what goes with a pod knows nothing of the pod before it.
    pub fn at(file: &Path) -> Self {
        let current = fs::read_to_string(BOOT_ID).unwrap_or_default();
        Self {
            current: current.trim().into(),
            file: Some(file.into()),
        }
    }

    pub(crate) fn since(&self) -> Since {
        let noted = self
            .file
            .as_ref()
            .and_then(|file| fs::read_to_string(file).ok());
        match noted.as_deref().map(str::trim) {
            Some(noted) if noted.is_empty() || self.current.is_empty() => Since::Unknown,
            Some(noted) if noted == self.current => Since::SameBoot,
            Some(_) => Since::Rebooted,
            None => Since::Unknown,
        }
    }

    /// Notes the present boot. What can't be noted is unknown at the next start.
    pub(crate) fn write(&self) {
        let Some(file) = &self.file else {
            return;
        };
        if self.since() == Since::SameBoot {
            return;
        }
        // Under a temporary name first: half a name would be another boot.
        let temporary = file.with_extension("part");
        let written = fs::write(&temporary, format!("{}\n", self.current))
            .and_then(|()| fs::rename(&temporary, file));
        if let Err(error) = written {
            tracing::warn!(file = %file.display(), %error, "the node's boot can't be noted; a reboot will not be noticed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_boot_that_was_noted_can_be_another() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("vm-boot");
        let note = BootNote::at(&file);
        assert_eq!(note.since(), Since::Unknown);
        note.write();
        assert_eq!(note.since(), Since::SameBoot);
        assert_eq!(BootNote::at(&file).since(), Since::SameBoot);
        fs::write(&file, "5e1c6d1a-0000-4000-8000-000000000000\n").unwrap();
        assert_eq!(note.since(), Since::Rebooted);
        fs::write(&file, "\n").unwrap();
        assert_eq!(note.since(), Since::Unknown);
        let nameless = BootNote {
            current: String::new(),
            file: Some(file.clone()),
        };
        fs::write(&file, "some boot\n").unwrap();
        assert_eq!(nameless.since(), Since::Unknown);
        assert_eq!(BootNote::default().since(), Since::Unknown);
    }
}
