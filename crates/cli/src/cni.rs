//! `berth cni`: serves one CNI call in this process. The plugin runs it when no agent listens.

use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use berth_cni::conf::LONGEST_CONFIGURATION;
use berth_cni::wire::{Answer, DEFAULT_SOCKET, Request};
use berth_cni::{CniError, Code, Environment};
use berth_front::Node;
use berth_install::EngineConfig;
use berth_pods::config::NodeFiles;

use crate::fronts::CallArgs;
use crate::logs::{self, LogFormat};
use crate::node::{ClusterArgs, NodeFileArgs};
use crate::store::StoreArgs;

/// The flat file's name.
const FLAT: &str = "whereabouts.conf";

#[derive(Debug, clap::Args)]
pub struct CniArgs {
    /// The ipam.type to answer to: the name that the plugin was called by.
    #[arg(long, default_value = "berth")]
    plugin: String,
    /// The node's name [default: $NODENAME, then the machine's].
    #[arg(long)]
    node: Option<String>,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    files: NodeFileArgs,
    #[command(flatten)]
    fronts: CallArgs,
}

impl CniArgs {
    pub fn run(self, store: StoreArgs) -> ExitCode {
        logs::start("warn", LogFormat::Text);
        let answer = self
            .serve(&store)
            .unwrap_or_else(|error| Answer::failure(error.render(None)));
        let answer = match &answer.delegate {
            Some(delegate) => {
                let environment = Environment::from_process();
                let error = berth_cni::delegate::exec(delegate, &environment.path);
                Answer::failure(error.render(None))
            }
            None => answer,
        };
        let mut stdout = io::stdout().lock();
        let printed = match answer.stdout.is_empty() {
            true => Ok(()),
            false => writeln!(stdout, "{}", answer.stdout).and_then(|()| stdout.flush()),
        };
        match (printed, answer.exit) {
            (Ok(()), 0) => ExitCode::SUCCESS,
            _ => ExitCode::FAILURE,
        }
    }

    fn serve(self, store: &StoreArgs) -> Result<Answer, CniError> {
        let environment = Environment::from_process();
        let mut stdin = String::new();
        if environment.command != "VERSION" {
            stdin = read_stdin()?;
        }
        let installed = installed()?;
        let mut places = self.files.flat_places();
        // After the usual places: an agent uses those, and both must read the same file.
        places.extend(installed.iter().map(|found| found.configuration.join(FLAT)));
        let configured = installed.as_ref().and_then(|found| found.database.clone());
        let node = Node {
            // No definition names the node: it could name another one, and claim that node's slices.
            name: (self.files.name(self.node, &homes(&places))).unwrap_or_default(),
            // The agent's own file: a second file would allocate what the first has allocated (I1).
            database: store.node_database_or(configured),
            cluster: self.cluster.connect(),
            leader_desk: None,
            runtime: socket(installed.as_ref()).parent().map(PathBuf::from),
            installed: installed.map(|found| found.path),
        };
        let fronts = self.fronts.list(&node, places);
        let fronts = fronts.map_err(|error| CniError::new(Code::Config, error.to_string()))?;
        let request = Request::new(&self.plugin, environment, stdin);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| CniError::new(Code::Internal, format!("no runtime: {error}")))?;
        Ok(runtime.block_on(berth_agent::oneshot(&node, fronts, &request)))
    }
}

/// The agent's socket, as the calling plugin has it.
fn socket(installed: Option<&EngineConfig>) -> PathBuf {
    let configured = std::env::var_os("BERTH_SOCKET").filter(|configured| !configured.is_empty());
    let installed = || installed.and_then(|found| found.socket.clone());
    let named = configured.map(PathBuf::from).or_else(installed);
    named.unwrap_or_else(|| PathBuf::from(DEFAULT_SOCKET))
}

/// What the installer left next to this program.
pub(crate) fn installed() -> Result<Option<EngineConfig>, CniError> {
    let Ok(engine) = std::env::current_exe() else {
        return Ok(None);
    };
    EngineConfig::beside(&engine).map_err(|error| CniError::new(Code::Io, error.to_string()))
}

/// The network configuration. If it is too long, a piece that is too long as well.
fn read_stdin() -> Result<String, CniError> {
    let mut bytes = Vec::new();
    let longest = LONGEST_CONFIGURATION as u64 + 1;
    let read = io::stdin().lock().take(longest).read_to_end(&mut bytes);
    read.map_err(|error| CniError::new(Code::Io, format!("stdin cannot be read: {error}")))?;
    if bytes.len() > LONGEST_CONFIGURATION {
        return Ok(String::from_utf8_lossy(&bytes).into_owned());
    }
    String::from_utf8(bytes).map_err(|_| {
        CniError::new(
            Code::Decode,
            "the network configuration on stdin is not UTF-8",
        )
    })
}

/// Where the node's name may be.
fn homes(places: &[PathBuf]) -> Vec<PathBuf> {
    NodeFiles::of_known_cluster(places.to_vec()).homes()
}
