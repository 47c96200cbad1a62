//! What can go wrong, each with the path and what to do about it.

use std::io;
use std::path::{Path, PathBuf};

/// Why Berth is not installed, or not removed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// The caller asked for something that can't be.
    #[error("{0}")]
    Settings(String),
    /// The cluster's credentials are not there: wait for them, or run where they are.
    #[error("{what}: {advice}")]
    Credentials { what: String, advice: String },
    /// A file that Berth brings along can't be read.
    #[error("{} can't be read: {advice}", path.display())]
    Source {
        path: PathBuf,
        advice: &'static str,
        #[source]
        source: io::Error,
    },
    /// The node's files can't be changed; none of them is half-written.
    #[error("{} can't be written: {}", path.display(), advice(source))]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The record of what is installed can't be read: it is not overwritten (I5).
    #[error(
        "{} can't be read ({what}): it tells what of the CNI directories is Berth's; \
         move it away to install as if for the first time",
        path.display()
    )]
    Unreadable { path: PathBuf, what: String },
    /// An engine does not know which cluster it was installed for.
    #[error(
        "{} can't be read ({what}): it tells where this node's flat file is; `berth install` writes it again",
        path.display()
    )]
    EngineConfig { path: PathBuf, what: String },
    /// Another installer is at work on these directories: try again.
    #[error("another `berth install` works on {}: try again when it is done", path.display())]
    Busy { path: PathBuf },
    /// The installation was removed while this process kept it up to date.
    #[error("{} is gone: Berth was removed from this node, so there is nothing to keep up to date", path.display())]
    Gone { path: PathBuf },
}

impl InstallError {
    pub(crate) fn write(path: &Path) -> impl FnOnce(io::Error) -> InstallError {
        let path = path.to_owned();
        move |source| InstallError::Write { path, source }
    }
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::ReadOnlyFilesystem => {
            "the file system is mounted read-only; mount the directory read-write, or name another one with \
             --cni-bin-dir or --cni-conf-dir"
        }
        io::ErrorKind::PermissionDenied => {
            "run as root; on a node with SELinux the container needs the type spc_t"
        }
        io::ErrorKind::NotFound => {
            "its directory does not exist; mount the host's, or name the right one with --cni-bin-dir \
             (CNI_BIN_DIR) or --cni-conf-dir (CNI_CONF_DIR)"
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "there is no space left; make some and try again"
        }
        io::ErrorKind::IsADirectory => "a directory has its name; move that away",
        _ => "see the cause, and try again",
    }
}
