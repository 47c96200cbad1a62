//! Errors as Google's APIs answer them.

use serde_json::{Value, json};

/// An answer that is not 2xx.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    pub code: u16,
    /// The reason of the first error, as in `conditionNotMet`.
    pub reason: String,
    pub message: String,
    /// The reason in `details`, where newer quotas name themselves.
    pub detail: Option<String>,
}

impl ApiError {
    pub fn new(code: u16, reason: &str, message: impl Into<String>) -> ApiError {
        ApiError {
            code,
            reason: reason.to_owned(),
            message: message.into(),
            detail: None,
        }
    }

    pub fn invalid(message: impl Into<String>) -> ApiError {
        ApiError::new(400, "invalid", message)
    }

    pub fn not_found(path: &str) -> ApiError {
        let message = format!("The resource '{path}' was not found");
        ApiError::new(404, "notFound", message)
    }

    pub fn stale() -> ApiError {
        ApiError::new(412, "conditionNotMet", "Invalid fingerprint.")
    }

    /// As the Compute API writes it.
    pub fn body(&self) -> Value {
        let mut error = json!({
            "code": self.code,
            "message": self.message,
            "errors": [{ "message": self.message, "domain": "global", "reason": self.reason }],
        });
        if let Some(reason) = &self.detail {
            error["details"] = json!([{
                "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                "reason": reason,
                "domain": "compute.googleapis.com",
            }]);
        }
        json!({ "error": error })
    }
}
