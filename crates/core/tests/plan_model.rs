//! `plan` against a model that anyone can check by eye: a map of who holds what, and a walk over
//! every address of a small range.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use berth_core::dialect::{GCP, NODE_IP_POOL, WHEREABOUTS};
use berth_core::invariant;
use berth_core::plan::{Outcome, Selector};
use berth_core::{
    Address, AddressRequest, Allocate, Answer, Dialect, Granted, Handle, Moment, Order, Owner,
    Pool, RangeSpec, Record, Refusal, Release, Request, Space, plan,
};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Allocate {
        who: u8,
        try_: u8,
        wants: Vec<(u8, u8)>,
        exact: Option<u8>,
        avoid: Vec<u8>,
    },
    ReleaseHandle {
        who: u8,
        try_: u8,
    },
    ReleaseOwner {
        who: u8,
    },
    ReleaseAddress {
        address: u8,
        who: u8,
        try_: u8,
    },
    Reown {
        address: u8,
        from: u8,
        to: u8,
    },
    Exchange {
        address: u8,
        who: u8,
        space: u8,
    },
    Wait {
        seconds: u8,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let who = 0..8u8;
    let try_ = 0..2u8;
    let wants = prop::collection::vec((0..4u8, 0..5u8), 1..3);
    let exact = prop::option::weighted(0.2, 0..24u8);
    let avoid = prop::collection::vec(0..24u8, 0..3);
    let step = prop_oneof![
        5 => (who.clone(), try_.clone(), wants, exact, avoid)
            .prop_map(|(who, try_, wants, exact, avoid)| Step::Allocate { who, try_, wants, exact, avoid }),
        2 => (who.clone(), try_.clone()).prop_map(|(who, try_)| Step::ReleaseHandle { who, try_ }),
        1 => who.clone().prop_map(|who| Step::ReleaseOwner { who }),
        1 => (0..24u8, who.clone(), try_).prop_map(|(address, who, try_)| Step::ReleaseAddress { address, who, try_ }),
        1 => (0..24u8, who.clone(), who.clone()).prop_map(|(address, from, to)| Step::Reown { address, from, to }),
        2 => (0..24u8, who, 0..3u8).prop_map(|(address, who, space)| Step::Exchange { address, who, space }),
        1 => (0..40u8).prop_map(|seconds| Step::Wait { seconds }),
    ];
    prop::collection::vec(step, 1..60)
}

/// Four overlapping ranges of two dialects inside 10.0.0.0/27 and one IPv6 range past the first
/// /65.
fn spaces() -> Vec<Arc<Space>> {
    let mk = |range: &str, exclude: &[&str], dialect: Dialect| {
        let spec = RangeSpec::parse(range).unwrap().excluding(exclude).unwrap();
        Arc::new(Space::build(&spec, dialect).unwrap().0)
    };
    vec![
        mk("10.0.0.0/28", &["10.0.0.3", "10.0.0.8/31"], WHEREABOUTS),
        mk("10.0.0.4-10.0.0.20/27", &[], GCP),
        mk("10.0.0.0/29", &[], NODE_IP_POOL),
        mk("fd00:0:0:0:8000::-fd00:0:0:0:8000::9/64", &[], WHEREABOUTS),
    ]
}

fn mk_record(who: u8, try_: u8) -> Record {
    Record::new(
        Owner::new(format!("ns/pod-{who}"), "net1"),
        Handle::new(format!("c-{who}-{try_}")),
    )
}

fn low(n: u8) -> Address {
    Address::new(berth_core::Family::V4, 0x0a00_0000 + u128::from(n)).unwrap()
}

fn order(code: u8, draw: u8) -> Order {
    match code {
        0 => Order::Lowest,
        1 => Order::HashIndex,
        2 => Order::Scatter {
            among: 3,
            draw: u64::from(draw),
        },
        3 => Order::Rendezvous,
        _ => Order::LongestReleased,
    }
}

/// Who holds what, and for whom an address cools down and until when.
#[derive(Default)]
struct Model {
    held: BTreeMap<Address, Record>,
    cooldowns: BTreeMap<Address, (Owner, Moment)>,
}

impl Model {
    /// Every address of the space that may go to `owner` now, by walking all of them.
    fn free(&self, want: &AddressRequest, owner: &Owner, now: Moment) -> BTreeSet<Address> {
        let open = |address: &Address| {
            !self.held.contains_key(address)
                && !want.avoid.contains(address)
                && invariant::cooldown_kept(&self.cooldowns, owner, *address, now).is_ok()
        };
        (0..want.space.count())
            .filter_map(|n| want.space.nth(n))
            .filter(open)
            .collect()
    }

    fn follow(&mut self, outcome: &Outcome) {
        use berth_core::Change;
        for change in &outcome.changes {
            match change {
                Change::Allocate { address, record } => {
                    self.held.insert(*address, record.clone());
                    self.cooldowns.remove(address);
                }
                Change::Release {
                    address, cooldown, ..
                } => {
                    self.held.remove(address);
                    if let Some(cooldown) = cooldown {
                        self.cooldowns
                            .insert(*address, (cooldown.owner.clone(), cooldown.until));
                    }
                }
                Change::Update {
                    address, record, ..
                } => {
                    self.held.insert(*address, record.clone());
                }
            }
        }
    }
}

fn mk_request(step: &Step, spaces: &[Arc<Space>], cooldown: Duration) -> Option<Request> {
    let release = |selector| Some(Request::Release(Release { selector, cooldown }));
    match step {
        Step::Allocate {
            who,
            try_,
            wants,
            exact,
            avoid,
        } => {
            let wants = wants
                .iter()
                .enumerate()
                .map(|(place, (space, code))| AddressRequest {
                    space: Arc::clone(&spaces[usize::from(*space)]),
                    order: order(*code, *who),
                    exact: exact.filter(|_| place == 0).map(low),
                    avoid: avoid.iter().copied().map(low).collect(),
                });
            Some(Request::Allocate(Allocate {
                record: mk_record(*who, *try_),
                wants: wants.collect(),
            }))
        }
        Step::ReleaseHandle { who, try_ } => release(Selector::Handle {
            handle: mk_record(*who, *try_).handle,
            part: Some("net1".into()),
        }),
        Step::ReleaseOwner { who } => release(Selector::Owner(mk_record(*who, 0).owner)),
        Step::ReleaseAddress { address, who, try_ } => release(Selector::Address {
            address: low(*address),
            holder: mk_record(*who, *try_),
        }),
        Step::Reown { address, from, to } => Some(Request::Transfer {
            address: low(*address),
            expected: mk_record(*from, 0),
            record: mk_record(*to, 0),
        }),
        Step::Exchange {
            address,
            who,
            space,
        } => Some(Request::Exchange {
            address: low(*address),
            expected: mk_record(*who, 0),
            claim: Allocate {
                record: mk_record(*who, 0),
                wants: vec![AddressRequest::any(Arc::clone(
                    &spaces[usize::from(*space)],
                ))],
            },
        }),
        Step::Wait { .. } => None,
    }
}

/// What an answer must be, given the model before it.
fn judge(model: &Model, request: &Request, answer: &Answer, now: Moment) -> Result<(), String> {
    invariant::all_or_none(request, answer)?;
    match (request, answer) {
        (Request::Allocate(claim), Answer::Granted(granted)) => {
            let owner = &claim.record.owner;
            for (want, grant) in claim.wants.iter().zip(granted) {
                let mine = model
                    .held
                    .get(&grant.address)
                    .is_some_and(|held| held.owner == *owner);
                if grant.fresh && mine || !grant.fresh && !mine {
                    return Err(format!(
                        "{} is called fresh: {}",
                        grant.address, grant.fresh
                    ));
                }
                let free = model.free(want, owner, now);
                // The answer is put in the order of a repeat, so another want's rule may apply.
                let any_free = claim
                    .wants
                    .iter()
                    .any(|w| model.free(w, owner, now).contains(&grant.address));
                if grant.fresh && !any_free {
                    return Err(format!("{} was not free: {free:?}", grant.address));
                }
            }
            if let ([want], [grant]) = (claim.wants.as_slice(), granted.as_slice())
                && grant.fresh
                && want.order == Order::Lowest
                && want.exact.is_none()
                && !model
                    .cooldowns
                    .values()
                    .any(|(last, until)| last == owner && *until > now)
                && model.free(want, owner, now).first() != Some(&grant.address)
            {
                return Err(format!("{} is not the lowest free one", grant.address));
            }
            Ok(())
        }
        (Request::Allocate(claim), Answer::Refused(Refusal::Exhausted { .. })) => {
            // Nothing may be free for some want, once earlier wants took theirs.
            let owner = &claim.record.owner;
            let room = claim.wants.iter().all(|want| {
                let mine = model
                    .held
                    .iter()
                    .filter(|(a, r)| r.owner == *owner && want.space.contains(**a));
                mine.count() + model.free(want, owner, now).len() >= claim.wants.len()
            });
            if room {
                Err("refused although there is room".into())
            } else {
                Ok(())
            }
        }
        (
            Request::Exchange {
                address,
                expected,
                claim,
            },
            Answer::Granted(granted),
        ) => {
            let (want, owner, new) = (&claim.wants[0], &claim.record.owner, &granted[0]);
            let held = model.held.get(address);
            let holds = held.is_some_and(|held| held.same_holder(expected));
            let is_free = model.free(want, owner, now).contains(&new.address);
            if new.address == *address || new.fresh != holds || new.fresh && !is_free {
                return Err(format!("{address} was exchanged for {new:?}"));
            }
            Ok(())
        }
        (Request::Exchange { claim, .. }, Answer::Refused(Refusal::Exhausted { .. })) => {
            match model.free(&claim.wants[0], &claim.record.owner, now).len() {
                0 => Ok(()),
                free => Err(format!("refused although {free} are free")),
            }
        }
        (Request::Release(release), Answer::Released(freed)) => {
            for (address, record) in freed {
                let held = model
                    .held
                    .get(address)
                    .ok_or(format!("{address} was not held"))?;
                let named = match &release.selector {
                    Selector::Handle { handle, .. } => held.handle == *handle,
                    Selector::Owner(owner) => held.owner == *owner,
                    Selector::Address { holder, .. } => held.same_holder(holder),
                };
                if !named || held != record {
                    return Err(format!("I6: {address} of {} was freed", held.owner));
                }
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn plans_follow_the_model(steps in steps(), cooldown in 0..30u64) {
        let spaces = spaces();
        let mut pool = Pool::new();
        let mut model = Model::default();
        let mut now = Moment(1_000_000);
        for step in &steps {
            if let Step::Wait { seconds } = step {
                now = now.plus(Duration::from_secs((*seconds).into()));
            }
            let Some(request) = mk_request(step, &spaces, Duration::from_secs(cooldown)) else { continue };
            let before = model.held.clone();
            let outcome = plan(&mut pool, std::slice::from_ref(&request), now);
            judge(&model, &request, &outcome.answers[0], now).map_err(TestCaseError::fail)?;
            invariant::changes_explain(&before, &outcome.changes, &pool).map_err(TestCaseError::fail)?;
            invariant::one_owner(&pool).map_err(TestCaseError::fail)?;
            model.follow(&outcome);
            if let (Request::Allocate(_), Answer::Granted(_)) = (&request, &outcome.answers[0]) {
                let again = plan(&mut pool, std::slice::from_ref(&request), now);
                invariant::same_answer(&outcome.answers[0], &again).map_err(TestCaseError::fail)?;
            }
        }
    }

    /// The n-th free address by jumping over runs is the n-th by walking.
    #[test]
    fn hash_index_picks_from_the_true_free_list(
        held in prop::collection::btree_set(1..254u32, 0..200),
        subject in "[a-z0-9-]{1,20}",
    ) {
        let space = Arc::new(Space::build(&RangeSpec::parse("10.0.0.0/24").unwrap(), WHEREABOUTS).unwrap().0);
        let mut pool = Pool::new();
        for n in &held {
            pool.restore(Address::new(berth_core::Family::V4, 0x0a00_0000 + u128::from(*n)).unwrap(), mk_record(0, 0));
        }
        let free: Vec<Address> = (0..254).filter_map(|n| space.nth(n)).filter(|a| !pool.is_held(*a)).collect();
        let record = Record::new(Owner::new(subject.clone(), ""), Handle::new(subject.clone()));
        let want = AddressRequest { order: Order::HashIndex, ..AddressRequest::any(space) };
        let outcome = plan(&mut pool, &[Request::Allocate(Allocate { record, wants: vec![want] })], Moment(0));
        let digest = md5_first_word(&subject);
        let expected = free[(u64::from(digest) % free.len() as u64) as usize];
        prop_assert!(matches!(&outcome.answers[0], Answer::Granted(granted) if granted[0].address == expected));
    }
}

fn md5_first_word(text: &str) -> u32 {
    use md5::{Digest, Md5};
    let digest = Md5::digest(text.as_bytes());
    u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]])
}

/// The sequences that live pools of pre-created VMs show.
#[test]
fn hash_vectors_of_vm_pools() {
    let run = |list: &[&str], ids: &[&str], listing: bool| -> Vec<String> {
        let blocks = list
            .iter()
            .map(|e| berth_core::Block::parse("VM_POOL_IPS", e).unwrap());
        let space = Arc::new(Space::list(blocks));
        let free = (0..space.count()).filter_map(|n| space.nth(n)).collect();
        let mut pool = if listing {
            Pool::with_listing(free)
        } else {
            Pool::new()
        };
        let claims = ids.iter().map(|id| {
            let record = Record::new(Owner::new(*id, ""), Handle::new(*id));
            let want = AddressRequest {
                order: Order::HashIndex,
                ..AddressRequest::any(Arc::clone(&space))
            };
            Request::Allocate(Allocate {
                record,
                wants: vec![want],
            })
        });
        let outcome = plan(&mut pool, &claims.collect::<Vec<_>>(), Moment(0));
        let last = |answer: &Answer| match answer {
            Answer::Granted(granted) => granted[0].address.to_string(),
            other => panic!("{other:?}"),
        };
        outcome.answers.iter().map(last).collect()
    };
    for listing in [true, false] {
        assert_eq!(
            run(
                &["192.168.1.10-192.168.1.11"],
                &["test-allocation-1", "test-allocation-2"],
                listing
            ),
            ["192.168.1.10", "192.168.1.11"]
        );
        assert_eq!(
            run(
                &["192.168.3.10-192.168.3.15"],
                &["pod-1", "pod-2", "pod-3", "pod-4", "pod-5"],
                listing
            ),
            [
                "192.168.3.13",
                "192.168.3.12",
                "192.168.3.11",
                "192.168.3.15",
                "192.168.3.10"
            ]
        );
    }
}

/// Eight addresses, nine pods.
#[test]
fn the_ninth_of_eight_is_refused_and_nothing_changes() {
    let space = Arc::new(
        Space::build(
            &RangeSpec::parse("192.168.1.5-192.168.1.12/24").unwrap(),
            WHEREABOUTS,
        )
        .unwrap()
        .0,
    );
    let mut pool = Pool::new();
    let claim = |n: u8| {
        Request::Allocate(Allocate {
            record: mk_record(n, 0),
            wants: vec![AddressRequest::any(Arc::clone(&space))],
        })
    };
    let outcome = plan(&mut pool, &(0..9).map(claim).collect::<Vec<_>>(), Moment(0));
    let text: Vec<String> = outcome
        .changes
        .iter()
        .map(|c| c.address().to_string())
        .collect();
    assert_eq!(
        text,
        (5..=12)
            .map(|n| format!("192.168.1.{n}"))
            .collect::<Vec<_>>()
    );
    assert!(matches!(
        &outcome.answers[8],
        Answer::Refused(Refusal::Exhausted { capacity: 8, .. })
    ));
}

/// Two requested addresses of one claim in one range are different, and if the second request fails, the first
/// address is not kept.
#[test]
fn several_wants_are_all_or_none() {
    let mk = |range: &str| {
        Arc::new(
            Space::build(&RangeSpec::parse(range).unwrap(), WHEREABOUTS)
                .unwrap()
                .0,
        )
    };
    let (wide, narrow) = (mk("10.0.0.0/24"), mk("10.1.0.0/30"));
    let mut pool = Pool::new();
    let claim = |n: u8, wants: &[&Arc<Space>]| {
        let wants = wants
            .iter()
            .map(|space| AddressRequest::any(Arc::clone(space)))
            .collect();
        Request::Allocate(Allocate {
            record: mk_record(n, 0),
            wants,
        })
    };
    let first = plan(&mut pool, &[claim(0, &[&wide, &wide])], Moment(0));
    assert_eq!(first.changes.len(), 2);
    let order = |answer: &Answer| match answer {
        Answer::Granted(granted) => granted.iter().map(|g| g.address.to_string()).collect(),
        other => vec![format!("{other:?}")],
    };
    assert_eq!(order(&first.answers[0]), ["10.0.0.1", "10.0.0.2"]);
    let again = plan(&mut pool, &[claim(0, &[&wide, &wide])], Moment(0));
    assert_eq!(
        (again.changes.len(), &again.answers),
        (
            0,
            &vec![Answer::Granted(vec![
                Granted {
                    address: "10.0.0.1".parse().unwrap(),
                    fresh: false
                },
                Granted {
                    address: "10.0.0.2".parse().unwrap(),
                    fresh: false
                },
            ])]
        )
    );
    let both = [
        claim(1, &[&wide, &narrow, &narrow]),
        claim(2, &[&wide, &narrow]),
    ];
    let outcome = plan(&mut pool, &both, Moment(0));
    assert!(matches!(&outcome.answers[0], Answer::Granted(g) if g.len() == 3));
    assert!(matches!(
        &outcome.answers[1],
        Answer::Refused(Refusal::Exhausted { .. })
    ));
    assert_eq!(pool.len(), 5);
}
