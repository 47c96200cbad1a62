//! Reserved internal addresses: `addresses.insert`, `get`, `list` and `delete`.

use std::time::Instant;

use serde_json::{Value, json};

use crate::aliases::{Course, cidr};
use crate::error::ApiError;
use crate::operations::{Operation, Scope};
use crate::project::{Effect, Planned, Project};

#[derive(Clone, Debug)]
pub struct Address {
    pub region: String,
    pub name: String,
    pub address: String,
    pub subnet: String,
}

impl Project {
    /// The reserved addresses.
    pub fn reservations(&self) -> Vec<String> {
        let all = self.addresses.values();
        all.map(|reserved| reserved.address.clone()).collect()
    }

    pub(crate) fn show_address(&self, address: &Address, base: &str) -> Value {
        let parent = format!("{base}/compute/v1/projects/{}", self.name);
        let wanted = format!("{}/32", address.address);
        let users: Vec<String> = self
            .instances
            .values()
            .filter(|instance| {
                instance
                    .aliases
                    .iter()
                    .any(|alias| alias.ip_cidr_range == wanted)
            })
            .map(|instance| format!("{parent}/{}", instance.path()))
            .collect();
        let mut value = json!({
            "kind": "compute#address",
            "name": address.name,
            "address": address.address,
            "addressType": "INTERNAL",
            "purpose": "GCE_ENDPOINT",
            "region": format!("{parent}/regions/{}", address.region),
            "subnetwork": format!("{parent}/regions/{}/subnetworks/{}", address.region, address.subnet),
            "selfLink": format!("{parent}/regions/{}/addresses/{}", address.region, address.name),
            "status": if users.is_empty() { "RESERVED" } else { "IN_USE" },
        });
        if !users.is_empty() {
            value["users"] = json!(users);
        }
        value
    }

    pub(crate) fn insert_address(
        &mut self,
        region: &str,
        query: &dyn Fn(&str) -> Option<String>,
        body: &Value,
        course: Course,
        now: Instant,
    ) -> Result<Operation, ApiError> {
        self.once(query, course, now, |project| {
            project.planned_insert(region, body)
        })
    }

    fn planned_insert(&self, region: &str, body: &Value) -> Result<Planned, ApiError> {
        let text = |field: &str| body[field].as_str().unwrap_or_default().to_owned();
        let (name, address) = (text("name"), text("address"));
        if name.is_empty() {
            return Err(ApiError::new(
                400,
                "required",
                "Required field 'resource.name' not specified",
            ));
        }
        if text("addressType") != "INTERNAL" {
            return Err(ApiError::invalid("only INTERNAL addresses are here"));
        }
        let subnet = text("subnetwork")
            .rsplit('/')
            .next()
            .unwrap_or_default()
            .to_owned();
        let key = (region.to_owned(), subnet.clone());
        let known = self.subnetworks.get(&key);
        let known = known.ok_or_else(|| ApiError::not_found(&text("subnetwork")))?;
        let net = cidr(&address)?;
        if !cidr(&known.cidr)?.contains(&net) {
            let message = format!(
                "Invalid value for field 'resource.address': '{address}'. It is not in the subnetwork's primary range."
            );
            return Err(ApiError::invalid(message));
        }
        let path = format!("projects/{}/regions/{region}/addresses/{name}", self.name);
        if self
            .addresses
            .contains_key(&(region.to_owned(), name.clone()))
        {
            let message = format!("The resource '{path}' already exists");
            return Err(ApiError::new(409, "alreadyExists", message));
        }
        let reserved = self
            .addresses
            .values()
            .any(|other| other.address == address);
        let owned = self
            .instances
            .values()
            .any(|instance| instance.address == address);
        if reserved || owned {
            let message = format!(
                "Specified IP address is in-use and would result in a conflict: '{address}'."
            );
            return Err(ApiError::new(400, "invalidResourceUsage", message));
        }
        let effect = Effect::InsertAddress(Address {
            region: region.to_owned(),
            name: name.clone(),
            address,
            subnet,
        });
        Ok(Planned {
            scope: Scope::Region(region.to_owned()),
            kind: "insert",
            target: format!("regions/{region}/addresses/{name}"),
            effect,
            error: None,
            response: None,
        })
    }

    pub(crate) fn delete_address(
        &mut self,
        (region, name): (&str, &str),
        query: &dyn Fn(&str) -> Option<String>,
        course: Course,
        now: Instant,
    ) -> Result<Operation, ApiError> {
        self.once(query, course, now, |project| {
            project.planned_delete((region, name))
        })
    }

    fn planned_delete(&self, (region, name): (&str, &str)) -> Result<Planned, ApiError> {
        let path = format!("projects/{}/regions/{region}/addresses/{name}", self.name);
        let known = self.addresses.get(&(region.to_owned(), name.to_owned()));
        let known = known.ok_or_else(|| ApiError::not_found(&path))?;
        if let Some(user) = self.show_address(known, "")["users"][0].as_str() {
            let message =
                format!("The address resource '{path}' is already being used by '{user}'");
            return Err(ApiError::new(
                400,
                "resourceInUseByAnotherResource",
                message,
            ));
        }
        let effect = Effect::DeleteAddress {
            region: region.to_owned(),
            name: name.to_owned(),
        };
        Ok(Planned {
            scope: Scope::Region(region.to_owned()),
            kind: "delete",
            target: format!("regions/{region}/addresses/{name}"),
            effect,
            error: None,
            response: None,
        })
    }
}
