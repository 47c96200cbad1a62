//! The node's file: its identity, its one owner, files of earlier versions.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use berth_core::{Address, Change, Handle, Owner, Record};
use berth_ledger::{
    ClaimKey, ClaimKind, Ledger, LedgerError, PoolKey, Records, SqliteLedger, Version,
};
use berth_node::journal::Entry;
use berth_node::{Journal, NodeFile};
use rusqlite::Connection;

fn database(dir: &tempfile::TempDir) -> PathBuf {
    dir.path().join("lib/berth/berth.db")
}

fn address(text: &str) -> Address {
    text.parse().unwrap()
}

fn record(pod: &str, container: &str) -> Record {
    Record::new(Owner::new(pod, "net1"), Handle::new(container))
}

fn range(text: &str) -> PoolKey {
    PoolKey::of_network(text.replace('/', "-"), text.parse().unwrap())
}

#[tokio::test]
async fn the_directory_is_made_for_root_alone() {
    let dir = tempfile::tempdir().unwrap();
    let file = NodeFile::open(&database(&dir)).await.unwrap();
    let made = fs::metadata(file.path().parent().unwrap()).unwrap();
    assert_eq!(made.permissions().mode() & 0o777, 0o700);
}

#[tokio::test]
async fn a_file_keeps_its_identity_and_no_two_files_share_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = database(&dir);
    let (one, two) = tokio::join!(NodeFile::open(&path), NodeFile::open(&path));
    let (one, two) = (one.unwrap(), two.unwrap());
    assert_eq!(one.identity(), two.identity());
    assert_eq!(one.identity().as_str().len(), 32);
    drop((one, two));
    let again = NodeFile::open(&path).await.unwrap();
    let other = NodeFile::open(&dir.path().join("other.db")).await.unwrap();
    assert_ne!(again.identity(), other.identity());
}

#[tokio::test]
async fn the_identity_of_an_earlier_version_s_file_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("berth.db");
    let key = ClaimKey::new(ClaimKind::Slice, "file");
    let named = Record::new(Owner::new("00ff", ""), Handle::default());
    let old = SqliteLedger::open(&path).unwrap();
    old.create(&key, &named).await.unwrap();
    drop(old);
    let file = NodeFile::open(&path).await.unwrap();
    assert_eq!(file.identity().as_str(), "00ff");
    let known = file.ledger().get(&key).await.unwrap();
    assert_eq!(known.unwrap().owner.subject, "00ff");
}

/// What an earlier version's journal wrote for one address.
async fn write_old(ledger: &SqliteLedger, network: &str, at: &str, record: &Record, pool: &str) {
    let key = PoolKey::named(format!("node/{network}"));
    let record = record.clone().with(format!("pool/{at}"), pool);
    let claim = Change::Allocate {
        address: address(at),
        record,
    };
    let base = ledger.load(&key).await.unwrap().version;
    let version: Version = ledger.commit(&key, &base, &[claim], None).await.unwrap();
    drop(version);
}

#[tokio::test]
async fn entries_of_an_earlier_version_s_journal_are_kept_and_unreadable_ones_left() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("berth.db");
    let old = SqliteLedger::open(&path).unwrap();
    let holder = record("ns/p", "c1").with("node", "n1");
    write_old(&old, "blue", "10.0.0.1", &holder, "10.0.0.0-24 10.0.0.0/24").await;
    write_old(&old, "blue", "10.0.0.2", &record("ns/q", "c2"), "named ").await;
    write_old(&old, "green", "10.0.0.3", &record("ns/r", "c3"), "no-space").await;
    let file = NodeFile::open(&path).await.unwrap();
    let entry = |pool: PoolKey, at: &str, record: Record| {
        let address = address(at);
        let entry = Entry {
            pool,
            address,
            record,
        };
        ("blue".to_owned(), entry)
    };
    let expected = [
        entry(range("10.0.0.0/24"), "10.0.0.1", holder.clone()),
        entry(PoolKey::named("named"), "10.0.0.2", record("ns/q", "c2")),
    ];
    assert_eq!(file.journal().all().await.unwrap(), expected);
    let pools = file.ledger().pools().await.unwrap();
    assert_eq!(pools, [PoolKey::named("node/green")]);
    let left = file.ledger().load(&pools[0]).await.unwrap();
    assert!(left.pool.get(address("10.0.0.3")).is_some());

    // An agent of the earlier version that still runs writes to the old place.
    write_old(&old, "blue", "10.0.0.4", &holder, "10.0.0.0-24 10.0.0.0/24").await;
    let again = NodeFile::open(&path).await.unwrap();
    assert_eq!(again.identity(), file.identity());
    assert_eq!(again.journal().entries("blue").await.unwrap().len(), 3);
}

#[tokio::test]
async fn tables_of_a_newer_version_are_refused_and_left() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("berth.db");
    drop(NodeFile::open(&path).await.unwrap());
    let raw = Connection::open(&path).unwrap();
    raw.execute("UPDATE node_file SET version = 9", []).unwrap();
    drop(raw);
    let before = fs::read(&path).unwrap();
    let refused = NodeFile::open(&path).await.unwrap_err();
    assert!(
        matches!(refused, LedgerError::Unreadable { .. }),
        "{refused}"
    );
    assert!(refused.to_string().contains("version 9"), "{refused}");
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[tokio::test]
async fn another_program_s_file_is_refused_and_left() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("berth.db");
    let theirs = Connection::open(&path).unwrap();
    theirs.execute("CREATE TABLE theirs (x)", []).unwrap();
    drop(theirs);
    let before = fs::read(&path).unwrap();
    let refused = NodeFile::own(&path, "berth agent", Duration::ZERO).await;
    assert!(matches!(refused, Err(LedgerError::Unreadable { .. })));
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[tokio::test]
async fn one_process_owns_the_file_at_a_time_and_the_next_waits_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = database(&dir);
    let agent = NodeFile::own(&path, "berth agent", Duration::ZERO)
        .await
        .unwrap();
    assert!(agent.is_owned());
    let refused = NodeFile::own(&path, "berth cni", Duration::ZERO)
        .await
        .unwrap_err();
    assert!(matches!(refused, LedgerError::Unavailable { .. }));
    let process = format!("berth agent (process {})", std::process::id());
    assert!(refused.to_string().contains(&process), "{refused}");
    // A reader does not wait for the owner.
    assert!(!NodeFile::open(&path).await.unwrap().is_owned());

    let clone = agent.clone();
    let waiting = tokio::spawn({
        let path = path.clone();
        async move { NodeFile::own(&path, "berth cni", Duration::from_secs(60)).await }
    });
    drop(agent);
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished(), "a clone still owns it");
    drop(clone);
    let cni = waiting.await.unwrap().unwrap();
    assert!(cni.is_owned());
}

/// A process that owns the file, by its lock alone.
fn owner_process(path: &Path) -> Child {
    let lock = path.with_extension("db.owner");
    let mut child = Command::new("sh")
        .args(["-c", "exec 9>\"$0\"; flock 9; echo ready; read line"])
        .arg(lock)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert_eq!(line, "ready\n");
    child
}

#[tokio::test]
async fn the_lock_of_a_process_that_was_killed_is_free() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("berth.db");
    let mut other = owner_process(&path);
    let refused = NodeFile::own(&path, "berth agent", Duration::ZERO).await;
    assert!(matches!(refused, Err(LedgerError::Unavailable { .. })));
    other.kill().unwrap();
    other.wait().unwrap();
    NodeFile::own(&path, "berth agent", Duration::from_secs(60))
        .await
        .unwrap();
}

async fn journal(dir: &tempfile::TempDir) -> Journal {
    let file = NodeFile::open(&dir.path().join("berth.db")).await;
    file.unwrap().journal().clone()
}

#[tokio::test]
async fn entries_read_back_by_network_until_they_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let journal = journal(&dir).await;
    let holder = record("ns/p", "c1").with("node", "n1");
    let allocated = [
        (range("10.0.0.0/24"), address("10.0.0.1")),
        (range("fd00::/64"), address("fd00::1")),
    ];
    journal.add("blue", &holder, &allocated).await.unwrap();
    let entries = journal.entries("blue").await.unwrap();
    let found: Vec<(PoolKey, Address)> = entries
        .iter()
        .map(|entry| (entry.pool.clone(), entry.address))
        .collect();
    assert_eq!(found, allocated);
    assert!(entries.iter().all(|entry| entry.record == holder));
    assert_eq!(journal.entries("green").await.unwrap(), []);
    let container = Handle::new("c1");
    journal.remove("blue", &container, "net2").await.unwrap();
    assert_eq!(journal.entries("blue").await.unwrap().len(), 2);
    journal.remove("blue", &container, "net1").await.unwrap();
    assert_eq!(journal.entries("blue").await.unwrap(), []);
}

/// A missing DEL must not keep the next holder's ADD out of the journal.
#[tokio::test]
async fn the_newest_holder_of_an_address_is_the_one_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let journal = journal(&dir).await;
    let allocated = [
        (range("10.0.0.0/24"), address("10.0.0.1")),
        (range("10.0.0.0/24"), address("10.0.0.2")),
    ];
    let (old, older, new) = (
        record("ns/old", "1"),
        record("ns/older", "2"),
        record("ns/new", "3"),
    );
    journal.add("blue", &old, &allocated[..1]).await.unwrap();
    journal.add("blue", &older, &allocated[1..]).await.unwrap();
    journal.add("blue", &new, &allocated).await.unwrap();
    // The older holder's late removal does not touch the new one's entry.
    let late = journal.remove_address("blue", allocated[0].1, &old);
    late.await.unwrap();
    let all = journal.all().await.unwrap();
    assert_eq!(all.len(), 2);
    for (network, entry) in all {
        assert_eq!(network, "blue");
        assert_eq!(entry.record, new);
    }
    let removed = journal.remove_address("blue", allocated[0].1, &new);
    removed.await.unwrap();
    assert_eq!(journal.all().await.unwrap().len(), 1);
}
