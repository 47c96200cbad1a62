//! What is still to be done, from what there is: pure, so that a run that was cut short is resumed by planning again.
//!
//! Everything that would be refused later is refused before the first step, so that nothing is left half done.

use ipnet::Ipv4Net;

use super::step::{Block, Refusal, Step};
use crate::cloud::{InternalRange, Subnetwork};

/// Where a pool's addresses come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Method {
    /// A secondary range of the subnet, linked to an internal range of the same name.
    Secondary { range: String, prefix_length: u8 },
    /// A part of the subnet's primary range; None: all of it. Only the IPPool is made: each address is reserved when it is
    /// allocated.
    Static { cidr: Option<Ipv4Net> },
}

/// What the admin asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub method: Method,
    pub pool: String,
    /// The subnet's path, as the IPPool names it.
    pub subnet: String,
}

/// The IPPool as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolObserved {
    pub cidr: String,
    pub subnet: String,
    pub range: String,
    pub allocations: usize,
}

/// What there is.
#[derive(Clone, Debug)]
pub struct Observed {
    pub internal_range: Option<InternalRange>,
    pub subnetwork: Subnetwork,
    pub pool: Option<PoolObserved>,
}

/// The steps that are left, in order.
pub fn plan(wanted: &Wanted, observed: &Observed) -> Result<Vec<Step>, Refusal> {
    let (mut steps, block) = match &wanted.method {
        Method::Secondary {
            range,
            prefix_length,
        } => plan_ranges(range, *prefix_length, observed)?,
        Method::Static { cidr } => {
            let block = primary_block(*cidr, &observed.subnetwork.cidr)?;
            (Vec::new(), Block::Known(block))
        }
    };
    steps.extend(plan_pool(wanted, observed, block)?);
    Ok(steps)
}

/// Internal and secondary range, and which addresses the pool gets from them.
fn plan_ranges(
    name: &str,
    prefix_length: u8,
    observed: &Observed,
) -> Result<(Vec<Step>, Block), Refusal> {
    let subnet = &observed.subnetwork;
    let present = subnet.secondary.iter().find(|range| range.name == name);
    let Some(internal) = &observed.internal_range else {
        if let Some(present) = present {
            return Err(taken(name, &present.cidr));
        }
        let reserve = Step::ReserveInternalRange {
            name: name.to_owned(),
            prefix_length,
        };
        let block = Block::Chosen(prefix_length);
        let add = Step::AddSecondaryRange {
            name: name.to_owned(),
            block: block.clone(),
        };
        return Ok((vec![reserve, add], block));
    };
    if internal.cidr.parse::<Ipv4Net>().map(|net| net.prefix_len()) != Ok(prefix_length) {
        return Err(Refusal::OtherLength {
            name: name.to_owned(),
            found: internal.cidr.clone(),
            wanted: prefix_length,
        });
    }
    check_users(name, internal, subnet)?;
    let block = Block::Known(internal.cidr.clone());
    match present {
        Some(present)
            if is_linked(present.internal_range.as_deref(), name)
                && present.cidr == internal.cidr =>
        {
            Ok((Vec::new(), block))
        }
        Some(present) => Err(taken(name, &present.cidr)),
        None => {
            let add = Step::AddSecondaryRange {
                name: name.to_owned(),
                block: block.clone(),
            };
            Ok((vec![add], block))
        }
    }
}

/// Internal ranges are the project's: one of this name may serve another cluster.
fn check_users(name: &str, internal: &InternalRange, subnet: &Subnetwork) -> Result<(), Refusal> {
    let elsewhere = |found: &str, wanted: &str| Refusal::RangeElsewhere {
        name: name.to_owned(),
        found: found.to_owned(),
        wanted: wanted.to_owned(),
    };
    if last(&internal.network) != last(&subnet.network) {
        return Err(elsewhere(&internal.network, &subnet.network));
    }
    let own = format!("regions/{}/subnetworks/{}", subnet.region, subnet.name);
    match internal.users.iter().find(|user| !user.ends_with(&own)) {
        Some(user) => Err(elsewhere(user, &own)),
        None => Ok(()),
    }
}

/// By the last segment: Google writes links with the project's name or with its number.
fn is_linked(link: Option<&str>, name: &str) -> bool {
    link.is_some_and(|link| link.ends_with(&format!("/internalRanges/{name}")))
}

fn last(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn taken(name: &str, found: &str) -> Refusal {
    Refusal::RangeTaken {
        name: name.to_owned(),
        found: found.to_owned(),
    }
}

fn primary_block(cidr: Option<Ipv4Net>, primary: &str) -> Result<String, Refusal> {
    let Some(cidr) = cidr else {
        return Ok(primary.to_owned());
    };
    match primary.parse::<Ipv4Net>() {
        Ok(net) if net.contains(&cidr) => Ok(cidr.to_string()),
        _ => Err(Refusal::NotPrimary {
            cidr: cidr.to_string(),
            primary: primary.to_owned(),
        }),
    }
}

fn plan_pool(wanted: &Wanted, observed: &Observed, block: Block) -> Result<Option<Step>, Refusal> {
    let name = wanted.pool.clone();
    let Some(pool) = &observed.pool else {
        return Ok(Some(Step::CreatePool { name, block }));
    };
    let same_block = block == Block::Known(pool.cidr.clone());
    if pool.allocations > 0 && pool.subnet != wanted.subnet {
        return Err(Refusal::OtherSubnet {
            pool: name,
            found: pool.subnet.clone(),
            wanted: wanted.subnet.clone(),
        });
    }
    if pool.allocations > 0 && !same_block {
        return Err(Refusal::PoolInUse {
            pool: name,
            found: pool.cidr.clone(),
            wanted: block.to_string(),
            allocations: pool.allocations,
        });
    }
    let same_range = match &wanted.method {
        Method::Secondary { range, .. } => pool.range == *range,
        Method::Static { .. } => true,
    };
    let done = same_block && same_range && pool.subnet == wanted.subnet;
    Ok((!done).then_some(Step::UpdatePool { name, block }))
}

/// The way back, in reverse order: without the IPPool no address is allocated while the range goes.
pub fn plan_undo(wanted: &Wanted, observed: &Observed) -> Result<Vec<Step>, Refusal> {
    let mut steps = Vec::new();
    if let Some(pool) = &observed.pool {
        let name = wanted.pool.clone();
        if pool.allocations > 0 {
            return Err(Refusal::Allocated {
                pool: name,
                allocations: pool.allocations,
            });
        }
        steps.push(Step::DeletePool { name });
    }
    let Method::Secondary { range: name, .. } = &wanted.method else {
        return Ok(steps);
    };
    let mut secondary = observed.subnetwork.secondary.iter();
    if let Some(present) = secondary.find(|range| range.name == *name) {
        if !is_linked(present.internal_range.as_deref(), name) {
            return Err(taken(name, &present.cidr));
        }
        steps.push(Step::RemoveSecondaryRange { name: name.clone() });
    }
    if let Some(internal) = &observed.internal_range {
        check_users(name, internal, &observed.subnetwork)?;
        steps.push(Step::ReleaseInternalRange { name: name.clone() });
    }
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cloud::SecondaryRange;

    const LINK: &str = "projects/p/locations/global/internalRanges/live";

    fn wanted() -> Wanted {
        Wanted {
            method: Method::Secondary {
                range: "live".to_owned(),
                prefix_length: 16,
            },
            pool: "ippool-nodes".to_owned(),
            subnet: "projects/p/regions/r/subnetworks/nodes".to_owned(),
        }
    }

    fn range(name: &str, cidr: &str, link: Option<&str>) -> SecondaryRange {
        SecondaryRange {
            name: name.to_owned(),
            cidr: cidr.to_owned(),
            internal_range: link.map(str::to_owned),
            other: serde_json::Map::new(),
        }
    }

    fn observed(
        internal: Option<&str>,
        live: Option<SecondaryRange>,
        pool: Option<(&str, usize)>,
    ) -> Observed {
        let mut secondary = vec![range("pods", "10.4.0.0/14", None)];
        secondary.extend(live);
        Observed {
            internal_range: internal.map(|cidr| InternalRange {
                name: LINK.to_owned(),
                cidr: cidr.to_owned(),
                network: "default".to_owned(),
                users: Vec::new(),
            }),
            subnetwork: Subnetwork {
                region: "r".to_owned(),
                name: "nodes".to_owned(),
                network: "default".to_owned(),
                cidr: "10.128.0.0/20".to_owned(),
                fingerprint: "f".to_owned(),
                secondary,
            },
            pool: pool.map(|(cidr, allocations)| PoolObserved {
                cidr: cidr.to_owned(),
                subnet: wanted().subnet,
                range: "live".to_owned(),
                allocations,
            }),
        }
    }

    fn pool_name() -> String {
        wanted().pool
    }

    #[test]
    fn each_run_does_what_is_left() {
        let (cidr, linked) = ("10.1.0.0/16", || {
            Some(range("live", "10.1.0.0/16", Some(LINK)))
        });
        let texts = |observed: &Observed| -> Vec<String> {
            let steps = plan(&wanted(), observed).unwrap();
            steps.iter().map(Step::to_string).collect()
        };
        // A dry run shows every step, though the addresses are Google's to choose.
        assert_eq!(
            texts(&observed(None, None, None)),
            [
                "reserve internal range live (/16)",
                "add secondary range live: the /16 that Google chooses",
                "create IPPool ippool-nodes: the /16 that Google chooses",
            ]
        );
        assert_eq!(
            texts(&observed(Some(cidr), None, None)),
            [
                "add secondary range live: 10.1.0.0/16",
                "create IPPool ippool-nodes: 10.1.0.0/16",
            ]
        );
        assert_eq!(
            texts(&observed(Some(cidr), linked(), None)),
            ["create IPPool ippool-nodes: 10.1.0.0/16"]
        );
        let done = observed(Some(cidr), linked(), Some((cidr, 7)));
        assert_eq!(plan(&wanted(), &done), Ok(vec![]));
        let update = Step::UpdatePool {
            name: pool_name(),
            block: Block::Known(cidr.to_owned()),
        };
        let other = observed(Some(cidr), linked(), Some(("10.9.0.0/16", 0)));
        assert_eq!(plan(&wanted(), &other), Ok(vec![update]));
    }

    #[test]
    fn what_would_harm_is_refused_before_the_first_step() {
        let refused = |observed: &Observed| plan(&wanted(), observed).unwrap_err();
        let foreign = Some(range("live", "10.50.0.0/16", None));
        let text = refused(&observed(None, foreign.clone(), None)).to_string();
        assert!(text.contains("10.50.0.0/16"), "{text}");
        let used = refused(&observed(None, None, Some(("10.9.0.0/16", 3))));
        assert!(matches!(used, Refusal::PoolInUse { allocations: 3, .. }));
        let text = refused(&observed(Some("10.1.0.0/20"), None, None)).to_string();
        assert!(text.ends_with("--prefix-length 20"), "{text}");
        // Linked, but to a range of other addresses.
        let moved = Some(range("live", "10.2.0.0/16", Some(LINK)));
        let text = refused(&observed(Some("10.1.0.0/16"), moved, None)).to_string();
        assert!(text.contains("10.2.0.0/16"), "{text}");
        let undo = plan_undo(&wanted(), &observed(None, foreign, None)).unwrap_err();
        assert!(matches!(undo, Refusal::RangeTaken { .. }), "{undo}");
    }

    #[test]
    fn an_internal_range_of_another_cluster_is_not_taken() {
        let mut other = observed(Some("10.1.0.0/16"), None, None);
        let internal = other.internal_range.as_mut().unwrap();
        internal.network = "projects/p/global/networks/prod".to_owned();
        let refused = plan(&wanted(), &other).unwrap_err();
        assert!(refused.to_string().contains("networks/prod"), "{refused}");
        let mut other = observed(Some("10.1.0.0/16"), None, None);
        let internal = other.internal_range.as_mut().unwrap();
        internal.users = vec!["projects/p/regions/r/subnetworks/second".to_owned()];
        let refused = plan(&wanted(), &other).unwrap_err();
        assert!(refused.to_string().contains("second"), "{refused}");
        let refused = plan_undo(&wanted(), &other).unwrap_err();
        assert!(matches!(refused, Refusal::RangeElsewhere { .. }));
    }

    #[test]
    fn a_static_pool_lies_in_the_primary_range() {
        let of = |cidr: Option<&str>| Wanted {
            method: Method::Static {
                cidr: cidr.map(|cidr| cidr.parse().unwrap()),
            },
            ..wanted()
        };
        let fresh = observed(None, None, None);
        let block = |cidr: &str| Block::Known(cidr.to_owned());
        let create = |cidr: &str| Step::CreatePool {
            name: pool_name(),
            block: block(cidr),
        };
        assert_eq!(plan(&of(None), &fresh), Ok(vec![create("10.128.0.0/20")]));
        let part = "10.128.8.0/21";
        assert_eq!(plan(&of(Some(part)), &fresh), Ok(vec![create(part)]));
        let outside = plan(&of(Some("10.129.0.0/24")), &fresh).unwrap_err();
        assert!(outside.to_string().contains("10.128.0.0/20"), "{outside}");
        let there = observed(None, None, Some((part, 3)));
        assert_eq!(plan(&of(Some(part)), &there), Ok(vec![]));
        assert!(matches!(
            plan(&of(None), &there),
            Err(Refusal::PoolInUse { .. })
        ));
        // Ranges are nothing to its way back.
        let empty = observed(Some("10.1.0.0/16"), None, Some((part, 0)));
        let delete = Step::DeletePool { name: pool_name() };
        assert_eq!(plan_undo(&of(None), &empty), Ok(vec![delete]));
    }

    #[test]
    fn the_way_back_is_in_reverse_order() {
        let linked = Some(range("live", "10.1.0.0/16", Some(LINK)));
        let all = observed(Some("10.1.0.0/16"), linked, Some(("10.1.0.0/16", 0)));
        let steps = plan_undo(&wanted(), &all).unwrap();
        let name = || "live".to_owned();
        let expected = [
            Step::DeletePool { name: pool_name() },
            Step::RemoveSecondaryRange { name: name() },
            Step::ReleaseInternalRange { name: name() },
        ];
        assert_eq!(steps, expected);
        assert_eq!(
            plan_undo(&wanted(), &observed(None, None, None)),
            Ok(vec![])
        );
        let mut used = all;
        used.pool.as_mut().unwrap().allocations = 1;
        let refused = plan_undo(&wanted(), &used);
        assert!(matches!(refused, Err(Refusal::Allocated { .. })));
    }
}
