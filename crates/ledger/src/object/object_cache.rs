//! Objects as this process saw them last: how large each was, and the text of the large ones.
//!
//! Both are hints that spare a read before a write. A text is worth something only to a writer on exactly the version
//! that it is of. The texts together have at most [`ROOM`] bytes: the least recently used ones are dropped.

use std::collections::BTreeMap;

use hyper::body::Bytes;
use parking_lot::{Mutex, MutexGuard};
use serde_json::Value;

/// From here on it is worth a copy: some thousand entries.
const LARGE: usize = 128 * 1024;

/// Writes that go without the text after somebody else has written in between: he may be at it still.
const STAND_BACK: u32 = 8;

/// What all texts together may have: five pools of the largest size, more than one node writes at a time.
const ROOM: usize = 8 * 1024 * 1024;

#[derive(Debug)]
pub struct ObjectCache {
    sights: Mutex<Sights>,
    /// Texts of fewer bytes are not kept.
    kept_from: usize,
}

impl Default for ObjectCache {
    fn default() -> Self {
        Self::from(LARGE)
    }
}

#[derive(Debug, Default)]
struct Sights {
    of: BTreeMap<String, Sight>,
    /// Counts the uses of texts: the least recently used one has the lowest number.
    uses: u64,
}

#[derive(Debug, Default)]
struct Sight {
    size: usize,
    text: Option<Text>,
    stand_back: u32,
}

/// An object's text.
#[derive(Clone, Debug)]
pub struct Text {
    /// The version that it is of.
    version: String,
    pub bytes: Bytes,
    /// When it was used last, by [`Sights::uses`].
    used: u64,
    /// The object's metadata, where the text has that of an older version: others may have changed it without a change of
    /// the entries.
    pub metadata: Option<Value>,
}

impl Sights {
    fn next_use(&mut self) -> u64 {
        self.uses += 1;
        self.uses
    }

    /// Drops texts until they fit again.
    fn make_room(&mut self) {
        let size = |sight: &Sight| sight.text.as_ref().map_or(0, |text| text.bytes.len());
        let mut held: usize = self.of.values().map(size).sum();
        while held > ROOM {
            let texts = self.of.values_mut().filter(|sight| sight.text.is_some());
            let Some(oldest) = texts.min_by_key(|sight| sight.text.as_ref().map(|text| text.used))
            else {
                return;
            };
            held = held.saturating_sub(size(oldest));
            oldest.text = None;
        }
    }
}

impl ObjectCache {
    /// Keeps the texts that have so many bytes.
    pub const fn from(kept_from: usize) -> Self {
        Self {
            sights: Mutex::new(Sights {
                of: BTreeMap::new(),
                uses: 0,
            }),
            kept_from,
        }
    }

    fn sights(&self) -> MutexGuard<'_, Sights> {
        self.sights.lock()
    }

    pub fn note(&self, name: &str, size: usize) {
        self.sights().of.entry(name.to_owned()).or_default().size = size;
    }

    pub fn size_after(&self, name: &str, growth: i64) -> usize {
        let size = self.sights().of.get(name).map_or(0, |sight| sight.size);
        size.saturating_add_signed(isize::try_from(growth).unwrap_or(isize::MAX))
    }

    /// That is what the object is at that version; its metadata too, unless there is another.
    pub fn keep(&self, name: &str, version: &str, bytes: &Bytes, metadata: Option<Value>) {
        let mut sights = self.sights();
        let used = sights.next_use();
        let sight = sights.of.entry(name.to_owned()).or_default();
        sight.text = (bytes.len() >= self.kept_from).then(|| Text {
            version: version.to_owned(),
            bytes: bytes.clone(),
            used,
            metadata,
        });
        sights.make_room();
    }

    /// The object's text, if that is its version.
    pub fn text(&self, name: &str, version: &str) -> Option<Text> {
        let mut sights = self.sights();
        let used = sights.next_use();
        let text = sights.of.get_mut(name)?.text.as_mut()?;
        text.used = used;
        (text.version == version).then(|| text.clone())
    }

    /// Whether the object may be written whole now.
    pub fn may_replace(&self, name: &str) -> bool {
        match self.sights().of.get_mut(name) {
            Some(sight) if sight.stand_back > 0 => {
                sight.stand_back -= 1;
                false
            }
            sight => sight.is_some_and(|sight| sight.text.is_some()),
        }
    }

    /// Somebody else wrote it in between.
    pub fn met_another(&self, name: &str) {
        self.stand_back(name, STAND_BACK);
    }

    /// It may not be written whole at all.
    pub fn may_not_replace(&self, name: &str) {
        self.stand_back(name, u32::MAX);
    }

    fn stand_back(&self, name: &str, writes: u32) {
        let mut sights = self.sights();
        let sight = sights.of.entry(name.to_owned()).or_default();
        sight.stand_back = writes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_of_one_version_and_small_ones_are_not_kept() {
        let seen = ObjectCache::default();
        assert!(!seen.may_replace("a"));
        let large = Bytes::from(vec![b' '; LARGE]);
        seen.keep("a", "1", &large, None);
        assert!(seen.may_replace("a"));
        let text = |name: &str, version: &str| {
            let text = seen.text(name, version);
            text.map(|text| text.bytes)
        };
        assert_eq!(text("a", "1"), Some(large));
        assert_eq!(text("a", "2"), None);
        assert_eq!(text("b", "1"), None);
        seen.keep("a", "3", &Bytes::from("{}"), None);
        assert!(!seen.may_replace("a"));
    }

    #[test]
    fn berth_15_21_the_texts_of_large_pools_have_a_bound_and_the_last_used_stay() {
        let seen = ObjectCache::default();
        let megabyte = Bytes::from(vec![b' '; 1024 * 1024]);
        for pool in 0..8 {
            seen.keep(&pool.to_string(), "1", &megabyte, None);
        }
        assert!(seen.text("0", "1").is_some(), "eight have room");
        for pool in 8..12 {
            seen.keep(&pool.to_string(), "1", &megabyte, None);
        }
        let kept = |pool: &i32| seen.text(&pool.to_string(), "1").is_some();
        let kept: Vec<i32> = (0..12).filter(kept).collect();
        assert_eq!(kept, [0, 5, 6, 7, 8, 9, 10, 11]);
    }

    #[test]
    fn after_another_writer_some_writes_are_patches_again() {
        let seen = ObjectCache::default();
        let large = Bytes::from(vec![b' '; LARGE]);
        seen.keep("a", "1", &large, None);
        seen.met_another("a");
        let patches = (0..100).take_while(|_| !seen.may_replace("a")).count();
        assert_eq!(patches, 8);
        assert!(seen.may_replace("a"), "and then no more");
    }

    #[test]
    fn a_size_follows_its_growth() {
        let seen = ObjectCache::default();
        seen.note("a", 100);
        assert_eq!(seen.size_after("a", -30), 70);
        assert_eq!(seen.size_after("b", 30), 30);
    }
}
