//! Starts the parts of a node: containerd and the kubelet, and the files that they need.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use berth_parts::Parts;
use tokio::time::sleep;

use super::settings::{self, Serving};
use crate::cluster::TIMEOUT;
use crate::control_plane::{self, ControlPlane};
use crate::image::run;
use crate::process::Process;
use crate::sandbox::Sandbox;

pub(super) fn write(path: &Path, content: &str) -> Result<()> {
    fs::write(path, content).with_context(|| format!("write {}", path.display()))
}

/// Links the plugins into containerd's directory; a test can add others.
pub(super) fn plugins(parts: &Parts, bin: &Path) -> Result<()> {
    let mut plugins = vec![parts.multus(), parts.whereabouts()];
    let dir = parts.cni_dir();
    for entry in fs::read_dir(&dir).with_context(|| format!("read {}", dir.display()))? {
        plugins.push(entry.context("read the plugin directory")?.path());
    }
    for plugin in plugins {
        let name = plugin.file_name().context("a plugin without a name")?;
        symlink(&plugin, bin.join(name)).with_context(|| format!("link {}", plugin.display()))?;
    }
    Ok(())
}

/// containerd's client, for what the kubelet does.
pub(super) fn ctr(parts: &Parts, dir: &Path) -> Command {
    let mut command = Command::new(parts.ctr());
    command
        .arg("--address")
        .arg(dir.join("containerd.sock"))
        .args(["--namespace", "k8s.io"]);
    command
}

pub(super) fn containerd(
    parts: &Parts,
    sandbox: &Sandbox,
    dir: &Path,
    env: &[(String, String)],
) -> Result<Process> {
    let mut command = sandbox.command(parts.containerd());
    let path = std::env::var("PATH").unwrap_or_default();
    command
        .arg("--config")
        .arg(dir.join("containerd.toml"))
        // containerd finds its shim, and the shim finds runc, on the PATH.
        .env(
            "PATH",
            format!(
                "{}:{path}:/usr/sbin:/sbin",
                parts.containerd_dir().display()
            ),
        )
        .envs(env.iter().map(|(name, value)| (name, value)));
    Process::entered("containerd", command, &dir.join("logs"))
}

/// Imports an image from an archive.
pub(super) fn import(parts: &Parts, dir: &Path, archive: &Path) -> Result<()> {
    let mut import = ctr(parts, dir);
    import
        .args(["images", "import", "--local", "--snapshotter", "native"])
        .arg(archive);
    run(&mut import).with_context(|| format!("import {}", archive.display()))?;
    Ok(())
}

/// Returns when containerd answers.
pub(super) async fn await_containerd(
    parts: &Parts,
    dir: &Path,
    process: &mut Process,
) -> Result<()> {
    let started = Instant::now();
    loop {
        if let Some(status) = process.ended()? {
            bail!("containerd ended with {status}; {}", process.tail());
        }
        let mut version = ctr(parts, dir);
        version.args(["--connect-timeout", "2s", "version"]);
        match run(&mut version) {
            Ok(_) => return Ok(()),
            Err(error) if started.elapsed() > TIMEOUT => {
                return Err(error.context(format!("wait for containerd; {}", process.tail())));
            }
            Err(_) => sleep(Duration::from_millis(200)).await,
        }
    }
}

pub(super) fn kubelet(
    plane: &ControlPlane,
    sandbox: &Sandbox,
    dir: &Path,
    name: &str,
    number: u8,
    pod_cgroups: bool,
) -> Result<Process> {
    let cluster = &plane.cluster;
    let address = control_plane::address(number);
    let kubeconfig = cluster.user_kubeconfig(
        &format!("kubelet-{name}"),
        &format!("system:node:{name}"),
        Some("system:nodes"),
    )?;
    let serving = cluster
        .authority
        .server(&format!("serving-{name}"), &[&address])?;
    let authority = cluster.authority.file();
    let config = settings::kubelet(
        dir,
        pod_cgroups.then(|| sandbox.cgroup()),
        &Serving {
            authority: &authority,
            certificate: &serving.certificate_file,
            key: &serving.key_file,
        },
    );
    write(&dir.join("kubelet.json"), &config.to_string())?;
    let mut command = sandbox.command(cluster.parts.kubelet());
    command
        .arg(format!("--config={}", dir.join("kubelet.json").display()))
        .arg(format!("--kubeconfig={}", kubeconfig.display()))
        .arg(format!("--root-dir={}", dir.join("kubelet").display()))
        .arg(format!("--cert-dir={}", dir.join("kubelet/pki").display()))
        .arg(format!("--hostname-override={name}"))
        .arg(format!("--node-ip={address}"));
    Process::entered("kubelet", command, &dir.join("logs"))
}
