//! Desks that put their requests to the leader's, and what happens when that is away, slow or wrong.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use berth_core::dialect::WHEREABOUTS;
use berth_core::plan::Selector;
use berth_core::{
    Address, AddressRequest, Allocate, Answer, Handle, Owner, RangeSpec, Record, Release, Request,
    Space,
};
use berth_desk::{Desk, DeskMetrics, DeskSettings, LeaderAway, LeaderDesk};
use berth_ledger::{MemoryLedger, PoolKey, SharedLedger};
use faulty::{Fault, FaultyLedger};
use tokio::sync::Semaphore;

mod faulty;

/// A leader's desk over a real one, with a connection that can be cut or slowed.
#[derive(Debug)]
struct Way {
    leader: Desk,
    /// Requests that may pass; closed: nothing gets there.
    gate: Semaphore,
    /// Answers get lost.
    deaf: bool,
}

impl Way {
    fn open(ledger: &SharedLedger) -> Way {
        Way {
            leader: mk_desk(ledger, None),
            gate: Semaphore::new(Semaphore::MAX_PERMITS),
            deaf: false,
        }
    }
}

#[async_trait]
impl LeaderDesk for Way {
    async fn put(
        &self,
        _pool: &PoolKey,
        requests: &[Request],
        limit: Duration,
    ) -> Result<Vec<Option<Answer>>, LeaderAway> {
        match self.gate.try_acquire() {
            Ok(permit) => permit.forget(),
            Err(_) => return Err(LeaderAway::NotReceived("the gate is shut".into())),
        }
        let answers = self.leader.submit_for(requests.to_vec(), limit).await;
        if self.deaf {
            return Err(LeaderAway::OutcomeUnknown("no answer".into()));
        }
        Ok(answers.into_iter().map(Result::ok).collect())
    }
}

fn mk_pool() -> PoolKey {
    PoolKey::named("pool")
}

fn mk_ledger() -> SharedLedger {
    Arc::new(MemoryLedger::new())
}

fn mk_desk(ledger: &SharedLedger, leader: Option<Arc<dyn LeaderDesk>>) -> Desk {
    let settings = DeskSettings {
        leader,
        ..DeskSettings::default()
    };
    let metrics = DeskMetrics::default().of("pool");
    Desk::open(Arc::clone(ledger), mk_pool(), &settings, metrics)
}

fn mk_record(name: &str) -> Record {
    Record::new(Owner::new(name, "net1"), Handle::new(format!("id-{name}")))
}

fn mk_claim(name: &str) -> Request {
    let spec = RangeSpec::parse("10.0.0.0/16").unwrap();
    let space = Arc::new(Space::build(&spec, WHEREABOUTS).unwrap().0);
    Request::Allocate(Allocate {
        record: mk_record(name),
        wants: vec![AddressRequest::any(space)],
    })
}

fn mk_release(name: &str) -> Request {
    Request::Release(Release {
        selector: Selector::Handle {
            handle: mk_record(name).handle,
            part: Some("net1".into()),
        },
        cooldown: Duration::ZERO,
    })
}

fn granted(answer: Answer) -> Address {
    match answer {
        Answer::Granted(grants) => grants[0].address,
        other => panic!("{other:?}"),
    }
}

async fn held(ledger: &SharedLedger) -> Vec<(Address, String)> {
    let now = ledger.load(&mk_pool()).await.unwrap();
    let entries = now.pool.records();
    entries
        .map(|(address, record)| (address, record.owner.subject.clone()))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_requests_of_many_desks_meet_in_one() {
    let ledger = mk_ledger();
    let way = Arc::new(Way::open(&ledger));
    let desks: Vec<Desk> = (0..16)
        .map(|_| mk_desk(&ledger, Some(Arc::clone(&way) as Arc<dyn LeaderDesk>)))
        .collect();
    let mut asks = Vec::new();
    for (node, desk) in desks.iter().enumerate() {
        for pod in 0..20 {
            let desk = desk.clone();
            asks.push(tokio::spawn(async move {
                granted(
                    desk.submit(mk_claim(&format!("{node}/{pod}")))
                        .await
                        .unwrap(),
                )
            }));
        }
    }
    let mut given = BTreeSet::new();
    for ask in asks {
        assert!(given.insert(ask.await.unwrap()), "I1");
    }
    assert_eq!(given.len(), 320);
    for desk in &desks {
        assert_eq!(desk.metrics().by_leader.get(), 20);
        assert_eq!(desk.metrics().commits.get(), 0, "the leader's desk wrote");
    }
    assert!(way.leader.metrics().commits.get() <= 320);
    let again = granted(desks[3].submit(mk_claim("7/7")).await.unwrap());
    let kept = held(&ledger).await;
    assert!(
        kept.contains(&(again, "7/7".into())),
        "I3, whichever desk asks"
    );
}

#[tokio::test]
async fn a_desk_that_can_not_reach_the_leader_serves_itself() {
    let ledger = mk_ledger();
    let way = Arc::new(Way::open(&ledger));
    let desk = mk_desk(&ledger, Some(Arc::clone(&way) as Arc<dyn LeaderDesk>));
    let first = granted(desk.submit(mk_claim("a")).await.unwrap());
    way.gate.close();
    let second = granted(desk.submit(mk_claim("b")).await.unwrap());
    assert_ne!(first, second);
    assert_eq!(granted(desk.submit(mk_claim("a")).await.unwrap()), first);
    assert_eq!(desk.metrics().alone.get(), 2);
    desk.submit(mk_release("a")).await.unwrap();
    assert_eq!(held(&ledger).await, [(second, "b".into())]);
}

/// Records of other nodes, which the leader takes from their own node alone.
#[tokio::test]
async fn a_request_for_this_desk_alone_is_not_sent_to_the_leader() {
    let ledger = mk_ledger();
    let way = Arc::new(Way::open(&ledger));
    let desk = mk_desk(&ledger, Some(Arc::clone(&way) as Arc<dyn LeaderDesk>));
    let (first, second) = tokio::join!(desk.submit(mk_claim("a")), desk.submit_here(mk_claim("b")));
    let (first, second) = (granted(first.unwrap()), granted(second.unwrap()));
    assert_ne!(first, second, "I1");
    assert_eq!(desk.metrics().by_leader.get(), 1);
    assert_eq!(desk.metrics().commits.get(), 1, "its own");
    assert_eq!(desk.metrics().alone.get(), 0);
    let found = desk.find(&mk_record("a").handle).await.unwrap();
    assert_eq!(found, [(first, mk_record("a"))], "the leader's commit");
}

#[tokio::test]
async fn an_answer_that_got_lost_is_found_in_the_ledger() {
    let ledger = mk_ledger();
    let way = Way {
        deaf: true,
        ..Way::open(&ledger)
    };
    let desk = mk_desk(&ledger, Some(Arc::new(way)));
    let address = granted(desk.submit(mk_claim("a")).await.unwrap());
    assert_eq!(
        held(&ledger).await,
        [(address, "a".into())],
        "one entry, not two"
    );
}

#[tokio::test]
async fn a_late_commit_of_a_deposed_leader_gives_nothing_twice_and_goes_with_its_holder() {
    let ledger = mk_ledger();
    let leader = mk_desk(&ledger, None);
    let cut_off = Way::open(&ledger);
    cut_off.gate.close();
    let desk = mk_desk(&ledger, Some(Arc::new(cut_off)));
    // Two pods were served by their node; the leader wakes up with the first one's request of before, and with
    // another's.
    let mine = granted(desk.submit(mk_claim("a")).await.unwrap());
    let other = granted(desk.submit(mk_claim("b")).await.unwrap());
    let late = leader
        .submit_for(vec![mk_claim("a"), mk_claim("c")], Duration::from_secs(5))
        .await;
    let late: Vec<Address> = late.into_iter().map(|one| granted(one.unwrap())).collect();
    assert_eq!(late[0], mine, "I3: the leader looks before it gives");
    assert!(late[1] != mine && late[1] != other, "I1");
    desk.submit(mk_release("a")).await.unwrap();
    assert_eq!(held(&ledger).await.len(), 2);
}

#[tokio::test]
async fn what_is_granted_to_another_process_is_not_undone_when_it_is_not_received() {
    // The first commit's outcome is unknown to the leader too: it looks, and must not undo what it finds.
    let slow = Arc::new(FaultyLedger::failing([
        Fault::LostReply,
        Fault::None,
        Fault::Unavailable,
        Fault::LostRequest,
    ]));
    let ledger: SharedLedger = Arc::clone(&slow) as SharedLedger;
    let leader = mk_desk(&ledger, None);
    for name in ["a", "b"] {
        let asked = leader.clone();
        let request = vec![mk_claim(name)];
        let asker =
            tokio::spawn(async move { asked.submit_for(request, Duration::from_secs(5)).await });
        let before = slow.commits.load(Ordering::SeqCst);
        while slow.commits.load(Ordering::SeqCst) == before {
            tokio::task::yield_now().await;
        }
        asker.abort();
    }
    let next = granted(leader.submit(mk_claim("c")).await.unwrap());
    let kept = held(&ledger).await;
    assert_eq!(
        kept.len(),
        3,
        "the node may have found it and given it to its pod: {kept:?}"
    );
    assert!(kept.contains(&(next, "c".into())));
}
