//! Files put in place whole: written under another name, synced, renamed; then the directory is synced.
//!
//! A rename is what makes a plugin that runs replaceable (writing to it would be ETXTBSY) and a file that is being
//! read harmless to replace.

use std::fmt::Write as _;
use std::fs::{self, File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::error::InstallError;

/// What unfinished files are called. No name of a CNI configuration ends so.
const PREFIX: &str = ".berth-install-";

/// A file's SHA-256, in hexadecimal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Digest(String);

impl Digest {
    pub fn of(bytes: &[u8]) -> Digest {
        let mut sum = Sum::default();
        sum.0.update(bytes);
        sum.finish()
    }

    fn of_file(mut file: File) -> io::Result<Digest> {
        let mut sum = Sum::default();
        io::copy(&mut file, &mut sum)?;
        Ok(sum.finish())
    }
}

#[derive(Default)]
struct Sum(Sha256);

impl Sum {
    fn finish(self) -> Digest {
        let mut text = String::with_capacity(64);
        for byte in self.0.finalize() {
            // Writing to a String can't fail.
            let _ = write!(text, "{byte:02x}");
        }
        Digest(text)
    }
}

impl Write for Sum {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What goes into a file.
#[derive(Debug)]
pub(crate) enum Content {
    Text(String),
    Copy(PathBuf),
}

impl Content {
    pub fn digest(&self) -> Result<Digest, InstallError> {
        match self {
            Content::Text(text) => Ok(Digest::of(text.as_bytes())),
            Content::Copy(path) => File::open(path)
                .and_then(Digest::of_file)
                .map_err(source_error(path)),
        }
    }
}

fn source_error(path: &Path) -> impl Fn(io::Error) -> InstallError {
    let path = path.to_owned();
    move |source| InstallError::Source {
        path: path.clone(),
        advice: "it is to be installed; name the plugin's file with --plugin",
        source,
    }
}

/// What a path holds.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Nothing,
    File(Digest),
    /// A link to nowhere, a directory, a device.
    Other,
}

pub(crate) fn read(path: &Path) -> Result<Found, InstallError> {
    let unreadable = InstallError::write(path);
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Nothing),
        Err(error) => return Err(unreadable(error)),
        Ok(_) => {}
    }
    match fs::metadata(path) {
        Ok(meta) if meta.is_file() => match File::open(path).and_then(Digest::of_file) {
            Ok(digest) => Ok(Found::File(digest)),
            Err(error) => Err(unreadable(error)),
        },
        _ => Ok(Found::Other),
    }
}

pub(crate) fn mode_of(path: &Path) -> Option<u32> {
    let meta = fs::symlink_metadata(path).ok()?;
    Some(meta.permissions().mode() & 0o7777)
}

/// Puts `content`, whose digest the caller has written down, at `path`.
pub(crate) fn write(
    path: &Path,
    mode: u32,
    content: &Content,
    digest: &Digest,
) -> Result<(), InstallError> {
    let dir = parent(path);
    let failed = || InstallError::write(path);
    let mut temporary = tempfile::Builder::new()
        .prefix(PREFIX)
        .tempfile_in(dir)
        .map_err(failed())?;
    match content {
        Content::Text(text) => temporary.write_all(text.as_bytes()).map_err(failed())?,
        Content::Copy(source) => {
            let mut from = File::open(source).map_err(source_error(source))?;
            let mut sum = Sum::default();
            let mut buffer = vec![0; 1 << 20];
            loop {
                let count = from.read(&mut buffer).map_err(source_error(source))?;
                let part = buffer.get(..count).unwrap_or_default();
                if part.is_empty() {
                    break;
                }
                sum.0.update(part);
                temporary.write_all(part).map_err(failed())?;
            }
            if sum.finish() != *digest {
                let changed = io::Error::other("it changed while it was copied");
                return Err(source_error(source)(changed));
            }
        }
    }
    temporary
        .as_file()
        .set_permissions(Permissions::from_mode(mode))
        .map_err(failed())?;
    temporary.as_file().sync_all().map_err(failed())?;
    // Closed before it has its name: what is open for writing can't be run.
    temporary
        .into_temp_path()
        .persist(path)
        .map_err(|error| failed()(error.error))?;
    sync_dir(dir)
}

/// Gives a file a second name, once: what is kept already stays as it is. Its own name keeps pointing at it, so that
/// there is no moment without a plugin.
pub(crate) fn keep(path: &Path, aside: &Path) -> Result<(), InstallError> {
    if fs::symlink_metadata(aside).is_ok() {
        return Ok(());
    }
    match fs::hard_link(path, aside) {
        Ok(()) => sync_dir(parent(path)),
        // Some file systems have no hard links; a copy loses nothing but links and times.
        Err(_) if fs::metadata(path).is_ok_and(|meta| meta.is_file()) => {
            let mode = mode_of(path).unwrap_or(0o755);
            let content = Content::Copy(path.to_owned());
            write(aside, mode, &content, &content.digest()?)
        }
        Err(error) => Err(InstallError::write(aside)(error)),
    }
}

pub(crate) fn rename(from: &Path, to: &Path) -> Result<(), InstallError> {
    fs::rename(from, to).map_err(InstallError::write(to))?;
    sync_dir(parent(to))
}

/// Removes a file; one that is not there is fine.
pub(crate) fn unlink(path: &Path) -> Result<(), InstallError> {
    match fs::remove_file(path) {
        Ok(()) => sync_dir(parent(path)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(InstallError::write(path)(error)),
    }
}

/// Clears what an installer that was killed left unfinished. Only under the lock: it may be another's work.
pub(crate) fn sweep(dir: &Path) -> Result<(), InstallError> {
    let failed = || InstallError::write(dir);
    for entry in fs::read_dir(dir).map_err(failed())? {
        let entry = entry.map_err(failed())?;
        if entry.file_name().to_string_lossy().starts_with(PREFIX) {
            unlink(&entry.path())?;
        }
    }
    Ok(())
}

fn sync_dir(dir: &Path) -> Result<(), InstallError> {
    File::open(dir)
        .and_then(|dir| dir.sync_all())
        .map_err(InstallError::write(dir))
}

fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_sha_256() {
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Digest::of(b""), Digest(empty.into()));
    }

    #[test]
    fn what_is_kept_first_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let (path, aside) = (dir.path().join("a"), dir.path().join("a.before"));
        fs::write(&path, "first").unwrap();
        keep(&path, &aside).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, "second").unwrap();
        keep(&path, &aside).unwrap();
        assert_eq!(fs::read(&aside).unwrap(), b"first");
    }

    #[test]
    fn a_link_is_kept_as_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let (path, aside) = (dir.path().join("a"), dir.path().join("a.before"));
        std::os::unix::fs::symlink("nowhere", &path).unwrap();
        assert_eq!(read(&path).unwrap(), Found::Other);
        keep(&path, &aside).unwrap();
        assert_eq!(fs::read_link(&aside).unwrap(), Path::new("nowhere"));
    }

    #[test]
    fn a_directory_in_the_way_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        fs::create_dir(&path).unwrap();
        let content = Content::Text("text".into());
        let error = write(&path, 0o600, &content, &content.digest().unwrap()).unwrap_err();
        assert!(
            error
                .to_string()
                .contains(&format!("{} can't be written", path.display())),
            "{error}"
        );
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
