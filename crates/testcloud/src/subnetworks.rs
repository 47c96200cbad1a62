//! Subnets and their secondary ranges: `subnetworks.get` and `subnetworks.patch`.

use std::time::Instant;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::aliases::{Course, cidr};
use crate::error::ApiError;
use crate::instances::fingerprint;
use crate::operations::{Operation, Scope};
use crate::project::{Effect, Planned, Project};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SecondaryRange {
    pub range_name: String,
    /// Empty where an internal range defines it.
    #[serde(default)]
    pub ip_cidr_range: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved_internal_range: Option<String>,
}

#[derive(Clone, Debug)]
pub struct Subnetwork {
    pub id: u64,
    pub region: String,
    pub name: String,
    pub cidr: String,
    pub version: u64,
    pub secondary: Vec<SecondaryRange>,
}

impl Subnetwork {
    pub fn new(id: u64, region: &str, name: &str, cidr: &str) -> Subnetwork {
        Subnetwork {
            id,
            region: region.to_owned(),
            name: name.to_owned(),
            cidr: cidr.to_owned(),
            version: 1,
            secondary: Vec::new(),
        }
    }

    pub fn fingerprint(&self) -> String {
        fingerprint(self.id, self.version)
    }

    pub fn show(&self, project: &str, base: &str) -> Value {
        let parent = format!("{base}/compute/v1/projects/{project}");
        json!({
            "kind": "compute#subnetwork",
            "id": self.id.to_string(),
            "name": self.name,
            "network": format!("{parent}/global/networks/default"),
            "ipCidrRange": self.cidr,
            "gatewayAddress": cidr(&self.cidr).ok().and_then(|net| net.hosts().next()).map(|first| first.to_string()),
            "region": format!("{parent}/regions/{}", self.region),
            "selfLink": format!("{parent}/regions/{}/subnetworks/{}", self.region, self.name),
            "fingerprint": self.fingerprint(),
            "secondaryIpRanges": self.secondary,
        })
    }
}

impl Project {
    pub(crate) fn patch_subnetwork(
        &mut self,
        (region, name): (&str, &str),
        query: &dyn Fn(&str) -> Option<String>,
        body: &Value,
        course: Course,
        now: Instant,
    ) -> Result<Operation, ApiError> {
        self.once(query, course, now, |project| {
            project.planned_patch((region, name), body)
        })
    }

    fn planned_patch(
        &self,
        (region, name): (&str, &str),
        body: &Value,
    ) -> Result<Planned, ApiError> {
        let path = format!("projects/{}/regions/{region}/subnetworks/{name}", self.name);
        let key = (region.to_owned(), name.to_owned());
        let subnet = self.subnetworks.get(&key).cloned();
        let subnet = subnet.ok_or_else(|| ApiError::not_found(&path))?;
        match body["fingerprint"].as_str() {
            None => {
                return Err(ApiError::new(
                    400,
                    "required",
                    "Required field 'resource.fingerprint' not specified",
                ));
            }
            Some(given) if given != subnet.fingerprint() => return Err(ApiError::stale()),
            Some(_) => {}
        }
        let busy = |effect: &Effect| matches!(effect, Effect::SecondaryRanges { region: of, subnet, .. } if of == region && subnet == name);
        if self.is_under_way(busy) {
            let message = format!("The resource '{path}' is not ready");
            return Err(ApiError::new(400, "resourceNotReady", message));
        }
        let list = body.get("secondaryIpRanges").cloned();
        let wanted: Vec<SecondaryRange> = match list {
            None => subnet.secondary.clone(),
            Some(list) => serde_json::from_value(list).map_err(|error| {
                ApiError::invalid(format!(
                    "Invalid value for field 'resource.secondaryIpRanges': {error}"
                ))
            })?,
        };
        let wanted = self.link_internal_ranges(wanted)?;
        self.judge_ranges(&subnet, &wanted)?;
        let effect = Effect::SecondaryRanges {
            region: region.to_owned(),
            subnet: name.to_owned(),
            ranges: wanted,
        };
        Ok(Planned {
            scope: Scope::Region(region.to_owned()),
            kind: "patch",
            target: format!("regions/{region}/subnetworks/{name}"),
            effect,
            error: None,
            response: None,
        })
    }

    /// A range that names an internal range has its CIDR.
    fn link_internal_ranges(
        &self,
        wanted: Vec<SecondaryRange>,
    ) -> Result<Vec<SecondaryRange>, ApiError> {
        let mut linked = Vec::new();
        for mut range in wanted {
            if let Some(link) = &range.reserved_internal_range {
                let name = link.rsplit('/').next().unwrap_or_default();
                let known = self.ranges.get(name);
                let known = known.ok_or_else(|| ApiError::not_found(link))?;
                if range.ip_cidr_range.is_empty() {
                    range.ip_cidr_range.clone_from(&known.cidr);
                }
                if range.ip_cidr_range != known.cidr {
                    let message = format!(
                        "The range '{}' differs from the internal range '{}'.",
                        range.ip_cidr_range, known.cidr
                    );
                    return Err(ApiError::invalid(message));
                }
            }
            linked.push(range);
        }
        Ok(linked)
    }

    fn judge_ranges(&self, subnet: &Subnetwork, wanted: &[SecondaryRange]) -> Result<(), ApiError> {
        let removed: Vec<&SecondaryRange> = subnet
            .secondary
            .iter()
            .filter(|range| !wanted.contains(range))
            .collect();
        let added: Vec<&SecondaryRange> = wanted
            .iter()
            .filter(|range| !subnet.secondary.contains(range))
            .collect();
        if !removed.is_empty() && !added.is_empty() {
            let message = "Invalid value for field 'resource.secondaryIpRanges': ''. Cannot simultaneously add and remove secondary ranges.";
            return Err(ApiError::invalid(message));
        }
        if wanted.len() > self.limits.secondary_ranges_per_subnet {
            return Err(ApiError::invalid("Too many secondary ranges."));
        }
        for range in removed {
            if let Some(user) = self.user_of_range(subnet, &range.range_name) {
                let message = format!(
                    "The secondary range '{}' is already being used by '{user}'",
                    range.range_name
                );
                return Err(ApiError::new(
                    400,
                    "resourceInUseByAnotherResource",
                    message,
                ));
            }
        }
        for range in added {
            let net = cidr(&range.ip_cidr_range)?;
            let mut names = wanted
                .iter()
                .filter(|other| other.range_name == range.range_name);
            if names.nth(1).is_some() {
                return Err(ApiError::invalid(format!(
                    "Duplicate secondary range name '{}'.",
                    range.range_name
                )));
            }
            if let Some(taken) = self.network_of(net, Some(range)) {
                let message = format!(
                    "Invalid IPCidrRange: {net} conflicts with existing subnetwork range {taken}."
                );
                return Err(ApiError::invalid(message));
            }
        }
        Ok(())
    }

    fn user_of_range(&self, subnet: &Subnetwork, range: &str) -> Option<String> {
        let mut instances = self.instances.values();
        let user = instances.find(|instance| {
            let mut aliases = instance.aliases.iter();
            instance.region == subnet.region
                && instance.subnet == subnet.name
                && aliases.any(|alias| alias.subnetwork_range_name.as_deref() == Some(range))
        });
        user.map(crate::Instance::path)
    }

    /// A range of the network that overlaps `net`, other than `apart`.
    pub(crate) fn network_of(
        &self,
        net: ipnet::Ipv4Net,
        apart: Option<&SecondaryRange>,
    ) -> Option<String> {
        let mut texts = Vec::new();
        for subnet in self.subnetworks.values() {
            texts.push(subnet.cidr.clone());
            let others = subnet
                .secondary
                .iter()
                .filter(|range| Some(*range) != apart);
            texts.extend(others.map(|range| range.ip_cidr_range.clone()));
        }
        let overlaps = |text: &String| {
            cidr(text).is_ok_and(|other| other.contains(&net) || net.contains(&other))
        };
        texts.into_iter().find(overlaps)
    }
}
