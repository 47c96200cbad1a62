//! Connection limits: in total and per peer.
//!
//! At a limit, a new connection replaces the oldest one that waits for its client: an honest request is complete within
//! milliseconds, and a connection that is held open to lock others out is old. A connection whose request is being
//! served is never closed for another; if all are, the new one is refused.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::{Limits, Peer};

#[derive(Debug)]
pub(crate) struct Gate {
    connections: usize,
    per_peer: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Open connections of each peer, oldest first.
    peers: HashMap<Peer, BTreeMap<u64, Arc<Activity>>>,
    total: usize,
    next: u64,
}

/// What a connection is doing.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    /// A complete request is being served.
    serving: AtomicBool,
    /// Cancelled to close the connection.
    pub closed: CancellationToken,
}

impl Activity {
    pub fn serve(&self) {
        self.serving.store(true, Ordering::Relaxed);
    }

    pub fn wait(&self) {
        self.serving.store(false, Ordering::Relaxed);
    }

    pub fn is_serving(&self) -> bool {
        self.serving.load(Ordering::Relaxed)
    }

    fn can_be_closed(&self) -> bool {
        !self.is_serving() && !self.closed.is_cancelled()
    }
}

/// A connection's place; released on drop.
#[derive(Debug)]
pub(crate) struct Slot {
    gate: Arc<Gate>,
    peer: Peer,
    number: u64,
    pub activity: Arc<Activity>,
}

impl Gate {
    pub fn new(limits: &Limits) -> Arc<Gate> {
        Arc::new(Gate {
            connections: limits.connections.max(1),
            per_peer: limits.per_peer.max(1),
            state: Mutex::default(),
        })
    }

    /// A place for a new connection; `None` if every place has a request that is being served.
    pub fn enter(self: &Arc<Self>, peer: Peer) -> Option<Slot> {
        let mut state = self.state.lock();
        let own = state.peers.get(&peer).map_or(0, BTreeMap::len);
        if own >= self.per_peer {
            state.close_oldest_of(peer)?;
        } else if state.total >= self.connections {
            let most = state.peers.iter().max_by_key(|(_, open)| open.len());
            let most = most.map(|(peer, _)| *peer)?;
            state.close_oldest_of(most)?;
        }
        let number = state.next;
        state.next += 1;
        state.total += 1;
        let activity = Arc::new(Activity::default());
        let open = state.peers.entry(peer).or_default();
        open.insert(number, Arc::clone(&activity));
        Some(Slot {
            gate: Arc::clone(self),
            peer,
            number,
            activity,
        })
    }

    /// A place for which no connection is closed.
    pub fn enter_if_free(self: &Arc<Self>, peer: Peer) -> Option<Slot> {
        let total = self.state.lock().total;
        if total >= self.connections {
            return None;
        }
        self.enter(peer)
    }

    fn leave(&self, peer: Peer, number: u64) {
        let mut state = self.state.lock();
        state.remove(peer, number);
    }
}

impl State {
    /// Closes the oldest connection of `peer` that waits for its client, and releases its place.
    fn close_oldest_of(&mut self, peer: Peer) -> Option<()> {
        let open = self.peers.get(&peer)?;
        let (number, activity) = open
            .iter()
            .find(|(_, activity)| activity.can_be_closed())
            .map(|(number, activity)| (*number, Arc::clone(activity)))?;
        activity.closed.cancel();
        self.remove(peer, number);
        Some(())
    }

    fn remove(&mut self, peer: Peer, number: u64) {
        let Some(open) = self.peers.get_mut(&peer) else {
            return;
        };
        if open.remove(&number).is_some() {
            self.total -= 1;
        }
        if open.is_empty() {
            self.peers.remove(&peer);
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.gate.leave(self.peer, self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate(connections: usize, per_peer: usize) -> Arc<Gate> {
        Gate::new(&Limits {
            connections,
            per_peer,
            ..Limits::default()
        })
    }

    fn peer(n: u8) -> Peer {
        Peer::Net([10, 0, 0, n].into())
    }

    #[test]
    fn a_peer_at_its_limit_loses_its_oldest_waiting_connection() {
        let gate = gate(100, 2);
        let first = gate.enter(peer(1)).unwrap();
        let second = gate.enter(peer(1)).unwrap();
        let other = gate.enter(peer(2)).unwrap();
        let third = gate.enter(peer(1)).unwrap();
        assert!(first.activity.closed.is_cancelled());
        assert!(!second.activity.closed.is_cancelled());
        assert!(!other.activity.closed.is_cancelled());
        second.activity.serve();
        third.activity.serve();
        assert!(gate.enter(peer(1)).is_none(), "all are being served");
        drop(third);
        assert!(gate.enter(peer(1)).is_some());
        drop((first, second, other));
        assert_eq!(gate.state.lock().total, 0);
        assert!(gate.state.lock().peers.is_empty());
    }

    #[test]
    fn the_peer_with_the_most_connections_pays_for_the_total() {
        let gate = gate(4, 3);
        let lone = gate.enter(peer(1)).unwrap();
        let many: Vec<Slot> = (0..3).map(|_| gate.enter(peer(2)).unwrap()).collect();
        let _new = gate.enter(peer(3)).unwrap();
        assert!(!lone.activity.closed.is_cancelled());
        assert!(many[0].activity.closed.is_cancelled());
        assert_eq!(gate.state.lock().total, 4);
    }
}
