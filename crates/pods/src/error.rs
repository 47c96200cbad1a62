//! Why a call failed, and the CNI error that the runtime gets.

use berth_cni::{CniError, Code};
use berth_core::{Address, Refusal};
use berth_desk::DeskError;
use berth_ledger::{LedgerError, Rejection};
use berth_slices::SliceError;

use berth_collector::ReadError;

/// A failed verb. The variants differ in what the runtime and the user can do about it.
#[derive(Debug, thiserror::Error)]
pub enum PodError {
    /// No address of a range is free now: wait for one to be released, or widen the range.
    #[error("Could not allocate IP in range: {0}")]
    NoAddress(Refusal),
    /// The address that was asked for by name can't be allocated.
    #[error("{address} can't be allocated: {why}")]
    Named { address: Address, why: String },
    /// The store refused, or did not answer.
    #[error("error at storage engine: {0}")]
    Store(LedgerError),
    /// The desk did not answer.
    #[error("error at storage engine: {0}")]
    Desk(DeskError),
    /// An address that outlives its pod can't be allocated now.
    #[error("{0}")]
    Sticky(String),
    /// This node has no slice to allocate from.
    #[error("{0}")]
    Slice(SliceError),
    /// The address is there, and the API server is not, which alone knows whether an overlapping network has it.
    #[error(
        "the check for overlapping ranges can't be made: {0}; enable_overlapping_ranges: false does without it"
    )]
    Unchecked(LedgerError),
    /// The link could not be probed.
    #[error("probe: {0}")]
    Probe(String),
    /// CHECK: the record and the container differ.
    #[error("{0}")]
    Mismatch(String),
    /// CHECK of a container that has nothing here.
    #[error("{0}")]
    Unknown(String),
    /// All errors of a teardown, in their order; at least two.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Several(Vec<PodError>),
    /// The call itself cannot be served.
    #[error(transparent)]
    Call(#[from] CniError),
}

impl From<LedgerError> for PodError {
    fn from(error: LedgerError) -> PodError {
        PodError::Store(error)
    }
}

impl From<SliceError> for PodError {
    fn from(error: SliceError) -> PodError {
        match error {
            SliceError::Store(error) => PodError::Store(error),
            SliceError::Desk(error) => PodError::Desk(error),
            other => PodError::Slice(other),
        }
    }
}

impl From<ReadError> for PodError {
    fn from(error: ReadError) -> PodError {
        PodError::Sticky(error.to_string())
    }
}

impl From<DeskError> for PodError {
    fn from(error: DeskError) -> PodError {
        PodError::Desk(error)
    }
}

impl PodError {
    /// Whether the same call may succeed if it is repeated.
    pub fn is_passing(&self) -> bool {
        let passing = |error: &LedgerError| {
            // Releases make room, as they free addresses.
            let later = matches!(error, LedgerError::Moved { .. } | LedgerError::Full { .. });
            error.is_passing() || error.needs_reload() || later || is_forbidden(error)
        };
        match self {
            PodError::Slice(SliceError::Cut(_)) => false,
            PodError::NoAddress(_)
            | PodError::Named { .. }
            | PodError::Sticky(_)
            | PodError::Slice(_)
            | PodError::Unchecked(_) => true,
            PodError::Store(error) => passing(error),
            PodError::Desk(DeskError::Ledger(error)) => passing(error),
            PodError::Desk(_) => true,
            PodError::Several(errors) => errors.iter().any(PodError::is_passing),
            PodError::Probe(_)
            | PodError::Mismatch(_)
            | PodError::Unknown(_)
            | PodError::Call(_) => false,
        }
    }

    /// Whether the cluster does not take the token that this process has.
    pub(crate) fn is_unauthenticated(&self) -> bool {
        let unknown = |error: &LedgerError| match error {
            LedgerError::Rejected { rejection, .. } => {
                matches!(rejection, Rejection::Unauthenticated(_))
            }
            _ => false,
        };
        match self {
            PodError::Store(error) => unknown(error),
            PodError::Desk(DeskError::Ledger(error)) => unknown(error),
            PodError::Several(errors) => errors.iter().all(PodError::is_unauthenticated),
            _ => false,
        }
    }
}

/// An API server that has just started refuses every request until it has read the roles; and a right that is missing
/// may be granted at any time.
fn is_forbidden(error: &LedgerError) -> bool {
    let LedgerError::Rejected { rejection, .. } = error else {
        return false;
    };
    matches!(rejection, Rejection::Forbidden(_))
}

impl From<PodError> for CniError {
    fn from(error: PodError) -> CniError {
        let code = match &error {
            PodError::Call(error) => return error.clone(),
            PodError::Mismatch(_) => Code::Mismatch,
            PodError::Unknown(_) => Code::UnknownContainer,
            _ if error.is_passing() => Code::TryLater,
            _ => Code::Internal,
        };
        CniError::new(code, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_refuses_before_it_has_read_its_roles_may_be_tried_again() {
        let refused = |rejection| LedgerError::Rejected {
            operation: "get",
            target: "IPPool kube-system/10.0.0.0-24".into(),
            rejection,
        };
        let code = |error: LedgerError| CniError::from(PodError::from(error)).code;
        let forbidden = Rejection::Forbidden("User \"x\" cannot get resource".into());
        assert_eq!(code(refused(forbidden)), Code::TryLater);
        let invalid = Rejection::Invalid {
            code: 422,
            message: "spec.range".into(),
        };
        assert_eq!(code(refused(invalid)), Code::Internal);
        let expired = Rejection::Unauthenticated("the token is not valid".into());
        assert_eq!(code(refused(expired)), Code::Internal);
    }
}
