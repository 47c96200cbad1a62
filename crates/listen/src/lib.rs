//! The HTTP server behind every listener of Berth: agent socket, health and metrics, leader desk, VM API.
//!
//! Guarantees, whatever a client sends or fails to send:
//! - a request head is complete within 10 s and 16 KiB, its body within 5 s, a TLS handshake within 5 s;
//! - connections are limited per peer and in total; at a limit the oldest connection that waits for its client is
//!   closed in favour of the new one, so that clients that hold connections open lock no other client out;
//! - request bodies that are held at one time are limited in total, whatever each route allows;
//! - a handler runs before the body is read: it can refuse a request by its head alone.
#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing
    )
)]

mod body;
mod connection;
pub mod exposition;
mod files;
mod gate;
mod peer;
mod recent;
mod serve;
mod strikes;
mod tally;

use std::time::Duration;

pub use body::{RefusalForm, Refused};
pub use connection::drive;
pub use files::warn_if_readable_by_others;
pub use peer::Peer;
pub use recent::Recent;
pub use serve::{Server, Transport};
pub use strikes::Strikes;
pub use tally::Tally;

/// The limits of one listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// From the first byte, or the last answer, to the end of a request's head.
    pub head: Duration,
    pub head_bytes: usize,
    /// From the end of a request's head to the end of its body.
    pub body: Duration,
    /// How long a client may read nothing of a response.
    pub write: Duration,
    pub handshake: Duration,
    /// Connections at a time.
    pub connections: usize,
    /// Connections of one peer at a time: an IPv4 address or an IPv6 /64.
    pub per_peer: usize,
    /// Bytes of request bodies held at a time, until their answers.
    pub body_bytes: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            head: Duration::from_secs(10),
            head_bytes: 16 * 1024,
            body: Duration::from_secs(5),
            write: Duration::from_secs(10),
            handshake: Duration::from_secs(5),
            connections: 256,
            per_peer: 64,
            body_bytes: 32 * 1024 * 1024,
        }
    }
}
