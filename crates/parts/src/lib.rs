//! The real programs that tests run against: a Kubernetes control plane, a kubelet, containerd, Multus, CNI plugins,
//! whereabouts, nmpolicyctl and Google's Go client, built once from pinned Go modules into a cache outside the build
//! tree.
//!
//! Guarantees: what [`Parts`] names exists, is complete, and has the pinned version (a directory is renamed into place
//! when its last binary is built, and its name has a hash of the sources); two runs at the same time build nothing
//! twice. `berth-testkit` starts the programs.
//!
//! The cache is `$BERTH_PARTS_DIR`, else `$XDG_CACHE_HOME/berth/parts`, else `~/.cache/berth/parts`.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod build;
mod cache;
mod catalog;
mod debian;
mod network_manager;
mod nmstate;
mod promtool;
mod tools;
mod unpacked;
pub mod wait_report;

use std::path::PathBuf;

use anyhow::{Result, bail};

pub use debian::debian;
pub use tools::{Tool, cargo_tool};

use cache::Cache;
use catalog::MODULES;

/// Where each built part is.
#[derive(Debug, Clone)]
pub struct Parts {
    cache: Cache,
}

/// Builds what is missing and reports progress, a line at a time. Takes minutes with an empty cache, milliseconds with
/// a full one.
pub fn ensure(mut progress: impl FnMut(&str)) -> Result<Parts> {
    let cache = Cache::locate()?;
    promtool::ensure(&cache, &mut progress)?;
    nmstate::ensure(&cache, &mut progress)?;
    network_manager::ensure(&cache, &mut progress)?;
    if catalog::missing(&cache).is_empty() {
        return Ok(Parts { cache });
    }
    let _lock = cache.lock(&mut progress)?;
    // Checked again under the lock: another run may have built them meanwhile.
    let missing = catalog::missing(&cache);
    for (at, module) in missing.iter().enumerate() {
        build::module(&cache, module, at + 1, missing.len(), &mut progress)?;
    }
    Ok(Parts { cache })
}

impl Parts {
    /// The parts as an earlier [`ensure`] left them; builds nothing.
    pub fn find() -> Result<Parts> {
        let cache = Cache::locate()?;
        let missing = catalog::missing(&cache);
        if !missing.is_empty() {
            let names: Vec<_> = missing.iter().map(|module| module.name).collect();
            bail!(
                "test parts {} are not built in {}: run `cargo xtask parts` (or `cargo xtask test`)",
                names.join(", "),
                cache.root().display()
            );
        }
        Ok(Parts { cache })
    }

    fn file(&self, module: &str, file: &str) -> PathBuf {
        let known = MODULES.iter().find(|known| known.name == module);
        debug_assert!(
            known.is_some_and(|known| known.yields(file)),
            "{module}/{file}"
        );
        known
            .map(|known| self.cache.place(known).join(file))
            .unwrap_or_default()
    }

    /// The multi-call binary itself; its first argument selects the part.
    pub fn kube(&self) -> PathBuf {
        self.file("kube", "kube")
    }

    pub fn etcd(&self) -> PathBuf {
        self.file("kube", "etcd")
    }

    pub fn apiserver(&self) -> PathBuf {
        self.file("kube", "kube-apiserver")
    }

    pub fn controller_manager(&self) -> PathBuf {
        self.file("kube", "kube-controller-manager")
    }

    pub fn scheduler(&self) -> PathBuf {
        self.file("kube", "kube-scheduler")
    }

    pub fn kubelet(&self) -> PathBuf {
        self.file("kube", "kubelet")
    }

    pub fn kubectl(&self) -> PathBuf {
        self.file("kube", "kubectl")
    }

    /// The directory of the reference plugins: bridge, host-local, loopback, macvlan, ptp, static.
    pub fn cni_dir(&self) -> PathBuf {
        self.file("cni", "plugins")
    }

    pub fn cnitool(&self) -> PathBuf {
        self.file("cni", "cnitool")
    }

    /// The IPAM plugin of whereabouts.
    pub fn whereabouts(&self) -> PathBuf {
        self.file("whereabouts", "whereabouts")
    }

    pub fn whereabouts_control_loop(&self) -> PathBuf {
        self.file("whereabouts", "ip-control-loop")
    }

    pub fn whereabouts_slice_controller(&self) -> PathBuf {
        self.file("whereabouts", "node-slice-controller")
    }

    pub fn containerd(&self) -> PathBuf {
        self.file("containerd", "containerd")
    }

    /// The directory of containerd and its shim: containerd finds the shim on its PATH.
    pub fn containerd_dir(&self) -> PathBuf {
        self.file("containerd", "")
    }

    pub fn ctr(&self) -> PathBuf {
        self.file("containerd", "ctr")
    }

    /// Prometheus' own checker of what `/metrics` serves.
    pub fn promtool(&self) -> Result<PathBuf> {
        promtool::find(&self.cache)
    }

    /// The directory of kubernetes-nmstate's manifests: `crds.yaml` and `admission.yaml`.
    pub fn kubernetes_nmstate(&self) -> Result<PathBuf> {
        nmstate::find(&self.cache)
    }

    /// The root of NetworkManager's files, which is not installed: `usr/sbin/NetworkManager`, and its libraries.
    pub fn network_manager(&self) -> Result<PathBuf> {
        network_manager::find(&self.cache)
    }

    pub fn multus(&self) -> PathBuf {
        self.file("multus", "multus")
    }

    /// Google's own Go client, with the scenarios that a local cloud has to pass.
    pub fn google_client(&self) -> PathBuf {
        self.file("gce", "gce")
    }

    /// Google's description of the Compute and the Network Connectivity API.
    pub fn google_apis(&self) -> [PathBuf; 2] {
        ["compute-api.json", "networkconnectivity-api.json"].map(|file| self.file("gce", file))
    }

    /// The engine that the captures of kubernetes-nmstate were designed for.
    pub fn nmpolicyctl(&self) -> PathBuf {
        self.file("nmpolicy", "nmpolicyctl")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_accessor_names_a_file_that_the_build_yields() {
        let cache = Cache::at(PathBuf::from("/cache"));
        let parts = Parts { cache };
        for path in [
            parts.kube(),
            parts.etcd(),
            parts.apiserver(),
            parts.controller_manager(),
            parts.scheduler(),
            parts.kubelet(),
            parts.kubectl(),
            parts.cni_dir(),
            parts.cnitool(),
            parts.whereabouts(),
            parts.whereabouts_control_loop(),
            parts.whereabouts_slice_controller(),
            parts.containerd(),
            parts.containerd_dir(),
            parts.ctr(),
            parts.multus(),
            parts.google_client(),
            parts.nmpolicyctl(),
        ]
        .into_iter()
        .chain(parts.google_apis())
        {
            assert!(path.starts_with("/cache"), "{path:?}");
        }
    }
}
