//! What this node has put into the objects that it publishes, kept in the node's file.
//!
//! Promises: an entry is noted here before it is sent, so after a restart an entry of the object that is noted here and
//! not in the slice's pool was released by this node, and is removed. An entry that is not noted is somebody else's, or
//! was allocated after this copy of the file was made: it is held (I1, I7).

use std::collections::BTreeMap;

use berth_core::{Address, Change, Handle, Owner, Pool, Prefix, Record};
use berth_ledger::{LedgerError, PoolKey};

use crate::ours::Ours;
use crate::sliced::Sliced;
use crate::world::World;

/// What the names of these pools begin with: no pool of a cluster has a slash in its name.
pub const NOTES: &str = "published/";

/// Further entries that may be in the object at the same address: a write whose answer was lost replaced them, or did not.
const BEFORE: &str = "before";

type Holder = (String, String, String);

impl World {
    /// What was noted of a slice's object.
    pub async fn noted(&self, of: &Sliced, slice: Prefix) -> Result<Ours, LedgerError> {
        let now = self.local.load(&notes(of)).await?;
        let mut ours = Ours::default();
        let inside = |(address, _): &(Address, &Record)| slice.contains(*address);
        for (address, record) in now.pool.records().filter(inside) {
            for record in read(record) {
                ours.add(&BTreeMap::from([(address, record)]));
            }
        }
        Ok(ours)
    }

    /// Notes what is about to be in a slice's object, durably; what was noted of it before and is not among it is
    /// forgotten. Slices inside it have objects of their own.
    pub async fn note(
        &self,
        of: &Sliced,
        slice: Prefix,
        nested: &[Prefix],
        ours: &Ours,
    ) -> Result<(), LedgerError> {
        let is_its = |address: Address| {
            let mut inner = nested.iter();
            slice.contains(address) && !inner.any(|inner| inner.contains(address))
        };
        let plan = |pool: &Pool| -> Vec<Change> {
            let mut changes = Vec::new();
            for (address, expected) in pool.records() {
                if is_its(address) && !ours.is_at(address) {
                    changes.push(Change::Release {
                        address,
                        expected: expected.clone(),
                        cooldown: None,
                    });
                }
            }
            for (address, records) in ours.all().filter(|(address, _)| is_its(*address)) {
                let Some(record) = written(records) else {
                    continue;
                };
                match pool.get(address) {
                    Some(known) if *known == record => {}
                    Some(known) => changes.push(Change::Update {
                        address,
                        expected: known.clone(),
                        record,
                    }),
                    None => changes.push(Change::Allocate { address, record }),
                }
            }
            changes
        };
        self.amend(&notes(of), plan).await?;
        Ok(())
    }
}

fn notes(of: &Sliced) -> PoolKey {
    PoolKey::of_network(format!("{NOTES}{}", of.plain().name), of.range)
}

/// Entries of one address as one record: the last one, and the others as its attribute.
fn written(records: &[Record]) -> Option<Record> {
    let (last, before) = records.split_last()?;
    let record = Record::new(last.owner.clone(), last.handle.clone());
    if before.is_empty() {
        return Some(record);
    }
    let holder = |record: &Record| -> Holder {
        let Owner { subject, part } = record.owner.clone();
        (subject, part, record.handle.as_str().to_owned())
    };
    let before: Vec<Holder> = before.iter().map(holder).collect();
    let text = serde_json::to_string(&before).unwrap_or_default();
    Some(record.with(BEFORE, text))
}

fn read(record: &Record) -> Vec<Record> {
    let text = record.attribute(BEFORE).unwrap_or("[]");
    let before: Vec<Holder> = serde_json::from_str(text).unwrap_or_default();
    let of = |(subject, part, handle): Holder| {
        Record::new(Owner::new(subject, part), Handle::new(handle))
    };
    let mut records: Vec<Record> = before.into_iter().map(of).collect();
    records.push(Record::new(record.owner.clone(), record.handle.clone()));
    records
}

/// The entries of an object that this node's file knows nothing of.
pub(crate) fn unknown(object: &Pool, noted: &Ours, slice: Prefix) -> Vec<(Address, Record)> {
    let entries = object.records().chain(object.duplicate_holders());
    entries
        .filter(|(address, record)| slice.contains(*address) && !noted.has(*address, record))
        .map(|(address, record)| (address, record.clone()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_one_address_are_read_back_as_they_were_written() {
        let record = |pod: &str| Record::new(Owner::new(pod, "net1"), Handle::new(pod));
        for records in [
            vec![record("a")],
            vec![record("a"), record("b"), record("c")],
        ] {
            let one = written(&records).unwrap();
            assert_eq!(read(&one), records);
        }
        assert_eq!(written(&[]), None);
    }
}
