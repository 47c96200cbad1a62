//! Failures as HTTP responses: the status for simple clients, a code for programs, and the whole chain of causes for
//! people.

use axum::Json;
use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use berth_desk::DeskError;
use berth_ledger::{LedgerError, chain};
use berth_listen::{RefusalForm, Refused};
use serde::{Deserialize, Serialize};

use crate::PoolError;

/// The response to a failed request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub error: String,
    /// For programs: stays the same when the text changes.
    pub code: String,
    /// Whether the same request may succeed later.
    pub retry: bool,
}

impl IntoResponse for PoolError {
    fn into_response(self) -> Response {
        let (status, code, retry) = classify(&self);
        let failure = Failure {
            error: chain(&self),
            code: code.into(),
            retry,
        };
        let mut response = (status, Json(failure)).into_response();
        if status == StatusCode::SERVICE_UNAVAILABLE {
            let headers = response.headers_mut();
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

/// A failure that does not come from a pool.
pub(super) fn refuse(status: StatusCode, code: &str, error: impl Into<String>) -> Response {
    let failure = Failure {
        error: error.into(),
        code: code.into(),
        retry: false,
    };
    (status, Json(failure)).into_response()
}

/// Gives the listener's own refusals the same form as every other failure.
pub(super) async fn with_form(mut response: Response) -> Response {
    response.extensions_mut().insert(RefusalForm(cut_short));
    response
}

fn cut_short(refused: Refused) -> Response {
    let code = match refused {
        Refused::Late => "body-late",
        Refused::NoRoom => "busy",
    };
    let failure = Failure {
        error: refused.text().into(),
        code: code.into(),
        retry: true,
    };
    let mut response = (refused.status(), Json(failure)).into_response();
    if refused == Refused::NoRoom {
        let headers = response.headers_mut();
        headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

/// 404: no such path.
pub(super) async fn no_route(uri: Uri) -> Response {
    let path: String = uri.path().chars().take(80).collect();
    let error = format!("there is nothing at {path:?}: see openapi.json");
    refuse(StatusCode::NOT_FOUND, "unknown-path", error)
}

/// 405: the path exists, with other methods.
pub(super) async fn no_method(method: Method) -> Response {
    let error = format!("{method} is no method of this path: see openapi.json");
    refuse(StatusCode::METHOD_NOT_ALLOWED, "unknown-method", error)
}

fn classify(error: &PoolError) -> (StatusCode, &'static str, bool) {
    match error {
        PoolError::Exhausted { .. } => (StatusCode::CONFLICT, "exhausted", true),
        PoolError::TooLate { .. } => (StatusCode::GATEWAY_TIMEOUT, "too-late", true),
        PoolError::BeingChecked { .. } => (StatusCode::CONFLICT, "being-checked", true),
        PoolError::Deallocated(_) => (StatusCode::CONFLICT, "deallocated", false),
        PoolError::TooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, "too-large", false),
        PoolError::BeingCleaned { .. } => (StatusCode::CONFLICT, "being-cleaned", true),
        PoolError::Invalid { .. } => (StatusCode::BAD_REQUEST, "invalid", false),
        PoolError::Starting { .. } => (StatusCode::SERVICE_UNAVAILABLE, "starting", true),
        PoolError::UnknownPool { .. } => (StatusCode::NOT_FOUND, "unknown-pool", false),
        PoolError::UnknownAllocation(_) => (StatusCode::NOT_FOUND, "unknown-allocation", false),
        PoolError::UnknownIp(_) => (StatusCode::NOT_FOUND, "unknown-ip", false),
        PoolError::Vm(_) => (StatusCode::BAD_GATEWAY, "vm", true),
        PoolError::Desk(DeskError::Ledger(_)) | PoolError::Ledger(_) => state(error.ledger()),
        PoolError::Desk(_) => (StatusCode::SERVICE_UNAVAILABLE, "busy", true),
    }
}

fn state(error: Option<&LedgerError>) -> (StatusCode, &'static str, bool) {
    match error {
        Some(LedgerError::Full { .. }) => (StatusCode::INSUFFICIENT_STORAGE, "state-full", false),
        Some(LedgerError::Unreadable { .. }) => {
            (StatusCode::INTERNAL_SERVER_ERROR, "state-unreadable", false)
        }
        Some(LedgerError::Rejected { .. } | LedgerError::Taken { .. }) => {
            (StatusCode::INTERNAL_SERVER_ERROR, "state-refused", false)
        }
        _ => (StatusCode::SERVICE_UNAVAILABLE, "state-unavailable", true),
    }
}
