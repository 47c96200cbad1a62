//! One NIC as a target: read, change the list, send, wait.

use std::net::Ipv4Addr;
use std::time::Duration;

use berth_attachment::{Failure, Intent, Target};

use super::error::{NicError, of_operation, of_read, of_update};
use super::list::Aliases;
use super::lock::NodeLock;
use crate::cloud::{Cloud, RequestId};

/// Alias ranges that a NIC can have, whatever their size; Google does not raise it.
pub const MAX_ALIASES: usize = 150;
/// How long changes of one NIC are gathered before an update: one takes Google about 3 s, however many it has.
pub const GATHER: Duration = Duration::from_millis(75);

/// Which NIC, and of which range its aliases are.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NicPlace {
    pub zone: String,
    pub instance: String,
    pub nic: String,
    /// The secondary range; None for the subnet's primary range.
    pub range: Option<String>,
}

/// Frees an address whose alias is gone. It frees the record that its detach marked, and leaves one that is not marked: that
/// is a later owner's.
pub trait Release: Send + Sync + 'static {
    fn release(&self, address: Ipv4Addr) -> impl Future<Output = Result<(), String>> + Send;
}

/// See the module.
#[derive(Debug)]
pub struct NicTarget<R> {
    pub cloud: Cloud,
    pub place: NicPlace,
    pub release: R,
    /// Held around each update.
    pub lock: Option<NodeLock>,
}

impl<R: Release> Target<Ipv4Addr> for NicTarget<R> {
    type Error = NicError;

    async fn apply(&self, intent: &Intent<Ipv4Addr>) -> Result<(), Failure<NicError>> {
        let _held = match &self.lock {
            Some(lock) => Some(lock.hold().await.map_err(Failure::Blocked)?),
            None => None,
        };
        let place = &self.place;
        let what = |call: &str| format!("{call} of instance {}", place.instance);
        let instance = self.cloud.instance(&place.zone, &place.instance).await;
        let instance = instance.map_err(|error| of_read(what("instances.get"), error))?;
        let nic = instance.nic(&place.nic);
        let nic = nic.map_err(|error| of_read(what("instances.get"), error))?;
        let aliases = Aliases {
            read: &nic.aliases,
            range: place.range.as_deref(),
            limit: MAX_ALIASES,
        };
        let list = aliases
            .after(intent.goal, &intent.items)
            .map_err(|full| Failure::Full {
                room: Some(full.free),
                error: NicError::Full {
                    instance: place.instance.clone(),
                    nic: place.nic.clone(),
                    used: nic.aliases.len(),
                    limit: MAX_ALIASES,
                    free: full.free,
                },
            })?;
        let Some(list) = list else {
            return Ok(());
        };
        let request = RequestId::of(intent.id.0);
        let at = (place.zone.as_str(), place.instance.as_str());
        let sent = self
            .cloud
            .set_aliases(at, (&nic.name, &nic.fingerprint), &list, &request);
        let update = "instances.updateNetworkInterface";
        let operation = sent.await.map_err(|error| of_update(what(update), error))?;
        let done = self.cloud.wait(&operation).await;
        done.map_err(|error| of_operation(what(update), error))
    }

    async fn release(&self, address: &Ipv4Addr) -> Result<(), NicError> {
        self.release
            .release(*address)
            .await
            .map_err(NicError::Release)
    }
}
