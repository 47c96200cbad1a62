//! Failures that other projects had at freeing addresses, each as reads of a small cluster. Numbers are their projects' issues.

use std::collections::HashMap;

use berth_core::{Handle, Moment, Owner, Record};
use berth_ledger::PoolKey;

use super::super::liveness::judge;
use super::super::observed::{Note, Phase, Pod, PodRef, PodState};
use super::super::suspicions::{GracePeriods, Suspicions};
use super::*;

const GRACE: u64 = 30_000;

/// Reads, one after the other, by one collector.
#[derive(Default)]
struct Reads {
    suspicions: Suspicions,
    now: u64,
}

/// What one of them led to.
struct Planned {
    freed: Vec<String>,
    next: Option<Moment>,
}

impl Reads {
    fn read(&mut self, observed: &Observed) -> Planned {
        let before = std::mem::take(&mut self.suspicions);
        let mut round = Round::new(&before, GracePeriods::default(), Moment(self.now));
        let judge = |held: &Held, owners: &_| judge(&held.record.owner.subject, &held.note, owners);
        let freed = plan(observed, judge, &mut round).into_iter();
        let freed = freed.map(|(place, _)| {
            let held = &observed.held[place];
            format!("{} of {}", held.address, held.record.handle)
        });
        let freed = freed.collect();
        let next;
        (self.suspicions, next) = round.done();
        Planned { freed, next }
    }

    fn later(&mut self, millis: u64) -> &mut Self {
        self.now += millis;
        self
    }

    /// Two reads of the same state, the grace period between them.
    fn twice(observed: &Observed) -> Vec<String> {
        let mut reads = Reads::default();
        assert!(reads.read(observed).freed.is_empty(), "by the first read");
        reads.later(GRACE).read(observed).freed
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

#[test]
fn a_pod_that_is_gone_loses_its_address_after_the_grace_period() {
    let observed = Observed {
        held: vec![mk_held("ns/p", "c1", "10.0.0.1")],
        owners: read_pods(&[("ns/p", PodState::Absent)]),
        ..Observed::default()
    };
    let mut reads = Reads::default();
    let first = reads.read(&observed);
    assert!(first.freed.is_empty());
    assert_eq!(first.next, Some(Moment(GRACE)));
    assert!(reads.later(GRACE - 1).read(&observed).freed.is_empty());
    let last = reads.later(1).read(&observed);
    assert_eq!(last.freed, ["10.0.0.1 of c1"]);
    // The release may fail: the next read plans it again, without another wait.
    assert_eq!(reads.read(&observed).freed, ["10.0.0.1 of c1"]);
}

/// whereabouts leaves the addresses of completed pods until they are deleted; evicted ones are Failed.
#[test]
fn a_pod_that_has_finished_loses_its_address() {
    for phase in [Phase::Succeeded, Phase::Failed] {
        let observed = Observed {
            held: vec![mk_held("ns/p", "c1", "10.0.0.1")],
            owners: read_pods(&[("ns/p", mk_pod("u1", phase))]),
            ..Observed::default()
        };
        assert_eq!(Reads::twice(&observed), ["10.0.0.1 of c1"]);
    }
}

/// whereabouts #162 #176 #207 #638: one pass over a list that is older than the pool frees what a pod has just
/// got. Here the pod is not in the first list; it exists at the second read, still Pending and without any status.
#[test]
fn whereabouts_162_176_207_638_a_pod_that_was_not_listed_yet_keeps_its_address() {
    let mut observed = Observed {
        held: vec![mk_held("ns/p", "c1", "10.0.0.1")],
        owners: read_pods(&[("ns/p", PodState::Absent)]),
        ..Observed::default()
    };
    let mut reads = Reads::default();
    reads.read(&observed);
    observed.owners = read_pods(&[("ns/p", mk_pod("u1", Phase::Open))]);
    let second = reads.later(GRACE).read(&observed);
    assert!(second.freed.is_empty());
    assert!(reads.suspicions.is_empty());
    // And should it be gone once more, the grace period starts again.
    observed.owners = read_pods(&[("ns/p", PodState::Absent)]);
    assert!(reads.later(GRACE).read(&observed).freed.is_empty());
}

/// Spiderpool #2526, whereabouts #182 #291: a StatefulSet's pod is made again under its name and takes the entry over.
/// What was suspected of the old container says nothing about the new one.
#[test]
fn spiderpool_2526_what_a_new_pod_took_over_is_not_freed_for_the_old_one() {
    let mut observed = Observed {
        held: vec![mk_held("ns/web-0", "old", "10.0.0.1")],
        owners: read_pods(&[("ns/web-0", PodState::Absent)]),
        ..Observed::default()
    };
    let mut reads = Reads::default();
    reads.read(&observed);
    observed.held = vec![mk_held("ns/web-0", "new", "10.0.0.1")];
    // Even if the list still lacks the new pod.
    assert!(reads.later(GRACE).read(&observed).freed.is_empty());
}

/// whereabouts #550 #75 #262 #303: addresses stuck after a node is lost.
#[test]
fn pods_of_a_node_that_was_deleted_lose_their_addresses_after_a_longer_grace_period() {
    let mut observed = Observed {
        held: vec![mk_held("ns/p", "c1", "10.0.0.1")],
        owners: read_pods(&[("ns/p", mk_pod("u1", Phase::Open))]),
        ..Observed::default()
    };
    observed.owners.nodes.insert("node-1".to_owned(), false);
    let mut reads = Reads::default();
    reads.read(&observed);
    assert!(reads.later(GRACE).read(&observed).freed.is_empty());
    assert_eq!(
        reads.later(90_000).read(&observed).freed,
        ["10.0.0.1 of c1"]
    );
    // A node that was registered again has its pods back.
    observed.owners.nodes.insert("node-1".to_owned(), true);
    assert!(reads.read(&observed).freed.is_empty());
}

/// host-local (plugins#252 #697) keeps what a reboot cut short. No container outlives its kernel, so there is nothing to
/// wait for once the pod is gone; a pod that lives gets its address again.
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
        owners: read_pods(&[
            ("ns/gone", PodState::Absent),
            ("ns/lives", mk_pod("u1", Phase::Open)),
        ]),
        ..Observed::default()
    };
    let freed = Reads::default().read(&observed).freed;
    assert_eq!(freed, ["10.0.0.1 of c1"]);
}

#[test]
fn what_names_no_pod_is_never_freed() {
    let observed = Observed {
        held: vec![
            mk_held("(unreadable)", "", "10.0.0.1"),
            mk_held("", "c1", "10.0.0.2"),
        ],
        ..Observed::default()
    };
    assert!(Reads::twice(&observed).is_empty());
}
