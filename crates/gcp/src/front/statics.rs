//! Pools in the subnet's primary range: an address is reserved before it is attached, and released after it is detached.

use std::net::Ipv4Addr;

use berth_cni::CniError;

use super::add::Call;
use super::engine::Engine;
use super::pools::PoolInfo;
use super::site::refused;
use crate::cloud::{CloudError, RequestId};

/// The name of an address's reservation: the same for every try.
fn name(address: Ipv4Addr) -> String {
    format!("berth-{}", address.to_string().replace('.', "-"))
}

impl Engine {
    /// Reserves the address, unless an earlier try has.
    pub(super) async fn reserve(
        &self,
        call: &Call<'_>,
        address: Ipv4Addr,
    ) -> Result<(), CloudError> {
        let (cloud, region, name) = (&call.site.cloud, call.info.region(), name(address));
        match cloud.address(region, &name).await {
            Ok(found) if found.address == address.to_string() => return Ok(()),
            Ok(found) => {
                let text = format!("the reservation {name} is of {}", found.address);
                return Err(CloudError::Refused(text));
            }
            Err(CloudError::NotFound(_)) => {}
            Err(error) => return Err(error),
        }
        let request = RequestId::random();
        let place = (region, call.info.subnet.as_str());
        let operation = cloud
            .reserve_address(place, (&name, address), &request)
            .await;
        match operation {
            Ok(operation) => cloud.wait(&operation).await,
            // Another try was faster.
            Err(CloudError::AlreadyExists(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    pub(super) async fn unreserve(
        &self,
        info: &PoolInfo,
        address: Ipv4Addr,
    ) -> Result<(), CniError> {
        let cloud = &self.site().await?.cloud;
        let name = name(address);
        let request = RequestId::random();
        let done = match cloud.release_address(info.region(), &name, &request).await {
            Ok(operation) => cloud.wait(&operation).await,
            Err(error) => Err(error),
        };
        match done {
            Ok(()) | Err(CloudError::NotFound(_)) => Ok(()),
            Err(error) => Err(refused(&format!("addresses.delete of {name}"), &error)),
        }
    }
}
