//! What can happen next.

use std::collections::BTreeSet;

use berth_core::Address;
use berth_core::slice::machine::desk::{Desk, DeskEvent};
use berth_core::slice::machine::node::Link;
use berth_core::slice::machine::recall::{Recall, RecallEvent};
use berth_core::slice::machine::{Effect, Event, Hold, ModeKind, NodeMachine};
use berth_core::slice::machine::{Slice, Step as Doing};

use super::Slices;
use super::executor::{owned, unknown};
use super::world::{Careless, DESK, World};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// A process begins; without the API server, if it may trust its file.
    Start(usize),
    StartOffline(usize),
    Crash(usize),
    /// A process executes its next effect.
    Run(usize),
    /// A request is carried out and answered.
    Exchange(usize),
    /// A request is carried out, and its answer is late.
    Execute(usize),
    /// The answer is lost: the request was carried out, or will be later, or never.
    Lose(usize),
    /// A request that nothing waits for is carried out, or was lost.
    Orphan(usize),
    Drop(usize),
    Tell(usize, Event),
    /// A pod ends; its address is released later.
    End(Address, usize),
    ReleasePlain(Address),
    Copy(usize),
    Restore(usize),
    DeleteLease,
    DeletePublished(usize),
    DeletePlain,
    Backup,
    RestoreServer,
    Settle(usize),
    Gone(usize),
    Return(usize),
    Recall,
    RecallGo,
    Desk(DeskEvent),
    DeskGo,
    SettleDesk,
}

impl Slices {
    pub(super) fn steps(&self, world: &World) -> Vec<Step> {
        let mut steps = Vec::new();
        for p in 0..world.processes.len() {
            self.process_steps(world, p, &mut steps);
        }
        self.wire_steps(world, &mut steps);
        for (address, owner) in &world.pods {
            steps.push(Step::End(*address, *owner));
        }
        self.fault_steps(world, &mut steps);
        self.controller_steps(world, &mut steps);
        self.desk_steps(world, &mut steps);
        steps
    }

    fn process_steps(&self, world: &World, p: usize, steps: &mut Vec<Step>) {
        let process = &world.processes[p];
        let Some(machine) = &process.machine else {
            let mut others = world.processes.iter();
            let locked = others.any(|other| other.node == process.node && other.machine.is_some());
            let may = !locked || self.is(Careless::NoLock);
            // A new file has no memory of the server, so its node joins after the others have settled.
            let is_new = world.files[process.file].now.is_new();
            let is_early = is_new && world.is_server_restored() && !self.is_settled(world);
            if may && !is_early && !world.gone.contains(&process.node) {
                steps.push(Step::Start(p));
                let file = &world.files[process.file];
                let current = !file.is_restored || self.is(Careless::TrustAnyFile);
                if world.budget.offline > 0 && current && !file.now.slices.is_empty() {
                    steps.push(Step::StartOffline(p));
                }
            }
            return;
        };
        if world.budget.crashes > 0 {
            steps.push(Step::Crash(p));
        }
        if !process.queue.is_empty() {
            steps.push(Step::Run(p));
            return;
        }
        let mut tell = |event| steps.push(Step::Tell(p, event));
        for address in world.addresses() {
            if machine.may_allocate(address) {
                tell(Event::Allocate(address));
            }
            let has_pod = world.pods.contains(&(address, process.node));
            if machine.stored.held.get(&address) == Some(&Hold::Pod) && !has_pod {
                tell(Event::Release(address));
            }
        }
        let entry = machine.slices.get(&world.slice);
        match entry {
            None if machine.link == Link::Ready => tell(Event::Claim(world.slice)),
            Some(entry) if entry.step == Doing::Idle => {
                for event in idle_events(world, machine, entry, process.node) {
                    tell(event);
                }
            }
            _ => {}
        }
        let listing = |p: usize| {
            let mut wire = world.wire.iter();
            wire.any(|one| one.from == Some(p) && one.effect == Effect::ListOwned)
        };
        let idle = entry.is_none_or(|entry| entry.step == Doing::Idle && !entry.serving);
        let has_something = entry.is_some()
            || machine.stored.slices.contains_key(&world.slice)
            || !owned(world, process.node).is_empty();
        if idle && has_something && !listing(p) {
            tell(Event::Resync);
        }
        if machine.link == Link::Settling && self.is_settled(world) {
            steps.push(Step::Settle(p));
        }
    }

    /// The settle time is longer than a live node needs to verify what it has.
    fn is_settled(&self, world: &World) -> bool {
        let calm = |p: usize| {
            let process = &world.processes[p];
            let Some(machine) = &process.machine else {
                return world.files[process.file].now.slices.is_empty()
                    || world.gone.contains(&process.node)
                    || world.backup.is_none();
            };
            let mut wire = world.wire.iter();
            let stands = |(slice, entry): (&_, &Slice)| {
                let lease = world.server.leases.get(slice).map(|(_, stamp)| *stamp);
                let known = entry.lease.as_ref().map(|(_, stamp)| *stamp);
                !machine.stored.slices.contains_key(slice) || (entry.serving && lease == known)
            };
            !wire.any(|one| one.from == Some(p))
                && process.queue.is_empty()
                && machine.slices.iter().all(stands)
        };
        self.is(Careless::NoSettling) || (0..world.processes.len()).all(calm)
    }

    fn wire_steps(&self, world: &World, steps: &mut Vec<Step>) {
        for (at, request) in world.wire.iter().enumerate() {
            let Some(p) = request.from else {
                steps.extend([Step::Orphan(at), Step::Drop(at)]);
                continue;
            };
            if !world.processes[p].queue.is_empty() {
                continue;
            }
            steps.push(Step::Exchange(at));
            if world.budget.late > 0 && request.answer.is_none() {
                steps.push(Step::Execute(at));
            }
            if world.budget.losses > 0 && request.answer.is_none() {
                steps.push(Step::Lose(at));
            }
        }
    }

    fn fault_steps(&self, world: &World, steps: &mut Vec<Step>) {
        let budget = &world.budget;
        for (n, file) in world.files.iter().enumerate() {
            if budget.copies > 0 && file.copy.is_none() && !file.is_restored {
                steps.push(Step::Copy(n));
            }
            let mut users = world.processes.iter().filter(|process| process.file == n);
            let is_down = users.all(|process| process.machine.is_none());
            let published = world
                .server
                .published
                .get(&n)
                .map(|(pool, _)| &pool.entries);
            // Without a cache only what was published can be recovered.
            let covered = world.has_cache
                || world
                    .pods
                    .iter()
                    .filter(|(_, of)| *of == n)
                    .all(|(address, _)| published.is_some_and(|entries| entries.contains(address)));
            if file.copy.is_some() && is_down && covered {
                steps.push(Step::Restore(n));
            }
        }
        if budget.by_hand > 0 {
            if !world.server.leases.is_empty() {
                steps.push(Step::DeleteLease);
            }
            let nodes = world.server.published.keys();
            steps.extend(nodes.map(|node| Step::DeletePublished(*node)));
        }
        let plain = &world.server.plain;
        if budget.plain_by_hand > 0 && plain.is_empty() && world.server.mode.is_some() {
            steps.push(Step::DeletePlain);
        }
        if budget.backups > 0 {
            match world.backup {
                None => steps.push(Step::Backup),
                Some(_) => steps.push(Step::RestoreServer),
            }
        }
        if budget.gone > 0 {
            steps.extend((0..world.files.len()).map(Step::Gone));
        }
        steps.extend(world.gone.iter().copied().map(Step::Return));
    }

    fn controller_steps(&self, world: &World, steps: &mut Vec<Step>) {
        if world.recall_request.is_some() {
            steps.push(Step::RecallGo);
        } else if world.recall == Recall::Idle && self.proof(world, false).is_some() {
            steps.push(Step::Recall);
        }
    }

    fn desk_steps(&self, world: &World, steps: &mut Vec<Step>) {
        for address in &world.server.plain {
            if world.owners(*address) == 0 {
                steps.push(Step::ReleasePlain(*address));
            }
        }
        let Some(desk) = &world.desk else { return };
        if world.desk_request.is_some() {
            steps.push(Step::DeskGo);
            return;
        }
        match desk {
            Desk::Settling if self.is_settled(world) => steps.push(Step::SettleDesk),
            Desk::Unread => steps.push(Step::Desk(DeskEvent::Wanted)),
            Desk::Closed(_) | Desk::Open { .. } => {
                for address in world.addresses() {
                    if desk.offers(address).is_some() && !world.server.plain.contains(&address) {
                        steps.push(Step::Desk(DeskEvent::Allocate(address)));
                    }
                }
                if desk_mode(desk) != world.server.mode {
                    steps.push(Step::Desk(DeskEvent::Failed));
                }
                if world.budget.modes > 0 {
                    let changes = [
                        DeskEvent::Tighten,
                        DeskEvent::Loosen,
                        DeskEvent::Leave,
                        DeskEvent::Finish,
                    ];
                    steps.extend(changes.map(Step::Desk));
                }
            }
            _ => {}
        }
    }

    pub(super) fn act(&self, world: &mut World, step: Step) {
        match step {
            Step::Start(p) => self.start(world, p),
            Step::StartOffline(p) => {
                world.budget.offline -= 1;
                let file = world.processes[p].file;
                let stored = world.files[file].now.clone();
                let (mut machine, _) = NodeMachine::start(world.me(p), stored);
                machine.trust_file();
                world.processes[p].machine = Some(machine);
            }
            Step::Crash(p) => {
                world.budget.crashes -= 1;
                stop(world, p);
            }
            Step::Run(p) => self.run_one(world, p),
            Step::Exchange(at) => {
                let request = world.wire.remove(at);
                let answer = match request.answer.clone() {
                    Some(answer) => answer,
                    None => self.execute(world, &request),
                };
                if let Some(p) = request.from {
                    self.handle(world, p, answer);
                }
            }
            Step::Execute(at) => {
                world.budget.late -= 1;
                let mut request = world.wire.remove(at);
                request.answer = Some(self.execute(world, &request));
                world.wire.push(request);
            }
            Step::Lose(at) => {
                world.budget.losses -= 1;
                let mut request = world.wire.remove(at);
                let event = unknown(&request.effect);
                let from = request.from.take();
                world.wire.push(request);
                if let Some(p) = from {
                    self.handle(world, p, event);
                }
            }
            Step::Orphan(at) => {
                let request = world.wire.remove(at);
                self.execute(world, &request);
            }
            Step::Drop(at) => {
                world.wire.remove(at);
            }
            Step::Tell(p, event) => self.handle(world, p, event),
            Step::End(address, owner) => {
                world.pods.remove(&(address, owner));
            }
            Step::ReleasePlain(address) => {
                world.server.plain.remove(&address);
            }
            Step::Copy(n) => {
                world.budget.copies -= 1;
                world.files[n].copy = Some(world.files[n].now.clone());
            }
            Step::Restore(n) => {
                if let Some(copy) = world.files[n].copy.take() {
                    world.files[n].now = copy;
                    world.files[n].is_restored = true;
                }
            }
            Step::DeleteLease => {
                world.budget.by_hand -= 1;
                world.server.leases.clear();
            }
            Step::DeletePublished(node) => {
                world.budget.by_hand -= 1;
                world.server.published.remove(&node);
            }
            Step::DeletePlain => {
                world.budget.plain_by_hand -= 1;
                world.server.mode = None;
            }
            Step::Backup => world.backup = Some(world.server.clone()),
            Step::RestoreServer => self.restore_server(world),
            Step::Settle(p) => self.handle(world, p, Event::Settled),
            Step::Gone(node) => {
                world.budget.gone -= 1;
                world.gone.insert(node);
                for p in 0..world.processes.len() {
                    if world.processes[p].node == node {
                        stop(world, p);
                    }
                }
                world.pods.retain(|(_, owner)| *owner != node);
            }
            Step::Return(node) => {
                world.gone.remove(&node);
            }
            Step::Recall => {
                if let Some((_, proof)) = self.proof(world, false) {
                    let event = RecallEvent::Seen(proof);
                    world.recall_request = world.recall.handle(world.slice, event);
                }
            }
            Step::RecallGo => self.recall_go(world),
            Step::Desk(event) => self.desk_told(world, event),
            Step::DeskGo => self.desk_go(world),
            Step::SettleDesk => self.desk_event(world, DeskEvent::Settled),
        }
    }

    fn desk_told(&self, world: &mut World, event: DeskEvent) {
        if event == DeskEvent::Wanted && self.is(Careless::ListFirst) {
            world.listed = Some(self.list(world));
        }
        let changes = matches!(
            event,
            DeskEvent::Tighten | DeskEvent::Loosen | DeskEvent::Leave | DeskEvent::Finish
        );
        self.desk_event(world, event);
        if changes && world.desk_request.is_some() {
            world.budget.modes -= 1;
        }
    }

    fn start(&self, world: &mut World, p: usize) {
        let stored = world.files[world.processes[p].file].now.clone();
        let (machine, effects) = NodeMachine::start(world.me(p), stored);
        world.processes[p].machine = Some(machine);
        world.processes[p].queue = effects;
        while !world.processes[p].queue.is_empty() {
            self.run_one(world, p);
        }
    }

    /// The server was down meanwhile: every process noticed, and no request is on its way any more.
    fn restore_server(&self, world: &mut World) {
        world.budget.backups -= 1;
        if let Some(backup) = &world.backup {
            world.server = backup.clone();
        }
        let plain = world.server.plain.clone();
        // Pods that the cluster does not know any more are ended by their kubelet.
        world
            .pods
            .retain(|(address, owner)| *owner != DESK || plain.contains(address));
        let wire = std::mem::take(&mut world.wire);
        for p in 0..world.processes.len() {
            for request in wire.iter().filter(|request| request.from == Some(p)) {
                self.handle(world, p, unknown(&request.effect));
            }
            self.handle(world, p, Event::Disconnected);
            self.handle(world, p, Event::Connected);
        }
        world.recall = Recall::Idle;
        world.recall_request = None;
        if world.desk.is_some() {
            self.desk_event(world, DeskEvent::Disconnected);
        }
    }
}

fn stop(world: &mut World, p: usize) {
    world.processes[p].machine = None;
    world.processes[p].queue.clear();
    world
        .wire
        .retain(|one| one.from != Some(p) || one.answer.is_none());
    for request in &mut world.wire {
        if request.from == Some(p) {
            request.from = None;
        }
    }
    // Reads change nothing.
    world.wire.retain(|one| {
        let reads = matches!(
            one.effect,
            Effect::Look(_) | Effect::ListOwned | Effect::ReadRange(_)
        );
        one.from.is_some() || !reads
    });
}

fn desk_mode(desk: &Desk) -> Option<berth_core::slice::machine::Mode> {
    match desk {
        Desk::Closed(mode) | Desk::Open { mode, .. } => Some(*mode),
        _ => None,
    }
}

/// What may happen to a slice of which nothing is outstanding.
fn idle_events(world: &World, machine: &NodeMachine, entry: &Slice, node: usize) -> Vec<Event> {
    let (slice, mut events) = (world.slice, Vec::new());
    let lease = world.server.leases.get(&slice).map(|(_, stamp)| *stamp);
    if entry.lease.as_ref().map(|(_, stamp)| *stamp) != lease && machine.link != Link::Away {
        events.push(Event::LeaseChanged(slice));
    }
    if machine.link == Link::Away {
        events.push(Event::Connected);
        return events;
    }
    if !entry.serving {
        return events;
    }
    if !machine.stored.has_pods_in(slice) {
        events.push(Event::GiveBack(slice));
    }
    let shown: BTreeSet<Address> = match world.server.published.get(&node) {
        Some((pool, _)) => pool.entries.clone(),
        None => BTreeSet::new(),
    };
    if shown != machine.stored.pods_in(slice) {
        events.push(Event::Publish(slice));
    }
    let mut holds = machine.stored.held.values();
    if holds.any(|hold| *hold == Hold::Plain) {
        events.push(Event::Refresh(slice));
    }
    match world.server.mode {
        Some(mode) if mode.kind.is_yielding() => events.push(Event::ModeSeen(mode)),
        Some(mode) if mode.kind == ModeKind::Sliced => {
            let stopped = machine.stored.slices.get(&slice);
            if stopped.is_some_and(|stopped| !stopped.is_empty()) {
                events.push(Event::Reclaim(slice));
            }
        }
        _ => {}
    }
    events
}
