//! The `berth` command.
//!
//! Promises: what it prints on stdout is the answer (a table, or JSON with `--output json`), what
//! goes wrong goes to stderr with its whole chain of causes, and the exit code tells scripts which
//! kind of thing went wrong ([`exit`]).

mod addresses;
mod agent;
mod agent_client;
mod allocate;
mod cni;
mod controller;
mod daemon;
mod documents;
mod exit;
mod find;
mod fronts;
mod gcp;
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
mod store;
mod up;
mod vm;
mod vm_client;

use std::ffi::OsString;
use std::process::ExitCode;

use berth_front::Kind;
use clap::{Parser, Subcommand};

use output::Format;
use store::StoreArgs;

/// IP addresses for pods, VMs and nodes: never the same one twice, none leaked.
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

    /// How to print answers.
    #[arg(long, short, global = true, value_enum, default_value_t = Format::Table)]
    output: Format,

    #[command(flatten)]
    store: StoreArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start an agent on this machine with an example network and allocate from it: no cluster, no root.
    Up(up::Up),
    /// List pools, how full they are, and what is wrong with them.
    Pools(pools::Pools),
    /// List allocated addresses.
    Addresses(addresses::Addresses),
    /// Who holds this address?
    Who(addresses::Who),
    /// Allocate an address by hand, for what is no pod. It stays until it is released.
    Allocate(allocate::Allocate),
    /// Release an address by hand, or end its cooldown. Asks first; a pod that lives keeps its address.
    Release(release::Release),
    /// Which address has which offset in a NodeIPPool, of the cluster or of a file.
    Offsets(offsets::Offsets),
    /// Generate the state of a NodeNetworkConfigurationPolicy, with nmpolicyctl's arguments: `berth policy gen --help`.
    Policy(policy::PolicyArgs),
    /// Run the node's agent: serve CNI calls on a unix socket.
    Agent(Box<agent::AgentArgs>),
    /// Run the cluster's controller: cut ranges into node slices. Two replicas: one leads, one is ready to.
    Controller(controller::ControllerArgs),
    /// Pools of pre-created VMs, through the agent.
    Vm(vm::Vm),
    /// Serve one CNI call from the environment and stdin, without an agent.
    Cni(cni::CniArgs),
    /// Pods that keep their address on Google Cloud: provision, install, check.
    #[command(subcommand)]
    Gcp(gcp::Gcp),
    /// Put the CNI plugin and its configuration on this node and keep them fresh, or take them away.
    Install(install::InstallArgs),
}

pub use fronts::KINDS;

/// Runs the command with these arguments, the program's name first. `kinds` are the kinds of pools that fronts keep in
/// objects of their own.
pub fn main(arguments: impl Iterator<Item = OsString>, kinds: &[Kind]) -> ExitCode {
    let cli = Cli::parse_from(arguments);
    // Their own runtimes: a daemon's has few threads, a single call's has one.
    match cli.command {
        Command::Agent(args) => exit::report(args.run(cli.store.node_database())),
        Command::Cni(args) => args.run(cli.store),
        Command::Controller(args) => exit::report(args.run(kinds)),
        Command::Gcp(command) => exit::report(command.run(cli.store, cli.output)),
        Command::Policy(args) => exit::report(args.run()),
        Command::Install(args) => exit::report(args.run(cli.store.node_database(), cli.output)),
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
            | Command::Install(_) => Ok(()),
        }
    })
}
