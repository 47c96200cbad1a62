//! Changes of the node's files: whole or not at all.
//!
//! Guarantees: a file is replaced by rename, with the mode that it had; a symlink, a directory or a file of another kind is
//! left alone; one that its writer replaced meanwhile is not overwritten; none is ever created.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use thiserror::Error;

use super::conflist::{ConflistError, MAX_FILE, with_ipam_type};

/// The plugin is under 2 MB, the engine under 20; with everything a debugger needs it is larger.
const MAX_BINARY: u64 = 512 << 20;

/// Why a file was left as it is.
#[derive(Debug, Error)]
pub enum FileError {
    #[error("{}: {why}", path.display())]
    Conflist { path: PathBuf, why: ConflistError },
    #[error("{}: it is a symlink or not a regular file; it is left as it is", .0.display())]
    NotRegular(PathBuf),
    #[error("{}: it has {size} bytes, more than {limit}", path.display())]
    TooLarge {
        path: PathBuf,
        size: u64,
        limit: u64,
    },
    #[error("{}: {error}", path.display())]
    Io { path: PathBuf, error: io::Error },
}

/// Sets `ipam.type` of a configuration list. False: it is that already, the file does not exist, or its writer was faster and
/// the next look finds it.
pub fn switch(path: &Path, wanted: &str) -> Result<bool, FileError> {
    let Some((text, before)) = read(path, MAX_FILE)? else {
        return Ok(false);
    };
    let text = String::from_utf8_lossy(&text);
    let changed = with_ipam_type(&text, wanted);
    let changed = changed.map_err(|why| FileError::Conflist {
        path: path.to_owned(),
        why,
    })?;
    match changed {
        Some(changed) => replace(path, changed.as_bytes(), before.mode(), Some(&before)),
        None => Ok(false),
    }
}

/// Copies the plugin into the node's directory. False: it is there already.
pub fn place_binary(source: &Path, target: &Path) -> Result<bool, FileError> {
    let missing = || FileError::Io {
        path: source.to_owned(),
        error: io::ErrorKind::NotFound.into(),
    };
    let (bytes, _) = read(source, MAX_BINARY)?.ok_or_else(missing)?;
    if let Some((present, held)) = read(target, MAX_BINARY)?
        && present == bytes
        && held.mode() & 0o777 == 0o755
    {
        return Ok(false);
    }
    replace(target, &bytes, 0o755, None)
}

/// A regular file and what it is; None if there is none.
fn read(path: &Path, limit: u64) -> Result<Option<(Vec<u8>, fs::Metadata)>, FileError> {
    let failed = |error| FileError::Io {
        path: path.to_owned(),
        error,
    };
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
    let mut options = OpenOptions::new();
    options
        .read(true)
        .custom_flags(i32::try_from(flags).unwrap_or_default());
    let file = match options.open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        // What O_NOFOLLOW answers for a symlink.
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => {
            return Err(FileError::NotRegular(path.to_owned()));
        }
        Err(error) => return Err(failed(error)),
    };
    let meta = file.metadata().map_err(failed)?;
    if !meta.is_file() {
        return Err(FileError::NotRegular(path.to_owned()));
    }
    if meta.len() > limit {
        return Err(FileError::TooLarge {
            path: path.to_owned(),
            size: meta.len(),
            limit,
        });
    }
    let mut bytes = Vec::new();
    file.take(limit).read_to_end(&mut bytes).map_err(failed)?;
    Ok(Some((bytes, meta)))
}

/// Replaces a file by rename; false if it is not the one of `before` any more.
fn replace(
    path: &Path,
    bytes: &[u8],
    mode: u32,
    before: Option<&fs::Metadata>,
) -> Result<bool, FileError> {
    let failed = |error| FileError::Io {
        path: path.to_owned(),
        error,
    };
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // A dot in front: the runtime reads every *.conflist of the directory.
    let temporary = path.with_file_name(format!(".{name}.berth"));
    let written = write(&temporary, bytes, mode).and_then(|()| match before {
        Some(before) if !is_same(path, before) => Ok(false),
        _ => fs::rename(&temporary, path).map(|()| true),
    });
    if !matches!(written, Ok(true)) {
        // Gone already, or left for the next time, which truncates it.
        let _ = fs::remove_file(&temporary);
    }
    written.map_err(failed)
}

fn write(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    // Whatever lies there under this name is a leftover, or a trap: never written through.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(bytes)?;
    file.set_permissions(fs::Permissions::from_mode(mode & 0o777))?;
    file.sync_all()?;
    if let Some(dir) = path.parent() {
        File::open(dir)?.sync_all()?;
    }
    Ok(())
}

fn is_same(path: &Path, before: &fs::Metadata) -> bool {
    let now = fs::symlink_metadata(path);
    now.is_ok_and(|now| {
        let of = |meta: &fs::Metadata| {
            (
                meta.dev(),
                meta.ino(),
                meta.mtime(),
                meta.mtime_nsec(),
                meta.len(),
            )
        };
        of(&now) == of(before)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::install::conflist::{GCP_IPAM, HOST_LOCAL};

    const TEXT: &str =
        r#"{"name":"k8s","plugins":[{"type":"ptp","ipam":{"type":"host-local","ranges":[]}}]}"#;

    #[test]
    fn a_conflist_is_switched_and_switched_back_with_its_mode() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("10-containerd-net.conflist");
        assert!(
            !switch(&path, GCP_IPAM).unwrap(),
            "a file that is not there is not made"
        );
        assert!(!path.exists());
        fs::write(&path, TEXT).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(switch(&path, GCP_IPAM).unwrap());
        assert_eq!(
            fs::read_to_string(&path).unwrap(),
            TEXT.replace("host-local", "gcp-ipam")
        );
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o640);
        assert!(!switch(&path, GCP_IPAM).unwrap());
        assert!(switch(&path, HOST_LOCAL).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), TEXT);
        assert_eq!(
            fs::read_dir(dir.path()).unwrap().count(),
            1,
            "no temporary file is left"
        );
    }

    #[test]
    fn what_is_no_plain_conflist_is_left_alone_and_named() {
        let dir = tempfile::tempdir().unwrap();
        let (real, link) = (
            dir.path().join("real"),
            dir.path().join("10-gke-ptp.conflist"),
        );
        fs::write(&real, TEXT).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let error = switch(&link, GCP_IPAM).unwrap_err().to_string();
        assert!(
            error.contains("symlink") && error.contains("10-gke-ptp"),
            "{error}"
        );
        assert_eq!(fs::read_to_string(&real).unwrap(), TEXT);
        for (text, why) in [
            ("{", "not JSON"),
            (r#"{"plugins":[{"type":"ptp"}]}"#, "no plugin has an ipam"),
            (r#"{"plugins":[{"ipam":{"type":"metis"}}]}"#, "metis"),
        ] {
            fs::write(&real, text).unwrap();
            let error = switch(&real, GCP_IPAM).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
            assert_eq!(fs::read_to_string(&real).unwrap(), text);
        }
        fs::write(&real, " ".repeat(70_000)).unwrap();
        assert!(matches!(
            switch(&real, GCP_IPAM),
            Err(FileError::TooLarge { .. })
        ));
        assert!(matches!(
            switch(dir.path(), GCP_IPAM),
            Err(FileError::NotRegular(_))
        ));
    }

    #[test]
    fn a_file_that_its_writer_replaced_is_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.conflist");
        fs::write(&path, "old").unwrap();
        let before = fs::metadata(&path).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, "newer").unwrap();
        assert!(!replace(&path, b"ours", 0o644, Some(&before)).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "newer");
    }

    #[test]
    fn the_binary_is_placed_once() {
        let dir = tempfile::tempdir().unwrap();
        let (source, target) = (dir.path().join("gcp-ipam"), dir.path().join("bin"));
        fs::write(&source, "plugin").unwrap();
        assert!(place_binary(&source, &target).unwrap());
        assert_eq!(fs::metadata(&target).unwrap().mode() & 0o777, 0o755);
        assert!(!place_binary(&source, &target).unwrap());
        let error = place_binary(&dir.path().join("none"), &target)
            .unwrap_err()
            .to_string();
        assert!(error.contains("none"), "{error}");
    }
}
