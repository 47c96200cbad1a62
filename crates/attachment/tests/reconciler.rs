//! The reconciler against a target in memory: group commit, rounds, items that fail alone.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use berth_attachment::{
    Entry, Failure, Goal, Intent, IntentId, Journal, JournalFailed, MemoryJournal, Reconciler,
    Refusal, Target,
};
use proptest::prelude::*;
use tokio::time::Instant;

type Answer = Result<(), Failure<String>>;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Text(String);

impl From<JournalFailed> for Text {
    fn from(failed: JournalFailed) -> Text {
        Text(failed.0)
    }
}

impl std::fmt::Display for Text {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

#[derive(Default)]
struct Fake {
    present: Mutex<BTreeSet<u32>>,
    calls: Mutex<Vec<Intent<u32>>>,
    released: Mutex<Vec<u32>>,
    /// What the next calls answer, whatever they ask.
    script: Mutex<Vec<Answer>>,
    bad: BTreeSet<u32>,
    room: Option<usize>,
}

impl Target<u32> for Fake {
    type Error = Text;

    async fn apply(&self, intent: &Intent<u32>) -> Result<(), Failure<Text>> {
        tokio::time::sleep(Duration::from_millis(100)).await;
        self.calls.lock().unwrap().push(intent.clone());
        let text = |why: &str| Text(why.to_owned());
        let scripted = self.script.lock().unwrap().pop();
        match scripted {
            Some(Ok(())) | None => {}
            Some(Err(Failure::Unknown(why))) => return Err(Failure::Unknown(Text(why))),
            Some(Err(Failure::Stale(why))) => return Err(Failure::Stale(Text(why))),
            Some(Err(Failure::Blocked(why))) => return Err(Failure::Blocked(Text(why))),
            Some(Err(other)) => panic!("{other:?}"),
        }
        let mut present = self.present.lock().unwrap();
        match intent.goal {
            Goal::Absent => present.retain(|item| !intent.items.contains(item)),
            Goal::Present => {
                if intent.items.iter().any(|item| self.bad.contains(item)) {
                    return Err(Failure::Bad(text("in use")));
                }
                let fresh = intent.items.difference(&present).count();
                let left = self.room.map(|room| room.saturating_sub(present.len()));
                if left.is_some_and(|left| fresh > left) {
                    return Err(Failure::Full {
                        room: left,
                        error: text("full"),
                    });
                }
                present.extend(intent.items.iter().copied());
            }
        }
        Ok(())
    }

    async fn release(&self, item: &u32) -> Result<(), Text> {
        self.released.lock().unwrap().push(*item);
        Ok(())
    }
}

struct Scene {
    fake: Arc<Fake>,
    journal: Arc<MemoryJournal<u32>>,
    reconciler: Reconciler<u32, Text>,
}

async fn scene(fake: Fake) -> Scene {
    gathering(fake, Duration::ZERO).await
}

async fn gathering(fake: Fake, gather: Duration) -> Scene {
    let (fake, journal) = (Arc::new(fake), Arc::new(MemoryJournal::default()));
    let reconciler = Reconciler::start(Arc::clone(&fake), Arc::clone(&journal), gather)
        .await
        .unwrap();
    Scene {
        fake,
        journal,
        reconciler,
    }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(600)
}

impl Scene {
    async fn attach_all(&self, items: std::ops::Range<u32>) -> Vec<Result<(), Refusal<Text>>> {
        let tasks: Vec<_> = items
            .map(|item| {
                let reconciler = self.reconciler.clone();
                tokio::spawn(async move { reconciler.attach(item, soon()).await })
            })
            .collect();
        let mut answers = Vec::new();
        for task in tasks {
            answers.push(task.await.unwrap());
        }
        answers
    }

    async fn settle(&self) {
        loop {
            let status = self.reconciler.status().await.unwrap();
            if status.absent.is_empty() && status.present.iter().all(|(_, done)| *done) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    fn calls(&self) -> Vec<(Goal, usize)> {
        let calls = self.fake.calls.lock().unwrap();
        calls
            .iter()
            .map(|call| (call.goal, call.items.len()))
            .collect()
    }
}

#[tokio::test(start_paused = true)]
async fn what_arrives_within_a_moment_goes_into_one_call() {
    let scene = gathering(Fake::default(), Duration::from_millis(50)).await;
    let attached = |item: u32| scene.reconciler.attach(item, soon());
    let later = async |item: u32| {
        tokio::time::sleep(Duration::from_millis(u64::from(item))).await;
        attached(item).await
    };
    let (first, second, third) = tokio::join!(attached(1), later(2), later(40));
    assert!(first.is_ok() && second.is_ok() && third.is_ok());
    let calls = scene.fake.calls.lock().unwrap().len();
    assert_eq!(calls, 1);
    // A detach is answered when it is recorded, and not when the time is over.
    let before = Instant::now();
    scene.reconciler.detach(1).await.unwrap();
    assert!(before.elapsed() < Duration::from_millis(50));
    scene.settle().await;
    let calls = scene.fake.calls.lock().unwrap().len();
    assert_eq!(calls, 2);
}

#[tokio::test(start_paused = true)]
async fn what_arrives_during_a_call_goes_into_the_next() {
    let scene = scene(Fake::default()).await;
    let first = tokio::spawn({
        let reconciler = scene.reconciler.clone();
        async move { reconciler.attach(0, soon()).await }
    });
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert!(scene.attach_all(1..111).await.iter().all(Result::is_ok));
    first.await.unwrap().unwrap();
    assert_eq!(scene.calls(), [(Goal::Present, 1), (Goal::Present, 110)]);
}

#[tokio::test(start_paused = true)]
async fn a_detach_is_answered_at_once_and_additions_come_first() {
    let scene = scene(Fake::default()).await;
    scene.attach_all(0..3).await;
    let blocking = tokio::spawn({
        let reconciler = scene.reconciler.clone();
        async move { reconciler.attach(9, soon()).await }
    });
    tokio::time::sleep(Duration::from_millis(10)).await;
    let started = Instant::now();
    for item in 0..3 {
        scene.reconciler.detach(item).await.unwrap();
    }
    assert!(
        started.elapsed() < Duration::from_millis(50),
        "a DEL waits for no call"
    );
    assert!(
        scene.fake.released.lock().unwrap().is_empty(),
        "not before it is absent"
    );
    blocking.await.unwrap().unwrap();
    scene.settle().await;
    assert_eq!(
        scene.calls(),
        [
            (Goal::Present, 1),
            (Goal::Present, 2),
            (Goal::Present, 1),
            (Goal::Absent, 3)
        ]
    );
    assert_eq!(scene.fake.released.lock().unwrap().len(), 3);
    assert_eq!(*scene.fake.present.lock().unwrap(), BTreeSet::from([9]));
    let recorded = scene.journal.load().await.unwrap();
    assert_eq!(recorded.present, BTreeSet::from([9]));
    assert!(recorded.absent.is_empty() && recorded.intent.is_none());
}

#[tokio::test(start_paused = true)]
async fn one_bad_item_fails_alone() {
    let scene = scene(Fake {
        bad: BTreeSet::from([77]),
        ..Fake::default()
    })
    .await;
    let answers = scene.attach_all(0..110).await;
    let failed: Vec<usize> = (0..110).filter(|place| answers[*place].is_err()).collect();
    assert_eq!(failed, [77]);
    assert_eq!(answers[77], Err(Refusal::Failed(Text("in use".to_owned()))));
    assert!(scene.calls().len() <= 16, "{:?}", scene.calls());
}

#[tokio::test(start_paused = true)]
async fn what_has_no_room_fails_and_the_others_are_attached() {
    let scene = scene(Fake {
        room: Some(5),
        ..Fake::default()
    })
    .await;
    let answers = scene.attach_all(0..8).await;
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 5);
    assert_eq!(scene.calls().len(), 3);
    // Removals that wait make room before anything is refused.
    let attach = tokio::spawn({
        let reconciler = scene.reconciler.clone();
        async move { reconciler.attach(100, soon()).await }
    });
    scene.reconciler.detach(0).await.unwrap();
    attach.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_is_repeated_under_the_same_id_and_a_stale_one_under_a_new_one() {
    let scene = scene(Fake::default()).await;
    let lost = Err(Failure::Unknown("lost".to_owned()));
    let stale = Err(Failure::Stale("412".to_owned()));
    *scene.fake.script.lock().unwrap() = vec![stale, lost];
    scene.reconciler.attach(1, soon()).await.unwrap();
    let calls = scene.fake.calls.lock().unwrap();
    let ids: Vec<IntentId> = calls.iter().map(|call| call.id).collect();
    assert_eq!(ids.len(), 3);
    assert_eq!(ids[0], ids[1]);
    assert_ne!(ids[1], ids[2]);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_leaves_has_its_item_removed_again() {
    let scene = scene(Fake::default()).await;
    let hasty = Instant::now() + Duration::from_millis(20);
    assert_eq!(
        scene.reconciler.attach(4, hasty).await,
        Err(Refusal::TooLate)
    );
    scene.settle().await;
    assert!(scene.fake.present.lock().unwrap().is_empty());
    assert_eq!(*scene.fake.released.lock().unwrap(), [4]);
}

#[tokio::test(start_paused = true)]
async fn a_detach_that_is_blocked_is_tried_again_and_an_attach_is_refused() {
    let scene = scene(Fake::default()).await;
    let denied = || Err(Failure::Blocked("denied".to_owned()));
    *scene.fake.script.lock().unwrap() = vec![denied()];
    let refused = scene.reconciler.attach(1, soon()).await;
    assert_eq!(refused, Err(Refusal::Failed(Text("denied".to_owned()))));
    scene.reconciler.attach(1, soon()).await.unwrap();
    *scene.fake.script.lock().unwrap() = vec![denied(), denied()];
    scene.reconciler.detach(1).await.unwrap();
    scene.settle().await;
    assert_eq!(*scene.fake.released.lock().unwrap(), [1]);
}

#[tokio::test(start_paused = true)]
async fn an_open_intent_is_resumed_and_unrequested_items_are_removed() {
    let fake = Arc::new(Fake::default());
    let journal = Arc::new(MemoryJournal::default());
    let intent = Intent {
        id: IntentId(7),
        goal: Goal::Present,
        items: BTreeSet::from([1, 2]),
    };
    journal
        .record(&[Entry::Begin(intent.clone())])
        .await
        .unwrap();
    let reconciler = Reconciler::start(Arc::clone(&fake), Arc::clone(&journal), Duration::ZERO)
        .await
        .unwrap();
    reconciler.attach(2, soon()).await.unwrap();
    let scene = Scene {
        fake,
        journal,
        reconciler,
    };
    scene.settle().await;
    assert_eq!(scene.fake.calls.lock().unwrap()[0], intent);
    assert_eq!(*scene.fake.present.lock().unwrap(), BTreeSet::from([2]));
    assert_eq!(*scene.fake.released.lock().unwrap(), [1]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Requests in any order, with a restart anywhere: at the end the target has what was requested last.
    #[test]
    fn the_last_request_of_each_item_holds(
        steps in proptest::collection::vec((0..12u32, any::<bool>(), 0..120u64), 1..40),
        restart_at in 0..40usize,
        lost in 0..4usize,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let mut scene = scene(Fake { bad: BTreeSet::from([11]), ..Fake::default() }).await;
            *scene.fake.script.lock().unwrap() = vec![Err(Failure::Unknown(String::new())); lost];
            let mut wanted = BTreeSet::new();
            let mut tasks: Vec<tokio::task::JoinHandle<()>> = Vec::new();
            for (place, (item, attach, pause)) in steps.into_iter().enumerate() {
                if place == restart_at {
                    for task in tasks.drain(..) {
                        task.await.unwrap();
                    }
                    let (fake, journal) = (Arc::clone(&scene.fake), Arc::clone(&scene.journal));
                    let reconciler = Reconciler::start(Arc::clone(&fake), Arc::clone(&journal), Duration::ZERO).await.unwrap();
                    scene = Scene { fake, journal, reconciler };
                }
                if attach {
                    if item != 11 { wanted.insert(item); }
                    let reconciler = scene.reconciler.clone();
                    // An attach during a release is superseded; the front would allocate again.
                    tasks.push(tokio::spawn(async move { drop(reconciler.attach(item, soon()).await) }));
                } else {
                    wanted.remove(&item);
                    scene.reconciler.detach(item).await.unwrap();
                }
                tokio::time::sleep(Duration::from_millis(pause)).await;
            }
            for task in tasks { task.await.unwrap(); }
            scene.settle().await;
            let present = scene.fake.present.lock().unwrap().clone();
            assert!(present.is_subset(&wanted), "{present:?} {wanted:?}");
            let recorded = scene.journal.load().await.unwrap();
            assert_eq!(recorded.present, present);
        });
    }
}
