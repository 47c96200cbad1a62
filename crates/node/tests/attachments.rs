//! The journal of attachments: what the next process reads, compared with the reference in memory.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::net::Ipv4Addr;

use berth_attachment::{Entry, Goal, Intent, IntentId, Journal, MemoryJournal};
use berth_core::{Handle, Owner, Record};
use berth_ledger::LedgerError;
use berth_node::attachments::{Found, State};
use berth_node::{NodeFile, TargetJournal};

fn address(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 111, 0, last)
}

fn holder(container: &str) -> Record {
    Record::new(Owner::new("d/p", "u"), Handle::new(container)).with("ippool", "ippool-nodes")
}

async fn file(dir: &tempfile::TempDir) -> NodeFile {
    NodeFile::open(&dir.path().join("node.db")).await.unwrap()
}

async fn open(dir: &tempfile::TempDir) -> TargetJournal<Ipv4Addr> {
    file(dir).await.attachments().of("nic0")
}

fn intent(id: u128, goal: Goal, items: &[u8]) -> Intent<Ipv4Addr> {
    Intent {
        id: IntentId(id),
        goal,
        items: items.iter().copied().map(address).collect(),
    }
}

fn end(id: u128, carried_out: bool) -> Entry<Ipv4Addr> {
    Entry::End {
        id: IntentId(id),
        carried_out,
    }
}

#[tokio::test]
async fn a_record_is_read_by_the_next_process() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(&dir).await;
    journal.hold(&address(2), &holder("c2")).await.unwrap();
    let started = intent(u128::MAX - 7, Goal::Present, &[2, 3]);
    journal
        .record(&[Entry::Begin(started.clone())])
        .await
        .unwrap();
    let next = open(&dir).await;
    assert!(next.row(&address(2)).await.unwrap().unwrap().is_open());
    assert_eq!(next.load().await.unwrap().intent, Some(started.clone()));
    let end = Entry::End {
        id: started.id,
        carried_out: true,
    };
    next.record(&[end, Entry::Absent { item: address(3) }])
        .await
        .unwrap();
    let recorded = open(&dir).await.load().await.unwrap();
    assert_eq!(recorded.intent, None);
    assert_eq!(recorded.present, [address(2)].into());
    assert_eq!(recorded.absent, [address(3)].into());
    let rows = journal.rows().await.unwrap();
    assert_eq!(rows[&address(2)].holder, holder("c2"));
}

#[tokio::test]
async fn it_matches_the_reference_journal() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, reference) = (open(&dir).await, MemoryJournal::default());
    let steps = [
        vec![Entry::Begin(intent(1, Goal::Present, &[2, 3, 4]))],
        vec![Entry::Absent { item: address(3) }],
        vec![end(1, true)],
        vec![Entry::Begin(intent(2, Goal::Absent, &[3]))],
        vec![end(2, true), Entry::Forget { item: address(3) }],
        vec![Entry::Begin(intent(3, Goal::Present, &[5]))],
        vec![end(3, false)],
        vec![Entry::Absent { item: address(4) }],
        vec![Entry::Present { item: address(4) }],
        vec![Entry::Begin(intent(4, Goal::Absent, &[2]))],
        vec![end(4, true)],
    ];
    for step in steps {
        journal.record(&step).await.unwrap();
        reference.record(&step).await.unwrap();
        let recorded = journal.load().await.unwrap();
        assert_eq!(recorded, reference.load().await.unwrap(), "{step:?}");
    }
}

#[tokio::test]
async fn the_row_of_a_later_holder_stays() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(&dir).await;
    let forget = [Entry::Forget { item: address(2) }];
    journal.hold(&address(2), &holder("c1")).await.unwrap();
    let absent = [Entry::Absent { item: address(2) }];
    journal.record(&absent).await.unwrap();
    journal.note_released(&address(2), &holder("c1"));
    journal.hold(&address(2), &holder("c2")).await.unwrap();
    journal.record(&forget).await.unwrap();
    let row = journal.row(&address(2)).await.unwrap().unwrap();
    assert_eq!((row.holder, row.state), (holder("c2"), State::Held));
    journal.note_released(&address(2), &holder("c2"));
    journal.record(&forget).await.unwrap();
    assert_eq!(journal.row(&address(2)).await.unwrap(), None);
}

#[tokio::test]
async fn rows_are_found_by_container_and_by_owner() {
    let dir = tempfile::tempdir().unwrap();
    let file = file(&dir).await;
    let table = file.attachments();
    let (one, other) = (table.of("nic0"), table.of::<Ipv4Addr>("nic1"));
    let stranger = Record::new(Owner::new("d/q", "v"), Handle::new("c9"));
    one.hold(&address(2), &holder("c1")).await.unwrap();
    one.hold(&address(3), &stranger).await.unwrap();
    other.hold(&address(2), &holder("c2")).await.unwrap();
    let places = |found: Vec<Found<Ipv4Addr>>| -> Vec<(String, Ipv4Addr)> {
        let place = |found: Found<Ipv4Addr>| (found.target, found.item);
        found.into_iter().map(place).collect()
    };
    let under = table.held_under(&Handle::new("c2")).await.unwrap();
    assert_eq!(places(under), [("nic1".to_owned(), address(2))]);
    let by = table.held_by(&holder("").owner).await.unwrap();
    assert_eq!(
        places(by),
        [
            ("nic0".to_owned(), address(2)),
            ("nic1".to_owned(), address(2))
        ]
    );
    let of_subject = one.rows_of("d/q").await.unwrap();
    assert_eq!(of_subject.into_keys().collect::<Vec<_>>(), [address(3)]);
    assert_eq!(table.all::<Ipv4Addr>().await.unwrap().len(), 3);
    one.drop_row_of(&holder("").owner, &address(3))
        .await
        .unwrap();
    assert!(one.row(&address(3)).await.unwrap().is_some(), "another's");
    one.drop_rows(&[address(2), address(3)]).await.unwrap();
    assert_eq!(one.rows().await.unwrap().len(), 0);
    assert_eq!(other.rows().await.unwrap().len(), 1);
}

/// I5: a row of a later version is refused, not read as something else.
#[tokio::test]
async fn a_row_that_cant_be_read_is_refused_and_stays() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(&dir).await;
    journal.hold(&address(2), &holder("c1")).await.unwrap();
    let connection = rusqlite::Connection::open(dir.path().join("node.db")).unwrap();
    let break_it = "UPDATE attachments SET state = 'teleporting'";
    assert_eq!(connection.execute(break_it, []).unwrap(), 1);
    let read = journal.load().await.unwrap_err();
    assert!(matches!(&*read, LedgerError::Unreadable { .. }), "{read}");
    assert!(read.to_string().contains("teleporting"), "{read}");
}

/// A DEL reads the rows of its container, not all of the NIC's.
#[tokio::test]
async fn keyed_reads_use_an_index() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(&dir).await);
    let connection = rusqlite::Connection::open(dir.path().join("node.db")).unwrap();
    for condition in [
        "handle = 'c'",
        "subject = 's' AND part = 'p'",
        "subject = 's' AND +target = 't'",
        "target = 't' AND item = 'i'",
    ] {
        let query = format!("EXPLAIN QUERY PLAN SELECT * FROM attachments WHERE {condition}");
        let plan: String = connection.query_row(&query, [], |row| row.get(3)).unwrap();
        assert!(plan.starts_with("SEARCH"), "{condition}: {plan}");
    }
}
