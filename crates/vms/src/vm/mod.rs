//! What the pool asks of a VM: is it there, take this user data, reboot. Promises that an answer
//! says what was seen, not what was hoped for. Does not decide which VM is asked, nor when.

mod cycle;
mod error;
mod hostkeys;
mod sftp;
mod ssh;

use std::net::IpAddr;

use async_trait::async_trait;

pub use cycle::{CyclePatience, Proof, see_reboot};
pub use error::VmError;
pub use hostkeys::{AllowList, HostKeyRule, MAX_FILE_BYTES, MAX_KEYS};
pub use ssh::{Access, SshVms};

/// Where the VM looks for its user data, relative to the root that its sshd shows.
pub const USER_DATA: &str = "cidata/user-data";
/// The file whose appearance makes the VM reboot.
pub const REBOOT: &str = "cidata/reboot";

/// The file of a marker.
pub fn marker_path(marker: &str) -> String {
    format!("cidata/.berth-{marker}")
}

/// The VMs of a pool, as the pool sees them. One implementation speaks SSH; the pool's own tests
/// use a scripted one, so that every order of failures can be tried without waiting for it.
#[async_trait]
pub trait Vms: Send + Sync + 'static {
    /// Something accepts a connection on the VM's SSH port. Cheap, and no proof that the VM works.
    async fn connects(&self, ip: IpAddr) -> Result<(), VmError>;

    /// TCP, then the SSH handshake, the host key and the login, which a pod will need; and no user data of another pod
    /// ([`VmError::HasUserData`]).
    async fn ready(&self, ip: IpAddr) -> Result<(), VmError>;

    /// Writes a marker that no reboot leaves there ([`marker_path`]), then the file that makes the VM reboot. `Ok` says it was
    /// asked, not that it obeyed.
    async fn ask_reboot(&self, ip: IpAddr, marker: &str) -> Result<(), VmError>;

    /// Logs in and looks for the marker.
    async fn has_marker(&self, ip: IpAddr, marker: &str) -> Result<bool, VmError>;

    /// Removes the marker, the user data and the request for the reboot of a VM whose `cidata` outlives a reboot.
    async fn wipe(&self, ip: IpAddr, marker: &str) -> Result<(), VmError>;

    /// Gives the VM its user data; the VM sees all of it or nothing of it.
    async fn put_user_data(&self, ip: IpAddr, data: &[u8]) -> Result<(), VmError>;
}
