//! Drives a [`Machine`] for one target: feeds events in and carries effects out.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rand::RngExt;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout_at};

use crate::failure::{Failure, JournalFailed, Refusal};
use crate::journal::{Intent, IntentId, Journal};
use crate::machine::{Effect, Event, Machine, Ticket};

/// What a front brings: one outside target.
pub trait Target<I: Ord>: Send + Sync + 'static {
    type Error: Clone + fmt::Display + fmt::Debug + Send + Sync + From<JournalFailed> + 'static;

    /// Makes the items of the intent present or absent, and reports when that is so. What is already as wanted needs no
    /// call. A repeat under the same id must not be carried out twice.
    fn apply(
        &self,
        intent: &Intent<I>,
    ) -> impl Future<Output = Result<(), Failure<Self::Error>>> + Send;

    /// The item is absent: frees it. Repeated until it succeeds, also after a crash.
    fn release(&self, item: &I) -> impl Future<Output = Result<(), Self::Error>> + Send;
}

/// What is known of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status<I> {
    /// What should be present, and whether it is.
    pub present: Vec<(I, bool)>,
    /// What has to become absent and is not released yet.
    pub absent: Vec<I>,
    /// Calls that failed in a row, and why the last one did.
    pub failures: u32,
    pub last_failure: Option<String>,
}

type Reply<F> = oneshot::Sender<Result<(), Refusal<F>>>;

enum Command<I: Ord, F> {
    Attach(I, Ticket, Reply<F>),
    Detach(I, Ticket, Reply<F>),
    Abandon(I, Ticket),
    Resync,
    Status(oneshot::Sender<Status<I>>),
}

/// A handle; the machine stops with the last one, and resumes from the journal at the next start.
pub struct Reconciler<I: Ord, F> {
    /// Unbounded: each caller waits for its answer, so there are no more than callers.
    commands: mpsc::UnboundedSender<Command<I, F>>,
    tickets: Arc<AtomicU64>,
    _task: Arc<StopOnDrop>,
}

impl<I: Ord, F> Clone for Reconciler<I, F> {
    fn clone(&self) -> Self {
        Reconciler {
            commands: self.commands.clone(),
            tickets: Arc::clone(&self.tickets),
            _task: Arc::clone(&self._task),
        }
    }
}

impl<I: Ord, F> fmt::Debug for Reconciler<I, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reconciler").finish_non_exhaustive()
    }
}

struct StopOnDrop(AbortHandle);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Abandons an attach whose caller has left before the answer.
struct Waiting<'a, I: Ord + Clone, F> {
    commands: &'a mpsc::UnboundedSender<Command<I, F>>,
    item: Option<I>,
    ticket: Ticket,
}

impl<I: Ord + Clone, F> Drop for Waiting<'_, I, F> {
    fn drop(&mut self) {
        if let Some(item) = self.item.take() {
            // Fails only if the machine has stopped.
            let _ = self.commands.send(Command::Abandon(item, self.ticket));
        }
    }
}

impl<I, F> Reconciler<I, F>
where
    I: Ord + Clone + fmt::Debug + Send + Sync + 'static,
    F: Clone + fmt::Display + fmt::Debug + Send + Sync + 'static,
{
    /// Reads the journal and resumes what it says. What arrives within `gather` goes into one call.
    pub async fn start<T, J>(
        target: Arc<T>,
        journal: Arc<J>,
        gather: Duration,
    ) -> Result<Self, J::Error>
    where
        T: Target<I, Error = F>,
        F: From<JournalFailed>,
        J: Journal<I> + 'static,
    {
        let recorded = journal.load().await?;
        let (machine, effects) = Machine::resume(recorded, &mut random_id);
        let (commands, received) = mpsc::unbounded_channel();
        let (events, happened) = mpsc::unbounded_channel();
        let runner = Runner {
            machine: machine.gathering(gather),
            target,
            journal,
            events,
            tasks: JoinSet::new(),
            waiting: BTreeMap::new(),
            last_failure: None,
        };
        let task = tokio::spawn(runner.run(effects, received, happened));
        Ok(Reconciler {
            commands,
            tickets: Arc::default(),
            _task: Arc::new(StopOnDrop(task.abort_handle())),
        })
    }

    /// Returns when the item is present. A caller that leaves, or whose deadline passes, has it removed and released
    /// again.
    pub async fn attach(&self, item: I, deadline: Instant) -> Result<(), Refusal<F>> {
        let ticket = self.ticket();
        let (reply, answer) = oneshot::channel();
        let mut waiting = Waiting {
            commands: &self.commands,
            item: Some(item.clone()),
            ticket,
        };
        let sent = self.commands.send(Command::Attach(item, ticket, reply));
        sent.map_err(|_| Refusal::Stopped)?;
        match timeout_at(deadline, answer).await {
            Ok(answered) => {
                waiting.item = None;
                answered.unwrap_or(Err(Refusal::Stopped))
            }
            Err(_) => Err(Refusal::TooLate),
        }
    }

    /// Returns when it is recorded that the item has to go; it is removed and released in the background.
    pub async fn detach(&self, item: I) -> Result<(), Refusal<F>> {
        let (reply, answer) = oneshot::channel();
        let sent = self
            .commands
            .send(Command::Detach(item, self.ticket(), reply));
        sent.map_err(|_| Refusal::Stopped)?;
        answer.await.unwrap_or(Err(Refusal::Stopped))
    }

    /// Compares everything that should be present with the target again.
    pub fn resync(&self) {
        // Fails only if the machine has stopped.
        let _ = self.commands.send(Command::Resync);
    }

    /// None if the machine has stopped.
    pub async fn status(&self) -> Option<Status<I>> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(Command::Status(reply)).ok()?;
        answer.await.ok()
    }

    fn ticket(&self) -> Ticket {
        Ticket(self.tickets.fetch_add(1, Ordering::Relaxed))
    }
}

fn random_id() -> IntentId {
    IntentId(rand::rng().random())
}

struct Runner<I: Ord, F, T, J> {
    machine: Machine<I, F>,
    target: Arc<T>,
    journal: Arc<J>,
    events: mpsc::UnboundedSender<Event<I, F>>,
    /// Ends with the runner, so that a stop is no different from a crash.
    tasks: JoinSet<()>,
    waiting: BTreeMap<Ticket, Reply<F>>,
    last_failure: Option<String>,
}

impl<I, F, T, J> Runner<I, F, T, J>
where
    I: Ord + Clone + fmt::Debug + Send + Sync + 'static,
    F: Clone + fmt::Display + fmt::Debug + Send + Sync + From<JournalFailed> + 'static,
    T: Target<I, Error = F>,
    J: Journal<I> + 'static,
{
    async fn run(
        mut self,
        effects: Vec<Effect<I, F>>,
        mut commands: mpsc::UnboundedReceiver<Command<I, F>>,
        mut events: mpsc::UnboundedReceiver<Event<I, F>>,
    ) {
        self.carry_out(effects);
        loop {
            let event = tokio::select! {
                // Outcomes are handled before new commands.
                biased;
                Some(event) = events.recv() => Some(event),
                command = commands.recv() => match command {
                    Some(command) => self.event_of(command),
                    None => return,
                },
            };
            if let Some(event) = event {
                self.note(&event);
                let effects = self.machine.step(event, &mut random_id);
                self.carry_out(effects);
            }
            while self.tasks.try_join_next().is_some() {}
        }
    }

    fn event_of(&mut self, command: Command<I, F>) -> Option<Event<I, F>> {
        match command {
            Command::Attach(item, ticket, reply) => {
                self.waiting.insert(ticket, reply);
                Some(Event::Attach { item, ticket })
            }
            Command::Detach(item, ticket, reply) => {
                self.waiting.insert(ticket, reply);
                Some(Event::Detach { item, ticket })
            }
            Command::Abandon(item, ticket) => {
                self.waiting.remove(&ticket);
                Some(Event::Abandon { item, ticket })
            }
            Command::Resync => Some(Event::Resync),
            Command::Status(reply) => {
                // The caller may have left.
                let _ = reply.send(self.status());
                None
            }
        }
    }

    fn status(&self) -> Status<I> {
        let present = self.machine.present();
        Status {
            present: present.map(|(item, done)| (item.clone(), done)).collect(),
            absent: self.machine.absent().cloned().collect(),
            failures: self.machine.failures(),
            last_failure: self.last_failure.clone(),
        }
    }

    fn note(&mut self, event: &Event<I, F>) {
        match event {
            Event::Applied(Ok(())) => self.last_failure = None,
            Event::Applied(Err(failure)) => {
                let error = failure.error().to_string();
                tracing::debug!(%error, "the call failed");
                self.last_failure = Some(error);
            }
            Event::RecordFailed(error) => {
                tracing::warn!(%error, "the journal can't be written: nothing is attached or detached until it can");
                self.last_failure = Some(error.to_string());
            }
            _ => {}
        }
    }

    fn carry_out(&mut self, effects: Vec<Effect<I, F>>) {
        for effect in effects {
            let (target, journal) = (Arc::clone(&self.target), Arc::clone(&self.journal));
            let events = self.events.clone();
            let happened = move |event| {
                // Fails only while the runner ends.
                let _ = events.send(event);
            };
            match effect {
                Effect::Record(entries) => drop(self.tasks.spawn(async move {
                    happened(match journal.record(&entries).await {
                        Ok(()) => Event::Recorded,
                        Err(error) => Event::RecordFailed(JournalFailed(error.to_string()).into()),
                    });
                })),
                Effect::Apply(intent) => drop(self.tasks.spawn(async move {
                    happened(Event::Applied(target.apply(&intent).await));
                })),
                Effect::Release { item } => drop(self.tasks.spawn(async move {
                    let released = target.release(&item).await;
                    if let Err(error) = &released {
                        tracing::warn!(?item, %error, "it is removed but can't be released yet: tried again");
                    }
                    let done = released.is_ok();
                    happened(Event::Released { item, done });
                })),
                Effect::Wait { timer, after } => {
                    // Targets of many nodes that failed together do not return together.
                    let after = after.mul_f64(rand::rng().random_range(1.0..1.25));
                    self.tasks.spawn(async move {
                        sleep(after).await;
                        happened(Event::TimerEnded(timer));
                    });
                }
                Effect::Answer { ticket, outcome } => {
                    if let Some(reply) = self.waiting.remove(&ticket) {
                        // The caller may have left.
                        let _ = reply.send(outcome);
                    }
                }
            }
        }
    }
}
