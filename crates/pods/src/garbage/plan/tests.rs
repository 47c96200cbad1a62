//! Failures that other projects had at freeing reservations, each as reads of a small cluster. Numbers are their projects'
//! issues.

use std::collections::HashMap;

use berth_collector::GracePeriods;
use berth_collector::observed::{Phase, Pod, PodRef, PodState};
use berth_collector::suspicions::Suspicions;
use berth_core::{Handle, Moment};
use berth_ledger::PoolKey;

use super::*;

const GRACE: u64 = 30_000;

/// One pool, all reservations, and what was read about their owners.
#[derive(Default)]
struct Read {
    held: Vec<Held>,
    reservations: Vec<Reservation>,
    owners: Owners,
    overlap_checked: bool,
}

/// Reads, one after the other, by one collector.
#[derive(Default)]
struct Reads {
    suspicions: Suspicions,
    now: u64,
}

impl Reads {
    fn read(&mut self, read: &Read) -> Plan {
        let before = std::mem::take(&mut self.suspicions);
        let mut round = Round::new(&before, GracePeriods::default(), Moment(self.now));
        let observed = Observed {
            held: read.held.clone(),
            owners: read.owners.clone(),
            ..Observed::default()
        };
        let reserved = PoolReservations {
            reservations: read.reservations.clone(),
            overlap_checked: read.overlap_checked,
            ..PoolReservations::default()
        };
        let mut plan = plan_pool(&observed, &reserved, &mut round);
        let index = ReservationIndex::of(&read.held, &read.reservations);
        let is_orphan = |one: &&Reservation| index.entries_of(one).next().is_none();
        let orphans: Vec<_> = read
            .reservations
            .iter()
            .filter(is_orphan)
            .cloned()
            .collect();
        let ended = plan_orphans(&orphans, &read.owners, &HashSet::new(), &mut round);
        plan.steps.extend(ended);
        (self.suspicions, _) = round.done();
        plan
    }

    fn later(&mut self, millis: u64) -> &mut Self {
        self.now += millis;
        self
    }

    /// Two reads of the same state, the grace period between them.
    fn twice(read: &Read) -> Vec<Step> {
        let mut reads = Reads::default();
        assert_eq!(reads.read(read).steps, [], "by the first read");
        reads.later(GRACE).read(read).steps
    }
}

fn mk_held(pod: &str, container: &str, address: &str) -> Held {
    Held {
        pool: PoolKey::of_network("10.0.0.0-24", "10.0.0.0/24".parse().unwrap()),
        address: address.parse().unwrap(),
        record: Record::new(Owner::new(pod, "net1"), Handle::new(container)),
        note: Note::default(),
    }
}

fn mk_reservation(name: &str, pod: &str) -> Reservation {
    Reservation {
        key: ClaimKey::new(ClaimKind::Reservation, name),
        record: Record::new(Owner::new(pod, "net1"), Handle::default()),
    }
}

fn mk_pod(uid: &str, phase: Phase) -> PodState {
    PodState::Present(Pod {
        uids: vec![uid.to_owned()],
        phase,
        node: Some("node-1".to_owned()),
    })
}

fn read_pods(pods: &[(&str, PodState)]) -> Owners {
    let pod = |(name, state): &(&str, PodState)| (PodRef::parse(name).unwrap(), state.clone());
    Owners {
        pods: pods.iter().map(pod).collect::<HashMap<_, _>>(),
        ..Owners::default()
    }
}

fn freed(steps: &[Step]) -> Vec<String> {
    let what = |step: &Step| match step {
        Step::Free { held, .. } => format!("{} of {}", held.address, held.record.handle),
        Step::Repair(Repair::End(reservation)) => reservation.key.name.clone(),
        Step::Repair(Repair::Reserve { key, .. }) => format!("+{}", key.name),
    };
    steps.iter().map(what).collect()
}

/// A new pod of that name has a container of its own elsewhere: the entry of the old pod, whose UID is known, has no owner.
#[test]
fn an_entry_of_a_pod_that_was_replaced_is_freed_by_its_uid() {
    let note = Note {
        pod_uid: Some("u1".to_owned()),
        ..Note::default()
    };
    let old = Held {
        note,
        ..mk_held("ns/web-0", "old", "10.0.0.1")
    };
    let mut observed = Read {
        held: vec![old, mk_held("ns/web-0", "new", "10.0.0.2")],
        reservations: vec![
            mk_reservation("10.0.0.1", "ns/web-0"),
            mk_reservation("10.0.0.2", "ns/web-0"),
        ],
        owners: read_pods(&[("ns/web-0", mk_pod("u2", Phase::Open))]),
        ..Read::default()
    };
    let steps = Reads::twice(&observed);
    assert_eq!(freed(&steps), ["10.0.0.1 of old"]);
    let Step::Free { ends, .. } = &steps[0] else {
        panic!("{steps:?}");
    };
    assert_eq!(ends, &observed.reservations[..1]);
    // Without a UID the name decides.
    observed.held[0].note.pod_uid = None;
    assert_eq!(Reads::twice(&observed), []);
}

/// whereabouts looks for a reservation's name among the pod's addresses: `blue-10.0.0.1` is never there.
#[test]
fn a_named_networks_reservation_of_a_living_pod_is_not_stale() {
    let pool = PoolKey::of_network("blue-10.0.0.0-24", "10.0.0.0/24".parse().unwrap());
    let mut observed = Read {
        held: vec![Held {
            pool,
            ..mk_held("ns/p", "c1", "10.0.0.1")
        }],
        reservations: vec![mk_reservation("blue-10.0.0.1", "ns/p")],
        owners: read_pods(&[("ns/p", mk_pod("u1", Phase::Open))]),
        ..Read::default()
    };
    assert_eq!(Reads::twice(&observed), []);
    observed.owners = read_pods(&[("ns/p", PodState::Absent)]);
    let steps = Reads::twice(&observed);
    let Step::Free { ends, .. } = &steps[0] else {
        panic!("{steps:?}");
    };
    assert_eq!(ends, &observed.reservations);
    assert_eq!(steps.len(), 1, "the reservation goes with its entry");
}

/// whereabouts #712: the entry could not be written, the reservation could, and the pod got the address all the same.
/// That reservation is all that keeps it from others.
#[test]
fn whereabouts_712_a_reservation_without_an_entry_stays_while_its_pod_lives() {
    let mut observed = Read {
        reservations: vec![mk_reservation("10.0.0.1", "ns/p")],
        owners: read_pods(&[("ns/p", mk_pod("u1", Phase::Open))]),
        ..Read::default()
    };
    assert_eq!(Reads::twice(&observed), []);
    observed.owners = read_pods(&[("ns/p", PodState::Absent)]);
    assert_eq!(freed(&Reads::twice(&observed)), ["10.0.0.1"]);
}

/// whereabouts #97 #103 #110 #409: pool and reservation diverge.
#[test]
fn a_living_entry_gets_the_reservation_that_it_lacks() {
    let mut observed = Read {
        held: vec![mk_held("ns/p", "c1", "10.0.0.1")],
        owners: read_pods(&[
            ("ns/p", mk_pod("u1", Phase::Open)),
            ("ns/q", PodState::Absent),
        ]),
        overlap_checked: true,
        ..Read::default()
    };
    assert_eq!(freed(&Reads::twice(&observed)), ["+10.0.0.1"]);

    // Another pod has it, which is gone: that one is ended first.
    observed.reservations = vec![mk_reservation("10.0.0.1", "ns/q")];
    assert_eq!(freed(&Reads::twice(&observed)), ["10.0.0.1"]);

    // Another pod has it, which lives: a person has to decide.
    observed.owners = read_pods(&[
        ("ns/p", mk_pod("u1", Phase::Open)),
        ("ns/q", mk_pod("u2", Phase::Open)),
    ]);
    let plan = Reads::default().read(&observed);
    assert_eq!(plan.steps, []);
    assert_eq!(plan.disputes.len(), 1);

    // The network does not want any, or is not known.
    observed.reservations.clear();
    observed.overlap_checked = false;
    assert_eq!(Reads::twice(&observed), []);
}
