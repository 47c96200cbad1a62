//! The SQLite ledger: the promises of all ledgers, several processes, crashes, broken files.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout
)]

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use berth_conformance::{claim, crash, held, mk_record, write};
use berth_core::Address;
use berth_ledger::{Ledger, LedgerError, PoolKey, Rejection, SharedRecordLedger, SqliteLedger};
use tempfile::TempDir;

fn mk_pool() -> PoolKey {
    PoolKey::of_network("10.0.0.0-16", "10.0.0.0/16".parse().unwrap())
}

fn mk_file() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("berth.db");
    (directory, path)
}

#[tokio::test(flavor = "multi_thread")]
async fn conforms() {
    let (_directory, path) = mk_file();
    let open = || -> SharedRecordLedger { Arc::new(SqliteLedger::open(&path).unwrap()) };
    berth_conformance::suite(berth_conformance::Subject {
        guarded: true,
        ..berth_conformance::Subject::with_records(mk_pool(), &[open(), open(), open(), open()])
    })
    .await;
}

/// A process per call opens, writes and closes: somebody is always making or removing the journal.
#[tokio::test(flavor = "multi_thread")]
async fn opening_and_closing_at_once_is_never_refused() {
    for round in 0..10 {
        let (_directory, path) = mk_file();
        let lanes = (0..6).map(|lane| {
            let path = path.clone();
            tokio::spawn(async move {
                for turn in 0..6 {
                    let ledger = SqliteLedger::open(&path).unwrap();
                    let name = format!("{round}-{lane}-{turn}");
                    berth_conformance::claim_lowest(&ledger, &mk_pool(), &name).await;
                }
            })
        });
        for lane in lanes.collect::<Vec<_>>() {
            lane.await.unwrap();
        }
        let ledger = SqliteLedger::open(&path).unwrap();
        assert_eq!(held(&ledger, &mk_pool()).await.len(), 36);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_is_there_after_a_restart() {
    let (_directory, path) = mk_file();
    let mut record = mk_record("a").with("node", "n1").with("uid", "42");
    record.owner.part = "net9".into();
    let change = berth_core::Change::Allocate {
        address: berth_conformance::mk_address(1),
        record,
    };
    let ledger = SqliteLedger::open(&path).unwrap();
    write(&ledger, &mk_pool(), &[change]).await.unwrap();
    let before = held(&ledger, &mk_pool()).await;
    drop(ledger);
    assert_eq!(
        held(&SqliteLedger::open(&path).unwrap(), &mk_pool()).await,
        before
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_9_at_random_loses_nothing_acknowledged() {
    let (_directory, path) = mk_file();
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut acknowledged: Vec<BTreeSet<Address>> = Vec::new();
    for round in 0..4u64 {
        let writers: Vec<_> = (0..3)
            .map(|n| {
                let name = format!("r{round}w{n}");
                crash::spawn_writer("crash_writer", path.to_str().unwrap(), &name)
            })
            .collect();
        let killers: Vec<_> = writers
            .into_iter()
            .enumerate()
            .map(|(n, child)| {
                let spread = seed.rotate_left((round * 3 + n as u64) as u32 * 5) % 400;
                let life = Duration::from_millis(300 + spread);
                std::thread::spawn(move || crash::kill_after(child, life))
            })
            .collect();
        acknowledged.extend(killers.into_iter().map(|killer| killer.join().unwrap()));
    }
    let ledger = SqliteLedger::open(&path).unwrap();
    crash::nothing_acknowledged_is_lost(&ledger, &mk_pool(), &acknowledged).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the child of kill_9_at_random_loses_nothing_acknowledged"]
async fn crash_writer() {
    let path = std::env::var(crash::STORE).unwrap();
    crash::write_for_ever(&SqliteLedger::open(path).unwrap(), &mk_pool()).await;
}

fn refusal(path: &Path) -> String {
    SqliteLedger::open(path).unwrap_err().to_string()
}

#[tokio::test]
async fn content_that_is_no_ledger_is_refused_and_stays() {
    let (_directory, path) = mk_file();
    std::fs::write(
        &path,
        "my shopping list, not a database, but long enough to be taken for one",
    )
    .unwrap();
    let before = std::fs::read(&path).unwrap();
    assert!(
        refusal(&path).contains("left as it is"),
        "{}",
        refusal(&path)
    );
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

#[tokio::test]
async fn another_programs_database_is_refused_and_stays() {
    let (_directory, path) = mk_file();
    let foreign = rusqlite::Connection::open(&path).unwrap();
    foreign
        .execute_batch("CREATE TABLE songs (title TEXT); INSERT INTO songs VALUES ('x')")
        .unwrap();
    drop(foreign);
    let before = std::fs::read(&path).unwrap();
    assert!(
        refusal(&path).contains("another program"),
        "{}",
        refusal(&path)
    );
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_opened_alone_is_the_same_file_with_one_less_beside_it() {
    let (_directory, path) = mk_file();
    let ledger = SqliteLedger::open_alone(&path).unwrap();
    write(&ledger, &mk_pool(), &[claim(1, "a")]).await.unwrap();
    assert!(path.with_extension("db-wal").exists());
    assert!(!path.with_extension("db-shm").exists());
    drop(ledger);
    let ledger = SqliteLedger::open(&path).unwrap();
    assert_eq!(held(&ledger, &mk_pool()).await.len(), 1);
}

#[tokio::test]
async fn a_newer_schema_is_refused() {
    let (_directory, path) = mk_file();
    drop(SqliteLedger::open(&path).unwrap());
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection.pragma_update(None, "user_version", 99).unwrap();
    drop(connection);
    let text = refusal(&path);
    assert!(
        text.contains("99") && text.contains("newer Berth"),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_corrupt_page_is_refused_and_stays() {
    let (_directory, path) = mk_file();
    let ledger = SqliteLedger::open(&path).unwrap();
    let claims: Vec<_> = (0..2000).map(|n| claim(n, &format!("pod-{n}"))).collect();
    write(&ledger, &mk_pool(), &claims).await.unwrap();
    drop(ledger);
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    for byte in &mut bytes[middle..middle + 6000] {
        *byte = 0xa5;
    }
    std::fs::write(&path, &bytes).unwrap();
    assert!(
        refusal(&path).contains("left as it is"),
        "{}",
        refusal(&path)
    );
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_row_is_named_and_stays() {
    let (_directory, path) = mk_file();
    let ledger = SqliteLedger::open(&path).unwrap();
    write(&ledger, &mk_pool(), &[claim(1, "a")]).await.unwrap();
    let other = rusqlite::Connection::open(&path).unwrap();
    other
        .execute("UPDATE allocations SET address = '10.0.0.x'", [])
        .unwrap();
    let error = ledger.load(&mk_pool()).await.unwrap_err();
    assert!(matches!(error, LedgerError::Unreadable { .. }), "{error}");
    assert!(error.to_string().contains("10.0.0.x"), "{error}");
    let rows: i64 = other
        .query_row("SELECT count(*) FROM allocations", [], |row| row.get(0))
        .unwrap();
    assert_eq!(rows, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_file_is_reported_as_passing() {
    let (_directory, path) = mk_file();
    let ledger = SqliteLedger::open(&path).unwrap();
    let base = ledger.load(&mk_pool()).await.unwrap().version;
    let other = rusqlite::Connection::open(&path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let error = ledger
        .commit(&mk_pool(), &base, &[claim(1, "a")], None)
        .await
        .unwrap_err();
    assert!(error.is_passing(), "{error}");
    other.execute_batch("ROLLBACK").unwrap();
    ledger
        .commit(&mk_pool(), &base, &[claim(1, "a")], None)
        .await
        .unwrap();
}

/// A full file system, by SQLite's own limit on the file's pages.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_a_clear_error_and_records_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mount = directory.path().join("small");
    std::fs::create_dir(&mount).unwrap();
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=256k", "berth-test"])
        .arg(&mount)
        .status()
        .unwrap();
    assert!(
        mounted.success(),
        "this test mounts a small tmpfs and needs root"
    );
    struct Unmount(PathBuf);
    impl Drop for Unmount {
        fn drop(&mut self) {
            let _ = Command::new("umount").arg("-l").arg(&self.0).status();
        }
    }
    let _unmount = Unmount(mount.clone());
    let ledger = SqliteLedger::open(mount.join("berth.db")).unwrap();
    let mut last = None;
    for round in 0..200u32 {
        let claims: Vec<_> = (0..50)
            .map(|n| claim(round * 50 + n, &format!("pod-{round}-{n}")))
            .collect();
        if let Err(error) = write(&ledger, &mk_pool(), &claims).await {
            last = Some((round, error));
            break;
        }
    }
    let (round, error) = last.expect("the small file system never filled up");
    assert!(
        matches!(&error, LedgerError::Rejected { rejection: Rejection::Storage(text), .. } if text.contains("space")),
        "{error}"
    );
    let held = held(&ledger, &mk_pool()).await;
    assert_eq!(
        held.len() as u32,
        round * 50,
        "a batch was recorded in part"
    );
}

/// Root writes to read-only files, so the refusal is asked of SQLite itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_read_only_file_is_a_clear_error() {
    let (directory, path) = mk_file();
    drop(SqliteLedger::open(&path).unwrap());
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "berth-test"])
        .arg(directory.path())
        .status()
        .unwrap();
    assert!(mounted.success(), "this test mounts a tmpfs and needs root");
    drop(SqliteLedger::open(&path).unwrap());
    let remounted = Command::new("mount")
        .args(["-o", "remount,ro"])
        .arg(directory.path())
        .status()
        .unwrap();
    let text = refusal(&path);
    let _ = Command::new("umount")
        .arg("-l")
        .arg(directory.path())
        .status();
    assert!(remounted.success());
    assert!(
        text.contains("read-only") || text.contains("writable"),
        "{text}"
    );
}

#[tokio::test]
async fn a_missing_directory_is_named() {
    let text = refusal(Path::new("/nonexistent/berth/berth.db"));
    assert!(
        text.contains("/nonexistent/berth/berth.db") && text.contains("directory"),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_private() {
    let (directory, path) = mk_file();
    let ledger = SqliteLedger::open(&path).unwrap();
    write(&ledger, &mk_pool(), &[claim(1, "a")]).await.unwrap();
    for entry in std::fs::read_dir(directory.path()).unwrap() {
        let entry = entry.unwrap();
        let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{:?}", entry.path());
    }
}
