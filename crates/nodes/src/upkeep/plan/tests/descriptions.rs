//! When an offset loses its description.

use super::*;

/// An enactment was edited to claim a free address: its owner then has two, and the other one is free again, in two steps.
#[test]
fn an_offset_whose_owner_claims_another_is_collected() {
    let case = |loose: bool, claims: Vec<(&'static str, &'static str)>| Case {
        described: if loose {
            vec![(2, "n1/p")]
        } else {
            vec![(0, "n1/p"), (2, "n1/p")]
        },
        loose: if loose { vec![0] } else { Vec::new() },
        nodes: vec!["n1"],
        live: vec!["n1/p"],
        claims,
        read_before: Some(GRACE),
        ..Case::default()
    };
    let third = || vec![("10.0.0.3", "n1/p")];
    case(false, third()).check(&["undescribe 10.0.0.1 of n1"], "ReconciledPool");
    case(true, third()).check(&["release 10.0.0.1: Stale"], "ReconciledPool");
    // Its owner recorded it meanwhile.
    case(true, vec![("10.0.0.1", "n1/p")]).check(
        &["adopt 10.0.0.1 for n1", "undescribe 10.0.0.3 of n1"],
        "ReconciledPool",
    );
    case(false, vec![]).check(&[], "ReconciledPool");
    let reset = |read_before| Case {
        resets: vec![Reset::Pool],
        read_before,
        ..case(false, third())
    };
    reset(None).check(&["undescribe 10.0.0.1 of n1"], "ReconcilingPool");
}

/// What an enactment claims needs no description; an allocation that none claims yet keeps its own (I1).
#[test]
fn a_long_status_is_shortened_by_what_enactments_claim() {
    let range = Range {
        cidr: "10.0.0.0/16".to_owned(),
        ..Range::default()
    };
    let spec = NodeIPPoolSpec {
        range,
        ..Default::default()
    };
    let space = PoolSpace::read(&spec).unwrap();
    let one = |offset: u64| {
        let mut one = described(&space, offset, "n/p");
        one.node = format!("n{offset}");
        one
    };
    let all: Vec<Described> = (0..1_100).map(one).collect();
    let recorded = Recorded {
        offsets: Offsets::Held((0..1_100).collect()),
        described: all.clone(),
        set_aside: Vec::new(),
    };
    let unrecorded = |one: &&Described| one.offset < 1_050;
    let claims = all.iter().filter(unrecorded).map(|one| Claim {
        address: one.address,
        node: one.node.clone(),
        policy: one.policy.clone(),
        capture: one.capture.clone(),
    });
    let observed = Observed {
        uid: "u",
        space: Ok(&space),
        recorded: &recorded,
        new: false,
        reconciling: false,
        resets: Vec::new(),
        others: Vec::new(),
        claims: claims.collect(),
        live: all.iter().map(holder).collect(),
        nodes: all.iter().map(|one| one.node.clone()).collect(),
        shown: Vec::new(),
        answered: Vec::new(),
        refused: None,
    };
    let suspicions = Suspicions::default();
    let mut round = Round::new(&suspicions, graces(), Moment(NOW));
    let outcome = plan(&observed, &mut round);
    let removed = outcome.steps.iter().map(|step| match step {
        Step::Undescribe(one) => one.offset,
        other => panic!("{other:?}"),
    });
    let removed: Vec<u64> = removed.collect();
    assert_eq!(removed.len(), 1_100 - 750);
    assert!(
        removed.iter().all(|offset| (700..1_050).contains(offset)),
        "{removed:?}"
    );
}
