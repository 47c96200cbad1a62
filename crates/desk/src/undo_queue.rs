//! What a desk has to undo in its pool: grants that no caller received, and commits that may still be carried out.
//!
//! ```text
//!   a grant that no caller received      -> to be undone at once
//!   a commit whose outcome is unknown    -> in doubt until it can't be carried out any more; then to be undone
//!   its caller gives up                  -> to be undone at once as well: mostly it is there already
//! ```
//! Guarantees: nothing is dropped before a commit has undone it, or a state that was read when it could not come any more
//! did not have it; an owner that received the address after all keeps it. A release of a handle that is in doubt has to
//! wait: an answer that nothing is held would be a guess (I2).
//!
//! It does not outlive the process: what it had to undo then is released when its pod is seen to be gone.

use std::time::{Duration, Instant};

use berth_core::plan::Selector;
use berth_core::{Address, Allocate, Answer, Change, Record, Release, Request};

#[derive(Debug, Default)]
pub(crate) struct UndoQueue {
    /// Releases. They lead the next commit, so that an owner's own repeat never finds a grant that is about to be undone.
    pending: Vec<Request>,
    doubts: Vec<Doubt>,
    /// When to try again what could not be undone.
    retry_at: Option<Instant>,
}

/// A claim that may be carried out until then.
#[derive(Debug)]
struct Doubt {
    address: Address,
    holder: Record,
    until: Instant,
}

impl Doubt {
    fn undo(&self) -> Request {
        release(self.address, &self.holder)
    }
}

impl UndoQueue {
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty() && self.doubts.is_empty()
    }

    /// No caller received this answer.
    pub fn undo(&mut self, request: &Request, unreceived: &Answer) {
        let fresh = fresh(request, unreceived);
        self.pending
            .extend(fresh.map(|(address, holder)| release(address, holder)));
        self.abandon(request);
    }

    /// Whether the commit with this answer in it is carried out is unknown; it may be until then.
    pub fn doubt(&mut self, request: &Request, answer: &Answer, until: Instant) {
        let doubts = fresh(request, answer).map(|(address, holder)| Doubt {
            address,
            holder: holder.clone(),
            until,
        });
        self.doubts.extend(doubts);
    }

    /// The caller has gone.
    pub fn abandon(&mut self, request: &Request) {
        let Some(claim) = claim(request) else {
            return;
        };
        let doubts = self.doubts.iter();
        let own = doubts.filter(|doubt| doubt.holder.same_holder(&claim.record));
        self.pending.extend(own.map(Doubt::undo));
    }

    /// The caller received the answer: what it was granted is its own.
    pub fn confirm(&mut self, request: &Request, answer: &Answer) {
        let (Some(claim), Answer::Granted(granted)) = (claim(request), answer) else {
            return;
        };
        self.doubts.retain(|doubt| {
            let is_granted = granted.iter().any(|grant| grant.address == doubt.address);
            !(is_granted && doubt.holder.same_holder(&claim.record))
        });
    }

    /// What can't be carried out any more by now is to be undone.
    pub fn expire_doubts(&mut self, now: Instant) {
        let expired = self.doubts.extract_if(.., |doubt| doubt.until <= now);
        self.pending.extend(expired.map(|doubt| doubt.undo()));
    }

    /// Whether a commit in doubt may be carried out after the answer to this request.
    pub fn is_doubtful(&self, request: &Request) -> bool {
        let mut holders = self.doubts.iter().map(|doubt| &doubt.holder);
        holders.any(|holder| would_release(request, holder))
    }

    /// Whether something of what this request would release is to be undone.
    pub fn concerns(&self, request: &Request) -> bool {
        let is_concerned = |undo: &'_ Request| match undo {
            Request::Release(Release {
                selector: Selector::Address { holder, .. },
                ..
            }) => would_release(request, holder),
            _ => false,
        };
        self.pending.iter().any(is_concerned)
    }

    pub fn pending(&self) -> &[Request] {
        &self.pending
    }

    pub fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// All that was pending is undone, with these changes.
    pub fn done(&mut self, changes: &[Change]) {
        self.pending.clear();
        self.retry_at = None;
        self.doubts.retain(|doubt| {
            !changes.iter().any(|change| {
                matches!(change, Change::Release { address, expected, .. }
                    if *address == doubt.address && expected.same_holder(&doubt.holder))
            })
        });
    }

    /// Only these are still to be undone.
    pub fn keep(&mut self, pending: Vec<Request>) {
        self.pending = pending;
    }

    /// Drops what is pending; how much that is.
    pub fn drop_pending(&mut self) -> usize {
        std::mem::take(&mut self.pending).len()
    }

    /// What is pending now could not be undone.
    pub fn retry_after(&mut self, pause: Duration) {
        self.retry_at = self.has_pending().then(|| Instant::now() + pause);
    }

    /// When to try again without a request.
    pub fn next_wake(&self) -> Option<Instant> {
        let expires = self.doubts.iter().map(|doubt| doubt.until).min();
        [expires, self.retry_at].into_iter().flatten().min()
    }
}

/// Whether a request would release what the holder has.
fn would_release(request: &Request, holder: &Record) -> bool {
    let Request::Release(Release { selector, .. }) = request else {
        return false;
    };
    match selector {
        Selector::Handle { handle, .. } => holder.handle == *handle,
        Selector::Owner(owner) => holder.owner == *owner,
        Selector::Address { holder: of, .. } => holder.handle == of.handle,
    }
}

fn release(address: Address, holder: &Record) -> Request {
    Request::Release(Release {
        selector: Selector::Address {
            address,
            holder: holder.clone(),
        },
        cooldown: Duration::ZERO,
    })
}

/// What a request may be granted.
const fn claim(request: &Request) -> Option<&Allocate> {
    match request {
        Request::Allocate(claim) | Request::Exchange { claim, .. } => Some(claim),
        Request::Release(_) | Request::Transfer { .. } => None,
    }
}

/// The addresses that the request was the first to hold.
fn fresh<'a>(
    request: &'a Request,
    answer: &'a Answer,
) -> impl Iterator<Item = (Address, &'a Record)> {
    let granted = match (claim(request), answer) {
        (Some(claim), Answer::Granted(granted)) => Some((claim, granted)),
        _ => None,
    };
    granted.into_iter().flat_map(|(claim, granted)| {
        let fresh = granted.iter().filter(|grant| grant.fresh);
        fresh.map(|grant| (grant.address, &claim.record))
    })
}
