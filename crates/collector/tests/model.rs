//! Random lives of pods against the plan: a pod that lives keeps its address whatever collectors read, whenever they read
//! it, and however late they act; and when all is quiet, no address of a pod that is gone is left.
//!
//! The model is naive on purpose: pods are a map, the pool is a map, an observation is a copy of either.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::collections::{BTreeMap, HashMap};

use berth_collector::liveness::{Verdict, judge};
use berth_collector::observed::{Held, Note, Observed, Owners, Phase, Pod, PodRef, PodState};
use berth_collector::plan::plan;
use berth_collector::suspicions::{GracePeriods, Round, Suspicions};
use berth_core::{Address, Handle, Moment, Owner, Record};
use berth_ledger::PoolKey;
use proptest::prelude::*;

const NAMES: usize = 3;
const COLLECTORS: usize = 2;

#[derive(Clone, Debug)]
enum Action {
    Create(usize),
    Delete(usize),
    Finish(usize),
    Add(usize),
    /// The DEL of an earlier container, whatever holds its address by now.
    LateDel(usize),
    /// A collector reads the pool, and keeps what it read.
    ReadPool(usize),
    /// The same for the pods: what it knows about them may be older than what it knows about the pool, and newer.
    ReadPods(usize),
    /// It plans on what it read last, however old.
    Plan(usize),
    /// It carries out one of its steps, however long ago that was planned.
    Act(usize, usize),
    Pass(u64),
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let action = prop_oneof![
        3 => (0..NAMES).prop_map(Action::Create),
        2 => (0..NAMES).prop_map(Action::Delete),
        1 => (0..NAMES).prop_map(Action::Finish),
        4 => (0..NAMES).prop_map(Action::Add),
        1 => (0..20usize).prop_map(Action::LateDel),
        3 => (0..COLLECTORS).prop_map(Action::ReadPool),
        2 => (0..COLLECTORS).prop_map(Action::ReadPods),
        4 => (0..COLLECTORS).prop_map(Action::Plan),
        4 => (0..COLLECTORS, 0..8usize).prop_map(|(who, which)| Action::Act(who, which)),
        3 => (1..60_000u64).prop_map(Action::Pass),
    ];
    prop::collection::vec(action, 1..120)
}

#[derive(Clone, Debug, PartialEq)]
struct Life {
    uid: String,
    phase: Phase,
    /// The container that its last ADD was for.
    attached: Option<String>,
}

#[derive(Clone, Debug)]
struct Entry {
    name: usize,
    container: String,
    uid: String,
}

#[derive(Default)]
struct Collector {
    seen: Observed,
    suspicions: Suspicions,
    /// Entries to free.
    steps: Vec<Held>,
}

struct World {
    /// Whether collectors know the UIDs that addresses were allocated to.
    noted: bool,
    pods: BTreeMap<usize, Life>,
    pool: BTreeMap<u8, Entry>,
    containers: Vec<String>,
    born: usize,
    now: u64,
    collectors: Vec<Collector>,
}

fn pod_ref(name: usize) -> PodRef {
    PodRef::new("ns", format!("web-{name}"))
}

fn judge_entry(held: &Held, owners: &Owners) -> Verdict {
    judge(&held.record.owner.subject, &held.note, owners)
}

fn address(offset: u8) -> Address {
    format!("10.0.0.{offset}").parse().unwrap()
}

impl World {
    fn new(noted: bool) -> World {
        World {
            noted,
            pods: BTreeMap::new(),
            pool: BTreeMap::new(),
            containers: Vec::new(),
            born: 0,
            now: 0,
            collectors: (0..COLLECTORS).map(|_| Collector::default()).collect(),
        }
    }

    fn read_pods(&self) -> Owners {
        let state = |name| match self.pods.get(&name) {
            None => (pod_ref(name), PodState::Absent),
            Some(life) => {
                let pod = Pod {
                    uids: vec![life.uid.clone()],
                    phase: life.phase,
                    node: Some("node-1".into()),
                };
                (pod_ref(name), PodState::Present(pod))
            }
        };
        let pods: HashMap<PodRef, PodState> = (0..NAMES).map(state).collect();
        Owners {
            pods,
            ..Owners::default()
        }
    }

    fn held(&self) -> Vec<Held> {
        let held = self.pool.iter().map(|(offset, entry)| Held {
            pool: PoolKey::of_network("10.0.0.0-24", "10.0.0.0/24".parse().unwrap()),
            address: address(*offset),
            record: Record::new(
                Owner::new(pod_ref(entry.name).to_string(), "net1"),
                Handle::new(&entry.container),
            ),
            note: Note {
                pod_uid: self.noted.then(|| entry.uid.clone()),
                ..Note::default()
            },
        });
        held.collect()
    }

    fn run(&mut self, action: &Action) {
        match *action {
            Action::Create(name) => {
                self.born += 1;
                let uid = format!("u{}", self.born);
                self.pods.entry(name).or_insert(Life {
                    uid,
                    phase: Phase::Open,
                    attached: None,
                });
            }
            Action::Delete(name) => {
                self.pods.remove(&name);
            }
            Action::Finish(name) => {
                if let Some(life) = self.pods.get_mut(&name) {
                    life.phase = Phase::Succeeded;
                }
            }
            Action::Add(name) => self.add(name),
            Action::LateDel(which) => {
                if let Some(container) = self.containers.get(which).cloned() {
                    let lives = |life: &Life| life.attached.as_ref() == Some(&container);
                    if !self.pods.values().any(lives) {
                        self.pool.retain(|_, entry| entry.container != container);
                    }
                }
            }
            Action::ReadPool(who) => self.collectors[who].seen.held = self.held(),
            Action::ReadPods(who) => self.collectors[who].seen.owners = self.read_pods(),
            Action::Plan(who) => {
                let now = Moment(self.now);
                let collector = &mut self.collectors[who];
                let mut round = Round::new(&collector.suspicions, GracePeriods::default(), now);
                let free = plan(&collector.seen, judge_entry, &mut round).into_iter();
                let free = free.map(|(place, _)| collector.seen.held[place].clone());
                collector.steps.extend(free);
                (collector.suspicions, _) = round.done();
            }
            Action::Act(who, which) => {
                let steps = &mut self.collectors[who].steps;
                if which < steps.len() {
                    let step = steps.remove(which);
                    self.carry_out(&step);
                }
            }
            Action::Pass(millis) => self.now += millis,
        }
    }

    /// The same pod takes its entry over, whichever container made it; else the lowest free address.
    fn add(&mut self, name: usize) {
        let container = format!("c{}", self.containers.len());
        let Some(life) = self
            .pods
            .get_mut(&name)
            .filter(|life| life.phase == Phase::Open)
        else {
            return;
        };
        life.attached = Some(container.clone());
        self.containers.push(container.clone());
        let held = self.pool.iter().find(|(_, entry)| entry.name == name);
        let free = || (1..).find(|offset| !self.pool.contains_key(offset));
        let offset = held
            .map(|(offset, _)| *offset)
            .unwrap_or_else(|| free().unwrap());
        let uid = life.uid.clone();
        self.pool.insert(
            offset,
            Entry {
                name,
                container,
                uid,
            },
        );
    }

    /// The last read, and a release that names its holder.
    fn carry_out(&mut self, held: &Held) {
        let verdict = judge_entry(held, &self.read_pods());
        if matches!(verdict, Verdict::Gone(_)) {
            self.pool.retain(|offset, entry| {
                address(*offset) != held.address || entry.container != held.record.handle.as_str()
            });
        }
    }

    /// I4: a pod that lives holds what was allocated to it.
    fn check(&self) -> Result<(), TestCaseError> {
        for (name, life) in &self.pods {
            if let (Phase::Open, Some(container)) = (life.phase, &life.attached) {
                let holds = self
                    .pool
                    .values()
                    .any(|entry| entry.container == *container);
                prop_assert!(holds, "web-{} lives and lost its address", name);
            }
        }
        Ok(())
    }

    fn settle(&mut self) {
        for collector in &mut self.collectors {
            *collector = Collector::default();
        }
        for _ in 0..2 {
            self.run(&Action::ReadPool(0));
            self.run(&Action::ReadPods(0));
            self.run(&Action::Plan(0));
            while !self.collectors[0].steps.is_empty() {
                self.run(&Action::Act(0, 0));
            }
            self.run(&Action::Pass(30_000));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn the_living_keep_and_the_gone_lose(noted in any::<bool>(), actions in actions()) {
        let mut world = World::new(noted);
        for action in &actions {
            world.run(action);
            world.check()?;
        }
        world.settle();
        world.check()?;
        for entry in world.pool.values() {
            let life = world.pods.get(&entry.name);
            let lives = life.is_some_and(|life| {
                life.phase == Phase::Open && (!noted || life.uid == entry.uid)
            });
            prop_assert!(lives, "{:?} leaks: {:?}", entry, world.pods);
        }
    }
}
