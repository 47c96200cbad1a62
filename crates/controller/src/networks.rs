//! What the definitions of a cluster request: which ranges should be cut, and which can't be. Pure.
//!
//! A definition that can't be served is one problem, with the field, its value and what would be right; the others
//! continue.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::names;
use berth_core::slice::Cut;
use berth_core::{Prefix, Space};
use berth_networks::PodNetwork;
use berth_networks::definitions::{DefinedNetwork, Definition};

/// A definition as last seen.
#[derive(Debug)]
pub struct Defined {
    /// `namespace/name`.
    pub key: String,
    pub uid: String,
    /// RFC 3339: if several disagree, the oldest wins.
    pub created: String,
    pub definition: Definition,
}

/// One range that one definition wants to be cut.
#[derive(Clone, Debug)]
pub struct SliceRequest {
    /// The definition, `namespace/name`.
    pub definition: String,
    pub created: String,
    /// `network_name`, which is part of its pools' names.
    pub network: String,
    pub cut: Cut,
    /// The size as written.
    pub size_text: String,
    pub usable: Arc<Space>,
}

/// A problem of a definition.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// `namespace/name`.
    pub definition: String,
    pub reason: &'static str,
    pub message: String,
}

pub mod reason {
    pub const INVALID: &str = "SlicesInvalid";
    pub const MISMATCH: &str = "SlicesMismatch";
    pub const EXHAUSTED: &str = "SlicesExhausted";
    pub const CHANGE_REFUSED: &str = "SlicesChangeRefused";
    pub const CHANGE_PENDING: &str = "SlicesChangePending";
    pub const DELETION_REFUSED: &str = "SlicesDeletionRefused";
    pub const UNREADABLE: &str = "SlicesUnreadable";
    pub const NOT_WRITTEN: &str = "SlicesNotWritten";
    /// The definition is not served.
    pub const DEFINITION_INVALID: &str = "DefinitionInvalid";
    /// An unknown key: usually a typing error.
    pub const UNKNOWN_KEY: &str = "UnknownKey";
    /// A value that is ignored; another one is used.
    pub const VALUE_IGNORED: &str = "ValueIgnored";
    /// Two definitions may allocate one address.
    pub const OVERLAP: &str = "RangesOverlap";
    /// The administrator's RangePolicy does not allow the namespace to use the range.
    pub const NOT_ALLOWED: &str = "RangeNotAllowed";
    /// Reported, but not a problem: on the node and the definitions.
    pub const TAKEN_BACK: &str = "SliceTakenBack";
}

/// Requests by the name of their NodeSlicePool.
#[derive(Debug, Default)]
pub struct SliceRequests {
    pub by_pool: BTreeMap<String, Vec<SliceRequest>>,
    pub problems: Vec<Problem>,
}

impl SliceRequests {
    pub fn of<'a>(definitions: impl IntoIterator<Item = &'a Defined>) -> SliceRequests {
        let mut slice_requests = SliceRequests::default();
        for defined in definitions {
            for network in &defined.definition.networks {
                slice_requests.add(defined, network);
            }
        }
        slice_requests
    }

    fn add(&mut self, defined: &Defined, network: &DefinedNetwork) {
        let mut problem = |message: String| {
            self.problems.push(Problem {
                definition: defined.key.clone(),
                reason: reason::INVALID,
                message,
            });
        };
        if network.slice_size.is_empty() {
            return;
        }
        let read = match &network.network {
            Ok(read) => read,
            Err(error) => return problem(error.to_string()),
        };
        let Some(size) = read.node_slice_size else {
            return;
        };
        let Some(first) = read.ranges.first().map(|range| range.spec.prefix) else {
            let size = &network.slice_size;
            return problem(format!(
                "node_slice_size: {size:?} has no range to cut; set range or ipRanges"
            ));
        };
        let mut cuts: Vec<(Prefix, Result<Cut, String>)> = Vec::new();
        for range in &read.ranges {
            let prefix = range.spec.prefix;
            // Two ranges of one CIDR share one slice.
            if cuts.iter().all(|(known, _)| *known != prefix) {
                cuts.push((prefix, cut(first, prefix, size)));
            }
        }
        for (prefix, cut) in cuts {
            let cut = match cut {
                Ok(cut) => cut,
                Err(message) => {
                    problem(message);
                    continue;
                }
            };
            let usable = usable(read, prefix);
            if usable.is_empty() {
                problem(format!(
                    "range: {prefix} has no address that may be allocated; see exclude, range_start and range_end"
                ));
                continue;
            }
            let slice_request = SliceRequest {
                definition: defined.key.clone(),
                created: defined.created.clone(),
                network: read.network_name.clone(),
                cut,
                size_text: size_text(network, size, cut),
                usable,
            };
            let further = (prefix != first).then_some(prefix);
            let pool = names::slice_pool(&read.network_name, &read.name, further);
            self.by_pool.entry(pool).or_default().push(slice_request);
        }
    }
}

/// The size is a length of the first range's family. A range of the other family gets slices with as many addresses:
/// /26 of IPv4 is /122 of IPv6.
fn cut(first: Prefix, range: Prefix, size: u8) -> Result<Cut, String> {
    let refused = |error: &dyn std::fmt::Display| format!("node_slice_size: {error}");
    if first.family() == range.family() {
        return Cut::new(range, size).map_err(|error| refused(&error));
    }
    let bits = first.family().bits().saturating_sub(size);
    match range.family().bits().checked_sub(bits) {
        Some(size) => Cut::new(range, size).map_err(|error| refused(&error)),
        None => Err(format!(
            "node_slice_size: /{size} of {first} has more addresses than {range}; use a longer prefix"
        )),
    }
}

/// As written, because whereabouts compares the text; generated for a derived size.
fn size_text(network: &DefinedNetwork, size: u8, cut: Cut) -> String {
    if size == cut.size() {
        network.slice_size.clone()
    } else {
        format!("/{}", cut.size())
    }
}

/// Of several ranges of one CIDR, the one with most addresses: a slice may be empty for the smaller one.
fn usable(network: &PodNetwork, prefix: Prefix) -> Arc<Space> {
    let spaces = network.ranges.iter();
    let spaces = spaces.filter(|range| range.spec.prefix == prefix);
    spaces
        .map(|range| Arc::clone(&range.space))
        .max_by_key(|space| space.count())
        .unwrap_or_else(|| Arc::new(Space::list([])))
}

/// The requests that one pool follows, and those that it can't.
#[derive(Debug)]
pub struct Settled<'a> {
    pub network: &'a str,
    pub cut: Cut,
    pub size_text: &'a str,
    pub members: Vec<&'a SliceRequest>,
    pub mismatched: Vec<&'a SliceRequest>,
}

impl Settled<'_> {
    pub fn spaces(&self) -> Vec<&Space> {
        self.members
            .iter()
            .map(|slice_request| slice_request.usable.as_ref())
            .collect()
    }

    /// The requests whose pods may have addresses of slices of the range, as it is or was cut: an agent compares the
    /// range and not the size.
    pub fn sharers(&self, was: Option<Cut>) -> impl Iterator<Item = &SliceRequest> {
        let ranges = [Some(self.cut.range()), was.map(|cut| cut.range())];
        let others = self.mismatched.iter().copied();
        let others = others.filter(move |slice_request| {
            slice_request.network == self.network
                && ranges.contains(&Some(slice_request.cut.range()))
        });
        self.members.iter().copied().chain(others)
    }

    /// Definitions of one network that disagree: reported on each of them, and on the pool.
    pub fn mismatch(&self, pool: &str) -> impl Iterator<Item = Problem> {
        let agreed: Vec<&str> = self
            .members
            .iter()
            .map(|slice_request| slice_request.definition.as_str())
            .collect();
        let agreed = format!(
            "range {} by /{} as {} has it",
            self.cut.range(),
            self.cut.size(),
            agreed.join(", ")
        );
        self.mismatched.iter().map(move |slice_request| Problem {
            definition: slice_request.definition.clone(),
            reason: reason::MISMATCH,
            message: format!(
                "NodeSlicePool {pool}: {} wants range {} by /{} (network_name {:?}), but it is cut from {agreed}; \
                 make them equal, or set another network_name for this network",
                slice_request.definition,
                slice_request.cut.range(),
                slice_request.cut.size(),
                slice_request.network,
            ),
        })
    }
}

/// Of requests that disagree, those of the pool's current cut are followed; else those of the oldest definition.
pub fn settle(slice_requests: &[SliceRequest], current: Option<Cut>) -> Option<Settled<'_>> {
    let agrees = |slice_request: &&SliceRequest| Some(slice_request.cut) == current;
    let oldest = slice_requests
        .iter()
        .min_by_key(|slice_request| (&slice_request.created, &slice_request.definition));
    let current = slice_requests
        .iter()
        .filter(agrees)
        .min_by_key(|slice_request| (&slice_request.created, &slice_request.definition));
    let chosen = current.or(oldest)?;
    let (members, mismatched) = slice_requests.iter().partition(|slice_request| {
        slice_request.cut == chosen.cut && slice_request.network == chosen.network
    });
    Some(Settled {
        network: &chosen.network,
        cut: chosen.cut,
        size_text: &chosen.size_text,
        members,
        mismatched,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_defined(key: &str, created: &str, ipam: &str) -> Defined {
        let (_, name) = key.split_once('/').unwrap();
        let config = format!(
            r#"{{"cniVersion":"0.3.1","name":"cni","type":"macvlan","ipam":{{"type":"whereabouts",{ipam}}}}}"#
        );
        Defined {
            key: key.to_owned(),
            uid: key.to_owned(),
            created: created.to_owned(),
            definition: berth_networks::definitions::read(name, &config, &[]),
        }
    }

    #[test]
    fn each_range_has_a_pool_of_its_own_and_the_first_has_whereabouts_name() {
        let defined = mk_defined(
            "ns/a",
            "1",
            r#""range":"10.0.0.0/16","node_slice_size":"26","network_name":"blue",
               "ipRanges":[{"range":"fd00::/64"},{"range":"10.0.0.0/16","range_start":"10.0.1.0"}]"#,
        );
        let slice_requests = SliceRequests::of([&defined]);
        assert_eq!(slice_requests.problems, []);
        let rows: Vec<String> = slice_requests
            .by_pool
            .iter()
            .map(|(pool, of)| {
                let slice_request = &of[0];
                format!(
                    "{pool}: {} {} {}",
                    slice_request.cut.range(),
                    slice_request.cut.size(),
                    slice_request.size_text
                )
            })
            .collect();
        assert_eq!(
            rows,
            [
                "blue: 10.0.0.0/16 26 26",
                "blue-fd00---64: fd00::/64 122 /122"
            ]
        );
    }

    #[test]
    fn a_range_that_can_not_be_cut_is_reported_with_field_and_value() {
        for (ipam, words) in [
            (
                r#""range":"10.0.0.0/24","node_slice_size":"x""#,
                ["node_slice_size", "\"x\""],
            ),
            (
                r#""range":"10.0.0.0/24","node_slice_size":"/16""#,
                ["node_slice_size", "/16"],
            ),
            (
                r#""range":"nonsense","node_slice_size":"/26""#,
                ["range", "nonsense"],
            ),
            (
                r#""node_slice_size":"/26""#,
                ["node_slice_size", "ipRanges"],
            ),
            (
                r#""range":"10.0.0.0/24","node_slice_size":"/26","exclude":["10.0.0.0/24"]"#,
                ["range", "exclude"],
            ),
            (
                r#""range":"fd00::/64","node_slice_size":"/80","ipRanges":[{"range":"10.0.0.0/8"}]"#,
                ["node_slice_size", "10.0.0.0/8"],
            ),
        ] {
            let slice_requests = SliceRequests::of([&mk_defined("ns/a", "1", ipam)]);
            let [problem] = slice_requests.problems.as_slice() else {
                panic!("{ipam}: {:?}", slice_requests.problems);
            };
            assert!(
                words.iter().all(|word| problem.message.contains(word)),
                "{problem:?}"
            );
        }
        let plain = mk_defined("ns/a", "1", r#""range":"10.0.0.0/24""#);
        let slice_requests = SliceRequests::of([&plain]);
        assert!(slice_requests.by_pool.is_empty() && slice_requests.problems.is_empty());
    }

    #[test]
    fn of_two_that_disagree_the_pool_keeps_its_cut_and_else_the_older_decides() {
        let older = mk_defined(
            "z/a",
            "1",
            r#""range":"10.0.0.0/16","node_slice_size":"26""#,
        );
        let newer = mk_defined(
            "a/b",
            "2",
            r#""range":"10.0.0.0/16","node_slice_size":"/24""#,
        );
        let slice_requests = SliceRequests::of([&newer, &older]);
        let all = &slice_requests.by_pool["cni"];
        let settled = settle(all, None).unwrap();
        assert_eq!((settled.cut.size(), settled.members.len()), (26, 1));
        let reported: Vec<Problem> = settled.mismatch("cni").collect();
        assert_eq!(reported[0].definition, "a/b");
        assert!(reported[0].message.contains("z/a") && reported[0].message.contains("/24"));
        let current = Cut::new("10.0.0.0/16".parse().unwrap(), 24).unwrap();
        assert_eq!(settle(all, Some(current)).unwrap().cut, current);
        assert!(settle(&[], None).is_none());
    }

    /// Their pools would have different names and the same addresses.
    #[test]
    fn a_named_network_does_not_share_with_an_unnamed_one_of_that_cni_name() {
        let unnamed = mk_defined(
            "ns/a",
            "1",
            r#""range":"10.0.0.0/16","node_slice_size":"26""#,
        );
        let named = mk_defined(
            "ns/b",
            "2",
            r#""range":"10.0.0.0/16","node_slice_size":"26","network_name":"cni""#,
        );
        let slice_requests = SliceRequests::of([&unnamed, &named]);
        let settled = settle(&slice_requests.by_pool["cni"], None).unwrap();
        assert_eq!(settled.mismatched.len(), 1);
    }
}
