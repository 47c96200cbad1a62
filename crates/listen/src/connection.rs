//! One HTTP/1.1 connection, from its first byte to its last.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::response::Response;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::body::{Bounded, Budget, Charge};
use crate::gate::Activity;
use crate::{Limits, Peer};

/// How long a connection without a complete request stays open once the server stops.
const FAREWELL: Duration = Duration::from_secs(1);

/// What all connections of a listener share.
#[derive(Clone, Debug)]
pub(crate) struct Common {
    pub routes: Router,
    pub limits: Limits,
    pub budget: Budget,
    pub end: CancellationToken,
}

/// Serves one connection with the limits of a listener, except the number of connections.
pub async fn drive(
    io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: Peer,
    routes: Router,
    limits: Limits,
) {
    let common = Common {
        routes,
        limits,
        budget: Budget::new(limits.body_bytes),
        end: CancellationToken::new(),
    };
    converse(io, peer, Arc::default(), common).await;
}

/// Serves until the client disconnects, a limit is reached, or the server stops.
pub(crate) async fn converse(
    io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: Peer,
    activity: Arc<Activity>,
    common: Common,
) {
    let Limits {
        head, head_bytes, ..
    } = common.limits;
    let io = Progressing {
        io,
        limit: common.limits.write,
        stuck: None,
    };
    let (end, doing) = (common.end.clone(), Arc::clone(&activity));
    let service =
        service_fn(move |request| answer(request, peer, activity.clone(), common.clone()));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        // Also counts from the last answer: a client that is idle for longer reconnects.
        .header_read_timeout(head)
        .max_header_size(head_bytes)
        .max_buf_size(head_bytes.max(8 * 1024))
        .serve_connection(TokioIo::new(io), service);
    tokio::pin!(connection);
    tokio::select! {
        _ = connection.as_mut() => return,
        () = doing.closed.cancelled() => return,
        () = end.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    while tokio::time::timeout(FAREWELL, connection.as_mut())
        .await
        .is_err()
    {
        if !doing.is_serving() {
            return;
        }
    }
}

async fn answer(
    request: Request<Incoming>,
    peer: Peer,
    activity: Arc<Activity>,
    common: Common,
) -> Result<Response, Infallible> {
    let charge = Charge::new(&common.budget);
    let limit = common.limits.body;
    let mut request = request.map(|body| Bounded::wrap(body, limit, &charge, &activity));
    request.extensions_mut().insert(peer);
    let response = common.routes.oneshot(request).await?;
    activity.wait();
    Ok(charge.refusal(&response).unwrap_or(response))
}

/// A stream whose client must read what is written: it is disconnected if it reads nothing for `limit`.
struct Progressing<I> {
    io: I,
    limit: Duration,
    stuck: Option<Pin<Box<Sleep>>>,
}

impl<I: Unpin> Progressing<I> {
    fn judge<T>(
        &mut self,
        polled: Poll<io::Result<T>>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.stuck = None;
            return polled;
        }
        let limit = self.limit;
        let stuck = self
            .stuck
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        match stuck.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Progressing<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buffer)
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Progressing<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.io).poll_write(cx, data);
        self.judge(polled, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.io).poll_write_vectored(cx, data);
        self.judge(polled, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.io).poll_flush(cx);
        self.judge(polled, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.io).poll_shutdown(cx);
        self.judge(polled, cx)
    }
}
