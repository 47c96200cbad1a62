//! What the pool asks of a VM: is it there, take this user data, reboot. Promises that an answer
//! says what was seen, not what was hoped for. Does not decide which VM is asked, nor when.

mod cycle;
mod error;
mod hostkeys;
mod sftp;
mod ssh;

use std::net::IpAddr;

use async_trait::async_trait;

pub use cycle::{CyclePatience, see_reboot};
pub use error::VmError;
pub use hostkeys::{AllowList, HostKeyRule, MAX_FILE_BYTES, MAX_KEYS};
pub use ssh::{Access, SshVms};

/// Where the VM looks for its user data, relative to the root that its sshd shows.
pub const USER_DATA: &str = "cidata/user-data";
/// The file whose appearance makes the VM reboot.
pub const REBOOT: &str = "cidata/reboot";

/// The VMs of a pool, as the pool sees them. One implementation speaks SSH; the pool's own tests
/// use a scripted one, so that every order of failures can be tried without waiting for it.
#[async_trait]
pub trait Vms: Send + Sync + 'static {
    /// Something accepts a connection on the VM's SSH port. Cheap, and no proof that the VM works.
    async fn connects(&self, ip: IpAddr) -> Result<(), VmError>;

    /// TCP, then the SSH handshake, the host key and the login: what a pod will need.
    async fn ready(&self, ip: IpAddr) -> Result<(), VmError>;

    /// Writes the file that makes the VM reboot. `Ok` says it was asked, not that it obeyed.
    async fn ask_reboot(&self, ip: IpAddr) -> Result<(), VmError>;

    /// Gives the VM its user data; the VM sees all of it or nothing of it.
    async fn put_user_data(&self, ip: IpAddr, data: &[u8]) -> Result<(), VmError>;
}
