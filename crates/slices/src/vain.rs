//! Searches for a slice that found nothing: what one has found out is not found out again at once.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use crate::world::locked;

/// How long nobody looks for a slice ahead of need after that. A pod that needs one has its own search.
const STAND_BACK: Duration = Duration::from_secs(30);

/// What the last search in vain was.
#[derive(Debug, Default)]
pub(crate) struct Vain {
    /// When an ADD's began, and how many it asked.
    asked: Mutex<Option<(Instant, usize)>>,
    /// When any ended.
    ended: Mutex<Option<Instant>>,
}

impl Vain {
    /// A search for a free slice, which asked nobody.
    pub fn note(&self, now: Instant) {
        *locked(&self.ended) = Some(now);
    }

    /// One that asked others too.
    pub fn note_asked(&self, began: Instant, now: Instant, asked: usize) {
        *locked(&self.asked) = Some((began, asked));
        self.note(now);
    }

    /// How many were asked in vain by a search that began after that: it has looked for whoever came before.
    pub fn asked_since(&self, came: Instant) -> Option<usize> {
        let last = *locked(&self.asked);
        last.filter(|(began, _)| *began >= came)
            .map(|(_, asked)| asked)
    }

    /// Whether it is too early to look ahead of need.
    pub fn is_recent(&self, now: Instant) -> bool {
        let ended = *locked(&self.ended);
        ended.is_some_and(|ended| now - ended < STAND_BACK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_in_vain_counts_for_those_who_came_before_it() {
        let (vain, before) = (Vain::default(), Instant::now());
        assert_eq!(vain.asked_since(before), None);
        assert!(!vain.is_recent(before));
        let second = Duration::from_secs(1);
        let (began, ended) = (before + second, before + second * 2);
        vain.note_asked(began, ended, 7);
        assert_eq!(vain.asked_since(before), Some(7));
        assert_eq!(vain.asked_since(began + second / 2), None);
        assert!(vain.is_recent(ended + second));
        assert!(!vain.is_recent(ended + STAND_BACK));
    }
}
