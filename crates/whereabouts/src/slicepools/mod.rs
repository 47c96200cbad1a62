//! NodeSlicePools: which node has which slice of a range, as whereabouts has it.
//!
//! Promises: a write holds only for exactly the objects that were read (resourceVersion), so that of two
//! controllers which write at once one has to look again (I1, I8); rows that can't be read, labels and
//! annotations of others stay (I5, I7). One write carries everything that changed in an object, for however
//! many nodes.
//!
//! ```text
//!   slice        0 .. 8191    8192 .. 16383   ...
//!   object       <name>       <name>--p1           a range of up to 8192 slices: one object that lists all
//! ```
//! A slice is on exactly one page by its place in the range, so pages are written one by one without a
//! moment in which a slice could be had twice. The first page is written last: it alone says how the range is
//! cut, and a reader who finds an older cut there does not look at the other pages. A range that grows downwards gives its
//! slices other places: they are on their new page before they leave the old one, so a write that is cut short leaves
//! none untold. Where they move to earlier pages, the first page is the first for the same reason.

mod document;
mod heads;

use std::collections::{BTreeMap, BTreeSet};

use berth_api::cncf::Condition;
use berth_api::slices::SLICE_POOL;
use berth_core::Prefix;
use berth_core::slice::assigned::Assignments;
use berth_kube::{Connection, Failure, ObjectClient, Verb};
use futures::stream::BoxStream;
use kube::api::{Patch, Preconditions};
use serde_json::Value;

use super::ETCD_REQUEST_LIMIT;
use super::resource::SLICE_POOLS;
use berth_ledger::LedgerError;
use document::{Page, Rows};
pub use heads::{Head, HeadEvent};

/// The annotations of a pool beside its slices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// A controller made it, and so may delete it.
    pub managed: bool,
    /// The definitions that share it, `namespace/name`, sorted.
    pub networks: Vec<String>,
    /// No other network has an address in its range.
    pub disjoint: bool,
    /// What is wrong.
    pub conditions: Vec<Condition>,
}

/// A pool's slices and annotations: the state that a write makes true.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlicePool {
    pub table: Assignments,
    /// The slices' size as it is written, `/26` or `26`: whereabouts compares the text.
    pub size_text: String,
    pub marks: Marks,
}

/// A pool as it was read.
#[derive(Clone, Debug)]
pub struct StoredSlicePool {
    pub name: String,
    pub pool: SlicePool,
    /// UIDs of the definitions that whereabouts' controller noted as owners.
    pub owners: Vec<String>,
    /// Rows that can't be used, each with its reason. They stay as they are.
    pub unparsed: Vec<String>,
    stray_rows: BTreeSet<(String, String)>,
    pages: BTreeMap<u128, Page>,
}

impl StoredSlicePool {
    /// Whether every object is at the version that a watch shows, or ahead of it: our own writes are known
    /// before they are seen.
    pub fn is_current(&self, seen: impl Fn(&str) -> Option<String>) -> bool {
        let number = |version: &str| version.parse::<u64>().unwrap_or_default();
        self.pages.iter().all(|(place, page)| {
            let object = berth_api::slices::slice_page(&self.name, *place);
            let seen = seen(&object);
            seen.is_none_or(|seen| number(&seen) <= number(&page.version))
        })
    }

    /// Whether Berth's controller tends it: it tells of every slice that changes hands.
    pub fn tells(&self) -> bool {
        !self.pool.marks.networks.is_empty()
    }

    pub fn versions(&self) -> Versions {
        let pages = self.pages.iter();
        pages.map(|(n, page)| (*n, page.version.clone())).collect()
    }
}

/// The versions that a pool's objects were read at, by their places.
pub type Versions = BTreeMap<u128, String>;

/// The NodeSlicePools of one namespace.
#[derive(Clone)]
pub struct SlicePools {
    client: ObjectClient,
    limit: usize,
}

impl std::fmt::Debug for SlicePools {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SlicePools")
            .field("namespace", &self.client.namespace())
            .finish_non_exhaustive()
    }
}

/// Pages in one answer of a list: each may have a megabyte.
const LISTED: u32 = 4;

/// The same of their metadata.
const NAMED: u32 = 100;

impl SlicePools {
    pub fn new(connection: &Connection) -> Self {
        Self {
            client: ObjectClient::new(connection),
            limit: ETCD_REQUEST_LIMIT,
        }
    }

    /// What there is, now and after every change, without what it holds.
    pub fn heads(&self) -> BoxStream<'static, HeadEvent> {
        heads::follow(&self.client)
    }

    /// The pool of that name, read so that every acknowledged write is seen.
    pub async fn load(&self, name: &str) -> Result<Option<StoredSlicePool>, LedgerError> {
        let Some(first) = self.client.get(&SLICE_POOLS, name).await? else {
            return Ok(None);
        };
        let unreadable = |object: &str, why: String| LedgerError::Unreadable {
            target: self.client.ask(Verb::Get, &SLICE_POOLS, object).target(),
            why,
        };
        let first = Page::read(first.object).map_err(|why| unreadable(name, why))?;
        let cut = first.cut().map_err(|why| unreadable(name, why))?;
        let mut pages = BTreeMap::from([(0, first)]);
        if document::page_count(cut) > 1 {
            let selector = document::selector(name);
            let mut unread = None;
            let keep = |object: Value| {
                let Some(number) = document::page_in(&object, name).filter(|page| *page > 0) else {
                    return;
                };
                match Page::read(object) {
                    Ok(page) => {
                        pages.insert(number, page);
                    }
                    Err(why) => unread = Some((number, why)),
                }
            };
            let listed = self.client.reduce(&SLICE_POOLS, &selector, LISTED, keep);
            listed.await?;
            if let Some((number, why)) = unread {
                let target = berth_api::slices::slice_page(name, number);
                return Err(unreadable(&target, why));
            }
        }
        document::assemble(name, cut, pages)
            .map(Some)
            .map_err(|why| unreadable(name, why))
    }

    /// The names of all pools: of their first pages, without what these hold.
    pub async fn names(&self) -> Result<Vec<String>, LedgerError> {
        let first = |metadata: &Value| {
            let name = metadata["name"].as_str()?;
            let page_of = metadata["annotations"][SLICE_POOL].as_str();
            page_of
                .is_none_or(|pool| pool == name)
                .then(|| name.to_owned())
        };
        let names = self.client.pick_metadata(&SLICE_POOLS, "", NAMED, first);
        Ok(names.await?)
    }

    /// The range that the pool of that name is of, read so that every acknowledged write is seen; its rows are not.
    pub async fn range(&self, name: &str) -> Result<Option<Prefix>, LedgerError> {
        let Some(found) = self.client.get(&SLICE_POOLS, name).await? else {
            return Ok(None);
        };
        let cut = Page::read(found.object).and_then(|page| page.cut());
        cut.map(|cut| Some(cut.range()))
            .map_err(|why| LedgerError::Unreadable {
                target: self.client.ask(Verb::Get, &SLICE_POOLS, name).target(),
                why,
            })
    }

    /// Whether the pool's objects are still those of that versions. Their metadata alone is read.
    pub async fn is_at(&self, name: &str, versions: &Versions) -> Result<bool, LedgerError> {
        for (number, version) in versions {
            let object = berth_api::slices::slice_page(name, *number);
            let found = self.client.get_metadata(&SLICE_POOLS, &object).await?;
            let now = found
                .as_ref()
                .and_then(|found| found.object["metadata"]["resourceVersion"].as_str());
            if now != Some(version) {
                return Ok(false);
            }
        }
        Ok(!versions.is_empty())
    }

    /// Makes `pool` true under that name, where `base` is what it was read as. Writes what differs and
    /// nothing else; gives back how it stands then.
    ///
    /// [`LedgerError::Conflict`] and [`LedgerError::Uncertain`]: load again and plan again.
    pub async fn write(
        &self,
        name: &str,
        base: Option<&StoredSlicePool>,
        pool: &SlicePool,
    ) -> Result<StoredSlicePool, LedgerError> {
        let none = BTreeMap::new();
        let before = base.map_or(&none, |base| &base.pages);
        let mut after = document::render(name, pool, base);
        let mut stored = BTreeMap::new();
        for number in document::order(pool, before, &after) {
            let object = berth_api::slices::slice_page(name, number);
            let page = match (before.get(&number), after.remove(&number)) {
                (Some(page), None) => {
                    self.delete(&object, page).await?;
                    continue;
                }
                (None, None) => continue,
                (Some(page), Some(rows)) if page.rows == rows => page.clone(),
                (Some(page), Some(rows)) => self.patch(&object, page, rows).await?,
                (None, Some(rows)) => self.create(&object, name, number, rows).await?,
            };
            stored.insert(number, page);
        }
        let unreadable = |why| LedgerError::Unreadable {
            target: self.client.ask(Verb::Get, &SLICE_POOLS, name).target(),
            why,
        };
        document::assemble(name, pool.table.cut(), stored).map_err(unreadable)
    }

    /// Deletes the pool if it still is exactly what was read.
    pub async fn remove(&self, pool: &StoredSlicePool) -> Result<(), LedgerError> {
        for (number, page) in pool.pages.iter().rev() {
            let object = berth_api::slices::slice_page(&pool.name, *number);
            self.delete(&object, page).await?;
        }
        Ok(())
    }

    async fn create(
        &self,
        object: &str,
        pool: &str,
        number: u128,
        rows: Rows,
    ) -> Result<Page, LedgerError> {
        let document = rows.object(object);
        self.check(object, &document)?;
        match self.client.create(&SLICE_POOLS, &document).await {
            Ok(created) => Page::written(&created, rows).map_err(|why| self.unknown(object, why)),
            Err(Failure::Refused(refusal)) if refusal.is_taken_name() && number > 0 => {
                // A page that was created before its pool refers to it: no reader uses it yet.
                let found = self.client.get(&SLICE_POOLS, object).await?;
                let stale = found
                    .filter(|found| document::page_in(&found.object, pool) == Some(number))
                    .and_then(|found| Page::read(found.object).ok());
                match stale {
                    Some(page) => self.patch(object, &page, rows).await,
                    None => Err(self.failed(Verb::Create, object, Failure::Refused(refusal))),
                }
            }
            Err(failure) => Err(self.failed(Verb::Create, object, failure)),
        }
    }

    async fn patch(&self, object: &str, page: &Page, rows: Rows) -> Result<Page, LedgerError> {
        if let Some(steps) = rows.steps(page) {
            let patch = Patch::Json::<Value>(steps.into_patch());
            match self.client.patch(&SLICE_POOLS, object, &patch).await {
                Ok(patched) => {
                    return Page::written(&patched, rows).map_err(|why| self.unknown(object, why));
                }
                // Another version, too large, or not shaped as it was taken to be: the whole document says which.
                Err(Failure::Refused(refusal)) if refusal.code == 422 || refusal.is_too_large() => {
                }
                Err(failure) => return Err(self.lost(object, failure)),
            }
        }
        let merge = rows.merge(page);
        self.check(object, &merge)?;
        let patch = Patch::Merge(merge);
        match self.client.patch(&SLICE_POOLS, object, &patch).await {
            Ok(patched) => Page::written(&patched, rows).map_err(|why| self.unknown(object, why)),
            Err(failure) => Err(self.lost(object, failure)),
        }
    }

    /// A patch that failed: of an object that is gone, because somebody else was there.
    fn lost(&self, object: &str, failure: Failure) -> LedgerError {
        match failure {
            Failure::Refused(refusal) if refusal.is_absence_of(object) => LedgerError::Conflict {
                pool: self.client.ask(Verb::Patch, &SLICE_POOLS, object).target(),
                held: Vec::new(),
            },
            failure => self.failed(Verb::Patch, object, failure),
        }
    }

    async fn delete(&self, object: &str, page: &Page) -> Result<(), LedgerError> {
        let preconditions = Preconditions {
            uid: Some(page.uid.clone()),
            resource_version: Some(page.version.clone()),
        };
        let deleted = self.client.delete(&SLICE_POOLS, object, preconditions);
        Ok(deleted.await?)
    }

    /// Refused before it is sent: an object that etcd does not take is an error of its own, with its size.
    fn check(&self, object: &str, document: &Value) -> Result<(), LedgerError> {
        let size = document.to_string().len();
        if size > self.limit {
            return Err(LedgerError::Full {
                target: self.client.ask(Verb::Patch, &SLICE_POOLS, object).target(),
                size,
                limit: self.limit,
                hint: "give fewer, larger slices (node_slice_size)".into(),
            });
        }
        Ok(())
    }

    fn failed(&self, verb: Verb, object: &str, failure: Failure) -> LedgerError {
        failure
            .into_error(self.client.ask(verb, &SLICE_POOLS, object))
            .into()
    }

    fn unknown(&self, object: &str, why: String) -> LedgerError {
        LedgerError::Uncertain {
            operation: Verb::Patch.name(),
            target: self.client.ask(Verb::Patch, &SLICE_POOLS, object).target(),
            why,
        }
    }
}
