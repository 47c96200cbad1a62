//! What a node has put into an object that it publishes: such an entry goes with its pod, anybody else's stays (I7).

use std::collections::BTreeMap;

use berth_core::{Address, Record};

/// Entries that a node has put into an object, or may have: a write whose answer was lost replaced the one before, or did not.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ours(BTreeMap<Address, Vec<Record>>);

impl Ours {
    pub fn of(entries: &BTreeMap<Address, Record>) -> Self {
        let mut ours = Self::default();
        ours.add(entries);
        ours
    }

    pub fn add(&mut self, entries: &BTreeMap<Address, Record>) {
        for (address, record) in entries {
            if !self.has(*address, record) {
                let records = self.0.entry(*address).or_default();
                records.push(record.clone());
            }
        }
    }

    pub fn has(&self, address: Address, record: &Record) -> bool {
        let mut records = self.0.get(&address).into_iter().flatten();
        records.any(|ours| ours.same_holder(record))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn is_at(&self, address: Address) -> bool {
        self.0.contains_key(&address)
    }

    pub fn all(&self) -> impl Iterator<Item = (Address, &[Record])> {
        self.0
            .iter()
            .map(|(address, records)| (*address, records.as_slice()))
    }

    /// Adds what another knows.
    pub fn join(&mut self, other: &Self) {
        for (address, records) in &other.0 {
            for record in records {
                self.add(&BTreeMap::from([(*address, record.clone())]));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use berth_core::{Handle, Owner};

    use super::*;

    fn mk_entry(pod: &str) -> (Address, Record) {
        let record = Record::new(Owner::new(pod, "net1"), Handle::new(pod));
        ("10.0.0.1".parse().unwrap(), record)
    }

    #[test]
    fn what_may_have_been_replaced_is_known_beside_what_may_be_there() {
        let (address, before) = mk_entry("before");
        let (_, after) = mk_entry("after");
        let mut ours = Ours::of(&BTreeMap::from([(address, before.clone())]));
        for _ in 0..2 {
            ours.add(&BTreeMap::from([(address, after.clone())]));
        }
        assert!(ours.has(address, &before) && ours.has(address, &after));
        assert!(!ours.has(address, &mk_entry("theirs").1));
        assert_eq!(ours.0[&address].len(), 2, "each once");
    }
}
