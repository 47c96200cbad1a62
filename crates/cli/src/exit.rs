//! Exit codes, and the only place that prints an error with its causes.
//!
//! | code | meaning |
//! |---|---|
//! | 0 | done |
//! | 1 | another failure |
//! | 2 | the command line is wrong, or a range in it can't be parsed |
//! | 3 | no such pool or address |
//! | 4 | refused: held by another owner, exhausted, declined by the user |
//! | 5 | the store can't be reached or is busy: try again |
//! | 6 | the store can't be read, or refuses permanently: a person has to act |
//! | 7 | the address's holder is alive, or nothing proves that it is gone |

use std::process::ExitCode;

use berth_core::{ByHandError, RangeError};
use berth_desk::DeskError;
use berth_gcp::cloud::CloudError;
use berth_gcp::provision::executor::{PoolsError, ProvisionError};
use berth_install::InstallError;
use berth_kube::KubeError;
use berth_ledger::LedgerError;
use berth_pods::PodError;
use berth_pods::by_hand::NetworkError;
use thiserror::Error;

/// Results that are neither a success nor a failure of the program.
#[derive(Debug, Error)]
pub enum Negative {
    #[error("{0}")]
    Usage(String),
    #[error("{0}")]
    NotFound(String),
    #[error("{0}")]
    Refused(String),
    #[error("{0}")]
    Later(String),
    #[error("{0}")]
    Broken(String),
    #[error("{0}")]
    Alive(String),
}

#[allow(clippy::print_stderr)]
pub fn report(outcome: anyhow::Result<()>) -> ExitCode {
    let Err(error) = outcome else {
        return ExitCode::SUCCESS;
    };
    eprintln!("berth: {error}");
    for cause in error.chain().skip(1) {
        eprintln!("  because: {cause}");
    }
    ExitCode::from(code(&error))
}

fn code(error: &anyhow::Error) -> u8 {
    for cause in error.chain() {
        if let Some(negative) = cause.downcast_ref::<Negative>() {
            return match negative {
                Negative::Usage(_) => 2,
                Negative::NotFound(_) => 3,
                Negative::Refused(_) => 4,
                Negative::Later(_) => 5,
                Negative::Broken(_) => 6,
                Negative::Alive(_) => 7,
            };
        }
        if cause.is::<RangeError>() || cause.is::<ByHandError>() {
            return 2;
        }
        if let Some(error) = cause.downcast_ref::<NetworkError>() {
            return of_network(error);
        }
        if let Some(error) = cause.downcast_ref::<PodError>() {
            return of_pod(error);
        }
        if let Some(error) = cause.downcast_ref::<InstallError>() {
            return of_install(error);
        }
        if let Some(error) = cause.downcast_ref::<ProvisionError>() {
            return of_provision(error);
        }
        if let Some(error) = cause.downcast_ref::<CloudError>() {
            return of_cloud(error);
        }
        if let Some(error) = cause.downcast_ref::<KubeError>() {
            return of_kube(error);
        }
        if let Some(error) = cause.downcast_ref::<LedgerError>() {
            return of_ledger(error);
        }
        if let Some(error) = cause.downcast_ref::<DeskError>() {
            return error.ledger().map_or(5, of_ledger);
        }
    }
    1
}

const fn of_install(error: &InstallError) -> u8 {
    match error {
        InstallError::Settings(_) => 2,
        InstallError::Gone { .. } => 3,
        InstallError::Busy { .. } => 5,
        InstallError::Unreadable { .. } | InstallError::EngineConfig { .. } => 6,
        InstallError::Credentials { .. }
        | InstallError::Source { .. }
        | InstallError::Write { .. } => 1,
    }
}

const fn of_provision(error: &ProvisionError) -> u8 {
    match error {
        ProvisionError::Refused(_) | ProvisionError::NoRoom { .. } => 4,
        ProvisionError::Cloud { error, .. } => of_cloud(error),
        ProvisionError::Pool { error, .. } => match error {
            PoolsError::Conflict(_) | PoolsError::Unavailable(_) => 5,
            PoolsError::Refused(_) => 6,
        },
        ProvisionError::Unreadable { .. } => 6,
        ProvisionError::Endless(_) => 1,
    }
}

const fn of_cloud(error: &CloudError) -> u8 {
    match error {
        CloudError::NotFound(_) => 3,
        CloudError::InUse(_) | CloudError::Quota(_) | CloudError::NicFull(_) => 4,
        CloudError::Stale(_)
        | CloudError::NotReady(_)
        | CloudError::RateLimited { .. }
        | CloudError::AlreadyExists(_)
        | CloudError::Unavailable(_)
        | CloudError::OperationTimeout(_) => 5,
        CloudError::Denied(_) | CloudError::Unauthenticated(_) | CloudError::Refused(_) => 6,
    }
}

const fn of_kube(error: &KubeError) -> u8 {
    match error {
        KubeError::Conflict { .. }
        | KubeError::OutcomeUnknown { .. }
        | KubeError::Unavailable { .. } => 5,
        KubeError::Unreadable { .. } | KubeError::Rejected { .. } => 6,
    }
}

const fn of_network(error: &NetworkError) -> u8 {
    match error {
        NetworkError::Definition { .. } => 2,
        NetworkError::Absent(_) => 3,
        NetworkError::Unusable { .. } => 4,
        NetworkError::ReadError(_) => 5,
    }
}

fn of_pod(error: &PodError) -> u8 {
    match error {
        PodError::Store(error) => of_ledger(error),
        PodError::Desk(error) => error.ledger().map_or(5, of_ledger),
        error if error.is_passing() => 5,
        _ => 1,
    }
}

const fn of_ledger(error: &LedgerError) -> u8 {
    match error {
        LedgerError::Taken { .. } => 4,
        LedgerError::Unavailable { .. }
        | LedgerError::Uncertain { .. }
        | LedgerError::Conflict { .. } => 5,
        LedgerError::Unreadable { .. }
        | LedgerError::Full { .. }
        | LedgerError::Moved { .. }
        | LedgerError::Rejected { .. } => 6,
    }
}
