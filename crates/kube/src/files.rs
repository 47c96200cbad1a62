//! Reads configuration files whose path may come from an untrusted source.
//!
//! Only regular files of a bounded size are read: a device, a FIFO or an endless file is refused before it is opened.
//! These calls block; async code runs them on a blocking thread.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

/// The largest flat file or node name file, and the largest kubeconfig that a network definition may name.
pub const CONFIGURATION_LIMIT: u64 = 64 * 1024;

/// The largest kubeconfig, certificate or token file of the administrator: one kubeconfig may have many clusters.
pub const CREDENTIALS_LIMIT: u64 = 1024 * 1024;

/// Whose files are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    Anybody,
    Root,
}

/// The text of a regular file. None if there is no such file.
pub fn read(path: &Path, limit: u64, owner: Owner) -> io::Result<Option<String>> {
    if !is_readable(path, limit, owner)? {
        return Ok(None);
    }
    // O_NONBLOCK: a FIFO may have replaced it since.
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let flags = i32::try_from(flags.bits()).unwrap_or_default();
    let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    check(&file.metadata()?, limit, owner)?;
    text(file, limit).map(Some)
}

/// Whether the file is there, and such that [`read`] would read it.
pub fn is_readable(path: &Path, limit: u64, owner: Owner) -> io::Result<bool> {
    match fs::metadata(path) {
        Ok(metadata) => check(&metadata, limit, owner).map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn check(metadata: &Metadata, limit: u64, owner: Owner) -> io::Result<()> {
    let refuse = |why: String| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    if !metadata.is_file() {
        return refuse("it is not a regular file".to_owned());
    }
    if metadata.len() > limit {
        let size = metadata.len();
        return refuse(format!("it has {size} bytes, and at most {limit} are read"));
    }
    if owner == Owner::Root && metadata.uid() != 0 {
        return refuse(format!("it belongs to uid {}, not to root", metadata.uid()));
    }
    if owner == Owner::Root && metadata.mode() & 0o022 != 0 {
        return refuse("others than root may write it".to_owned());
    }
    Ok(())
}

/// A file may grow while it is read, and those of /proc have no length.
fn text(file: File, limit: u64) -> io::Result<String> {
    let mut text = String::new();
    file.take(limit + 1).read_to_string(&mut text)?;
    if text.len() as u64 > limit {
        let why = format!("it has more than {limit} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    fn refused(path: &Path) -> String {
        read(path, 10, Owner::Anybody).unwrap_err().to_string()
    }

    #[test]
    fn only_regular_files_of_a_bounded_size_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        assert_eq!(read(&at("none"), 10, Owner::Anybody).unwrap(), None);
        fs::write(at("small"), "0123456789").unwrap();
        let small = read(&at("small"), 10, Owner::Root).unwrap();
        assert_eq!(small.as_deref(), Some("0123456789"));
        fs::write(at("large"), "0123456789a").unwrap();
        assert!(refused(&at("large")).contains("11 bytes"));
        mknodat(CWD, at("fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        std::os::unix::fs::symlink("/dev/zero", at("link")).unwrap();
        for special in [&at("fifo"), &at("link"), dir.path(), Path::new("/dev/ptmx")] {
            assert!(refused(special).contains("regular file"), "{special:?}");
        }
        // Its length is 0, whatever it holds.
        assert!(refused(Path::new("/proc/self/status")).contains("more than 10"));
    }

    #[test]
    fn a_file_of_another_user_is_not_root_s() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
        let refused = read(&path, 10, Owner::Root).unwrap_err().to_string();
        assert!(refused.contains("others than root"), "{refused}");
        std::os::unix::fs::chown(&path, Some(1000), None).unwrap();
        let refused = read(&path, 10, Owner::Root).unwrap_err().to_string();
        assert!(refused.contains("uid 1000"), "{refused}");
        assert!(read(&path, 10, Owner::Anybody).unwrap().is_some());
    }
}
