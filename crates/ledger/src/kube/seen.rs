//! Objects as this process saw them last: how large each was, and the text of the large ones.
//!
//! Both are hints that spare a read before a write. A text is worth something only to whoever writes on exactly the
//! version that it is of.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use hyper::body::Bytes;
use serde_json::Value;

use super::base::Stamp;

/// From here on it is worth a copy: some thousand entries.
const LARGE: usize = 128 * 1024;

/// Writes that go without the text after somebody else has written in between: he may be at it still.
const STAND_BACK: u32 = 8;

#[derive(Debug, Default)]
pub(super) struct Seen(Mutex<BTreeMap<String, Sight>>);

#[derive(Debug, Default)]
struct Sight {
    size: usize,
    text: Option<Text>,
    stand_back: u32,
}

/// An object's text.
#[derive(Clone, Debug)]
pub(super) struct Text {
    /// The version that it is of.
    version: String,
    pub bytes: Bytes,
    /// The object's metadata, where the text has that of an older version: others may have changed it without a change of
    /// the entries.
    pub metadata: Option<Value>,
}

impl Seen {
    fn sights(&self) -> MutexGuard<'_, BTreeMap<String, Sight>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn note(&self, name: &str, size: usize) {
        self.sights().entry(name.to_owned()).or_default().size = size;
    }

    pub fn size_after(&self, name: &str, growth: i64) -> usize {
        let size = self.sights().get(name).map_or(0, |sight| sight.size);
        size.saturating_add_signed(isize::try_from(growth).unwrap_or(isize::MAX))
    }

    /// That is what the object is at that version; its metadata too, unless there is another.
    pub fn keep(&self, name: &str, stamp: &Stamp, bytes: &Bytes, metadata: Option<Value>) {
        let mut sights = self.sights();
        let sight = sights.entry(name.to_owned()).or_default();
        sight.text = (bytes.len() >= LARGE).then(|| Text {
            version: stamp.resource_version.clone(),
            bytes: bytes.clone(),
            metadata,
        });
    }

    /// The object's text, if that is its version.
    pub fn text(&self, name: &str, stamp: &Stamp) -> Option<Text> {
        let sights = self.sights();
        let text = sights.get(name)?.text.as_ref()?;
        (text.version == stamp.resource_version).then(|| text.clone())
    }

    /// Whether the object may be written whole now.
    pub fn may_replace(&self, name: &str) -> bool {
        match self.sights().get_mut(name) {
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
        self.sights().entry(name.to_owned()).or_default().stand_back = writes;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn mk_stamp(version: &str) -> Stamp {
        Stamp::read(&json!({ "metadata": { "resourceVersion": version } })).unwrap()
    }

    #[test]
    fn a_text_is_of_one_version_and_small_ones_are_not_kept() {
        let seen = Seen::default();
        assert!(!seen.may_replace("a"));
        let large = Bytes::from(vec![b' '; LARGE]);
        seen.keep("a", &mk_stamp("1"), &large, None);
        assert!(seen.may_replace("a"));
        let text = |name: &str, version: &str| {
            let text = seen.text(name, &mk_stamp(version));
            text.map(|text| text.bytes)
        };
        assert_eq!(text("a", "1"), Some(large));
        assert_eq!(text("a", "2"), None);
        assert_eq!(text("b", "1"), None);
        seen.keep("a", &mk_stamp("3"), &Bytes::from("{}"), None);
        assert!(!seen.may_replace("a"));
    }

    #[test]
    fn after_another_writer_some_writes_are_patches_again() {
        let seen = Seen::default();
        let large = Bytes::from(vec![b' '; LARGE]);
        seen.keep("a", &mk_stamp("1"), &large, None);
        seen.met_another("a");
        let patches = (0..100).take_while(|_| !seen.may_replace("a")).count();
        assert_eq!(patches, 8);
        assert!(seen.may_replace("a"), "and then no more");
    }

    #[test]
    fn a_size_follows_its_growth() {
        let seen = Seen::default();
        seen.note("a", 100);
        assert_eq!(seen.size_after("a", -30), 70);
        assert_eq!(seen.size_after("b", 30), 30);
    }
}
