//! One range on this node: what it holds, whether that is confirmed, and the one task that keeps it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use berth_core::slice::NodeName;
use berth_core::{Change, Pool, Prefix};
use berth_ledger::kube::Connection;
use berth_ledger::{KubeLedger, LedgerError, PoolKey, SharedLedger};
use rand::RngExt;
use tokio::sync::{Mutex as AsyncMutex, Notify};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::error::SliceError;
use crate::holdings::{Holding, Holdings, State};
use crate::metrics::{OfRange, SliceMetrics};
use crate::publish::Publisher;
use crate::settings::SliceSettings;
use crate::sliced::{Mode, Sliced};

/// How long a node that has slices of this boot waits for the API server's word about them.
const CONFIRM_LIMIT: Duration = Duration::from_secs(5);

/// Between tries of what failed.
const RETRY: Duration = Duration::from_secs(1);

/// What all ranges of a node share.
pub(crate) struct World {
    pub node: NodeName,
    pub boot: String,
    pub local: SharedLedger,
    pub cluster: Arc<KubeLedger>,
    /// Writes the pools that this node publishes, and says so on them.
    pub views: KubeLedger,
    pub connection: Connection,
    pub settings: SliceSettings,
    pub metrics: SliceMetrics,
}

impl World {
    /// Changes a pool of the node's own ledger by what `plan` makes of it, until nobody comes in between.
    pub async fn amend(
        &self,
        key: &PoolKey,
        plan: impl Fn(&Pool) -> Vec<Change>,
    ) -> Result<Vec<Change>, LedgerError> {
        loop {
            let now = self.local.load(key).await?;
            let changes = plan(&now.pool);
            if changes.is_empty() {
                return Ok(changes);
            }
            match self.local.commit(key, &now.version, &changes).await {
                Ok(_) => return Ok(changes),
                Err(error) if error.needs_reload() => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Whether the API server has confirmed what this node holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Confirmation {
    Unknown,
    /// It can't be reached: slices of this boot are given from all the same.
    Awaited,
    Confirmed,
}

pub(crate) struct SlicePool {
    pub world: Arc<World>,
    pub holdings: Holdings,
    pub publisher: AsyncMutex<Publisher>,
    /// Held by whoever changes what is held.
    pub gate: AsyncMutex<()>,
    of: Mutex<Arc<Sliced>>,
    held: Mutex<Arc<Vec<Holding>>>,
    confirmation: Mutex<Confirmation>,
    changed: Mutex<Option<Instant>>,
    kick: Notify,
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SlicePool {
    pub fn new(world: Arc<World>, of: Arc<Sliced>) -> Self {
        let ledger = SharedLedger::clone(&world.local);
        Self {
            holdings: Holdings::new(ledger, &of),
            world,
            publisher: AsyncMutex::default(),
            gate: AsyncMutex::default(),
            of: Mutex::new(of),
            held: Mutex::default(),
            confirmation: Mutex::new(Confirmation::Unknown),
            changed: Mutex::default(),
            kick: Notify::new(),
        }
    }

    pub fn of(&self) -> Arc<Sliced> {
        Arc::clone(&locked(&self.of))
    }

    /// Takes in the network as the newest call has it.
    pub fn renew(&self, of: &Arc<Sliced>) {
        *locked(&self.of) = Arc::clone(of);
    }

    pub fn label(&self) -> OfRange {
        OfRange {
            pool: self.of().plain().name,
        }
    }

    pub fn held(&self) -> Arc<Vec<Holding>> {
        Arc::clone(&locked(&self.held))
    }

    pub fn set_held(&self, held: Vec<Holding>) {
        let active = held.iter().filter(|holding| holding.is_active()).count();
        let gauge = self.world.metrics.held.get_or_create(&self.label()).clone();
        gauge.set(i64::try_from(active).unwrap_or(i64::MAX));
        *locked(&self.held) = Arc::new(held);
    }

    /// The slices that may be given from now.
    pub fn active(&self) -> Vec<Prefix> {
        let confirmed = *locked(&self.confirmation) == Confirmation::Confirmed;
        let held = self.held();
        let given_from = held.iter().filter(|holding| {
            let this_boot = !holding.boot.is_empty() && holding.boot == self.world.boot;
            holding.is_active() && (confirmed || this_boot)
        });
        given_from.map(|holding| holding.slice).collect()
    }

    pub fn is_confirmed(&self) -> bool {
        *locked(&self.confirmation) == Confirmation::Confirmed
    }

    /// Something was changed that has to be published.
    pub fn touch(&self) {
        locked(&self.changed).get_or_insert_with(Instant::now);
        self.kick.notify_one();
    }

    pub fn take_changed(&self) -> Option<Instant> {
        locked(&self.changed).take()
    }

    pub fn put_back_changed(&self, since: Option<Instant>) {
        if let Some(since) = since {
            let mut changed = locked(&self.changed);
            *changed = Some(changed.map_or(since, |now| now.min(since)));
        }
    }

    /// Returns when it is known what this node holds; without the API server, when slices of this boot are there.
    pub async fn ready(&self) -> Result<(), SliceError> {
        if *locked(&self.confirmation) != Confirmation::Unknown {
            return Ok(());
        }
        let _gate = self.gate.lock().await;
        if *locked(&self.confirmation) != Confirmation::Unknown {
            return Ok(());
        }
        self.set_held(self.holdings.load().await?);
        let in_this_boot = !self.active().is_empty();
        let compared = if in_this_boot {
            let limited = timeout(CONFIRM_LIMIT, self.compare()).await;
            limited.unwrap_or_else(|_| Err(SliceError::Store(silent())))
        } else {
            self.compare().await
        };
        match compared {
            Ok(()) => Ok(()),
            Err(SliceError::Store(error)) if in_this_boot && is_away(&error) => {
                tracing::warn!(range = %self.of().range, %error, "slices are given from as this boot left them");
                *locked(&self.confirmation) = Confirmation::Awaited;
                Ok(())
            }
            Err(SliceError::Store(source)) => Err(SliceError::Unconfirmed {
                range: self.of().range,
                source,
            }),
            Err(error) => Err(error),
        }
    }

    /// Compares what is held with the cluster's objects. The gate must be held.
    pub async fn compare(&self) -> Result<(), SliceError> {
        let of = self.of();
        match of.mode {
            Mode::Assigned => self.compare_assigned(&of).await?,
            Mode::Elastic { .. } => {}
        }
        *locked(&self.confirmation) = Confirmation::Confirmed;
        Ok(())
    }

    /// Stops giving from a slice: written first, told second (I8).
    pub async fn lose(&self, holding: &Holding, to: &str) -> Result<(), SliceError> {
        let lost = Holding {
            state: State::Lost,
            ..holding.clone()
        };
        self.set_held(self.holdings.put(&lost).await?);
        self.world.metrics.lost.get_or_create(&self.label()).inc();
        tracing::error!(
            slice = %holding.slice, epoch = holding.epoch.0, node = %self.world.node,
            "this slice is {to} now; nothing is given from it, and what pods hold stays until they go"
        );
        Ok(())
    }

    /// Writes a slice that was granted: from now on it is given from.
    pub async fn hold(&self, holding: Holding) -> Result<(), SliceError> {
        tracing::info!(slice = %holding.slice, epoch = holding.epoch.0, node = %holding.node, "a slice is held");
        self.set_held(self.holdings.put(&holding).await?);
        Ok(())
    }

    /// Publishes, compares and refills, until told to stop.
    pub async fn keep(self: Arc<Self>, stop: CancellationToken) {
        let settings = self.world.settings.clone();
        let look = || {
            let part = rand::rng().random_range(0.75..1.25);
            Instant::now() + settings.look.mul_f64(part)
        };
        let mut next_look = look();
        let mut published = Instant::now() - settings.gather_busy;
        loop {
            let due = tokio::select! {
                () = stop.cancelled() => break,
                () = self.kick.notified() => false,
                () = sleep_until(next_look) => true,
            };
            if !due {
                let busy = published.elapsed() < settings.gather_busy;
                let gather = if busy {
                    settings.gather_busy
                } else {
                    settings.gather
                };
                tokio::select! {
                    () = stop.cancelled() => break,
                    () = sleep(gather) => {}
                }
            }
            if due || !self.is_confirmed() {
                next_look = look();
                let _gate = self.gate.lock().await;
                if let Err(error) = self.compare().await {
                    tracing::warn!(range = %self.of().range, %error, "slices were not compared; they are later");
                }
            }
            if let Err(error) = self.publish(due).await {
                tracing::warn!(range = %self.of().range, %error, "slices were not published; they are later");
                tokio::select! {
                    () = stop.cancelled() => break,
                    () = sleep(RETRY) => self.kick.notify_one(),
                }
            }
            published = Instant::now();
        }
        if let Err(error) = self.publish(false).await {
            tracing::warn!(range = %self.of().range, %error, "slices were not published before the end; the next start does it");
        }
    }
}

/// Whether the store could not be asked, in contrast to what it said.
pub(crate) fn is_away(error: &LedgerError) -> bool {
    matches!(
        error,
        LedgerError::Unavailable { .. } | LedgerError::Uncertain { .. }
    )
}

fn silent() -> LedgerError {
    LedgerError::Unavailable {
        target: "the API server".into(),
        why: format!("no answer within {} s", CONFIRM_LIMIT.as_secs()),
        retry_after: None,
    }
}
