//! The command lines of etcd and kube-apiserver. A restart repeats them: same ports, certificates and data.

use std::path::{Path, PathBuf};

use anyhow::Result;
use berth_parts::Parts;

use super::Options;
use crate::pki::{Authority, Identity};
use crate::process::{Process, guarded_in};

/// What both starts of a part have in common: a restart uses the same ports, certificates and data.
pub(super) struct Plan {
    pub etcd_port: u16,
    pub peer_port: u16,
    pub port: u16,
    pub server: Identity,
    pub kubelet_client: Identity,
    pub token_key: PathBuf,
    pub token_public: PathBuf,
}

/// Starts etcd with TLS on both sides.
pub(super) fn etcd(
    parts: &Parts,
    options: &Options,
    plan: &Plan,
    authority: &Authority,
    dir: &Path,
) -> Result<Process> {
    let client = format!("https://127.0.0.1:{}", plan.etcd_port);
    let peer = format!("http://127.0.0.1:{}", plan.peer_port);
    let mut command = guarded_in(options.netns.as_deref(), &parts.etcd());
    command
        .args(["--name=berth", "--log-level=warn", "--client-cert-auth"])
        .arg(format!("--data-dir={}", dir.join("etcd").display()))
        .arg(format!("--listen-client-urls={client}"))
        .arg(format!("--advertise-client-urls={client}"))
        .arg(format!("--listen-peer-urls={peer}"))
        .arg(format!("--initial-advertise-peer-urls={peer}"))
        .arg(format!("--initial-cluster=berth={peer}"))
        .arg(format!("--trusted-ca-file={}", authority.file().display()))
        .arg(format!(
            "--cert-file={}",
            plan.server.certificate_file.display()
        ))
        .arg(format!("--key-file={}", plan.server.key_file.display()));
    if options.unsafe_no_fsync {
        command.arg("--unsafe-no-fsync");
    }
    Process::start("etcd", command, &dir.join("logs"))
}

pub(super) fn apiserver(
    parts: &Parts,
    options: &Options,
    plan: &Plan,
    authority: &Authority,
    dir: &Path,
) -> Result<Process> {
    let file = |path: &Path| path.display().to_string();
    let authority_file = file(&authority.file());
    let (certificate, key) = (
        file(&plan.server.certificate_file),
        file(&plan.server.key_file),
    );
    let settings = [
        (
            "etcd-servers",
            format!("https://127.0.0.1:{}", plan.etcd_port),
        ),
        ("etcd-cafile", authority_file.clone()),
        ("etcd-certfile", certificate.clone()),
        ("etcd-keyfile", key.clone()),
        ("bind-address", "127.0.0.1".into()),
        ("secure-port", plan.port.to_string()),
        // Without it the server searches a default route, which a namespace may not have.
        ("advertise-address", "127.0.0.1".into()),
        // It would try to publish that loopback address and log the refusal forever.
        ("endpoint-reconciler-type", "none".into()),
        ("tls-cert-file", certificate),
        ("tls-private-key-file", key),
        ("client-ca-file", authority_file),
        (
            "kubelet-client-certificate",
            file(&plan.kubelet_client.certificate_file),
        ),
        ("kubelet-client-key", file(&plan.kubelet_client.key_file)),
        ("kubelet-preferred-address-types", "InternalIP".into()),
        ("authorization-mode", "Node,RBAC".into()),
        ("allow-privileged", "true".into()),
        ("service-cluster-ip-range", "10.96.0.0/16".into()),
        (
            "service-account-issuer",
            "https://kubernetes.default.svc".into(),
        ),
        ("service-account-key-file", file(&plan.token_public)),
        ("service-account-signing-key-file", file(&plan.token_key)),
    ];
    let mut command = guarded_in(options.netns.as_deref(), &parts.apiserver());
    command.args(settings.map(|(name, value)| format!("--{name}={value}")));
    if !options.service_account_admission {
        command.arg("--disable-admission-plugins=ServiceAccount");
    }
    for (gate, on) in &options.feature_gates {
        command.arg(format!("--feature-gates={gate}={on}"));
    }
    command.args(&options.apiserver_args);
    Process::start("kube-apiserver", command, &dir.join("logs"))
}
