//! Files on the VM. Guarantees that a file of `put_whole` appears whole or not at all, and that `touch_off`
//! distinguishes a VM that went down during the request from one that refused. Does not create directories: `cidata`
//! is the VM's own.

use russh_sftp::client::RawSftpSession;
use russh_sftp::client::error::Error as SftpError;
use russh_sftp::extensions::HardlinkExtension;
use russh_sftp::protocol::{FileAttributes, OpenFlags, Packet, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite};

const POSIX_RENAME: &str = "posix-rename@openssh.com";
const FSYNC: &str = "fsync@openssh.com";
/// Within what every server takes in one packet (RFC draft: 32 KiB with its header).
const CHUNK: usize = 30 * 1024;

/// One SFTP conversation.
pub(super) struct Sftp {
    raw: RawSftpSession,
    posix_rename: bool,
    fsync: bool,
}

impl Sftp {
    pub(super) async fn open<S>(stream: S, timeout_secs: u64) -> Result<Self, SftpError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let raw = RawSftpSession::new(stream);
        raw.set_timeout(timeout_secs.max(1));
        let version = raw.init().await?;
        let offers = |name: &str| version.extensions.contains_key(name);
        Ok(Self {
            posix_rename: offers(POSIX_RENAME),
            fsync: offers(FSYNC),
            raw,
        })
    }

    /// Writes under a temporary name, then renames: a reader sees the old file, none, or the new
    /// one. The temporary name is always the same, so a write cut short leaves one file, which
    /// the next one overwrites.
    pub(super) async fn put_whole(&self, path: &str, data: &[u8]) -> Result<(), SftpError> {
        let temporary = temporary_name(path);
        let handle = self.create(&temporary).await?;
        let written = self.write_all(&handle, data).await;
        // The handle is closed even after a failed write; the first error is reported.
        let closed = self.raw.close(handle).await;
        written?;
        closed?;
        self.replace(&temporary, path).await
    }

    /// Creates a file that triggers an action of the VM. The VM may go down before the last byte is acknowledged:
    /// once the file exists, a lost connection is not a failure.
    pub(super) async fn touch_off(&self, path: &str, data: &[u8]) -> Result<(), SftpError> {
        let handle = self.create(path).await?;
        let ended = match self.write_all(&handle, data).await {
            Ok(()) => self.raw.close(handle).await.map(|_| ()),
            Err(error) => Err(error),
        };
        match ended {
            Err(SftpError::Status(status)) => Err(SftpError::Status(status)),
            Err(error) => {
                tracing::debug!(path, %error, "connection lost after the file was created");
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    pub(super) async fn exists(&self, path: &str) -> Result<bool, SftpError> {
        match self.raw.stat(path).await {
            Ok(_) => Ok(true),
            Err(SftpError::Status(s)) if s.status_code == StatusCode::NoSuchFile => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Removes a file; a missing one is no error.
    pub(super) async fn remove(&self, path: &str) -> Result<(), SftpError> {
        match self.raw.remove(path).await {
            Ok(_) => Ok(()),
            Err(SftpError::Status(s)) if s.status_code == StatusCode::NoSuchFile => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn create(&self, path: &str) -> Result<String, SftpError> {
        let flags = OpenFlags::CREATE | OpenFlags::TRUNCATE | OpenFlags::WRITE;
        let opened = self.raw.open(path, flags, FileAttributes::empty()).await?;
        Ok(opened.handle)
    }

    async fn write_all(&self, handle: &str, data: &[u8]) -> Result<(), SftpError> {
        let mut offset = 0u64;
        for chunk in data.chunks(CHUNK) {
            self.raw.write(handle, offset, chunk.to_vec()).await?;
            offset += chunk.len() as u64;
        }
        if self.fsync {
            // Some file systems under cidata (vfat images) can't; the rename orders it anyway.
            let _ = self.raw.fsync(handle).await;
        }
        Ok(())
    }

    /// SFTP's own rename refuses an existing target. With OpenSSH's extension the new file replaces the old one
    /// atomically; without it the old one is removed first, so a reader may find none, but never half of one.
    async fn replace(&self, from: &str, to: &str) -> Result<(), SftpError> {
        if self.posix_rename {
            let names = HardlinkExtension {
                oldpath: from.into(),
                newpath: to.into(),
            };
            return match self.raw.extended(POSIX_RENAME, names.try_into()?).await? {
                Packet::Status(status) if status.status_code == StatusCode::Ok => Ok(()),
                Packet::Status(status) => Err(SftpError::Status(status)),
                _ => Err(SftpError::UnexpectedPacket),
            };
        }
        self.remove(to).await?;
        self.raw.rename(from, to).await.map(|_| ())
    }
}

/// Beside the file, so that the rename stays within one file system, and hidden.
fn temporary_name(path: &str) -> String {
    match path.rsplit_once('/') {
        Some((dir, name)) => format!("{dir}/.{name}.part"),
        None => format!(".{path}.part"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_temporary_file_lies_beside_its_target() {
        assert_eq!(temporary_name("cidata/user-data"), "cidata/.user-data.part");
        assert_eq!(temporary_name("user-data"), ".user-data.part");
    }
}
