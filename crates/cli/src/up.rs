//! `berth up`: Berth on this machine, working, in one command.
//!
//! Starts the real agent on an SQLite file, has the real CNI plugin allocate addresses for a few simulated pods, shows
//! them, and keeps serving. It needs no cluster and no root: an IPAM plugin changes no interface. A second run finds
//! the allocations of the first.

mod plugin;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use berth_agent::AgentConfig;
use berth_front::Node;
use berth_pods::node::PodFront;
use clap::Args;
use serde::Serialize;

use crate::allocate::NETWORKS;
use crate::exit::Negative;
use crate::output::{self, Format, Row};
use crate::store::state_directory;
use plugin::{Attachment, Plugin};

/// The example network, dual stack, as in a NetworkAttachmentDefinition.
const NETWORK: &str = r#"{
  "cniVersion": "1.1.0",
  "name": "example",
  "type": "macvlan",
  "ipam": {
    "type": "berth",
    "ipRanges": [
      { "range": "10.77.0.0/24", "exclude": ["10.77.0.0/29"] },
      { "range": "fd77::/64" }
    ]
  }
}"#;

const PODS: &[&str] = &["web-0", "web-1", "web-2", "queue-0", "report-28391"];

#[derive(Debug, Args)]
pub struct Up {
    /// The directory of ledger and socket [default: $XDG_STATE_HOME/berth or ~/.local/state/berth].
    #[arg(long, value_name = "DIRECTORY", env = "BERTH_STATE")]
    state: Option<PathBuf>,
    /// Allocate, show, and exit.
    #[arg(long)]
    once: bool,
    /// The CNI plugin binary [default: `berth-cni` next to this program].
    #[arg(long, value_name = "FILE", env = "BERTH_PLUGIN")]
    plugin: Option<PathBuf>,
}

#[derive(Debug, Serialize)]
struct Attached {
    pod: String,
    interface: String,
    addresses: Vec<String>,
    /// Whether an earlier run had allocated them.
    kept: bool,
    milliseconds: f64,
}

impl Row for Attached {
    const COLUMNS: &'static [&'static str] = &["pod", "interface", "addresses", "state", "took"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.pod.clone(),
            self.interface.clone(),
            self.addresses.join(", "),
            if self.kept { "kept" } else { "new" }.to_owned(),
            format!("{:.1} ms", self.milliseconds),
        ]
    }
}

impl Up {
    pub async fn run(&self, format: Format) -> anyhow::Result<()> {
        let state = match &self.state {
            Some(state) => state.clone(),
            None => state_directory()?,
        };
        make_private(&state)?;
        leave_network(&state)?;
        let plugin = Plugin::find(self.plugin.as_deref())?;
        let (socket, database) = (state.join("berth.sock"), state.join("berth.db"));
        let config = AgentConfig {
            socket: socket.clone(),
            listen: None,
            node: Node {
                database: database.clone(),
                ..Node::default()
            },
            fronts: vec![Box::new(PodFront {
                flat_places: Some(Vec::new()),
                definition_paths: Some(Vec::new()),
                ..PodFront::default()
            })],
        };
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let mut agent = tokio::spawn(berth_agent::serve(config, async {
            let _ = stopped.await;
        }));
        ready(&socket, &mut agent).await?;
        let attached = attach_all(&plugin, &socket, &database).await?;
        output::print(format, &attached)?;
        if format == Format::Table {
            output::print_line(&what_next(&state, &socket, self.once))?;
        }
        if !self.once {
            tokio::select! {
                ended = &mut agent => {
                    ended.context("the agent's task")??;
                    bail!("the agent ended by itself");
                }
                signal = tokio::signal::ctrl_c() => signal.context("waiting for Ctrl-C")?,
            }
        }
        let _ = stop.send(());
        agent.await.context("the agent's task")??;
        Ok(())
    }
}

fn make_private(state: &Path) -> anyhow::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(state)
        .with_context(|| {
            format!(
                "{} can't be made; name another with --state",
                state.display()
            )
        })
}

/// Stores the example network where `berth allocate --network example` finds it.
fn leave_network(state: &Path) -> anyhow::Result<()> {
    let directory = state.join(NETWORKS);
    make_private(&directory)?;
    let file = directory.join("example.json");
    std::fs::write(&file, NETWORK).with_context(|| file.display().to_string())
}

/// The command line that uses this file, whatever else is set.
fn command(state: &Path) -> String {
    let decided = ["KUBECONFIG", "BERTH_KUBECONFIG", "KUBERNETES_SERVICE_HOST"];
    let elsewhere = decided.iter().any(|name| std::env::var_os(name).is_some());
    match state_directory() {
        Ok(usual) if usual == state && !elsewhere => "berth".to_owned(),
        _ => format!("berth --database {}", state.join("berth.db").display()),
    }
}

/// Waits until the agent answers, or returns why it does not start.
async fn ready(
    socket: &Path,
    agent: &mut tokio::task::JoinHandle<Result<(), berth_agent::AgentError>>,
) -> anyhow::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        if tokio::net::UnixStream::connect(socket).await.is_ok() && !agent.is_finished() {
            return Ok(());
        }
        if agent.is_finished() {
            agent
                .await
                .context("the agent's task")?
                .context("the agent does not start")?;
            bail!("the agent ended at once");
        }
        if Instant::now() > deadline {
            bail!(
                "the agent does not listen on {} after 10 s",
                socket.display()
            );
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// One CNI ADD per simulated pod, by the plugin binary, one after the other.
async fn attach_all(
    plugin: &Plugin,
    socket: &Path,
    database: &Path,
) -> anyhow::Result<Vec<Attached>> {
    let ledger = berth_ledger::SqliteLedger::open(database)?;
    let before = plugin::held(&ledger).await?;
    let mut attached = Vec::new();
    for pod in PODS {
        let attachment = Attachment {
            pod: format!("demo/{pod}"),
            container: format!("example-{pod}"),
            interface: "net1".to_owned(),
        };
        let started = Instant::now();
        let addresses = plugin
            .add(&attachment, NETWORK, socket)
            .await
            .with_context(|| format!("an address for {}", attachment.pod))?;
        let milliseconds = started.elapsed().as_secs_f64() * 1000.0;
        if addresses.is_empty() {
            bail!(Negative::Refused(format!(
                "{} got no address",
                attachment.pod
            )));
        }
        let kept = addresses.iter().all(|address| before.contains(address));
        attached.push(Attached {
            pod: attachment.pod,
            interface: attachment.interface,
            addresses,
            kept,
            milliseconds,
        });
    }
    Ok(attached)
}

fn what_next(state: &Path, socket: &Path, once: bool) -> String {
    let berth = command(state);
    let mut lines = vec![
        String::new(),
        format!("ledger {}", state.join("berth.db").display()),
        format!("socket {}", socket.display()),
        String::new(),
        "What to try next:".to_owned(),
        format!("  {berth} pools                     how full each pool is"),
        format!("  {berth} addresses -o json         every allocation, for a program"),
        format!("  {berth} who 10.77.0.8             who holds this address"),
        format!(
            "  {berth} allocate --network example --owner demo/printer --note \"second floor\""
        ),
        format!("  {berth} release 10.77.0.8         releases it; asks first"),
        "(`berth` is target/debug/berth in a checkout; `cargo run -- pools` does the same.)"
            .to_owned(),
    ];
    if !once {
        lines.push(String::new());
        lines.push("Serving until Ctrl-C.".to_owned());
    }
    lines.join("\n")
}
