//! What is still to be done, from what there is: pure, so that a run that was cut short is resumed by planning again.
//!
//! Everything that would be refused later is refused before the first step, so that nothing is left half done.

use std::fmt;

use ipnet::Ipv4Net;
use thiserror::Error;

use crate::cloud::{InternalRange, SecondaryRange, Subnetwork};

/// What the admin asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The name of the secondary range and of the internal range behind it.
    pub range: String,
    pub prefix_length: u8,
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

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    ReserveInternalRange { name: String, prefix_length: u8 },
    AddSecondaryRange { range: SecondaryRange },
    CreatePool { cidr: String },
    UpdatePool { cidr: String },
    DeletePool,
    RemoveSecondaryRange { name: String },
    ReleaseInternalRange { name: String },
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::ReserveInternalRange {
                name,
                prefix_length,
            } => write!(f, "reserve the internal range {name} (/{prefix_length})"),
            Step::AddSecondaryRange { range } => {
                write!(f, "add the secondary range {} {}", range.name, range.cidr)
            }
            Step::CreatePool { cidr } => write!(f, "create the IPPool with {cidr}"),
            Step::UpdatePool { cidr } => write!(f, "update the IPPool to {cidr}"),
            Step::DeletePool => f.write_str("delete the IPPool"),
            Step::RemoveSecondaryRange { name } => write!(f, "remove the secondary range {name}"),
            Step::ReleaseInternalRange { name } => write!(f, "release the internal range {name}"),
        }
    }
}

/// Why nothing is done.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    #[error(
        "the secondary range '{name}' exists with {found} and without the internal range {name}: choose another name with --range-name"
    )]
    RangeTaken { name: String, found: String },
    #[error("the internal range '{name}' is {found}, which is not a /{wanted}: choose another name with --range-name, or --prefix-length {}", prefix_of(.found))]
    OtherLength {
        name: String,
        found: String,
        wanted: u8,
    },
    #[error(
        "the IPPool has cidr {found} and {allocations} allocations; it can't be changed to {wanted} while pods hold addresses of it"
    )]
    PoolInUse {
        found: String,
        wanted: String,
        allocations: usize,
    },
    #[error("the IPPool has {allocations} allocations: delete their pods first")]
    Allocated { allocations: usize },
    #[error("the IPPool is of the subnet '{found}', not of '{wanted}'")]
    OtherSubnet { found: String, wanted: String },
}

fn prefix_of(cidr: &str) -> String {
    cidr.rsplit('/').next().unwrap_or_default().to_owned()
}

/// The steps that are left, in order. A CIDR that Google has yet to choose is not known before the first step is done.
pub fn plan(wanted: &Wanted, observed: &Observed) -> Result<Vec<Step>, Refusal> {
    let mut secondary = observed.subnetwork.secondary.iter();
    let present = secondary.find(|range| range.name == wanted.range);
    let chosen = observed
        .internal_range
        .as_ref()
        .map(|range| range.cidr.clone());
    if let Some(cidr) = &chosen
        && cidr.parse::<Ipv4Net>().map(|net| net.prefix_len()) != Ok(wanted.prefix_length)
    {
        return Err(Refusal::OtherLength {
            name: wanted.range.clone(),
            found: cidr.clone(),
            wanted: wanted.prefix_length,
        });
    }
    if let Some(present) = present {
        let linked = present
            .internal_range
            .as_ref()
            .zip(observed.internal_range.as_ref());
        if !linked.is_some_and(|(link, range)| link.ends_with(&range.name)) {
            return Err(Refusal::RangeTaken {
                name: wanted.range.clone(),
                found: present.cidr.clone(),
            });
        }
    }
    if let Some(pool) = &observed.pool {
        if pool.subnet != wanted.subnet && pool.allocations > 0 {
            return Err(Refusal::OtherSubnet {
                found: pool.subnet.clone(),
                wanted: wanted.subnet.clone(),
            });
        }
        if pool.allocations > 0 && chosen.as_ref() != Some(&pool.cidr) {
            return Err(Refusal::PoolInUse {
                found: pool.cidr.clone(),
                wanted: chosen.unwrap_or_else(|| format!("a new /{}", wanted.prefix_length)),
                allocations: pool.allocations,
            });
        }
    }
    let Some(cidr) = chosen else {
        return Ok(vec![Step::ReserveInternalRange {
            name: wanted.range.clone(),
            prefix_length: wanted.prefix_length,
        }]);
    };
    let mut steps = Vec::new();
    if present.is_none() {
        steps.push(Step::AddSecondaryRange {
            range: SecondaryRange {
                name: wanted.range.clone(),
                cidr: cidr.clone(),
                internal_range: observed
                    .internal_range
                    .as_ref()
                    .map(|range| range.name.clone()),
                other: serde_json::Map::new(),
            },
        });
    }
    match &observed.pool {
        None => steps.push(Step::CreatePool { cidr }),
        Some(pool)
            if pool.cidr != cidr || pool.range != wanted.range || pool.subnet != wanted.subnet =>
        {
            steps.push(Step::UpdatePool { cidr });
        }
        Some(_) => {}
    }
    Ok(steps)
}

/// The way back, in reverse order.
pub fn plan_undo(wanted: &Wanted, observed: &Observed) -> Result<Vec<Step>, Refusal> {
    let mut steps = Vec::new();
    if let Some(pool) = &observed.pool {
        if pool.allocations > 0 {
            return Err(Refusal::Allocated {
                allocations: pool.allocations,
            });
        }
        steps.push(Step::DeletePool);
    }
    let name = wanted.range.clone();
    let mut secondary = observed.subnetwork.secondary.iter();
    if let Some(present) = secondary.find(|range| range.name == name) {
        let link = present.internal_range.as_deref().unwrap_or_default();
        if !link.ends_with(&format!("/internalRanges/{name}")) {
            return Err(Refusal::RangeTaken {
                name,
                found: present.cidr.clone(),
            });
        }
        steps.push(Step::RemoveSecondaryRange { name: name.clone() });
    }
    if observed.internal_range.is_some() {
        steps.push(Step::ReleaseInternalRange { name });
    }
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: &str = "projects/p/locations/global/internalRanges/live";

    fn wanted() -> Wanted {
        Wanted {
            range: "live".to_owned(),
            prefix_length: 16,
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

    #[test]
    fn each_run_does_what_is_left() {
        let (cidr, linked) = ("10.1.0.0/16", || {
            Some(range("live", "10.1.0.0/16", Some(LINK)))
        });
        let reserve = Step::ReserveInternalRange {
            name: "live".to_owned(),
            prefix_length: 16,
        };
        let create = Step::CreatePool {
            cidr: cidr.to_owned(),
        };
        assert_eq!(
            plan(&wanted(), &observed(None, None, None)),
            Ok(vec![reserve])
        );
        let steps = plan(&wanted(), &observed(Some(cidr), None, None)).unwrap();
        assert!(
            matches!(
                steps.as_slice(),
                [Step::AddSecondaryRange { .. }, Step::CreatePool { .. }]
            ),
            "{steps:?}"
        );
        assert_eq!(
            plan(&wanted(), &observed(Some(cidr), linked(), None)),
            Ok(vec![create])
        );
        assert_eq!(
            plan(&wanted(), &observed(Some(cidr), linked(), Some((cidr, 7)))),
            Ok(vec![])
        );
        let update = Step::UpdatePool {
            cidr: cidr.to_owned(),
        };
        assert_eq!(
            plan(
                &wanted(),
                &observed(Some(cidr), linked(), Some(("10.9.0.0/16", 0)))
            ),
            Ok(vec![update])
        );
    }

    #[test]
    fn what_would_harm_is_refused_before_the_first_step() {
        let foreign = Some(range("live", "10.50.0.0/16", None));
        let refused = plan(&wanted(), &observed(None, foreign.clone(), None)).unwrap_err();
        assert!(refused.to_string().contains("10.50.0.0/16"), "{refused}");
        let refused = plan(&wanted(), &observed(None, None, Some(("10.9.0.0/16", 3)))).unwrap_err();
        assert!(
            matches!(refused, Refusal::PoolInUse { allocations: 3, .. }),
            "{refused}"
        );
        let refused = plan(&wanted(), &observed(Some("10.1.0.0/20"), None, None)).unwrap_err();
        assert!(
            refused.to_string().ends_with("--prefix-length 20"),
            "{refused}"
        );
        let undo = plan_undo(&wanted(), &observed(None, foreign, None)).unwrap_err();
        assert!(matches!(undo, Refusal::RangeTaken { .. }), "{undo}");
    }

    #[test]
    fn the_way_back_is_in_reverse_order() {
        let linked = Some(range("live", "10.1.0.0/16", Some(LINK)));
        let all = observed(Some("10.1.0.0/16"), linked, Some(("10.1.0.0/16", 0)));
        let steps = plan_undo(&wanted(), &all).unwrap();
        let name = || "live".to_owned();
        let expected = [
            Step::DeletePool,
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
        assert_eq!(
            plan_undo(&wanted(), &used),
            Err(Refusal::Allocated { allocations: 1 })
        );
    }
}
