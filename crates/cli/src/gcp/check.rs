//! `berth gcp check`: compares IPPools, alias ranges and pods; reports limits that are nearly reached, and local routes
//! of this machine.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use berth_gcp::check::{self, Observed, ObservedPool, Problem, Severity};
use berth_gcp::pool;
use berth_gcp::pool::pages::page_of;
use berth_gcp::provision::SubnetPath;
use berth_gcp::provision::executor::PoolsError;
use clap::Args;
use serde::Serialize;
use serde_json::Value;

use super::cloud::CloudArgs;
use super::nodes;
use super::objects::{Lists, PoolObjects};
use crate::exit::Negative;
use crate::output::{self, Format, Row};
use crate::store::StoreArgs;

/// The kernel's trie of a node is some KB; with a full routing table some MB.
const MAX_TRIE: u64 = 64 << 20;

#[derive(Debug, Args)]
pub struct Check {
    /// Only this IPPool; can be repeated.
    #[arg(long, value_name = "NAME")]
    pool: Vec<String>,
    /// The kernel's file with the routes of the host.
    #[arg(
        long,
        value_name = "FILE",
        default_value = "/proc/net/fib_trie",
        hide = true
    )]
    routes: PathBuf,
    #[command(flatten)]
    cloud: CloudArgs,
}

/// One problem, for people and programs.
#[derive(Serialize)]
struct Finding {
    severity: Severity,
    code: &'static str,
    object: String,
    finding: String,
    remedy: &'static str,
}

impl Row for Finding {
    const COLUMNS: &'static [&'static str] = &["severity", "object", "finding", "remedy"];

    fn cells(&self) -> Vec<String> {
        let severity = match self.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        vec![
            severity.to_owned(),
            self.object.clone(),
            self.finding.clone(),
            self.remedy.to_owned(),
        ]
    }
}

impl Check {
    pub async fn run(self, store: &StoreArgs, output: Format) -> anyhow::Result<()> {
        let connection = store.required_cluster().await?;
        let (objects, lists) = (PoolObjects::new(&connection), Lists::new(&connection));
        let before = self.pools(&objects).await?;
        if before.is_empty() {
            bail!(Negative::NotFound(
                "there is no IPPool: run `berth gcp provision` first".to_owned()
            ));
        }
        let mut observed = Observed {
            nodes: nodes::observe(&lists, &self.cloud).await?,
            pods: lists.pods().await.context("list the pods")?,
            local: local_addresses(&self.routes)?,
            ..Observed::default()
        };
        // Read again: what changed meanwhile is in progress, and not reported.
        let after = self.pools(&objects).await?;
        let changed = changed(&before, &after);
        observed.pools = self.with_subnets(after).await?;
        let mut findings: Vec<Finding> = check::problems(&observed)
            .into_iter()
            .filter(|(_, problem)| problem.address().is_none_or(|it| !changed.contains(&it)))
            .map(|(object, problem)| Finding::of(object, &problem))
            .collect();
        findings.sort_by_key(|finding| finding.severity);
        output::note(&format!(
            "compared {} IPPools, {} nodes and {} pods",
            observed.pools.len(),
            observed.nodes.len(),
            observed.pods.len()
        ));
        output::print(output, &findings)?;
        let errors = findings
            .iter()
            .filter(|one| one.severity == Severity::Error);
        match errors.count() {
            0 => Ok(()),
            count => bail!(Negative::Broken(format!("{count} errors were found"))),
        }
    }

    /// The selected IPPools, by name, as objects.
    async fn pools(&self, objects: &PoolObjects) -> anyhow::Result<BTreeMap<String, Value>> {
        let mut found = BTreeMap::new();
        let keep = |object: Value| {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            let page_of = page_of(&object).ok().flatten();
            let pool = page_of.map_or_else(|| name.to_owned(), |page_of| page_of.pool);
            if self.pool.is_empty() || self.pool.contains(&pool) {
                found.insert(name.to_owned(), object);
            }
        };
        objects.visit(keep).await.map_err(unread)?;
        match self.pool.iter().find(|name| !found.contains_key(*name)) {
            Some(name) => bail!(Negative::NotFound(format!("there is no IPPool {name}"))),
            None => Ok(found),
        }
    }

    async fn with_subnets(
        &self,
        objects: BTreeMap<String, Value>,
    ) -> anyhow::Result<Vec<ObservedPool>> {
        let mut pools = Vec::new();
        let mut decoded = BTreeMap::new();
        for (name, object) in objects {
            let read = pool::decode(&object);
            let read = read.map_err(|error| Negative::Broken(format!("IPPool {name}: {error}")))?;
            decoded.insert(name, (object, read));
        }
        // A page's allocations are its pool's.
        let (parts, whole): (BTreeMap<_, _>, BTreeMap<_, _>) = decoded
            .into_iter()
            .partition(|(_, (_, read))| read.page_of.is_some());
        for (name, (object, mut decoded)) in whole {
            for (_, page) in parts.values() {
                let of = page.page_of.as_ref().map(|page_of| page_of.pool.as_str());
                if of == Some(name.as_str()) {
                    decoded.findings.extend(page.findings.iter().cloned());
                    for (address, record) in page.pool.records() {
                        decoded.pool.restore(address, record.clone());
                    }
                }
            }
            let subnet = match decoded.subnet.parse::<SubnetPath>() {
                Ok(path) => {
                    let client = self.cloud.client(&path.project)?;
                    let read = client.subnetwork(&path.region, &path.name).await;
                    read.map_err(|error| error.to_string())
                }
                Err(error) => Err(format!("spec.subnet: {error}")),
            };
            // An empty name is the primary range; the codec knows it as the default one.
            let primary = object["spec"]["secondaryRangeName"] == "";
            pools.push(ObservedPool {
                range: (!primary).then(|| decoded.range.clone()),
                size: object.to_string().len(),
                pool: decoded,
                name,
                subnet,
            });
        }
        Ok(pools)
    }
}

impl Finding {
    fn of(object: String, problem: &Problem) -> Finding {
        Finding {
            severity: problem.severity(),
            code: problem.code(),
            object,
            finding: problem.to_string(),
            remedy: problem.remedy(),
        }
    }
}

fn unread(error: PoolsError) -> anyhow::Error {
    let text = format!("IPPools: {error}");
    match error {
        PoolsError::Refused(_) => Negative::Broken(text).into(),
        PoolsError::Conflict(_) | PoolsError::Unavailable(_) => Negative::Later(text).into(),
    }
}

/// Addresses whose entries differ between two reads.
fn changed(
    before: &BTreeMap<String, Value>,
    after: &BTreeMap<String, Value>,
) -> BTreeSet<Ipv4Addr> {
    let mut found = BTreeSet::new();
    for name in before.keys().chain(after.keys()) {
        let entries = |read: &BTreeMap<String, Value>| {
            let object = read.get(name).cloned().unwrap_or_default();
            let entries = object["spec"]["allocations"].as_object().cloned();
            entries.unwrap_or_default()
        };
        let (old, new) = (entries(before), entries(after));
        let keys = old.keys().chain(new.keys());
        let differ = keys.filter(|key| old.get(*key) != new.get(*key));
        found.extend(differ.filter_map(|key| key.parse::<Ipv4Addr>().ok()));
    }
    found
}

/// Addresses that this host treats as its own; none if the kernel shows no trie.
fn local_addresses(trie: &Path) -> anyhow::Result<BTreeSet<Ipv4Addr>> {
    let file = match std::fs::File::open(trie) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        Err(error) => return Err(error).with_context(|| format!("read {}", trie.display())),
    };
    let mut text = String::new();
    let read = file.take(MAX_TRIE).read_to_string(&mut text);
    read.with_context(|| format!("read {}", trie.display()))?;
    Ok(check::local_addresses(&text))
}
