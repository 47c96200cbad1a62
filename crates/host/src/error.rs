//! What can go wrong, and the exit code that says which kind it is: nmstatectl's.

use std::time::Duration;

use nmstate::NmstateError;
use thiserror::Error;

#[derive(Debug, Error)]
pub enum HostError {
    /// nmstate's own words, as nmstatectl prints them.
    #[error("NmstateError: {0}")]
    Nmstate(#[from] NmstateError),
    #[error("{0}")]
    Input(String),
    #[error("serde_yaml::Error: {0}")]
    Yaml(#[from] serde_yaml::Error),
    #[error("serde_json::Error {0}")]
    Json(#[from] serde_json::Error),
    #[error("{what}: {source}")]
    Io {
        what: String,
        source: std::io::Error,
    },
    /// The state was not applied; the host is as it was.
    #[error("{cause}\nthe change was rolled back")]
    RolledBack { cause: String },
    /// The state was not applied, and the host is not as it was.
    #[error(
        "{cause}\nthe rollback is incomplete: {left}; correct it by hand, `berth-host rollback` tries again"
    )]
    HalfWay { cause: String, left: String },
    #[error("the apply did not finish within {} s", .0.as_secs())]
    Hung(Duration),
    #[error("{0}")]
    Refused(String),
    #[error("the kernel's state can't be read or changed: {0}")]
    Kernel(String),
}

impl HostError {
    pub fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> HostError {
        let what = what.into();
        move |source| HostError::Io { what, source }
    }

    /// 65 (EX_DATAERR) for input that can't be read, else 1.
    pub const fn code(&self) -> u8 {
        match self {
            HostError::Yaml(_) | HostError::Json(_) => 65,
            _ => 1,
        }
    }
}

impl From<nispor::NisporError> for HostError {
    fn from(error: nispor::NisporError) -> HostError {
        HostError::Kernel(format!("{}: {}", error.kind, error.msg))
    }
}
