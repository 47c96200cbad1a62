//! Pools in the subnet's primary range: an address is reserved before it is attached, and released after it is detached.
//!
//! Guarantees: a repeat of a request, also by another process and after a lost answer, has the requestId of the first one, so that a
//! late copy is not carried out a second time. The id follows from the verb, the address, its holder and how many such requests of
//! that holder have ended before, which their repeats show: they are answered with an operation that has ended already.

use std::net::Ipv4Addr;
use std::time::Duration;

use berth_cni::CniError;
use berth_core::Record;
use tokio::time::sleep;

use super::add::Call;
use super::config::later;
use super::engine::Engine;
use super::pools::PoolInfo;
use super::site::refused;
use crate::cloud::{CloudError, RequestId};

/// A holder reserves and releases one address hardly ever twice: when an attach fails after the reservation, and its ADD is repeated.
const TRIES: usize = 32;
const PENDING: Duration = Duration::from_millis(500);

/// The name of an address's reservation: the same for every try.
fn name(address: Ipv4Addr) -> String {
    format!("berth-{}", address.to_string().replace('.', "-"))
}

/// The id of a holder's request; `ended`: how many of the same have ended before.
fn intent(verb: &str, address: Ipv4Addr, holder: &Record, ended: usize) -> RequestId {
    RequestId::named(&[
        verb,
        &address.to_string(),
        &holder.owner.subject,
        &holder.owner.part,
        holder.handle.as_str(),
        &ended.to_string(),
    ])
}

impl Engine {
    /// Reserves the address, unless an earlier try has.
    pub(super) async fn reserve(
        &self,
        call: &Call<'_>,
        address: Ipv4Addr,
        holder: &Record,
    ) -> Result<(), CloudError> {
        let (cloud, region, name) = (&call.site.cloud, call.info.region(), name(address));
        let place = (region, call.info.subnet.as_str());
        let mut ended = 0;
        while ended < TRIES {
            match cloud.address(region, &name).await {
                Ok(found) if found.pending => {
                    sleep(PENDING).await;
                    continue;
                }
                Ok(found) if found.address == address.to_string() => return Ok(()),
                Ok(found) => {
                    let text = format!("the reservation {name} is of {}", found.address);
                    return Err(CloudError::Refused(text));
                }
                Err(CloudError::NotFound(_)) => {}
                Err(error) => return Err(error),
            }
            let request = intent("addresses.insert", address, holder, ended);
            let sent = cloud
                .reserve_address(place, (&name, address), &request)
                .await;
            match sent {
                Ok(operation) if operation.ended => ended += 1,
                Ok(operation) => return cloud.wait(&operation).await,
                // Another process was faster: the next read says whether its operation has ended.
                Err(CloudError::AlreadyExists(_)) => sleep(PENDING).await,
                Err(error) => return Err(error),
            }
        }
        let text = format!("{name} was reserved and released {TRIES} times by one pod");
        Err(CloudError::NotReady(text))
    }

    /// Releases the reservation of a holder, unless it is gone.
    pub(super) async fn unreserve(
        &self,
        info: &PoolInfo,
        address: Ipv4Addr,
        holder: &Record,
    ) -> Result<(), CniError> {
        let cloud = &self.site().await?.cloud;
        let name = name(address);
        let unreleased = |error| refused(&format!("addresses.delete of {name}"), &error);
        for ended in 0..TRIES {
            let request = intent("addresses.delete", address, holder, ended);
            let sent = cloud.release_address(info.region(), &name, &request).await;
            let operation = match sent {
                Ok(operation) => operation,
                Err(CloudError::NotFound(_)) => return Ok(()),
                Err(error) => return Err(unreleased(error)),
            };
            match cloud.wait(&operation).await {
                Err(CloudError::NotFound(_)) => return Ok(()),
                done if !operation.ended => return done.map_err(unreleased),
                // Of an earlier request. The address may have been reserved again since.
                _ => match cloud.address(info.region(), &name).await {
                    Err(CloudError::NotFound(_)) => return Ok(()),
                    read => drop(read.map_err(unreleased)?),
                },
            }
        }
        Err(later(
            format!("{name} was reserved and released {TRIES} times by one pod"),
            "it is tried again",
        ))
    }
}
