//! A pool in several objects, so that none of them gets large.
//!
//! ```text
//!   offset      0 ..  999   1000 .. 1999   2000 .. 2999
//!   object      <name>      <name>--p1     <name>--p2        each made when its first address is given
//! ```
//!
//! An address belongs to exactly one page by its offset alone: the precondition on that page's entry is
//! all that a claim needs (I1), and nobody has to look anywhere else. A page has room for all its
//! addresses, so a pool never fills up before its range does, and a write costs what a page of a
//! thousand costs. The lowest free address is given first, so pages fill one after another.
//!
//! What it costs: a commit of addresses on several pages is one patch for each. Claims that were made
//! before a page refused are taken back; a release stays, its owner asked for it. A process that dies in
//! between leaves claims without an answer: the same request finds them (I3), else they are freed on
//! proof like any other (I4).
//!
//! A program that reads only `<name>` would give the addresses of the other pages again. So pages are
//! only for pools that nothing but Berth writes, and both ways are marked: without pages a first page is
//! refused, with pages an object that is none.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use berth_core::{Address, Change, Pool, Prefix, Record};
use kube::api::Patch;
use serde_json::{Value, json};

use super::KubeLedger;
use super::base::Base;
use super::object::Object;
use super::resource::POOLS;
use super::status::Verb;
use super::store::Store;
use super::wire::Fetched;
use crate::{LedgerError, PoolKey, Rejection, Snapshot, Version};

/// Addresses of a page. It is part of what is stored: another number is another arrangement.
const SPAN: u128 = 1_000;

/// `<page>/<span>`.
pub(super) const PAGE_MARK: &str = "berth.dev/page";
const POOL_MARK: &str = "berth.dev/pool";

/// Pages in one answer of a list: each has some 160 KB.
const LISTED: u32 = 20;

/// Which part of a pool an object has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Whole,
    Page(u128),
    /// Whatever it is: while a pool is being spread.
    Any,
}

impl Place {
    pub fn check(
        self,
        mark: Option<&Value>,
        mut offsets: impl Iterator<Item = u128>,
    ) -> Result<(), String> {
        let mark = mark.map(|mark| mark.as_str().unwrap_or_default());
        match (self, mark) {
            (Self::Any, _) | (Self::Whole, None) => Ok(()),
            (Self::Whole, Some(mark)) => Err(format!(
                "it is one page of several ({PAGE_MARK}: {mark}): only with pages turned on is the pool whole"
            )),
            (Self::Page(_), None) => {
                Err("it is not in pages: spread it, once nothing but Berth writes it".to_owned())
            }
            (Self::Page(page), Some(found)) => {
                let expected = mark_of(page);
                if found != expected {
                    return Err(format!(
                        "{PAGE_MARK} is {found}, where {expected} should be"
                    ));
                }
                match offsets.find(|offset| offset / SPAN != page) {
                    Some(offset) => Err(format!(
                        "its entry {offset} belongs to page {}: spread the pool again",
                        offset / SPAN
                    )),
                    None => Ok(()),
                }
            }
        }
    }
}

fn mark_of(page: u128) -> String {
    format!("{page}/{SPAN}")
}

fn page_name(pool: &str, page: u128) -> String {
    match page {
        0 => pool.to_owned(),
        n => format!("{pool}--p{n}"),
    }
}

/// The page that an address is on; none if it is not of the network.
fn page_of(network: Prefix, address: Address) -> Option<u128> {
    Some(address.distance_from(network.network())? / SPAN)
}

/// The value of the label by which all pages of a pool are found. A label takes 63 characters: a longer
/// name is shortened and told from its like by a hash, and by the annotation that has it whole.
pub(super) fn label(pool: &str) -> String {
    if pool.len() <= 63 {
        return pool.to_owned();
    }
    // FNV-1a: the same for everyone, for ever.
    let hash = pool.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let head: String = pool.chars().take(46).collect();
    format!("{head}.{hash:016x}")
}

pub(super) fn selector(pool: &str) -> String {
    format!("{POOL_MARK}={}", label(pool))
}

fn marks(pool: &str, page: u128) -> Value {
    json!({
        "labels": { POOL_MARK: label(pool) },
        "annotations": { POOL_MARK: pool, PAGE_MARK: mark_of(page) },
    })
}

fn mark<'a>(object: &'a Value, name: &str) -> Option<&'a str> {
    object["metadata"]["annotations"].get(name)?.as_str()
}

/// The page that an object says it is, of that pool.
pub(super) fn page_in(object: &Value, pool: &str) -> Option<u128> {
    if mark(object, POOL_MARK) != Some(pool) {
        return None;
    }
    mark(object, PAGE_MARK)?.split('/').next()?.parse().ok()
}

/// Whether the object stands for a pool: all but later pages do.
pub(super) fn is_first(object: &Value) -> bool {
    mark(object, PAGE_MARK).is_none_or(|page| page.starts_with("0/"))
}

/// All pages of a pool as one state. A page that is not there is empty.
pub(super) fn snapshot<'a>(pages: impl Iterator<Item = (u128, &'a Object)>) -> Snapshot {
    let mut pool = Pool::new();
    let mut bases = BTreeMap::new();
    for (page, object) in pages {
        object.fill(&mut pool);
        bases.insert(page, Base::At(object.stamp.clone()));
    }
    Snapshot {
        pool,
        version: join(&bases),
    }
}

/// A line for each page: no base has a line break in it.
fn join(bases: &BTreeMap<u128, Base>) -> Version {
    let lines: Vec<String> = bases
        .iter()
        .map(|(page, base)| format!("{page} {}", Version::from(base).stored()))
        .collect();
    Version::new(format!("pages\n{}", lines.join("\n")))
}

/// `None` for a version that is not one of pages.
fn split(version: &Version) -> Option<BTreeMap<u128, Base>> {
    let lines = version.stored().strip_prefix("pages\n")?.lines();
    lines
        .map(|line| {
            let (page, base) = line.split_once(' ')?;
            Some((page.parse().ok()?, Base::from(&Version::new(base))))
        })
        .collect()
}

/// What takes claims and updates back. Releases stay: their owners asked for them.
fn undo(changes: &[Change]) -> Vec<Change> {
    let undo = |change: &Change| match change {
        Change::Claim { address, record } => Some(Change::Release {
            address: *address,
            expected: record.clone(),
            rest: None,
        }),
        Change::Update {
            address,
            expected,
            record,
        } => Some(Change::Update {
            address: *address,
            expected: record.clone(),
            record: expected.clone(),
        }),
        Change::Release { .. } => None,
    };
    changes.iter().rev().filter_map(undo).collect()
}

impl KubeLedger {
    fn page<'a>(&'a self, name: &'a str, pool: &PoolKey, page: u128, place: Place) -> Store<'a> {
        Store {
            wire: &self.wire,
            seen: &self.seen,
            limit: self.limit,
            name,
            network: pool.network,
            place,
            marks: marks(&pool.name, page),
            moves: false,
        }
    }

    fn network(&self, pool: &PoolKey) -> Result<Prefix, LedgerError> {
        pool.network.ok_or_else(|| LedgerError::Rejected {
            operation: Verb::Get.name(),
            target: self.wire.ask(Verb::Get, &POOLS, &pool.name).target(),
            rejection: Rejection::Invalid {
                code: 422,
                message: "a pool in pages needs its range to tell them".into(),
            },
        })
    }

    pub(super) async fn load_pages(&self, pool: &PoolKey) -> Result<Snapshot, LedgerError> {
        self.network(pool)?;
        let labels = selector(&pool.name);
        let mut pages = BTreeMap::new();
        for object in self.wire.list(&POOLS, &labels, LISTED).await? {
            let Some(page) = page_in(&object, &pool.name) else {
                continue;
            };
            let name = page_name(&pool.name, page);
            let size = object.to_string().len();
            let store = self.page(&name, pool, page, Place::Page(page));
            pages.insert(
                page,
                store.parse(Fetched {
                    object,
                    size,
                    text: None,
                })?,
            );
        }
        // A pool that is not in pages has no label and is not in the list.
        if let Entry::Vacant(first) = pages.entry(0) {
            let store = self.page(&pool.name, pool, 0, Place::Page(0));
            if let Some(object) = store.read().await? {
                first.insert(object);
            }
        }
        Ok(snapshot(pages.iter().map(|(page, object)| (*page, object))))
    }

    pub(super) async fn commit_pages(
        &self,
        pool: &PoolKey,
        base: &Version,
        changes: &[Change],
    ) -> Result<(Version, bool), LedgerError> {
        let network = self.network(pool)?;
        let known = split(base);
        let mut by_page: BTreeMap<u128, Vec<Change>> = BTreeMap::new();
        for change in changes {
            // One below the network is refused by the page that it is put to.
            let page = page_of(network, change.address()).unwrap_or_default();
            by_page.entry(page).or_default().push(change.clone());
        }
        let mut bases = known.clone().unwrap_or_default();
        let mut merged = known.is_none();
        let mut done: Vec<(u128, Base)> = Vec::new();
        for (page, changes) in &by_page {
            let name = page_name(&pool.name, *page);
            let store = self.page(&name, pool, *page, Place::Page(*page));
            let base = match &known {
                Some(known) => known.get(page).cloned().unwrap_or(Base::Absent),
                None => Base::Unknown,
            };
            match store.commit(&base, changes).await {
                Ok(written) => {
                    merged |= written.merged;
                    let base = Base::At(written.stamp);
                    bases.insert(*page, base.clone());
                    done.push((*page, base));
                }
                Err(error) => return Err(self.take_back(pool, &by_page, done, error).await),
            }
        }
        Ok((join(&bases), merged))
    }

    /// Takes back what earlier pages got, and returns what the caller has to know.
    async fn take_back(
        &self,
        pool: &PoolKey,
        by_page: &BTreeMap<u128, Vec<Change>>,
        done: Vec<(u128, Base)>,
        error: LedgerError,
    ) -> LedgerError {
        for (page, base) in done.into_iter().rev() {
            let changes = by_page.get(&page).map(|changes| undo(changes));
            let Some(changes) = changes.filter(|changes| !changes.is_empty()) else {
                continue;
            };
            let name = page_name(&pool.name, page);
            let store = self.page(&name, pool, page, Place::Page(page));
            if let Err(stuck) = store.commit(&base, &changes).await {
                return LedgerError::Uncertain {
                    operation: Verb::Patch.name(),
                    target: self.wire.ask(Verb::Patch, &POOLS, &name).target(),
                    why: format!(
                        "another page failed ({error}), and this one kept its part ({stuck})"
                    ),
                };
            }
        }
        error
    }

    /// Brings a pool into pages, or finishes what an earlier call began; returns how many entries moved.
    ///
    /// Nothing but Berth may write the pool from now on. While it goes on the pool can be neither read
    /// nor written; an entry is on its page before it leaves the first one, so nobody loses an address.
    pub async fn spread(&self, pool: &PoolKey) -> Result<usize, LedgerError> {
        let network = self.network(pool)?;
        let first = self.page(&pool.name, pool, 0, Place::Any);
        let Some(object) = first.read().await? else {
            return Ok(0);
        };
        let mut entries = Pool::new();
        object.fill(&mut entries);
        let beyond = |key: &str| key.parse().is_ok_and(|offset: u128| offset >= SPAN);
        if let Some(stray) = entries.strays().iter().find(|stray| beyond(&stray.key)) {
            let (key, why) = (&stray.key, &stray.why);
            return Err(LedgerError::Unreadable {
                target: self.wire.ask(Verb::Get, &POOLS, &pool.name).target(),
                why: format!("entry {key:?} can't be moved to its page: {why}"),
            });
        }
        // First of all the mark: whoever knows no pages must not take the rest for the whole.
        let mut mark = json!({ "metadata": marks(&pool.name, 0) });
        mark["metadata"]["resourceVersion"] = json!(object.stamp.resource_version);
        self.wire
            .patch(&POOLS, &pool.name, &Patch::Merge(mark))
            .await
            .map_err(|failure| {
                failure.into_error(self.wire.ask(Verb::Patch, &POOLS, &pool.name))
            })?;
        let mut moving: BTreeMap<u128, Vec<(Address, Record)>> = BTreeMap::new();
        for (address, record) in entries.records() {
            let page = page_of(network, address).unwrap_or_default();
            if page > 0 {
                let entry = (address, record.clone());
                moving.entry(page).or_default().push(entry);
            }
        }
        let mut moved = 0;
        for (page, entries) in moving {
            moved += entries.len();
            self.move_to(pool, page, &entries).await?;
        }
        Ok(moved)
    }

    async fn move_to(
        &self,
        pool: &PoolKey,
        page: u128,
        entries: &[(Address, Record)],
    ) -> Result<(), LedgerError> {
        let name = page_name(&pool.name, page);
        let store = self.page(&name, pool, page, Place::Page(page));
        let mut there = Pool::new();
        if let Some(object) = store.read().await? {
            object.fill(&mut there);
        }
        let missing: Vec<Change> = entries
            .iter()
            .filter(|(address, record)| {
                !there
                    .get(*address)
                    .is_some_and(|held| held.same_holder(record))
            })
            .map(|(address, record)| Change::Claim {
                address: *address,
                record: record.clone(),
            })
            .collect();
        if !missing.is_empty() {
            store.commit(&Base::Unknown, &missing).await?;
        }
        let gone: Vec<Change> = entries
            .iter()
            .map(|(address, record)| Change::Release {
                address: *address,
                expected: record.clone(),
                rest: None,
            })
            .collect();
        let first = self.page(&pool.name, pool, 0, Place::Any);
        first.commit(&Base::Unknown, &gone).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::base::{Notes, Stamp};
    use super::*;

    #[test]
    fn an_address_is_on_one_page() {
        let network = "10.0.0.0/16".parse().unwrap();
        let page = |text: &str| page_of(network, text.parse().unwrap());
        assert_eq!(page("10.0.0.0"), Some(0));
        assert_eq!(page("10.0.3.231"), Some(0));
        assert_eq!(page("10.0.3.232"), Some(1));
        assert_eq!(page("10.0.255.255"), Some(65));
        assert_eq!(page("9.255.255.255"), None);
        assert_eq!(page_name("10.0.0.0-16", 0), "10.0.0.0-16");
        assert_eq!(page_name("10.0.0.0-16", 65), "10.0.0.0-16--p65");
    }

    #[test]
    fn a_label_is_short_enough_and_tells_long_names_apart() {
        assert_eq!(label("blue-10.0.0.0-16"), "blue-10.0.0.0-16");
        let long = |end: &str| label(&format!("{}{end}", "n".repeat(100)));
        assert!(long("-10.0.0.0-16").len() <= 63);
        assert_ne!(long("-10.0.0.0-16"), long("-10.1.0.0-16"));
    }

    #[test]
    fn a_version_has_a_base_for_every_page() {
        let stamp = |version: &str, notes| {
            Base::At(Stamp {
                resource_version: version.into(),
                generation: 3,
                tracked: false,
                notes,
                odd: false,
                sliced: false,
                assigned: false,
                unreserved: false,
            })
        };
        let bases = BTreeMap::from([
            (0, stamp("7", Notes::Bare)),
            (
                12,
                stamp("9", Notes::Resting(r#"{"5":{"a":"b c"}}"#.into())),
            ),
        ]);
        assert_eq!(split(&join(&bases)), Some(bases.clone()));
        assert_eq!(split(&join(&bases).merged()), Some(bases));
        assert_eq!(split(&join(&BTreeMap::new())), Some(BTreeMap::new()));
        assert_eq!(split(&Version::new("7/1/plain/bare/")), None);
    }

    #[test]
    fn a_place_refuses_what_does_not_belong_there() {
        let check = |place: Place, mark: Option<&str>, offset: u128| {
            let mark = mark.map(|mark| json!(mark));
            place.check(mark.as_ref(), std::iter::once(offset))
        };
        assert!(check(Place::Whole, None, 5_000).is_ok());
        assert!(check(Place::Whole, Some("0/1000"), 5).is_err());
        assert!(
            check(Place::Page(0), None, 5)
                .unwrap_err()
                .contains("spread")
        );
        assert!(check(Place::Page(5), Some("5/1000"), 5_999).is_ok());
        assert!(check(Place::Page(5), Some("5/1000"), 6_000).is_err());
        assert!(check(Place::Page(5), Some("5/500"), 5_999).is_err());
    }
}
