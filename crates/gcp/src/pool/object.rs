//! IPPools as pools of the object ledger.
//!
//! Guarantees: spec and status are one write; upstream's entries and everything else of the object stay (I7); an annotation of
//! Berth's own that can't be read stops allocation and is left as it is (I5); a commit planned under another cidr is a
//! conflict; a released address cools down (I10).

use berth_core::{Address, Pool, Prefix, Record};
use berth_ledger::PoolKey;
use berth_ledger::kube::{Place, Resource};
use berth_ledger::object::{Codec, Commit, Cooldowns, EncodeError, now};
use serde_json::{Value, json};

use super::codec::{self, Finding, IpPool};
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

/// The codec.
#[derive(Clone, Copy, Debug, Default)]
pub struct IpPools;

fn read(key: &PoolKey, object: &Value) -> Result<(IpPool, Prefix), String> {
    let read = codec::decode(object).map_err(|error| error.to_string())?;
    let unreadable = |finding: &&Finding| matches!(finding, Finding::Attributes(_));
    if let Some(finding) = read.findings.iter().find(unreadable) {
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
    let address = Address::from(std::net::IpAddr::from(read.cidr.network()));
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
        json!([object["metadata"]["uid"], object["spec"]["cidr"]])
    }

    fn network(&self, object: &Value) -> Option<Prefix> {
        network(&codec::decode(object).ok()?)
    }

    fn entry_size(&self, address: Address, record: &Record) -> usize {
        codec::entry_size(address, record)
    }

    fn full_hint(&self) -> &'static str {
        "an IPPool holds some 3,500 allocations; make another pool for another subnet"
    }
}
