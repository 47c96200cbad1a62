//! Which VM this is, found when the first pod asks: a node without such pods makes no call.

use berth_cni::CniError;

use super::config::{invalid, later};
use super::settings::Settings;
use crate::cloud::{Cloud, CloudError, CloudMetrics, Metadata, TokenSource, Whereabouts};
use crate::migrate::executor::Vm;
use crate::nic::NicPlace;

/// The interface that pods' aliases are on.
pub const NIC: &str = "nic0";

/// This VM and the client of its project.
#[derive(Clone, Debug)]
pub struct Site {
    pub cloud: Cloud,
    pub vm: Whereabouts,
    /// The subnet of its interface, where pods of this VM are served: `projects/{project}/regions/{region}/subnetworks/{name}`.
    pub subnet: String,
}

impl Site {
    /// This VM and its subnet.
    pub async fn find(settings: &Settings, metrics: CloudMetrics) -> Result<Site, CniError> {
        let found = Site::of_project(settings, metrics).await?;
        let (cloud, vm) = (&found.cloud, &found.vm);
        let read = cloud.instance(&vm.zone, &vm.instance).await;
        let read = read.and_then(|instance| instance.nic(NIC).cloned());
        let nic =
            read.map_err(|error| refused(&format!("instances.get of {}", vm.instance), &error))?;
        Ok(Site {
            subnet: partial(&nic.subnetwork).to_owned(),
            ..found
        })
    }

    /// The project alone, for a process that serves no pods of its own VM.
    pub async fn of_project(settings: &Settings, metrics: CloudMetrics) -> Result<Site, CniError> {
        let metadata = Metadata::new(settings.metadata_host.as_deref());
        let vm = metadata.whereabouts().await.map_err(|error| {
            later(
                format!("this VM is unknown: {error}"),
                "is this a VM of Google Cloud? GCE_METADATA_HOST names another metadata server",
            )
        })?;
        let source = match &settings.key_file {
            Some(file) => TokenSource::KeyFile(file.clone()),
            None => TokenSource::Metadata(metadata),
        };
        let cloud = Cloud::new(
            &vm.project,
            settings.endpoints.clone(),
            source,
            settings.operation_timeout,
        );
        Ok(Site {
            cloud: cloud.counted(metrics),
            subnet: String::new(),
            vm,
        })
    }

    pub fn vm(&self) -> Vm {
        Vm {
            zone: self.vm.zone.clone(),
            instance: self.vm.instance.clone(),
        }
    }

    pub fn place(&self, range: Option<&str>) -> NicPlace {
        NicPlace {
            zone: self.vm.zone.clone(),
            instance: self.vm.instance.clone(),
            nic: NIC.to_owned(),
            range: range.map(str::to_owned),
        }
    }
}

/// `projects/...` of a resource's URL.
pub fn partial(url: &str) -> &str {
    url.find("projects/").map_or(url, |from| &url[from..])
}

/// The answer to the runtime after a failed call.
pub fn refused(what: &str, error: &CloudError) -> CniError {
    let message = format!("{what}: {error}");
    match error {
        CloudError::Denied(_) => invalid(
            message,
            "grant the node's service account compute.instances.get and .updateNetworkInterface, compute.zoneOperations.get, compute.subnetworks.use",
        ),
        CloudError::Unauthenticated(_) => invalid(
            message,
            "check the node's service account and its access scopes (compute)",
        ),
        CloudError::NotFound(_) => invalid(
            message,
            "check project, zone and name of the instance: the metadata server's must be the cluster's",
        ),
        CloudError::Refused(_) | CloudError::AlreadyExists(_) => invalid(
            message,
            "run `berth gcp check`: pool, range and subnet must fit together",
        ),
        CloudError::Quota(_) => later(message, "raise the quota ALIASES_PER_NETWORK_GLOBAL"),
        CloudError::NicFull(_) => later(
            message,
            "a NIC has at most 150 alias ranges: lower the node's max-pods",
        ),
        CloudError::InUse(_) => later(
            message,
            "another VM has the address: `berth gcp check` names it",
        ),
        _ => later(message, "it passes by itself; the runtime tries again"),
    }
}
