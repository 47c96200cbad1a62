//! Fuzz targets: every parser of untrusted input, as a function of bytes.
//!
//! A target must not panic on any input, and checks the invariants of what it parsed. cargo-fuzz drives them
//! (`fuzz/`), and so does a simple mutator on the stable toolchain ([`mutate`], `cargo run -p berth-fuzz`).
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod mutate;
mod targets;

use std::path::{Path, PathBuf};

/// One target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    pub name: &'static str,
    pub run: fn(&[u8]),
}

/// All of them, by name.
pub const TARGETS: [Target; 7] = [
    Target {
        name: "cni",
        run: targets::cni,
    },
    Target {
        name: "configmaps",
        run: targets::configmaps,
    },
    Target {
        name: "definitions",
        run: targets::definitions,
    },
    Target {
        name: "desk",
        run: targets::desk,
    },
    Target {
        name: "heads",
        run: targets::heads,
    },
    Target {
        name: "pools",
        run: targets::pools,
    },
    Target {
        name: "ranges",
        run: targets::ranges,
    },
];

/// Runs the target of that name; a name that is unknown does nothing.
pub fn run(name: &str, data: &[u8]) {
    if let Some(target) = TARGETS.iter().find(|target| target.name == name) {
        (target.run)(data);
    }
}

/// Where the seeds of a target are.
pub fn seeds_of(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/seeds")
        .join(name)
}

/// The seeds of a target, in the order of their names.
pub fn seeds(name: &str) -> anyhow::Result<Vec<Vec<u8>>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(seeds_of(name))? {
        files.push(entry?.path());
    }
    files.sort();
    let read = files.iter().map(std::fs::read);
    Ok(read.collect::<Result<_, _>>()?)
}
