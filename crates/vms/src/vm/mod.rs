//! A pool's requests to a VM: check readiness, write user data, reboot. Guarantees that a result is what was
//! observed. Does not decide which VM is asked, nor when.

mod error;
mod hostkeys;
mod reboot;
mod sftp;
mod ssh;

use std::net::IpAddr;

use async_trait::async_trait;

pub use error::VmError;
pub use hostkeys::{AllowList, HostKeyRule, MAX_FILE_BYTES, MAX_KEYS};
pub use reboot::{Proof, RebootTiming, wait_for_reboot};
pub use ssh::{Access, SshVms};

/// The file that the VM reads its user data from, relative to the root of its SFTP server.
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

    /// Writes a marker that does not survive a reboot ([`marker_path`]), then the file that makes the VM reboot. `Ok`
    /// means that the reboot was requested, not that it happened.
    async fn request_reboot(&self, ip: IpAddr, marker: &str) -> Result<(), VmError>;

    /// Logs in and checks for the marker.
    async fn has_marker(&self, ip: IpAddr, marker: &str) -> Result<bool, VmError>;

    /// Removes the marker, the user data and the request for a reboot, on a VM whose `cidata` survives a reboot.
    async fn wipe(&self, ip: IpAddr, marker: &str) -> Result<(), VmError>;

    /// Writes the VM's user data; the VM sees all of it or nothing of it.
    async fn put_user_data(&self, ip: IpAddr, data: &[u8]) -> Result<(), VmError>;
}
