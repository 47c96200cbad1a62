//! The grace period: a thing is proved gone when two reads a grace period apart did not find it (I4, I8).
//!
//! Keeps what is suspected and since when. One read that finds the thing ends the suspicion. The caller makes the reads
//! and guarantees that they are quorum reads.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::Moment;

/// What one more read leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There, or unknown.
    Kept,
    /// Gone, but not for a whole grace period yet. Read again at `until`.
    Suspected { until: Moment },
    /// Gone at this read, at one that is at least a grace period old, and at every read between.
    Proved,
}

/// Suspicions from earlier reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspicions<K>(BTreeMap<K, Moment>);

impl<K> Default for Suspicions<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord> Suspicions<K> {
    pub fn observe(&mut self, key: K, gone: bool, grace: Duration, now: Moment) -> Verdict {
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

    /// When a suspicion will be old enough, without a read.
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
    fn one_read_proves_nothing() {
        let mut suspicions = Suspicions::default();
        let first = suspicions.observe("n", true, GRACE, Moment(1_000_000));
        assert_eq!(
            first,
            Verdict::Suspected {
                until: Moment(1_000_100)
            }
        );
        assert_eq!(
            suspicions.observe("n", true, GRACE, Moment(1_000_100)),
            Verdict::Proved
        );
    }

    proptest! {
        /// Against the history itself: proved is what was gone at every read since one that is a grace period old.
        #[test]
        fn proof_is_an_unbroken_absence(reads in prop::collection::vec((any::<bool>(), 0..60u64), 1..40)) {
            let mut suspicions = Suspicions::default();
            let mut history: Vec<(Moment, bool)> = Vec::new();
            let mut now = Moment(0);
            for (gone, pause) in reads {
                now = Moment(now.0 + pause);
                history.push((now, gone));
                let verdict = suspicions.observe((), gone, GRACE, now);
                let unbroken = history.iter().rev().take_while(|(_, gone)| *gone);
                let since = unbroken.map(|(moment, _)| *moment).last();
                // This read is one of the two.
                let again = history.iter().rev().take(2).filter(|(_, gone)| *gone).count() == 2;
                let proved = gone && again && since.is_some_and(|since| since.plus(GRACE) <= now);
                prop_assert_eq!(verdict == Verdict::Proved, proved);
                prop_assert_eq!(verdict == Verdict::Kept, !gone);
            }
        }
    }
}
