//! One object of a NodeSlicePool: read, and rendered. Pure.
//!
//! Rows keep the order that they were found in, by any writer; new ones are appended. A row that
//! can't be read, or whose slice another row has already given to another node, is kept as it is and
//! assigned to no other node.

use std::collections::{BTreeMap, BTreeSet};

use crate::patch_steps::PatchSteps;
use berth_api::cncf::Condition;
use berth_api::slices::{
    CONDITIONS, DISJOINT, EPOCHS, MANAGED, NETWORKS, RECALLED, SLICE_PAGE, SLICE_POOL,
    SLICES_OF_A_PAGE,
};
use berth_core::Prefix;
use berth_core::slice::assigned::Assignments;
use berth_core::slice::{Cut, Epoch, NodeName};
use serde_json::{Map, Value, json};

use super::super::label::label;
use super::super::resource::SLICE_POOLS;
use super::super::unknown::rewritten;
use super::{Marks, SlicePool, StoredSlicePool};

/// Above so many epochs, those of slices that no longer exist are forgotten: annotations have room for 256 KiB.
const MOST_EPOCHS: usize = 4_096;

/// Steps of a patch, beyond which the table is sent whole: each costs the API server a walk to its place.
const MOST_STEPS: usize = 64;

/// The kind by which whereabouts' controller marks its pools as its own.
const DEFINITION: &str = "NetworkAttachmentDefinition";

/// An object as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    pub uid: String,
    pub version: String,
    pub rows: Rows,
    /// managedFields are there: half the cost of a write.
    tracked: bool,
    /// Annotations of ours that it has.
    annotated: BTreeSet<String>,
    labelled: bool,
    /// Owner references that are not whereabouts' marks.
    other_owners: Vec<Value>,
    owners: Vec<String>,
}

/// What an object says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rows {
    range: String,
    size: String,
    /// Node and slice; the node is empty while the slice is free.
    rows: Vec<(String, String)>,
    annotations: BTreeMap<&'static str, String>,
    /// The value of the label, on pools of several objects.
    label: Option<String>,
    /// Whereabouts' marks are on it: they would have Kubernetes delete the pool under live addresses.
    owned: bool,
}

const OURS: [&str; 8] = [
    EPOCHS, RECALLED, DISJOINT, CONDITIONS, NETWORKS, MANAGED, SLICE_PAGE, SLICE_POOL,
];

pub fn page_count(cut: Cut) -> u128 {
    cut.count().div_ceil(SLICES_OF_A_PAGE)
}

/// What is not of the cut is on the first page.
fn page_of(cut: Cut, slice: Prefix) -> u128 {
    cut.index(slice).unwrap_or(0) / SLICES_OF_A_PAGE
}

/// The order in which pages are written, and those go that are no more: what moves is on its new page before its old one
/// is written or goes, and the first page, which tells of the cut, is the last but where that would be too late. A page
/// that an earlier write was about to end goes first: nothing that it says may outlive what is written now.
pub fn order(
    pool: &SlicePool,
    before: &BTreeMap<u128, Page>,
    after: &BTreeMap<u128, Rows>,
) -> Vec<u128> {
    let going = before.keys().copied().filter(|n| !after.contains_key(n));
    let (mut order, going): (Vec<u128>, Vec<u128>) = going
        .rev()
        .partition(|number| is_told_elsewhere(before, *number));
    let mut kept: Vec<u128> = after.keys().rev().copied().collect();
    if moves_down(&pool.table, before) {
        kept.reverse();
        order.extend(kept.into_iter().chain(going));
    } else {
        let first = kept.pop();
        order.extend(kept.into_iter().chain(going).chain(first));
    }
    order
}

/// Whether a slice that somebody has is to be on an earlier page than now.
fn moves_down(table: &Assignments, pages: &BTreeMap<u128, Page>) -> bool {
    pages.iter().any(|(number, page)| {
        let slices = page.rows.rows.iter().map(|(_, slice)| slice.parse());
        let mut held = slices
            .flatten()
            .filter(|slice| table.holder(*slice).is_some());
        held.any(|slice| page_of(table.cut(), slice) < *number)
    })
}

/// Whether the other pages say all that this one does.
fn is_told_elsewhere(pages: &BTreeMap<u128, Page>, number: u128) -> bool {
    let others = || {
        pages
            .iter()
            .filter(|(n, _)| **n != number)
            .map(|(_, page)| page)
    };
    let rows: BTreeSet<&(String, String)> = others().flat_map(|page| &page.rows.rows).collect();
    let epochs = |page: &Page| page.epochs().unwrap_or_default();
    pages.get(&number).is_none_or(|page| {
        let has_rows = page.rows.rows.iter().all(|row| rows.contains(row));
        let known = |slice: &Prefix, epoch: &Epoch| {
            others().any(|page| epochs(page).get(slice).is_some_and(|known| known >= epoch))
        };
        has_rows
            && epochs(page)
                .iter()
                .all(|(slice, epoch)| known(slice, epoch))
    })
}

pub fn selector(pool: &str) -> String {
    format!("{SLICE_POOL}={}", label(pool))
}

/// The page that an object says it is, of that pool.
pub fn page_in(object: &Value, pool: &str) -> Option<u128> {
    let annotations = object["metadata"].get("annotations")?;
    if annotations.get(SLICE_POOL)?.as_str() != Some(pool) {
        return None;
    }
    let page = annotations.get(SLICE_PAGE)?.as_str()?;
    page.split('/').next()?.parse().ok()
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}

impl Page {
    pub fn read(object: Value) -> Result<Self, String> {
        let metadata = &object["metadata"];
        let annotations = metadata.get("annotations").and_then(Value::as_object);
        let mut ours = BTreeMap::new();
        for name in OURS {
            match annotations.and_then(|annotations| annotations.get(name)) {
                None => {}
                Some(Value::String(text)) => {
                    ours.insert(name, text.clone());
                }
                Some(_) => return Err(format!("the annotation {name} is no text")),
            }
        }
        let references = metadata.get("ownerReferences").and_then(Value::as_array);
        let (marks, other_owners): (Vec<Value>, Vec<Value>) = references
            .into_iter()
            .flatten()
            .cloned()
            .partition(|reference| text(reference, "kind") == DEFINITION);
        let owners: Vec<String> = marks
            .iter()
            .map(|mark| text(mark, "uid").to_owned())
            .collect();
        let listed = object["status"].get("allocations");
        let listed = match listed {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::Array(listed)) => listed.clone(),
            Some(_) => return Err("status.allocations is no list".into()),
        };
        let rows = listed
            .iter()
            .map(|row| {
                let (node, slice) = (text(row, "nodeName"), text(row, "sliceRange"));
                (node.to_owned(), slice.to_owned())
            })
            .collect();
        let label = metadata
            .get("labels")
            .and_then(|labels| labels.get(SLICE_POOL))
            .and_then(Value::as_str);
        let rows = Rows {
            range: text(&object["spec"], "range").to_owned(),
            size: text(&object["spec"], "sliceSize").to_owned(),
            rows,
            annotations: ours,
            label: label.map(str::to_owned),
            owned: !owners.is_empty(),
        };
        let mut page = Self::written(&object, rows)?;
        page.owners = owners;
        page.other_owners = other_owners;
        Ok(page)
    }

    /// The object that a write gave back, which has what was written.
    pub fn written(object: &Value, rows: Rows) -> Result<Self, String> {
        let metadata = &object["metadata"];
        let version = text(metadata, "resourceVersion");
        if version.is_empty() {
            return Err("metadata.resourceVersion is missing".into());
        }
        let tracked = metadata["managedFields"].as_array();
        Ok(Self {
            uid: text(metadata, "uid").to_owned(),
            version: version.to_owned(),
            tracked: tracked.is_some_and(|fields| !fields.is_empty()),
            annotated: rows
                .annotations
                .keys()
                .map(|name| (*name).to_owned())
                .collect(),
            labelled: rows.label.is_some(),
            rows,
            other_owners: Vec::new(),
            owners: Vec::new(),
        })
    }

    pub fn cut(&self) -> Result<Cut, String> {
        let Rows { range, size, .. } = &self.rows;
        let prefix: Prefix = range
            .parse()
            .map_err(|_| format!("spec.range {range:?} is not a CIDR"))?;
        let digits = size.strip_prefix('/').unwrap_or(size);
        let length: u8 = digits
            .parse()
            .map_err(|_| format!("spec.sliceSize {size:?} is not a prefix length"))?;
        Cut::new(prefix, length).map_err(|error| format!("spec.sliceSize: {error}"))
    }

    fn epochs(&self) -> Result<BTreeMap<Prefix, Epoch>, String> {
        let Some(text) = self.rows.annotations.get(EPOCHS) else {
            return Ok(BTreeMap::new());
        };
        serde_json::from_str(text).map_err(|error| format!("the annotation {EPOCHS}: {error}"))
    }

    fn recalled(&self) -> Result<Vec<Prefix>, String> {
        let Some(text) = self.rows.annotations.get(RECALLED) else {
            return Ok(Vec::new());
        };
        serde_json::from_str(text).map_err(|error| format!("the annotation {RECALLED}: {error}"))
    }
}

/// All objects as one pool.
pub fn assemble(
    name: &str,
    cut: Cut,
    pages: BTreeMap<u128, Page>,
) -> Result<StoredSlicePool, String> {
    let mut table = Assignments::new(cut);
    let mut unparsed = Vec::new();
    let mut stray_rows = BTreeSet::new();
    for page in pages.values() {
        for (slice, epoch) in page.epochs()? {
            table.restore_epoch(slice, epoch);
        }
        for (node, slice) in &page.rows.rows {
            if let Err(why) = restore(&mut table, node, slice) {
                unparsed.push(why);
                stray_rows.insert((node.clone(), slice.clone()));
            }
        }
        for slice in page.recalled()? {
            table.restore_recalled(slice);
        }
    }
    let first = pages.get(&0).ok_or("its first object is missing")?;
    let annotation = |name: &str| first.rows.annotations.get(name).map(String::as_str);
    let conditions = annotation(CONDITIONS)
        .and_then(|text| serde_json::from_str::<Vec<Condition>>(text).ok())
        .unwrap_or_default();
    let networks = annotation(NETWORKS).unwrap_or_default().split(',');
    let networks = networks.filter(|network| !network.is_empty());
    let marks = Marks {
        managed: annotation(MANAGED) == Some("true"),
        networks: networks.map(str::to_owned).collect(),
        disjoint: annotation(DISJOINT) == Some("true"),
        conditions,
    };
    Ok(StoredSlicePool {
        name: name.to_owned(),
        pool: SlicePool {
            table,
            size_text: first.rows.size.clone(),
            marks,
        },
        owners: first.owners.clone(),
        unparsed,
        stray_rows,
        pages,
    })
}

fn restore(table: &mut Assignments, node: &str, slice: &str) -> Result<(), String> {
    let read: Result<Prefix, _> = slice.parse();
    match read {
        Err(_) => Err(format!("sliceRange {slice:?} of {node:?} is not a CIDR")),
        Ok(_) if node.is_empty() => Ok(()),
        Ok(slice) => table
            .restore(slice, NodeName::new(node))
            .map_err(|error| error.to_string()),
    }
}

/// The objects that make the pool true, in the order that their rows have now.
pub fn render(
    name: &str,
    pool: &SlicePool,
    before: Option<&StoredSlicePool>,
) -> BTreeMap<u128, Rows> {
    let cut = pool.table.cut();
    let count = page_count(cut);
    let mut rows: BTreeMap<u128, Vec<(String, String)>> = BTreeMap::from([(0, Vec::new())]);
    let mut placed: BTreeSet<Prefix> = BTreeSet::new();
    let holder = |slice: Prefix| pool.table.holder(slice);
    for (number, page) in before.iter().flat_map(|before| &before.pages) {
        for row in &page.rows.rows {
            let known = before.is_some_and(|before| before.stray_rows.contains(row));
            if known {
                let target = if *number < count { *number } else { 0 };
                rows.entry(target).or_default().push(row.clone());
                continue;
            }
            let Ok(slice) = row.1.parse::<Prefix>() else {
                continue;
            };
            // In a range of several pages free slices are not listed; one that is not of this slice size belongs to no node.
            let node = match holder(slice) {
                Some(holder) => holder.as_str(),
                None if count == 1 && cut.has(slice) => "",
                None => continue,
            };
            if placed.insert(slice) {
                let row = (node.to_owned(), row.1.clone());
                rows.entry(page_of(cut, slice)).or_default().push(row);
            }
        }
    }
    if count == 1 {
        for slice in (0..cut.count()).filter_map(|n| cut.nth(n)) {
            if placed.insert(slice) {
                let node = holder(slice).map(NodeName::as_str).unwrap_or_default();
                let row = (node.to_owned(), slice.to_string());
                rows.entry(0).or_default().push(row);
            }
        }
    }
    for holding in pool.table.holdings() {
        if placed.insert(holding.slice) {
            let row = (holding.node.as_str().to_owned(), holding.slice.to_string());
            rows.entry(page_of(cut, holding.slice))
                .or_default()
                .push(row);
        }
    }
    let epochs = epochs(&pool.table, count);
    let mut recalled: BTreeMap<u128, Vec<String>> = BTreeMap::new();
    for slice in pool.table.recalled() {
        let page = recalled.entry(page_of(cut, slice)).or_default();
        page.push(slice.to_string());
    }
    // An epoch outlives the row that it is of: a slice that is assigned again has the next one (I8).
    for number in epochs.keys().chain(recalled.keys()) {
        rows.entry(*number).or_default();
    }
    let page = |(number, rows): (u128, Vec<(String, String)>)| {
        let mut annotations = BTreeMap::new();
        if let Some(epochs) = epochs.get(&number) {
            annotations.insert(EPOCHS, json!(epochs).to_string());
        }
        if let Some(recalled) = recalled.get(&number) {
            annotations.insert(RECALLED, json!(recalled).to_string());
        }
        if number == 0 {
            let first = before.and_then(|before| before.pages.get(&0));
            let text = first.and_then(|page| page.rows.annotations.get(CONDITIONS));
            annotations.extend(told(&pool.marks, text.map(String::as_str)));
        }
        if count > 1 {
            annotations.insert(SLICE_POOL, name.to_owned());
            annotations.insert(SLICE_PAGE, format!("{number}/{SLICES_OF_A_PAGE}"));
        }
        let rows = Rows {
            range: cut.range().to_string(),
            size: pool.size_text.clone(),
            rows,
            annotations,
            label: (count > 1).then(|| label(name)),
            owned: false,
        };
        (number, rows)
    };
    rows.into_iter().map(page).collect()
}

/// The epochs above 0, by page.
fn epochs(table: &Assignments, count: u128) -> BTreeMap<u128, BTreeMap<String, u64>> {
    let cut = table.cut();
    let all: Vec<(Prefix, Epoch)> = table.epochs().collect();
    let crowded = all.len() > MOST_EPOCHS;
    let mut by_page: BTreeMap<u128, BTreeMap<String, u64>> = BTreeMap::new();
    for (slice, epoch) in all {
        if crowded && !cut.has(slice) {
            continue;
        }
        let page = page_of(cut, slice);
        let page = if page < count { page } else { 0 };
        by_page
            .entry(page)
            .or_default()
            .insert(slice.to_string(), epoch.0);
    }
    by_page
}

/// Conditions as text. What a newer version says of one of them is kept (I7).
fn conditions(known: &[Condition], before: Option<&str>) -> String {
    let before = before.and_then(|text| serde_json::from_str(text).ok());
    let before: Vec<Value> = before.unwrap_or_default();
    let text = |condition: &Condition| {
        let mut all = before.iter();
        let same = all.find(|one| one["type"].as_str() == Some(&condition.kind));
        let same = same.map(Value::to_string);
        rewritten(same.as_deref(), condition).unwrap_or_default()
    };
    let texts: Vec<String> = known.iter().map(text).collect();
    format!("[{}]", texts.join(","))
}

fn told(marks: &Marks, before: Option<&str>) -> impl Iterator<Item = (&'static str, String)> {
    let yes = |name, is: bool| is.then(|| (name, "true".to_owned()));
    let networks = (!marks.networks.is_empty()).then(|| (NETWORKS, marks.networks.join(",")));
    let conditions =
        (!marks.conditions.is_empty()).then(|| (CONDITIONS, conditions(&marks.conditions, before)));
    [
        yes(MANAGED, marks.managed),
        yes(DISJOINT, marks.disjoint),
        networks,
        conditions,
    ]
    .into_iter()
    .flatten()
}

impl Rows {
    fn allocations(&self) -> Value {
        let row =
            |(node, slice): &(String, String)| json!({ "nodeName": node, "sliceRange": slice });
        Value::Array(self.rows.iter().map(row).collect())
    }

    /// A new object.
    pub fn object(&self, name: &str) -> Value {
        let mut metadata = json!({ "name": name, "annotations": self.annotations });
        if let Some(label) = &self.label {
            metadata["labels"] = json!({ SLICE_POOL: label });
        }
        json!({
            "apiVersion": SLICE_POOLS.api_version(),
            "kind": SLICE_POOLS.kind,
            "metadata": metadata,
            "spec": { "range": self.range, "sliceSize": self.size },
            "status": { "allocations": self.allocations() },
        })
    }

    /// The same in single steps, where a few rows and annotations are all that differs: for one node more, a table of
    /// thousands is not sent. None: there is more to say.
    pub fn steps(&self, page: &Page) -> Option<PatchSteps> {
        let before = &page.rows;
        let like = before.range == self.range
            && before.size == self.size
            && before.label == self.label
            && before.rows.len() == self.rows.len()
            && page.owners.is_empty();
        // Where there are no annotations at all, none can be added by its name.
        let noted = before.annotations == self.annotations || !page.annotated.is_empty();
        if !like || !noted {
            return None;
        }
        let mut steps = PatchSteps::default();
        steps.test(&["metadata", "resourceVersion"], page.version.as_str());
        for (place, (was, row)) in before.rows.iter().zip(&self.rows).enumerate() {
            let fields = [("nodeName", &was.0, &row.0), ("sliceRange", &was.1, &row.1)];
            for (field, _, now) in fields.into_iter().filter(|(_, was, now)| was != now) {
                let path = ["status", "allocations", &place.to_string(), field];
                steps.add(&path, now.as_str());
            }
        }
        for name in &page.annotated {
            if !self.annotations.contains_key(name.as_str()) {
                steps.remove(&["metadata", "annotations", name]);
            }
        }
        for (name, text) in &self.annotations {
            if before.annotations.get(name) != Some(text) {
                steps.add(&["metadata", "annotations", name], text.as_str());
            }
        }
        if page.tracked {
            steps.add(&["metadata", "managedFields"], json!([{}]));
        }
        (steps.len() <= MOST_STEPS).then_some(steps)
    }

    /// What makes `page` say this, on exactly the version that was read.
    pub fn merge(&self, page: &Page) -> Value {
        let mut annotations: Map<String, Value> = page
            .annotated
            .iter()
            .map(|name| (name.clone(), Value::Null))
            .collect();
        for (name, text) in &self.annotations {
            annotations.insert((*name).to_owned(), json!(text));
        }
        let mut metadata = json!({ "resourceVersion": page.version, "annotations": annotations });
        if page.tracked {
            metadata["managedFields"] = json!([{}]);
        }
        if self.label.is_some() || page.labelled {
            metadata["labels"] = json!({ SLICE_POOL: self.label });
        }
        if !page.owners.is_empty() {
            metadata["ownerReferences"] = json!(page.other_owners);
        }
        let mut merge = json!({
            "metadata": metadata,
            "spec": { "range": self.range, "sliceSize": self.size },
        });
        if self.rows != page.rows.rows {
            merge["status"] = json!({ "allocations": self.allocations() });
        }
        merge
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
