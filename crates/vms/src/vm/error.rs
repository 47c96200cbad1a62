//! Why a request to a VM failed. A variant is a decision of the caller: a VM that can't be reached is passed over,
//! one with an unknown key is refused, wrong settings are reported.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

#[derive(Debug, Error)]
pub enum VmError {
    /// Nothing answers. The pool passes such a VM over.
    #[error("VM {ip} does not answer on port {port}")]
    Unreachable {
        ip: IpAddr,
        port: u16,
        #[source]
        source: std::io::Error,
    },
    /// It answers, but not in time.
    #[error("VM {ip}: {what} took longer than {limit:?}")]
    TimedOut {
        ip: IpAddr,
        what: &'static str,
        limit: Duration,
    },
    /// Another machine may be answering for the VM: nothing is sent to it.
    #[error("VM {ip} shows host key {fingerprint}, which is not among the {known} keys of {dir:?}")]
    UnknownHostKey {
        ip: IpAddr,
        fingerprint: String,
        known: usize,
        dir: PathBuf,
    },
    #[error("VM {ip} refuses the key of user {user:?}")]
    LoginRefused { ip: IpAddr, user: String },
    #[error("VM {ip}: SSH failed while {what}")]
    Ssh {
        ip: IpAddr,
        what: &'static str,
        #[source]
        source: russh::Error,
    },
    #[error("VM {ip}: SFTP failed on {path}")]
    Sftp {
        ip: IpAddr,
        path: String,
        #[source]
        source: russh_sftp::client::error::Error,
    },
    /// Another pod may be using it: it was not rebooted since its user data was written.
    #[error("VM {ip} still has user data: it was not rebooted since a pod used it")]
    HasUserData { ip: IpAddr },
    /// The marker that was just written is not there: its absence would prove nothing.
    #[error("VM {ip} does not keep the file {path} that was written to it")]
    NoMarker { ip: IpAddr, path: String },
    /// The reboot was requested and nothing proves that it happened.
    #[error(
        "VM {ip} was asked to reboot and was not rebooted within {limit:?}: the file that a reboot removes is still there{}",
        advice(*.down)
    )]
    NotRebooted {
        ip: IpAddr,
        limit: Duration,
        /// The longest time without an answer that ended with the file still there.
        down: Option<Duration>,
    },
    #[error("VM {ip} was asked to reboot and is not back after {limit:?}")]
    NotBack {
        ip: IpAddr,
        limit: Duration,
        #[source]
        source: Box<VmError>,
    },
    #[error("can't read the SSH private key {path:?}")]
    PrivateKey {
        path: PathBuf,
        #[source]
        source: russh::keys::Error,
    },
    #[error("host key allow-list {path:?}: {reason}")]
    AllowList { path: PathBuf, reason: String },
    /// Neither a list of keys nor the setting to accept any key.
    #[error(
        "no host keys are known: set ssh-host-key-allowlist-dir (SSH_HOST_KEY_ALLOWLIST_DIR) to a directory of \
         *.pub files, or ssh-accept-any-host-key to true to accept any key"
    )]
    NoAllowList,
}

/// What to do about a VM that was told to reboot and still has the file. A VM that did not answer meanwhile may have
/// rebooted and kept it.
fn advice(down: Option<Duration>) -> String {
    let setting = "vm-cleanup-down-for is for images whose cidata outlives a reboot";
    match down {
        None => format!(" ({setting})"),
        Some(down) => format!(
            ". It did not answer for {down:.1?} meanwhile and came back with the file: if that was the reboot, its cidata is \
             no tmpfs; make it one in the image, or set vm-cleanup-down-for ({setting})"
        ),
    }
}

impl VmError {
    /// Whether there was no answer that could come from the VM's SSH server.
    pub const fn is_silence(&self) -> bool {
        matches!(
            self,
            Self::Unreachable { .. } | Self::TimedOut { .. } | Self::Ssh { .. }
        )
    }
}
