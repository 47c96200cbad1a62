//! Whether the node's file is as new as the last slice, or part of one, that this node gave up.
//!
//! Another node allocates from what was given up. A copy of the file from before that would allocate from it too, and the
//! claim that says otherwise can't be read while the API server is away. So each time something is given up, a new token goes
//! into the file, and into the agent's runtime directory, which no copy of the file puts back: without the API server a file
//! whose token is not the one there is not allocated from (I1, I8). What fails in between leaves two tokens that differ.

use std::io;
use std::path::{Path, PathBuf};

use berth_core::{Handle, Owner, Record, hash_index};
use berth_ledger::{ClaimKey, ClaimKind, LedgerError};
use rand::RngExt;

use crate::sliced::Sliced;
use crate::world::World;

/// The directory of the tokens, in the runtime directory.
const DIRECTORY: &str = "given-up";

impl World {
    /// Something of the range is given up: called after that is in the file, and before another node can hear of it.
    pub async fn note_given_up(&self, of: &Sliced) -> Result<(), LedgerError> {
        let _alone = self.noting.lock().await;
        let key = token_key(of);
        let token = format!("{:032x}", rand::rng().random::<u128>());
        let record = Record::new(Owner::new(token, ""), Handle::default());
        match self.local.get(&key).await? {
            Some(known) => self.local.transfer(&key, &known, &record).await?,
            None => self.local.create(&key, &record).await?,
        }
        self.keep_token(of, &record.owner.subject).await;
        Ok(())
    }

    /// The API server has confirmed what this node holds of the range: the file is current.
    pub async fn note_current(&self, of: &Sliced) -> Result<(), LedgerError> {
        let _alone = self.noting.lock().await;
        if let Some(known) = self.local.get(&token_key(of)).await? {
            self.keep_token(of, &known.owner.subject).await;
        }
        Ok(())
    }

    /// Whether nothing of the range was given up since this file was written, as far as this boot of the node knows.
    pub async fn is_file_current(&self, of: &Sliced) -> Result<bool, LedgerError> {
        let Some(path) = self.token_path(of) else {
            return Ok(true);
        };
        let ours = self.local.get(&token_key(of)).await?;
        let ours = ours.map(|known| known.owner.subject);
        let kept = tokio::fs::read_to_string(&path).await;
        match (kept, ours) {
            (Ok(kept), Some(ours)) => Ok(kept == ours),
            (Err(error), None) if error.kind() == io::ErrorKind::NotFound => Ok(true),
            _ => Ok(false),
        }
    }

    async fn keep_token(&self, of: &Sliced, token: &str) {
        let Some(path) = self.token_path(of) else {
            return;
        };
        if let Err(error) = replace(&path, token).await {
            // Then the two differ, and the file waits for the API server after the next start.
            tracing::warn!(path = %path.display(), %error, "not written; after a restart without the API server, {} is not allocated from", of.range);
        }
    }

    fn token_path(&self, of: &Sliced) -> Option<PathBuf> {
        let directory = self.settings.runtime.as_ref()?.join(DIRECTORY);
        // A name may be longer than a file's.
        let name = hash_index(&of.key().name, u128::MAX);
        Some(directory.join(format!("{name:032x}")))
    }
}

fn token_key(of: &Sliced) -> ClaimKey {
    ClaimKey::new(ClaimKind::Slice, format!("given-up/{}", of.key().name))
}

async fn replace(path: &Path, text: &str) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        tokio::fs::create_dir_all(directory).await?;
    }
    let new = path.with_extension("new");
    tokio::fs::write(&new, text).await?;
    tokio::fs::rename(&new, path).await
}
