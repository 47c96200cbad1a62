//! A release by hand: whether the holder lives, and the release itself.

use std::collections::HashMap;
use std::time::Duration;

use berth_api::names;
use berth_collector::liveness::{Verdict, judge};
use berth_collector::observed::{Held, NodeState, Note, Owners, PodRef, PodState, Sandbox};
use berth_collector::{QuorumReader, ReadError};
use berth_core::plan::Selector;
use berth_core::{Address, Answer, Change, Handle, Record, Release, Request};
use berth_ledger::{ClaimKey, ClaimKind, LedgerError, PoolKey, RecordLedger};
use berth_node::boot;

use crate::attachment::attribute;
use crate::error::PodError;
use crate::garbage::reservation_index::expected_name;
use crate::garbage::sandbox;
use crate::reserve;
use crate::store::Store;

/// Tries to end a cooldown that others write beside.
const TRIES: usize = 5;

/// What is known of the holder of an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// A person allocated it: a person may release it.
    ByHand,
    /// Its pod is gone, and why.
    Gone(String),
    /// Its pod lives.
    Alive { pod: String, node: Option<String> },
    /// Its pod was deleted, and the pod's node has not released the address: the container may run.
    Unreleased { pod: String, node: String },
    /// Its owner names no pod: nothing can be proved of it.
    Unknown,
}

/// Who asks for a holder's standing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin<'a> {
    /// A caller that can't check sandboxes.
    Anywhere,
    /// A caller that has that node's agent check again.
    Through(&'a str),
    /// That node's agent.
    Agent(&'a str),
}

impl Origin<'_> {
    fn node(&self) -> &str {
        match self {
            Origin::Anywhere => "",
            Origin::Through(node) | Origin::Agent(node) => node,
        }
    }
}

/// Reads the holder's pod and that pod's node, by quorum reads. As the collector does, it takes a deleted pod for gone
/// only where its node is lost or shows that the sandbox is gone.
pub async fn standing(
    reader: &QuorumReader,
    record: &Record,
    origin: Origin<'_>,
) -> Result<Standing, ReadError> {
    if record.is_by_hand() {
        return Ok(Standing::ByHand);
    }
    let subject = &record.owner.subject;
    let Some(pod) = PodRef::parse(subject) else {
        return Ok(Standing::Unknown);
    };
    let state = reader.pod(&pod).await?;
    let mut node = None;
    let mut nodes = HashMap::new();
    if let PodState::Present(found) = &state
        && let Some(name) = &found.node
    {
        let exists = reader.node(name).await? != NodeState::Absent;
        nodes.insert(name.clone(), exists);
        node = Some(name.clone());
    }
    let owners = Owners {
        pods: HashMap::from([(pod, state)]),
        nodes,
        ..Owners::default()
    };
    let pod = subject.clone();
    Ok(match judge(subject, &Note::default(), &owners) {
        Verdict::Gone(reason) if reason.is_of_the_object() => {
            match runs_on(reader, record, origin).await? {
                Some(node) => Standing::Unreleased { pod, node },
                None => Standing::Gone(reason.to_string()),
            }
        }
        Verdict::Gone(reason) => Standing::Gone(reason.to_string()),
        Verdict::Unjudged => Standing::Unknown,
        Verdict::Alive | Verdict::Kept | Verdict::Unreleased => Standing::Alive { pod, node },
    })
}

/// Where there is no cluster to ask: whether the container of a record of this machine is still there, by its boot and its
/// network namespace.
pub fn runs_here(record: &Record) -> bool {
    !record.is_by_hand() && sandbox::of(record, &boot::current()) == Sandbox::Present
}

/// The node on which the container may run although its pod was deleted.
async fn runs_on(
    reader: &QuorumReader,
    record: &Record,
    origin: Origin<'_>,
) -> Result<Option<String>, ReadError> {
    let Some(node) = record.attribute(attribute::NODE) else {
        return Ok(None);
    };
    let sandbox = match origin {
        Origin::Agent(_) => sandbox::of(record, &boot::current()),
        Origin::Anywhere | Origin::Through(_) => Sandbox::Unknown,
    };
    let runs = match sandbox {
        Sandbox::Present => true,
        Sandbox::Gone => false,
        Sandbox::Unknown => node != origin.node() && !reader.node(node).await?.is_lost(),
    };
    Ok(runs.then(|| node.to_owned()))
}

/// The holders of an address among `pools`.
pub async fn find(
    ledger: &dyn RecordLedger,
    pools: &[PoolKey],
    address: Address,
) -> Result<Vec<(PoolKey, Record)>, LedgerError> {
    let mut found = Vec::new();
    for pool in pools {
        if pool.network.is_none_or(|network| network.contains(address)) {
            let now = ledger.load(pool).await?;
            let holders = now.pool.holders(address);
            found.extend(holders.map(|record| (pool.clone(), record.clone())));
        }
    }
    Ok(found)
}

/// Releases the address from exactly that holder (I6), then the reservation that belongs to it. False if the holder does
/// not have it any more. A crash in between leaves a reservation without an entry, which a second call removes.
pub async fn release(
    store: &Store,
    pool: &PoolKey,
    address: Address,
    holder: &Record,
) -> Result<bool, PodError> {
    let selector = Selector::Address {
        address,
        holder: holder.clone(),
    };
    let request = Request::Release(Release {
        selector,
        cooldown: Duration::ZERO,
    });
    let freed = match store.ask(pool, request).await? {
        Answer::Released(freed) => !freed.is_empty(),
        _ => false,
    };
    for key in reservations(store, pool, address, holder).await? {
        reserve::end(&**store.ledger(), &key, (pool, address), holder).await?;
    }
    Ok(freed)
}

/// The reservation's name follows from the pool's; where that is ambiguous, all reservations are read.
async fn reservations(
    store: &Store,
    pool: &PoolKey,
    address: Address,
    holder: &Record,
) -> Result<Vec<ClaimKey>, LedgerError> {
    let held = Held {
        pool: pool.clone(),
        address,
        record: holder.clone(),
        note: Note::default(),
    };
    if let Some(name) = expected_name(&held) {
        return Ok(vec![ClaimKey::new(ClaimKind::Reservation, name)]);
    }
    let mut found = Vec::new();
    let mut keep = |key: ClaimKey, record: Record| {
        if names::reserves(&key.name, address) && record.owner == holder.owner {
            found.push(key);
        }
    };
    let ledger = store.ledger();
    ledger.visit(ClaimKind::Reservation, &mut keep).await?;
    Ok(found)
}

/// The reservation of an address that is left of an allocation by hand.
pub async fn leftover(
    ledger: &dyn RecordLedger,
    address: Address,
) -> Result<Option<(ClaimKey, Record)>, LedgerError> {
    let mut found = None;
    let mut keep = |key: ClaimKey, record: Record| {
        if found.is_none() && record.is_by_hand() && names::reserves(&key.name, address) {
            found = Some((key, record));
        }
    };
    ledger.visit(ClaimKind::Reservation, &mut keep).await?;
    Ok(found)
}

/// Ends the cooldown of an address; false if it does not cool down. Its last owner takes it and releases it in one
/// commit: no other owner may take it before.
pub async fn end_cooldown(
    ledger: &dyn RecordLedger,
    pool: &PoolKey,
    address: Address,
) -> Result<bool, LedgerError> {
    let mut tries = 0;
    loop {
        let now = ledger.load(pool).await?;
        let cooling = now
            .pool
            .cooldowns()
            .find(|(cooling, _)| *cooling == address);
        let Some((_, cooldown)) = cooling else {
            return Ok(false);
        };
        let record = Record::new(cooldown.owner.clone(), Handle::new("end-of-cooldown"));
        let changes = [
            Change::Allocate {
                address,
                record: record.clone(),
            },
            Change::Release {
                address,
                expected: record,
                cooldown: None,
            },
        ];
        tries += 1;
        match ledger.commit(pool, &now.version, &changes, None).await {
            Err(error) if error.needs_reload() && tries < TRIES => {}
            Err(error) => return Err(error),
            Ok(_) => return Ok(true),
        }
    }
}
