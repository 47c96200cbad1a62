//! What a NodeIPPool's status says is allocated, both ways.
//!
//! Guarantees: what is written is read back the same; a status that is wrong in part is read in its other parts, and what can't be read is
//! kept aside word for word (I5). Offsets are a list that people can read up to 4,096 of them, and a bitmap above:
//! `kubectl get nodeippool X -o jsonpath='{.status.allocated-bitmap}' | base64 -d | xxd -b` shows it, lowest bit first.

use std::collections::BTreeSet;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use berth_api::nmstate::{
    Allocation, MAX_DESCRIBED, MAX_LISTED_OFFSETS, NodeIPPoolStatus, SetAside,
};
use berth_core::{Address, Offset};
use serde_json::Value;

use super::space::PoolSpace;

/// The format of the bitmap: a bit for each offset, the lowest bit of a byte first, zero bytes at the end left out.
pub const LSB_FIRST: &str = "lsb-first/1";

/// The most JSON of offsets and `allocations` together: an object stays under 300 KB with it.
const MOST_BYTES: usize = 290_000;

/// The most of `allocations` until the leader has shortened the list: etcd takes 1.5 MB.
const MOST_UNSHORTENED: (usize, usize) = (4 * MAX_DESCRIBED, 900_000);

/// The largest bitmap that is read: 2^24 offsets.
const LONGEST_BITMAP: usize = 3 << 20;

/// The offsets that a status holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Offsets {
    /// The status names none: a pool that nothing was allocated from.
    Absent,
    /// `allocated-offsets: []`, written by hand: the pool is to be rebuilt from the enactments.
    Emptied,
    Held(BTreeSet<u64>),
}

impl Offsets {
    pub fn iter(&self) -> impl Iterator<Item = u64> {
        let held = match self {
            Offsets::Held(held) => Some(held),
            Offsets::Absent | Offsets::Emptied => None,
        };
        held.into_iter().flatten().copied()
    }
}

/// An allocation with its owner.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Described {
    pub offset: u64,
    pub address: Address,
    pub node: String,
    pub policy: String,
    pub capture: String,
}

/// A status, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    pub offsets: Offsets,
    pub described: Vec<Described>,
    /// What could not be read. Not empty: the pool is UnsyncronizedIPPool and is rebuilt from the enactments.
    pub set_aside: Vec<SetAside>,
}

/// The figures of a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Totals {
    pub total: i64,
    pub used: i64,
    pub free: i64,
}

impl Totals {
    /// An address that is used though it is excluded takes nothing from what is free.
    pub fn of(space: &PoolSpace, used: impl Iterator<Item = u64>) -> Totals {
        let (mut all, mut counted) = (0u128, 0u128);
        for offset in used {
            all += 1;
            let address = space.address(Offset(offset.into()));
            let takes = |address| matches!(space.place(address), super::Place::Allocatable(_));
            counted += u128::from(address.is_some_and(takes));
        }
        let number = |count: u128| i64::try_from(count).unwrap_or(i64::MAX);
        Totals {
            total: number(space.total()),
            used: number(all),
            free: number(space.total().saturating_sub(counted)),
        }
    }
}

impl Recorded {
    /// Reads the `status` of an object.
    pub fn read(status: &Value, space: &PoolSpace) -> Recorded {
        let mut faults = Faults(Vec::new());
        let listed = status.get("allocated-offsets");
        let bitmap = status.get("allocated-bitmap").and_then(Value::as_str);
        let emptied = listed.is_some_and(|list| list.as_array().is_some_and(Vec::is_empty));
        let mut held = BTreeSet::new();
        if let Some(list) = listed {
            read_list(list, space, &mut held, &mut faults);
        }
        if let Some(text) = bitmap.filter(|_| !emptied) {
            let format = status.get("bitmap-format").and_then(Value::as_str);
            read_bitmap(text, format, space, &mut held, &mut faults);
        }
        let described = match emptied {
            true => Vec::new(),
            false => read_described(status, space, &held, &mut faults),
        };
        let offsets = if emptied {
            Offsets::Emptied
        } else if listed.is_none() && bitmap.is_none() {
            Offsets::Absent
        } else {
            Offsets::Held(held)
        };
        Recorded {
            offsets,
            described,
            set_aside: faults.0,
        }
    }
}

struct Faults(Vec<SetAside>);

impl Faults {
    fn add(&mut self, field: &str, value: impl ToString, why: impl Into<String>) {
        self.0.push(SetAside {
            field: field.to_owned(),
            value: value.to_string(),
            why: why.into(),
        });
    }
}

fn read_list(list: &Value, space: &PoolSpace, held: &mut BTreeSet<u64>, faults: &mut Faults) {
    const FIELD: &str = "allocated-offsets";
    let Some(entries) = list.as_array() else {
        faults.add(FIELD, list, "it is no list of offsets");
        return;
    };
    let last = last_offset(space);
    let (mut unreadable, mut past, mut twice) = (Vec::new(), Vec::new(), Vec::new());
    for entry in entries {
        match entry.as_u64() {
            None => unreadable.push(entry.clone()),
            Some(offset) if offset > last => past.push(entry.clone()),
            Some(offset) if !held.insert(offset) => twice.push(entry.clone()),
            Some(_) => {}
        }
    }
    let mut keep = |entries: Vec<Value>, why: String| {
        if !entries.is_empty() {
            faults.add(FIELD, Value::from(entries), why);
        }
    };
    keep(unreadable, "these are no offsets".to_owned());
    keep(past, format!("the pool's last offset is {last}"));
    keep(twice, "these are listed twice".to_owned());
}

fn last_offset(space: &PoolSpace) -> u64 {
    u64::try_from(space.offsets().saturating_sub(1)).unwrap_or(u64::MAX)
}

fn read_bitmap(
    text: &str,
    format: Option<&str>,
    space: &PoolSpace,
    held: &mut BTreeSet<u64>,
    faults: &mut Faults,
) {
    const FIELD: &str = "allocated-bitmap";
    if format != Some(LSB_FIRST) {
        let named = format.unwrap_or("none");
        let why = format!("its bitmap-format is {named}; {LSB_FIRST} is known");
        return faults.add(FIELD, text, why);
    }
    let bytes = match STANDARD.decode(text) {
        _ if text.len() > LONGEST_BITMAP => return faults.add(FIELD, text, "it is too long"),
        Ok(bytes) => bytes,
        Err(error) => return faults.add(FIELD, text, format!("it is no base64: {error}")),
    };
    let last = last_offset(space);
    let mut past = Vec::new();
    for (index, byte) in bytes.iter().enumerate().filter(|(_, byte)| **byte != 0) {
        for bit in (0..8).filter(|bit| byte & (1 << bit) != 0) {
            let offset = index as u64 * 8 + bit;
            match offset > last {
                true => past.push(Value::from(offset)),
                false => drop(held.insert(offset)),
            }
        }
    }
    if !past.is_empty() {
        let why = format!("the pool's last offset is {last}");
        faults.add(FIELD, Value::from(past), why);
    }
}

fn read_described(
    status: &Value,
    space: &PoolSpace,
    held: &BTreeSet<u64>,
    faults: &mut Faults,
) -> Vec<Described> {
    const FIELD: &str = "allocations";
    let entries = status.get(FIELD).and_then(Value::as_array);
    let mut described = Vec::new();
    for entry in entries.into_iter().flatten() {
        let read = serde_json::from_value::<Allocation>(entry.clone()).ok();
        let Some(read) = read else {
            faults.add(FIELD, entry, "it is no allocation");
            continue;
        };
        let (address, offset) = (read.ip.parse().ok(), u64::try_from(read.offset).ok());
        let (Some(address), Some(offset)) = (address, offset) else {
            faults.add(FIELD, entry, "its ip or its offset can't be read");
            continue;
        };
        if space.offset(address) != Some(Offset(offset.into())) {
            let right = space
                .offset(address)
                .map_or("none".to_owned(), |o| o.to_string());
            faults.add(FIELD, entry, format!("the offset of {address} is {right}"));
            continue;
        }
        if !held.contains(&offset) {
            faults.add(FIELD, entry, "its offset is not allocated");
            continue;
        }
        described.push(Described {
            offset,
            address,
            node: read.node,
            policy: read.policy,
            capture: read.capture,
        });
    }
    described
}

/// The fields of a status that say what is allocated, shortened; all others are left as they are in `status`.
///
/// Nothing allocated is an absent field: an empty list would ask for a rebuild.
pub fn encode(
    status: &mut NodeIPPoolStatus,
    space: &PoolSpace,
    held: &BTreeSet<u64>,
    described: &[Described],
) {
    encode_offsets(status, space, held);
    let most = MOST_BYTES.saturating_sub(size_of_offsets(status));
    status.allocations = describe(described, MAX_DESCRIBED, most);
}

/// The same with all descriptions; whether they fit.
pub(super) fn encode_whole(
    status: &mut NodeIPPoolStatus,
    space: &PoolSpace,
    held: &BTreeSet<u64>,
    described: &[Described],
) -> bool {
    encode_offsets(status, space, held);
    let (count, bytes) = MOST_UNSHORTENED;
    status.allocations = describe(described, count, bytes);
    status.allocations.len() == described.len()
}

/// How many allocations a status describes when it is shortened, if these are more than fit.
pub(crate) fn shortened(
    space: &PoolSpace,
    held: &BTreeSet<u64>,
    described: &[Described],
) -> Option<usize> {
    let mut status = NodeIPPoolStatus::default();
    encode(&mut status, space, held, described);
    let fit = status.allocations.len();
    // Room for some more, so that not every allocation makes the leader write.
    (fit < described.len()).then_some(fit / 4 * 3)
}

fn encode_offsets(status: &mut NodeIPPoolStatus, space: &PoolSpace, held: &BTreeSet<u64>) {
    (status.allocated_offsets, status.allocated_bitmap) = match as_bitmap(held) {
        _ if held.is_empty() => (None, None),
        Some(bitmap) => (None, Some(bitmap)),
        None => {
            let numbers = held.iter().filter_map(|offset| i64::try_from(*offset).ok());
            (Some(numbers.collect()), None)
        }
    };
    let format = status.allocated_bitmap.is_some();
    status.bitmap_format = format.then(|| LSB_FIRST.to_owned());
    let totals = Totals::of(space, held.iter().copied());
    status.total = Some(totals.total);
    status.used = Some(totals.used);
    status.free = Some(totals.free);
}

fn size_of_offsets(status: &NodeIPPoolStatus) -> usize {
    let bitmap = status.allocated_bitmap.as_ref().map_or(0, String::len);
    let list = status.allocated_offsets.as_ref().map_or(0, Vec::len);
    bitmap + 8 * list
}

/// A bitmap, where the list would be long and the bitmap is not longer: a few offsets far apart in an IPv6 pool stay a list.
fn as_bitmap(held: &BTreeSet<u64>) -> Option<String> {
    (held.len() > MAX_LISTED_OFFSETS).then_some(())?;
    let last = *held.last()?;
    let size = usize::try_from(last / 8).ok()?.checked_add(1)?;
    let listed: usize = held.iter().map(|offset| digits(*offset) + 1).sum();
    (size / 3 * 4 <= listed).then_some(())?;
    let mut bytes = vec![0u8; size];
    for offset in held {
        let index = usize::try_from(offset / 8).ok()?;
        *bytes.get_mut(index)? |= 1 << (offset % 8);
    }
    Some(STANDARD.encode(bytes))
}

const fn digits(number: u64) -> usize {
    match number.checked_ilog10() {
        Some(log) => log as usize + 1,
        None => 1,
    }
}

/// The first allocations by offset, as many as fit.
fn describe(described: &[Described], count: usize, most: usize) -> Vec<Allocation> {
    let mut sorted: Vec<&Described> = described.iter().collect();
    sorted.sort_unstable();
    let mut bytes = 0;
    let fits = |one: &&Described| {
        // What JSON adds to the texts: names of fields, quotes and commas.
        bytes += 60 + digits(one.offset) + one.address.to_string().len();
        bytes += one.node.len() + one.policy.len() + one.capture.len();
        bytes <= most
    };
    let allocation = |one: &Described| Allocation {
        ip: one.address.to_string(),
        offset: i64::try_from(one.offset).unwrap_or(i64::MAX),
        node: one.node.clone(),
        policy: one.policy.clone(),
        capture: one.capture.clone(),
    };
    let first = sorted.into_iter().take(count);
    first.take_while(fits).map(allocation).collect()
}

#[cfg(test)]
mod tests;
