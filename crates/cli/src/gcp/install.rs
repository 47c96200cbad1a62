//! `berth gcp install`: installs the plugin on a node, and switches the node's pod network to it while this runs.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use berth_gcp::install::conflist::{GCP_IPAM, HOST_LOCAL};
use berth_gcp::install::{CONFLISTS, FileError, Followed, Programs, follow, place_binary, switch};
use clap::Args;
use serde::Serialize;

use crate::daemon;
use crate::exit::Negative;
use crate::logs::{self, LogFormat};
use crate::output::{self, Format, Row};

#[derive(Debug, Args)]
pub struct Install {
    /// Switch the existing configurations and exit, instead of following later changes.
    #[arg(long, conflicts_with = "revert")]
    once: bool,
    /// Switch the configurations back to host-local and exit. The programs stay: a call may be in progress.
    #[arg(long)]
    revert: bool,
    /// The directory of the node's CNI plugins.
    #[arg(
        long,
        env = "CNI_BIN_DIR",
        value_name = "DIR",
        default_value = "/home/kubernetes/bin"
    )]
    cni_bin_dir: PathBuf,
    /// The directory of the node's CNI configurations.
    #[arg(
        long,
        env = "CNI_CONF_DIR",
        value_name = "DIR",
        default_value = "/etc/cni/net.d"
    )]
    cni_conf_dir: PathBuf,
    /// The plugin to install.
    #[arg(
        long,
        env = "BERTH_PLUGIN",
        value_name = "FILE",
        default_value = "/app/gcp-ipam"
    )]
    plugin: PathBuf,
    /// The engine that the plugin runs when no agent listens [default: this program].
    #[arg(long, env = "BERTH_ENGINE", value_name = "FILE")]
    engine: Option<PathBuf>,
    #[arg(long, value_enum, default_value_t)]
    log_format: LogFormat,
}

impl Install {
    pub async fn run(self, output: Format) -> anyhow::Result<()> {
        logs::start("info", self.log_format);
        if self.revert {
            return switched(&self.cni_conf_dir, HOST_LOCAL, output);
        }
        // Before the first file is written: an early signal must still revert everything.
        let stop = daemon::stop_signal()?;
        let programs = self.programs()?;
        for (source, target) in &programs.0 {
            let placed = place_binary(source, target).map_err(failed)?;
            tracing::info!(file = %target.display(), placed, "the node's program");
        }
        if self.once {
            return switched(&self.cni_conf_dir, GCP_IPAM, output);
        }
        follow(&self.cni_conf_dir, &programs, stop, say).await;
        Ok(())
    }

    fn programs(&self) -> anyhow::Result<Programs> {
        let engine = match &self.engine {
            Some(file) => file.clone(),
            None => std::env::current_exe().context("find this program's own file")?,
        };
        let target = |name: &str| self.cni_bin_dir.join(name);
        // The engine first: the plugin searches it next to itself.
        Ok(Programs(vec![
            (engine, target("berth-full")),
            (self.plugin.clone(), target(GCP_IPAM)),
        ]))
    }
}

fn failed(error: FileError) -> anyhow::Error {
    match error {
        FileError::Io { .. } => error.into(),
        error => Negative::Broken(error.to_string()).into(),
    }
}

fn say(event: Followed) {
    match event {
        Followed::Switched(path) => {
            tracing::info!(file = %path.display(), "switched to {GCP_IPAM}");
        }
        Followed::Reverted(path) => {
            tracing::info!(file = %path.display(), "switched back to {HOST_LOCAL}");
        }
        Followed::Placed(path) => tracing::info!(file = %path.display(), "placed again"),
        Followed::Left { path, why } => tracing::error!(file = %path.display(), "{why}"),
        Followed::Waiting(dir) => tracing::warn!(
            "{} has neither {}: waiting for the pod network's own installer",
            dir.display(),
            CONFLISTS.join(" nor ")
        ),
    }
}

#[derive(Serialize)]
struct Conflist {
    file: PathBuf,
    state: String,
}

impl Row for Conflist {
    const COLUMNS: &'static [&'static str] = &["file", "state"];

    fn cells(&self) -> Vec<String> {
        vec![self.file.display().to_string(), self.state.clone()]
    }
}

/// Every configuration once; an error of one does not stop the others.
fn switched(dir: &Path, wanted: &str, output: Format) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    let mut left = Vec::new();
    for name in CONFLISTS {
        let file = dir.join(name);
        let state = match (switch(&file, wanted), file.symlink_metadata()) {
            (Ok(true), _) => format!("switched to {wanted}"),
            (Ok(false), Err(_)) => "not there".to_owned(),
            (Ok(false), Ok(_)) => format!("{wanted} already"),
            (Err(error), _) => {
                left.push(error.to_string());
                "left as it is".to_owned()
            }
        };
        rows.push(Conflist { file, state });
    }
    output::print(output, &rows)?;
    if !left.is_empty() {
        bail!(Negative::Broken(left.join("; ")));
    }
    if rows.iter().all(|row| row.state == "not there") && wanted == GCP_IPAM {
        bail!(Negative::NotFound(format!(
            "{} has neither {}",
            dir.display(),
            CONFLISTS.join(" nor ")
        )));
    }
    Ok(())
}
