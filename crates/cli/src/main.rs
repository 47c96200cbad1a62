//! The `berth` command.
//!
//! Promises: what it prints on stdout is the answer (a table, or JSON with `--output json`), what
//! goes wrong goes to stderr with its whole chain of causes, and the exit code tells scripts which
//! kind of thing went wrong ([`exit`]).

mod addresses;
mod allocate;
mod exit;
mod output;
mod pools;
mod release;
mod store;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use output::Format;
use store::StoreArgs;

/// musl's allocator and glibc's arenas both cost a daemon more than this one.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

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
    /// List pools, how full they are, and what is wrong with them.
    Pools(pools::Pools),
    /// List allocated addresses.
    Addresses(addresses::Addresses),
    /// Who holds this address?
    Who(addresses::Who),
    /// Allocate an address by hand.
    Allocate(allocate::Allocate),
    /// Release an address by hand. Asks first.
    Release(release::Release),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    exit::report(run(cli))
}

fn run(cli: Cli) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        match cli.command {
            Command::Pools(command) => command.run(cli.store.open().await?, cli.output).await,
            Command::Addresses(command) => command.run(cli.store.open().await?, cli.output).await,
            Command::Who(command) => command.run(cli.store.open().await?, cli.output).await,
            Command::Allocate(command) => {
                command
                    .run(cli.store.open_or_create().await?, cli.output)
                    .await
            }
            Command::Release(command) => command.run(cli.store.open().await?, cli.output).await,
        }
    })
}
