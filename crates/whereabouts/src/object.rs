//! One IPPool object as it was read, and the draft of its next state.
//!
//! Promises: what can't be read stays as it is (I5) and is never given to anyone: a strange value at
//! a readable offset holds that address. Fields that Berth does not know survive in place (I7).

use std::collections::BTreeMap;

use berth_core::{Address, Change, Handle, Owner, Pool, Prefix, Record};
use berth_kube::Fetched;
use serde_json::{Map, Value, json};

use super::base::{NODE, Notes, RESTING, Stamp};
use super::by_hand;
use berth_ledger::object::Cooldowns;

/// Who holds an address whose entry can't be read. No front has an owner of that name.
const UNREADABLE: &str = "(unreadable)";

pub(super) struct Object {
    pub stamp: Stamp,
    /// Bytes that the object takes without what the API server tracks of it.
    pub size: usize,
    pub network: Prefix,
    pub resting: Cooldowns,
    allocations: Map<String, Value>,
    /// All the rest of it.
    around: Value,
    /// Keys that mean an offset but are not its plain decimal form (`007`): whereabouts takes them
    /// for the address, so do we.
    odd: BTreeMap<Address, Vec<String>>,
}

/// The key of an address in a pool of that network.
pub(super) fn key(network: Prefix, address: Address) -> Option<String> {
    Some(address.distance_from(network.network())?.to_string())
}

fn address(network: Prefix, key: &str) -> Option<Address> {
    network.network().plus(key.parse().ok()?)
}

/// A new entry, as whereabouts would write it, and the node.
pub(super) fn entry(record: &Record) -> Map<String, Value> {
    let mut fields = Map::new();
    fields.insert("id".into(), json!(by_hand::id(record)));
    fields.insert("podref".into(), json!(by_hand::podref(record)));
    if !record.owner.part.is_empty() {
        fields.insert("ifname".into(), json!(record.owner.part));
    }
    if let Some(node) = record.attribute(NODE) {
        fields.insert(NODE.into(), json!(node));
    }
    fields
}

fn record(entry: &Value) -> Result<Record, String> {
    let fields = entry
        .as_object()
        .ok_or_else(|| "its value is no object".to_owned())?;
    let text = |field: &str| match fields.get(field) {
        Some(Value::String(text)) => Ok(text.clone()),
        None | Some(Value::Null) if field == "ifname" => Ok(String::new()),
        None => Err(format!("{field} is missing")),
        Some(_) => Err(format!("{field} is no text")),
    };
    let record = by_hand::record(text("id")?, text("podref")?, text("ifname")?);
    Ok(match fields.get(NODE) {
        Some(Value::String(node)) => record.with(NODE, node),
        _ => record,
    })
}

/// The range that the object's offsets count from. whereabouts counts from the address as it is
/// written, host bits and all: such a range is another one than its masked form.
fn range(text: &str) -> Option<Prefix> {
    let (start, _) = text.split_once('/')?;
    let range: Prefix = text.parse().ok()?;
    (Address::parse_lenient(start)? == range.network()).then_some(range)
}

const NO_MAP: &str = "spec.allocations is no map";

/// The range of an object, which is the pool's if that is known.
fn network_of(network: Option<Prefix>, spec: &Map<String, Value>) -> Result<Prefix, String> {
    let text = spec
        .get("range")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let found = range(text).ok_or_else(|| {
        format!("spec.range {text:?} is not a CIDR that begins with its network address")
    })?;
    match network.filter(|network| *network != found) {
        Some(network) => Err(format!(
            "spec.range is {found}, where the pool of {network} should be; every address in it would be taken for another"
        )),
        None => Ok(found),
    }
}

/// The pool of an object, which stays as it is.
pub(super) fn read_pool(network: Option<Prefix>, object: &Value) -> Result<Pool, String> {
    let spec = object["spec"].as_object().ok_or("it has no spec")?;
    let network = network_of(network, spec)?;
    let cooldowns = Notes::read(&object["metadata"])?.cooldowns();
    let mut pool = Pool::new();
    match spec.get("allocations") {
        None | Some(Value::Null) => fill(network, &Map::new(), &cooldowns, &mut pool),
        Some(Value::Object(allocations)) => fill(network, allocations, &cooldowns, &mut pool),
        Some(_) => return Err(NO_MAP.into()),
    }
    Ok(pool)
}

fn fill(network: Prefix, allocations: &Map<String, Value>, cooldowns: &Cooldowns, pool: &mut Pool) {
    for (name, value) in allocations {
        let stray = |why: String| berth_core::Unparsed {
            key: name.clone(),
            why,
        };
        let Some(address) = address(network, name) else {
            pool.restore_unparsed(stray("its key is no offset of this range".into()));
            continue;
        };
        match record(value) {
            Ok(record) => pool.restore(address, record),
            Err(why) => {
                let unreadable = Owner::new(UNREADABLE, "");
                pool.restore(address, Record::new(unreadable, Handle::default()));
                pool.restore_unparsed(stray(why));
            }
        }
    }
    cooldowns.restore(network, RESTING, pool);
}

/// The pool that an IPPool object describes, or why it can't be read.
pub fn pool_of(object: Value) -> Result<Pool, String> {
    read_pool(None, &object)
}

impl Object {
    /// Reads an object, or says why it can't be read.
    pub fn read(network: Option<Prefix>, mut fetched: Fetched) -> Result<Self, String> {
        let mut stamp = Stamp::read(&fetched.object)?;
        let resting = stamp.notes.cooldowns();
        let tracked = fetched.object["metadata"]
            .get("managedFields")
            .map_or(0, |fields| fields.to_string().len());
        let spec = fetched
            .object
            .get_mut("spec")
            .and_then(Value::as_object_mut)
            .ok_or("it has no spec")?;
        let found = network_of(network, spec)?;
        let allocations = match spec.get_mut("allocations").map(Value::take) {
            None | Some(Value::Null) => Map::new(),
            Some(Value::Object(allocations)) => allocations,
            Some(_) => return Err(NO_MAP.into()),
        };
        let mut odd: BTreeMap<Address, Vec<String>> = BTreeMap::new();
        for name in allocations.keys() {
            if let Some(address) = address(found, name)
                && key(found, address).as_ref() != Some(name)
            {
                odd.entry(address).or_default().push(name.clone());
            }
        }
        stamp.odd = !odd.is_empty();
        Ok(Self {
            stamp,
            size: fetched.size.saturating_sub(tracked),
            network: found,
            resting,
            allocations,
            around: fetched.object,
            odd,
        })
    }

    /// The whole object with these entries instead of its own.
    pub fn with(self, entries: Entries) -> Value {
        let Self {
            mut around,
            mut allocations,
            ..
        } = self;
        for (key, entry) in entries {
            match entry {
                Some(fields) => allocations.insert(key, Value::Object(fields)),
                None => allocations.remove(&key),
            };
        }
        around["spec"]["allocations"] = Value::Object(allocations);
        around
    }

    pub fn fill(&self, pool: &mut Pool) {
        fill(self.network, &self.allocations, &self.resting, pool);
    }
}

/// The entries that a commit touches, as they will be. Every change is checked against the object as
/// it was read and as the changes before it left it.
pub(super) struct Draft<'a> {
    object: &'a Object,
    next: Entries,
}

/// Entries by their keys; none where one goes.
pub(super) type Entries = BTreeMap<String, Option<Map<String, Value>>>;

impl<'a> Draft<'a> {
    /// All changes, or the addresses whose preconditions do not hold.
    pub fn of(object: &'a Object, changes: &[Change]) -> Result<Self, Vec<Address>> {
        let mut draft = Self {
            object,
            next: BTreeMap::new(),
        };
        let violated: Vec<Address> = changes
            .iter()
            .filter(|change| !draft.apply(change))
            .map(Change::address)
            .collect();
        if violated.is_empty() {
            Ok(draft)
        } else {
            Err(violated)
        }
    }

    fn apply(&mut self, change: &Change) -> bool {
        let Some(plain) = key(self.object.network, change.address()) else {
            return false;
        };
        match change {
            Change::Allocate { address, record } => {
                let free = self.keys(&plain, *address).is_empty();
                if free {
                    self.next.insert(plain, Some(entry(record)));
                }
                free
            }
            Change::Release {
                address, expected, ..
            } => match self.holding(&plain, *address, expected) {
                Some((key, _)) => {
                    self.next.insert(key, None);
                    true
                }
                None => false,
            },
            Change::Update {
                address,
                expected,
                record,
            } => match self.holding(&plain, *address, expected) {
                Some((key, mut fields)) => {
                    fields.remove("ifname");
                    fields.remove(NODE);
                    fields.extend(entry(record));
                    self.next.insert(key, Some(fields));
                    true
                }
                None => false,
            },
        }
    }

    /// The keys that hold the address now.
    fn keys(&self, plain: &str, address: Address) -> Vec<String> {
        let odd = self.object.odd.get(&address).into_iter().flatten();
        std::iter::once(plain)
            .chain(odd.map(String::as_str))
            .filter(|key| match self.next.get(*key) {
                Some(next) => next.is_some(),
                None => self.object.allocations.contains_key(*key),
            })
            .map(str::to_owned)
            .collect()
    }

    fn holding(
        &self,
        plain: &str,
        address: Address,
        expected: &Record,
    ) -> Option<(String, Map<String, Value>)> {
        self.keys(plain, address).into_iter().find_map(|key| {
            let value = match self.next.get(&key) {
                Some(next) => Value::Object(next.clone()?),
                None => self.object.allocations.get(&key)?.clone(),
            };
            let held = record(&value).ok()?;
            match value {
                Value::Object(fields) if held.same_holder(expected) => Some((key, fields)),
                _ => None,
            }
        })
    }

    pub fn into_entries(self) -> Entries {
        self.next
    }

    /// The object's size once this is written.
    pub fn size(&self) -> usize {
        let mut size = self.object.size;
        for (key, next) in &self.next {
            if let Some(before) = self.object.allocations.get(key) {
                size = size.saturating_sub(weight(key, &before.to_string()));
            }
            if let Some(next) = next {
                size += weight(key, &Value::Object(next.clone()).to_string());
            }
        }
        size
    }
}

/// Bytes of one entry in the map: `"key":value,`.
pub(super) fn weight(key: &str, value: &str) -> usize {
    key.len() + value.len() + 4
}
