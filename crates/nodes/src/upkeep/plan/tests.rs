use berth_api::nmstate::{NodeIPPoolSpec, Range, SetAside};

use berth_collector::GracePeriods;
use berth_collector::suspicions::Suspicions;
use berth_core::Moment;

use super::*;

mod descriptions;

fn space(start: &str, end: &str) -> PoolSpace {
    let range = Range {
        cidr: "10.0.0.0/24".to_owned(),
        start: Some(start.to_owned()),
        end: Some(end.to_owned()),
        ..Range::default()
    };
    let spec = NodeIPPoolSpec {
        range,
        reuse_delay: Some("90s".to_owned()),
        ..Default::default()
    };
    PoolSpace::read(&spec).unwrap()
}

fn at(text: &str) -> Address {
    text.parse().unwrap()
}

/// A pool 10.0.0.1 to 10.0.0.4; offset n is 10.0.0.(n+1). Texts are `node/policy`, each with capture `a`.
#[derive(Default)]
struct Case {
    /// What the status describes: offset and owner.
    described: Vec<(u64, &'static str)>,
    /// What it holds without saying for whom.
    loose: Vec<u64>,
    emptied: bool,
    aside: bool,
    new: bool,
    reconciling: bool,
    claims: Vec<(&'static str, &'static str)>,
    live: Vec<&'static str>,
    nodes: Vec<&'static str>,
    shown: Vec<(&'static str, &'static str)>,
    answered: Vec<(&'static str, &'static str)>,
    resets: Vec<Reset>,
    /// How long ago the same was read for the first time, in milliseconds.
    read_before: Option<u64>,
    refused: bool,
    overlap: bool,
}

const NOW: u64 = 1_000_000;
const GRACE: u64 = 60_000;

fn graces() -> GracePeriods {
    let grace = Duration::from_millis(GRACE);
    GracePeriods {
        pod: grace,
        node: grace,
    }
}

fn parts(owner: &str) -> (String, String) {
    let (node, policy) = owner.split_once('/').unwrap();
    (node.to_owned(), policy.to_owned())
}

fn described(space: &PoolSpace, offset: u64, owner: &str) -> Described {
    let (node, policy) = parts(owner);
    Described {
        offset,
        address: space.address(Offset(offset.into())).unwrap(),
        node,
        policy,
        capture: "a".to_owned(),
    }
}

impl Case {
    /// The outcome, what is suspected after it, and when the next grace period ends.
    fn outcome(&self) -> (Outcome, Suspicions, Option<Moment>) {
        self.with_observed(|observed| {
            let mut suspicions = Suspicions::default();
            if let Some(before) = self.read_before {
                let mut round = Round::new(&suspicions, graces(), Moment(NOW - before));
                plan(&observed, &mut round);
                suspicions = round.done().0;
            }
            let mut round = Round::new(&suspicions, graces(), Moment(NOW));
            let outcome = plan(&observed, &mut round);
            let (suspicions, next) = round.done();
            (outcome, suspicions, next)
        })
    }

    fn with_observed<T>(&self, read: impl FnOnce(Observed<'_>) -> T) -> T {
        let space = space("10.0.0.1", "10.0.0.4");
        let other = super::tests::space("10.0.0.4", "10.0.0.9");
        let held: BTreeSet<u64> = self
            .described
            .iter()
            .map(|(offset, _)| *offset)
            .chain(self.loose.iter().copied())
            .collect();
        let aside = SetAside {
            field: "allocated-bitmap".to_owned(),
            value: "x".to_owned(),
            why: "its bitmap-format is none".to_owned(),
        };
        let recorded = Recorded {
            offsets: if self.emptied {
                Offsets::Emptied
            } else if held.is_empty() {
                Offsets::Absent
            } else {
                Offsets::Held(held)
            },
            described: self
                .described
                .iter()
                .map(|(offset, owner)| described(&space, *offset, owner))
                .collect(),
            set_aside: if self.aside { vec![aside] } else { Vec::new() },
        };
        let holder = |owner: &&str| {
            let (node, policy) = parts(owner);
            let capture = "a".to_owned();
            Holder {
                node,
                policy,
                capture,
            }
        };
        let claim = |(address, owner): &(&str, &str)| {
            let (node, policy) = parts(owner);
            Claim {
                address: at(address),
                node,
                policy,
                capture: "a".to_owned(),
            }
        };
        let seen = |(address, place): &(&str, &str)| {
            let (node, interface) = parts(place);
            Seen {
                address: at(address),
                node,
                interface,
            }
        };
        let observed = Observed {
            uid: "u1",
            space: Ok(&space),
            recorded: &recorded,
            new: self.new,
            reconciling: self.reconciling,
            resets: self.resets.clone(),
            others: if self.overlap {
                vec![("q", &other)]
            } else {
                Vec::new()
            },
            claims: self.claims.iter().map(claim).collect(),
            live: self.live.iter().map(holder).collect(),
            nodes: self.nodes.iter().map(|node| (*node).to_owned()).collect(),
            shown: self.shown.iter().map(seen).collect(),
            answered: self
                .answered
                .iter()
                .map(|(address, other)| Answered {
                    address: at(address),
                    node: "n1".to_owned(),
                    interface: "eth1".to_owned(),
                    other: (*other).to_owned(),
                })
                .collect(),
            refused: self.refused.then(|| "node n5".to_owned()),
        };
        read(observed)
    }

    fn check(&self, steps: &[&str], reason: &str) -> Outcome {
        let (outcome, ..) = self.outcome();
        let found: Vec<String> = outcome.steps.iter().map(words).collect();
        assert_eq!(found, steps);
        assert_eq!(outcome.health.condition().reason, reason);
        outcome
    }
}

fn words(step: &Step) -> String {
    match step {
        Step::SetAside => "set aside".to_owned(),
        Step::Adopt(one) => format!("adopt {} for {}", one.address, one.node),
        Step::Hold { seen, .. } => format!("hold {}", seen.address),
        Step::Release { address, why, .. } => format!("release {address}: {why:?}"),
        Step::Undescribe(one) => format!("undescribe {} of {}", one.address, one.node),
        Step::ReportHeld { seen, .. } => {
            format!("held {} on {} {}", seen.address, seen.node, seen.interface)
        }
        Step::DeleteEnactment { node, policy } => format!("delete {node}.{policy}"),
        Step::RemoveReset(_) => "remove reset".to_owned(),
        Step::ReportForeign(claim) => format!("foreign {}", claim.address),
    }
}

#[test]
fn a_fresh_pool_is_up_to_date() {
    let outcome = Case {
        new: true,
        ..Case::default()
    }
    .check(&[], "ReconciledPool");
    assert_eq!(outcome.health.condition().message, "The pool is up to date");
}

#[test]
fn a_pool_that_is_created_again_takes_back_what_enactments_claim_before_it_allocates() {
    let claims = vec![("10.0.0.2", "n1/p"), ("10.0.0.3", "n2/p")];
    let nodes = vec!["n1", "n2"];
    let case = Case {
        new: true,
        claims,
        nodes,
        live: vec!["n1/p", "n2/p"],
        ..Case::default()
    };
    let outcome = case.check(
        &["adopt 10.0.0.2 for n1", "adopt 10.0.0.3 for n2"],
        "ReconcilingPool",
    );
    assert!(!outcome.health.allocates());
    // A claim that the new pool does not have is reported.
    let foreign = Case {
        new: true,
        claims: vec![("10.0.0.99", "n1/p")],
        nodes: vec!["n1"],
        ..Case::default()
    };
    foreign.check(&["foreign 10.0.0.99"], "ReconciledPool");
}

#[test]
fn a_list_emptied_by_hand_is_rebuilt_and_the_stale_ones_are_free() {
    let claims = vec![("10.0.0.2", "n1/p")];
    let case = Case {
        emptied: true,
        claims,
        nodes: vec!["n1"],
        live: vec!["n1/p"],
        ..Case::default()
    };
    case.check(&["adopt 10.0.0.2 for n1"], "ReconcilingPool");
    // An address that a host has is not handed to another one, though no enactment claims it.
    let shown = Case {
        emptied: true,
        shown: vec![("10.0.0.3", "n2/eth1")],
        ..Case::default()
    };
    shown.check(&["hold 10.0.0.3"], "ReconcilingPool");
}

#[test]
fn what_can_not_be_read_is_set_aside_first() {
    let claims = vec![("10.0.0.2", "n1/p")];
    let case = Case {
        aside: true,
        claims,
        nodes: vec!["n1"],
        live: vec!["n1/p"],
        ..Case::default()
    };
    let outcome = case.check(
        &["set aside", "adopt 10.0.0.2 for n1"],
        "UnsyncronizedIPPool",
    );
    assert!(!outcome.health.allocates());
    assert!(
        outcome
            .health
            .to_string()
            .contains("status.allocated-bitmap")
    );
}

#[test]
fn a_reset_recalculates_the_pool_and_keeps_the_addresses_in_use() {
    // Offset 0 is claimed, 1 is stale, 2 is of a live owner that has not written its enactment yet.
    let case = |resets: Vec<Reset>, loose: Vec<u64>| Case {
        described: vec![(0, "n1/p"), (2, "n2/p")],
        loose,
        claims: vec![("10.0.0.1", "n1/p")],
        nodes: vec!["n1", "n2"],
        live: vec!["n1/p", "n2/p"],
        resets,
        ..Case::default()
    };
    let outcome =
        case(vec![Reset::Pool], vec![1]).check(&["release 10.0.0.2: Reset"], "ReconcilingPool");
    assert_eq!(outcome.health.condition().status, "Unknown");
    // It is shown also if nothing is stale, and until the annotation is gone.
    let clean = case(vec![Reset::Pool], vec![]);
    clean.check(&[], "ReconcilingPool");
    let shown = Case {
        reconciling: true,
        ..clean
    };
    shown.check(&["remove reset"], "ReconcilingPool");
    let done = Case {
        reconciling: true,
        ..case(vec![], vec![])
    };
    done.check(&[], "ReconciledPool");
}

#[test]
fn a_reset_of_a_policy_or_an_enactment_reaches_no_further() {
    let case = |reset: Reset| Case {
        described: vec![(0, "n1/gone"), (1, "n2/gone"), (2, "n1/other")],
        nodes: vec!["n1", "n2"],
        resets: vec![reset],
        ..Case::default()
    };
    case(Reset::Policy("gone".to_owned())).check(
        &["release 10.0.0.1: Reset", "release 10.0.0.2: Reset"],
        "ReconcilingPool",
    );
    let reset = Reset::Enactment {
        node: "n2".to_owned(),
        policy: "gone".to_owned(),
    };
    case(reset).check(&["release 10.0.0.2: Reset"], "ReconcilingPool");
}

#[test]
fn scale_down_frees_the_addresses_of_a_node_that_is_gone_after_the_grace_period() {
    let case = |read_before: Option<u64>| Case {
        described: vec![(0, "n1/p"), (1, "n2/p")],
        // Its enactment was not collected: the node was removed without grace.
        claims: vec![("10.0.0.1", "n1/p"), ("10.0.0.2", "n2/p")],
        nodes: vec!["n1"],
        live: vec!["n1/p"],
        read_before,
        ..Case::default()
    };
    case(None).check(&["delete n2.p"], "ReconciledPool");
    let (_, suspicions, next) = case(None).outcome();
    assert_eq!((suspicions.len(), next), (1, Some(Moment(NOW + GRACE))));
    case(Some(GRACE - 1)).check(&["delete n2.p"], "ReconciledPool");
    let later = case(Some(GRACE)).check(
        &["delete n2.p", "release 10.0.0.2: NodeGone"],
        "ReconciledPool",
    );
    let Some(Step::Release { cooldown, .. }) = later.steps.last() else {
        panic!("{later:?}")
    };
    assert_eq!(*cooldown, Duration::from_secs(90));
}

#[test]
fn a_policy_that_is_gone_frees_only_what_no_host_shows() {
    let case = |shown: Vec<(&'static str, &'static str)>| Case {
        described: vec![(0, "n1/p")],
        nodes: vec!["n1"],
        read_before: Some(GRACE),
        shown,
        ..Case::default()
    };
    case(vec![]).check(&["release 10.0.0.1: PolicyGone"], "ReconciledPool");
    let shown = case(vec![("10.0.0.1", "n1/eth1")]);
    let held = shown.check(&["held 10.0.0.1 on n1 eth1"], "ReconciledPool");
    let message = held.health.to_string();
    assert!(
        message.contains("node n1") && message.contains("interface eth1"),
        "{message}"
    );
    // Its grace period is over: the leader waits for a change, and does not plan in a loop.
    assert_eq!(shown.outcome().2, None);
    // The policy was created again in time: its owner is live, and the grace period starts over.
    let again = Case {
        live: vec!["n1/p"],
        ..case(vec![])
    };
    again.check(&[], "ReconciledPool");
    assert!(again.outcome().1.is_empty());
}

/// The next owner of an address is suspected from its own first read on: what was read of the owner before proves nothing (I4).
#[test]
fn a_suspicion_is_of_one_owner_of_one_pool() {
    let of = |owner: &'static str| Case {
        described: vec![(0, owner)],
        nodes: vec!["n1", "n2"],
        ..Case::default()
    };
    let (_, suspicions, _) = of("n1/p").outcome();
    let due = |case: &Case, uid: &'static str| {
        case.with_observed(|mut observed| {
            observed.uid = uid;
            let mut round = Round::new(&suspicions, graces(), Moment(NOW + GRACE));
            plan(&observed, &mut round).steps.len()
        })
    };
    assert_eq!(due(&of("n1/p"), "u1"), 1);
    assert_eq!(due(&of("n2/p"), "u1"), 0, "another owner");
    assert_eq!(due(&of("n1/p"), "u2"), 0, "the pool was created again");
}

#[test]
fn a_stale_offset_is_collected() {
    let case = Case {
        loose: vec![3],
        read_before: Some(GRACE),
        ..Case::default()
    };
    case.check(&["release 10.0.0.4: Stale"], "ReconciledPool");
}

#[test]
fn collisions_name_both_nodes() {
    let base = || Case {
        described: vec![(0, "n1/p"), (1, "n2/p")],
        nodes: vec!["n1", "n2"],
        live: vec!["n1/p", "n2/p"],
        ..Case::default()
    };
    // An enactment was edited to claim another's address.
    let edited = Case {
        claims: vec![("10.0.0.1", "n2/p"), ("10.0.0.1", "n1/p")],
        ..base()
    };
    let message = edited.check(&[], "IPCollision").health.to_string();
    assert_eq!(
        message,
        "The IP address 10.0.0.1 at node n1 and interface unknown is is colliding with node n2"
    );
    // The enactment of a node that is gone collides with nothing.
    let dead = Case {
        claims: vec![
            ("10.0.0.1", "gone/p"),
            ("10.0.0.1", "n1/p"),
            ("10.0.0.2", "n2/p"),
        ],
        ..base()
    };
    dead.check(&["delete gone.p"], "ReconciledPool");
    // Two nodes show one address; the owner comes first.
    let claims = vec![("10.0.0.1", "n1/p"), ("10.0.0.2", "n2/p")];
    let shown = Case {
        claims: claims.clone(),
        shown: vec![("10.0.0.1", "n2/eth0"), ("10.0.0.1", "n1/eth1")],
        ..base()
    };
    let message = shown.check(&[], "IPCollision").health.to_string();
    assert_eq!(
        message,
        "The IP address 10.0.0.1 at node n1 and interface eth1 is is colliding with node n2"
    );
    // Something that is no node answers.
    let answered = Case {
        claims,
        answered: vec![("10.0.0.1", "02:00:00:00:00:07")],
        ..base()
    };
    let message = answered.check(&[], "IPCollision").health.to_string();
    assert_eq!(
        message,
        "The IP address 10.0.0.1 at node n1 and interface eth1 is is colliding with node 02:00:00:00:00:07"
    );
}

#[test]
fn overlapping_pools_are_named_and_allocate_nothing() {
    let health = Case {
        overlap: true,
        ..Case::default()
    }
    .check(&[], "OverlappingIPPool")
    .health;
    assert!(
        health
            .to_string()
            .starts_with("The NodeIPPool q is overlapping with this one.")
    );
    assert!(!health.allocates());
}

#[test]
fn a_pool_is_exhausted_when_a_claim_found_nothing_and_until_an_offset_is_free() {
    let owners = ["n1/p", "n2/p", "n3/p", "n4/p"];
    let full = |count: usize, refused: bool| Case {
        described: owners
            .iter()
            .take(count)
            .enumerate()
            .map(|(offset, owner)| (offset as u64, *owner))
            .collect(),
        nodes: vec!["n1", "n2", "n3", "n4"],
        live: owners.to_vec(),
        refused,
        ..Case::default()
    };
    full(4, false).check(&[], "ReconciledPool");
    let health = full(4, true).check(&[], "ExhaustedIPPool").health;
    assert!(
        health.to_string().contains("no free address for node n5"),
        "{health}"
    );
    full(3, true).check(&[], "ReconciledPool");
}

#[test]
fn a_spec_that_can_not_be_used_is_invalid_and_changes_nothing() {
    let error = SpecError::Malformed {
        field: "range.end".to_owned(),
        value: "x".to_owned(),
        expected: "an address",
    };
    let recorded = Recorded {
        offsets: Offsets::Held(BTreeSet::from([1])),
        described: Vec::new(),
        set_aside: Vec::new(),
    };
    let observed = Observed {
        uid: "u1",
        space: Err(&error),
        recorded: &recorded,
        new: false,
        reconciling: false,
        resets: Vec::new(),
        others: Vec::new(),
        claims: Vec::new(),
        live: BTreeSet::new(),
        nodes: BTreeSet::new(),
        shown: Vec::new(),
        answered: Vec::new(),
        refused: None,
    };
    let suspicions = Suspicions::default();
    let mut round = Round::new(&suspicions, GracePeriods::default(), Moment(NOW));
    let outcome = plan(&observed, &mut round);
    assert_eq!(
        (outcome.steps.len(), outcome.health.condition().reason),
        (0, "InvalidIPPool")
    );
}
