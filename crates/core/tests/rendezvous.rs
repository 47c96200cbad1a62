//! Rendezvous order: a pool that grows or shrinks by one moves few first choices, and only those that it must.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;

use berth_core::{
    Address, AddressRequest, Allocate, Answer, Block, Family, Handle, Moment, Order, Owner, Pool,
    Record, Rendezvous, Request, Space, plan,
};
use proptest::prelude::*;

const IDS: usize = 10_000;

fn address(bits: u32) -> Address {
    Address::new(Family::V4, u128::from(bits)).unwrap()
}

fn first_choices(vms: &[Address]) -> Vec<Address> {
    let choose = |n| Rendezvous::new(&format!("pod-{n}-8b317899")).choose(vms.iter().copied());
    (0..IDS).map(|n| choose(n).unwrap()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn a_vm_that_joins_or_leaves_moves_at_most_two_nths_of_the_first_choices(
        vms in prop::collection::btree_set(any::<u32>(), 3..200),
        place in any::<prop::sample::Index>(),
    ) {
        let all: Vec<Address> = vms.into_iter().map(address).collect();
        let changed = *place.get(&all);
        let fewer: Vec<Address> = all.iter().copied().filter(|vm| *vm != changed).collect();
        let (with, without) = (first_choices(&all), first_choices(&fewer));
        let moved: Vec<_> = with.iter().zip(&without).filter(|(a, b)| a != b).collect();
        // Seen as a removal from n, and as an addition to n - 1, whose bound is the wider one.
        prop_assert!(moved.len() <= 2 * IDS / all.len(), "{} of {IDS} moved, n = {}", moved.len(), all.len());
        prop_assert!(moved.iter().all(|(before, _)| **before == changed), "others moved too");
    }

    /// The plan takes the winner among what is free, in whichever way the store lists it.
    #[test]
    fn the_plan_takes_the_winner_among_what_is_free(
        vms in prop::collection::btree_set(0x0a00_0000..0x0a00_0400u32, 2..60),
        taken in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
        avoid in any::<prop::sample::Index>(),
        subject in "[a-z0-9-]{1,20}",
    ) {
        let all: Vec<Address> = vms.into_iter().map(address).collect();
        let taken: Vec<Address> = taken.iter().map(|index| *index.get(&all)).collect();
        let avoid = *avoid.get(&all);
        let space = Arc::new(Space::list(all.iter().copied().map(Block::single)));
        let free: Vec<Address> = all.iter().copied().filter(|vm| !taken.contains(vm)).collect();
        let winner = Rendezvous::new(&subject).choose(free.iter().copied().filter(|vm| *vm != avoid));
        for mut pool in [Pool::with_listing(free.clone()), Pool::new()] {
            for vm in &taken {
                pool.restore(*vm, Record::new(Owner::new("other", ""), Handle::new("other")));
            }
            let record = Record::new(Owner::new(subject.clone(), ""), Handle::new(subject.clone()));
            let want = AddressRequest { order: Order::Rendezvous, avoid: [avoid].into(), ..AddressRequest::any(Arc::clone(&space)) };
            let claim = Request::Allocate(Allocate { record, wants: vec![want] });
            let answer = plan(&mut pool, &[claim], Moment(0)).answers.remove(0);
            match (answer, winner) {
                (Answer::Granted(granted), Some(winner)) => prop_assert_eq!(granted[0].address, winner),
                (Answer::Refused(_), None) => {}
                other => prop_assert!(false, "{:?}", other),
            }
        }
    }
}

/// A space that is larger than any list of VMs is not scored address by address.
#[test]
fn a_wide_space_is_not_ranked_address_by_address() {
    let space = Arc::new(Space::list([Block::parse(
        "range",
        "fd00::-fd00::ffff:ffff:ffff",
    )
    .unwrap()]));
    let record = Record::new(Owner::new("a", ""), Handle::new("a"));
    let want = AddressRequest {
        order: Order::Rendezvous,
        ..AddressRequest::any(space)
    };
    let claim = Request::Allocate(Allocate {
        record,
        wants: vec![want],
    });
    let answer = plan(&mut Pool::new(), &[claim], Moment(0))
        .answers
        .remove(0);
    assert!(matches!(answer, Answer::Granted(_)), "{answer:?}");
}
