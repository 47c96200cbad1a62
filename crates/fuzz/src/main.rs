//! The fuzz targets with a simple mutator: for machines without a nightly toolchain.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use berth_fuzz::mutate::Mutator;
use berth_fuzz::{TARGETS, seeds};
use clap::Parser;

#[derive(Parser)]
#[command(about = "Feeds one fuzz target with mutated seeds")]
struct Args {
    target: String,
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Repeats the run of that number.
    #[arg(long)]
    seed: Option<u64>,
}

#[allow(clippy::print_stderr)]
fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let target = TARGETS.iter().find(|target| target.name == args.target);
    let target = target.with_context(|| format!("there is no target {}", args.target))?;
    let seed = args.seed.unwrap_or_else(rand::random);
    eprintln!("{}: seed {seed}", target.name);
    let mut mutator = Mutator::new(seed, seeds(target.name)?);
    let end = Instant::now() + Duration::from_secs(args.seconds);
    let mut count = 0_u64;
    while Instant::now() < end {
        let input = mutator.next_input();
        count += 1;
        if catch_unwind(AssertUnwindSafe(|| (target.run)(&input))).is_err() {
            let file = std::env::temp_dir().join(format!("berth-fuzz-{}-{seed}", target.name));
            std::fs::write(&file, &input)?;
            bail!("input {count} panicked; it is in {}", file.display());
        }
    }
    eprintln!("{}: {count} inputs, no panic", target.name);
    Ok(())
}
