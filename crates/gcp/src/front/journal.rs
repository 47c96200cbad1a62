//! What this node has to do about its NIC, in the node's own file: who holds which address, what is attached, what has to be
//! detached, and the call that is under way.
//!
//! Guarantees: an entry is durable before the call that it announces (I9); a detach survives the process, and with it the
//! holder that the pool's release names (I6). It keeps no copy in memory: a plugin that runs without the agent writes the same
//! file.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Mutex, PoisonError};

use berth_attachment::{Entry, Goal, Intent, IntentId, Journal, Recorded};
use berth_core::{Address, Change, Pool, Record, STAGE};
use berth_ledger::{LedgerError, PoolKey, SharedLedger, Version};

use crate::nic::NicPlace;

/// Pools of the node's file that are journals of NICs.
pub const PREFIX: &str = "gcp-nic/";
/// Which IPPool an address is of.
pub const POOL: &str = "ippool";
const TRIES: usize = 20;

/// Where an address is, as the journal says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Its holder is known; nothing was done yet.
    Held,
    Present,
    /// It has to be detached and released.
    Absent,
}

/// One address of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// As the pool has it.
    pub holder: Record,
    pub state: State,
    intent: Option<(IntentId, Goal)>,
}

type Rows = BTreeMap<Ipv4Addr, Row>;

/// The journal of one NIC and range.
#[derive(Debug)]
pub struct NicJournal {
    local: SharedLedger,
    key: PoolKey,
    /// Holders whose address was released: their row goes with the next `Forget`, a later holder's stays.
    released: Mutex<BTreeMap<Ipv4Addr, Record>>,
}

impl NicJournal {
    pub fn new(local: SharedLedger, place: &NicPlace) -> NicJournal {
        let range = place.range.as_deref().unwrap_or_default();
        let name = format!(
            "{PREFIX}{}/{}/{}/{range}",
            place.zone, place.instance, place.nic
        );
        NicJournal::of_key(local, PoolKey::named(name))
    }

    pub fn of_key(local: SharedLedger, key: PoolKey) -> NicJournal {
        NicJournal {
            local,
            key,
            released: Mutex::default(),
        }
    }

    pub async fn rows(&self) -> Result<Rows, LedgerError> {
        Ok(rows(&self.local.load(&self.key).await?.pool))
    }

    pub async fn row(&self, address: Ipv4Addr) -> Result<Option<Row>, LedgerError> {
        Ok(self.rows().await?.remove(&address))
    }

    /// Notes who holds the address, before anything is done about it.
    pub async fn hold(&self, address: Ipv4Addr, holder: &Record) -> Result<(), LedgerError> {
        self.change(|rows| {
            let row = rows.entry(address).or_insert_with(Row::empty);
            row.holder = holder.clone();
            row.holder.attributes.remove(STAGE);
        })
        .await
    }

    /// Drops the note of an address that is another node's now; what is attached is not touched.
    pub async fn drop_rows(&self, addresses: &[Ipv4Addr]) -> Result<(), LedgerError> {
        self.change(|rows| rows.retain(|address, _| !addresses.contains(address)))
            .await
    }

    /// The holder has lost the address in the pool: the row goes when the reconciler forgets the address.
    pub fn note_released(&self, address: Ipv4Addr, holder: &Record) {
        let mut released = self.released.lock().unwrap_or_else(PoisonError::into_inner);
        released.insert(address, holder.clone());
    }

    async fn change(&self, work: impl Fn(&mut Rows) + Send) -> Result<(), LedgerError> {
        let mut tries = 0;
        loop {
            let now = self.local.load(&self.key).await?;
            let before = rows(&now.pool);
            let mut after = before.clone();
            work(&mut after);
            let changes = difference(&before, &after);
            if changes.is_empty() {
                return Ok(());
            }
            match self.commit(&now.version, &changes).await {
                // Another process of the node wrote in between.
                Err(error) if error.needs_reload() && tries < TRIES => tries += 1,
                done => return done.map(drop),
            }
        }
    }

    async fn commit(&self, base: &Version, changes: &[Change]) -> Result<Version, LedgerError> {
        self.local.commit(&self.key, base, changes).await
    }

    fn apply(&self, rows: &mut Rows, entry: &Entry<Ipv4Addr>) {
        match entry {
            Entry::Begin(intent) => {
                for item in &intent.items {
                    let row = rows.entry(*item).or_insert_with(Row::empty);
                    row.intent = Some((intent.id, intent.goal));
                }
            }
            Entry::End { id, carried_out } => {
                for row in rows.values_mut() {
                    let Some((_, goal)) = row.intent.take_if(|(open, _)| open == id) else {
                        continue;
                    };
                    row.state = match (carried_out, goal, row.state) {
                        (true, Goal::Present, State::Held) => State::Present,
                        (true, Goal::Absent, State::Present) => State::Held,
                        (_, _, state) => state,
                    };
                }
            }
            Entry::Absent { item } => {
                rows.entry(*item).or_insert_with(Row::empty).state = State::Absent;
            }
            Entry::Present { item } => {
                rows.entry(*item).or_insert_with(Row::empty).state = State::Present;
            }
            Entry::Forget { item } => {
                let released = self.released.lock().unwrap_or_else(PoisonError::into_inner);
                let holder = released.get(item);
                let Some(row) = rows.get_mut(item) else {
                    return;
                };
                // A pod that got the same address since then has noted itself here.
                match holder.is_none_or(|holder| row.holder.same_holder(holder)) {
                    true => drop(rows.remove(item)),
                    false => row.state = State::Held,
                }
            }
        }
    }
}

impl Journal<Ipv4Addr> for NicJournal {
    type Error = LedgerError;

    async fn load(&self) -> Result<Recorded<Ipv4Addr>, LedgerError> {
        let mut recorded = Recorded::default();
        for (address, row) in self.rows().await? {
            match row.state {
                State::Present => drop(recorded.present.insert(address)),
                State::Absent => drop(recorded.absent.insert(address)),
                State::Held => {}
            }
            if let Some((id, goal)) = row.intent {
                let open = recorded.intent.get_or_insert_with(|| Intent {
                    id,
                    goal,
                    items: std::collections::BTreeSet::new(),
                });
                if open.id == id {
                    open.items.insert(address);
                }
            }
        }
        Ok(recorded)
    }

    async fn record(&self, entries: &[Entry<Ipv4Addr>]) -> Result<(), LedgerError> {
        self.change(|rows| entries.iter().for_each(|entry| self.apply(rows, entry)))
            .await?;
        let mut released = self.released.lock().unwrap_or_else(PoisonError::into_inner);
        for entry in entries {
            if let Entry::Forget { item } = entry {
                released.remove(item);
            }
        }
        Ok(())
    }
}

impl Row {
    /// A call for it is under way, or was when the process ended.
    pub fn is_open(&self) -> bool {
        self.intent.is_some()
    }

    fn empty() -> Row {
        Row {
            holder: Record::default(),
            state: State::Held,
            intent: None,
        }
    }

    /// As the file has it: state and intent are the record's stage, which every change is compared by.
    fn record(&self) -> Record {
        let state = match self.state {
            State::Held => "held",
            State::Present => "present",
            State::Absent => "absent",
        };
        let stage = match self.intent {
            Some((id, Goal::Present)) => format!("{state} attaching-{:032x}", id.0),
            Some((id, Goal::Absent)) => format!("{state} detaching-{:032x}", id.0),
            None => state.to_owned(),
        };
        self.holder.clone().with(STAGE, stage)
    }

    fn of(record: &Record) -> Row {
        let stage = record.attribute(STAGE).unwrap_or_default();
        let (state, intent) = stage.split_once(' ').unwrap_or((stage, ""));
        let state = match state {
            "present" => State::Present,
            "absent" => State::Absent,
            _ => State::Held,
        };
        let intent = intent.split_once('-').and_then(|(goal, id)| {
            let goal = match goal {
                "attaching" => Goal::Present,
                "detaching" => Goal::Absent,
                _ => return None,
            };
            Some((IntentId(u128::from_str_radix(id, 16).ok()?), goal))
        });
        let mut holder = record.clone();
        holder.attributes.remove(STAGE);
        Row {
            holder,
            state,
            intent,
        }
    }
}

fn rows(pool: &Pool) -> Rows {
    let row = |(address, record): (Address, &Record)| match IpAddr::from(address) {
        IpAddr::V4(address) => Some((address, Row::of(record))),
        IpAddr::V6(_) => None,
    };
    pool.records().filter_map(row).collect()
}

fn difference(before: &Rows, after: &Rows) -> Vec<Change> {
    let at = |address: &Ipv4Addr| Address::from(IpAddr::from(*address));
    let mut changes = Vec::new();
    for (address, row) in before {
        let (address, expected) = (at(address), row.record());
        match after.get(&match IpAddr::from(address) {
            IpAddr::V4(address) => address,
            IpAddr::V6(_) => continue,
        }) {
            None => changes.push(Change::Release {
                address,
                expected,
                rest: None,
            }),
            Some(next) if next != row => changes.push(Change::Update {
                address,
                expected,
                record: next.record(),
            }),
            Some(_) => {}
        }
    }
    let fresh = after
        .iter()
        .filter(|(address, _)| !before.contains_key(*address));
    changes.extend(fresh.map(|(address, row)| Change::Claim {
        address: at(address),
        record: row.record(),
    }));
    changes
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use berth_core::{Handle, Owner};
    use berth_ledger::SqliteLedger;

    use super::*;

    fn address(last: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 111, 0, last)
    }

    fn holder(container: &str) -> Record {
        Record::new(Owner::new("d/p", "u"), Handle::new(container)).with(POOL, "ippool-nodes")
    }

    fn place() -> NicPlace {
        NicPlace {
            zone: "z".to_owned(),
            instance: "i".to_owned(),
            nic: "nic0".to_owned(),
            range: Some("live".to_owned()),
        }
    }

    fn open(dir: &tempfile::TempDir) -> NicJournal {
        let local: SharedLedger = Arc::new(SqliteLedger::open(dir.path().join("node.db")).unwrap());
        NicJournal::new(local, &place())
    }

    fn intent(id: u128, goal: Goal, items: &[u8]) -> Intent<Ipv4Addr> {
        Intent {
            id: IntentId(id),
            goal,
            items: items.iter().copied().map(address).collect(),
        }
    }

    #[tokio::test]
    async fn what_was_recorded_is_there_for_the_next_process() {
        let dir = tempfile::tempdir().unwrap();
        let journal = open(&dir);
        journal.hold(address(2), &holder("c2")).await.unwrap();
        let begun = intent(7, Goal::Present, &[2, 3]);
        journal
            .record(&[Entry::Begin(begun.clone())])
            .await
            .unwrap();
        let next = open(&dir);
        assert_eq!(next.load().await.unwrap().intent, Some(begun));
        let end = Entry::End {
            id: IntentId(7),
            carried_out: true,
        };
        next.record(&[end, Entry::Absent { item: address(3) }])
            .await
            .unwrap();
        let recorded = open(&dir).load().await.unwrap();
        assert_eq!(recorded.intent, None);
        assert_eq!(recorded.present, [address(2)].into());
        assert_eq!(recorded.absent, [address(3)].into());
        let rows = journal.rows().await.unwrap();
        assert_eq!(rows[&address(2)].holder, holder("c2"));
    }

    #[tokio::test]
    async fn it_says_what_the_reference_journal_says() {
        let dir = tempfile::tempdir().unwrap();
        let (journal, reference) = (open(&dir), berth_attachment::MemoryJournal::default());
        let end = |id, carried_out| Entry::End {
            id: IntentId(id),
            carried_out,
        };
        let steps = [
            vec![Entry::Begin(intent(1, Goal::Present, &[2, 3, 4]))],
            vec![Entry::Absent { item: address(3) }],
            vec![end(1, true)],
            vec![Entry::Begin(intent(2, Goal::Absent, &[3]))],
            vec![end(2, true), Entry::Forget { item: address(3) }],
            vec![Entry::Begin(intent(3, Goal::Present, &[5]))],
            vec![end(3, false)],
            vec![Entry::Absent { item: address(4) }],
            vec![Entry::Present { item: address(4) }],
        ];
        for step in steps {
            journal.record(&step).await.unwrap();
            reference.record(&step).await.unwrap();
            let (ours, theirs) = (
                journal.load().await.unwrap(),
                reference.load().await.unwrap(),
            );
            assert_eq!(ours, theirs, "{step:?}");
        }
    }

    #[tokio::test]
    async fn the_row_of_a_later_holder_stays() {
        let dir = tempfile::tempdir().unwrap();
        let journal = open(&dir);
        journal.hold(address(2), &holder("c1")).await.unwrap();
        journal
            .record(&[Entry::Absent { item: address(2) }])
            .await
            .unwrap();
        journal.note_released(address(2), &holder("c1"));
        journal.hold(address(2), &holder("c2")).await.unwrap();
        journal
            .record(&[Entry::Forget { item: address(2) }])
            .await
            .unwrap();
        let row = journal.row(address(2)).await.unwrap().unwrap();
        assert_eq!((row.holder, row.state), (holder("c2"), State::Held));
        journal.note_released(address(2), &holder("c2"));
        journal
            .record(&[Entry::Forget { item: address(2) }])
            .await
            .unwrap();
        assert_eq!(journal.row(address(2)).await.unwrap(), None);
    }
}
