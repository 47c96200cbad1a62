//! Suspicions: what was read as gone, and since when. One read proves nothing; a second one, a grace period later, is
//! acted on (I4).

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use berth_core::Moment;

use super::liveness::Reason;
use super::observed::{Held, Owners};

/// How long an owner must have been gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GracePeriods {
    /// Between the read that suspects and the one that frees.
    pub pod: Duration,
    /// The same where a node is gone and its pods still exist: a node that is registered again keeps its pods, and
    /// Kubernetes itself takes its time to remove them.
    pub node: Duration,
}

impl Default for GracePeriods {
    fn default() -> Self {
        GracePeriods {
            pod: Duration::from_secs(30),
            node: Duration::from_secs(120),
        }
    }
}

/// Suspicions of earlier reads. Each takes a few bytes: all entries of a cluster may be suspected at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Suspicions(BTreeMap<Suspect, Moment>);

impl Suspicions {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }
}

/// What is suspected: exactly that holder, so that another one is suspected from its own first read on. A digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Suspect(u64, u64);

impl Suspect {
    fn of(what: impl Hash) -> Suspect {
        let half = |salt: u8| {
            let mut hasher = DefaultHasher::new();
            (salt, &what).hash(&mut hasher);
            hasher.finish()
        };
        Suspect(half(0), half(1))
    }
}

/// One read of everything, compared with the suspicions of the reads before.
#[derive(Debug)]
pub struct Round<'a> {
    before: &'a Suspicions,
    grace: GracePeriods,
    now: Moment,
    after: Suspicions,
    next: Option<Moment>,
}

impl<'a> Round<'a> {
    pub fn new(before: &'a Suspicions, grace: GracePeriods, now: Moment) -> Round<'a> {
        Round {
            before,
            grace,
            now,
            after: Suspicions::default(),
            next: None,
        }
    }

    /// Whether an entry whose owner is gone is to be freed now.
    pub fn frees(&mut self, held: &Held, reason: &Reason, owners: &Owners) -> bool {
        let grace = match reason {
            // No container outlives its kernel: only the end of the pod had to be shown.
            _ if held.note.rebooted => Duration::ZERO,
            reason => self.grace(reason, owners.is_lost(held.node())),
        };
        let (pool, record) = (&held.pool.name, &held.record);
        let suspect = ("entry", pool, held.address, &record.owner, &record.handle);
        self.is_due(suspect, grace)
    }

    /// How long an owner that is gone for that reason is suspected before anything is done.
    pub fn grace(&self, reason: &Reason, node_is_lost: bool) -> Duration {
        match reason {
            Reason::NodeGone(_) => self.grace.node,
            _ if node_is_lost => self.grace.node,
            _ => self.grace.pod,
        }
    }

    /// The usual grace period.
    pub fn usual_grace(&self) -> Duration {
        self.grace.pod
    }

    /// Whether `suspect` was suspected for that long. It stays suspected until a read clears it: the step may fail.
    pub fn is_due(&mut self, suspect: impl Hash, grace: Duration) -> bool {
        let suspect = Suspect::of(suspect);
        let since = self.before.0.get(&suspect).copied();
        let first_read = since.is_none();
        let since = since.unwrap_or(self.now);
        self.after.0.insert(suspect, since);
        let due = since.plus(grace);
        if due <= self.now && (!first_read || grace.is_zero()) {
            return true;
        }
        self.next = Some(self.next.map_or(due, |next| next.min(due)));
        false
    }

    /// What the next read is compared with, and when the next suspicion is old enough.
    pub fn done(self) -> (Suspicions, Option<Moment>) {
        (self.after, self.next)
    }
}
