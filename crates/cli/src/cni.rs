//! `berth cni`: one CNI call in this process. What the plugin runs where no agent listens.

use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use berth_agent::OnceConfig;
use berth_cni::wire::{Answer, Request};
use berth_cni::{CniError, Code, Environment, NetConf};
use berth_install::Pointer;
use berth_pods::config::flat;

use crate::logs::{self, LogFormat};
use crate::node::{self, ClusterArgs};

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
}

impl CniArgs {
    pub fn run(self, database: PathBuf) -> ExitCode {
        logs::start("warn", LogFormat::Text);
        let answer = self
            .serve(database)
            .unwrap_or_else(|error| Answer::failure(error.render(None)));
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

    fn serve(self, database: PathBuf) -> Result<Answer, CniError> {
        let environment = Environment::from_process();
        let mut stdin = String::new();
        if environment.command != "VERSION" {
            io::stdin()
                .lock()
                .read_to_string(&mut stdin)
                .map_err(|error| {
                    CniError::new(Code::Io, format!("stdin cannot be read: {error}"))
                })?;
        }
        let installed = installed()?;
        let mut places: Vec<PathBuf> = flat::PLACES.iter().map(PathBuf::from).collect();
        // After the usual places: an agent knows those, and the two must read the same.
        places.extend(installed.iter().map(|found| found.configuration.join(FLAT)));
        let config = OnceConfig {
            database,
            node: node::name(self.node, &homes(&stdin, &places)).unwrap_or_default(),
            cluster: self.cluster.connect(),
            flat_places: Some(places),
            installed: installed.map(|found| found.path),
        };
        let request = Request::new(&self.plugin, environment, stdin);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| CniError::new(Code::Internal, format!("no runtime: {error}")))?;
        Ok(runtime.block_on(berth_agent::once(config, &request)))
    }
}

/// What the installation of this program left beside it.
fn installed() -> Result<Option<Pointer>, CniError> {
    let Ok(engine) = std::env::current_exe() else {
        return Ok(None);
    };
    Pointer::beside(&engine).map_err(|error| CniError::new(Code::Io, error.to_string()))
}

/// Where the node's name may be. What can't be read here is the front's to complain of.
fn homes(stdin: &str, places: &[PathBuf]) -> Vec<PathBuf> {
    let Ok(conf) = NetConf::parse(stdin) else {
        return Vec::new();
    };
    let file = flat::find(&conf, places).ok().flatten();
    flat::homes(&conf, file.as_ref())
}
