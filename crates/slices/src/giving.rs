//! When a slice is given from, and when that ends.
//!
//! Promises (I8): an address is given only beside the holding that it is of. The commit that gives it passes only while all
//! holdings are as they were when it was looked at, so what is written about a slice ends giving in every process of the
//! node: an agent that begins or ends has `berth cni` beside it, over one file. Who ends to give from a slice only if nothing of it
//! is held writes that only while the pool is as it was looked at. In one process neither meets the other: the lock `giving`.

use berth_core::{Change, Pool};
use berth_ledger::{Guard, LedgerError, PoolKey};

use crate::error::SliceError;
use crate::forget::used;
use crate::holdings::{Holding, State};
use crate::pool::SlicePool;

impl SlicePool {
    /// Stops allocating from a slice: written first, told second (I8).
    pub async fn lose(&self, holding: &Holding, to: &str) -> Result<(), SliceError> {
        self.stop_giving(holding).await?;
        self.tell_of_loss(holding, to).await
    }

    /// The same, and nobody is told.
    pub async fn stop_giving(&self, holding: &Holding) -> Result<(), SliceError> {
        let lost = Holding {
            state: State::Lost,
            ..holding.clone()
        };
        // Whoever gives an address just now has given it when this is written, or finds that it may not.
        let _closed = self.giving.write().await;
        self.set_held(self.holdings.put(&lost).await?);
        self.world.note_given_up(&self.of()).await?;
        // Its Node may be gone: whoever claims again looks for that first.
        self.world.forget_registration();
        Ok(())
    }

    /// Tells whoever has to act. A slice in which no pod has an address is lost without harm: so it is when its network is
    /// deleted.
    pub async fn tell_of_loss(&self, holding: &Holding, to: &str) -> Result<(), SliceError> {
        let (of, slice) = (self.of(), holding.slice);
        let local = self.world.local.load(&of.key()).await?;
        let live = used(&local.pool, slice).count();
        if live == 0 {
            tracing::info!(%slice, epoch = holding.epoch.0, node = %self.world.node, "an unused slice is {to} now");
            return Ok(());
        }
        self.world.metrics.lost.get_or_create(&self.label()).inc();
        tracing::error!(
            %slice, epoch = holding.epoch.0, node = %self.world.node, live,
            "this slice is {to} now; nothing is allocated from it, and its live addresses stay valid until their pods end"
        );
        self.world.tell_of_loss(format!(
            "slice {slice} (epoch {}) of {} is {to} now: nothing is allocated from it; its {live} live addresses stay valid until \
             their pods end",
            holding.epoch.0, of.range
        ));
        Ok(())
    }

    /// Whether every address that is about to be given is of a slice that is given from, and what that rests on. The lock
    /// must be held.
    pub fn check_given(&self, changes: &[Change]) -> Result<Guard, LedgerError> {
        let (of, (held, guard)) = (self.of(), self.held_and_guard());
        let slices = held
            .iter()
            .filter(|one| one.is_active())
            .map(|one| one.slice);
        let mut claimed = changes.iter().filter_map(|change| match change {
            // What no network of the range gives by choice may be asked for by name, slice or not.
            Change::Allocate { address, .. } if of.usable.contains(*address) => Some(*address),
            _ => None,
        });
        let stray = claimed.find(|address| !slices.clone().any(|slice| slice.contains(*address)));
        match stray {
            None => Ok(guard),
            // Not a conflict: planned again on the same slices, it would meet the same end.
            Some(_) => Err(LedgerError::Moved {
                pool: of.key().name,
            }),
        }
    }

    /// Takes in what another process of this node has changed. The lock must be held.
    pub async fn reread_held(&self) -> Result<(), LedgerError> {
        self.set_held(self.holdings.load().await?);
        Ok(())
    }

    /// That no other process of this node has changed what is held since the gate was taken: what was looked at with it says
    /// still what is this node's. The gate must be held.
    fn undisturbed(&self) -> Result<Guard, LedgerError> {
        let (_, known) = self.held_and_guard();
        match self.gate.is_undisturbed() {
            true => Ok(known),
            false => Err(LedgerError::Conflict {
                pool: known.pool.name,
                held: Vec::new(),
            }),
        }
    }

    /// Takes in what another process wrote, if a commit was refused because of that.
    async fn heed<T>(&self, made: Result<T, LedgerError>, by: &Guard) -> Result<T, LedgerError> {
        if matches!(&made, Err(error) if error.is_of(by)) {
            self.reread_held().await?;
        }
        made
    }

    /// Changes the pool of a slice that is about to be held, as long as nobody else holds and lends it. The gate must be
    /// held.
    pub async fn amend_undisturbed(
        &self,
        pool: &PoolKey,
        plan: impl Fn(&Pool) -> Vec<Change>,
    ) -> Result<(), SliceError> {
        let _giving = self.giving.read().await;
        let known = self.undisturbed()?;
        let made = self.world.amend_beside(pool, &known, plan).await;
        self.heed(made, &known).await?;
        Ok(())
    }

    /// Has whoever is about to take a slice on by what it has looked at look again: this process is about to end claims that
    /// nobody holds.
    pub async fn outdate_looks(&self) -> Result<(), SliceError> {
        let _closed = self.giving.write().await;
        let (held, none) = self.held_and_guard();
        let range = self.of().range;
        if !held.is_empty() {
            return Err(SliceError::Leaving { range });
        }
        let outdated = self.holdings.outdate(&none).await;
        match self.heed(outdated, &none).await {
            Err(error) if error.is_of(&none) => Err(SliceError::Leaving { range }),
            outdated => {
                self.set_held(outdated?);
                Ok(())
            }
        }
    }

    /// Writes a slice that was granted: from now on it is given from. The gate must be held.
    pub async fn hold(&self, holding: Holding) -> Result<(), SliceError> {
        // One change at a time: what was read before a slice was passed on must not be known after it.
        let _closed = self.giving.write().await;
        let known = self.undisturbed()?;
        let held = self.holdings.grant(&holding, &known).await;
        self.set_held(self.heed(held, &known).await?);
        tracing::info!(slice = %holding.slice, epoch = holding.epoch.0, node = %holding.node, "a slice is held");
        Ok(())
    }

    /// Writes what is new of a holding. A slice can be passed on at any time, also by whoever does not hold the gate: one
    /// that is not held any more stays so.
    pub async fn renew_holding(&self, holding: &Holding) -> Result<(), SliceError> {
        let _closed = self.giving.write().await;
        self.set_held(self.holdings.renew(holding).await?);
        Ok(())
    }
}
