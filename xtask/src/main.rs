//! `cargo xtask`: the repository's own commands.

mod parts;

use clap::Parser;

#[derive(Parser)]
#[command(about = "Berth's own commands")]
enum Task {
    /// Install and build the real parts that tests run against (once, into a cache).
    Parts,
}

fn main() -> anyhow::Result<()> {
    match Task::parse() {
        Task::Parts => {
            parts::ensure()?;
            parts::cargo_deny()?;
            Ok(())
        }
    }
}
