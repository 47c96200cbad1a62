//! `berth gcp`: pods that keep their address on Google Cloud.

mod check;
mod cloud;
mod install;
mod nodes;
mod objects;
mod provision;

use anyhow::Context;
use clap::Subcommand;

use crate::output::Format;
use crate::store::StoreArgs;

#[derive(Debug, Subcommand)]
pub enum Gcp {
    /// Reserve the addresses of the cluster's subnet and create its IPPool, or undo that. Run it again to resume.
    Provision(provision::Provision),
    /// Install the plugin on this node and switch the node's pod network to it; back to host-local on SIGTERM.
    Install(install::Install),
    /// Compare IPPools, alias ranges and pods, and report limits that are nearly reached. Exits with 6 if there are
    /// errors.
    Check(check::Check),
}

impl Gcp {
    pub fn run(self, store: StoreArgs, output: Format) -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("the runtime can't be started")?;
        runtime.block_on(async {
            match self {
                Gcp::Provision(command) => command.run(&store, output).await,
                Gcp::Install(command) => command.run(output).await,
                Gcp::Check(command) => command.run(&store, output).await,
            }
        })
    }
}
