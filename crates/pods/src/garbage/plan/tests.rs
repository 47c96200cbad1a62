//! Each failure that others had at freeing addresses, as looks at a small world. Numbers are their projects' issues.

use std::collections::HashMap;

use berth_core::{Handle, Record};
use berth_ledger::PoolKey;

use super::super::facts::{Phase, Pod, PodRef, Sight};
use super::*;

const GRACE: u64 = 30_000;

/// Looks, one after the other, by one collector.
#[derive(Default)]
struct Looks {
    memory: Memory,
    now: u64,
}

impl Looks {
    fn look(&mut self, observed: &Observed) -> Plan {
        let plan = plan(
            observed,
            &self.memory,
            &Patience::default(),
            Moment(self.now),
        );
        self.memory = plan.memory.clone();
        plan
    }

    fn later(&mut self, millis: u64) -> &mut Self {
        self.now += millis;
        self
    }

    /// Two looks at the same world, the grace period between them.
    fn twice(observed: &Observed) -> Vec<Step> {
        let mut looks = Looks::default();
        assert_eq!(looks.look(observed).steps, [], "on the first look");
        looks.later(GRACE).look(observed).steps
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

fn mk_pod(uid: &str, phase: Phase) -> Sight {
    Sight::There(Pod {
        uids: vec![uid.to_owned()],
        phase,
        node: Some("node-1".to_owned()),
    })
}

fn seen(pods: &[(&str, Sight)]) -> HashMap<PodRef, Sight> {
    let pod = |(name, sight): &(&str, Sight)| (PodRef::parse(name).unwrap(), sight.clone());
    pods.iter().map(pod).collect()
}

fn freed(steps: &[Step]) -> Vec<String> {
    let what = |step: &Step| match step {
        Step::Free { held, .. } => format!("{} of {}", held.address, held.record.handle),
        Step::End { reservation, .. } => reservation.key.name.clone(),
        Step::Reserve { key, .. } => format!("+{}", key.name),
    };
    steps.iter().map(what).collect()
}

#[test]
fn a_pod_that_is_gone_loses_its_address_after_the_grace_period() {
    let observed = Observed {
        held: vec![mk_held("ns/p", "c1", "10.0.0.1")],
        pods: seen(&[("ns/p", Sight::Absent)]),
        ..Observed::default()
    };
    let mut looks = Looks::default();
    let first = looks.look(&observed);
    assert_eq!(first.steps, []);
    assert_eq!(first.next, Some(Moment(GRACE)));
    assert_eq!(looks.later(GRACE - 1).look(&observed).steps, []);
    let last = looks.later(1).look(&observed);
    assert_eq!(freed(&last.steps), ["10.0.0.1 of c1"]);
    // The deed may fail: the next look says so again, without another wait.
    assert_eq!(freed(&looks.look(&observed).steps), ["10.0.0.1 of c1"]);
}

/// whereabouts leaves the addresses of completed pods until they are deleted; evicted ones are Failed.
#[test]
fn a_pod_that_has_finished_loses_its_address() {
    for phase in [Phase::Succeeded, Phase::Failed] {
        let observed = Observed {
            held: vec![mk_held("ns/p", "c1", "10.0.0.1")],
            pods: seen(&[("ns/p", mk_pod("u1", phase))]),
            ..Observed::default()
        };
        assert_eq!(freed(&Looks::twice(&observed)), ["10.0.0.1 of c1"]);
    }
}

/// whereabouts #162 #176 #207 #638: one pass over a list that is older than the pool frees what a pod has just
/// got. Here the pod is not in the first list; it is there at the second look, still Pending and without any status.
#[test]
fn whereabouts_162_176_207_638_a_pod_that_was_not_listed_yet_keeps_its_address() {
    let mut observed = Observed {
        held: vec![mk_held("ns/p", "c1", "10.0.0.1")],
        pods: seen(&[("ns/p", Sight::Absent)]),
        ..Observed::default()
    };
    let mut looks = Looks::default();
    looks.look(&observed);
    observed.pods = seen(&[("ns/p", mk_pod("u1", Phase::Open))]);
    let second = looks.later(GRACE).look(&observed);
    assert_eq!(second.steps, []);
    assert!(second.memory.is_empty());
    // And should it be gone once more, the wait begins anew.
    observed.pods = seen(&[("ns/p", Sight::Absent)]);
    assert_eq!(looks.later(GRACE).look(&observed).steps, []);
}

/// Spiderpool #2526, whereabouts #182 #291: a StatefulSet's pod is made again under its name and takes the entry over.
/// What was suspected of the old container says nothing about the new one.
#[test]
fn spiderpool_2526_what_a_new_pod_took_over_is_not_freed_for_the_old_one() {
    let mut observed = Observed {
        held: vec![mk_held("ns/web-0", "old", "10.0.0.1")],
        pods: seen(&[("ns/web-0", Sight::Absent)]),
        ..Observed::default()
    };
    let mut looks = Looks::default();
    looks.look(&observed);
    observed.held = vec![mk_held("ns/web-0", "new", "10.0.0.1")];
    // Even if the list still lacks the new pod.
    assert_eq!(looks.later(GRACE).look(&observed).steps, []);
}

/// The other side of it: the new pod of that name has a container of its own elsewhere, and the entry of the old
/// one, whose UID is known, is nobody's any more.
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
    let mut observed = Observed {
        held: vec![old, mk_held("ns/web-0", "new", "10.0.0.2")],
        reservations: vec![
            mk_reservation("10.0.0.1", "ns/web-0"),
            mk_reservation("10.0.0.2", "ns/web-0"),
        ],
        pods: seen(&[("ns/web-0", mk_pod("u2", Phase::Open))]),
        ..Observed::default()
    };
    let steps = Looks::twice(&observed);
    assert_eq!(freed(&steps), ["10.0.0.1 of old"]);
    let Step::Free { reservations, .. } = &steps[0] else {
        panic!("{steps:?}");
    };
    assert_eq!(reservations, &observed.reservations[..1]);
    // Without a UID nobody can tell.
    observed.held[0].note.pod_uid = None;
    assert_eq!(Looks::twice(&observed), []);
}

/// whereabouts #550 #75 #262 #303: addresses stuck after a node is lost.
#[test]
fn pods_of_a_node_that_was_deleted_lose_their_addresses_with_more_patience() {
    let mut observed = Observed {
        held: vec![mk_held("ns/p", "c1", "10.0.0.1")],
        pods: seen(&[("ns/p", mk_pod("u1", Phase::Open))]),
        nodes: HashMap::from([("node-1".to_owned(), false)]),
        ..Observed::default()
    };
    let mut looks = Looks::default();
    looks.look(&observed);
    assert_eq!(looks.later(GRACE).look(&observed).steps, []);
    assert_eq!(
        freed(&looks.later(90_000).look(&observed).steps),
        ["10.0.0.1 of c1"]
    );
    // A node that was registered anew has its pods back.
    observed.nodes.insert("node-1".to_owned(), true);
    assert_eq!(looks.look(&observed).steps, []);
}

/// host-local (plugins#252 #697) keeps what a reboot cut short. No container outlives its kernel, so there is nothing to
/// wait for once the pod is seen to be gone; a pod that lives gets its address again.
#[test]
fn plugins_252_697_a_reboot_ends_the_wait_but_not_a_pod_that_lives() {
    let rebooted = Note {
        rebooted: true,
        ..Note::default()
    };
    let held = |name| Held {
        note: rebooted.clone(),
        ..mk_held(name, "c1", "10.0.0.1")
    };
    let observed = Observed {
        held: vec![held("ns/gone"), held("ns/lives")],
        pods: seen(&[
            ("ns/gone", Sight::Absent),
            ("ns/lives", mk_pod("u1", Phase::Open)),
        ]),
        ..Observed::default()
    };
    let steps = Looks::default().look(&observed).steps;
    assert_eq!(freed(&steps), ["10.0.0.1 of c1"]);
}

#[test]
fn what_names_no_pod_is_never_freed() {
    let observed = Observed {
        held: vec![
            mk_held("(unreadable)", "", "10.0.0.1"),
            mk_held("", "c1", "10.0.0.2"),
        ],
        all_pools: true,
        ..Observed::default()
    };
    assert_eq!(Looks::twice(&observed), []);
}

/// whereabouts looks for a reservation's name among the pod's addresses: `blue-10.0.0.1` is never there.
#[test]
fn a_named_networks_reservation_of_a_living_pod_is_not_stale() {
    let pool = PoolKey::of_network("blue-10.0.0.0-24", "10.0.0.0/24".parse().unwrap());
    let mut observed = Observed {
        held: vec![Held {
            pool,
            ..mk_held("ns/p", "c1", "10.0.0.1")
        }],
        reservations: vec![mk_reservation("blue-10.0.0.1", "ns/p")],
        all_pools: true,
        pods: seen(&[("ns/p", mk_pod("u1", Phase::Open))]),
        ..Observed::default()
    };
    assert_eq!(Looks::twice(&observed), []);
    observed.pods = seen(&[("ns/p", Sight::Absent)]);
    let steps = Looks::twice(&observed);
    let Step::Free { reservations, .. } = &steps[0] else {
        panic!("{steps:?}");
    };
    assert_eq!(reservations, &observed.reservations);
    assert_eq!(steps.len(), 1, "the reservation goes with its entry");
}

/// whereabouts #712: the entry could not be written, the reservation could, and the pod got the address all the same.
/// That reservation is all that keeps it from others.
#[test]
fn whereabouts_712_a_reservation_without_an_entry_stays_while_its_pod_lives() {
    let mut observed = Observed {
        reservations: vec![mk_reservation("10.0.0.1", "ns/p")],
        all_pools: true,
        pods: seen(&[("ns/p", mk_pod("u1", Phase::Open))]),
        ..Observed::default()
    };
    assert_eq!(Looks::twice(&observed), []);
    observed.pods = seen(&[("ns/p", Sight::Absent)]);
    assert_eq!(freed(&Looks::twice(&observed)), ["10.0.0.1"]);
    // Nobody can call it an orphan who has not seen every pool.
    observed.all_pools = false;
    assert_eq!(Looks::twice(&observed), []);
}

/// whereabouts #97 #103 #110 #409: pool and reservation diverge.
#[test]
fn a_living_entry_gets_the_reservation_that_it_lacks() {
    let checked = HashSet::from(["10.0.0.0-24".to_owned()]);
    let mut observed = Observed {
        held: vec![mk_held("ns/p", "c1", "10.0.0.1")],
        all_pools: true,
        pods: seen(&[("ns/p", mk_pod("u1", Phase::Open)), ("ns/q", Sight::Absent)]),
        overlap_checked: checked,
        ..Observed::default()
    };
    assert_eq!(freed(&Looks::twice(&observed)), ["+10.0.0.1"]);

    // Another pod has it, which is gone: that one is ended first.
    observed.reservations = vec![mk_reservation("10.0.0.1", "ns/q")];
    assert_eq!(freed(&Looks::twice(&observed)), ["10.0.0.1"]);

    // Another pod has it, which lives: somebody has to look.
    observed.pods = seen(&[
        ("ns/p", mk_pod("u1", Phase::Open)),
        ("ns/q", mk_pod("u2", Phase::Open)),
    ]);
    let plan = Looks::default().look(&observed);
    assert_eq!(plan.steps, []);
    assert_eq!(plan.disputes.len(), 1);

    // The network does not want any, or nobody knows.
    observed.reservations.clear();
    observed.overlap_checked.clear();
    assert_eq!(Looks::twice(&observed), []);
}
