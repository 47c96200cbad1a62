//! The alias list that an update sends; pure.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use berth_attachment::Goal;

use crate::cloud::AliasRange;

/// More than the NIC can have; so many more fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full {
    pub free: usize,
}

/// The alias ranges of a NIC as they were read, and the range that Berth's are of.
#[derive(Clone, Debug)]
pub struct Aliases<'a> {
    pub read: &'a [AliasRange],
    /// None: the subnet's primary range.
    pub range: Option<&'a str>,
    pub limit: usize,
}

impl Aliases<'_> {
    /// The whole list after the change; None if there is nothing to change.
    pub fn after(
        &self,
        goal: Goal,
        addresses: &BTreeSet<Ipv4Addr>,
    ) -> Result<Option<Vec<AliasRange>>, Full> {
        let is_asked = |alias: &AliasRange| {
            self.address(alias)
                .is_some_and(|own| addresses.contains(&own))
        };
        match goal {
            Goal::Absent => {
                let kept: Vec<AliasRange> = self
                    .ordered()
                    .filter(|alias| !is_asked(alias))
                    .cloned()
                    .collect();
                Ok((kept.len() < self.read.len()).then_some(kept))
            }
            Goal::Present => {
                let there: BTreeSet<Ipv4Addr> = self.own().collect();
                let missing: Vec<Ipv4Addr> = addresses.difference(&there).copied().collect();
                if missing.is_empty() {
                    return Ok(None);
                }
                let free = self.limit.saturating_sub(self.read.len());
                if missing.len() > free {
                    return Err(Full { free });
                }
                let added = missing
                    .iter()
                    .map(|address| AliasRange::of(*address, self.range));
                Ok(Some(self.ordered().cloned().chain(added).collect()))
            }
        }
    }

    /// Berth's addresses on the NIC.
    pub fn own(&self) -> impl Iterator<Item = Ipv4Addr> {
        self.read.iter().filter_map(|alias| self.address(alias))
    }

    /// The first alias is Berth's: GCP's node IPAM would take it for the node's pod range.
    pub fn own_is_first(&self) -> bool {
        self.read
            .first()
            .is_some_and(|alias| self.address(alias).is_some())
    }

    /// Foreign ones first, each in the order in which it was read.
    fn ordered(&self) -> impl Iterator<Item = &AliasRange> {
        let is_own = |alias: &&AliasRange| self.address(alias).is_some();
        let foreign = self.read.iter().filter(move |alias| !is_own(alias));
        foreign.chain(self.read.iter().filter(is_own))
    }

    /// The single address of Berth's range that an alias is, if it is one.
    fn address(&self, alias: &AliasRange) -> Option<Ipv4Addr> {
        if alias.range.as_deref() != self.range {
            return None;
        }
        alias
            .cidr
            .strip_suffix("/32")
            .unwrap_or(&alias.cidr)
            .parse()
            .ok()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn alias(cidr: &str, range: &str) -> AliasRange {
        serde_json::from_value(
            json!({ "ipCidrRange": cidr, "subnetworkRangeName": range, "unknown": 7 }),
        )
        .unwrap()
    }

    fn addresses(last: &[u8]) -> BTreeSet<Ipv4Addr> {
        last.iter()
            .map(|last| Ipv4Addr::new(10, 111, 0, *last))
            .collect()
    }

    fn shown(list: &[AliasRange]) -> Vec<&str> {
        list.iter().map(|alias| alias.cidr.as_str()).collect()
    }

    #[test]
    fn foreign_aliases_stay_verbatim_and_first() {
        let read = [
            alias("10.111.0.2/32", "live"),
            alias("10.200.0.0/24", "pods"),
            alias("10.111.9.0/28", "live"),
        ];
        let aliases = Aliases {
            read: &read,
            range: Some("live"),
            limit: 150,
        };
        assert!(aliases.own_is_first());
        let list = aliases
            .after(Goal::Present, &addresses(&[2, 3]))
            .unwrap()
            .unwrap();
        assert_eq!(
            shown(&list),
            [
                "10.200.0.0/24",
                "10.111.9.0/28",
                "10.111.0.2/32",
                "10.111.0.3/32"
            ]
        );
        assert_eq!(list[0], read[1]);
        assert_eq!(list[2], read[0], "its unknown fields too");
    }

    #[test]
    fn an_empty_list_is_a_list_and_no_change_is_none() {
        let read = [alias("10.111.0.2/32", "live")];
        let aliases = Aliases {
            read: &read,
            range: Some("live"),
            limit: 150,
        };
        assert_eq!(
            aliases.after(Goal::Absent, &addresses(&[2])).unwrap(),
            Some(Vec::new())
        );
        assert_eq!(aliases.after(Goal::Absent, &addresses(&[3])).unwrap(), None);
        assert_eq!(
            aliases.after(Goal::Present, &addresses(&[2])).unwrap(),
            None
        );
        // The same address in another range is foreign.
        let other = Aliases {
            read: &read,
            range: Some("other"),
            limit: 150,
        };
        assert_eq!(other.after(Goal::Absent, &addresses(&[2])).unwrap(), None);
    }

    #[test]
    fn the_limit_of_the_nic_counts_foreign_aliases() {
        let read = [alias("10.200.0.0/24", "pods")];
        let aliases = Aliases {
            read: &read,
            range: Some("live"),
            limit: 3,
        };
        assert_eq!(
            aliases.after(Goal::Present, &addresses(&[2, 3, 4])),
            Err(Full { free: 2 })
        );
        assert!(
            aliases
                .after(Goal::Present, &addresses(&[2, 3]))
                .unwrap()
                .is_some()
        );
    }
}
