//! `berth addresses` and `berth who`.

use anyhow::bail;
use berth_core::{Address, Cooldown, Record};
use clap::Args;
use serde::Serialize;

use crate::exit::Negative;
use crate::holders::find;
use crate::output::{self, Format, Row};
use crate::store::Stores;

#[derive(Debug, Args)]
pub struct Addresses {
    /// Only addresses of this pool.
    #[arg(long)]
    pool: Option<String>,
}

#[derive(Debug, Args)]
pub struct Who {
    /// The address.
    address: Address,
}

#[derive(Debug, Serialize)]
pub struct AddressRow {
    address: String,
    pool: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    namespace: String,
    /// The holder; for a cooling address the last one.
    owner: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    interface: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    handle: String,
    state: State,
    /// When the cooldown ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
    #[serde(skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    attributes: std::collections::BTreeMap<String, String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum State {
    Allocated,
    ByHand,
    Cooling,
}

impl Row for AddressRow {
    const COLUMNS: &'static [&'static str] = &[
        "address",
        "owner",
        "interface",
        "container",
        "pool",
        "state",
        "note",
    ];

    fn cells(&self) -> Vec<String> {
        // Container ids are 64 digits; people compare the first twelve.
        let handle: String = match self.state {
            State::Allocated => self.handle.chars().take(12).collect(),
            State::ByHand | State::Cooling => "-".to_owned(),
        };
        let state = match (self.state, &self.until) {
            (State::Allocated, _) => "allocated".to_owned(),
            (State::ByHand, _) => "by hand".to_owned(),
            (State::Cooling, Some(until)) => format!("cooling until {until}"),
            (State::Cooling, None) => "cooling".to_owned(),
        };
        vec![
            self.address.clone(),
            self.owner.clone(),
            self.interface.clone(),
            handle,
            self.pool.clone(),
            state,
            self.note.clone().unwrap_or_default(),
        ]
    }
}

impl AddressRow {
    pub fn new(pool: &str, address: Address, record: &Record) -> Self {
        let by_hand = record.owner.by_hand();
        let mut attributes = record.attributes.clone();
        let note = attributes.remove(Record::NOTE);
        Self {
            address: address.to_string(),
            pool: pool.to_owned(),
            namespace: String::new(),
            owner: by_hand.unwrap_or(&record.owner.subject).to_owned(),
            interface: record.owner.part.clone(),
            handle: match by_hand {
                Some(_) => String::new(),
                None => record.handle.to_string(),
            },
            state: match by_hand {
                Some(_) => State::ByHand,
                None => State::Allocated,
            },
            until: None,
            note,
            attributes,
        }
    }

    /// An address that cools down.
    pub fn cooling(pool: &str, address: Address, cooldown: &Cooldown) -> Self {
        let last = Record::new(cooldown.owner.clone(), berth_core::Handle::default());
        let millis = i64::try_from(cooldown.until.0).unwrap_or(i64::MAX);
        let until = jiff::Timestamp::from_millisecond(millis);
        Self {
            state: State::Cooling,
            until: until.ok().map(|until| format!("{until:.0}")),
            ..Self::new(pool, address, &last)
        }
    }

    /// An address whose cooldown a node's agent has ended. The agent does not report its last owner.
    pub fn cooled(address: Address) -> Self {
        let empty = Record::default();
        Self {
            state: State::Cooling,
            ..Self::new("-", address, &empty)
        }
    }

    #[must_use]
    pub fn of(mut self, namespace: &str) -> Self {
        namespace.clone_into(&mut self.namespace);
        self
    }
}

impl Addresses {
    pub async fn run(&self, stores: Stores, format: Format) -> anyhow::Result<()> {
        let mut rows = Vec::new();
        let mut unread = Vec::new();
        let mut seen = false;
        for store in &stores.0 {
            let namespace = store.namespace();
            store
                .visit(|view| {
                    if self
                        .pool
                        .as_ref()
                        .is_some_and(|name| *name != view.key.name)
                    {
                        return;
                    }
                    seen = true;
                    let pool = match view.snapshot {
                        Ok(snapshot) => snapshot.pool,
                        Err(error) => return unread.push(error.to_string()),
                    };
                    let name = &view.key.name;
                    let held = pool.records().chain(pool.duplicate_holders());
                    let held = held.map(|(address, held)| AddressRow::new(name, address, held));
                    let cooling = pool.cooldowns();
                    let cooling = cooling
                        .map(|(address, cooldown)| AddressRow::cooling(name, address, cooldown));
                    rows.extend(held.chain(cooling).map(|row| row.of(namespace)));
                })
                .await?;
        }
        if let (Some(name), false) = (&self.pool, seen) {
            bail!(Negative::NotFound(format!(
                "there is no pool `{name}`; `berth pools` lists them"
            )));
        }
        output::print(format, &rows)?;
        whole(&unread, "the list lacks their addresses")
    }
}

/// Fails if some pools could not be read, after everything else was shown.
fn whole(unread: &[String], so: &str) -> anyhow::Result<()> {
    for error in unread {
        output::note(error);
    }
    match unread.len() {
        0 => Ok(()),
        count => bail!(Negative::Broken(format!(
            "{count} pools can't be read: {so}"
        ))),
    }
}

impl Who {
    pub async fn run(&self, stores: Stores, format: Format) -> anyhow::Result<()> {
        let found = find(&stores, self.address).await?;
        let held = found.held.iter();
        let held = held.map(|one| {
            AddressRow::new(&one.pool.name, self.address, &one.record).of(one.store.namespace())
        });
        let cooling = found.cooling.iter();
        let cooling = cooling.map(|one| {
            AddressRow::cooling(&one.pool.name, self.address, &one.cooldown)
                .of(one.store.namespace())
        });
        let rows: Vec<AddressRow> = held.chain(cooling).collect();
        if rows.is_empty() {
            whole(&found.unread, "they may hold the address")?;
            bail!(Negative::NotFound(format!(
                "{} is not allocated",
                self.address
            )));
        }
        output::print(format, &rows)?;
        for error in &found.unread {
            output::note(error);
        }
        Ok(())
    }
}
