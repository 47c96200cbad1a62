//! What a NodeNetworkConfigurationEnactment says of pools, both ways.
//!
//! The claims of an enactment stand in its `status.ippool`, as in the proposal, and a second time in an annotation: the status updates of
//! kubernetes-nmstate are typed and drop fields that they do not know; metadata survives them. Either of them is enough to rebuild a pool.

use std::collections::BTreeMap;

use berth_core::Address;
use serde_json::{Map, Value, json};
use thiserror::Error;

/// Where the claims stand a second time.
pub const ANNOTATION: &str = "berth.dev/ippool";

/// The most claims that are read of one enactment.
const MOST: usize = 256;

/// A name that no enactment can have.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "{what} `{name}` has {length} characters; enactments are labelled with it, and a label takes at most 63"
)]
pub struct NameTooLong {
    pub what: &'static str,
    pub name: String,
    pub length: usize,
}

/// The name of the enactment of a policy on a node: `<node>.<policy>`.
pub fn name(node: &str, policy: &str) -> Result<String, NameTooLong> {
    for (what, name) in [("node", node), ("policy", policy)] {
        if name.len() > 63 {
            return Err(NameTooLong {
                what,
                name: name.to_owned(),
                length: name.len(),
            });
        }
    }
    Ok(format!("{node}.{policy}"))
}

/// The addresses that an enactment claims: pool -> capture -> address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claims {
    pools: BTreeMap<String, BTreeMap<String, Address>>,
    /// Addresses whose capture is not named, as in the proposal's own example.
    unnamed: BTreeMap<String, Vec<Address>>,
}

impl Claims {
    /// Reads an enactment: its status, and what only its annotation has. What can't be read is named.
    pub fn read(enactment: &Value) -> (Claims, Vec<String>) {
        let mut claims = Claims::default();
        let mut faults = Vec::new();
        if let Some(ippool) = enactment.pointer("/status/ippool") {
            let captured = enactment.pointer("/status/capturedStates");
            claims.take(ippool, captured, "status.ippool", &mut faults);
        }
        let annotation = enactment
            .pointer("/metadata/annotations")
            .and_then(|all| all.get(ANNOTATION));
        if let Some(text) = annotation.and_then(Value::as_str) {
            match serde_json::from_str::<Value>(text) {
                Ok(ippool) => claims.take(&ippool, None, ANNOTATION, &mut faults),
                Err(error) => faults.push(format!("annotation {ANNOTATION}: {error}")),
            }
        }
        (claims, faults)
    }

    fn take(
        &mut self,
        ippool: &Value,
        captured: Option<&Value>,
        field: &str,
        faults: &mut Vec<String>,
    ) {
        let Some(pools) = ippool.as_object() else {
            faults.push(format!("{field}: `{ippool}` is no map of pools"));
            return;
        };
        for (pool, entry) in pools.iter().take(MOST) {
            let named = entry.get("captures").and_then(Value::as_object);
            for (capture, text) in named.into_iter().flatten().take(MOST) {
                match text.as_str().and_then(|text| text.parse().ok()) {
                    Some(address) => self.add_unless_known(pool, capture, address),
                    None => faults.push(format!(
                        "{field}.{pool}.captures.{capture}: `{text}` is no address"
                    )),
                }
            }
            let listed = entry.get("allocated").and_then(Value::as_array);
            for text in listed.into_iter().flatten().take(MOST) {
                let Some(address) = text.as_str().and_then(|text| text.parse().ok()) else {
                    faults.push(format!("{field}.{pool}.allocated: `{text}` is no address"));
                    continue;
                };
                self.take_listed(pool, address, captured);
            }
        }
    }

    /// An address of the list: that of a capture which says so, or of none that is known.
    fn take_listed(&mut self, pool: &str, address: Address, captured: Option<&Value>) {
        let known = self.of_pool(pool).any(|(_, known)| known == address);
        if known {
            return;
        }
        let text = address.to_string();
        let states = captured.and_then(Value::as_object).into_iter().flatten();
        let mut of_capture = states.filter(|(_, captured)| {
            let ip = captured.pointer("/state/ip").or_else(|| captured.get("ip"));
            ip.and_then(Value::as_str) == Some(text.as_str())
        });
        match of_capture.next() {
            Some((capture, _)) => self.add_unless_known(pool, capture, address),
            None => self
                .unnamed
                .entry(pool.to_owned())
                .or_default()
                .push(address),
        }
    }

    fn add_unless_known(&mut self, pool: &str, capture: &str, address: Address) {
        let captures = self.pools.entry(pool.to_owned()).or_default();
        captures.entry(capture.to_owned()).or_insert(address);
        if let Some(unnamed) = self.unnamed.get_mut(pool) {
            unnamed.retain(|other| *other != address);
        }
    }

    pub fn set(&mut self, pool: &str, capture: &str, address: Address) {
        let captures = self.pools.entry(pool.to_owned()).or_default();
        captures.insert(capture.to_owned(), address);
    }

    /// The address that a capture has of a pool. One whose capture is not named is that of the only capture that has none.
    pub fn address(&self, pool: &str, capture: &str) -> Option<Address> {
        let named = self
            .pools
            .get(pool)
            .and_then(|captures| captures.get(capture));
        let unnamed = || self.unnamed.get(pool)?.first();
        named.or_else(unnamed).copied()
    }

    /// The captures and addresses of one pool; a capture that is not named is empty.
    pub fn of_pool(&self, pool: &str) -> impl Iterator<Item = (&str, Address)> {
        let named = self.pools.get(pool).into_iter().flatten();
        let named = named.map(|(capture, address)| (capture.as_str(), *address));
        let unnamed = self.unnamed.get(pool).into_iter().flatten();
        named.chain(unnamed.map(|address| ("", *address)))
    }

    /// The pools that have an entry.
    pub fn pools(&self) -> impl Iterator<Item = &str> {
        let named = self.pools.keys().chain(self.unnamed.keys());
        let names: std::collections::BTreeSet<&str> = named.map(String::as_str).collect();
        names.into_iter()
    }

    /// All addresses, of whichever pool.
    pub fn addresses(&self) -> impl Iterator<Item = Address> {
        let named = self.pools.values().flat_map(|captures| captures.values());
        named.chain(self.unnamed.values().flatten()).copied()
    }

    pub fn is_empty(&self) -> bool {
        self.pools.is_empty() && self.unnamed.is_empty()
    }

    /// `status.ippool`: the proposal's list of addresses for each pool, and beside it whose they are.
    pub fn ippool(&self) -> Value {
        let mut pools = Map::new();
        for (pool, captures) in &self.pools {
            let texts: BTreeMap<&str, String> = captures
                .iter()
                .map(|(capture, address)| (capture.as_str(), address.to_string()))
                .collect();
            let allocated: Vec<&String> = texts.values().collect();
            pools.insert(
                pool.clone(),
                json!({ "allocated": allocated, "captures": texts }),
            );
        }
        Value::Object(pools)
    }

    /// The value of [`ANNOTATION`].
    pub fn annotation(&self) -> String {
        self.ippool().to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Address {
        text.parse().unwrap()
    }

    fn proposal() -> Value {
        json!({
            "capturedStates": {
                "address-from-traffic-1": { "ip": "10.10.10.8", "prefix-length": 24 },
                "address-from-traffic-2": { "state": { "ip": "10.10.11.9", "prefix-length": 24 } },
            },
            "ippool": { "traffic-1": { "allocated": ["10.10.10.8"] }, "traffic-2": { "allocated": ["10.10.11.9"] } },
        })
    }

    #[test]
    fn the_proposals_enactment_is_read() {
        let (claims, faults) = Claims::read(&json!({ "status": proposal() }));
        assert_eq!(faults, Vec::<String>::new());
        assert_eq!(
            claims.address("traffic-1", "address-from-traffic-1"),
            Some(at("10.10.10.8"))
        );
        assert_eq!(
            claims.address("traffic-2", "address-from-traffic-2"),
            Some(at("10.10.11.9"))
        );
        assert_eq!(
            claims.ippool()["traffic-1"]["allocated"],
            json!(["10.10.10.8"])
        );
    }

    #[test]
    fn the_annotation_keeps_what_the_status_lost() {
        let (whole, _) = Claims::read(&json!({ "status": proposal() }));
        let metadata = json!({ "annotations": { ANNOTATION: whole.annotation() } });
        let (read, faults) = Claims::read(&json!({ "metadata": metadata, "status": {} }));
        assert_eq!((read, faults), (whole.clone(), Vec::new()));
        let (both, _) = Claims::read(&json!({ "metadata": metadata, "status": proposal() }));
        assert_eq!(both, whole);
    }

    #[test]
    fn what_can_not_be_read_is_named_and_the_others_count() {
        let enactment = json!({
            "metadata": { "annotations": { ANNOTATION: "{" } },
            "status": { "ippool": { "a": { "allocated": ["10.0.0.300", "10.0.0.3"] }, "b": { "captures": { "x": 7 } } } },
        });
        let (claims, faults) = Claims::read(&enactment);
        assert_eq!(claims.address("a", "any"), Some(at("10.0.0.3")));
        assert_eq!(faults.len(), 3, "{faults:?}");
        assert!(
            faults[0].contains("status.ippool.a.allocated") && faults[0].contains("10.0.0.300")
        );
    }

    #[test]
    fn names_over_63_characters_are_refused() {
        assert_eq!(name("node01", "static-ip").unwrap(), "node01.static-ip");
        let long = "p".repeat(64);
        let error = name("node01", &long).unwrap_err().to_string();
        assert!(
            error.contains("policy") && error.contains("64") && error.contains("63"),
            "{error}"
        );
        assert!(name(&long, "p").is_err());
    }
}
