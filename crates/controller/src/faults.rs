//! Problems of definitions that concern no slices: raised as events, once per change. Pure.

use std::collections::BTreeMap;

use berth_core::Prefix;
use berth_networks::PodNetwork;
use berth_networks::range_policy::Policy;

use crate::networks::{Defined, Problem, reason};

/// How many problems of one definition are reported: it may have thousands.
const MOST: usize = 16;

/// Why the administrator's policy refuses the definition.
pub fn refusal(policy: &Policy, defined: &Defined) -> Option<Problem> {
    let (namespace, _) = defined.key.split_once('/')?;
    let networks = defined.definition.networks.iter();
    let mut networks = networks.filter_map(|network| network.network.as_ref().ok());
    let message = networks.find_map(|network| policy.allow(namespace, network).err())?;
    Some(Problem {
        definition: defined.key.clone(),
        reason: reason::NOT_ALLOWED,
        message,
    })
}

/// What the author of the definition should fix.
pub fn problems(defined: &Defined) -> Vec<Problem> {
    let mut found = Vec::new();
    let read = &defined.definition;
    if let Some(why) = read.unknown.as_ref().filter(|_| read.may_be_ours) {
        found.push((reason::DEFINITION_INVALID, why.clone()));
    }
    for network in &read.networks {
        match &network.network {
            Ok(network) => found.extend(of_network(network)),
            // A sliced network already reports it.
            Err(_) if !network.slice_size.is_empty() => {}
            Err(error) => found.push((reason::DEFINITION_INVALID, error.to_string())),
        }
    }
    let problem = |(reason, message)| Problem {
        definition: defined.key.clone(),
        reason,
        message,
    };
    found.into_iter().take(MOST).map(problem).collect()
}

fn of_network(network: &PodNetwork) -> Vec<(&'static str, String)> {
    let faults = network.faults.iter();
    let faults = faults.map(|fault| (reason::DEFINITION_INVALID, fault.to_string()));
    let unknown = network.unknown_keys.iter();
    let unknown = unknown.map(|key| (reason::UNKNOWN_KEY, key.to_string()));
    let ignored = network.warnings.iter();
    let ignored = ignored.map(|warning| (reason::VALUE_IGNORED, warning.to_string()));
    faults.chain(unknown).chain(ignored).collect()
}

/// A range of one definition.
struct Extent<'a> {
    network_name: &'a str,
    range: Prefix,
    checked: bool,
    definition: &'a str,
}

/// Ranges of one network name that overlap without being equal have separate pools. If one of them has overlap checks
/// off, both may allocate one address.
pub fn overlaps<'a>(definitions: impl IntoIterator<Item = &'a Defined>) -> Vec<Problem> {
    let mut extents: Vec<Extent<'_>> = Vec::new();
    for defined in definitions {
        let networks = defined.definition.networks.iter();
        for network in networks.filter_map(|network| network.network.as_ref().ok()) {
            extents.extend(network.ranges.iter().map(|range| Extent {
                network_name: &network.network_name,
                range: range.spec.prefix,
                checked: network.overlap_checks,
                definition: &defined.key,
            }));
        }
    }
    extents.sort_by_key(|extent| (extent.network_name, extent.range));
    let mut found: BTreeMap<&str, Problem> = BTreeMap::new();
    // Prefixes nest or are disjoint: those that cover the next one are on the stack. One of them is reported.
    let mut open: Vec<&Extent<'_>> = Vec::new();
    for extent in &extents {
        let covers = |one: &&Extent<'_>| {
            one.network_name == extent.network_name && one.range.covers(extent.range)
        };
        while open.last().is_some_and(|last| !covers(last)) {
            open.pop();
        }
        let other = open
            .iter()
            .rev()
            .find(|other| other.range != extent.range && !(other.checked && extent.checked));
        if let Some(other) = other {
            for (one, other) in [(extent, *other), (*other, extent)] {
                let problem = || one.overlaps(other);
                found.entry(one.definition).or_insert_with(problem);
            }
        }
        // One of each range and kind is enough: a pool may have many definitions.
        let known = |one: &&Extent<'_>| one.range == extent.range && one.checked == extent.checked;
        if !open.iter().any(known) {
            open.push(extent);
        }
    }
    found.into_values().collect()
}

impl Extent<'_> {
    fn overlaps(&self, other: &Extent<'_>) -> Problem {
        Problem {
            definition: self.definition.to_owned(),
            reason: reason::OVERLAP,
            message: format!(
                "range {} overlaps {} of {}, and enable_overlapping_ranges is false in one of them: both may allocate the same \
                 address; switch the check on in both, use one range, or set network_names",
                self.range, other.range, other.definition
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn defined(key: &str, ipam: &str) -> Defined {
        Defined {
            key: key.to_owned(),
            uid: String::new(),
            created: String::new(),
            definition: berth_networks::definitions::read("a", &conf(ipam), &[]),
        }
    }

    #[test]
    fn unchecked_ranges_that_overlap_are_reported_on_both() {
        const UNCHECKED: &str = r#","enable_overlapping_ranges":false"#;
        let wide = defined("ns/wide", r#""range":"10.88.1.0/27""#);
        let narrow = defined(
            "ns/narrow",
            &format!(r#""range":"10.88.1.0/28"{UNCHECKED}"#),
        );
        let same = defined("ns/same", &format!(r#""range":"10.88.1.0/28"{UNCHECKED}"#));
        let found = overlaps([&wide, &narrow]);
        let about: Vec<&str> = found.iter().map(|one| one.definition.as_str()).collect();
        assert_eq!(about, ["ns/narrow", "ns/wide"]);
        assert!(
            found[0].message.contains("10.88.1.0/27 of ns/wide"),
            "{found:?}"
        );
        assert_eq!(overlaps([&narrow, &same]), []);
        let checked = defined("ns/checked", r#""range":"10.88.1.0/28""#);
        assert_eq!(overlaps([&wide, &checked]), []);
        let named = format!(r#""range":"10.88.1.0/28","network_name":"blue"{UNCHECKED}"#);
        assert_eq!(overlaps([&wide, &defined("ns/named", &named)]), []);
    }

    fn found(config: &str) -> Vec<(&'static str, String)> {
        let defined = Defined {
            key: "ns/a".to_owned(),
            uid: String::new(),
            created: String::new(),
            definition: berth_networks::definitions::read("a", config, &[]),
        };
        let found = problems(&defined).into_iter();
        found
            .map(|problem| (problem.reason, problem.message))
            .collect()
    }

    fn conf(ipam: &str) -> String {
        format!(
            r#"{{"cniVersion":"0.3.1","name":"cni","type":"macvlan","ipam":{{"type":"whereabouts",{ipam}}}}}"#
        )
    }

    #[test]
    fn typing_errors_and_wrong_bounds_are_reported() {
        for (ipam, reason, words) in [
            (
                r#""rnage":"10.0.0.0/24""#,
                reason::UNKNOWN_KEY,
                ["rnage", "range"],
            ),
            (
                r#""range":"10.0.0.0/24","fast_ipma":true"#,
                reason::UNKNOWN_KEY,
                ["fast_ipma", "fast_ipam"],
            ),
            (
                r#""range":"10.0.0.0/24","range_start":"10.1.0.9""#,
                reason::VALUE_IGNORED,
                ["range_start", "10.1.0.9"],
            ),
            (
                r#""range":"10.0.0.0/24","range_start":"10.0.0.9","range_end":"10.0.0.5""#,
                reason::VALUE_IGNORED,
                ["range_end", "10.0.0.5"],
            ),
            (
                r#""range":"10.0.0.0/24","kubernetes":{"kubeconfig":"/tmp/theirs"}"#,
                reason::VALUE_IGNORED,
                ["kubernetes.kubeconfig", "/tmp/theirs"],
            ),
            (
                r#""range":"10.0.0.0/24","cooldown_seconds":9223372036854775807"#,
                reason::DEFINITION_INVALID,
                ["cooldown_seconds", "86400"],
            ),
            (
                r#""range":"nonsense""#,
                reason::DEFINITION_INVALID,
                ["range", "nonsense"],
            ),
        ] {
            let found = found(&conf(ipam));
            assert_eq!(found.len(), 1, "{ipam}: {found:?}");
            assert_eq!(found[0].0, reason, "{ipam}");
            assert!(
                words.iter().all(|word| found[0].1.contains(word)),
                "{found:?}"
            );
        }
        assert_eq!(found(&conf(r#""range":"10.0.0.0/24""#)), []);
    }

    #[test]
    fn a_definition_that_is_too_long_is_reported_if_it_names_our_plugin() {
        let long = conf(&format!(
            r#""range":"10.0.0.0/24","x":[{}1]"#,
            "1,".repeat(700_000)
        ));
        assert_eq!(found(&long)[0].0, reason::DEFINITION_INVALID);
        assert_eq!(found(&long.replace("whereabouts", "host-local")), []);
    }
}
