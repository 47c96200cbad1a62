//! What a desk owes its pool: grants that nobody heard of, and commits that may yet be carried out.
//!
//! ```text
//!   a grant that nobody heard            -> due at once
//!   a commit whose outcome is unknown    -> in doubt, until it can't be carried out any more; then due
//!   its caller gives up                  -> due at once as well: mostly it is there already
//! ```
//! Promises: nothing is forgotten before a commit has paid it, or a state that was read when it could not come any more
//! did not have it; an owner that was given the address after all keeps it. A release of a handle that is in doubt
//! has to wait: an answer that nothing is held would be a guess (I2).
//!
//! Does not outlive the process: what it owed then is freed when its pod is seen to be gone.

use std::time::{Duration, Instant};

use berth_core::plan::Selector;
use berth_core::{Address, Answer, Change, Claim, Record, Release, Request};

#[derive(Debug, Default)]
pub(crate) struct Debts {
    /// Releases. They lead the next commit, so that an owner's own repeat never finds a grant that is about to be taken
    /// away.
    due: Vec<Request>,
    doubts: Vec<Doubt>,
    /// When to try again what could not be paid.
    again_at: Option<Instant>,
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

impl Debts {
    pub fn is_empty(&self) -> bool {
        self.due.is_empty() && self.doubts.is_empty()
    }

    /// Nobody heard this answer.
    pub fn owe(&mut self, request: &Request, unheard: &Answer) {
        let fresh = fresh(request, unheard);
        self.due
            .extend(fresh.map(|(address, holder)| release(address, holder)));
        self.give_up(request);
    }

    /// Nobody knows whether the commit with this answer in it is carried out; it may be until then.
    pub fn doubt(&mut self, request: &Request, answer: &Answer, until: Instant) {
        let doubts = fresh(request, answer).map(|(address, holder)| Doubt {
            address,
            holder: holder.clone(),
            until,
        });
        self.doubts.extend(doubts);
    }

    /// The caller has gone.
    pub fn give_up(&mut self, request: &Request) {
        let Some(claim) = claim(request) else {
            return;
        };
        let doubts = self.doubts.iter();
        let own = doubts.filter(|doubt| doubt.holder.same_holder(&claim.record));
        self.due.extend(own.map(Doubt::undo));
    }

    /// The caller was told: what it was given is its own, however it came there.
    pub fn settle(&mut self, request: &Request, answer: &Answer) {
        let (Some(claim), Answer::Granted(granted)) = (claim(request), answer) else {
            return;
        };
        self.doubts.retain(|doubt| {
            let given = granted.iter().any(|grant| grant.address == doubt.address);
            !(given && doubt.holder.same_holder(&claim.record))
        });
    }

    /// What could not come any more by now is due.
    pub fn ripen(&mut self, now: Instant) {
        let ripe = self.doubts.extract_if(.., |doubt| doubt.until <= now);
        self.due.extend(ripe.map(|doubt| doubt.undo()));
    }

    /// Whether the answer to this request may be outrun by a commit that is in doubt.
    pub fn doubtful(&self, request: &Request) -> bool {
        let mut holders = self.doubts.iter().map(|doubt| &doubt.holder);
        holders.any(|holder| concerns(request, holder))
    }

    /// Whether something is due of what this request would release.
    pub fn owing(&self, request: &Request) -> bool {
        let holder = |due: &'_ Request| match due {
            Request::Release(Release {
                selector: Selector::Address { holder, .. },
                ..
            }) => concerns(request, holder),
            _ => false,
        };
        self.due.iter().any(holder)
    }

    pub fn due(&self) -> &[Request] {
        &self.due
    }

    pub fn is_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// All that was due is paid, with these changes.
    pub fn paid(&mut self, changes: &[Change]) {
        self.due.clear();
        self.again_at = None;
        self.doubts.retain(|doubt| {
            !changes.iter().any(|change| {
                matches!(change, Change::Release { address, expected, .. }
                    if *address == doubt.address && expected.same_holder(&doubt.holder))
            })
        });
    }

    /// Puts what is left of the debts that were due in their place.
    pub fn leave(&mut self, due: Vec<Request>) {
        self.due = due;
    }

    /// Gives up what is due; how much that is.
    pub fn write_off(&mut self) -> usize {
        std::mem::take(&mut self.due).len()
    }

    /// What is due now could not be paid.
    pub fn later(&mut self, pause: Duration) {
        self.again_at = self.is_due().then(|| Instant::now() + pause);
    }

    /// When to look again though nobody asks.
    pub fn wake(&self) -> Option<Instant> {
        let ripe = self.doubts.iter().map(|doubt| doubt.until).min();
        [ripe, self.again_at].into_iter().flatten().min()
    }
}

/// Whether a request would release what the holder has.
fn concerns(request: &Request, holder: &Record) -> bool {
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
        rest: Duration::ZERO,
    })
}

/// What a request may be granted.
const fn claim(request: &Request) -> Option<&Claim> {
    match request {
        Request::Claim(claim) | Request::Exchange { claim, .. } => Some(claim),
        Request::Release(_) | Request::Reown { .. } => None,
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
