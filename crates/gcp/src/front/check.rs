//! CHECK and STATUS: both read and change nothing.

use std::sync::Arc;

use berth_cni::call::Target;
use berth_cni::result::IpamResult;
use berth_cni::{CniError, Code};
use berth_core::{Handle, NODE};
use serde_json::Value;

use super::config::IpamConf;
use super::engine::Engine;
use super::pools::v4;
use super::site::{NIC, refused};
use crate::nic::{Aliases, MAX_ALIASES};

/// What a CHECK found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Checked {
    Good,
    /// The container has no address of a pool.
    Unknown,
}

impl Engine {
    /// The record, the earlier answer and the alias on the VM must agree.
    pub(super) async fn check(
        self: &Arc<Self>,
        target: &Target,
        conf: &IpamConf,
        previous: Option<&Value>,
    ) -> Result<Checked, CniError> {
        let site = self.site().await?;
        let info = self.pool(conf, site).await?;
        let pool = self.load(&info).await?;
        let container = Handle::new(target.container_id.as_str());
        let held: Vec<_> = pool.held_under(&container).collect();
        let Some((address, record)) = held.first() else {
            return Ok(Checked::Unknown);
        };
        let apart = |why: String| {
            Err(CniError::new(Code::Mismatch, why).details("the container has to be started again"))
        };
        if record.attribute(NODE) != Some(&self.node) {
            return apart(format!(
                "{address} of container {container} is allocated on node {}",
                record.attribute(NODE).unwrap_or_default()
            ));
        }
        if let Some(previous) = previous {
            let given = IpamResult::addresses_of(previous)?;
            let has = given
                .iter()
                .any(|net| berth_core::Address::from(net.addr()) == *address);
            if !has {
                return apart(format!(
                    "{address} is allocated, and prevResult does not have it"
                ));
            }
        }
        let vm = &site.vm;
        let read = site.cloud.instance(&vm.zone, &vm.instance).await;
        let read = read.and_then(|instance| instance.nic(NIC).cloned());
        let nic =
            read.map_err(|error| refused(&format!("instances.get of {}", vm.instance), &error))?;
        let aliases = Aliases {
            read: &nic.aliases,
            range: info.range.as_deref(),
            limit: MAX_ALIASES,
        };
        if !aliases.own().any(|own| Some(own) == v4(*address)) {
            return apart(format!(
                "{address} is allocated, and {NIC} of {} has no such alias",
                vm.instance
            ));
        }
        Ok(Checked::Good)
    }

    /// Whether an ADD could be served now.
    pub(super) async fn status(&self, conf: &IpamConf) -> Result<(), CniError> {
        let served = async {
            let site = self.site().await?;
            let info = self.pool(conf, site).await?;
            self.load(&info).await.map(drop)
        };
        served.await.map_err(|error: CniError| CniError {
            code: Code::NotAvailable,
            ..error
        })
    }
}
