//! A log line at most once a minute, with the number of events that it stands for.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
/// Counts events of one kind that a client can trigger; logs the first at once and then their number every minute.
#[derive(Clone, Debug)]
pub struct Tally {
    message: &'static str,
    period: Duration,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// A task is waiting to log the count.
    running: bool,
    count: u64,
    total: u64,
    last: String,
}

impl Tally {
    pub fn new(message: &'static str) -> Tally {
        Tally {
            message,
            period: Duration::from_secs(60),
            state: Arc::default(),
        }
    }

    /// Counts one event; `detail` of the last one is logged with the number.
    pub fn note(&self, detail: impl FnOnce() -> String) {
        let mut state = self.lock();
        state.total += 1;
        state.last = detail();
        if state.running {
            state.count += 1;
            return;
        }
        state.running = true;
        tracing::warn!(count = 1, last = state.last, "{}", self.message);
        drop(state);
        let tally = self.clone();
        tokio::spawn(async move { tally.report().await });
    }

    /// The total count.
    pub fn total(&self) -> u64 {
        self.lock().total
    }

    async fn report(&self) {
        loop {
            tokio::time::sleep(self.period).await;
            let mut state = self.lock();
            let count = std::mem::take(&mut state.count);
            if count == 0 {
                state.running = false;
                return;
            }
            tracing::warn!(count, last = state.last, "{}", self.message);
        }
    }

    fn lock(&self) -> parking_lot::MutexGuard<'_, State> {
        self.state.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_period_has_one_line() {
        let mut tally = Tally::new("refused");
        tally.period = Duration::from_millis(20);
        for n in 0..400 {
            tally.note(|| n.to_string());
        }
        assert_eq!(tally.total(), 400);
        assert_eq!(tally.lock().count, 399, "the first was logged at once");
        // The others in one line after the period; then no task is waiting.
        while tally.lock().running {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(tally.lock().count, 0);
    }
}
