//! Every target reads its seeds and some thousand inputs that are almost seeds.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr
)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use berth_fuzz::mutate::Mutator;
use berth_fuzz::{TARGETS, seeds};

/// Inputs of each target in a test.
const INPUTS: usize = 2_000;

#[test]
fn no_target_panics_on_seeds_or_what_is_almost_one() {
    for target in TARGETS {
        let seeds = seeds(target.name).unwrap();
        assert!(!seeds.is_empty(), "{} has no seeds", target.name);
        for seed in &seeds {
            (target.run)(seed);
        }
        let number: u64 = rand::random();
        eprintln!("{}: seed {number}", target.name);
        let mut mutator = Mutator::new(number, seeds);
        // A conversation takes longer than a parse.
        let inputs = if target.name == "heads" {
            INPUTS / 10
        } else {
            INPUTS
        };
        for _ in 0..inputs {
            (target.run)(&mutator.next_input());
        }
    }
}

#[test]
fn the_lists_of_targets_agree() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let names: BTreeSet<String> = TARGETS.map(|target| target.name.to_owned()).into();
    let list = |folder: &str| -> BTreeSet<String> {
        let entries = fs::read_dir(root.join(folder)).unwrap();
        let stem = |entry: fs::DirEntry| {
            entry
                .path()
                .file_stem()
                .unwrap()
                .to_string_lossy()
                .into_owned()
        };
        entries.map(|entry| stem(entry.unwrap())).collect()
    };
    assert_eq!(list("fuzz/fuzz_targets"), names);
    assert_eq!(list("fuzz/seeds"), names);
    let xtask = fs::read_to_string(root.join("xtask/src/fuzz.rs")).unwrap();
    for name in &names {
        assert!(xtask.contains(&format!("\"{name}\",")), "{name}");
    }
}
