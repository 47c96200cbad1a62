//! VM instances and the alias ranges of their NICs.

use hyper::Method;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::Cloud;
use super::error::CloudError;
use super::operations::{Operation, OperationScope, escaped};
use super::request_id::RequestId;

/// An alias range as the API keeps it; fields that Berth does not know are sent back as they came (I7).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AliasRange {
    #[serde(rename = "ipCidrRange")]
    pub cidr: String,
    /// None: the subnet's primary range.
    #[serde(
        rename = "subnetworkRangeName",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub range: Option<String>,
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl AliasRange {
    /// A single address of a secondary range, or of the primary one.
    pub fn of(address: std::net::Ipv4Addr, range: Option<&str>) -> AliasRange {
        AliasRange {
            cidr: format!("{address}/32"),
            range: range.map(str::to_owned),
            other: Map::new(),
        }
    }
}

/// A NIC as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nic {
    pub name: String,
    pub fingerprint: String,
    /// The subnet's URL.
    pub subnetwork: String,
    pub aliases: Vec<AliasRange>,
}

/// An instance as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    pub zone: String,
    pub name: String,
    pub nics: Vec<Nic>,
}

impl Instance {
    pub fn nic(&self, name: &str) -> Result<&Nic, CloudError> {
        let found = self.nics.iter().find(|nic| nic.name == name);
        found.ok_or_else(|| {
            CloudError::NotFound(format!(
                "instance {} has no network interface {name}",
                self.name
            ))
        })
    }
}

impl Cloud {
    pub async fn instance(&self, zone: &str, name: &str) -> Result<Instance, CloudError> {
        let path = self.instance_path(zone, name);
        let value = self.read(&path).await?;
        read(zone, name, &value)
    }

    /// Replaces the alias ranges of a NIC. The API refuses a list that both adds and removes.
    pub async fn set_aliases(
        &self,
        (zone, name): (&str, &str),
        (nic, fingerprint): (&str, &str),
        aliases: &[AliasRange],
        request: &RequestId,
    ) -> Result<Operation, CloudError> {
        let path = format!(
            "{}/updateNetworkInterface?networkInterface={}&requestId={request}",
            self.instance_path(zone, name),
            escaped(nic)
        );
        // The list is always there: an absent one leaves the aliases as they are.
        let body = json!({ "fingerprint": fingerprint, "aliasIpRanges": aliases });
        self.change(
            Method::PATCH,
            &path,
            Some(&body),
            OperationScope::Zone(zone.to_owned()),
        )
        .await
    }

    fn instance_path(&self, zone: &str, name: &str) -> String {
        format!(
            "projects/{}/zones/{}/instances/{}",
            escaped(&self.project),
            escaped(zone),
            escaped(name)
        )
    }
}

fn read(zone: &str, name: &str, value: &Value) -> Result<Instance, CloudError> {
    let unreadable =
        |what: &str| CloudError::Unavailable(format!("instance {name}: {what} can't be read"));
    let list = value["networkInterfaces"]
        .as_array()
        .ok_or_else(|| unreadable("networkInterfaces"))?;
    let mut nics = Vec::new();
    for nic in list {
        let text = |field: &str| {
            nic[field]
                .as_str()
                .map(str::to_owned)
                .ok_or_else(|| unreadable(field))
        };
        let aliases = nic
            .get("aliasIpRanges")
            .cloned()
            .unwrap_or_else(|| json!([]));
        nics.push(Nic {
            name: text("name")?,
            fingerprint: text("fingerprint")?,
            subnetwork: text("subnetwork")?,
            aliases: serde_json::from_value(aliases).map_err(|_| unreadable("aliasIpRanges"))?,
        });
    }
    Ok(Instance {
        zone: zone.to_owned(),
        name: name.to_owned(),
        nics,
    })
}
