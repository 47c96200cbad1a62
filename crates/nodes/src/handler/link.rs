//! Whether another machine on the link uses an address that is about to be applied.
//!
//! The link is probed before the apply; where it is down until then, under the checkpoint of the apply, which is rolled back if another
//! machine answers. Silence proves nothing: a link that can't be probed does not delay a policy.

use std::fmt;
use std::path::PathBuf;
use std::sync::Once;

use berth_core::Address;
use berth_probe::{Link, ProbeError, User, users};
use serde_json::{Value, json};

use crate::objects;

/// The annotation of an enactment whose address another machine uses: the leader shows it as IPCollision.
const ANNOTATION: &str = "berth.dev/ip-collision";

/// An address that another machine uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InUse {
    pub address: Address,
    /// The interface of this node that it is for.
    pub interface: String,
    /// The hardware address that answered.
    pub mac: String,
}

impl fmt::Display for InUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let InUse {
            address,
            interface,
            mac,
        } = self;
        write!(
            f,
            "{address} is in use on the link of interface {interface} by {mac}; take it off that machine"
        )
    }
}

impl InUse {
    pub fn read(enactment: &Value) -> Option<InUse> {
        let text = objects::annotation(enactment, ANNOTATION)?;
        let value: Value = serde_json::from_str(text).ok()?;
        Some(InUse {
            address: value["address"].as_str()?.parse().ok()?,
            interface: value["interface"].as_str()?.to_owned(),
            mac: value["mac"].as_str()?.to_ascii_lowercase(),
        })
    }

    /// The metadata of an enactment with this, or without any.
    pub fn metadata(found: Option<&InUse>) -> Value {
        let text = found.map(|one| {
            let address = one.address.to_string();
            json!({ "address": address, "interface": one.interface, "mac": one.mac }).to_string()
        });
        json!({ "metadata": { "annotations": { ANNOTATION: text } } })
    }
}

/// Probes each interface for its addresses. Those that could not be probed are returned.
pub async fn probe(
    placed: Vec<(String, Address)>,
    netns: Option<&PathBuf>,
) -> Result<Vec<(String, Address)>, InUse> {
    let mut unprobed = Vec::new();
    let mut interfaces: Vec<&String> = placed.iter().map(|(interface, _)| interface).collect();
    interfaces.sort_unstable();
    interfaces.dedup();
    for interface in interfaces {
        let here = placed.iter().filter(|(name, _)| name == interface);
        let addresses: Vec<Address> = here.map(|(_, address)| *address).collect();
        let link = Link {
            interface: interface.clone(),
            netns: netns.cloned(),
        };
        let found = match users(link, addresses.clone()).await {
            Ok(found) => found,
            Err(error) => {
                report(&error);
                let here = addresses.into_iter();
                unprobed.extend(here.map(|address| (interface.clone(), address)));
                continue;
            }
        };
        for (address, user) in found {
            if let User::Other(mac) = user {
                return Err(InUse {
                    address,
                    interface: interface.clone(),
                    mac: mac.to_string(),
                });
            }
        }
    }
    Ok(unprobed)
}

/// A missing right is logged once, for an administrator; a link that is down or carries no Ethernet is normal.
fn report(error: &ProbeError) {
    static REPORTED: Once = Once::new();
    match error {
        ProbeError::NotAllowed(_) => REPORTED.call_once(|| {
            tracing::warn!(%error, "addresses are applied without a probe of the link");
        }),
        error => tracing::debug!(%error, "a link is not probed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_annotated_is_read() {
        let found = InUse {
            address: "10.0.0.5".parse().unwrap(),
            interface: "eth1".to_owned(),
            mac: "02:00:00:00:00:77".to_owned(),
        };
        let enactment = InUse::metadata(Some(&found));
        assert_eq!(InUse::read(&enactment), Some(found));
        assert_eq!(InUse::read(&InUse::metadata(None)), None);
    }
}
