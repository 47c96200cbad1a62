//! How many failed authentications a peer may cause: ten at once, then one every six seconds.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::Peer;
use parking_lot::Mutex;

const BURST: f64 = 10.0;
const REFILL: Duration = Duration::from_secs(6);
/// Peers remembered at once.
const PEERS: usize = 10_000;

/// A token bucket for each peer.
#[derive(Debug, Default)]
pub struct Strikes {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    peers: HashMap<Peer, Bucket>,
    /// When peers with a full bucket were last removed.
    pruned: Option<Instant>,
}

impl State {
    /// Room for one more peer; at most once a second, because it visits all of them.
    fn prune(&mut self, now: Instant) {
        let pause = Duration::from_secs(1);
        if self.pruned.is_some_and(|at| now.duration_since(at) < pause) {
            return;
        }
        self.pruned = Some(now);
        self.peers.retain(|_, bucket| {
            bucket.refill(now);
            bucket.left < BURST
        });
    }
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    left: f64,
    at: Instant,
}

impl Bucket {
    fn full(now: Instant) -> Bucket {
        Bucket {
            left: BURST,
            at: now,
        }
    }

    fn refill(&mut self, now: Instant) {
        let grown = now.duration_since(self.at).as_secs_f64() / REFILL.as_secs_f64();
        *self = Bucket {
            left: (self.left + grown).min(BURST),
            at: now,
        };
    }
}

impl Strikes {
    /// Takes one token; false if the peer has none left. Taken before the authentication, so that concurrent requests
    /// are counted too.
    pub fn take(&self, peer: Peer) -> bool {
        let now = Instant::now();
        let mut state = self.state.lock();
        if state.peers.len() >= PEERS && !state.peers.contains_key(&peer) {
            state.prune(now);
            if state.peers.len() >= PEERS {
                return false;
            }
        }
        let bucket = state.peers.entry(peer).or_insert_with(|| Bucket::full(now));
        bucket.refill(now);
        if bucket.left < 1.0 {
            return false;
        }
        bucket.left -= 1.0;
        true
    }

    /// The authentication succeeded, or failed through no fault of the peer.
    pub fn give_back(&self, peer: Peer) {
        let mut state = self.state.lock();
        if let Some(bucket) = state.peers.get_mut(&peer) {
            bucket.left = (bucket.left + 1.0).min(BURST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_has_ten_and_then_none() {
        let strikes = Strikes::default();
        let peer = |n: u16| Peer::Net([10, 0, n.to_be_bytes()[0], n.to_be_bytes()[1]].into());
        let taken = (0..400).filter(|_| strikes.take(peer(1))).count();
        assert_eq!(taken, 10);
        assert!(strikes.take(peer(2)), "others have their own");
        strikes.give_back(peer(1));
        assert!(strikes.take(peer(1)));
        for n in 0..20_000 {
            strikes.take(peer(n));
        }
        assert!(strikes.state.lock().peers.len() <= PEERS);
    }
}
