//! A disk that fails under the SQLite ledger, for real: a limit on file sizes (EFBIG), a file system without room (ENOSPC),
//! writes that the kernel refuses (EIO, and EDQUOT where a user's quota is used up).
//!
//! The writer is a child process, this test binary again, so that only it has the fault.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout
)]

use std::path::Path;
use std::process::{Command, Stdio};

use berth_core::{Address, Change, Family, Handle, Owner, Record};
use berth_ledger::{Ledger, LedgerError, PoolKey, Rejection, SqliteLedger};

const STORE: &str = "BERTH_TEST_STORE";

/// Far more than the faults leave room for.
const MOST: u32 = 5_000;

fn mk_pool() -> PoolKey {
    PoolKey::of_network("10.0.0.0-16", "10.0.0.0/16".parse().unwrap())
}

/// An entry of some kilobytes.
fn claim(n: u32) -> Change {
    let owner = Owner::new(format!("default/p{n}"), "net1");
    let record = Record::new(owner, Handle::new(format!("c{n}"))).with("note", "x".repeat(4000));
    Change::Allocate {
        address: Address::new(Family::V4, u128::from(0x0a00_0000 + n)).unwrap(),
        record,
    }
}

async fn write(ledger: &SqliteLedger, n: u32) -> Result<(), LedgerError> {
    let base = ledger.load(&mk_pool()).await?.version;
    ledger.commit(&mk_pool(), &base, &[claim(n)], None).await?;
    Ok(())
}

/// Writes until the disk fails, then a few times more, and compares what is held with what was acknowledged.
#[ignore = "the child of the tests below"]
#[test]
fn writer() {
    // strace counts the writes of each thread: with one for all of them, the disk stays broken.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(1)
        .build();
    runtime.unwrap().block_on(write_until_it_fails());
}

async fn write_until_it_fails() {
    let ledger = SqliteLedger::open(std::env::var(STORE).unwrap()).unwrap();
    let mut acknowledged = 0;
    let error = loop {
        assert!(acknowledged < MOST, "the disk never failed");
        match write(&ledger, acknowledged).await {
            Ok(()) => acknowledged += 1,
            Err(error) => break error,
        }
    };
    assert!(acknowledged > 0, "nothing was ever written: {error}");
    for more in 1..4 {
        let error = write(&ledger, acknowledged + more).await;
        assert!(error.is_err(), "the disk is well again");
    }
    // What was acknowledged is there, and nothing else (I2).
    let held = ledger.load(&mk_pool()).await.unwrap().pool.len();
    assert_eq!(held, acknowledged as usize);
    assert!(
        matches!(
            &error,
            LedgerError::Rejected {
                rejection: Rejection::Storage(_),
                ..
            }
        ),
        "whoever sees {error:?} tries again at once, in vain"
    );
    println!("\nfailed with: {error}");
}

/// What the writer says of the fault. `shell` runs it as "$@".
fn failing(shell: &str, dir: &Path) -> String {
    let output = Command::new("sh")
        .args(["-c", shell, "sh"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "writer", "--ignored", "--nocapture"])
        .env(STORE, dir.join("berth.db"))
        .env("DIR", dir)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{told}");
    let error = said.lines().find_map(|l| l.strip_prefix("failed with: "));
    let error = error.unwrap_or_else(|| panic!("{said}")).to_owned();
    println!("{error}");
    error
}

#[test]
fn berth_15_22_a_limit_on_file_sizes_is_named_and_not_tried_again() {
    let dir = tempfile::tempdir().unwrap();
    let limited = "trap '' XFSZ; ulimit -f 512; exec \"$@\"";
    let error = failing(limited, dir.path());
    assert!(error.contains("berth.db"), "{error}");
    assert!(error.contains("write failed"), "{error}");
    assert!(error.contains("quota"), "{error}");
}

#[test]
fn berth_15_22_a_full_file_system_is_named_and_not_tried_again() {
    let dir = tempfile::tempdir().unwrap();
    let small = "mount -t tmpfs -o size=512k tmpfs \"$DIR\" && exec \"$@\"";
    let small = format!("unshare --mount sh -c '{small}' sh \"$@\"");
    let error = failing(&small, dir.path());
    assert!(error.contains("no space left"), "{error}");
}

#[test]
fn berth_15_22_a_disk_that_fails_is_named_and_not_tried_again() {
    for refusal in ["EIO", "EDQUOT"] {
        let dir = tempfile::tempdir().unwrap();
        let broken = format!(
            "exec strace --follow-forks --quiet=all --trace=pwrite64 --output=/dev/null \
            --inject=pwrite64:error={refusal}:when=400+ \"$@\""
        );
        let error = failing(&broken, dir.path());
        assert!(error.contains("write failed"), "{refusal}: {error}");
        assert!(error.contains("quota"), "{refusal}: {error}");
    }
}
