//! Which file of a node its slices are kept in: an annotation of claims and of published pools.
//!
//! A node's slices are allocated from by one file. A process that finds them marked with another file of the same node
//! must not allocate from them (I1), unless it is the agent that takes them over. The mark of another node means nothing:
//! the claim was transferred by a version without marks.

use berth_core::slice::NodeName;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::marks::PUBLISHED;
use super::resource::POOLS;
use super::unknown::rewritten;
use super::{KubeLedger, SliceObject};
use berth_ledger::{LedgerError, PoolKey};

/// The annotation that says so.
pub const FILE: &str = "berth.dev/file";

/// A node's file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileMark {
    pub node: String,
    /// Made with the file, and copied with it.
    pub id: String,
    /// Where the process that wrote it has it.
    pub path: String,
}

impl FileMark {
    /// What an object is marked with; what can't be read marks nothing.
    pub(super) fn read(metadata: &Value) -> Option<FileMark> {
        Self::parse(metadata["annotations"][FILE].as_str())
    }

    pub(super) fn parse(text: Option<&str>) -> Option<FileMark> {
        serde_json::from_str(text?).ok()
    }

    pub(super) fn text(&self) -> String {
        json!(self).to_string()
    }

    /// The text that replaces another one: what a newer version says of the same file stays (I7).
    pub(super) fn text_after(&self, before: Option<&str>) -> String {
        let same = Self::parse(before).is_some_and(|before| before.id == self.id);
        let kept = rewritten(before.filter(|_| same), self);
        kept.unwrap_or_else(|_| self.text())
    }

    /// Whether that is another file of the same node.
    pub fn is_beside(&self, ours: &FileMark) -> bool {
        self.node == ours.node && self.id != ours.id
    }
}

impl KubeLedger {
    /// From now on claims of that node and pools that are made carry its mark.
    pub fn mark_with(&self, file: &FileMark) {
        let _ = self.file.set(file.clone());
    }

    /// What a claim is marked with after a write: with this node's file if it is this node's then; if it was, with nothing.
    pub(super) fn mark_after(&self, before: Option<&SliceObject>, node: &NodeName) -> Value {
        let Some(file) = self.file.get() else {
            return json!({});
        };
        let is_ours = |node: &NodeName| node.as_str() == file.node;
        match before {
            _ if is_ours(node) => {
                let before = before.and_then(|before| before.file_text.as_deref());
                json!({ FILE: file.text_after(before) })
            }
            Some(before) if is_ours(&before.claim.node) => json!({ FILE: null }),
            _ => json!({}),
        }
    }

    /// Marks the pool of a slice with this node's file, before anything is allocated from it; makes it if it does not exist.
    /// False: another file of this node has marked it, which only who may take over replaces.
    pub async fn mark_published(
        &self,
        pool: &PoolKey,
        take_over: bool,
    ) -> Result<bool, LedgerError> {
        let Some(file) = self.file.get() else {
            return Ok(true);
        };
        let may_write = |now: Option<&str>| {
            let now = FileMark::parse(now);
            let is_anothers = now.as_ref().is_some_and(|now| now.is_beside(file));
            now.as_ref() != Some(file) && (take_over || !is_anothers)
        };
        // Only the pool of a node has the mark of its file.
        let found = self.client.get_metadata(&POOLS, &pool.name).await?;
        let publisher = |object: &Value| object["metadata"]["annotations"][PUBLISHED] == file.node;
        if found.is_some_and(|found| !publisher(&found.object)) {
            let to = |_: Option<&str>| Some(file.node.clone());
            let other = |now: Option<&str>| now != Some(&file.node);
            self.annotate(pool, PUBLISHED, other, to).await?;
        }
        let to = |now: Option<&str>| Some(file.text_after(now));
        if self.annotate(pool, FILE, may_write, to).await? {
            return Ok(true);
        }
        let now = self.published_file(pool).await?;
        Ok(!now.is_some_and(|now| now.is_beside(file)))
    }

    /// The file that a published pool is marked with.
    pub async fn published_file(&self, pool: &PoolKey) -> Result<Option<FileMark>, LedgerError> {
        let found = self.client.get_metadata(&POOLS, &pool.name).await?;
        Ok(found.and_then(|found| FileMark::read(&found.object["metadata"])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_file_is_one_of_the_same_node() {
        let mark = |node: &str, id: &str| FileMark {
            node: node.into(),
            id: id.into(),
            path: "/var/lib/berth/berth.db".into(),
        };
        let ours = mark("a", "1");
        assert!(mark("a", "2").is_beside(&ours));
        assert!(!mark("a", "1").is_beside(&ours) && !mark("b", "2").is_beside(&ours));
        let metadata = json!({ "annotations": { FILE: ours.text() } });
        assert_eq!(FileMark::read(&metadata), Some(ours));
        assert_eq!(FileMark::read(&json!({})), None);
    }

    #[test]
    fn berth_15_24_unknown_fields_of_the_same_file_are_kept() {
        let mark = |id: &str| FileMark {
            node: "a".into(),
            id: id.into(),
            path: "/var/lib/berth/berth.db".into(),
        };
        let newer = r#"{"node":"a","id":"1","path":"/old","version":7}"#;
        let rewritten = mark("1").text_after(Some(newer));
        let now: Value = serde_json::from_str(&rewritten).unwrap();
        assert_eq!(now["version"], 7);
        assert_eq!(FileMark::parse(Some(&rewritten)), Some(mark("1")));
        assert_eq!(mark("2").text_after(Some(newer)), mark("2").text());
    }
}
