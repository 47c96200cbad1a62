//! Proof that a network's range has no address of another network. Pure.
//!
//! Without the proof, an address may be allocated through two networks, and only a reservation prevents that; with it,
//! an agent that can't reach the API server may continue. A definition whose ranges can't be read prevents the proof.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::names;
use berth_core::Prefix;
use berth_networks::PodNetwork;

use crate::networks::Defined;

/// Where addresses come from: networks of one source never allocate an address twice, those of two sources may.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// The slices of a NodeSlicePool, by its name and the network's.
    Slices(String, String),
    /// A plain pool, by its name.
    Pool(String),
}

/// What is proved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Disjointness {
    proved: BTreeSet<(Source, Prefix)>,
    /// Plain pools of networks whose nodes claim slices by themselves.
    pub elastic: BTreeMap<String, Prefix>,
}

impl Disjointness {
    pub fn slices(&self, pool: &str, network: &str, range: Prefix) -> bool {
        let source = Source::Slices(pool.to_owned(), network.to_owned());
        self.proved.contains(&(source, range))
    }

    /// `unseen_is_apart`: assume that definitions with their configuration on the nodes' disks use other ranges.
    pub fn of<'a>(
        definitions: impl IntoIterator<Item = &'a Defined>,
        unseen_is_apart: bool,
    ) -> Disjointness {
        let mut extents: BTreeSet<(Prefix, Source)> = BTreeSet::new();
        let mut elastic: BTreeMap<String, Prefix> = BTreeMap::new();
        for defined in definitions {
            if defined.definition.unknown.is_some() && !unseen_is_apart {
                return Disjointness::default();
            }
            for network in &defined.definition.networks {
                let Ok(network) = &network.network else {
                    return Disjointness::default();
                };
                extents.extend(extents_of(network));
                if network.fast_ipam && network.node_slice_size.is_none() {
                    for range in &network.ranges {
                        let prefix = range.spec.prefix;
                        let pool = names::pool(&network.network_name, "", prefix);
                        elastic.insert(pool, prefix);
                    }
                }
            }
        }
        let met = meeting(&extents);
        let proved: BTreeSet<(Source, Prefix)> = extents
            .into_iter()
            .filter(|extent| !met.contains(extent))
            .map(|(prefix, source)| (source, prefix))
            .collect();
        elastic.retain(|pool, prefix| proved.contains(&(Source::Pool(pool.clone()), *prefix)));
        Disjointness { proved, elastic }
    }
}

fn extents_of(network: &PodNetwork) -> Vec<(Prefix, Source)> {
    let first = network.ranges.first().map(|range| range.spec.prefix);
    let ranges = network.ranges.iter().map(|range| {
        let prefix = range.spec.prefix;
        let source = match network.node_slice_size {
            Some(_) => {
                let further = (Some(prefix) != first).then_some(prefix);
                let pool = names::slice_pool(&network.network_name, &network.name, further);
                Source::Slices(pool, network.network_name.clone())
            }
            None => Source::Pool(names::pool(&network.network_name, "", prefix)),
        };
        (prefix, source)
    });
    let statics = network.addresses.iter().filter_map(|one| {
        let bits = one.address.family().bits();
        let source = Source::Pool(names::pool(&network.network_name, "", one.network));
        Some((Prefix::containing(one.address, bits)?, source))
    });
    ranges.chain(statics).collect()
}

/// Extents that share an address with one of another source. Prefixes nest or are disjoint, so visiting them in order
/// with a stack of the open ones finds every pair.
fn meeting(extents: &BTreeSet<(Prefix, Source)>) -> BTreeSet<(Prefix, Source)> {
    let mut met = BTreeSet::new();
    let mut open: Vec<&(Prefix, Source)> = Vec::new();
    for extent in extents {
        while open.last().is_some_and(|last| !last.0.covers(extent.0)) {
            open.pop();
        }
        for cover in &open {
            if cover.1 != extent.1 {
                met.insert((*cover).clone());
                met.insert(extent.clone());
            }
        }
        open.push(extent);
    }
    met
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn mk_defined(number: usize, ipam: &str) -> Defined {
        let config = format!(
            r#"{{"cniVersion":"0.3.1","name":"cni{number}","type":"macvlan","ipam":{{"type":"whereabouts",{ipam}}}}}"#
        );
        Defined {
            key: format!("ns/{number}"),
            uid: String::new(),
            created: String::new(),
            definition: berth_networks::definitions::read("nad", &config, &[]),
        }
    }

    fn apart(ipams: &[&str]) -> Disjointness {
        let all: Vec<Defined> = ipams
            .iter()
            .enumerate()
            .map(|(number, ipam)| mk_defined(number, ipam))
            .collect();
        Disjointness::of(&all, false)
    }

    const BLUE: &str = r#""range":"10.0.0.0/16","node_slice_size":"/26","network_name":"blue""#;

    #[test]
    fn one_network_of_several_definitions_overlaps_only_itself() {
        let range: Prefix = "10.0.0.0/16".parse().unwrap();
        let elastic = r#""range":"10.1.0.0/16","fast_ipam":true"#;
        let found = apart(&[BLUE, BLUE, elastic]);
        assert!(found.slices("blue", "blue", range));
        assert_eq!(
            found.elastic,
            BTreeMap::from([("10.1.0.0-16".to_owned(), "10.1.0.0/16".parse().unwrap())])
        );
        for other in [
            r#""range":"10.0.4.0/24""#,
            r#""range":"10.0.0.0/8","network_name":"red""#,
            r#""range":"10.0.0.0/16","node_slice_size":"/26""#,
            r#""addresses":[{"address":"10.0.0.7/24"}]"#,
        ] {
            assert!(
                !apart(&[BLUE, other]).slices("blue", "blue", range),
                "{other}"
            );
        }
    }

    #[test]
    fn an_unreadable_network_leaves_nothing_proved() {
        let range: Prefix = "10.0.0.0/16".parse().unwrap();
        let mut all = vec![mk_defined(0, BLUE), mk_defined(1, "")];
        all[1].definition = berth_networks::definitions::read("nad", "", &[]);
        assert!(!Disjointness::of(&all, false).slices("blue", "blue", range));
        assert!(Disjointness::of(&all, true).slices("blue", "blue", range));
        let broken = apart(&[BLUE, r#""range":"nonsense""#]);
        assert!(!broken.slices("blue", "blue", range));
    }

    proptest! {
        #[test]
        fn meets_are_all_pairs_that_overlap(
            drawn in prop::collection::btree_set((any::<u8>(), 24..32u8, 0..4u8), 0..30),
        ) {
            let extents: BTreeSet<(Prefix, Source)> = drawn
                .into_iter()
                .map(|(host, length, pool)| {
                    let address = format!("10.0.0.{host}/{length}");
                    (address.parse().unwrap(), Source::Pool(pool.to_string()))
                })
                .collect();
            let overlaps = |a: &(Prefix, Source)| {
                extents.iter().any(|b| a.1 != b.1 && a.0.overlaps(b.0))
            };
            let expected: BTreeSet<_> = extents.iter().filter(|a| overlaps(a)).cloned().collect();
            prop_assert_eq!(meeting(&extents), expected);
        }
    }
}
