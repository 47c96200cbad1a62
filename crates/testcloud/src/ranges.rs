//! Internal ranges of the Network Connectivity API: create, get, list, delete.

use std::time::Instant;

use ipnet::Ipv4Net;
use serde_json::{Value, json};

use crate::aliases::{Course, cidr};
use crate::error::ApiError;
use crate::operations::{Operation, Scope};
use crate::project::{Effect, Planned, Project};

#[derive(Clone, Debug)]
pub struct InternalRange {
    pub name: String,
    pub cidr: String,
    pub network: String,
}

impl Project {
    pub(crate) fn show_range(&self, range: &InternalRange) -> Value {
        let name = format!(
            "projects/{}/locations/global/internalRanges/{}",
            self.name, range.name
        );
        let users = self.users_of(&name);
        let mut value = json!({
            "name": name,
            "ipCidrRange": range.cidr,
            "network": range.network,
            "usage": "FOR_VPC",
            "peering": "FOR_SELF",
            "prefixLength": cidr(&range.cidr).map(|net| net.prefix_len()).unwrap_or_default(),
        });
        if !users.is_empty() {
            value["users"] = json!(users);
        }
        value
    }

    fn users_of(&self, range: &str) -> Vec<String> {
        let mut users = Vec::new();
        for subnet in self.subnetworks.values() {
            let mut secondary = subnet.secondary.iter();
            let used = secondary.any(|known| {
                let link = known.reserved_internal_range.as_deref().unwrap_or_default();
                link.ends_with(range)
            });
            if used {
                users.push(format!(
                    "projects/{}/regions/{}/subnetworks/{}",
                    self.name, subnet.region, subnet.name
                ));
            }
        }
        users
    }

    pub(crate) fn create_range(
        &mut self,
        query: &dyn Fn(&str) -> Option<String>,
        body: &Value,
        course: Course,
        now: Instant,
    ) -> Result<Operation, ApiError> {
        self.once(query, course, now, |project| {
            project.planned_range(&query("internalRangeId").unwrap_or_default(), body)
        })
    }

    fn planned_range(&self, name: &str, body: &Value) -> Result<Planned, ApiError> {
        if name.is_empty() {
            return Err(ApiError::invalid("internalRangeId is required"));
        }
        let same =
            |effect: &Effect| matches!(effect, Effect::CreateRange(range) if range.name == name);
        if self.ranges.contains_key(name) || self.is_under_way(same) {
            let message = format!(
                "Resource 'projects/{}/locations/global/internalRanges/{name}' already exists",
                self.name
            );
            return Err(ApiError::new(409, "alreadyExists", message));
        }
        for (field, only) in [("usage", "FOR_VPC"), ("peering", "FOR_SELF")] {
            if body[field].as_str() != Some(only) {
                return Err(ApiError::invalid(format!("{field} must be {only} here")));
            }
        }
        let network = body["network"].as_str().unwrap_or_default();
        if network.is_empty() {
            return Err(ApiError::invalid("network is required"));
        }
        let chosen = match body["ipCidrRange"].as_str().filter(|text| !text.is_empty()) {
            Some(text) => Some(cidr(text)?).filter(|net| self.is_free(*net)),
            None => self.choose(body)?,
        };
        let chosen = chosen.ok_or_else(|| {
            ApiError::new(
                400,
                "failedPrecondition",
                "No free block found in the given target ranges.",
            )
        })?;
        let range = InternalRange {
            name: name.to_owned(),
            cidr: chosen.to_string(),
            network: network.to_owned(),
        };
        let response = self.show_range(&range);
        Ok(Planned {
            scope: Scope::Global,
            kind: "create",
            target: format!("internalRanges/{name}"),
            effect: Effect::CreateRange(range),
            error: None,
            response: Some(response),
        })
    }

    pub(crate) fn delete_range(
        &mut self,
        name: &str,
        query: &dyn Fn(&str) -> Option<String>,
        course: Course,
        now: Instant,
    ) -> Result<Operation, ApiError> {
        self.once(query, course, now, |project| project.planned_release(name))
    }

    fn planned_release(&self, name: &str) -> Result<Planned, ApiError> {
        let path = format!(
            "projects/{}/locations/global/internalRanges/{name}",
            self.name
        );
        let known = self
            .ranges
            .get(name)
            .ok_or_else(|| ApiError::not_found(&path))?;
        if let Some(user) = self.show_range(known)["users"][0].as_str() {
            let message = format!("Internal range '{path}' is used by '{user}'");
            return Err(ApiError::new(400, "failedPrecondition", message));
        }
        Ok(Planned {
            scope: Scope::Global,
            kind: "delete",
            target: format!("internalRanges/{name}"),
            effect: Effect::DeleteRange(name.to_owned()),
            error: None,
            response: None,
        })
    }

    fn choose(&self, body: &Value) -> Result<Option<Ipv4Net>, ApiError> {
        let length = body["prefixLength"]
            .as_u64()
            .and_then(|length| u8::try_from(length).ok());
        let length = length.filter(|length| (1..=32).contains(length));
        let length =
            length.ok_or_else(|| ApiError::invalid("prefixLength or ipCidrRange is required"))?;
        let texts = |field: &str| -> Result<Vec<Ipv4Net>, ApiError> {
            let list = body[field].as_array().cloned().unwrap_or_default();
            list.iter()
                .map(|text| cidr(text.as_str().unwrap_or_default()))
                .collect()
        };
        let mut targets = texts("targetCidrRange")?;
        let excluded = texts("excludeCidrRanges")?;
        if targets.is_empty() {
            targets.push(Ipv4Net::new_assert([10, 0, 0, 0].into(), 8));
        }
        for target in targets {
            let Ok(mut blocks) = target.subnets(length) else {
                continue;
            };
            let apart = |net: &Ipv4Net| {
                excluded
                    .iter()
                    .all(|other| !other.contains(net) && !net.contains(other))
            };
            let found = blocks.find(|net| apart(net) && self.is_free(*net));
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    fn is_free(&self, net: Ipv4Net) -> bool {
        let mut ranges = self
            .ranges
            .values()
            .filter_map(|range| cidr(&range.cidr).ok());
        self.network_of(net, None).is_none()
            && !ranges.any(|other| other.contains(&net) || net.contains(&other))
    }
}
