//! The installer of the gcp front: the plugin's binary, and the switch of a node's pod network to it.

pub mod conflist;
mod file;
mod follow;

pub use file::{FileError, place_binary, switch};
pub use follow::{Followed, Programs, follow};

/// The configurations that GKE writes: by containerd's own template, or by netd (Dataplane V2 too).
pub const CONFLISTS: [&str; 2] = ["10-containerd-net.conflist", "10-gke-ptp.conflist"];
