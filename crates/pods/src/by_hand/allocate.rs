//! An allocation by hand, out of a network's definition.

use std::path::PathBuf;

use berth_core::{Address, Record};
use berth_ledger::PoolKey;
use serde::Deserialize;

use crate::add;
use crate::config::PodNetwork;
use crate::error::PodError;
use crate::store::Store;
use berth_collector::{QuorumReader, ReadError};
use berth_networks::definitions::{self, DEFINITIONS, DefinitionError};

/// Why a network's definition can't be used.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    #[error("there is no NetworkAttachmentDefinition {0}")]
    Absent(String),
    #[error(transparent)]
    ReadError(#[from] ReadError),
    /// Its author has to mend it.
    #[error("{network}: {source}")]
    Definition {
        network: String,
        source: DefinitionError,
    },
    #[error("{network}: {why}")]
    Unusable { network: String, why: String },
}

#[derive(Deserialize)]
struct Object {
    #[serde(default)]
    spec: Spec,
}

#[derive(Default, Deserialize)]
struct Spec {
    #[serde(default)]
    config: String,
}

/// The network of a NetworkAttachmentDefinition. `flat` is where a node's flat file may be: none, unless the caller names one
/// is meant, for this process may run on any machine.
pub async fn network_of_cluster(
    reader: &QuorumReader,
    namespace: &str,
    name: &str,
    flat: &[PathBuf],
) -> Result<PodNetwork, NetworkError> {
    let found: Option<Object> = reader.get(&DEFINITIONS, namespace, name).await?;
    let full_name = format!("{namespace}/{name}");
    let object = found.ok_or_else(|| NetworkError::Absent(full_name.clone()))?;
    let network = read(&full_name, name, &object.spec.config, flat)?;
    unsliced(&full_name, network)
}

/// The network of a CNI configuration; `flat` as above.
pub fn network_of_text(
    name: &str,
    text: &str,
    in_cluster: bool,
    flat: &[PathBuf],
) -> Result<PodNetwork, NetworkError> {
    let mut network = read(name, name, text, flat)?;
    if in_cluster {
        return unsliced(name, network);
    }
    network.unsliced();
    Ok(network)
}

/// The network, unless only nodes may allocate from it.
fn unsliced(name: &str, network: PodNetwork) -> Result<PodNetwork, NetworkError> {
    if !network.is_sliced() {
        return Ok(network);
    }
    Err(NetworkError::Unusable {
        network: name.to_owned(),
        why: "its range is cut into node slices, whose addresses are allocated by the nodes; \
              list the address under `exclude` in the definition, and no node allocates it"
            .to_owned(),
    })
}

fn read(
    full_name: &str,
    name: &str,
    config: &str,
    flat: &[PathBuf],
) -> Result<PodNetwork, NetworkError> {
    let unusable = |why: &str| NetworkError::Unusable {
        network: full_name.to_owned(),
        why: why.to_owned(),
    };
    let defined = definitions::read(name, config, flat);
    if let Some(why) = &defined.unknown {
        return Err(unusable(why));
    }
    let first = defined.networks.into_iter().next();
    let first =
        first.ok_or_else(|| unusable("its ipam type is neither `berth` nor `whereabouts`"))?;
    let mut network = first.network.map_err(|source| NetworkError::Definition {
        network: full_name.to_owned(),
        source,
    })?;
    // As an ADD of the network is refused.
    if let Some(fault) = network.faults.first() {
        return Err(unusable(&fault.msg));
    }
    // Static addresses are those of the network's pods, and a probe needs a node's link.
    network.addresses.clear();
    network.settings.probe = false;
    if network.ranges.is_empty() {
        return Err(unusable("it has no range to allocate from"));
    }
    Ok(network)
}

/// An address, and the pool that it was allocated from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allocated {
    pub pool: PoolKey,
    pub address: Address,
}

/// Allocates one address of every range for `record`; only `address`, if one is named. All or none, and the same
/// record gets the same addresses again (I3).
pub async fn allocate(
    store: &Store,
    mut network: PodNetwork,
    record: Record,
    address: Option<Address>,
) -> Result<Vec<Allocated>, PodError> {
    if let Some(address) = address {
        // Ranges may share a CIDR: the one that may allocate the address is meant. Of an address that none may allocate,
        // the range of its CIDR says why.
        let named = network.ranges.iter();
        let place = named
            .clone()
            .position(|range| range.space.contains(address))
            .or_else(|| {
                named
                    .clone()
                    .position(|range| range.spec.prefix.contains(address))
            });
        network.ranges = place
            .and_then(|place| network.ranges.get(place).cloned())
            .into_iter()
            .collect();
        let Some(range) = network.ranges.first_mut() else {
            let why = format!("no range of network {} contains it", network.name);
            return Err(PodError::Named { address, why });
        };
        range.wanted = Some(address);
    }
    let record = record.with(crate::attachment::attribute::NETWORK, &network.name);
    add::allocate(store, &network, record).await
}
