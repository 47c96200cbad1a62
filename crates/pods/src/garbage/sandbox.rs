//! Whether a container's sandbox is still on this node: by its boot, and by the path of its network namespace.
//!
//! The runtime removes the namespace's file after its DEL has succeeded. A missing path is a proof only where its
//! directory exists (the agent's container may not have it mounted), and never below `/proc`, whose process ids
//! are those of the host.

use std::io::ErrorKind;
use std::path::Path;

use berth_collector::observed::Sandbox;
use berth_core::Record;

use crate::attachment::attribute;

/// What is known about the sandbox that a record of this node was made for.
pub(crate) fn of(record: &Record, boot: &str) -> Sandbox {
    if is_of_older_boot(record, boot) {
        return Sandbox::Gone;
    }
    match record.attribute(attribute::NETNS) {
        Some(netns) if is_gone(Path::new(netns)) => Sandbox::Gone,
        Some(_) => Sandbox::Present,
        None => Sandbox::Unknown,
    }
}

/// No container outlives its kernel.
pub(super) fn is_of_older_boot(record: &Record, boot: &str) -> bool {
    let made = record.attribute(attribute::BOOT);
    made.is_some_and(|made| made != boot)
}

fn is_gone(netns: &Path) -> bool {
    let mounted = netns.parent().is_some_and(Path::is_dir) && !netns.starts_with("/proc");
    let missing = |error: std::io::Error| error.kind() == ErrorKind::NotFound;
    mounted && netns.symlink_metadata().is_err_and(missing)
}

#[cfg(test)]
mod tests {
    use berth_core::{Handle, Owner};

    use super::*;

    #[test]
    fn a_sandbox_is_gone_with_its_boot_or_its_namespace() {
        let dir = tempfile::tempdir().unwrap();
        let there = dir.path().join("there");
        std::fs::write(&there, "").unwrap();
        let there = there.to_str().unwrap();
        let gone = dir.path().join("gone");
        let gone = gone.to_str().unwrap();
        let unmounted = dir.path().join("not-mounted/gone");
        let unmounted = unmounted.to_str().unwrap();
        let record = Record::new(Owner::new("ns/p", "net1"), Handle::new("c1"));
        let noted = |netns: &str| {
            let record = record.clone().with(attribute::BOOT, "now");
            record.with(attribute::NETNS, netns)
        };
        assert_eq!(of(&record, "now"), Sandbox::Unknown);
        assert_eq!(of(&noted(there), "now"), Sandbox::Present);
        assert_eq!(of(&noted(there), "later"), Sandbox::Gone);
        assert_eq!(of(&noted(gone), "now"), Sandbox::Gone);
        // What is not mounted here may exist.
        assert_eq!(of(&noted(unmounted), "now"), Sandbox::Present);
        assert_eq!(of(&noted("/proc/0/ns/net"), "now"), Sandbox::Present);
    }
}
