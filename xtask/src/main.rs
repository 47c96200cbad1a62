//! `cargo xtask`: the repository's own commands.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod advisories;
mod bench;
mod compute;
mod fuzz;
mod parallel_tests;
mod parts;
mod release;
mod settings;
mod size;
mod steps;
mod test;

use berth_parts::Tool;
use clap::Parser;

#[derive(Parser)]
#[command(about = "Berth's own commands")]
enum Task {
    /// Install and build what the tests need, then check and test everything.
    Test(test::Test),
    /// Install and build the real parts that tests run against (once, into a cache).
    Parts,
    /// Build the CNI plugin as it ships: static, small.
    Plugin,
    /// Run the benchmarks behind docs/figures.md.
    Bench(bench::Bench),
    /// Run the tests' local Google Cloud as a program.
    Compute(compute::Compute),
    /// Fuzz the parsers of untrusted input.
    Fuzz(fuzz::Fuzz),
    /// Write docs/settings.md from the code.
    Settings,
    /// Count lines of code and public items of each crate of the product.
    Size(size::Size),
    /// Build the release: the static programs, their checksums and their bills of materials.
    Release,
}

fn main() -> anyhow::Result<()> {
    match Task::parse() {
        Task::Test(test) => test.run(),
        Task::Parts => {
            parts::ensure()?;
            parts::tool(Tool::Deny)?;
            Ok(())
        }
        Task::Plugin => test::plugin(),
        Task::Bench(bench) => bench.run(),
        Task::Compute(compute) => compute.run(),
        Task::Fuzz(fuzz) => fuzz.run(),
        Task::Release => release::run(),
        Task::Settings => settings::run(),
        Task::Size(size) => size.run(),
    }
}
