//! All reservations of a sweep, packed: 50,000 of them need 10 MB instead of 40.
//!
//! Those of a pool are unpacked when that pool is planned.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use berth_api::names;
use berth_collector::observed::Held;
use berth_core::{Handle, Owner, Record};
use berth_ledger::{ClaimKey, ClaimKind};

use super::plan::Reservation;
use super::reservation_index::{belongs, expected_name};
use crate::attachment::attribute;

type Attributes = BTreeMap<String, String>;

#[derive(Debug, Default)]
pub(super) struct PackedReservations {
    all: Vec<Packed>,
    /// Places in `all`, in the order of names and of subjects.
    by_name: Vec<u32>,
    by_subject: Vec<u32>,
    /// Places in `all` that may have an entry in a pool that can't be read.
    unclear: BTreeSet<u32>,
}

#[derive(Debug)]
struct Packed {
    /// Name, subject, part and handle, one after the other.
    text: Box<str>,
    ends: [u32; 3],
    /// The same for all reservations of one node.
    attributes: Option<Arc<Attributes>>,
    /// In how many places of all pools it is entered.
    entries: u32,
}

impl Packed {
    fn of(name: &str, record: &Record, attributes: Option<Arc<Attributes>>) -> Packed {
        let Owner { subject, part } = &record.owner;
        let texts = [name, subject, part, record.handle.as_str()];
        let mut ends = [0; 3];
        let mut length = 0;
        for (end, text) in ends.iter_mut().zip(texts) {
            length += text.len();
            *end = u32::try_from(length).unwrap_or(u32::MAX);
        }
        Packed {
            text: texts.concat().into_boxed_str(),
            ends,
            attributes,
            entries: 0,
        }
    }

    fn part_of(&self, from: u32, to: u32) -> &str {
        self.text
            .get(from as usize..to as usize)
            .unwrap_or_default()
    }

    fn name(&self) -> &str {
        self.part_of(0, self.ends[0])
    }

    fn subject(&self) -> &str {
        self.part_of(self.ends[0], self.ends[1])
    }

    fn part(&self) -> &str {
        self.part_of(self.ends[1], self.ends[2])
    }

    fn handle(&self) -> &str {
        self.text.get(self.ends[2] as usize..).unwrap_or_default()
    }

    fn node(&self) -> Option<&str> {
        let node = self.attributes.as_ref()?.get(attribute::NODE)?;
        Some(node)
    }

    fn unpacked(&self) -> Reservation {
        let owner = Owner::new(self.subject(), self.part());
        let mut record = Record::new(owner, Handle::new(self.handle()));
        if let Some(attributes) = &self.attributes {
            record.attributes = Attributes::clone(attributes);
        }
        Reservation {
            key: ClaimKey::new(ClaimKind::Reservation, self.name()),
            record,
        }
    }
}

/// Packs reservations, one after the other.
#[derive(Debug, Default)]
pub(super) struct Packing {
    all: Vec<Packed>,
    attributes: BTreeSet<Arc<Attributes>>,
}

impl Packing {
    pub fn add(&mut self, name: &str, record: &Record) {
        let attributes = (!record.attributes.is_empty()).then(|| self.shared(&record.attributes));
        self.all.push(Packed::of(name, record, attributes));
    }

    fn shared(&mut self, attributes: &Attributes) -> Arc<Attributes> {
        if let Some(known) = self.attributes.get(attributes) {
            return Arc::clone(known);
        }
        let new = Arc::new(attributes.clone());
        self.attributes.insert(Arc::clone(&new));
        new
    }

    pub fn done(self) -> PackedReservations {
        let all = self.all;
        let mut by_name: Vec<u32> = (0..u32::try_from(all.len()).unwrap_or(u32::MAX)).collect();
        let mut by_subject = by_name.clone();
        let at = |place: &u32| &all[*place as usize];
        by_name.sort_unstable_by_key(|place| at(place).name());
        by_subject.sort_unstable_by_key(|place| at(place).subject());
        PackedReservations {
            all,
            by_name,
            by_subject,
            unclear: BTreeSet::new(),
        }
    }
}

impl PackedReservations {
    fn at(&self, place: u32) -> &Packed {
        &self.all[place as usize]
    }

    /// The places of an entry's reservations.
    fn of_entry<'a>(&'a self, held: &'a Held) -> impl Iterator<Item = u32> + 'a {
        let subject = held.record.owner.subject.as_str();
        let from = self
            .by_subject
            .partition_point(|place| self.at(*place).subject() < subject);
        let of_subject = self.by_subject.iter().skip(from).copied();
        of_subject
            .take_while(move |place| self.at(*place).subject() == subject)
            .filter(move |place| {
                let one = self.at(*place);
                belongs(one.name(), one.subject(), one.part(), held)
            })
    }

    fn named(&self, name: &str) -> Option<u32> {
        let found = self
            .by_name
            .binary_search_by(|place| self.at(*place).name().cmp(name));
        found.ok().and_then(|at| self.by_name.get(at).copied())
    }

    /// Counts the entries of a pool towards their reservations; false if one of them has none.
    pub fn count(&mut self, held: &[Held]) -> bool {
        let mut places: Vec<u32> = Vec::with_capacity(held.len());
        let mut all_reserved = true;
        for held in held {
            let before = places.len();
            places.extend(self.of_entry(held));
            all_reserved &= places.len() > before;
        }
        for place in places {
            self.all[place as usize].entries += 1;
        }
        all_reserved
    }

    /// The node that an entry's reservation names.
    pub fn node_of(&self, held: &Held) -> Option<String> {
        let mut own = self.of_entry(held);
        own.find_map(|place| self.at(place).node().map(str::to_owned))
    }

    /// The reservations that matter to the entries of one pool, and the names of those among them that have entries in other
    /// pools too.
    pub fn of_pool(&self, held: &[Held]) -> (Vec<Reservation>, HashSet<String>) {
        let mut entered: BTreeMap<u32, u32> = BTreeMap::new();
        for held in held {
            for place in self.of_entry(held) {
                *entered.entry(place).or_default() += 1;
            }
            // Of another owner, under the name that the entry's own should have.
            let expected = expected_name(held).and_then(|name| self.named(&name));
            if let Some(place) = expected {
                entered.entry(place).or_default();
            }
        }
        let places = entered.iter();
        let elsewhere = places.filter(|(place, here)| self.at(**place).entries > **here);
        let elsewhere = elsewhere.map(|(place, _)| self.at(*place).name().to_owned());
        let elsewhere = elsewhere.collect();
        let unpacked = entered.keys().map(|place| self.at(*place).unpacked());
        (unpacked.collect(), elsewhere)
    }

    /// A pool of that name can't be read: the reservations that it may have an entry for are not without one.
    pub fn withhold(&mut self, pool: &str) {
        let places = 0..u32::try_from(self.all.len()).unwrap_or(u32::MAX);
        let entered = places.filter(|place| {
            let one = self.at(*place);
            one.entries == 0 && names::may_enter(pool, one.name())
        });
        let entered: Vec<u32> = entered.collect();
        self.unclear.extend(entered);
    }

    /// Those that have no entry in any pool.
    pub fn without_entry(&self) -> impl Iterator<Item = Reservation> + '_ {
        let places = (0..).zip(&self.all);
        let orphans =
            places.filter(|(place, one)| one.entries == 0 && !self.unclear.contains(place));
        orphans.map(|(_, one)| one.unpacked())
    }

    /// The names and owners of all.
    pub fn owners(&self) -> impl Iterator<Item = (&str, Owner)> {
        let owner = |one: &Packed| Owner::new(one.subject(), one.part());
        self.all.iter().map(move |one| (one.name(), owner(one)))
    }

    /// The nodes that made them.
    pub fn nodes(&self) -> impl Iterator<Item = &str> {
        self.all.iter().filter_map(Packed::node)
    }
}

#[cfg(test)]
mod tests {
    use berth_collector::observed::Note;
    use berth_ledger::PoolKey;

    use super::*;

    fn mk_held(pool: &str, range: &str, pod: &str) -> Held {
        Held {
            pool: PoolKey::of_network(pool, range.parse().unwrap()),
            address: "10.0.0.7".parse().unwrap(),
            record: Record::new(Owner::new(pod, "net1"), Handle::new("c1")),
            note: Note::default(),
        }
    }

    fn mk_reserved(of: &[(&str, &str)]) -> PackedReservations {
        let mut packing = Packing::default();
        for (name, pod) in of {
            let record = Record::new(Owner::new(*pod, "net1"), Handle::new("c1"));
            packing.add(name, &record.with(attribute::NODE, "node-1"));
        }
        packing.done()
    }

    #[test]
    fn a_pool_gets_its_own_reservations_as_they_were() {
        let reserved = mk_reserved(&[("10.0.0.8", "ns/p"), ("10.0.0.7", "ns/p"), ("red", "ns/q")]);
        let held = mk_held("10.0.0.0-24", "10.0.0.0/24", "ns/p");
        assert_eq!(reserved.node_of(&held).as_deref(), Some("node-1"));
        let (own, _) = reserved.of_pool(&[held]);
        let [own] = own.as_slice() else {
            panic!("{own:?}");
        };
        assert_eq!(own.key.name, "10.0.0.7");
        let record = Record::new(Owner::new("ns/p", "net1"), Handle::new("c1"));
        assert_eq!(own.record, record.with(attribute::NODE, "node-1"));
    }

    #[test]
    fn the_reservation_of_another_owner_is_unpacked_and_does_not_count() {
        let mut reserved = mk_reserved(&[("10.0.0.7", "ns/q")]);
        let held = [mk_held("10.0.0.0-24", "10.0.0.0/24", "ns/p")];
        assert!(!reserved.count(&held));
        assert_eq!(reserved.of_pool(&held).0.len(), 1);
        assert_eq!(reserved.without_entry().count(), 1);
    }

    #[test]
    fn a_reservation_that_an_unreadable_pool_may_enter_is_not_without_entry() {
        let all = [
            ("10.0.0.7", "ns/p"),
            ("10.1.0.7", "ns/q"),
            ("red-10.0.0.7", "ns/r"),
        ];
        let orphans = |pools: &[&str]| {
            let mut reserved = mk_reserved(&all);
            for pool in pools {
                reserved.withhold(pool);
            }
            let names = reserved.without_entry().map(|one| one.key.name);
            names.collect::<Vec<_>>()
        };
        assert_eq!(orphans(&[]).len(), 3);
        assert_eq!(orphans(&["10.0.0.0-24"]), ["10.1.0.7", "red-10.0.0.7"]);
        assert_eq!(orphans(&["10.0.0.0-24", "10.1.0.0-24"]), ["red-10.0.0.7"]);
        assert_eq!(orphans(&["handmade"]).len(), 0);
    }

    #[test]
    fn a_reservation_with_entries_in_two_pools_is_entered_elsewhere() {
        let mut reserved = mk_reserved(&[("10.0.0.7", "ns/p")]);
        let narrow = [mk_held("10.0.0.0-28", "10.0.0.0/28", "ns/p")];
        let wide = [mk_held("10.0.0.0-24", "10.0.0.0/24", "ns/p")];
        assert!(reserved.count(&narrow));
        assert_eq!(reserved.of_pool(&narrow).1.len(), 0);
        reserved.count(&wide);
        assert_eq!(reserved.of_pool(&narrow).1.len(), 1);
        assert_eq!(reserved.without_entry().count(), 0);
    }
}
