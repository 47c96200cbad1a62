//! What an administrator can set.

use std::path::PathBuf;
use std::time::Duration;

use berth_collector::GracePeriods;

use crate::cloud::Endpoints;
use crate::nic::warm::Targets;

/// Upstream's lock file: one update of the node's NIC at a time, whichever process makes it.
pub const LOCK: &str = "/var/run/gcp-ipam.lock";

/// Which pods get an address of the pool; the others are served by the IPAM plugin that stood in the configuration before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Select {
    #[default]
    All,
    /// Those that carry the label `berth.dev/live-ip: "true"`, or whose namespace does.
    Labelled,
}

impl Select {
    /// As a flag or the key `ipam.pods` has it.
    pub fn parse(text: &str) -> Option<Select> {
        match text {
            "all" => Some(Select::All),
            "labelled" => Some(Select::Labelled),
            _ => None,
        }
    }
}

/// The settings of the front on one node.
#[derive(Clone, Debug)]
pub struct Settings {
    pub endpoints: Endpoints,
    /// `GCE_METADATA_HOST`; none for Google's own.
    pub metadata_host: Option<String>,
    /// A service account's key file; none: the VM's own account.
    pub key_file: Option<PathBuf>,
    pub lock: PathBuf,
    pub select: Select,
    /// How long a released address goes to no other pod (I10).
    pub cooldown: Duration,
    pub warm: Targets,
    /// A move, or an address kept for one, that is not completed by then ends.
    pub move_timeout: Duration,
    /// How long one operation of the Compute API may take.
    pub operation_timeout: Duration,
    /// How long lies between two sweeps for addresses of dead pods and unfinished moves.
    pub sweep: Duration,
    /// How long a pod, or its node, must have been gone before its address is released (I4).
    pub grace: GracePeriods,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            endpoints: Endpoints::default(),
            metadata_host: None,
            key_file: None,
            lock: PathBuf::from(LOCK),
            select: Select::All,
            cooldown: Duration::from_secs(30),
            warm: Targets::default(),
            move_timeout: Duration::from_secs(300),
            operation_timeout: Duration::from_secs(90),
            sweep: Duration::from_secs(60),
            grace: GracePeriods::default(),
        }
    }
}
