//! The possible next steps of a state, and their execution.

use std::collections::BTreeSet;

use berth_core::Address;
use berth_core::slice::machine::desk::{Desk, DeskEvent};
use berth_core::slice::machine::node::Link;
use berth_core::slice::machine::recall::{Recall, RecallEvent};
use berth_core::slice::machine::{Effect, Event, Hold, ModeKind, NodeMachine};
use berth_core::slice::machine::{Slice, Step as Doing};

use super::Slices;
use super::executor::{owned, unknown};
use super::state::{Careless, DESK, State};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// A process starts; without the API server, if it may trust its file.
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
    Deliver(usize, Event),
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
    pub(super) fn steps(&self, state: &State) -> Vec<Step> {
        let mut steps = Vec::new();
        for p in 0..state.processes.len() {
            self.process_steps(state, p, &mut steps);
        }
        self.wire_steps(state, &mut steps);
        for (address, owner) in &state.pods {
            steps.push(Step::End(*address, *owner));
        }
        self.fault_steps(state, &mut steps);
        self.controller_steps(state, &mut steps);
        self.desk_steps(state, &mut steps);
        steps
    }

    fn process_steps(&self, state: &State, p: usize, steps: &mut Vec<Step>) {
        let process = &state.processes[p];
        let Some(machine) = &process.machine else {
            let mut others = state.processes.iter();
            let locked = others.any(|other| other.node == process.node && other.machine.is_some());
            let may = !locked || self.is(Careless::NoLock);
            // A new file has no memory of the server, so its node joins after the others have settled.
            let is_new = state.files[process.file].now.is_new();
            let is_early = is_new && state.is_server_restored() && !self.is_settled(state);
            if may && !is_early && !state.gone.contains(&process.node) {
                steps.push(Step::Start(p));
                let file = &state.files[process.file];
                let current = !file.is_restored || self.is(Careless::TrustAnyFile);
                if state.budget.offline > 0 && current && !file.now.slices.is_empty() {
                    steps.push(Step::StartOffline(p));
                }
            }
            return;
        };
        if state.budget.crashes > 0 {
            steps.push(Step::Crash(p));
        }
        if !process.queue.is_empty() {
            steps.push(Step::Run(p));
            return;
        }
        let mut deliver = |event| steps.push(Step::Deliver(p, event));
        for address in state.addresses() {
            if machine.may_allocate(address) {
                deliver(Event::Allocate(address));
            }
            let has_pod = state.pods.contains(&(address, process.node));
            if machine.stored.held.get(&address) == Some(&Hold::Pod) && !has_pod {
                deliver(Event::Release(address));
            }
        }
        let entry = machine.slices.get(&state.slice);
        match entry {
            None if machine.link == Link::Ready => deliver(Event::Claim(state.slice)),
            Some(entry) if entry.step == Doing::Idle => {
                for event in idle_events(state, machine, entry, process.node) {
                    deliver(event);
                }
            }
            _ => {}
        }
        let listing = |p: usize| {
            let mut wire = state.wire.iter();
            wire.any(|one| one.from == Some(p) && one.effect == Effect::ListOwned)
        };
        let idle = entry.is_none_or(|entry| entry.step == Doing::Idle && !entry.serving);
        let has_something = entry.is_some()
            || machine.stored.slices.contains_key(&state.slice)
            || !owned(state, process.node).is_empty();
        if idle && has_something && !listing(p) {
            deliver(Event::Resync);
        }
        if machine.link == Link::Settling && self.is_settled(state) {
            steps.push(Step::Settle(p));
        }
    }

    /// The settle time is longer than a live node needs to verify what it has.
    fn is_settled(&self, state: &State) -> bool {
        let calm = |p: usize| {
            let process = &state.processes[p];
            let Some(machine) = &process.machine else {
                return state.files[process.file].now.slices.is_empty()
                    || state.gone.contains(&process.node)
                    || state.backup.is_none();
            };
            let mut wire = state.wire.iter();
            let stands = |(slice, entry): (&_, &Slice)| {
                let lease = state.server.leases.get(slice).map(|(_, stamp)| *stamp);
                let known = entry.lease.as_ref().map(|(_, stamp)| *stamp);
                !machine.stored.slices.contains_key(slice) || (entry.serving && lease == known)
            };
            !wire.any(|one| one.from == Some(p))
                && process.queue.is_empty()
                && machine.slices.iter().all(stands)
        };
        self.is(Careless::NoSettling) || (0..state.processes.len()).all(calm)
    }

    fn wire_steps(&self, state: &State, steps: &mut Vec<Step>) {
        for (at, request) in state.wire.iter().enumerate() {
            let Some(p) = request.from else {
                steps.extend([Step::Orphan(at), Step::Drop(at)]);
                continue;
            };
            if !state.processes[p].queue.is_empty() {
                continue;
            }
            steps.push(Step::Exchange(at));
            if state.budget.late > 0 && request.answer.is_none() {
                steps.push(Step::Execute(at));
            }
            if state.budget.losses > 0 && request.answer.is_none() {
                steps.push(Step::Lose(at));
            }
        }
    }

    fn fault_steps(&self, state: &State, steps: &mut Vec<Step>) {
        let budget = &state.budget;
        for (n, file) in state.files.iter().enumerate() {
            if budget.copies > 0 && file.copy.is_none() && !file.is_restored {
                steps.push(Step::Copy(n));
            }
            let mut users = state.processes.iter().filter(|process| process.file == n);
            let is_down = users.all(|process| process.machine.is_none());
            let published = state
                .server
                .published
                .get(&n)
                .map(|(pool, _)| &pool.entries);
            // Without a cache only what was published can be recovered.
            let covered = state.has_cache
                || state
                    .pods
                    .iter()
                    .filter(|(_, of)| *of == n)
                    .all(|(address, _)| published.is_some_and(|entries| entries.contains(address)));
            if file.copy.is_some() && is_down && covered {
                steps.push(Step::Restore(n));
            }
        }
        if budget.by_hand > 0 {
            if !state.server.leases.is_empty() {
                steps.push(Step::DeleteLease);
            }
            let nodes = state.server.published.keys();
            steps.extend(nodes.map(|node| Step::DeletePublished(*node)));
        }
        let plain = &state.server.plain;
        if budget.plain_by_hand > 0 && plain.is_empty() && state.server.mode.is_some() {
            steps.push(Step::DeletePlain);
        }
        if budget.backups > 0 {
            match state.backup {
                None => steps.push(Step::Backup),
                Some(_) => steps.push(Step::RestoreServer),
            }
        }
        if budget.gone > 0 {
            steps.extend((0..state.files.len()).map(Step::Gone));
        }
        steps.extend(state.gone.iter().copied().map(Step::Return));
    }

    fn controller_steps(&self, state: &State, steps: &mut Vec<Step>) {
        if state.recall_request.is_some() {
            steps.push(Step::RecallGo);
        } else if state.recall == Recall::Idle && self.proof(state, false).is_some() {
            steps.push(Step::Recall);
        }
    }

    fn desk_steps(&self, state: &State, steps: &mut Vec<Step>) {
        for address in &state.server.plain {
            if state.owners(*address) == 0 {
                steps.push(Step::ReleasePlain(*address));
            }
        }
        let Some(desk) = &state.desk else { return };
        if state.desk_request.is_some() {
            steps.push(Step::DeskGo);
            return;
        }
        match desk {
            Desk::Settling if self.is_settled(state) => steps.push(Step::SettleDesk),
            Desk::Unread => steps.push(Step::Desk(DeskEvent::Wanted)),
            Desk::Closed(_) | Desk::Open { .. } => {
                for address in state.addresses() {
                    if desk.offers(address).is_some() && !state.server.plain.contains(&address) {
                        steps.push(Step::Desk(DeskEvent::Allocate(address)));
                    }
                }
                if desk_mode(desk) != state.server.mode {
                    steps.push(Step::Desk(DeskEvent::Failed));
                }
                if state.budget.modes > 0 {
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

    pub(super) fn act(&self, state: &mut State, step: Step) {
        match step {
            Step::Start(p) => self.start(state, p),
            Step::StartOffline(p) => {
                state.budget.offline -= 1;
                let file = state.processes[p].file;
                let stored = state.files[file].now.clone();
                let (mut machine, _) = NodeMachine::start(state.me(p), stored);
                machine.trust_file();
                state.processes[p].machine = Some(machine);
            }
            Step::Crash(p) => {
                state.budget.crashes -= 1;
                stop(state, p);
            }
            Step::Run(p) => self.run_one(state, p),
            Step::Exchange(at) => {
                let request = state.wire.remove(at);
                let answer = match request.answer.clone() {
                    Some(answer) => answer,
                    None => self.execute(state, &request),
                };
                if let Some(p) = request.from {
                    self.handle(state, p, answer);
                }
            }
            Step::Execute(at) => {
                state.budget.late -= 1;
                let mut request = state.wire.remove(at);
                request.answer = Some(self.execute(state, &request));
                state.wire.push(request);
            }
            Step::Lose(at) => {
                state.budget.losses -= 1;
                let mut request = state.wire.remove(at);
                let event = unknown(&request.effect);
                let from = request.from.take();
                state.wire.push(request);
                if let Some(p) = from {
                    self.handle(state, p, event);
                }
            }
            Step::Orphan(at) => {
                let request = state.wire.remove(at);
                self.execute(state, &request);
            }
            Step::Drop(at) => {
                state.wire.remove(at);
            }
            Step::Deliver(p, event) => self.handle(state, p, event),
            Step::End(address, owner) => {
                state.pods.remove(&(address, owner));
            }
            Step::ReleasePlain(address) => {
                state.server.plain.remove(&address);
            }
            Step::Copy(n) => {
                state.budget.copies -= 1;
                state.files[n].copy = Some(state.files[n].now.clone());
            }
            Step::Restore(n) => {
                if let Some(copy) = state.files[n].copy.take() {
                    state.files[n].now = copy;
                    state.files[n].is_restored = true;
                }
            }
            Step::DeleteLease => {
                state.budget.by_hand -= 1;
                state.server.leases.clear();
            }
            Step::DeletePublished(node) => {
                state.budget.by_hand -= 1;
                state.server.published.remove(&node);
            }
            Step::DeletePlain => {
                state.budget.plain_by_hand -= 1;
                state.server.mode = None;
            }
            Step::Backup => state.backup = Some(state.server.clone()),
            Step::RestoreServer => self.restore_server(state),
            Step::Settle(p) => self.handle(state, p, Event::Settled),
            Step::Gone(node) => {
                state.budget.gone -= 1;
                state.gone.insert(node);
                for p in 0..state.processes.len() {
                    if state.processes[p].node == node {
                        stop(state, p);
                    }
                }
                state.pods.retain(|(_, owner)| *owner != node);
            }
            Step::Return(node) => {
                state.gone.remove(&node);
            }
            Step::Recall => {
                if let Some((_, proof)) = self.proof(state, false) {
                    let event = RecallEvent::Seen(proof);
                    state.recall_request = state.recall.handle(state.slice, event);
                }
            }
            Step::RecallGo => self.recall_go(state),
            Step::Desk(event) => self.desk_event_delivered(state, event),
            Step::DeskGo => self.desk_go(state),
            Step::SettleDesk => self.desk_event(state, DeskEvent::Settled),
        }
    }

    fn desk_event_delivered(&self, state: &mut State, event: DeskEvent) {
        if event == DeskEvent::Wanted && self.is(Careless::ListFirst) {
            state.listed = Some(self.list(state));
        }
        let changes = matches!(
            event,
            DeskEvent::Tighten | DeskEvent::Loosen | DeskEvent::Leave | DeskEvent::Finish
        );
        self.desk_event(state, event);
        if changes && state.desk_request.is_some() {
            state.budget.modes -= 1;
        }
    }

    fn start(&self, state: &mut State, p: usize) {
        let stored = state.files[state.processes[p].file].now.clone();
        let (machine, effects) = NodeMachine::start(state.me(p), stored);
        state.processes[p].machine = Some(machine);
        state.processes[p].queue = effects;
        while !state.processes[p].queue.is_empty() {
            self.run_one(state, p);
        }
    }

    /// The server was down meanwhile: every process noticed, and no request is on its way any more.
    fn restore_server(&self, state: &mut State) {
        state.budget.backups -= 1;
        if let Some(backup) = &state.backup {
            state.server = backup.clone();
        }
        let plain = state.server.plain.clone();
        // Pods that the cluster does not know any more are ended by their kubelet.
        state
            .pods
            .retain(|(address, owner)| *owner != DESK || plain.contains(address));
        let wire = std::mem::take(&mut state.wire);
        for p in 0..state.processes.len() {
            for request in wire.iter().filter(|request| request.from == Some(p)) {
                self.handle(state, p, unknown(&request.effect));
            }
            self.handle(state, p, Event::Disconnected);
            self.handle(state, p, Event::Connected);
        }
        state.recall = Recall::Idle;
        state.recall_request = None;
        if state.desk.is_some() {
            self.desk_event(state, DeskEvent::Disconnected);
        }
    }
}

fn stop(state: &mut State, p: usize) {
    state.processes[p].machine = None;
    state.processes[p].queue.clear();
    state
        .wire
        .retain(|one| one.from != Some(p) || one.answer.is_none());
    for request in &mut state.wire {
        if request.from == Some(p) {
            request.from = None;
        }
    }
    // Reads change nothing.
    state.wire.retain(|one| {
        let reads = matches!(
            one.effect,
            Effect::ReadSlice(_) | Effect::ListOwned | Effect::ReadRange(_)
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
fn idle_events(state: &State, machine: &NodeMachine, entry: &Slice, node: usize) -> Vec<Event> {
    let (slice, mut events) = (state.slice, Vec::new());
    let lease = state.server.leases.get(&slice).map(|(_, stamp)| *stamp);
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
        events.push(Event::Return(slice));
    }
    let shown: BTreeSet<Address> = match state.server.published.get(&node) {
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
    match state.server.mode {
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
