//! The same API on TCP, for clients with the token.
//!
//! Guarantees that nothing is served without the token, not even the description; that it is compared in constant
//! time; and that a token replaced in its file counts from the next request on. There is no TLS here: bind it to
//! loopback or put a proxy with TLS in front.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::{Extension, Router};
use berth_listen::{Limits, Peer, Server, Strikes, Tally, Transport, warn_if_readable_by_others};
use thiserror::Error;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::error_response;
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
    warn_if_readable_by_others("vm-token-file", &listen.token_file);
    let door = Arc::new(Door {
        token_file: listen.token_file.clone(),
        strikes: Strikes::default(),
        refused: Tally::new("requests without the right token were refused by the VM API"),
    });
    let guarded = Router::new()
        .nest("/v1/vms", super::router(fleet))
        .fallback(error_response::no_route)
        .layer(middleware::from_fn_with_state(door, check));
    let server = Server {
        name: "VM API",
        transport: Transport::Tcp(listener),
        routes: guarded,
        limits: Limits::default(),
    };
    tokio::spawn(server.run(end));
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

/// The token, and the recent requests without it.
#[derive(Debug)]
struct Door {
    token_file: PathBuf,
    strikes: Strikes,
    refused: Tally,
}

/// Reads only the head: the body of a request that is refused is not read.
async fn check(
    State(door): State<Arc<Door>>,
    Extension(peer): Extension<Peer>,
    request: Request,
    next: Next,
) -> Response {
    let sent = request.headers().get(header::AUTHORIZATION);
    let sent = sent
        .map(HeaderValue::as_bytes)
        .and_then(|value| value.strip_prefix(b"Bearer "));
    let expected = match token(&door.token_file) {
        Ok(expected) => expected,
        Err(error) => {
            door.refused.note(|| error.to_string());
            let why = "the token can't be read";
            return error_response::refuse(StatusCode::SERVICE_UNAVAILABLE, "unauthorized", why);
        }
    };
    match sent {
        Some(sent) if same(sent, expected.as_bytes()) => next.run(request).await,
        // A request with the right token is always served: other clients at the same address can't lock it out.
        _ => {
            door.refused.note(|| peer.to_string());
            let (status, why) = match door.strikes.take(peer) {
                true => (StatusCode::UNAUTHORIZED, "a bearer token is needed"),
                false => (StatusCode::TOO_MANY_REQUESTS, "too many wrong tokens"),
            };
            error_response::refuse(status, "unauthorized", why)
        }
    }
}

/// Compares every byte of the token in constant time.
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
