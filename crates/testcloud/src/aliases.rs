//! `instances.updateNetworkInterface`: the rules of changing a NIC's alias ranges.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::time::Instant;

use ipnet::Ipv4Net;
use serde_json::Value;

use crate::error::ApiError;
use crate::instances::{AliasRange, Instance};
use crate::operations::{Operation, Scope};
use crate::project::{Effect, Planned, Project, Stale};

/// What the request's body may have.
const FIELDS: [&str; 4] = ["fingerprint", "aliasIpRanges", "network", "subnetwork"];

/// A fault for the operation: it fails, or never ends.
#[derive(Clone, Debug, Default)]
pub struct Course {
    pub error: Option<(String, String)>,
    pub endless: bool,
}

impl Project {
    pub(crate) fn update_nic(
        &mut self,
        (zone, name): (&str, &str),
        query: &dyn Fn(&str) -> Option<String>,
        body: &Value,
        course: Course,
        now: Instant,
    ) -> Result<Operation, ApiError> {
        self.once(query, course, now, |project| {
            project.planned_update((zone, name), query, body)
        })
    }

    fn planned_update(
        &self,
        (zone, name): (&str, &str),
        query: &dyn Fn(&str) -> Option<String>,
        body: &Value,
    ) -> Result<Planned, ApiError> {
        let key = (zone.to_owned(), name.to_owned());
        let path = format!("projects/{}/zones/{zone}/instances/{name}", self.name);
        let instance = self.instances.get(&key).cloned();
        let instance = instance.ok_or_else(|| ApiError::not_found(&path))?;
        match query("networkInterface").as_deref() {
            Some("nic0") => {}
            other => {
                let message = format!(
                    "Invalid value for field 'networkInterface': '{}'.",
                    other.unwrap_or_default()
                );
                return Err(ApiError::invalid(message));
            }
        }
        let fields = body
            .as_object()
            .ok_or_else(|| ApiError::invalid("The body is not an object."))?;
        if let Some(other) = fields
            .keys()
            .find(|field| !FIELDS.contains(&field.as_str()))
        {
            let message = format!(
                "Invalid value for field 'resource.{other}'. Updating this field is not supported."
            );
            return Err(ApiError::invalid(message));
        }
        let mut stale = false;
        match body["fingerprint"].as_str() {
            None => {
                let message = "Required field 'resource.fingerprint' not specified";
                return Err(ApiError::new(400, "required", message));
            }
            Some(given) if given != instance.fingerprint() => match self.stale {
                Stale::Answer => return Err(ApiError::stale()),
                Stale::Operation => stale = true,
            },
            Some(_) => {}
        }
        if instance.busy.is_some() {
            let message = format!("The resource '{path}' is not ready");
            return Err(ApiError::new(400, "resourceNotReady", message));
        }
        // An absent list leaves the ranges as they are; an empty one clears them.
        let wanted = match fields.get("aliasIpRanges") {
            None => instance.aliases.clone(),
            Some(list) => parse(list)?,
        };
        let wanted = self.resolve(&instance, wanted)?;
        let error = if stale {
            Some((
                "CONDITION_NOT_MET".to_owned(),
                "Invalid fingerprint.".to_owned(),
                412,
            ))
        } else {
            self.judge(&instance, &wanted)?
        };
        let effect = Effect::Aliases {
            zone: zone.to_owned(),
            instance: name.to_owned(),
            aliases: wanted,
        };
        Ok(Planned {
            scope: Scope::Zone(zone.to_owned()),
            kind: "updateNetworkInterface",
            target: instance.path(),
            error,
            effect,
            response: None,
        })
    }

    /// Writes every range as a CIDR, chooses one where only a mask is given, and sorts them as the API does.
    fn resolve(
        &self,
        instance: &Instance,
        wanted: Vec<AliasRange>,
    ) -> Result<Vec<AliasRange>, ApiError> {
        let mut resolved = Vec::new();
        let mut taken: BTreeSet<Ipv4Addr> = self
            .used_by_others(instance)
            .into_iter()
            .map(|(net, _)| net.addr())
            .collect();
        for alias in wanted {
            let space = self.space(instance, &alias)?;
            let cidr = match alias.ip_cidr_range.strip_prefix('/') {
                Some("32") => {
                    let free = space.hosts().find(|address| taken.insert(*address));
                    let free = free.ok_or_else(|| {
                        ApiError::new(400, "IP_SPACE_EXHAUSTED", "IP space is exhausted.")
                    })?;
                    Ipv4Net::from(free)
                }
                Some(_) => return Err(ApiError::invalid("only the mask /32 is supported here")),
                None => cidr(&alias.ip_cidr_range)?,
            };
            if !space.contains(&cidr) {
                let message = format!(
                    "Invalid value for field 'resource.aliasIpRanges': '{cidr}'. Alias IP range must be within '{space}'."
                );
                return Err(ApiError::invalid(message));
            }
            resolved.push(AliasRange {
                ip_cidr_range: cidr.to_string(),
                ..alias
            });
        }
        resolved.sort_by_key(|alias| {
            cidr(&alias.ip_cidr_range)
                .map(|net| (net.addr(), net.prefix_len()))
                .ok()
        });
        Ok(resolved)
    }

    fn space(&self, instance: &Instance, alias: &AliasRange) -> Result<Ipv4Net, ApiError> {
        let key = (instance.region.clone(), instance.subnet.clone());
        let subnet = self.subnetworks.get(&key);
        let subnet =
            subnet.ok_or_else(|| ApiError::invalid("The NIC's subnetwork does not exist."))?;
        let text = match &alias.subnetwork_range_name {
            None => Some(subnet.cidr.as_str()),
            Some(name) => {
                let mut ranges = subnet.secondary.iter();
                let found = ranges.find(|range| &range.range_name == name);
                found.map(|range| range.ip_cidr_range.as_str())
            }
        };
        let missing =
            || ApiError::invalid("The specified subnetwork secondary range does not exist.");
        cidr(text.ok_or_else(missing)?)
    }

    /// What other NICs use or are about to use, with who uses it.
    fn used_by_others(&self, instance: &Instance) -> Vec<(Ipv4Net, String)> {
        let mut used = Vec::new();
        let mut note = |alias: &AliasRange, path: &str| {
            if let Ok(net) = cidr(&alias.ip_cidr_range) {
                used.push((net, path.to_owned()));
            }
        };
        for other in self
            .instances
            .values()
            .filter(|other| other.path() != instance.path())
        {
            other
                .aliases
                .iter()
                .for_each(|alias| note(alias, &other.path()));
            if let Ok(own) = cidr(&other.address) {
                note(
                    &AliasRange {
                        ip_cidr_range: own.to_string(),
                        subnetwork_range_name: None,
                    },
                    &other.path(),
                );
            }
        }
        for operation in self
            .operations
            .values()
            .filter(|operation| operation.error.is_none())
        {
            if let Some(Effect::Aliases { aliases, .. }) = &operation.effect
                && operation.target != instance.path()
            {
                aliases
                    .iter()
                    .for_each(|alias| note(alias, &operation.target));
            }
        }
        used
    }

    /// What the request is refused for at once, or its operation fails with.
    fn judge(
        &self,
        instance: &Instance,
        wanted: &[AliasRange],
    ) -> Result<Option<(String, String, u16)>, ApiError> {
        let before: BTreeSet<&AliasRange> = instance.aliases.iter().collect();
        let after: BTreeSet<&AliasRange> = wanted.iter().collect();
        let added: Vec<&AliasRange> = after.difference(&before).copied().collect();
        if !added.is_empty() && before.difference(&after).next().is_some() {
            let message = "Invalid value for field 'resource.aliasIpRanges': ''. Cannot simultaneously add and remove alias IP ranges.";
            return Err(ApiError::invalid(message));
        }
        if after.len() < wanted.len() {
            return Err(ApiError::invalid(
                "Invalid value for field 'resource.aliasIpRanges': ''. Duplicate alias IP ranges.",
            ));
        }
        if wanted.len() > self.limits.aliases_per_nic {
            let limit = self.limits.aliases_per_nic;
            let message = format!(
                "Invalid value for field 'resource.aliasIpRanges': ''. The number of alias IP ranges of a network interface can't exceed {limit}."
            );
            return Err(ApiError::invalid(message));
        }
        let others = self
            .instances
            .values()
            .filter(|other| other.path() != instance.path());
        let total = others.map(|other| other.aliases.len()).sum::<usize>() + wanted.len();
        if !added.is_empty() && total > self.limits.aliases_per_network {
            let message = format!(
                "Quota 'ALIASES_PER_NETWORK_GLOBAL' exceeded. Limit: {}.0",
                self.limits.aliases_per_network
            );
            return Ok(Some(("QUOTA_EXCEEDED".to_owned(), message, 403)));
        }
        let used = self.used_by_others(instance);
        for alias in added {
            let net = cidr(&alias.ip_cidr_range)?;
            let clash = used
                .iter()
                .find(|(other, _)| other.contains(&net) || net.contains(other));
            if clash.is_some() || self.reserved_for_other(instance, net) {
                let message = format!("IP '{net}' is already being used by another resource.");
                return Ok(Some((
                    "IP_IN_USE_BY_ANOTHER_RESOURCE".to_owned(),
                    message,
                    400,
                )));
            }
        }
        Ok(None)
    }

    /// A reserved internal address that is not of this subnet.
    fn reserved_for_other(&self, instance: &Instance, net: Ipv4Net) -> bool {
        let mut addresses = self.addresses.values();
        addresses.any(|address| {
            address.address == net.addr().to_string()
                && (address.region != instance.region || address.subnet != instance.subnet)
        })
    }
}

fn parse(list: &Value) -> Result<Vec<AliasRange>, ApiError> {
    serde_json::from_value(list.clone()).map_err(|error| {
        ApiError::invalid(format!(
            "Invalid value for field 'resource.aliasIpRanges': {error}"
        ))
    })
}

/// An address counts as a /32.
pub(crate) fn cidr(text: &str) -> Result<Ipv4Net, ApiError> {
    let invalid = || ApiError::invalid(format!("Invalid value for field 'ipCidrRange': '{text}'."));
    match text.parse::<Ipv4Net>() {
        Ok(net) if net.trunc() == net => Ok(net),
        Ok(_) => Err(invalid()),
        Err(_) => text
            .parse::<Ipv4Addr>()
            .map(Ipv4Net::from)
            .map_err(|_| invalid()),
    }
}
