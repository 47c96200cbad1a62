//! The leader's side: listens, checks who asks, puts what is asked to the pool's desk.
//!
//! Promises that it answers only while it leads; that what was granted is not taken back because nobody heard it (the
//! node may have found it in the ledger); and that a connection that says nothing costs a few kilobytes for a few
//! seconds.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use berth_desk::Desks;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::guard::{Guard, Refused};
use crate::wire::{Batch, MAX_BODY, PATH, Replies};
use crate::{AUDIENCE, Identity};

/// From the first byte of a connection to the end of its handshake, and of a request's head.
const GREETING: Duration = Duration::from_secs(5);

/// The longest that a request may wait, whatever its sender says.
const LIMIT: Duration = Duration::from_secs(30);

/// Pause after a failure to accept (too many open files), lest it fill the log.
const BREATH: Duration = Duration::from_millis(100);

/// What serves the nodes.
#[derive(Clone)]
pub struct Counter {
    desks: Desks,
    guard: Arc<Guard>,
    leads: Arc<dyn Fn() -> bool + Send + Sync>,
    /// Requests under way: they end before the process does, heard or not.
    under_way: TaskTracker,
}

impl fmt::Debug for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counter").finish_non_exhaustive()
    }
}

impl Counter {
    /// `leads` tells whether this process leads, at the time it is asked.
    pub fn new(
        desks: Desks,
        guard: Guard,
        leads: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Counter {
        Counter {
            desks,
            guard: Arc::new(guard),
            leads: Arc::new(leads),
            under_way: TaskTracker::new(),
        }
    }
}

/// Serves until `end`, then finishes what is under way.
pub async fn serve(
    listener: TcpListener,
    identity: &Identity,
    counter: Counter,
    end: CancellationToken,
) -> io::Result<()> {
    let acceptor = TlsAcceptor::from(identity.server());
    let routes = Router::new()
        .route(PATH, post(put))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(counter.clone());
    let connections = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = end.cancelled() => break,
        };
        match accepted {
            Ok((stream, _)) => {
                let served = converse(stream, acceptor.clone(), routes.clone(), end.clone());
                connections.spawn(served);
            }
            Err(error) => {
                tracing::warn!(%error, "a connection to the common desk was not taken");
                tokio::time::sleep(BREATH).await;
            }
        }
    }
    connections.close();
    counter.under_way.close();
    counter.under_way.wait().await;
    connections.wait().await;
    Ok(())
}

async fn converse(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    routes: Router,
    end: CancellationToken,
) {
    let _ = stream.set_nodelay(true);
    let Ok(Ok(stream)) = tokio::time::timeout(GREETING, acceptor.accept(stream)).await else {
        return;
    };
    let service = TowerToHyperService::new(routes);
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        // Counts from the last answer on too: an agent that is quiet for longer connects anew.
        .header_read_timeout(LIMIT)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    tokio::select! {
        _ = connection.as_mut() => {}
        () = end.cancelled() => {
            connection.as_mut().graceful_shutdown();
            let _ = tokio::time::timeout(GREETING, connection).await;
        }
    }
}

async fn put(State(counter): State<Counter>, headers: HeaderMap, body: Bytes) -> Response {
    if !(counter.leads)() {
        let text = "this process does not lead; the Lease says who does\n";
        return (StatusCode::MISDIRECTED_REQUEST, text).into_response();
    }
    let token = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    let Some(token) = token else {
        let text = format!("say who you are: Authorization: Bearer, a token for {AUDIENCE}\n");
        return (StatusCode::UNAUTHORIZED, text).into_response();
    };
    let batch: Batch = match serde_json::from_slice(&body) {
        Ok(batch) => batch,
        Err(error) => {
            let text = format!("the batch can't be read: {error}\n");
            return (StatusCode::BAD_REQUEST, text).into_response();
        }
    };
    if let Err(refused) = counter.guard.check(token, &batch.node).await {
        let status = match refused {
            Refused::Unknown(_) => StatusCode::UNAUTHORIZED,
            Refused::Forbidden(_) => StatusCode::FORBIDDEN,
            Refused::Blind(_) => StatusCode::SERVICE_UNAVAILABLE,
        };
        tracing::warn!(node = batch.node, %refused, "not served at the common desk");
        return (status, format!("{refused}\n")).into_response();
    }
    let limit = Duration::from_millis(batch.limit_ms).min(LIMIT);
    let desk = counter.desks.of(&batch.pool);
    // In a task of its own: a caller that hangs up must not leave half of its batch in the queue.
    let answered = counter
        .under_way
        .spawn(async move { desk.submit_for(batch.requests, limit).await });
    let Ok(answered) = answered.await else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    let answers = answered
        .into_iter()
        .map(|answer| {
            answer
                .inspect_err(|error| tracing::debug!(node = batch.node, %error, "left to the node"))
                .ok()
        })
        .collect();
    axum::Json(Replies { answers }).into_response()
}
