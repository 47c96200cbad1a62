use std::collections::BTreeSet;

use super::event::{RangeRead, SliceRead, Written};
use super::*;
use crate::Prefix;
use crate::slice::NodeName;

fn slice() -> Prefix {
    "10.0.0.0/31".parse().unwrap()
}

fn me() -> Me {
    Me {
        node: NodeName::new("a"),
        uid: Uid(1),
        role: Role::Agent,
    }
}

fn stamp(version: u64) -> Stamp {
    Stamp {
        uid: Uid(9),
        version: Version(version),
    }
}

fn range(kind: ModeKind) -> Option<RangeRead> {
    Some(RangeRead {
        mode: Some(Mode::new(kind, Token(5))),
        plain: BTreeSet::new(),
        is_published_elsewhere: false,
        in_use: BTreeSet::new(),
    })
}

/// Claims the slice; the range has this mode.
fn claimed(kind: ModeKind) -> (NodeMachine, Vec<Effect>) {
    let (mut node, _) = NodeMachine::start(me(), Stored::new(FileId(1)));
    node.handle(Event::Claim(slice()), 1);
    node.handle(Event::Created(slice(), Written::Yes(stamp(1))), 2);
    node.handle(Event::Announced(slice(), Written::Yes(stamp(2))), 3);
    let effects = node.handle(Event::RangeRead(slice(), range(kind)), 4);
    (node, effects)
}

#[test]
fn a_slice_is_allocated_from_after_its_lease_its_pool_and_the_mode() {
    let address = slice().network();
    let (mut node, _) = NodeMachine::start(me(), Stored::new(FileId(1)));
    let first = node.handle(Event::Claim(slice()), 1);
    assert!(matches!(first[..], [Effect::CreateLease(_)]));
    let refused = node.handle(Event::Allocate(address), 2);
    assert_eq!(refused, [Effect::Refuse(address)]);
    let (mut node, _) = claimed(ModeKind::Sliced);
    let granted = node.handle(Event::Allocate(address), 5);
    let commit = Effect::Commit(Change::Allocate(address));
    assert_eq!(granted, [commit, Effect::Answer(address)]);
    let twice = node.handle(Event::Allocate(address), 6);
    assert_eq!(twice, [Effect::Refuse(address)]);
}

#[test]
fn a_claim_in_a_tight_range_is_dropped() {
    let (node, effects) = claimed(ModeKind::Tight);
    assert!(matches!(effects[..], [Effect::Retract { .. }]));
    assert!(!node.may_allocate(slice().network()));
}

#[test]
fn what_is_yielded_is_committed_before_it_is_written() {
    let (mut node, _) = claimed(ModeKind::Sliced);
    node.handle(Event::Allocate(slice().network()), 5);
    let tight = Mode::new(ModeKind::Tight, Token(6));
    let effects = node.handle(Event::ModeSeen(tight), 7);
    let [
        Effect::Commit(Change::Stop { .. }),
        Effect::WriteLease { lease, .. },
    ] = &effects[..]
    else {
        panic!("{effects:?}");
    };
    assert!(lease.yielded.contains(&slice().last()));
    assert!(!node.may_allocate(slice().last()));
}

#[test]
fn a_restart_verifies_before_it_allocates_and_an_engine_refuses_another_file() {
    let (old, _) = claimed(ModeKind::Sliced);
    let (mut node, effects) = NodeMachine::start(me(), old.stored.clone());
    assert_eq!(effects, [Effect::Settle, Effect::ListOwned]);
    assert!(!node.may_allocate(slice().network()));
    let reads = node.handle(Event::Owned(Some(BTreeSet::new())), 8);
    assert_eq!(reads, [Effect::ReadSlice(slice())]);

    let engine = Me {
        role: Role::Engine,
        ..me()
    };
    let (mut node, _) = NodeMachine::start(engine, Stored::new(FileId(2)));
    node.handle(Event::Owned(Some(BTreeSet::from([slice()]))), 9);
    let lease = old.lease(slice(), Addresses::new());
    let read = SliceRead {
        lease: Some((lease, stamp(1))),
        published: None,
        registered: true,
    };
    let effects = node.handle(Event::SliceRead(slice(), Some(Box::new(read))), 10);
    let (slice, file) = (slice(), FileId(1));
    assert_eq!(effects, [Effect::ReportOtherFile { slice, file }]);
}
