//! `cargo xtask`: the repository's own commands.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod bench;
mod lanes;
mod parts;
mod steps;
mod test;

use clap::Parser;

#[derive(Parser)]
#[command(about = "Berth's own commands")]
enum Task {
    /// Install and build what the tests need, then check and test everything.
    Test,
    /// Install and build the real parts that tests run against (once, into a cache).
    Parts,
    /// Build the CNI plugin as it ships: static, small.
    Plugin,
    /// Measure; every figure of the README comes from here.
    Bench(bench::Bench),
}

fn main() -> anyhow::Result<()> {
    match Task::parse() {
        Task::Test => test::run(),
        Task::Parts => {
            parts::ensure()?;
            parts::cargo_deny()?;
            Ok(())
        }
        Task::Plugin => test::plugin(),
        Task::Bench(bench) => bench.run(),
    }
}
