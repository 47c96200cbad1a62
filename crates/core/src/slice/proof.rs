//! Proof that something is gone: seen gone twice, with a grace period between (I4, I8).
//!
//! Holds what is suspected and since when. Whoever is seen again, once, is suspected no longer. What a
//! look consists of, and that it was a quorum read, is the caller's to see to.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::Moment;

/// What a look leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There, or nobody can tell.
    Kept,
    /// Gone, for the first time or not for long enough. Look again then.
    Suspected { until: Moment },
    /// Gone now and at a look at least a grace period ago, and at every one between.
    Proved,
}

/// Suspicions of earlier looks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspicions<K>(BTreeMap<K, Moment>);

impl<K> Default for Suspicions<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord> Suspicions<K> {
    pub fn look(&mut self, key: K, gone: bool, grace: Duration, now: Moment) -> Verdict {
        if !gone {
            self.0.remove(&key);
            return Verdict::Kept;
        }
        match self.0.get(&key) {
            None => {
                self.0.insert(key, now);
                Verdict::Suspected {
                    until: now.plus(grace),
                }
            }
            Some(since) if since.plus(grace) <= now => Verdict::Proved,
            Some(since) => Verdict::Suspected {
                until: since.plus(grace),
            },
        }
    }

    /// When a suspicion will be old enough, without a look.
    pub fn due(&self, key: &K, grace: Duration) -> Option<Moment> {
        self.0.get(key).map(|since| since.plus(grace))
    }

    pub fn forget(&mut self, key: &K) {
        self.0.remove(key);
    }

    pub fn retain(&mut self, mut keep: impl FnMut(&K) -> bool) {
        self.0.retain(|key, _| keep(key));
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GRACE: Duration = Duration::from_millis(100);

    #[test]
    fn one_look_proves_nothing_however_long_ago_the_thing_went() {
        let mut suspicions = Suspicions::default();
        let first = suspicions.look("n", true, GRACE, Moment(1_000_000));
        assert_eq!(
            first,
            Verdict::Suspected {
                until: Moment(1_000_100)
            }
        );
        assert_eq!(
            suspicions.look("n", true, GRACE, Moment(1_000_100)),
            Verdict::Proved
        );
    }

    proptest! {
        /// Against the history itself: proved is what was gone at every look since one that is a grace period old.
        #[test]
        fn proof_is_an_unbroken_absence(looks in prop::collection::vec((any::<bool>(), 0..60u64), 1..40)) {
            let mut suspicions = Suspicions::default();
            let mut history: Vec<(Moment, bool)> = Vec::new();
            let mut now = Moment(0);
            for (gone, pause) in looks {
                now = Moment(now.0 + pause);
                history.push((now, gone));
                let verdict = suspicions.look((), gone, GRACE, now);
                let unbroken = history.iter().rev().take_while(|(_, gone)| *gone);
                let since = unbroken.map(|(moment, _)| *moment).last();
                // The look itself is one of two.
                let again = history.iter().rev().take(2).filter(|(_, gone)| *gone).count() == 2;
                let proved = gone && again && since.is_some_and(|since| since.plus(GRACE) <= now);
                prop_assert_eq!(verdict == Verdict::Proved, proved);
                prop_assert_eq!(verdict == Verdict::Kept, !gone);
            }
        }
    }
}
