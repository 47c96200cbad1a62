//! `berth install`: the entry point of the daemon set, and of a person on a node.
//!
//! Flags and variables of whereabouts' installer have the same meaning here. An empty variable counts as unset:
//! manifests leave them empty.

use std::path::{Path, PathBuf};

use anyhow::Context;
use berth_cni::wire::DEFAULT_SOCKET;
use berth_install::{
    Action, ClusterSource, Fate, Layout, Placed, Removed, Report, Settings, Wanted, install,
    reconcile, remove,
};
use clap::builder::{OsStringValueParser, TypedValueParser};
use serde::Serialize;

use crate::daemon;
use crate::fronts;
use crate::logs::{self, LogFormat};
use crate::output::{self, Format, Row};

#[derive(Debug, clap::Args)]
pub struct InstallArgs {
    /// Install and exit, instead of running on and rewriting the kubeconfig when the token or the CA changes.
    #[arg(long, conflicts_with = "remove")]
    once: bool,
    /// Remove what was installed, and restore what was there before.
    #[arg(long)]
    remove: bool,
    /// On SIGTERM, remove what was installed.
    #[arg(long, env = "BERTH_REMOVE_ON_EXIT", value_parser = switch, num_args = 0..=1, default_value = "false",
        default_missing_value = "true", require_equals = true, value_name = "BOOL")]
    remove_on_exit: bool,
    /// Install only the programs, for a node outside any cluster: addresses are then kept in the node's own store.
    #[arg(long)]
    standalone: bool,

    /// The root of the host's file system [default: /host if that is a directory, else /].
    #[arg(long, env = "BERTH_HOST_ROOT", value_parser = path(), value_name = "DIR")]
    host_root: Option<PathBuf>,
    /// The directory of CNI plugins [default: detected: k3s, RKE2, containerd's configuration, /opt/cni/bin].
    #[arg(long, env = "CNI_BIN_DIR", value_parser = path(), value_name = "DIR")]
    cni_bin_dir: Option<PathBuf>,
    /// The directory of CNI configurations [default: detected: k3s, RKE2, containerd's configuration, /etc/cni/net.d].
    #[arg(long, env = "CNI_CONF_DIR", value_parser = path(), value_name = "DIR")]
    cni_conf_dir: Option<PathBuf>,
    /// The CNI plugin [default: berth-cni next to this program].
    #[arg(long, env = "BERTH_PLUGIN", value_parser = path(), value_name = "FILE")]
    plugin: Option<PathBuf>,
    /// The engine that the plugin runs when no agent listens [default: this program].
    #[arg(long, env = "BERTH_ENGINE", value_parser = path(), value_name = "FILE")]
    engine: Option<PathBuf>,

    /// The node's name in the cluster.
    #[arg(long, env = "NODENAME", value_name = "NAME")]
    node: Option<String>,
    /// The namespace of the pools [default: the service account's, else kube-system].
    #[arg(long, env = "WHEREABOUTS_NAMESPACE", value_name = "NAME")]
    namespace: Option<String>,
    /// The file with the service account's token.
    #[arg(
        long,
        value_name = "FILE",
        default_value = "/var/run/secrets/kubernetes.io/serviceaccount/token"
    )]
    token_file: PathBuf,
    /// The file with the cluster's CA [default: ca.crt next to the token].
    #[arg(long, env = "KUBE_CA_FILE", value_parser = path(), value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// Do not verify the API server's certificate.
    #[arg(long, env = "SKIP_TLS_VERIFY", value_parser = switch, num_args = 0..=1, default_value = "false",
        default_missing_value = "true", require_equals = true, value_name = "BOOL")]
    skip_tls_verify: bool,
    /// The protocol of the API server.
    #[arg(
        long,
        env = "KUBERNETES_SERVICE_PROTOCOL",
        value_name = "SCHEME",
        default_value = "https"
    )]
    api_protocol: String,
    /// The host of the API server.
    #[arg(long, env = "KUBERNETES_SERVICE_HOST", value_name = "HOST")]
    api_host: Option<String>,
    #[arg(long, env = "KUBERNETES_SERVICE_PORT", value_name = "PORT")]
    api_port: Option<String>,
    /// The file mode of kubeconfig, flat file and node name.
    #[arg(long, env = "KUBECONFIG_MODE", value_name = "OCTAL", value_parser = mode, default_value = "600")]
    kubeconfig_mode: u32,
    /// Written into the flat file, for a whereabouts that is installed again.
    #[arg(
        long,
        env = "WHEREABOUTS_RECONCILER_CRON",
        value_name = "CRON",
        default_value = "30 4 * * *"
    )]
    reconciler_cron: String,
    /// The socket of this node's agent, as the host sees it: the installed plugin and engine use it [default:
    /// /run/berth/berth.sock].
    #[arg(long, env = "BERTH_SOCKET", value_parser = path(), value_name = "SOCKET")]
    socket: Option<PathBuf>,
    #[arg(long, value_enum, default_value_t)]
    log_format: LogFormat,
}

impl InstallArgs {
    /// `database`: the node's file, which the engine next to the plugin must use.
    pub fn run(self, database: PathBuf, output: Format) -> anyhow::Result<()> {
        logs::start("info", self.log_format);
        let layout = Layout::locate(&Wanted {
            host_root: set(self.host_root.as_deref()),
            bin_dir: set(self.cni_bin_dir.as_deref()),
            conf_dir: set(self.cni_conf_dir.as_deref()),
        })?;
        tracing::info!(
            bin = %layout.bin.here.display(), conf = %layout.conf.here.display(), because = %layout.because,
            "the node's CNI directories"
        );
        if self.remove {
            return taken_away(&layout, output);
        }
        let settings = self.settings(layout, database)?;
        if self.once {
            return placed(output, install(&settings)?);
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("the runtime can't be started")?;
        runtime.block_on(async {
            // Before the first file is written: an early signal must still remove everything.
            let stopped = daemon::stop_signal()?;
            placed(output, install(&settings)?)?;
            anyhow::Ok(reconcile(&settings, stopped).await?)
        })?;
        match self.remove_on_exit {
            true => taken_away(&settings.layout, output),
            false => Ok(()),
        }
    }

    fn settings(&self, layout: Layout, database: PathBuf) -> anyhow::Result<Settings> {
        let this = std::env::current_exe().context("find this program's own file")?;
        let plugin =
            set(self.plugin.as_deref()).unwrap_or_else(|| this.with_file_name("berth-cni"));
        let beside = || self.token_file.with_file_name("ca.crt");
        let cluster = ClusterSource {
            token_file: self.token_file.clone(),
            ca_file: set(self.ca_file.as_deref()).unwrap_or_else(beside),
            skip_tls_verify: self.skip_tls_verify,
            protocol: named(Some(&self.api_protocol)).unwrap_or_else(|| "https".to_owned()),
            host: named(self.api_host.as_deref()),
            port: named(self.api_port.as_deref()),
            namespace: named(self.namespace.as_deref()),
        };
        Ok(Settings {
            layout,
            plugin,
            plugin_names: fronts::plugin_names(),
            texts: fronts::INSTALLED_TEXTS,
            engine: set(self.engine.as_deref()).unwrap_or(this),
            cluster: (!self.standalone).then_some(cluster),
            database,
            socket: set(self.socket.as_deref()).unwrap_or_else(|| DEFAULT_SOCKET.into()),
            node: named(self.node.as_deref()),
            mode: self.kubeconfig_mode,
            cron: self.reconciler_cron.clone(),
        })
    }
}

fn set(path: Option<&Path>) -> Option<PathBuf> {
    path.filter(|path| !path.as_os_str().is_empty())
        .map(Path::to_owned)
}

fn named(text: Option<&str>) -> Option<String> {
    text.filter(|text| !text.is_empty()).map(str::to_owned)
}

/// A path that may be empty, where clap's own may not.
fn path() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

/// Only `true` turns TLS verification off; other values are refused as mistakes.
fn switch(text: &str) -> Result<bool, String> {
    match text {
        "true" => Ok(true),
        "false" | "" => Ok(false),
        _ => Err("true or false is expected".to_owned()),
    }
}

fn mode(text: &str) -> Result<u32, String> {
    if text.is_empty() {
        return Ok(0o600);
    }
    match u32::from_str_radix(text, 8) {
        // A mode that the owner can't read is useless.
        Ok(mode) if mode <= 0o777 && mode & 0o400 != 0 => Ok(mode),
        _ => Err("an octal mode that lets the owner read is expected, like 600".to_owned()),
    }
}

#[derive(Serialize)]
#[serde(transparent)]
struct Installed(Placed);

impl Row for Installed {
    const COLUMNS: &'static [&'static str] = &["file", "state", "before berth"];

    fn cells(&self) -> Vec<String> {
        let state = match self.0.action {
            Action::Written => "written",
            Action::Unchanged => "unchanged",
        };
        let aside = self.0.aside.as_deref().map(file_name);
        vec![
            self.0.path.display().to_string(),
            state.to_owned(),
            aside.unwrap_or_else(|| "-".to_owned()),
        ]
    }
}

fn placed(output: Format, report: Report) -> anyhow::Result<()> {
    for warning in &report.warnings {
        tracing::warn!("{warning}");
    }
    let rows: Vec<Installed> = report.files.into_iter().map(Installed).collect();
    output::print(output, &rows)
}

#[derive(Serialize)]
#[serde(transparent)]
struct Gone(Removed);

impl Row for Gone {
    const COLUMNS: &'static [&'static str] = &["file", "state"];

    fn cells(&self) -> Vec<String> {
        let state = match self.0.fate {
            Fate::Removed => "removed".to_owned(),
            Fate::Restored => "as before berth".to_owned(),
            Fate::Absent => "gone already".to_owned(),
            Fate::Changed => match self.0.aside.as_deref() {
                Some(aside) => format!(
                    "left: changed by others; before berth it was {}",
                    file_name(aside)
                ),
                None => "left: changed by others".to_owned(),
            },
        };
        vec![self.0.path.display().to_string(), state]
    }
}

fn taken_away(layout: &Layout, output: Format) -> anyhow::Result<()> {
    let rows: Vec<Gone> = remove(layout)?.into_iter().map(Gone).collect();
    output::print(output, &rows)
}

fn file_name(path: &Path) -> String {
    path.file_name()
        .unwrap_or(path.as_os_str())
        .to_string_lossy()
        .into_owned()
}
