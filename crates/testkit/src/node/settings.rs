//! The files that containerd, the kubelet and Multus read: settings that let them run in a sandbox, as root or in a
//! container without CAP_SYS_RESOURCE, on cgroups of either version.

use std::path::Path;

use serde_json::{Value, json};

use crate::image::PAUSE;

pub(crate) fn containerd(dir: &Path) -> String {
    let at = |name: &str| dir.join(name).display().to_string();
    format!(
        r#"version = 3
root = "{root}"
state = "{state}"
disabled_plugins = ["io.containerd.nri.v1.nri"]

[grpc]
address = "{socket}"

[ttrpc]
address = "{socket}.ttrpc"

[plugins."io.containerd.cri.v1.images"]
# Copies files and asks nothing of the kernel: the sandbox's own files may be on an overlay already.
snapshotter = "native"

[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{PAUSE}"

[plugins."io.containerd.cri.v1.runtime"]
# Without CAP_SYS_RESOURCE a score below its own is refused.
restrict_oom_score_adj = true

[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{bin}"]
conf_dir = "{conf}"

[plugins."io.containerd.cri.v1.runtime".containerd]
default_runtime_name = "runc"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = "runc"
SystemdCgroup = false
"#,
        root = at("containerd/root"),
        state = at("containerd/state"),
        socket = at("containerd.sock"),
        bin = at("cni/bin"),
        conf = at("cni/net.d"),
    )
}

/// Files that the kubelet serves with.
pub(crate) struct Serving<'a> {
    pub authority: &'a Path,
    pub certificate: &'a Path,
    pub key: &'a Path,
}

pub(crate) fn kubelet(dir: &Path, pod_cgroups: Option<&str>, serving: &Serving<'_>) -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": format!("unix://{}", dir.join("containerd.sock").display()),
        "podLogsDir": dir.join("pods"),
        "volumePluginDir": dir.join("volume-plugins"),
        "failCgroupV1": false,
        "cgroupDriver": "cgroupfs",
        // Below the sandbox's cgroup, which is removed with it, or in it.
        "cgroupRoot": pod_cgroups.map_or(String::new(), |parent| format!("/{parent}")),
        "cgroupsPerQOS": pod_cgroups.is_some(),
        "enforceNodeAllocatable": [],
        "failSwapOn": false,
        "oomScoreAdj": 0,
        "localStorageCapacityIsolation": false,
        // A full disk of the machine must not evict pods.
        "evictionHard": {
            "memory.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%",
            "imagefs.available": "0%", "imagefs.inodesFree": "0%",
        },
        "imageGCHighThresholdPercent": 100,
        "tlsCertFile": serving.certificate,
        "tlsPrivateKeyFile": serving.key,
        "authentication": {
            "anonymous": { "enabled": false },
            "webhook": { "enabled": false },
            "x509": { "clientCAFile": serving.authority },
        },
        "authorization": { "mode": "AlwaysAllow" },
        "shutdownGracePeriod": "0s",
    })
}

/// Multus as the runtime's only network, with a bridge and host-local behind it as the cluster network of this node.
pub(crate) fn multus(dir: &Path, kubeconfig: &Path, number: u8) -> Value {
    json!({
        "cniVersion": "1.0.0",
        "name": "multus",
        "type": "multus",
        "kubeconfig": kubeconfig,
        "confDir": dir.join("cni/net.d"),
        "binDir": dir.join("cni/bin"),
        "logLevel": "verbose",
        "logFile": dir.join("logs/multus.log"),
        "delegates": [{
            "cniVersion": "1.0.0",
            "name": "cluster",
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": true,
            "ipam": {
                "type": "host-local",
                "ranges": [[{ "subnet": format!("10.220.{number}.0/24") }]],
                "routes": [{ "dst": "0.0.0.0/0" }],
            },
        }],
    })
}
