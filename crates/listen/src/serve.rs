//! The accept loop of a listener.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::body::Budget;
use crate::connection::{Common, converse};
use crate::gate::{Gate, Slot};
use crate::{Limits, Peer, Tally};

/// Pause after a failed accept (too many open files), to limit log lines.
const BACKOFF: Duration = Duration::from_millis(100);

/// Where connections come from.
#[derive(Debug)]
pub enum Transport {
    /// Only root can connect: a new connection waits for a place instead of replacing another.
    Unix(UnixListener),
    Tcp(TcpListener),
    Tls(TcpListener, Arc<ServerConfig>),
}

enum Accepted {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Transport {
    async fn accept(&self) -> io::Result<(Accepted, Peer)> {
        match self {
            Transport::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                Ok((Accepted::Unix(stream), Peer::Local))
            }
            Transport::Tcp(listener) | Transport::Tls(listener, _) => {
                let (stream, address) = listener.accept().await?;
                // Answers are small and written whole.
                let _ = stream.set_nodelay(true);
                Ok((Accepted::Tcp(stream), Peer::of(address)))
            }
        }
    }
}

/// A listener and its routes.
#[derive(Debug)]
pub struct Server {
    /// For logs.
    pub name: &'static str,
    pub transport: Transport,
    pub routes: Router,
    pub limits: Limits,
}

impl Server {
    /// Serves until `end`, then completes requests in progress.
    pub async fn run(self, end: CancellationToken) {
        let Server {
            name,
            transport,
            routes,
            limits,
        } = self;
        let tls = match &transport {
            Transport::Tls(_, config) => Some(TlsAcceptor::from(Arc::clone(config))),
            _ => None,
        };
        let gate = Gate::new(&Limits {
            // Local processes can't be distinguished.
            per_peer: match &transport {
                Transport::Unix(_) => limits.connections,
                _ => limits.per_peer,
            },
            ..limits
        });
        let common = Common {
            routes,
            limits,
            budget: Budget::new(limits.body_bytes),
            end: end.clone(),
        };
        let refused = Tally::new("connections were refused: all that are open are being served");
        let failed = Tally::new("connections could not be accepted");
        let open = TaskTracker::new();
        loop {
            let accepted = tokio::select! {
                accepted = transport.accept() => accepted,
                () = end.cancelled() => break,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    failed.note(|| format!("{name}: {error}"));
                    tokio::time::sleep(BACKOFF).await;
                    continue;
                }
            };
            let slot = match stream {
                Accepted::Unix(_) => wait_for_slot(&gate, peer, &open, &end).await,
                Accepted::Tcp(_) => gate.enter(peer),
            };
            let Some(slot) = slot else {
                refused.note(|| format!("{name}: {peer}"));
                continue;
            };
            open.spawn(serve(stream, peer, slot, tls.clone(), common.clone()));
        }
        // A client that connects now would wait in the backlog of a server that has stopped.
        drop(transport);
        open.close();
        open.wait().await;
    }
}

/// A place on a listener whose clients are trusted: they wait in the backlog instead of losing a connection.
async fn wait_for_slot(
    gate: &Arc<Gate>,
    peer: Peer,
    open: &TaskTracker,
    end: &CancellationToken,
) -> Option<Slot> {
    loop {
        if let Some(slot) = gate.enter_if_free(peer) {
            return Some(slot);
        }
        let before = open.len();
        while open.len() >= before {
            if end.is_cancelled() {
                return None;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

async fn serve(stream: Accepted, peer: Peer, slot: Slot, tls: Option<TlsAcceptor>, common: Common) {
    let activity = Arc::clone(&slot.activity);
    match (stream, tls) {
        (Accepted::Unix(stream), _) => converse(stream, peer, activity, common).await,
        (Accepted::Tcp(stream), None) => converse(stream, peer, activity, common).await,
        (Accepted::Tcp(stream), Some(tls)) => {
            let greeted = tokio::time::timeout(common.limits.handshake, tls.accept(stream));
            let stream = tokio::select! {
                greeted = greeted => greeted,
                () = activity.closed.cancelled() => return,
                () = common.end.cancelled() => return,
            };
            if let Ok(Ok(stream)) = stream {
                converse(stream, peer, activity, common).await;
            }
        }
    }
    drop(slot);
}
