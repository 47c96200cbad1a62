//! The mark of a node whose pools are in a cluster: a file beside the node's database.
//!
//! An agent with a configured cluster writes it before it serves. A process that serves a call later and knows no
//! cluster finds it and refuses: the node's own file lacks what was allocated from the cluster's pools, and each node that
//! served from its own file would allocate the same addresses (I1). Only a person removes it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use berth_cni::{CniError, Code};
use berth_ledger::{LedgerError, Rejection};

const TEXT: &str = "\
The pools of this node are in a cluster: an agent that was configured with one wrote this file.
While it is here, no pod gets an address from the database beside it. Remove it when the node has left its cluster for good.
";

/// Where the mark is, on a node that has it.
#[derive(Debug)]
pub(crate) struct ClusterMarker {
    path: PathBuf,
}

impl ClusterMarker {
    pub(crate) fn beside(database: &Path) -> ClusterMarker {
        ClusterMarker {
            path: database.with_extension("cluster"),
        }
    }

    /// Leaves the mark, durably.
    pub(crate) fn leave(&self) -> Result<(), LedgerError> {
        self.write().map_err(|error| LedgerError::Rejected {
            operation: "write",
            target: self.path.display().to_string(),
            rejection: Rejection::Storage(error.to_string()),
        })
    }

    fn write(&self) -> io::Result<()> {
        let mut options = OpenOptions::new();
        // It counts by being there: one that a crash left empty is as good.
        let mut file = options
            .write(true)
            .create(true)
            .truncate(true)
            .open(&self.path)?;
        file.write_all(TEXT.as_bytes())?;
        file.sync_all()?;
        match self.path.parent() {
            Some(dir) if !dir.as_os_str().is_empty() => File::open(dir)?.sync_all(),
            _ => Ok(()),
        }
    }

    /// Refuses a call that knows no cluster, where there is one.
    pub(crate) fn refuse(&self) -> Result<(), CniError> {
        match fs::symlink_metadata(&self.path) {
            Ok(_) => Err(elsewhere(&self.path)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(CniError::new(
                Code::TryLater,
                format!(
                    "{} can't be read; it says whether this node's pools are in a cluster: {error}",
                    self.path.display()
                ),
            )),
        }
    }
}

/// The refusal of a call that knows no cluster, because of what `sign` says. The runtime comes back, and finds the agent.
pub(crate) fn elsewhere(sign: &Path) -> CniError {
    let sign = sign.display();
    CniError::new(
        Code::TryLater,
        format!(
            "this node's pools are in a cluster ({sign} says so), and no setting of this call names it"
        ),
    )
    .details(format!(
        "start the node's agent (the berth daemon set's pod, or `berth agent` with its --kubeconfig), or name the cluster \
         as kubernetes.kubeconfig in the node's flat file (a network does not name it here); on a machine that has left its cluster for good, \
         remove {sign}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_marked_until_the_mark_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let database = dir.path().join("berth.db");
        let mark = ClusterMarker::beside(&database);
        mark.refuse().unwrap();
        for _ in 0..2 {
            mark.leave().unwrap();
            let refused = ClusterMarker::beside(&database).refuse().unwrap_err();
            assert_eq!(refused.code, Code::TryLater);
            assert!(refused.msg.contains("berth.cluster"), "{}", refused.msg);
        }
        fs::remove_file(dir.path().join("berth.cluster")).unwrap();
        mark.refuse().unwrap();
    }

    #[test]
    fn what_can_t_be_looked_at_is_no_reason_to_give() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        let mark = ClusterMarker::beside(&file.join("berth.db"));
        assert_eq!(mark.refuse().unwrap_err().code, Code::TryLater);
        assert!(mark.leave().is_err());
    }
}
