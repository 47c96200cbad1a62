//! Why a call failed, by what the caller does about it.

use std::time::Duration;

use serde_json::Value;
use thiserror::Error;

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CloudError {
    /// Somebody changed the NIC or subnet since it was read: read it again.
    #[error("the fingerprint is stale: {0}")]
    Stale(String),
    /// Another update of the instance is under way: try again soon.
    #[error("the resource is not ready: {0}")]
    NotReady(String),
    /// Over a rate: try again, later.
    #[error("rate limited: {message}")]
    RateLimited {
        message: String,
        retry_after: Option<Duration>,
    },
    /// The address is attached elsewhere.
    #[error("the address is in use: {0}")]
    InUse(String),
    /// A quota of the project is used up; it has to be raised, or resources freed.
    #[error("quota exceeded: {0}")]
    Quota(String),
    /// The NIC has as many alias ranges as it can have.
    #[error("the NIC is full: {0}")]
    NicFull(String),
    #[error("not found: {0}")]
    NotFound(String),
    #[error("already there: {0}")]
    AlreadyExists(String),
    /// The service account lacks a permission; the message names it.
    #[error("permission denied: {0}")]
    Denied(String),
    /// The token was refused.
    #[error("the token was refused: {0}")]
    Unauthenticated(String),
    /// The API refuses the request as such: trying again changes nothing.
    #[error("refused: {0}")]
    Refused(String),
    /// The service failed, could not be reached, or its answer was lost: whether the request was carried out is unknown.
    #[error("unavailable: {0}")]
    Unavailable(String),
    /// The operation has not ended within its time: its outcome is unknown.
    #[error("operation {0} has not ended in time")]
    OperationTimeout(String),
}

/// Reasons of 403 and 429 that pass by themselves.
const RATES: [&str; 7] = [
    "rateLimitExceeded",
    "userRateLimitExceeded",
    "concurrentLimitExceeded",
    "RATE_LIMIT_EXCEEDED",
    "RESOURCE_OPERATION_RATE_EXCEEDED",
    "CONCURRENT_OPERATIONS_QUOTA_EXCEEDED",
    "OPERATION_RATE_EXCEEDED",
];

impl CloudError {
    /// Passes by itself: the same request may succeed later.
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            CloudError::Stale(_)
                | CloudError::NotReady(_)
                | CloudError::RateLimited { .. }
                | CloudError::Unavailable(_)
                | CloudError::OperationTimeout(_)
        )
    }

    /// It can't be known whether the request was carried out.
    pub fn outcome_unknown(&self) -> bool {
        matches!(
            self,
            CloudError::Unavailable(_) | CloudError::OperationTimeout(_)
        )
    }

    /// Of an HTTP answer that is not 2xx.
    pub(crate) fn of_answer(code: u16, body: &[u8], retry_after: Option<Duration>) -> CloudError {
        let value: Value = serde_json::from_slice(body).unwrap_or_default();
        let error = &value["error"];
        let message = error["message"]
            .as_str()
            .map_or_else(|| excerpt(body), str::to_owned);
        let mut reasons: Vec<&str> = Vec::new();
        for list in ["errors", "details"] {
            let entries = error[list].as_array().into_iter().flatten();
            reasons.extend(entries.filter_map(|entry| entry["reason"].as_str()));
        }
        let of = |reason: &str| reasons.contains(&reason);
        match code {
            401 => CloudError::Unauthenticated(message),
            429 => CloudError::RateLimited {
                message,
                retry_after,
            },
            403 if reasons.iter().any(|reason| RATES.contains(reason)) => CloudError::RateLimited {
                message,
                retry_after,
            },
            403 if of("quotaExceeded") => CloudError::Quota(message),
            403 => CloudError::Denied(message),
            404 => CloudError::NotFound(message),
            409 => CloudError::AlreadyExists(message),
            412 => CloudError::Stale(message),
            400 if of("resourceNotReady") => CloudError::NotReady(message),
            400 if of("resourceInUseByAnotherResource") || of("invalidResourceUsage") => {
                CloudError::InUse(message)
            }
            400 if is_nic_full(&message) => CloudError::NicFull(message),
            500.. => CloudError::Unavailable(format!("{code}: {message}")),
            _ => CloudError::Refused(format!("{code}: {message}")),
        }
    }

    /// Of an operation that ended with an error.
    pub(crate) fn of_operation(code: &str, message: &str) -> CloudError {
        let text = format!("{code}: {message}");
        match code {
            "CONDITION_NOT_MET" => CloudError::Stale(text),
            "RESOURCE_NOT_READY" => CloudError::NotReady(text),
            "IP_IN_USE_BY_ANOTHER_RESOURCE" | "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE" => {
                CloudError::InUse(text)
            }
            "QUOTA_EXCEEDED" => CloudError::Quota(text),
            "RESOURCE_NOT_FOUND" => CloudError::NotFound(text),
            "PERMISSIONS_ERROR" => CloudError::Denied(text),
            _ if RATES.contains(&code) => CloudError::RateLimited {
                message: text,
                retry_after: None,
            },
            "INTERNAL_ERROR" | "BACKEND_ERROR" => CloudError::Unavailable(text),
            _ if is_nic_full(message) => CloudError::NicFull(text),
            _ => CloudError::Refused(text),
        }
    }
}

/// The API has no reason of its own for this: the message names the field and the limit.
fn is_nic_full(message: &str) -> bool {
    message.contains("aliasIpRanges") && message.contains("exceed")
}

/// The start of an answer that is not JSON, on one line.
fn excerpt(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let text: String = text
        .chars()
        .take(200)
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    format!("the answer is not JSON: '{}'", text.trim())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn answer(code: u16, reason: &str, message: &str) -> CloudError {
        let body = json!({ "error": { "code": code, "message": message, "errors": [{ "reason": reason }] } });
        CloudError::of_answer(code, body.to_string().as_bytes(), None)
    }

    #[test]
    fn each_refusal_is_told_apart() {
        let text = "m".to_owned();
        let rate = CloudError::RateLimited {
            message: text.clone(),
            retry_after: None,
        };
        assert_eq!(
            answer(412, "conditionNotMet", "m"),
            CloudError::Stale(text.clone())
        );
        assert_eq!(
            answer(400, "resourceNotReady", "m"),
            CloudError::NotReady(text.clone())
        );
        assert_eq!(answer(403, "rateLimitExceeded", "m"), rate);
        assert_eq!(answer(429, "whatever", "m"), rate);
        assert_eq!(
            answer(403, "forbidden", "m"),
            CloudError::Denied(text.clone())
        );
        assert_eq!(
            answer(403, "quotaExceeded", "m"),
            CloudError::Quota(text.clone())
        );
        assert_eq!(
            answer(404, "notFound", "m"),
            CloudError::NotFound(text.clone())
        );
        assert_eq!(
            answer(503, "backendError", "m"),
            CloudError::Unavailable("503: m".to_owned())
        );
        assert_eq!(
            answer(400, "invalid", "m"),
            CloudError::Refused("400: m".to_owned())
        );
        let body = json!({ "error": { "message": "m", "details": [{ "reason": "CONCURRENT_OPERATIONS_QUOTA_EXCEEDED" }] } });
        assert_eq!(
            CloudError::of_answer(403, body.to_string().as_bytes(), None),
            rate
        );
        let html = CloudError::of_answer(502, b"<html>\nbad</html>", None);
        assert_eq!(
            html,
            CloudError::Unavailable("502: the answer is not JSON: '<html> bad</html>'".to_owned())
        );
    }

    #[test]
    fn what_an_operation_failed_with_is_told_apart() {
        assert!(matches!(
            CloudError::of_operation("CONDITION_NOT_MET", ""),
            CloudError::Stale(_)
        ));
        assert!(matches!(
            CloudError::of_operation("IP_IN_USE_BY_ANOTHER_RESOURCE", ""),
            CloudError::InUse(_)
        ));
        assert!(matches!(
            CloudError::of_operation("QUOTA_EXCEEDED", ""),
            CloudError::Quota(_)
        ));
        assert!(matches!(
            CloudError::of_operation("SOMETHING", ""),
            CloudError::Refused(_)
        ));
    }
}
