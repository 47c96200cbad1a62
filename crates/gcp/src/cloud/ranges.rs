//! Internal ranges of the Network Connectivity API.

use std::time::Duration;

use hyper::Method;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::Cloud;
use super::error::CloudError;
use super::operations::escaped;
use super::request_id::RequestId;

/// This API has no `wait`: its operations are read again after a pause.
const PAUSE: Duration = Duration::from_millis(500);

/// An internal range as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InternalRange {
    /// `projects/…/locations/global/internalRanges/…`.
    pub name: String,
    pub cidr: String,
    pub network: String,
    pub users: Vec<String>,
}

/// A range to be reserved.
#[derive(Clone, Debug)]
pub struct RangeRequest {
    pub id: String,
    pub network: String,
    pub prefix_length: u8,
    /// Where Google may choose it from.
    pub within: Vec<String>,
    pub excluded: Vec<String>,
}

impl Cloud {
    pub async fn internal_range(&self, id: &str) -> Result<InternalRange, CloudError> {
        let path = format!("{}/{}", self.ranges_path(), escaped(id));
        let value = self.connectivity(Method::GET, &path, None).await?;
        read(&value)
    }

    /// Reserves a range and returns it when it is there.
    pub async fn reserve_range(
        &self,
        wanted: &RangeRequest,
        request: &RequestId,
    ) -> Result<InternalRange, CloudError> {
        let path = format!(
            "{}?internalRangeId={}&requestId={request}",
            self.ranges_path(),
            escaped(&wanted.id)
        );
        let mut body = json!({
            "network": wanted.network,
            "usage": "FOR_VPC",
            "peering": "FOR_SELF",
            "prefixLength": wanted.prefix_length,
            "targetCidrRange": wanted.within,
        });
        if !wanted.excluded.is_empty() {
            body["excludeCidrRanges"] = json!(wanted.excluded);
        }
        let begun = self.connectivity(Method::POST, &path, Some(&body)).await?;
        self.finish(begun).await?;
        self.internal_range(&wanted.id).await
    }

    pub async fn release_range(&self, id: &str, request: &RequestId) -> Result<(), CloudError> {
        let path = format!("{}/{}?requestId={request}", self.ranges_path(), escaped(id));
        let begun = self.connectivity(Method::DELETE, &path, None).await?;
        self.finish(begun).await
    }

    async fn finish(&self, mut operation: Value) -> Result<(), CloudError> {
        let name = operation["name"].as_str().unwrap_or_default().to_owned();
        let deadline = Instant::now() + self.operation_timeout;
        while operation["done"] != true {
            if name.is_empty() || Instant::now() >= deadline {
                return Err(CloudError::OperationTimeout(name));
            }
            sleep(PAUSE).await;
            match self.connectivity(Method::GET, &name, None).await {
                Ok(answer) => operation = answer,
                Err(CloudError::Unavailable(_) | CloudError::RateLimited { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        match operation["error"]["message"].as_str() {
            Some(message) => Err(CloudError::Refused(message.to_owned())),
            None => Ok(()),
        }
    }

    fn ranges_path(&self) -> String {
        format!(
            "projects/{}/locations/global/internalRanges",
            escaped(&self.project)
        )
    }
}

fn read(value: &Value) -> Result<InternalRange, CloudError> {
    let unreadable =
        |what: &str| CloudError::Unavailable(format!("internal range: {what} can't be read"));
    let text = |field: &str| {
        value[field]
            .as_str()
            .map(str::to_owned)
            .ok_or_else(|| unreadable(field))
    };
    let users = value["users"].as_array().into_iter().flatten();
    Ok(InternalRange {
        name: text("name")?,
        cidr: text("ipCidrRange")?,
        network: text("network")?,
        users: users
            .filter_map(|user| user.as_str().map(str::to_owned))
            .collect(),
    })
}
