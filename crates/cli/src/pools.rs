//! `berth pools`: how full each pool is, and its problems.

use std::collections::{BTreeMap, BTreeSet};

use berth_core::diagnose::diagnose;
use berth_core::dialect::WHEREABOUTS;
use berth_core::{Address, Handle, Pool, Prefix, RangeSpec, Record, Space};
use berth_front::Kind;
use berth_kube::Connection;
use berth_ledger::{ClaimKey, ClaimKind, LedgerError, PoolKey, Rejection, Visited};
use berth_pods::by_hand::{self, Origin, Standing};
use berth_pods::garbage::address_index::{AddressIndex, Shared};
use berth_pods::garbage::duplicates::{Duplicate, Place, Sources};
use berth_pods::garbage::pool_policies::{PoolPolicies, read_pool_policies};
use clap::Args;
use serde::Serialize;

use crate::allocate::NETWORKS;
use crate::output::{self, Format, Row};
use crate::store::{PoolView, Store, Stores};

#[derive(Debug, Args)]
pub struct Pools {
    /// Do not compare with the pods' network-status: reads no pods, faster in a large cluster.
    #[arg(long)]
    without_pods: bool,
}

#[derive(Debug, Default, Serialize)]
struct PoolRow {
    /// Empty for an address that is in no pool's range.
    pool: String,
    /// The kind of its object, unless that is an IPPool.
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    namespace: String,
    network: Option<String>,
    /// The node whose slice it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<String>,
    /// Addresses that may be allocated; of a very large range at most 2^64 - 1.
    size: u64,
    allocated: usize,
    /// Not known of a node's slice: cooldowns are not published.
    cooling: Option<usize>,
    free: u64,
    used_percent: f64,
    findings: Vec<String>,
    #[serde(skip)]
    key: Option<PoolKey>,
}

impl Row for PoolRow {
    const COLUMNS: &'static [&'static str] = &[
        "pool",
        "network",
        "size",
        "allocated",
        "cooling",
        "free",
        "used",
        "findings",
    ];

    fn cells(&self) -> Vec<String> {
        let findings = match self.findings.as_slice() {
            [] => "none".to_owned(),
            many => many.join("; "),
        };
        let name = match (self.namespace.as_str(), &self.kind) {
            (_, Some(kind)) => format!("{kind}/{}", self.pool),
            ("", None) => self.pool.clone(),
            (namespace, None) => format!("{namespace}/{}", self.pool),
        };
        vec![
            name,
            self.network.clone().unwrap_or_else(|| "-".into()),
            count(self.size),
            self.allocated.to_string(),
            self.cooling
                .map_or_else(|| "-".into(), |count| count.to_string()),
            count(self.free),
            format!("{:.0}%", self.used_percent),
            findings,
        ]
    }
}

/// A huge number is shown by its magnitude.
fn count(number: u64) -> String {
    match number {
        0..=9_999_999 => number.to_string(),
        many => format!("~2^{}", many.checked_ilog2().unwrap_or(0) + 1),
    }
}

impl Pools {
    pub async fn run(&self, stores: Stores, kinds: &[Kind], format: Format) -> anyhow::Result<()> {
        let mut rows = Vec::new();
        let mut found = Shown::default();
        let several = stores.0.len() > 1;
        for store in &stores.0 {
            let mut of_store = self.rows(store, &mut found).await?;
            if several {
                for row in &mut of_store {
                    store.namespace().clone_into(&mut row.namespace);
                }
            }
            rows.extend(of_store);
        }
        if let Some(cluster) = stores.0.first().and_then(|store| store.cluster.as_ref()) {
            for kind in kinds {
                rows.extend(rows_of_kind(kind, &cluster.connection).await?);
            }
        }
        for duplicate in found.in_no_pool() {
            match format {
                Format::Table => output::note(&format!("in no pool's range: {duplicate}")),
                Format::Json => rows.push(PoolRow::of_none(duplicate)),
            }
        }
        output::print(format, &rows)
    }

    async fn rows(&self, store: &Store, shown: &mut Shown) -> anyhow::Result<Vec<PoolRow>> {
        let pool_policies = pool_policies(store).await?;
        let mut rows = Vec::new();
        let mut index = AddressIndex::default();
        let mut views = BTreeMap::new();
        store
            .visit(|view| {
                if let Ok(snapshot) = &view.snapshot {
                    index.add_pool(&view.key, view.publisher.as_deref(), &snapshot.pool);
                }
                if let Some(node) = &view.publisher {
                    views.insert(view.key.name.clone(), node.clone());
                }
                rows.push(row(view, &pool_policies));
            })
            .await?;
        let mut add = |key: ClaimKey, record: Record| {
            index.add_reservation(&key.name, &record.owner);
        };
        let reservations = ClaimKind::Reservation;
        store.ledger.visit(reservations, &mut add).await?;
        index.sort();
        for duplicate in self
            .duplicates(store, &index, &views, &pool_policies)
            .await?
        {
            let is_found = attach(&duplicate, &mut rows, concerns)
                || attach(&duplicate, &mut rows, |duplicate, key| {
                    let network = key.and_then(|key| key.network);
                    network.is_some_and(|network| network.contains(duplicate.address))
                });
            shown.add(duplicate, is_found);
        }
        Ok(rows)
    }

    /// Addresses with several holders, across pools.
    async fn duplicates(
        &self,
        store: &Store,
        index: &AddressIndex,
        views: &BTreeMap<String, String>,
        pool_policies: &PoolPolicies,
    ) -> anyhow::Result<Vec<Duplicate>> {
        let attached = match &store.cluster {
            Some(cluster) if !self.without_pods => {
                let differ = |one: &_| index.differ(one, pool_policies);
                let attached = cluster.reader().attached(differ).await;
                attached.unwrap_or_else(|error| {
                    output::note(&format!("not compared with the pods: {error}"));
                    Vec::new()
                })
            }
            _ => Vec::new(),
        };
        let mut shared = Shared::of(index, &attached);
        if shared.is_empty() {
            return Ok(Vec::new());
        }
        // Read completely only now, and only for those addresses.
        store
            .visit(|view| {
                if let Ok(snapshot) = view.snapshot {
                    shared.add_pool(&view.key, &snapshot.pool);
                }
            })
            .await?;
        let mut add = |key: ClaimKey, record: Record| shared.add_reservation(key, record);
        let reservations = ClaimKind::Reservation;
        store.ledger.visit(reservations, &mut add).await?;
        let sources = Sources {
            held: &shared.held,
            reservations: &shared.reservations,
            attached: &attached,
            published: views,
            pool_policies,
            networks: shared.networks(),
        };
        let mut found = sources.duplicates();
        if let Some(cluster) = &store.cluster {
            let reader = cluster.reader();
            for duplicate in &mut found {
                let mut living = Vec::new();
                for holder in std::mem::take(&mut duplicate.holders) {
                    let record = Record::new(holder.owner.clone(), Handle::default());
                    // What can't be read counts as alive.
                    let standing = by_hand::standing(&reader, &record, Origin::Anywhere).await;
                    if !matches!(standing, Ok(Standing::Gone(_))) {
                        living.push(holder);
                    }
                }
                duplicate.holders = living;
            }
        }
        found.retain(|one| one.holders.len() > 1 && !within_one_pool(one));
        Ok(found)
    }
}

/// The networks of the store, for its pools.
async fn pool_policies(store: &Store) -> anyhow::Result<PoolPolicies> {
    if let Some(cluster) = &store.cluster {
        return Ok(read_pool_policies(&cluster.reader(), None, &[]).await?);
    }
    let mut pool_policies = PoolPolicies::default();
    let directory = store.directory.clone().unwrap_or_default().join(NETWORKS);
    for file in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = file.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        if let Ok(network) = by_hand::network_of_text(&name, &text, false, &[]) {
            pool_policies.add_network("", &name, &network);
        }
    }
    Ok(pool_policies)
}

/// The pools that a front keeps in its own kind of objects; none if the cluster does not have the kind.
async fn rows_of_kind(kind: &Kind, connection: &Connection) -> anyhow::Result<Vec<PoolRow>> {
    let mut rows = Vec::new();
    let mut visit = |seen: Visited| {
        let network = seen.key.network;
        let mut row = PoolRow {
            pool: seen.key.name,
            kind: Some(kind.pool.name()),
            network: network.map(|network| network.to_string()),
            ..PoolRow::default()
        };
        match seen.snapshot {
            Ok(snapshot) => {
                row.allocated = snapshot.pool.len();
                row.cooling = Some(snapshot.pool.cooldowns().count());
                if let Some(network) = network {
                    row.fill(&snapshot.pool, &Space::list([network.block()]));
                }
            }
            Err(error) => row.findings = vec![error.to_string()],
        }
        rows.push(row);
    };
    let listed = (kind.ledger)(connection).visit_pools(&mut visit).await;
    match listed {
        Err(LedgerError::Rejected {
            rejection: Rejection::Missing(_),
            ..
        }) => Ok(Vec::new()),
        // A kind that the caller may not list does not hide others.
        Err(LedgerError::Rejected {
            rejection: rejection @ Rejection::Forbidden(_),
            ..
        }) => {
            output::note(&format!("{} are not shown: {rejection}", kind.pool.name()));
            Ok(Vec::new())
        }
        listed => {
            listed?;
            Ok(rows)
        }
    }
}

fn row(view: PoolView, pool_policies: &PoolPolicies) -> PoolRow {
    let key = view.key;
    let mut row = PoolRow {
        pool: key.name.clone(),
        network: key.network.map(|network| network.to_string()),
        node: view.publisher,
        ..PoolRow::default()
    };
    match view.snapshot {
        Ok(snapshot) => {
            let pool = &snapshot.pool;
            let found = diagnose(pool, key.network);
            row.findings = found.iter().map(ToString::to_string).collect();
            row.allocated = pool.len();
            row.cooling = row.node.is_none().then(|| pool.cooldowns().count());
            if let Some(space) = space(&key, row.node.is_some(), pool_policies) {
                row.fill(pool, &space);
            }
        }
        // One unreadable pool must not hide the others.
        Err(error) => row.findings = vec![error.to_string()],
    }
    row.key = Some(key);
    row
}

impl PoolRow {
    /// A finding about an address that is in no pool's range.
    fn of_none(duplicate: &Duplicate) -> Self {
        PoolRow {
            findings: vec![duplicate.to_string()],
            ..PoolRow::default()
        }
    }

    #[allow(clippy::cast_precision_loss)]
    fn fill(&mut self, pool: &Pool, space: &Space) {
        let held = pool.records().map(|(address, _)| address);
        let cooling = pool.cooldowns().map(|(address, _)| address);
        let taken = held
            .chain(cooling)
            .filter(|one| space.contains(*one))
            .count();
        let size = u64::try_from(space.count()).unwrap_or(u64::MAX);
        let taken = u64::try_from(taken).unwrap_or(u64::MAX);
        self.size = size;
        self.free = size.saturating_sub(taken);
        self.used_percent = match size {
            0 => 100.0,
            size => 100.0 * taken as f64 / size as f64,
        };
    }
}

/// What may be allocated from a pool: as in the networks that use it, else its whole range.
fn space(key: &PoolKey, slice: bool, pool_policies: &PoolPolicies) -> Option<Space> {
    let configured = pool_policies
        .of(&key.name)
        .and_then(|pool_policies| pool_policies.usable.as_deref());
    if let Some(space) = configured {
        return Some(space.clone());
    }
    let network: Prefix = key.network?;
    if slice {
        return Some(Space::list([network.block()]));
    }
    let spec = RangeSpec::parse(&network.to_string()).ok()?;
    let built = Space::build(&spec, WHEREABOUTS.with_tiny_networks());
    built.ok().map(|(space, _)| space)
}

/// Whether all holders are in one pool: the pool reports that itself.
fn within_one_pool(duplicate: &Duplicate) -> bool {
    let mut pools = duplicate.holders.iter().map(|holder| match &holder.place {
        Place::Pool(pool) => Some(pool.name.as_str()),
        _ => None,
    });
    match pools.next() {
        Some(Some(first)) => pools.all(|pool| pool == Some(first)),
        _ => false,
    }
}

/// The addresses with several holders. Pods are read in all namespaces, pools per namespace: an address that is in no
/// pool of one namespace may be in a pool of another.
#[derive(Default)]
struct Shown {
    in_pools: BTreeSet<Holders>,
    others: BTreeMap<Holders, Duplicate>,
}

/// An address and its owners, from any source.
type Holders = (Address, BTreeSet<String>);

impl Shown {
    fn add(&mut self, duplicate: Duplicate, in_pool: bool) {
        let owners = duplicate.holders.iter().map(|one| one.owner.to_string());
        let holders = (duplicate.address, owners.collect());
        if in_pool {
            self.in_pools.insert(holders);
        } else {
            self.others.insert(holders, duplicate);
        }
    }

    fn in_no_pool(&self) -> impl Iterator<Item = &Duplicate> {
        let others = self.others.iter();
        others
            .filter(|(holders, _)| !self.in_pools.contains(*holders))
            .map(|(_, duplicate)| duplicate)
    }
}

/// Adds the finding to the rows that it concerns. Returns whether there are any.
fn attach(
    duplicate: &Duplicate,
    rows: &mut [PoolRow],
    is_about: impl Fn(&Duplicate, Option<&PoolKey>) -> bool,
) -> bool {
    let mut is_found = false;
    for row in rows {
        if is_about(duplicate, row.key.as_ref()) {
            row.findings.push(duplicate.to_string());
            is_found = true;
        }
    }
    is_found
}

/// Whether a holder is in the pool. Reservations and pods name no pool.
fn concerns(duplicate: &Duplicate, key: Option<&PoolKey>) -> bool {
    let mut pools = duplicate
        .holders
        .iter()
        .filter_map(|holder| match &holder.place {
            Place::Pool(pool) => Some(pool),
            _ => None,
        });
    key.is_some_and(|key| pools.any(|pool| pool == key))
}
