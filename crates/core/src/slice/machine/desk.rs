//! The plain pool of a range that has slices: what a desk may allocate there, and who changes the mode.
//!
//! Guarantees: a commit names the token under which the leases were listed, and the list was read after the mode. Under
//! one token the slices of a range only shrink, so an older list is a conservative one.

use super::mode::{Mode, ModeKind, Token};
use super::objects::{Addresses, Lease, all_of};
use crate::{Address, Prefix};

/// What a desk knows of the range.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Desk {
    /// The last start or outage was too recent: nodes may have to create leases again that the server lost.
    Settling,
    /// The mode is not known.
    Unread,
    /// The mode is being read.
    ReadingMode,
    /// The leases and published pools are being listed, under this mode.
    Listing(Mode),
    /// The range is sliced or assigned: the plain pool allocates nothing.
    Closed(Mode),
    /// The plain pool may allocate what is not covered; `has_slices`: some lease or published pool was listed.
    Open {
        mode: Mode,
        covered: Addresses,
        has_slices: bool,
    },
}

/// What happens to a desk.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeskEvent {
    /// An ADD needs a plain address.
    Wanted,
    /// An ADD needs this address.
    Allocate(Address),
    /// A commit or a change of the mode was refused, or no answer came.
    Failed,
    /// None: there is no plain pool.
    ModeRead(Option<Mode>),
    /// All leases of the range, and the slices of all published pools.
    Listed(Vec<Lease>, Vec<Prefix>),
    /// No slice is free, and a node needs one.
    Tighten,
    /// There is room for slices again.
    Loosen,
    /// The network is no longer configured with slices.
    Leave,
    /// Nothing is left in slices.
    Finish,
    Disconnected,
    /// The settle time after a start or an outage has passed.
    Settled,
}

/// What a desk's driver executes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeskEffect {
    ReadMode,
    ListSlices,
    /// Add the entry, if the address has none and the mode has the token, in one write.
    Commit {
        address: Address,
        token: Token,
    },
    /// Set the mode, if it has the token; none: create the plain pool.
    SetMode {
        expected: Option<Token>,
        mode: Mode,
    },
}

impl Desk {
    /// Handles an event; `fresh` is a random number that no earlier call had.
    pub fn handle(&mut self, event: DeskEvent, fresh: u128) -> Option<DeskEffect> {
        let token = Token(fresh);
        let (next, effect) = match (&*self, event) {
            (_, DeskEvent::Disconnected) => (Desk::Settling, None),
            (Desk::Settling, DeskEvent::Settled) => (Desk::Unread, None),
            (Desk::Settling, _) => return None,
            (_, DeskEvent::Failed) => (Desk::Unread, None),
            (Desk::Unread | Desk::Closed(_), DeskEvent::Wanted) => {
                (Desk::ReadingMode, Some(DeskEffect::ReadMode))
            }
            (Desk::ReadingMode, DeskEvent::ModeRead(mode)) => read(mode, token),
            (Desk::Listing(mode), DeskEvent::Listed(leases, published)) => {
                let open = Desk::Open {
                    mode: *mode,
                    covered: covered(&leases, &published),
                    has_slices: !leases.is_empty() || !published.is_empty(),
                };
                (open, None)
            }
            (Desk::Open { mode, covered, .. }, DeskEvent::Allocate(address))
                if !covered.contains(&address) =>
            {
                let token = mode.token;
                return Some(DeskEffect::Commit { address, token });
            }
            (Desk::Closed(mode), DeskEvent::Tighten) if mode.kind == ModeKind::Sliced => {
                set(mode, ModeKind::Tight, token)
            }
            (Desk::Open { mode, .. }, DeskEvent::Loosen) if mode.kind.is_yielding() => {
                set(mode, ModeKind::Sliced, token)
            }
            (Desk::Closed(mode) | Desk::Open { mode, .. }, DeskEvent::Leave)
                if matches!(mode.kind, ModeKind::Sliced | ModeKind::Tight) =>
            {
                set(mode, ModeKind::Leaving, token)
            }
            (
                Desk::Open {
                    mode,
                    has_slices: false,
                    ..
                },
                DeskEvent::Finish,
            ) if mode.kind == ModeKind::Leaving => set(mode, ModeKind::Plain, token),
            _ => return None,
        };
        *self = next;
        effect
    }

    /// Whether this desk would commit the address, if the mode still has the token.
    pub fn offers(&self, address: Address) -> Option<Token> {
        match self {
            Desk::Open { mode, covered, .. } if !covered.contains(&address) => Some(mode.token),
            _ => None,
        }
    }
}

fn read(mode: Option<Mode>, token: Token) -> (Desk, Option<DeskEffect>) {
    match mode {
        // There may be slices although the pool was deleted: it starts as one that is on its way back to plain.
        None => {
            let effect = DeskEffect::SetMode {
                expected: None,
                mode: Mode::new(ModeKind::Leaving, token),
            };
            (Desk::Unread, Some(effect))
        }
        Some(mode) if mode.kind == ModeKind::Plain => {
            let open = Desk::Open {
                mode,
                covered: Addresses::new(),
                has_slices: false,
            };
            (open, None)
        }
        Some(mode) if mode.kind.opens_plain_pool() => {
            (Desk::Listing(mode), Some(DeskEffect::ListSlices))
        }
        Some(mode) => (Desk::Closed(mode), None),
    }
}

/// The mode is read again after every change.
fn set(now: &Mode, kind: ModeKind, token: Token) -> (Desk, Option<DeskEffect>) {
    let effect = DeskEffect::SetMode {
        expected: Some(now.token),
        mode: Mode::new(kind, token),
    };
    (Desk::Unread, Some(effect))
}

/// What the plain pool may not allocate: leases without what they yield, and slices whose pool is published though
/// their lease was deleted.
fn covered(leases: &[Lease], published: &[Prefix]) -> Addresses {
    let mut covered = Addresses::new();
    for slice in published {
        if !leases.iter().any(|lease| lease.slice == *slice) {
            covered.extend(all_of(*slice));
        }
    }
    for lease in leases {
        let mut own = all_of(lease.slice);
        for block in lease.yielded.iter() {
            own.remove(block.clone());
        }
        covered.extend(own);
    }
    covered
}
