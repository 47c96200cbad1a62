//! The agent's socket: mode 0600 from its first moment on, in a directory of mode 0700, one agent at a time.

use std::fs::{self, DirBuilder, File, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixListener as StdListener;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, fchmod};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};
use tokio::net::UnixListener;

use crate::serve::AgentError;

/// Connections that wait to be accepted; the kernel takes less where net.core.somaxconn is less.
const BACKLOG: i32 = 4096;

/// A bound socket. Removed when dropped; the lock beside it shows other agents that this one runs.
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
            close_to_others(dir, path).map_err(fail)?;
        }
        let lock = lock(&with_suffix(path, ".lock"), path)?;
        let fresh = with_suffix(path, ".new");
        match fs::remove_file(&fresh) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(fail(error)),
            _ => {}
        }
        let listener = bind_closed(&fresh)
            .and_then(UnixListener::from_std)
            .map_err(fail)?;
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

/// A socket at `path` that has mode 0600 as soon as it is there.
fn bind_closed(path: &Path) -> io::Result<StdListener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // Linux gives the file that bind makes the mode of the socket itself, less the umask: set before, there is no moment
    // in which it is open to others.
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// Makes the socket's directory, or closes one that has nothing but Berth's own files in it. Another's directory is left
/// as it is: the socket's own mode protects it there.
fn close_to_others(dir: &Path, socket: &Path) -> io::Result<()> {
    if dir.as_os_str().is_empty() {
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let mode = fs::metadata(dir)?.permissions().mode() & 0o7777;
    if mode & 0o077 == 0 {
        return Ok(());
    }
    let own = [
        socket.to_owned(),
        with_suffix(socket, ".lock"),
        with_suffix(socket, ".new"),
    ];
    for entry in fs::read_dir(dir)? {
        if !own.contains(&entry?.path()) {
            tracing::info!(
                dir = %dir.display(),
                mode = format!("{mode:o}"),
                "the socket's directory has other files too and keeps its mode; the socket itself is 0600"
            );
            return Ok(());
        }
    }
    fs::set_permissions(dir, Permissions::from_mode(0o700))
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
        .mode(0o600)
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
    use std::mem::MaybeUninit;

    use rustix::fs::inotify;

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn berth_16_3_the_socket_has_its_mode_before_anybody_can_see_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("berth.sock");
        let watch = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
        let flags = inotify::WatchFlags::CREATE | inotify::WatchFlags::ATTRIB;
        inotify::add_watch(&watch, dir.path(), flags).unwrap();
        let _listener = bind_closed(&path).unwrap();
        assert_eq!(mode(&path), 0o600);
        // A mode that is set once the file is there would be a second event.
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(&watch, &mut buffer);
        let first = events.next().unwrap().events();
        assert!(first.contains(inotify::ReadFlags::CREATE), "{first:?}");
        let next = events.next().map(|event| event.events());
        assert!(next.is_err(), "the mode came later: {next:?}");
    }

    #[tokio::test]
    async fn the_sockets_directory_is_closed_unless_others_use_it() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("fresh/berth.sock");
        drop(Socket::bind(&own).unwrap());
        assert_eq!(mode(own.parent().unwrap()), 0o700, "made");
        // As the kubelet makes a hostPath directory.
        fs::set_permissions(own.parent().unwrap(), Permissions::from_mode(0o755)).unwrap();
        drop(Socket::bind(&own).unwrap());
        assert_eq!(mode(own.parent().unwrap()), 0o700, "closed");
        let shared = dir.path().join("shared");
        fs::create_dir(&shared).unwrap();
        fs::set_permissions(&shared, Permissions::from_mode(0o755)).unwrap();
        fs::write(shared.join("others.pid"), "").unwrap();
        drop(Socket::bind(&shared.join("berth.sock")).unwrap());
        assert_eq!(mode(&shared), 0o755, "another's");
    }

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
        // What a killed agent leaves: a socket without a listener.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        Socket::bind(&path).unwrap();
    }
}
