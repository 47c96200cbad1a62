//! The image that pods run, built around Debian's static busybox: no registry is needed.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::json;

/// A shell and the usual tools; does nothing until it is stopped, and stops at once.
pub(crate) const BUSYBOX: &str = "berth.test/busybox:1";
/// The same under the name that containerd starts every pod's sandbox from.
pub(crate) const PAUSE: &str = "berth.test/pause:1";

/// Writes an archive as `docker save` does, for `ctr images import`.
pub(crate) fn archive(dir: &Path) -> Result<PathBuf> {
    let bin = dir.join("layer/bin");
    fs::create_dir_all(&bin).with_context(|| format!("create {}", bin.display()))?;
    for empty in ["dev", "etc", "proc", "sys", "tmp"] {
        let path = dir.join("layer").join(empty);
        fs::create_dir_all(&path).with_context(|| format!("create {}", path.display()))?;
    }
    fs::copy("/bin/busybox", bin.join("busybox"))
        .context("copy /bin/busybox (Debian's busybox-static)")?;
    let applets = run(Command::new("/bin/busybox").arg("--list"))?;
    for applet in applets.lines().filter(|applet| *applet != "busybox") {
        symlink("busybox", bin.join(applet)).with_context(|| format!("link {applet}"))?;
    }
    let command = [
        "/bin/sh",
        "-c",
        "trap 'exit 0' TERM INT; sleep 2147483647 & wait",
    ];
    pack(dir, &[BUSYBOX, PAUSE], &command)
}

/// An archive of an image whose only layer is `layer` in `dir`.
pub(crate) fn pack(dir: &Path, names: &[&str], command: &[&str]) -> Result<PathBuf> {
    tar(dir, "layer.tar", &["-C", "layer", "."])?;
    let sum = run(Command::new("sha256sum").arg(dir.join("layer.tar")))?;
    let digest = sum.split_whitespace().next().unwrap_or_default();
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let config = json!({
        "architecture": architecture,
        "os": "linux",
        "config": { "Env": ["PATH=/bin"], "Cmd": command },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{digest}")] },
    });
    let manifest = json!([
        { "Config": "config.json", "RepoTags": names, "Layers": ["layer.tar"] }
    ]);
    for (name, content) in [("config.json", config), ("manifest.json", manifest)] {
        fs::write(dir.join(name), content.to_string()).with_context(|| format!("write {name}"))?;
    }
    tar(
        dir,
        "image.tar",
        &["manifest.json", "config.json", "layer.tar"],
    )?;
    Ok(dir.join("image.tar"))
}

fn tar(dir: &Path, file: &str, what: &[&str]) -> Result<()> {
    run(Command::new("tar")
        .current_dir(dir)
        .args(["--owner=0", "--group=0", "-cf", file])
        .args(what))?;
    Ok(())
}

/// What the command printed, or why it failed.
pub(crate) fn run(command: &mut Command) -> Result<String> {
    let output = command
        .output()
        .with_context(|| format!("run {:?}", command.get_program()))?;
    if !output.status.success() {
        bail!(
            "{:?} failed ({}): {}{}",
            command,
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
