//! Checks the answers against the objects of the API server, without any code of the engine.

use std::collections::{BTreeMap, HashMap};

use anyhow::{Context, Result, bail};
use berth_core::{Address, Prefix};
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams};
use kube::{Api, Client};
use serde_json::Value;

use crate::figure::progress;

/// One ADD that was answered with an address.
#[derive(Clone, Debug)]
pub struct Allocated {
    pub node: String,
    pub pod: String,
    pub network: String,
    pub address: Address,
}

/// What the objects say about the answers.
#[derive(Debug, Default)]
pub struct Verdict {
    /// Answers whose address another answer of the network also has.
    pub twice: usize,
    /// Answers whose address no claim of that node covers.
    pub unclaimed: usize,
    /// Overlapping claims of a network, although nothing is lent.
    pub overlapping: usize,
    /// Answers that no pool of the API server shows, or shows for another owner.
    pub unpublished: usize,
    /// Published entries that belong to no answer.
    pub unasked: usize,
    pub claims: usize,
}

impl Verdict {
    pub fn faults(&self) -> usize {
        self.twice + self.unclaimed + self.overlapping + self.unpublished + self.unasked
    }
}

pub async fn examine(client: &Client, namespace: &str, allocated: &[Allocated]) -> Result<Verdict> {
    let mut verdict = Verdict::default();
    let mut answers: HashMap<(&str, Address), &Allocated> = HashMap::new();
    for one in allocated {
        if answers.insert((&one.network, one.address), one).is_some() {
            verdict.twice += 1;
        }
    }

    let claims = all(
        client,
        &format!("berth-{namespace}"),
        "coordination.k8s.io/v1",
        "Lease",
    )
    .await?;
    verdict.claims = claims.len();
    let mut holders: BTreeMap<(String, Prefix), String> = BTreeMap::new();
    for claim in &claims {
        let words = claim.metadata.annotations.as_ref();
        let words = words.and_then(|annotations| annotations.get("berth.dev/slice"));
        let words: Value = serde_json::from_str(words.context("a Lease without a slice")?)?;
        let text = |field: &str| words[field].as_str().unwrap_or_default();
        let range: Prefix = text("range").parse().context("a claim's range")?;
        let node = claim.data["spec"]["holderIdentity"].as_str();
        let node = node.unwrap_or_default().to_owned();
        holders.insert((text("network").to_owned(), range), node);
    }
    let mut before: Option<&(String, Prefix)> = None;
    for holder in holders.keys() {
        let meets = |other: &&(String, Prefix)| other.0 == holder.0 && other.1.overlaps(holder.1);
        verdict.overlapping += usize::from(before.as_ref().is_some_and(meets));
        before = Some(holder);
    }
    for one in allocated {
        // Claims are disjoint: the last one that begins at or before the address is the one that may cover it.
        let whole = Prefix::containing(one.address, one.address.family().bits());
        let whole = whole.context("an address as a range")?;
        let at = holders
            .range(..=(one.network.clone(), whole))
            .next_back()
            .filter(|((network, range), node)| {
                *network == one.network && range.contains(one.address) && **node == one.node
            });
        verdict.unclaimed += usize::from(at.is_none());
    }

    let mut published = 0;
    for pool in all(
        client,
        namespace,
        "whereabouts.cni.cncf.io/v1alpha1",
        "IPPool",
    )
    .await?
    {
        let range: Prefix = pool.data["spec"]["range"]
            .as_str()
            .unwrap_or_default()
            .parse()
            .context("a pool's range")?;
        let name = pool.metadata.name.unwrap_or_default();
        let Some(entries) = pool.data["spec"]["allocations"].as_object() else {
            continue;
        };
        for (offset, entry) in entries {
            let address = range.network().plus(offset.parse()?);
            let address = address.with_context(|| format!("{name}: offset {offset}"))?;
            let podref = entry["podref"].as_str().unwrap_or_default();
            let network = name.split("-node-").next().unwrap_or_default();
            match answers.get(&(network, address)) {
                Some(one) if podref == format!("default/{}", one.pod) => published += 1,
                _ => verdict.unasked += 1,
            }
        }
    }
    verdict.unpublished = allocated.len().saturating_sub(published);
    Ok(verdict)
}

/// All objects of a kind, page by page.
async fn all(
    client: &Client,
    namespace: &str,
    api_version: &str,
    kind: &str,
) -> Result<Vec<DynamicObject>> {
    let (group, version) = api_version.split_once('/').context("a group")?;
    let gvk = GroupVersionKind::gvk(group, version, kind);
    let api: Api<DynamicObject> =
        Api::namespaced_with(client.clone(), namespace, &ApiResource::from_gvk(&gvk));
    let mut params = ListParams::default().limit(500);
    let mut all = Vec::new();
    let bar = progress(&format!("every {kind} is read back"), 0);
    loop {
        let page = api.list(&params).await?;
        let more = page.metadata.continue_.filter(|token| !token.is_empty());
        all.extend(page.items);
        bar.set_length(
            all.len() as u64 + page.metadata.remaining_item_count.unwrap_or(0).max(0) as u64,
        );
        bar.set_position(all.len() as u64);
        match more {
            Some(token) => params.continue_token = Some(token),
            None if all.is_empty() => bail!("there is no {kind} in {namespace}"),
            None => break,
        }
    }
    bar.finish_and_clear();
    Ok(all)
}
