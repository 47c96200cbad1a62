//! Holdings as they are kept and read back.

use std::sync::Arc;

use berth_ledger::MemoryLedger;

use super::*;

fn sliced(range: &str) -> Sliced {
    let range: Prefix = range.parse().unwrap();
    Sliced {
        network: "blue".into(),
        slice_pool: "blue".into(),
        range,
        usable: untold(range),
        mode: Mode::Assigned,
        checked: false,
    }
}

fn holding(slice: &str) -> Holding {
    Holding {
        slice: slice.parse().unwrap(),
        epoch: Epoch(3),
        node: NodeName::new("a"),
        node_uid: "u1".into(),
        boot: "b1".into(),
        state: State::Active,
        disjoint: true,
        unreserved: false,
        source: Source::Assigned {
            slice_pool: "blue".into(),
        },
    }
}

/// That nothing was given yet.
fn unwritten(of: &Sliced) -> Guard {
    Guard {
        pool: of.key(),
        version: Version::default(),
    }
}

/// A part that was borrowed back, or passed on to the node that it was cut from.
#[tokio::test]
async fn slices_that_begin_at_one_address_are_held_beside_each_other() {
    for range in ["10.0.0.0/24", "255.255.255.0/24"] {
        let ledger: SharedLedger = Arc::new(MemoryLedger::new());
        let of = sliced(range);
        let holdings = Holdings::new(ledger, &of);
        let slice = |length: u8| {
            let first = of.range.last().previous().unwrap();
            let slice = Prefix::containing(first, length).unwrap();
            holding(&slice.to_string())
        };
        let (outer, inner, last) = (slice(30), slice(31), slice(32));
        for one in [&outer, &inner, &last, &inner] {
            holdings.put(one).await.unwrap();
        }
        let all = holdings.load().await.unwrap().all;
        assert_eq!(all.len(), 3, "{all:?}");
        for one in [&outer, &inner, &last] {
            assert!(all.contains(one), "{one:?}");
        }
        holdings.remove(&inner, &unwritten(&of)).await.unwrap();
        let left = holdings.remove(&last, &unwritten(&of)).await.unwrap();
        assert_eq!(left.all, [outer]);
    }
}

#[tokio::test]
async fn what_went_meanwhile_is_not_renewed() {
    let ledger: SharedLedger = Arc::new(MemoryLedger::new());
    let holdings = Holdings::new(ledger, &sliced("10.0.0.0/24"));
    let (outer, inner) = (holding("10.0.0.16/28"), holding("10.0.0.16/29"));
    holdings.put(&outer).await.unwrap();
    let now = holdings.renew(&inner).await.unwrap();
    assert_eq!(now.all, std::slice::from_ref(&outer));
    let proved = Holding {
        disjoint: false,
        ..outer
    };
    let now = holdings.renew(&proved).await.unwrap();
    assert_eq!(now.all, std::slice::from_ref(&proved));
    for changed in [
        Holding {
            state: State::Lost,
            ..proved.clone()
        },
        Holding {
            epoch: Epoch(4),
            ..proved.clone()
        },
    ] {
        holdings.put(&changed).await.unwrap();
        assert_eq!(holdings.renew(&proved).await.unwrap().all, [changed]);
    }
}

#[tokio::test]
async fn only_what_is_not_given_from_is_forgotten() {
    let ledger: SharedLedger = Arc::new(MemoryLedger::new());
    let holdings = Holdings::new(ledger, &sliced("10.0.0.0/24"));
    let active = holding("10.0.0.16/28");
    let lost = Holding {
        state: State::Lost,
        ..active.clone()
    };
    holdings.put(&active).await.unwrap();
    assert_eq!(holdings.forget(&lost).await.unwrap().all, [active]);
    holdings.put(&lost).await.unwrap();
    assert_eq!(holdings.forget(&lost).await.unwrap().all, []);
}

#[tokio::test]
async fn a_holding_reads_back_as_it_was_last_written() {
    let of = sliced("10.0.0.0/24");
    let ledger: SharedLedger = Arc::new(MemoryLedger::new());
    let holdings = Holdings::new(Arc::clone(&ledger), &of);
    let mut holding = holding("10.0.0.16/28");
    let now = holdings.put(&holding).await.unwrap();
    assert_eq!(now.all, [holding.clone()]);
    holding.state = State::Lost;
    holding.node_uid = "u2".into();
    holding.unreserved = true;
    holdings.put(&holding).await.unwrap();
    assert_eq!(holdings.load().await.unwrap().all, [holding.clone()]);
    let told = range_of(&*ledger, &of.holdings()).await.unwrap().unwrap();
    assert_eq!(
        (told.network, told.slice_pool),
        ("blue".into(), "blue".into())
    );
    assert!(!told.checked);
    // It is lost, and the network turned: what is given from now tells.
    let claimed = Holding {
        slice: "10.0.0.32/28".parse().unwrap(),
        source: Source::Claimed,
        state: State::Active,
        ..holding.clone()
    };
    holdings.put(&claimed).await.unwrap();
    let told = range_of(&*ledger, &of.holdings()).await.unwrap().unwrap();
    assert!(matches!(told.mode, Mode::Elastic { .. }), "{told:?}");
    for (gone, left) in [
        (&claimed, vec![holding.clone()]),
        (&holding, vec![]),
        (&holding, vec![]),
    ] {
        let now = holdings.remove(gone, &unwritten(&of)).await.unwrap();
        assert_eq!(now.all, left);
    }
}
