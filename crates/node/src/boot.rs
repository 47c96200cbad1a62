//! Which boot a machine is in: no container outlives it.
//!
//! Guarantee: a boot that is not known is never taken for another one. What was recorded is a file beside the node's
//! database, so that a process that serves one call learns it without opening the database.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The kernel's name for the present boot, the same in every container of the machine.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The kernel's name for the present boot; empty where it has none, and then no reboot is ever detected.
pub fn current() -> String {
    fs::read_to_string(BOOT_ID)
        .map(|text| text.trim().to_owned())
        .unwrap_or_default()
}

/// The present boot, and the file that has the one recorded last.
#[derive(Clone, Debug, Default)]
pub struct BootMarker {
    current: String,
    file: Option<PathBuf>,
}

/// The change since the boot was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    SameBoot,
    Rebooted,
    /// No boot was recorded, or the kernel has no name for the present one.
    Unknown,
}

impl BootMarker {
    /// The file must be on the machine's own disk: one that is deleted with a pod is lost for the next pod.
    pub fn at(file: &Path) -> BootMarker {
        BootMarker {
            current: current(),
            file: Some(file.to_owned()),
        }
    }

    /// The marker beside a node's database.
    pub fn beside(database: &Path) -> BootMarker {
        BootMarker::at(&database.with_extension("boot"))
    }

    /// Empty where the kernel has no name for it.
    pub fn current(&self) -> &str {
        &self.current
    }

    pub fn since(&self) -> Since {
        let file = self.file.as_ref();
        let recorded = file.and_then(|file| fs::read_to_string(file).ok());
        match recorded.as_deref().map(str::trim) {
            Some(recorded) if recorded.is_empty() || self.current.is_empty() => Since::Unknown,
            Some(recorded) if recorded == self.current => Since::SameBoot,
            Some(_) => Since::Rebooted,
            None => Since::Unknown,
        }
    }

    /// Records the present boot. If that fails, the boot is unknown at the next start.
    pub fn record(&self) -> io::Result<()> {
        let Some(file) = &self.file else {
            return Ok(());
        };
        if self.current.is_empty() || self.since() == Since::SameBoot {
            return Ok(());
        }
        // Under a temporary name first: a partial name would count as another boot.
        let mut temporary = file.clone().into_os_string();
        temporary.push(".part");
        fs::write(&temporary, format!("{}\n", self.current))?;
        fs::rename(&temporary, file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boot_has_one_name() {
        let boot = current();
        assert!(!boot.is_empty());
        assert_eq!(boot, current());
    }

    #[test]
    fn only_a_boot_that_was_recorded_can_be_another() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("berth.boot");
        let marker = BootMarker::beside(&dir.path().join("berth.db"));
        assert_eq!(marker.since(), Since::Unknown);
        marker.record().unwrap();
        assert_eq!(marker.since(), Since::SameBoot);
        assert_eq!(BootMarker::at(&file).since(), Since::SameBoot);
        fs::write(&file, "5e1c6d1a-0000-4000-8000-000000000000\n").unwrap();
        assert_eq!(marker.since(), Since::Rebooted);
        fs::write(&file, "\n").unwrap();
        assert_eq!(marker.since(), Since::Unknown);
        let nameless = BootMarker {
            current: String::new(),
            file: Some(file.clone()),
        };
        fs::write(&file, "some boot\n").unwrap();
        assert_eq!(nameless.since(), Since::Unknown);
        nameless.record().unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "some boot\n");
        assert_eq!(BootMarker::default().since(), Since::Unknown);
    }
}
