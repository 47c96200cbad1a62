//! Reserved internal addresses, for pools in the primary range.

use std::net::Ipv4Addr;

use hyper::Method;
use serde_json::json;

use super::Cloud;
use super::error::CloudError;
use super::operations::{Operation, OperationScope, escaped};
use super::request_id::RequestId;

/// A reserved internal address as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    pub name: String,
    pub address: String,
    pub in_use: bool,
    /// The operation that reserves it is under way.
    pub pending: bool,
}

impl Cloud {
    pub async fn address(&self, region: &str, name: &str) -> Result<Address, CloudError> {
        let value = self
            .read(&format!(
                "{}/{}",
                self.addresses_path(region),
                escaped(name)
            ))
            .await?;
        Ok(Address {
            name: name.to_owned(),
            address: value["address"].as_str().unwrap_or_default().to_owned(),
            in_use: value["status"] == "IN_USE",
            pending: value["status"] == "RESERVING",
        })
    }

    /// Reserves an address of a subnet's primary range.
    pub async fn reserve_address(
        &self,
        (region, subnetwork): (&str, &str),
        (name, address): (&str, Ipv4Addr),
        request: &RequestId,
    ) -> Result<Operation, CloudError> {
        let path = format!("{}?requestId={request}", self.addresses_path(region));
        let body = json!({
            "name": name,
            "address": address.to_string(),
            "addressType": "INTERNAL",
            "purpose": "GCE_ENDPOINT",
            "subnetwork": subnetwork,
        });
        self.change(
            Method::POST,
            &path,
            Some(&body),
            OperationScope::Region(region.to_owned()),
        )
        .await
    }

    pub async fn release_address(
        &self,
        region: &str,
        name: &str,
        request: &RequestId,
    ) -> Result<Operation, CloudError> {
        let path = format!(
            "{}/{}?requestId={request}",
            self.addresses_path(region),
            escaped(name)
        );
        self.change(
            Method::DELETE,
            &path,
            None,
            OperationScope::Region(region.to_owned()),
        )
        .await
    }

    fn addresses_path(&self, region: &str) -> String {
        format!(
            "projects/{}/regions/{}/addresses",
            escaped(&self.project),
            escaped(region)
        )
    }
}
