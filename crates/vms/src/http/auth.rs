//! The same API on TCP, for those who have the token.
//!
//! Promises that nothing is served without the token, not even the description; that comparing it
//! takes the same time whatever was sent; and that a token replaced in its file counts from the
//! next request on. There is no TLS here: put it on loopback or behind a proxy that has it.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use thiserror::Error;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::answer::Failure;
use crate::Fleet;
use crate::settings::TcpListen;

/// Shorter ones can be guessed.
const MIN_TOKEN: usize = 16;

#[derive(Debug, Error)]
pub enum TcpError {
    #[error("can't listen on {address}")]
    Listen {
        address: std::net::SocketAddr,
        #[source]
        source: io::Error,
    },
    #[error("vm-token-file {path:?}: {why}")]
    Token { path: PathBuf, why: String },
}

/// Serves until `end`. Fails at once if the token can't be read or the address is taken.
pub async fn serve_tcp(
    fleet: Fleet,
    listen: &TcpListen,
    end: CancellationToken,
) -> Result<(), TcpError> {
    token(&listen.token_file)?;
    let address = listen.address;
    let bound = TcpListener::bind(address).await;
    let listener = bound.map_err(|source| TcpError::Listen { address, source })?;
    let file = Arc::new(listen.token_file.clone());
    let guarded = Router::new()
        .nest("/v1/vms", super::router(fleet))
        .layer(middleware::from_fn_with_state(file, check));
    tokio::spawn(async move {
        let served = axum::serve(listener, guarded).with_graceful_shutdown(end.cancelled_owned());
        if let Err(error) = served.await {
            tracing::error!(%address, %error, "the VM pools are no longer served on TCP");
        }
    });
    tracing::info!(%address, "the VM pools are served on TCP");
    Ok(())
}

fn token(path: &PathBuf) -> Result<String, TcpError> {
    let refuse = |why: String| TcpError::Token {
        path: path.clone(),
        why,
    };
    let text = std::fs::read_to_string(path).map_err(|error| refuse(error.to_string()))?;
    let token = text.trim();
    if token.len() < MIN_TOKEN {
        return Err(refuse(format!(
            "a token has at least {MIN_TOKEN} characters"
        )));
    }
    Ok(token.into())
}

async fn check(State(file): State<Arc<PathBuf>>, request: Request, next: Next) -> Response {
    let sent = request.headers().get(header::AUTHORIZATION);
    let sent = sent
        .map(HeaderValue::as_bytes)
        .and_then(|value| value.strip_prefix(b"Bearer "));
    let expected = match token(&file) {
        Ok(expected) => expected,
        Err(error) => {
            tracing::error!(%error, "nobody is let in");
            return refuse(StatusCode::SERVICE_UNAVAILABLE, "the token can't be read");
        }
    };
    match sent {
        Some(sent) if same(sent, expected.as_bytes()) => next.run(request).await,
        _ => refuse(StatusCode::UNAUTHORIZED, "a bearer token is needed"),
    }
}

fn refuse(status: StatusCode, error: &str) -> Response {
    let failure = Failure {
        error: error.into(),
        code: "unauthorized".into(),
        retry: false,
    };
    (status, axum::Json(failure)).into_response()
}

/// Looks at every byte of the token whatever was sent.
fn same(sent: &[u8], expected: &[u8]) -> bool {
    let mut differ = u8::from(sent.len() != expected.len());
    for (n, byte) in expected.iter().enumerate() {
        differ |= byte ^ sent.get(n).copied().unwrap_or(!byte);
    }
    differ == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_compared_whole() {
        for (sent, ok) in [
            ("secret", true),
            ("secre", false),
            ("secrets", false),
            ("Secret", false),
            ("", false),
        ] {
            assert_eq!(same(sent.as_bytes(), b"secret"), ok, "{sent:?}");
        }
    }

    #[test]
    fn a_short_token_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        assert!(token(&path).is_err());
        std::fs::write(&path, "short\n").unwrap();
        assert!(
            token(&path)
                .unwrap_err()
                .to_string()
                .contains("at least 16")
        );
        std::fs::write(&path, "0123456789abcdef\n").unwrap();
        assert_eq!(token(&path).unwrap(), "0123456789abcdef");
    }
}
