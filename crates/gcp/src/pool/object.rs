//! IPPools as pools of the object ledger.
//!
//! Guarantees: spec and status are one write; upstream's entries and everything else of the object stay (I7); an annotation of
//! Berth's own that can't be read stops allocation and is left as it is (I5); a commit planned under another cidr is a
//! conflict; a released address cools down (I10).

use std::net::IpAddr;

use berth_core::{Address, Change, Pool, Prefix, Record};
use berth_kube::{Place, Resource};
use berth_ledger::PoolKey;
use berth_ledger::object::{Codec, Commit, Cooldowns, EncodeError, now};
use serde_json::{Value, json};

use super::codec::{self, IpPool};
use super::pages::{self, PAGES};
use super::{GROUP, KIND, PLURAL, VERSION};

/// Released addresses that wait for their next owner.
pub const COOLDOWNS: &str = "berth.dev/cooldowns";

pub const IP_POOLS: Resource = Resource {
    group: GROUP,
    version: VERSION,
    plural: PLURAL,
    kind: KIND,
    place: Place::Cluster,
};

/// Bytes of an object that are left for moves and for the list of pages.
const CLAIM_MARGIN: usize = 128 * 1024;

/// The codec.
#[derive(Clone, Copy, Debug, Default)]
pub struct IpPools;

fn read(key: &PoolKey, object: &Value) -> Result<(IpPool, Prefix), String> {
    let read = codec::decode(object).map_err(|error| error.to_string())?;
    if let Some(finding) = read.findings.iter().find(|finding| finding.stops_writes()) {
        return Err(finding.to_string());
    }
    let network = network(&read).ok_or("spec.cidr is no range")?;
    if let Some(expected) = key.network.filter(|expected| *expected != network) {
        return Err(format!(
            "spec.cidr is {network}, and was {expected} when its settings were read"
        ));
    }
    Ok((read, network))
}

fn network(read: &IpPool) -> Option<Prefix> {
    let address = Address::from(IpAddr::from(read.cidr.network()));
    Prefix::containing(address, read.cidr.prefix_len())
}

fn cooldowns(object: &Value) -> Cooldowns {
    Cooldowns::read(
        object["metadata"]["annotations"][COOLDOWNS].as_str(),
        COOLDOWNS,
    )
}

impl Codec for IpPools {
    fn resource(&self) -> &'static Resource {
        &IP_POOLS
    }

    fn decode(&self, key: &PoolKey, object: &Value) -> Result<Pool, String> {
        let (read, network) = read(key, object)?;
        let mut pool = read.pool;
        cooldowns(object).restore(network, COOLDOWNS, &mut pool);
        Ok(pool)
    }

    /// An address of a page is not this object's to allocate.
    fn accepts(
        &self,
        _key: &PoolKey,
        object: &Value,
        changes: &[Change],
    ) -> Result<(), EncodeError> {
        let pages = pages::pages_of(object).map_err(EncodeError::Invalid)?;
        let in_page = |change: &Change| match (change, IpAddr::from(change.address())) {
            (Change::Allocate { .. }, IpAddr::V4(address)) => {
                pages::holding(&pages, address).is_some()
            }
            _ => false,
        };
        match changes.iter().any(in_page) {
            true => Err(EncodeError::Moved),
            false => Ok(()),
        }
    }

    fn encode(&self, object: &mut Value, commit: &Commit<'_>) -> Result<(), EncodeError> {
        let (read, network) = read(commit.key, object).map_err(EncodeError::Invalid)?;
        let cooldowns = cooldowns(object);
        let after = cooldowns.after(network, commit.changes, now());
        *object = codec::encode(object, read.cidr, commit.after);
        if let Some(after) = after {
            let annotations = &mut object["metadata"]["annotations"];
            match after.text() {
                Some(text) => annotations[COOLDOWNS] = json!(text),
                None => drop(
                    annotations
                        .as_object_mut()
                        .and_then(|all| all.remove(COOLDOWNS)),
                ),
            }
        }
        Ok(())
    }

    fn guard(&self, object: &Value) -> Value {
        let metadata = &object["metadata"];
        let pages = &metadata["annotations"][PAGES];
        json!([metadata["uid"], object["spec"]["cidr"], pages])
    }

    fn network(&self, object: &Value) -> Option<Prefix> {
        network(&codec::decode(object).ok()?)
    }

    fn entry_size(&self, address: Address, record: &Record) -> usize {
        codec::entry_size(address, record)
    }

    /// What moves or is released must fit where nothing more is allocated.
    fn size_limit_of(&self, changes: &[Change]) -> usize {
        let claims = changes
            .iter()
            .any(|change| matches!(change, Change::Allocate { .. }));
        self.size_limit() - if claims { CLAIM_MARGIN } else { 0 }
    }

    /// A note of who wrote each field of each allocation would be a third of the object.
    fn drops_managed_fields(&self) -> bool {
        true
    }

    fn full_hint(&self) -> &'static str {
        "an IPPool holds some 3,500 allocations, and a page is made for more"
    }
}
