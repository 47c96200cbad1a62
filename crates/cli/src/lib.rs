//! The `berth` command.
//!
//! Guarantees: stdout has the answer (a table, or JSON with `--output json`), stderr has errors with their chain of
//! causes, and the exit code names the kind of failure for scripts ([`exit`]).

mod addresses;
mod agent;
mod agent_client;
mod allocate;
mod cni;
mod controller;
mod daemon;
mod documents;
mod exit;
mod fronts;
mod gcp;
mod holders;
mod host_program;
mod install;
mod logs;
mod node;
mod node_pool;
mod offsets;
mod output;
mod policy;
mod pools;
mod release;
mod settings;
mod store;
mod up;
mod vm;
mod vm_client;

use std::ffi::OsString;
use std::process::ExitCode;

use berth_front::Kind;
use clap::{CommandFactory, Parser, Subcommand};

use output::Format;
use store::StoreArgs;

/// Allocates IP addresses to pods, VMs and nodes: no duplicates, no leaks.
#[derive(Debug, Parser)]
#[command(
    name = "berth",
    version,
    propagate_version = true,
    arg_required_else_help = true
)]
struct Cli {
    #[command(subcommand)]
    command: Command,

    /// The output format.
    #[arg(long, short, global = true, value_enum, default_value_t = Format::Table)]
    output: Format,

    #[command(flatten)]
    store: StoreArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start an agent on this machine with an example network and allocate from it: no cluster, no root.
    Up(up::Up),
    /// List pools, how full they are, and their problems.
    Pools(pools::Pools),
    /// List allocated addresses.
    Addresses(addresses::Addresses),
    /// Show who holds an address.
    Who(addresses::Who),
    /// Allocate an address by hand, for an owner that is not a pod. It stays until it is released.
    Allocate(allocate::Allocate),
    /// Release an address by hand, or end its cooldown. Asks first; refuses while its pod runs.
    Release(release::Release),
    /// Convert between addresses and offsets of a NodeIPPool, from the cluster or a file.
    Offsets(offsets::Offsets),
    /// Generate the state of a NodeNetworkConfigurationPolicy, with nmpolicyctl's arguments: `berth policy gen --help`.
    Policy(policy::PolicyArgs),
    /// Run the node's agent: serve CNI calls on a unix socket.
    Agent(Box<agent::AgentArgs>),
    /// Run the cluster's controller: node slices, the leader desk, collection. Run two replicas; one leads.
    Controller(controller::ControllerArgs),
    /// Pools of pre-created VMs, through the agent.
    Vm(vm::Vm),
    /// Serve one CNI call from the environment and stdin, without an agent.
    Cni(cni::CniArgs),
    /// Pods that keep their address on Google Cloud: provision, install, check.
    #[command(subcommand)]
    Gcp(gcp::Gcp),
    /// Install the CNI plugin and its configuration on this node and keep them up to date, or remove them.
    Install(install::InstallArgs),
    /// Print docs/settings.md.
    #[command(hide = true)]
    Settings,
}

pub use fronts::KINDS;

/// Runs the command with these arguments, the program's name first. `kinds` are the kinds of pools that fronts keep in
/// their own objects.
pub fn main(arguments: impl Iterator<Item = OsString>, kinds: &[Kind]) -> ExitCode {
    let cli = Cli::parse_from(arguments);
    // Separate runtimes: a daemon's has few threads, a single call's has one.
    match cli.command {
        Command::Agent(args) => exit::report(args.run(cli.store.node_database())),
        Command::Cni(args) => args.run(cli.store),
        Command::Controller(args) => exit::report(args.run(kinds)),
        Command::Gcp(command) => exit::report(command.run(cli.store, cli.output)),
        Command::Policy(args) => exit::report(args.run()),
        Command::Install(args) => exit::report(args.run(cli.store.node_database(), cli.output)),
        Command::Settings => exit::report(settings::print(Cli::command())),
        command => exit::report(run(command, cli.store, cli.output, kinds)),
    }
}

fn run(command: Command, store: StoreArgs, output: Format, kinds: &[Kind]) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        match command {
            Command::Up(command) => command.run(output).await,
            Command::Pools(command) => command.run(store.open().await?, kinds, output).await,
            Command::Addresses(command) => command.run(store.open().await?, output).await,
            Command::Who(command) => command.run(store.open().await?, output).await,
            Command::Allocate(command) => command.run(store.open_or_create().await?, output).await,
            Command::Release(command) => command.run(store.open().await?, output).await,
            Command::Vm(command) => command.run(output).await,
            Command::Offsets(command) => command.run(&store, output).await,
            Command::Agent(_)
            | Command::Cni(_)
            | Command::Controller(_)
            | Command::Gcp(_)
            | Command::Policy(_)
            | Command::Install(_)
            | Command::Settings => Ok(()),
        }
    })
}
