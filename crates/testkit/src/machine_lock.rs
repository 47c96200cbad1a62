//! Whole-node tests take a machine-wide lock; waiters print its holder. Two at once would compete for the processor,
//! and their kubelets and pods would miss their deadlines.
//!
//! Guarantees: the lock is released with the process that holds it, however that ends; nodes of one process share it,
//! so a test may start any number.

use std::fs::{File, TryLockError};
use std::io::{Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use berth_parts::wait_report;
use tokio::sync::Mutex;
use tokio::time::sleep;

const POLL: Duration = Duration::from_millis(100);

/// Held by every node of the process.
#[derive(Debug)]
pub(crate) struct Turn {
    _lock: Arc<File>,
}

impl Turn {
    pub async fn take() -> Result<Turn> {
        static OURS: Mutex<Weak<File>> = Mutex::const_new(Weak::new());
        let mut ours = OURS.lock().await;
        let lock = match ours.upgrade() {
            Some(lock) => lock,
            None => Arc::new(wait(&path(), &mut std::io::stderr()).await?),
        };
        *ours = Arc::downgrade(&lock);
        Ok(Turn { _lock: lock })
    }
}

fn path() -> PathBuf {
    std::env::temp_dir().join("berth-testkit-node.lock")
}

/// Locks the file and writes the holder into it. The message bypasses the test harness, which keeps what a test prints
/// until its end; `cargo xtask test` subtracts the time that was waited.
async fn wait(path: &Path, say: &mut impl Write) -> Result<File> {
    let mut file = File::options()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(path)
        .with_context(|| format!("open {}", path.display()))?;
    let started = Instant::now();
    let mut other = None;
    loop {
        match file.try_lock() {
            Ok(()) => break,
            Err(TryLockError::WouldBlock) if other.is_none() => {
                let holder = std::fs::read_to_string(path).unwrap_or_default();
                writeln!(
                    say,
                    "waiting for the node of {holder}, which has {}",
                    path.display()
                )?;
                other = Some(holder);
            }
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("lock {}", path.display()));
            }
        }
        sleep(POLL).await;
    }
    if let Some(holder) = other {
        writeln!(say, "{}", wait_report::line(started.elapsed(), &holder))?;
    }
    file.set_len(0)
        .and_then(|()| file.rewind())
        .and_then(|()| file.write_all(signature().as_bytes()))
        .with_context(|| format!("sign {}", path.display()))?;
    Ok(file)
}

/// This process, as a waiter would search for it.
fn signature() -> String {
    let program = std::env::current_exe().unwrap_or_default();
    let program = program.file_name().unwrap_or_default();
    format!(
        "process {} ({})",
        std::process::id(),
        program.to_string_lossy()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_second_waits_for_the_first_and_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let first = wait(&path, &mut Vec::new()).await.unwrap();
        let there = path.clone();
        let second = tokio::spawn(async move {
            let mut said = Vec::new();
            wait(&there, &mut said).await.unwrap();
            String::from_utf8(said).unwrap()
        });
        sleep(POLL * 5).await;
        assert!(!second.is_finished(), "two have the turn");
        drop(first);
        let said = second.await.unwrap();
        let whose = format!("waiting for the node of process {}", std::process::id());
        assert!(said.starts_with(&whose), "{said}");
        let told: Vec<u64> = said.lines().filter_map(wait_report::seconds).collect();
        assert_eq!(told.len(), 1, "{said}");
    }
}
