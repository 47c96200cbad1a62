//! Whether the API server has confirmed what this node holds: nothing is given before, but what this same boot has given from.

use std::time::Duration;

use berth_ledger::LedgerError;
use tokio::time::timeout;

use crate::error::SliceError;
use crate::pool::SlicePool;
use crate::sliced::Mode;
use crate::world::locked;

/// How long a node that has slices of this boot waits for the API server's word about them.
const CONFIRM_LIMIT: Duration = Duration::from_secs(5);

/// Whether the API server has confirmed what this node holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Confirmation {
    Unknown,
    /// It can't be reached: slices of this boot are given from all the same.
    Awaited,
    Confirmed,
}

impl SlicePool {
    pub fn is_confirmed(&self) -> bool {
        *locked(&self.confirmation) == Confirmation::Confirmed
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
        {
            let _closed = self.giving.write().await;
            self.set_held(self.holdings.load().await?);
        }
        for holding in self.held().iter() {
            self.learn(&self.of(), holding.slice).await?;
        }
        if !self.held().is_empty() {
            // What the last process did and had not published when it was killed.
            self.kick.notify_one();
        }
        // As it was when it was last seen: the file outlives the agent.
        self.set_disjoint(self.held().iter().any(|holding| holding.disjoint));
        let in_this_boot = !self.active().slices.is_empty();
        let compared = if in_this_boot {
            let limited = timeout(CONFIRM_LIMIT, self.compare()).await;
            limited.unwrap_or_else(|_| Err(SliceError::Store(silent())))
        } else {
            self.compare().await
        };
        match compared {
            Ok(()) => Ok(()),
            Err(SliceError::Store(error)) if in_this_boot && is_away(&error) => {
                if !self.world.is_file_current(&self.of()).await? {
                    tracing::warn!(range = %self.of().range, "the node's database may be older than a slice that was given up; it waits for the API server");
                    return Err(SliceError::Unconfirmed {
                        range: self.of().range,
                        source: error,
                    });
                }
                self.recover_offline(&self.of()).await?;
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
        if !self.world.is_daemon {
            self.refuse_other_file(&of).await?;
        }
        match of.mode {
            Mode::Assigned => self.compare_assigned(&of).await?,
            Mode::Elastic { .. } => self.compare_claims(&of).await?,
        }
        if !self.is_confirmed() {
            // Before anything is allocated, and after it is settled what is lent.
            self.recover(&of).await?;
            self.world.note_current(&of).await?;
        }
        *locked(&self.confirmation) = Confirmation::Confirmed;
        Ok(())
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
