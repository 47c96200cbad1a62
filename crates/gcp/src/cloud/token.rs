//! Access tokens, kept until shortly before they end.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use tokio::sync::Mutex;

use super::error::CloudError;
use super::http::Http;
use super::key_file;
use super::metadata::Metadata;

/// Where tokens come from.
#[derive(Clone, Debug)]
pub enum TokenSource {
    /// The VM's service account.
    Metadata(Metadata),
    /// A service account's key file.
    KeyFile(PathBuf),
}

/// A token is renewed when it has less than this left.
const MARGIN: Duration = Duration::from_secs(120);

/// A token and how long it is good.
#[derive(Clone, Debug)]
pub struct Issued {
    pub token: String,
    pub lasts: Duration,
}

#[derive(Debug)]
pub struct Tokens {
    http: Http,
    source: TokenSource,
    /// The lock is held while a new one is fetched, so that requests that start together fetch one token.
    kept: Mutex<Option<(String, Instant)>>,
}

impl Tokens {
    pub fn new(http: Http, source: TokenSource) -> Tokens {
        Tokens {
            http,
            source,
            kept: Mutex::new(None),
        }
    }

    pub async fn get(&self) -> Result<String, CloudError> {
        let mut kept = self.kept.lock().await;
        if let Some((token, until)) = kept.as_ref()
            && Instant::now() < *until
        {
            return Ok(token.clone());
        }
        let issued = match &self.source {
            TokenSource::Metadata(metadata) => metadata.token(&self.http).await?,
            TokenSource::KeyFile(file) => key_file::token(&self.http, file).await?,
        };
        let until = Instant::now() + issued.lasts.saturating_sub(MARGIN);
        *kept = Some((issued.token.clone(), until));
        Ok(issued.token)
    }

    /// Forgets a token that was refused, unless another took its place meanwhile.
    pub async fn refused(&self, token: &str) {
        let mut kept = self.kept.lock().await;
        if kept.as_ref().is_some_and(|(known, _)| known == token) {
            *kept = None;
        }
    }
}
