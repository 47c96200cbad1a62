//! Sweeps: all pools of the cluster against all pods that they name, for whatever no event showed.
//!
//! Guarantees: a pool is read once per sweep, page by page, and dropped with its page; one with an owner that may be gone,
//! or that the front wants planned, is read a second time by itself. So no list of all entries is held, and an agent never
//! holds more than a few pools, however many there are. Nothing else could hold less: which owners are gone is known only
//! after the pods were read, and pods are read after the last pool.
//!
//! Pools that nodes publish are read whole too, for the front's survey: an address that a slice and another pool both
//! allocated (I1) shows in no metadata. Their entries are never planned, and whether a pool is published is read again, by
//! metadata, before each release.
//!
//! Pools are read before pods: an entry was made for a pod that existed, so a pod that is missing from the later list is
//! gone since. What changes between the reads is suspected at most, and the next read corrects it.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant as Wall};

use berth_core::Moment;
use berth_ledger::{LedgerError, PoolKey, SharedLedger, Visited};
use futures::StreamExt;
use rand::RngExt;
use tokio::time::{Instant, sleep, sleep_until};

use super::clock::Clock;
use super::executor::{Executor, asked_pause};
use super::liveness::{Verdict, verdict};
use super::metrics::CollectorMetrics;
use super::observed::{Held, NodeState, Observed, Owners, PodState};
use super::owner_digests::{JudgedOwners, OwnerDigests};
use super::plan::Step;
use super::policy::{Names, Policy, ReadPool, StepOf, Survey};
use super::quorum_reader::{QuorumReader, ReadError};
use super::suspicions::{GracePeriods, Round, Suspicions};
use super::sweep_lease::SweepLease;

/// Small pools read at a time.
const AT_ONCE: usize = 4;

/// Entries of a small pool. A larger one may need ten megabytes while it is read: one at a time.
const SMALL: usize = 500;

/// Steps that are gathered before they are carried out.
const BATCH: usize = 2048;

/// Why a sweep was abandoned. The next one starts from the beginning.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    #[error(transparent)]
    Read(#[from] ReadError),
}

impl SweepError {
    /// How long the API server asks its clients to wait.
    fn retry_after(&self) -> Option<Duration> {
        match self {
            SweepError::Ledger(error) => asked_pause(error),
            SweepError::Read(error) => error.retry_after,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Sweep<P: Policy> {
    pub policy: Arc<P>,
    pub ledger: SharedLedger,
    pub reader: QuorumReader,
    pub executor: Arc<Executor<P>>,
    pub lease: SweepLease,
    pub grace: GracePeriods,
    pub interval: Duration,
    pub metrics: CollectorMetrics,
    pub clock: Clock,
    pub node: String,
}

/// One read of the cluster, but for the entries of the pools.
struct Read<P: Policy> {
    survey: P::Survey,
    pools: Vec<KeptPool>,
    owners: Owners,
}

/// What is kept of a pool.
struct KeptPool {
    key: PoolKey,
    /// It shows a node's slice: only that node may free its entries.
    published: bool,
    entries: usize,
    owners: OwnerDigests,
}

impl<P: Policy> Sweep<P> {
    /// Sweeps when the lease says so, forever.
    pub async fn run(mut self) {
        let mut suspicions = Suspicions::default();
        // Agents of a whole cluster may start at once.
        sleep(self.jitter(0.0..0.01)).await;
        loop {
            let mut asked = None;
            match self.lease.take().await {
                Ok(true) => {
                    if let Err(error) = self.sweep(&mut suspicions).await {
                        asked = error.retry_after();
                        tracing::warn!(%error, "the sweep was abandoned; the next one starts from the beginning");
                    }
                }
                Ok(false) => self.policy.stand_by(),
                Err(error) => tracing::warn!(%error, "the lease of the last sweep can't be read"),
            }
            let pause = self.jitter(0.75..1.25);
            sleep(pause.max(asked.unwrap_or_default())).await;
        }
    }

    /// A part of the interval, so that agents do not stay in step.
    fn jitter(&self, parts: Range<f64>) -> Duration {
        self.interval.mul_f64(rand::rng().random_range(parts))
    }

    /// Reads, and reads again when suspicions are old enough.
    async fn sweep(&self, suspicions: &mut Suspicions) -> Result<(), SweepError> {
        let end = Instant::now() + self.interval + self.grace.node;
        let mut first = true;
        loop {
            let began = Wall::now();
            let mut read = self.read().await?;
            let is_first = std::mem::take(&mut first);
            read.survey
                .check(&self.policy, &read.owners, is_first)
                .await?;
            let (now, next) = self.collect(&mut read, suspicions).await?;
            *suspicions = now;
            let suspected = i64::try_from(suspicions.len()).unwrap_or(i64::MAX);
            self.metrics.suspects.set(suspected);
            self.metrics.count_sweep(began.elapsed());
            read.survey.finish(&self.policy, is_first).await?;
            // Freed before the wait.
            drop(read);
            match next.map(|due| self.clock.instant(due)) {
                Some(due) if due < end => sleep_until(due).await,
                _ => return Ok(()),
            }
        }
    }

    /// Reads what the front needs, then all pools, then the pods and nodes that these name.
    async fn read(&self) -> Result<Read<P>, SweepError> {
        let mut survey = self.policy.survey().await?;
        let (mut pools, mut names) = (Vec::new(), Names::default());
        let mut add = |visited: Visited| {
            let key = visited.key;
            let snapshot = match visited.snapshot {
                Ok(snapshot) => snapshot,
                Err(error) => {
                    // A person has to repair that one (I5); the others need not wait for it.
                    tracing::warn!(pool = %key, %error, "a pool can't be read and is left out of the sweep");
                    survey.add_unreadable(&key);
                    return;
                }
            };
            let held = Held::of_pool(&key, &snapshot, |record| self.policy.note(record));
            let mut owners = OwnerDigests::default();
            for one in &held {
                let pod = self.policy.owner(&one.record);
                if let Some(pod) = &pod {
                    owners.add(pod, one.note.pod_uid.as_deref());
                }
                names.add(pod, one.node());
            }
            survey.add_pool(&ReadPool {
                key: &key,
                publisher: visited.publisher.as_deref(),
                snapshot: &snapshot,
                held: &held,
            });
            pools.push(KeptPool {
                key,
                published: visited.publisher.is_some(),
                entries: held.len(),
                owners,
            });
        };
        self.ledger.visit_pools(&mut add).await?;
        survey.add_names(&mut names);
        Ok(Read {
            owners: self.read_owners(names).await?,
            survey,
            pools,
        })
    }

    async fn read_owners(&self, names: Names) -> Result<Owners, ReadError> {
        let pods = self.reader.pods(names.pods).await?;
        let mut asked = names.nodes;
        let bound = |state: &PodState| state.present().and_then(|pod| pod.node.clone());
        asked.extend(pods.values().filter_map(bound));
        let nodes = self.reader.nodes(asked).await?;
        let lost = nodes.iter().filter(|(_, state)| state.is_lost());
        let lost = lost.map(|(name, _)| name.clone()).collect();
        let exists = |(name, state)| (name, state != NodeState::Absent);
        Ok(Owners {
            pods,
            nodes: nodes.into_iter().map(exists).collect(),
            lost,
            here: self.node.clone(),
        })
    }

    /// Plans pool after pool, then what is in no pool; carries out what follows, many steps at a time.
    async fn collect(
        &self,
        read: &mut Read<P>,
        suspicions: &Suspicions,
    ) -> Result<(Suspicions, Option<Moment>), SweepError> {
        let mut round = Round::new(suspicions, self.grace, self.clock.now());
        let mut steps = Vec::new();
        let (small, large) = to_read_again(read);
        let survey = &mut read.survey;
        let mut observed = Observed {
            owners: std::mem::take(&mut read.owners),
            ..Observed::default()
        };
        for (pools, at_once) in [(small, AT_ONCE), (large, 1)] {
            let loads = pools.into_iter().map(|pool| async {
                let loaded = self.ledger.peek(&pool).await;
                (pool, loaded)
            });
            let mut loads = futures::stream::iter(loads).buffered(at_once);
            while let Some((pool, loaded)) = loads.next().await {
                let snapshot = match loaded {
                    Ok(snapshot) => snapshot,
                    // It became unreadable since the list: the next sweep warns.
                    Err(LedgerError::Unreadable { .. }) => continue,
                    Err(error) => return Err(error.into()),
                };
                observed.held = Held::of_pool(&pool, &snapshot, |record| self.policy.note(record));
                drop(snapshot);
                survey.add_notes(&mut observed.held);
                self.add_kept(&mut observed, survey.pool_policies()).await?;
                steps.extend(survey.plan(&self.policy, &observed, &mut round));
                if steps.len() >= BATCH {
                    let steps = std::mem::take(&mut steps);
                    self.execute(steps, survey.pool_policies()).await?;
                }
            }
        }
        while let Some(more) = survey.plan_rest(&observed.owners, &mut round, BATCH) {
            steps.extend(more);
            if steps.len() >= BATCH {
                let steps = std::mem::take(&mut steps);
                self.execute(steps, survey.pool_policies()).await?;
            }
        }
        self.execute(steps, survey.pool_policies()).await?;
        Ok(round.done())
    }

    /// The entries whose owners are gone and which the front keeps all the same.
    async fn add_kept(
        &self,
        observed: &mut Observed,
        policies: &P::PoolPolicies,
    ) -> Result<(), ReadError> {
        observed.kept = HashSet::new();
        let mut kept = HashSet::new();
        for held in &observed.held {
            let judged = self.policy.judge(held, &observed.owners);
            if matches!(verdict(held, judged, observed), Verdict::Gone(_))
                && self.policy.keeps(policies, held).await?
            {
                kept.insert((held.pool.name.clone(), held.address));
            }
        }
        observed.kept = kept;
        Ok(())
    }

    /// Frees nothing in pools that nodes publish: only the node may, for its own ledger is the truth.
    async fn execute(
        &self,
        mut steps: Vec<StepOf<P>>,
        policies: &P::PoolPolicies,
    ) -> Result<(), SweepError> {
        if steps.iter().any(|step| matches!(step, Step::Free { .. })) {
            let published = self.ledger.published_pools().await?;
            steps.retain(|step| match step {
                Step::Free { held, .. } => !published.contains_key(&held.pool.name),
                Step::Repair(_) => true,
            });
        }
        self.executor.execute(steps, policies).await;
        Ok(())
    }
}

/// The pools whose entries have to be planned: small ones, which may be read together, and large ones.
fn to_read_again<P: Policy>(read: &Read<P>) -> (Vec<PoolKey>, Vec<PoolKey>) {
    let with_uids = read.pools.iter().any(|pool| pool.owners.names_uids());
    let judged = JudgedOwners::of(&read.owners, with_uids);
    let (mut small, mut large) = (Vec::new(), Vec::new());
    for pool in &read.pools {
        let suspected = !pool.published && pool.owners.may_be_gone(&judged);
        if !suspected && !read.survey.wants(&pool.key) {
            continue;
        }
        match pool.entries {
            0..=SMALL => small.push(pool.key.clone()),
            _ => large.push(pool.key.clone()),
        }
    }
    (small, large)
}
