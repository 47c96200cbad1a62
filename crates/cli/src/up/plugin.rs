//! The real plugin binary, run as a container runtime runs it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, bail};
use berth_ledger::{Ledger, SqliteLedger};
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

#[derive(Debug)]
pub struct Plugin {
    path: PathBuf,
}

/// What a runtime passes to a plugin about one interface of one container.
#[derive(Debug)]
pub struct Attachment {
    /// namespace/name.
    pub pod: String,
    pub container: String,
    pub interface: String,
}

impl Plugin {
    /// The named binary, or the one next to this program; in a checkout it is built.
    pub fn find(named: Option<&Path>) -> anyhow::Result<Self> {
        if let Some(path) = named {
            if !path.is_file() {
                bail!("--plugin: `{}` is not a file", path.display());
            }
            return Ok(Self {
                path: path.to_owned(),
            });
        }
        let beside = std::env::current_exe()
            .context("this program's own path")?
            .with_file_name("berth-cni");
        if beside.is_file() {
            return Ok(Self { path: beside });
        }
        match (
            std::env::var_os("CARGO"),
            std::env::var_os("CARGO_MANIFEST_DIR"),
        ) {
            (Some(cargo), Some(package)) => Self::build(Path::new(&cargo), Path::new(&package)),
            _ => bail!(
                "there is no CNI plugin at {}: install it there, or name it with --plugin",
                beside.display()
            ),
        }
    }

    /// `cargo run` builds one program; the plugin is another, with its own profile.
    #[allow(clippy::print_stderr)]
    fn build(cargo: &Path, package: &Path) -> anyhow::Result<Self> {
        eprintln!("building the CNI plugin (once)");
        let output = std::process::Command::new(cargo)
            .args(["build", "--package", "berth-plugin", "--profile", "plugin"])
            .args(["--message-format", "json-render-diagnostics"])
            .current_dir(package)
            .stderr(Stdio::inherit())
            .output()
            .context("cargo can't be started to build the CNI plugin")?;
        if !output.status.success() {
            bail!(
                "the CNI plugin could not be built: cargo ended with {}",
                output.status
            );
        }
        // Cargo reports the path of the binary: the target directory may be anywhere.
        let built = String::from_utf8_lossy(&output.stdout)
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .filter(|message| message["target"]["name"] == "berth-cni")
            .find_map(|message| message["executable"].as_str().map(PathBuf::from));
        let path = built.context("cargo did not say where it put the CNI plugin")?;
        Ok(Self { path })
    }

    /// One ADD; returns the addresses of the result.
    pub async fn add(
        &self,
        attachment: &Attachment,
        network: &str,
        socket: &Path,
    ) -> anyhow::Result<Vec<String>> {
        let (namespace, name) = attachment
            .pod
            .split_once('/')
            .unwrap_or(("default", &attachment.pod));
        let mut child = Command::new(&self.path)
            .env("CNI_COMMAND", "ADD")
            .env("CNI_CONTAINERID", &attachment.container)
            // Simulated pods have no network namespace.
            .env("CNI_NETNS", socket.with_file_name("no-netns"))
            .env("CNI_IFNAME", &attachment.interface)
            .env("CNI_PATH", self.path.parent().unwrap_or(Path::new("/")))
            .env(
                "CNI_ARGS",
                format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name}"),
            )
            .env("BERTH_SOCKET", socket)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("{} can't be started", self.path.display()))?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin
                .write_all(network.as_bytes())
                .await
                .context("the plugin's stdin")?;
        }
        let output = child.wait_with_output().await.context("the plugin")?;
        let result: Value =
            serde_json::from_slice(&output.stdout).context("the plugin's answer is not JSON")?;
        if !output.status.success() {
            let text = |key: &str| result[key].as_str().unwrap_or_default().to_owned();
            bail!("{} {}", text("msg"), text("details"));
        }
        let ips = result["ips"]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default();
        Ok(ips
            .iter()
            .filter_map(|ip| ip["address"].as_str().map(str::to_owned))
            .collect())
    }
}

/// Every allocated address, with its network's prefix length, as in results.
pub async fn held(ledger: &SqliteLedger) -> anyhow::Result<BTreeSet<String>> {
    let mut held = BTreeSet::new();
    for key in ledger.pools().await? {
        let snapshot = ledger.load(&key).await?;
        let length = key.network.map(|network| network.length());
        for (address, _) in snapshot.pool.records() {
            held.insert(length.map_or(address.to_string(), |length| format!("{address}/{length}")));
        }
    }
    Ok(held)
}
