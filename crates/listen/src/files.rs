//! Files that only their owner should be able to read.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Warns if `path` holds a secret that every user of the machine can read. `what` names it: "the token file".
pub fn warn_if_readable_by_others(what: &str, path: &Path) -> bool {
    let Ok(about) = std::fs::metadata(path) else {
        // The code that needs the file reports that it is missing.
        return false;
    };
    let mode = about.permissions().mode() & 0o777;
    if mode & 0o004 == 0 {
        return false;
    }
    tracing::warn!(
        path = %path.display(),
        mode = format!("{mode:o}"),
        "{what} can be read by every user of this machine: chmod 600"
    );
    true
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};

    use super::*;

    #[test]
    fn only_files_that_others_can_read_are_warned_about() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        assert!(!warn_if_readable_by_others("the key", &path));
        fs::write(&path, "secret").unwrap();
        for (mode, warned) in [(0o600, false), (0o640, false), (0o644, true), (0o604, true)] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            assert_eq!(
                warn_if_readable_by_others("the key", &path),
                warned,
                "{mode:o}"
            );
        }
    }
}
