//! Subnets and their secondary ranges.

use hyper::Method;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::Cloud;
use super::error::CloudError;
use super::operations::{Operation, OperationScope, escaped};
use super::request_id::RequestId;

/// A secondary range; fields that Berth does not know are sent back as they came (I7).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecondaryRange {
    #[serde(rename = "rangeName")]
    pub name: String,
    #[serde(
        rename = "ipCidrRange",
        default,
        skip_serializing_if = "String::is_empty"
    )]
    pub cidr: String,
    #[serde(
        rename = "reservedInternalRange",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub internal_range: Option<String>,
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// A subnet as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subnetwork {
    pub region: String,
    pub name: String,
    pub network: String,
    pub cidr: String,
    pub fingerprint: String,
    pub secondary: Vec<SecondaryRange>,
}

impl Cloud {
    pub async fn subnetwork(&self, region: &str, name: &str) -> Result<Subnetwork, CloudError> {
        let value = self.read(&self.subnetwork_path(region, name)).await?;
        let unreadable = |what: &str| {
            CloudError::Unavailable(format!("subnetwork {name}: {what} can't be read"))
        };
        let text = |field: &str| {
            value[field]
                .as_str()
                .map(str::to_owned)
                .ok_or_else(|| unreadable(field))
        };
        let secondary = value
            .get("secondaryIpRanges")
            .cloned()
            .unwrap_or_else(|| json!([]));
        Ok(Subnetwork {
            region: region.to_owned(),
            name: name.to_owned(),
            network: text("network")?,
            cidr: text("ipCidrRange")?,
            fingerprint: text("fingerprint")?,
            secondary: serde_json::from_value(secondary)
                .map_err(|_| unreadable("secondaryIpRanges"))?,
        })
    }

    /// Replaces the secondary ranges of a subnet as it was read: every range that stays must be in the list.
    pub async fn set_secondary_ranges(
        &self,
        subnet: &Subnetwork,
        ranges: &[SecondaryRange],
        request: &RequestId,
    ) -> Result<Operation, CloudError> {
        let path = format!(
            "{}?requestId={request}",
            self.subnetwork_path(&subnet.region, &subnet.name)
        );
        let body = json!({ "fingerprint": subnet.fingerprint, "secondaryIpRanges": ranges });
        let scope = OperationScope::Region(subnet.region.clone());
        self.change(Method::PATCH, &path, Some(&body), scope).await
    }

    fn subnetwork_path(&self, region: &str, name: &str) -> String {
        format!(
            "projects/{}/regions/{}/subnetworks/{}",
            escaped(&self.project),
            escaped(region),
            escaped(name)
        )
    }
}
