//! Writes of other programs to a state, and what they erased of this node's allocations.
//!
//! Upstream's manager writes a stale copy of the whole document under a fresh resourceVersion: entries that were made
//! meanwhile vanish, fields that it does not know are dropped, and `version` goes back. Berth notes on the ConfigMap, which such a
//! program leaves alone, a digest of the document that it wrote and how many documents of others it found:
//! ```text
//!   digest matches, same count     only Berth wrote: what is missing was released
//!   digest differs, or count grew  another program wrote: this node's entries that are missing are restored
//! ```
//! Guarantees: an allocation of this node that another program erased stays held in this process from the moment that it is
//! seen, and is in the state again with the next write (I1). Leaves entries of other nodes to their agents.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::document::{Allocation, Document};
use super::salvage::held_entry;
use super::state::parse;

const DIGEST: &str = "state.berth.dev/digest";
const FOREIGN: &str = "state.berth.dev/foreign-writes";
/// Fields that name a node which works on the VM of an entry.
const WORKERS: [&str; 2] = ["quarantinedBy", "checkingBy"];

/// Who wrote a document last, by the annotations beside it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stamp {
    digest: u64,
    /// Documents of others that were found, this one included.
    foreign: u64,
    /// Whether Berth ever wrote this ConfigMap.
    noted: bool,
}

impl Stamp {
    pub(super) fn read(text: &str, annotations: Option<&BTreeMap<String, String>>) -> Self {
        let note = |key| annotations.and_then(|notes| notes.get(key));
        let digest = digest(text);
        let written = note(DIGEST);
        let is_other = written.is_some_and(|written| *written != format!("{digest:016x}"));
        let foreign: u64 = note(FOREIGN)
            .and_then(|count| count.parse().ok())
            .unwrap_or(0);
        Self {
            digest,
            foreign: foreign.saturating_add(u64::from(is_other)),
            noted: written.is_some(),
        }
    }

    /// Notes that Berth wrote `text` over the document of this stamp.
    pub(super) fn write(
        self,
        text: &str,
        annotations: &mut Option<BTreeMap<String, String>>,
    ) -> Self {
        let digest = digest(text);
        let notes = annotations.get_or_insert_default();
        notes.insert(DIGEST.into(), format!("{digest:016x}"));
        if self.foreign > 0 {
            notes.insert(FOREIGN.into(), self.foreign.to_string());
        }
        Self {
            digest,
            foreign: self.foreign,
            noted: true,
        }
    }
}

/// FNV-1a: it only has to distinguish two documents of one pool.
pub(super) fn digest(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// What other programs did to a pool's state, since this process began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForeignWrites {
    /// Documents that another program wrote.
    pub writes: u64,
    /// Allocations of this node that were erased, or lost their fields, and were restored.
    pub restored: u64,
}

/// This node's allocations as they were last known to be.
#[derive(Debug, Default)]
pub(super) struct Kept {
    last: Option<Stamp>,
    version: i64,
    entries: BTreeMap<String, Allocation>,
    /// Restored in this process, and not in the state yet.
    pending: BTreeSet<String>,
    counts: ForeignWrites,
}

impl Kept {
    pub(super) const fn counts(&self) -> ForeignWrites {
        self.counts
    }

    pub(super) const fn entries(&self) -> &BTreeMap<String, Allocation> {
        &self.entries
    }

    /// Whether the state lacks what this process has restored.
    pub(super) fn is_owing(&self) -> bool {
        !self.pending.is_empty()
    }

    /// The document is this process's own write.
    pub(super) fn wrote(&mut self, node: &str, stamp: Stamp, document: &Document) {
        self.pending.clear();
        self.learn(node, stamp, document);
    }

    /// The document was read. Restores in it what another program erased.
    pub(super) fn read(&mut self, pool: &str, node: &str, stamp: Stamp, document: &mut Document) {
        let is_foreign = self.last.is_some_and(|last| {
            last.digest != stamp.digest && (!stamp.noted || last.foreign != stamp.foreign)
        });
        if is_foreign {
            self.counts.writes += 1;
            let (found, known) = (document.version, self.version);
            if found <= known {
                tracing::warn!(
                    pool,
                    version = found,
                    known,
                    "another program wrote an older state over the pool's"
                );
            }
        }
        let owed = std::mem::take(&mut self.pending);
        for (id, known) in &self.entries {
            if (is_foreign || owed.contains(id)) && put_back(document, id, known) {
                self.pending.insert(id.clone());
                if !owed.contains(id) {
                    self.counts.restored += 1;
                    tracing::warn!(
                        pool,
                        id,
                        ip = known.ip,
                        "another program erased this allocation, or a part of it; its VM stays held and the entry is restored"
                    );
                }
            }
        }
        document.version = document.version.max(self.version);
        self.learn(node, stamp, document);
    }

    fn learn(&mut self, node: &str, stamp: Stamp, document: &Document) {
        self.last = Some(stamp);
        self.version = document.version;
        let own = document.allocated.iter();
        let own = own.filter(|(_, entry)| is_own(node, entry));
        self.entries = own.map(|(id, entry)| (id.clone(), entry.clone())).collect();
    }
}

fn is_own(node: &str, entry: &Allocation) -> bool {
    let works = |field: &&str| entry.others.get(*field).and_then(Value::as_str) == Some(node);
    !node.is_empty() && (entry.node_name == node || WORKERS.iter().any(works))
}

/// Whether the document lacked something of the entry.
fn put_back(document: &mut Document, id: &str, known: &Allocation) -> bool {
    let address = parse(&known.ip);
    match document.allocated.get_mut(id) {
        Some(found) if parse(&found.ip) == address => {
            let before = found.others.len();
            for (field, value) in &known.others {
                if !found.others.contains_key(field) {
                    found.others.insert(field.clone(), value.clone());
                }
            }
            return found.others.len() > before;
        }
        // The other program allocated another VM to the ID; the state of this one is unknown.
        Some(_) => {
            let holds = |entry: &Allocation| parse(&entry.ip) == address;
            let Some(address) = address.filter(|_| !document.allocated.values().any(holds)) else {
                return false;
            };
            let held = held_entry(address, jiff::Timestamp::now());
            document.allocated.insert(held.allocation_id.clone(), held);
        }
        None => {
            document.allocated.insert(id.into(), known.clone());
        }
    }
    document.available.retain(|ip| parse(ip) != address);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: &str = "worker";

    fn entry(id: &str, ip: &str, node: &str) -> (String, Allocation) {
        let allocation = Allocation {
            allocation_id: id.into(),
            ip: ip.into(),
            node_name: node.into(),
            ..Allocation::default()
        };
        (id.into(), allocation)
    }

    fn document(version: i64, entries: &[(String, Allocation)], free: &[&str]) -> Document {
        Document {
            allocated: entries.iter().cloned().collect(),
            available: free.iter().map(ToString::to_string).collect(),
            version,
            ..Document::default()
        }
    }

    /// A ConfigMap's text and annotations, as Berth or another program leaves them.
    #[derive(Default)]
    struct Sheet {
        text: String,
        notes: Option<BTreeMap<String, String>>,
    }

    impl Sheet {
        fn stamp(&self) -> Stamp {
            Stamp::read(&self.text, self.notes.as_ref())
        }

        fn berth_writes(&mut self, document: &Document) -> Stamp {
            let text = document.encode().unwrap();
            let stamp = self.stamp().write(&text, &mut self.notes);
            self.text = text;
            stamp
        }

        fn another_writes(&mut self, document: &Document) {
            self.text = document.encode().unwrap();
        }

        fn read_by(&self, kept: &mut Kept) -> Document {
            let mut document = Document::decode(&self.text).unwrap();
            kept.read("pool", NODE, self.stamp(), &mut document);
            document
        }
    }

    #[test]
    fn what_another_program_erased_is_put_back_until_the_state_has_it() {
        let (mine, theirs) = (
            entry("a", "10.0.0.1", NODE),
            entry("b", "10.0.0.2", "other"),
        );
        let both = document(5, &[mine.clone(), theirs.clone()], &["10.0.0.3"]);
        let (mut sheet, mut kept) = (Sheet::default(), Kept::default());
        let stamp = sheet.berth_writes(&both);
        kept.wrote(NODE, stamp, &both);

        // A stale copy from before both were there.
        sheet.another_writes(&document(3, &[], &["10.0.0.1", "10.0.0.2", "10.0.0.3"]));
        for _ in 0..2 {
            let read = sheet.read_by(&mut kept);
            assert_eq!(read.allocated["a"], mine.1);
            assert_eq!(read.available, ["10.0.0.2", "10.0.0.3"]);
            assert_eq!(read.version, 5, "the next write grows");
            assert_eq!((kept.counts().writes, kept.counts().restored), (1, 1));
            assert!(kept.is_owing());
        }
        // Another agent of ours writes on that state and knows nothing of our entry.
        sheet.berth_writes(&document(6, &[theirs], &["10.0.0.1", "10.0.0.3"]));
        assert!(sheet.read_by(&mut kept).allocated.contains_key("a"));
        let read = sheet.read_by(&mut kept);
        let stamp = sheet.berth_writes(&read);
        kept.wrote(NODE, stamp, &read);
        assert!(!kept.is_owing());
        assert_eq!((kept.counts().writes, kept.counts().restored), (1, 1));
    }

    #[test]
    fn what_berth_released_stays_released() {
        let both = document(5, &[entry("a", "10.0.0.1", NODE)], &["10.0.0.3"]);
        let (mut sheet, mut kept) = (Sheet::default(), Kept::default());
        let stamp = sheet.berth_writes(&both);
        kept.wrote(NODE, stamp, &both);
        // By another node's agent.
        sheet.berth_writes(&document(6, &[], &["10.0.0.3", "10.0.0.1"]));
        assert!(sheet.read_by(&mut kept).allocated.is_empty());
        assert_eq!(kept.counts(), ForeignWrites::default());
    }

    #[test]
    fn fields_that_another_program_dropped_come_back() {
        let (id, mut mine) = entry("a", "10.0.0.1", "other");
        mine.others.insert("quarantinedBy".into(), NODE.into());
        mine.others
            .insert("quarantinedAt".into(), "2026-01-01T00:00:00Z".into());
        let before = document(5, &[(id.clone(), mine.clone())], &[]);
        let (mut sheet, mut kept) = (Sheet::default(), Kept::default());
        let stamp = sheet.berth_writes(&before);
        kept.wrote(NODE, stamp, &before);
        sheet.another_writes(&document(6, &[entry("a", "10.0.0.1", "other")], &[]));
        assert_eq!(sheet.read_by(&mut kept).allocated[&id], mine);
    }

    #[test]
    fn a_state_that_others_created_again_is_theirs() {
        let before = document(5, &[entry("a", "10.0.0.1", NODE)], &[]);
        let (mut sheet, mut kept) = (Sheet::default(), Kept::default());
        let stamp = sheet.berth_writes(&before);
        kept.wrote(NODE, stamp, &before);
        sheet.notes = None;
        sheet.another_writes(&document(1, &[entry("a", "10.0.0.9", NODE)], &["10.0.0.1"]));
        let read = sheet.read_by(&mut kept);
        assert_eq!(read.allocated["a"].ip, "10.0.0.9");
        assert_eq!(
            read.allocated["unreadable-10.0.0.1"].ip, "10.0.0.1",
            "it stays held"
        );
        assert!(read.available.is_empty());
    }
}
