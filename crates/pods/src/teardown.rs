//! The errors of a teardown: it goes on past each of them, and reports them all.

use crate::error::PodError;

/// The errors so far.
#[derive(Debug, Default)]
pub(crate) struct Errors(Vec<PodError>);

impl Errors {
    pub(crate) fn push(&mut self, error: PodError) {
        match error {
            PodError::Several(more) => self.0.extend(more),
            error => self.0.push(error),
        }
    }

    /// Success with `done` if there were none.
    pub(crate) fn into_result<T>(mut self, done: T) -> Result<T, PodError> {
        match self.0.len() {
            0 => Ok(done),
            1 => Err(self.0.remove(0)),
            _ => Err(PodError::Several(self.0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use berth_cni::{CniError, Code};
    use berth_ledger::LedgerError;

    use super::*;

    fn away(pool: &str) -> PodError {
        PodError::from(LedgerError::Unavailable {
            target: pool.to_owned(),
            why: "refused".to_owned(),
            retry_after: None,
        })
    }

    #[test]
    fn every_error_is_reported() {
        assert_eq!(Errors::default().into_result(1).unwrap(), 1);
        let mut inner = Errors::default();
        inner.push(away("one"));
        inner.push(PodError::Mismatch("two".to_owned()));
        let mut errors = Errors::default();
        errors.push(inner.into_result(()).unwrap_err());
        errors.push(away("three"));
        let error = CniError::from(errors.into_result(()).unwrap_err());
        assert_eq!(error.code, Code::TryLater);
        for part in ["one", "two", "three"] {
            assert!(error.msg.contains(part), "{}", error.msg);
        }
    }
}
