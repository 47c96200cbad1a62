//! The agent's socket: 0600 from its first moment on, one agent at a time.

use std::fs::{self, File, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tokio::net::UnixListener;

use crate::serve::AgentError;

/// A bound socket. Removed when dropped; the lock beside it tells other agents that this one lives.
#[derive(Debug)]
pub(crate) struct Socket {
    path: PathBuf,
    _lock: File,
}

impl Socket {
    /// Binds `path`, over a socket that a killed agent left behind, but never over a living one's.
    ///
    /// The socket is made under another name, closed to others, and then renamed: there is no moment in which
    /// anybody else can connect, and no moment without a socket when one agent follows another.
    pub(crate) fn bind(path: &Path) -> Result<(Socket, UnixListener), AgentError> {
        let fail = |source: io::Error| AgentError::Bind {
            path: path.to_owned(),
            source,
        };
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir).map_err(fail)?;
        }
        let lock = lock(&with_suffix(path, ".lock"), path)?;
        let fresh = with_suffix(path, ".new");
        match fs::remove_file(&fresh) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(fail(error)),
            _ => {}
        }
        let listener = UnixListener::bind(&fresh).map_err(fail)?;
        fs::set_permissions(&fresh, Permissions::from_mode(0o600)).map_err(fail)?;
        fs::rename(&fresh, path).map_err(fail)?;
        let socket = Socket {
            path: path.to_owned(),
            _lock: lock,
        };
        Ok((socket, listener))
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn lock(path: &Path, socket: &Path) -> Result<File, AgentError> {
    let fail = |source: io::Error| AgentError::Bind {
        path: path.to_owned(),
        source,
    };
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .map_err(fail)?;
    fs::set_permissions(path, Permissions::from_mode(0o600)).map_err(fail)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(AgentError::Running {
            socket: socket.to_owned(),
        }),
        Err(TryLockError::Error(error)) => Err(fail(error)),
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_socket_is_closed_to_others_and_taken_over_from_the_dead_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run/berth.sock");
        let (first, _listener) = Socket::bind(&path).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(matches!(
            Socket::bind(&path),
            Err(AgentError::Running { .. })
        ));
        drop(first);
        assert!(!path.exists());
        // What a killed agent leaves: a socket that nobody listens on.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        Socket::bind(&path).unwrap();
    }
}
