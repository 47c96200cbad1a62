//! All pools of the cluster against all pods that they name: for whatever no event told of.
//!
//! One agent at a time does it ([`super::turn`]). A survey reads everything page by page ([`super::survey`]); then each pool
//! is read once more and judged by itself: an agent never holds more than a few pools, however many there are.

use std::collections::HashSet;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant as Wall};

use berth_core::{Address, Moment};
use berth_ledger::{ClaimKey, ClaimKind, LedgerError, PoolKey, SharedLedger};
use futures::StreamExt;
use rand::RngExt;
use tokio::time::{Instant, sleep, sleep_until};

use super::clock::Clock;
use super::duplicates::{Duplicate, Holder, Place};
use super::facts::{Observed, PodRef, Sight};
use super::hands::Hands;
use super::judge::Verdict;
use super::metrics::GarbageMetrics;
use super::plan::{Memory, Patience, Plan, Step, plan, verdict};
use super::survey::Survey;
use super::terms::Terms;
use super::turn::Turn;
use super::unheld::{self, ClaimHeld};
use super::witness::{Blind, Witness};
use crate::journal::Journal;
use crate::policy::Policies;
use crate::sticky::Sticky;

/// Small pools read at a time.
const AT_ONCE: usize = 4;

/// Entries of a small pool. A larger one may need ten megabytes while it is read: one at a time.
const SMALL: usize = 500;

/// Steps that are gathered before they are carried out, and reservations without an entry that are judged together.
const BATCH: usize = 2048;

/// Between the two looks at an address that seems to have several holders.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// Why a sweep was given up. The next one begins anew.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    #[error(transparent)]
    Blind(#[from] Blind),
}

#[derive(Debug)]
pub(super) struct Sweep {
    pub ledger: SharedLedger,
    pub witness: Witness,
    pub sticky: Sticky,
    pub hands: Arc<Hands>,
    pub turn: Turn,
    pub patience: Patience,
    pub interval: Duration,
    pub flat_places: Vec<PathBuf>,
    pub policies: Arc<Policies>,
    pub metrics: GarbageMetrics,
    pub clock: Clock,
    pub node: String,
    pub journal: Option<Arc<Journal>>,
}

impl Sweep {
    /// Sweeps when it is this agent's turn, for ever.
    pub async fn run(mut self) {
        let mut memory = Memory::default();
        let mut told = HashSet::new();
        // Agents of a whole cluster may start at once.
        sleep(self.draw(0.0..0.01)).await;
        loop {
            match self.turn.take().await {
                Ok(true) => {
                    if let Err(broken) = self.sweep(&mut memory, &mut told).await {
                        tracing::warn!(%broken, "the sweep was given up; another follows");
                    }
                }
                // Another agent's sweep tells from now on.
                Ok(false) => {
                    self.metrics.disputes.set(0);
                }
                Err(error) => tracing::warn!(%error, "the mark of the last sweep can't be seen"),
            }
            sleep(self.draw(0.75..1.25)).await;
        }
    }

    /// A part of the interval, so that agents do not stay in step.
    fn draw(&self, parts: Range<f64>) -> Duration {
        self.interval.mul_f64(rand::rng().random_range(parts))
    }

    /// Looks, and looks again when what it suspects is old enough.
    async fn sweep(&self, memory: &mut Memory, told: &mut HashSet<Address>) -> Result<(), Broken> {
        let end = Instant::now() + self.interval + self.patience.node_grace;
        let mut first = true;
        loop {
            let began = Wall::now();
            let mut survey = self.survey().await?;
            let is_first = std::mem::take(&mut first);
            // Once a sweep: it reads the status of every pod.
            if is_first {
                let duplicates = self.duplicates(&survey).await?;
                self.report(&duplicates, &survey.observed, told).await;
            }
            let judged = self.judge(&mut survey, memory).await?;
            *memory = judged.memory;
            let gauge = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
            if is_first {
                let all = told.iter().copied().chain(judged.disputed);
                let all: HashSet<Address> = all.collect();
                self.metrics.disputes.set(gauge(all.len()));
            }
            self.metrics.suspects.set(gauge(memory.len()));
            self.metrics.count_sweep(began.elapsed());
            self.enter_unheld(&judged.sticky, &survey.terms).await?;
            // The next look makes its own.
            drop(survey);
            match judged.next.map(|due| self.clock.instant(due)) {
                Some(due) if due < end => sleep_until(due).await,
                _ => return Ok(()),
            }
        }
    }

    /// Judges the entries of each pool, one pool after the other, and then the reservations without an entry; carries out
    /// what follows, many steps at a time.
    async fn judge(&self, survey: &mut Survey, memory: &Memory) -> Result<Judged, Broken> {
        let now = self.clock.now();
        let mut judged = Judged::default();
        let (small, large) = self.to_judge(survey, &mut judged);
        for (pools, at_once) in [(small, AT_ONCE), (large, 1)] {
            let loads = pools.into_iter().map(|pool| async {
                let loaded = self.ledger.peek(&pool).await;
                (pool, loaded)
            });
            let mut loads = futures::stream::iter(loads).buffered(at_once);
            while let Some((pool, loaded)) = loads.next().await {
                let snapshot = match loaded {
                    Ok(snapshot) => snapshot,
                    // The survey has warned of it, or it broke since.
                    Err(LedgerError::Unreadable { .. }) => continue,
                    Err(error) => return Err(error.into()),
                };
                survey.turn_to(&pool, &snapshot);
                drop(snapshot);
                judged.sticky.add(&pool, survey);
                survey.observed.kept = self.kept(&survey.observed, &survey.terms).await?;
                judged.add(plan(&survey.observed, memory, &self.patience, now));
                if judged.steps.len() >= BATCH {
                    self.carry_out(&mut judged, &survey.terms).await?;
                }
            }
        }
        let mut from = 0;
        while survey.turn_to_orphans(from, BATCH) {
            from += BATCH;
            judged.add(plan(&survey.observed, memory, &self.patience, now));
            if judged.steps.len() >= BATCH {
                self.carry_out(&mut judged, &survey.terms).await?;
            }
        }
        self.carry_out(&mut judged, &survey.terms).await?;
        Ok(judged)
    }

    /// The pools whose entries are to be judged: small ones, which may be read together, and large ones. What nodes publish
    /// is their own; an empty pool needs no second read.
    fn to_judge(&self, survey: &Survey, judged: &mut Judged) -> (Vec<PoolKey>, Vec<PoolKey>) {
        let (mut small, mut large) = (Vec::new(), Vec::new());
        for (pool, entries) in &survey.pools {
            let is_view = survey.views.contains_key(&pool.name);
            if is_view && !survey.observed.overlap_checked.contains(&pool.name) {
                continue;
            }
            match entries {
                0 => judged.sticky.add_empty(pool),
                1..=SMALL => small.push(pool.clone()),
                _ => large.push(pool.clone()),
            }
        }
        (small, large)
    }

    async fn carry_out(&self, judged: &mut Judged, terms: &Terms) -> Result<(), Broken> {
        let steps = self
            .without_views(std::mem::take(&mut judged.steps))
            .await?;
        self.hands.persist(steps, terms).await;
        Ok(())
    }

    /// Addresses that several living owners have: found, and found again a moment later, for an ADD under way has an
    /// entry before it knows whether another has the address.
    async fn duplicates(&self, survey: &Survey) -> Result<Vec<Duplicate>, Broken> {
        let found = self.shared(survey).await?;
        if found.is_empty() {
            return Ok(found);
        }
        sleep(LOOK_AGAIN).await;
        let mut confirmed = Vec::new();
        for mut duplicate in found {
            let mut holders = Vec::new();
            for holder in duplicate.holders {
                if self.still_has(&holder, duplicate.address).await? {
                    holders.push(holder);
                }
            }
            duplicate.holders = holders;
            if duplicate.holders.len() > 1 {
                confirmed.push(duplicate);
            }
        }
        Ok(confirmed)
    }

    async fn still_has(&self, holder: &Holder, address: Address) -> Result<bool, LedgerError> {
        Ok(match &holder.place {
            Place::Pool(pool) => {
                let now = self.ledger.peek(pool).await?;
                let mut holders = now.pool.holders(address);
                holders.any(|record| record.owner == holder.owner)
            }
            Place::Reservation(name) => {
                let key = ClaimKey::new(ClaimKind::Reservation, name);
                let now = self.ledger.claim(&key).await?;
                now.is_some_and(|record| record.owner == holder.owner)
            }
            Place::Pod(_) => true,
        })
    }

    /// Logs every duplicate, and tells its pods once for as long as it lasts.
    async fn report(
        &self,
        duplicates: &[Duplicate],
        observed: &Observed,
        told: &mut HashSet<Address>,
    ) {
        for duplicate in duplicates {
            tracing::error!(
                "{duplicate}; delete all but one of these pods, or release the address by hand"
            );
            if told.contains(&duplicate.address) {
                continue;
            }
            for pod in duplicate.pods() {
                let uid = match observed.pods.get(&pod) {
                    Some(Sight::There(found)) => found.uids.first().cloned(),
                    _ => None,
                };
                let recorder = &self.hands.recorder;
                recorder.duplicate(&pod, uid.as_deref(), duplicate).await;
            }
        }
        *told = duplicates.iter().map(|one| one.address).collect();
    }

    /// Less what would be freed in a node's published slices: only that node may, its ledger is the truth.
    async fn without_views(&self, mut steps: Vec<Step>) -> Result<Vec<Step>, Broken> {
        if !steps.iter().any(|step| matches!(step, Step::Free { .. })) {
            return Ok(steps);
        }
        let views = self.ledger.views().await?;
        steps.retain(|step| match step {
            Step::Free { held, .. } => !views.contains_key(&held.pool.name),
            _ => true,
        });
        Ok(steps)
    }

    /// What is taken by another in between is that other's; what fails is found again by the next sweep.
    async fn enter_unheld(&self, held: &ClaimHeld, terms: &Terms) -> Result<(), Broken> {
        for one in unheld::find(&self.sticky, held, terms).await? {
            if let Err(error) = unheld::enter(&self.ledger, &one).await {
                tracing::warn!(?one, %error, "an address that a claim records is not held yet");
            }
        }
        Ok(())
    }

    /// The entries of pods that are gone which a StatefulSet or a claim keeps all the same.
    async fn kept(
        &self,
        observed: &Observed,
        terms: &Terms,
    ) -> Result<HashSet<(String, Address)>, Blind> {
        let mut kept = HashSet::new();
        for held in &observed.held {
            let Some(terms) = terms.of(&held.pool.name) else {
                continue;
            };
            let Some(pod) = PodRef::parse(&held.record.owner.subject) else {
                continue;
            };
            if terms.wishes.any()
                && matches!(verdict(held, observed), Verdict::Gone(_))
                && self
                    .sticky
                    .keeps(terms.wishes, &terms.called(), &pod, held.address)
                    .await?
            {
                kept.insert((held.pool.name.clone(), held.address));
            }
        }
        Ok(kept)
    }
}

/// What the judgement of all pools has come to so far.
#[derive(Default)]
struct Judged {
    /// To be carried out.
    steps: Vec<Step>,
    memory: Memory,
    next: Option<Moment>,
    disputed: Vec<Address>,
    sticky: ClaimHeld,
}

impl Judged {
    fn add(&mut self, planned: Plan) {
        for dispute in &planned.disputes {
            tracing::error!(
                address = %dispute.address, entry = %dispute.entry, other = %dispute.other,
                "two living pods hold one address; one of them has to go"
            );
        }
        let disputes = planned.disputes.iter();
        self.disputed
            .extend(disputes.map(|dispute| dispute.address));
        self.steps.extend(planned.steps);
        self.memory.absorb(planned.memory);
        self.next = self.next.into_iter().chain(planned.next).min();
    }
}
