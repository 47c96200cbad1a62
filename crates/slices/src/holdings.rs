//! Which slices a node holds of one range, in the node's own ledger: a pool with a record for each slice, at its first
//! address or, where a slice around or inside it has that one, at the next that is free.
//!
//! Promises: what is here is durable; a slice is here before an address of it is given, and is marked lost here
//! before that is told to anybody.

use berth_core::slice::{Epoch, NodeName};
use berth_core::{Address, Change, Handle, Owner, Pool, Prefix, Record};
use berth_ledger::{Guard, Ledger, LedgerError, PoolKey, SharedLedger, Snapshot, Version};

use crate::sliced::{Mode, Sliced, untold};

mod attribute {
    pub const EPOCH: &str = "epoch";
    pub const BOOT: &str = "boot";
    pub const STATE: &str = "state";
    pub const NODE: &str = "node";
    pub const DISJOINT: &str = "disjoint";
    pub const UNRESERVED: &str = "unreserved";
    pub const NETWORK: &str = "network";
    pub const SOURCE: &str = "source";
}

const ASSIGNED: &str = "assigned/";
const ELASTIC: &str = "elastic";

/// The range that a pool of holdings is of, as far as it is told there; none for one that is empty.
pub(crate) async fn range_of(
    ledger: &dyn Ledger,
    key: &PoolKey,
) -> Result<Option<Sliced>, LedgerError> {
    let now = ledger.load(key).await?;
    let is_lost = |record: &Record| Holding::read(record).is_none_or(|one| !one.is_active());
    let records = now.pool.records().map(|(_, record)| record);
    // What is lost may be of another kind: of before the network turned.
    let Some(record) = records.min_by_key(|record| is_lost(record)) else {
        return Ok(None);
    };
    let text = |key: &str| record.attribute(key).unwrap_or_default().to_owned();
    let Some(range) = key.network else {
        return Ok(None);
    };
    let (mode, slice_pool) = match Source::read(&text(attribute::SOURCE)) {
        Source::Assigned { slice_pool } => (Mode::Assigned, slice_pool),
        Source::Claimed => {
            // Until a call tells what the network's configuration has.
            let careful = Mode::Elastic {
                size: None,
                borrow: false,
            };
            (careful, String::new())
        }
    };
    let mut records = now.pool.records();
    let unreserved = records.any(|(_, record)| is_set(record, attribute::UNRESERVED));
    Ok(Some(Sliced {
        network: text(attribute::NETWORK),
        slice_pool,
        range,
        usable: untold(range),
        mode,
        // As the range was told; a call that gives otherwise tells it first.
        checked: !unreserved,
    }))
}

/// A slice as its node knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    pub slice: Prefix,
    pub epoch: Epoch,
    pub node: NodeName,
    pub node_uid: String,
    /// The boot of the node that it was last confirmed in.
    pub boot: String,
    pub state: State,
    /// No other network overlapped this one when it was last looked at.
    pub disjoint: bool,
    /// It may be given from without reservations: the range says so where other ways to give look.
    pub unreserved: bool,
    pub source: Source,
}

/// Where a slice came from. What a network asks for now does not tell: it may have turned since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    Claimed,
    Assigned { slice_pool: String },
}

impl Source {
    fn read(text: &str) -> Self {
        match text.strip_prefix(ASSIGNED) {
            Some(name) => Self::Assigned {
                slice_pool: name.to_owned(),
            },
            None => Self::Claimed,
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Claimed => ELASTIC.to_owned(),
            Self::Assigned { slice_pool } => format!("{ASSIGNED}{slice_pool}"),
        }
    }
}

fn is_set(record: &Record, key: &str) -> bool {
    record.attribute(key) == Some("true")
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Addresses are given from it.
    Active,
    /// It is another's, or nobody's: nothing is given, what pods hold stays until they go.
    Lost,
    /// It is this node's, as part of another range: the same, and that one publishes it.
    Moved,
}

impl State {
    const fn text(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Lost => "lost",
            Self::Moved => "moved",
        }
    }
}

impl Holding {
    pub fn is_active(&self) -> bool {
        self.state == State::Active
    }

    fn record(&self) -> Record {
        let owner = Owner::new(self.slice.to_string(), "");
        Record::new(owner, Handle::new(&self.node_uid))
            .with(attribute::EPOCH, self.epoch.0.to_string())
            .with(attribute::BOOT, &self.boot)
            .with(attribute::STATE, self.state.text())
            .with(attribute::NODE, self.node.as_str())
            .with(attribute::DISJOINT, self.disjoint.to_string())
            .with(attribute::UNRESERVED, self.unreserved.to_string())
            .with(attribute::SOURCE, self.source.text())
    }

    fn read(record: &Record) -> Option<Self> {
        let text = |key: &str| record.attribute(key).unwrap_or_default();
        Some(Self {
            slice: record.owner.subject.parse().ok()?,
            epoch: Epoch(text(attribute::EPOCH).parse().ok()?),
            node: NodeName::new(text(attribute::NODE)),
            node_uid: record.handle.as_str().to_owned(),
            boot: text(attribute::BOOT).to_owned(),
            disjoint: is_set(record, attribute::DISJOINT),
            unreserved: is_set(record, attribute::UNRESERVED),
            source: Source::read(text(attribute::SOURCE)),
            state: match text(attribute::STATE) {
                "active" => State::Active,
                "moved" => State::Moved,
                // Whatever a newer Berth may call it: nothing is given from it.
                _ => State::Lost,
            },
        })
    }
}

/// All holdings of a range, as they stood at a version of their pool.
#[derive(Clone, Debug, Default)]
pub(crate) struct Roll {
    pub all: Vec<Holding>,
    pub version: Version,
    /// The version that this one was made from, where it was made here.
    pub since: Version,
}

/// What becomes of a holding, by what is known of it.
enum Step {
    Put,
    Remove,
    Leave,
}

#[derive(Clone, Debug)]
pub(crate) struct Holdings {
    ledger: SharedLedger,
    key: PoolKey,
    network: String,
}

impl Holdings {
    pub fn new(ledger: SharedLedger, of: &Sliced) -> Self {
        Self {
            ledger,
            key: of.holdings(),
            network: of.network.clone(),
        }
    }

    pub async fn load(&self) -> Result<Roll, LedgerError> {
        let now = self.ledger.load(&self.key).await?;
        self.read(now)
    }

    fn read(&self, now: Snapshot) -> Result<Roll, LedgerError> {
        let one = |(_, record): (_, &Record)| {
            Holding::read(record).ok_or_else(|| LedgerError::Unreadable {
                target: format!("pool {}", self.key),
                why: format!("holding {:?}", record.owner.subject),
            })
        };
        Ok(Roll {
            all: now.pool.records().map(one).collect::<Result<_, _>>()?,
            since: now.version.clone(),
            version: now.version,
        })
    }

    /// What lets a commit pass only while all holdings are as they were read.
    pub fn guard(&self, version: Version) -> Guard {
        Guard {
            pool: self.key.clone(),
            version,
        }
    }

    /// Writes a holding as it is now, whatever was there; gives back all.
    pub async fn put(&self, holding: &Holding) -> Result<Roll, LedgerError> {
        self.change(holding, None, |_| Step::Put).await
    }

    /// The same, if all holdings are as they were read.
    pub async fn grant(&self, holding: &Holding, known: &Guard) -> Result<Roll, LedgerError> {
        self.change(holding, Some(known), |_| Step::Put).await
    }

    /// Changes nothing but the version, if there was no holding when it was read, and is none.
    pub async fn outdate(&self, none: &Guard) -> Result<Roll, LedgerError> {
        let since = none.version.clone();
        let made = self.ledger.commit(&self.key, &since, &[], Some(none));
        Ok(Roll {
            all: Vec::new(),
            version: made.await?,
            since,
        })
    }

    /// The same as `put`, if it is still given from by that grant: a slice that was lost, passed on or given back meanwhile does not
    /// come back by it.
    pub async fn renew(&self, holding: &Holding) -> Result<Roll, LedgerError> {
        let still = |known: &Holding| known.is_active() && known.epoch == holding.epoch;
        let step = |known: Option<&Holding>| match known.is_some_and(still) {
            true => Step::Put,
            false => Step::Leave,
        };
        self.change(holding, None, step).await
    }

    /// Removes a holding, whatever its state, if the pool that guards it is as it was read.
    pub async fn remove(&self, holding: &Holding, guard: &Guard) -> Result<Roll, LedgerError> {
        self.change(holding, Some(guard), |_| Step::Remove).await
    }

    /// Removes a holding that is not given from. One that is by now stays: somebody has taken it on again.
    pub async fn forget(&self, holding: &Holding) -> Result<Roll, LedgerError> {
        let step = |known: Option<&Holding>| match known.is_some_and(Holding::is_active) {
            true => Step::Leave,
            false => Step::Remove,
        };
        self.change(holding, None, step).await
    }

    async fn change(
        &self,
        holding: &Holding,
        guard: Option<&Guard>,
        step: impl Fn(Option<&Holding>) -> Step,
    ) -> Result<Roll, LedgerError> {
        let record = holding.record().with(attribute::NETWORK, &self.network);
        loop {
            let mut now = self.ledger.load(&self.key).await?;
            let roll = self.read(now.clone())?;
            let known = roll.all.iter().find(|one| one.slice == holding.slice);
            let step = step(known);
            let Some(address) = place(&now.pool, holding.slice) else {
                return Ok(roll);
            };
            let change = match (now.pool.get(address).cloned(), step) {
                (_, Step::Leave) | (None, Step::Remove) => return Ok(roll),
                (None, Step::Put) => Change::Allocate {
                    address,
                    record: record.clone(),
                },
                (Some(expected), Step::Put) => Change::Update {
                    address,
                    expected,
                    record: record.clone(),
                },
                (Some(expected), Step::Remove) => Change::Release {
                    address,
                    expected,
                    cooldown: None,
                },
            };
            let (base, changes) = (&now.version, std::slice::from_ref(&change));
            let made = self.ledger.commit(&self.key, base, changes, guard);
            match made.await {
                // Somebody wrote in between, and the store has both: this copy has not.
                Ok(version) if version.is_merged() => return self.load().await,
                Ok(version) => {
                    // Planned on exactly this copy.
                    let _ = now.pool.apply(&change);
                    let since = now.version.clone();
                    let made = self.read(Snapshot { version, ..now })?;
                    return Ok(Roll { since, ..made });
                }
                Err(error) if guard.is_some_and(|guard| error.is_of(guard)) => return Err(error),
                Err(error) if error.needs_reload() => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Where the record of a slice is, or may be put.
fn place(pool: &Pool, slice: Prefix) -> Option<Address> {
    let subject = slice.to_string();
    let known = pool
        .records()
        .find(|(_, record)| record.owner.subject == subject);
    if let Some((address, _)) = known {
        return Some(address);
    }
    let upward = std::iter::successors(Some(slice.network()), |address| address.next());
    let downward = std::iter::successors(slice.network().previous(), |address| address.previous());
    upward
        .chain(downward)
        .find(|address| !pool.is_held(*address))
}

#[cfg(test)]
mod tests;
