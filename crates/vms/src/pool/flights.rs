//! Allocations under way in this process, by allocation ID.
//!
//! Promises: two requests for one ID run one after the other, so that the second finds what the first got; a deallocation
//! ends all that are under way for its ID, and waits until they have ended.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

#[derive(Debug, Default)]
pub(super) struct Flights(Mutex<BTreeMap<String, Arc<Flight>>>);

/// The requests for one ID.
#[derive(Debug, Default)]
struct Flight {
    turn: tokio::sync::Mutex<()>,
    cancelled: CancellationToken,
}

/// One request's place among them.
#[derive(Debug)]
pub(super) struct Seat<'a> {
    flights: &'a Flights,
    flight: Arc<Flight>,
    id: String,
}

impl Flights {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Flight>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn join(&self, id: &str) -> Seat<'_> {
        let flight = Arc::clone(self.lock().entry(id.into()).or_default());
        Seat {
            flights: self,
            flight,
            id: id.into(),
        }
    }

    /// Ends what is under way for the ID. Whether there was anything.
    pub(super) async fn cancel(&self, id: &str) -> bool {
        // Who joins from now on joins another flight.
        let Some(flight) = self.lock().remove(id) else {
            return false;
        };
        flight.cancelled.cancel();
        drop(flight.turn.lock().await);
        true
    }
}

impl Seat<'_> {
    /// Runs when it is this request's turn; `None` if a deallocation ended it.
    pub(super) async fn run<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let in_turn = async {
            let _turn = self.flight.turn.lock().await;
            work.await
        };
        self.flight.cancelled.run_until_cancelled(in_turn).await
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        let mut flights = self.flights.lock();
        let is_mine = |flight: &Arc<Flight>| Arc::ptr_eq(flight, &self.flight);
        // The map's and mine: nobody else is on it.
        if Arc::strong_count(&self.flight) <= 2 && flights.get(&self.id).is_some_and(is_mine) {
            flights.remove(&self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn requests_of_one_id_follow_each_other_and_leave_nothing() {
        let flights = Flights::default();
        let running = Mutex::new(0);
        let request = || async {
            let seat = flights.join("a");
            seat.run(async {
                *running.lock().unwrap() += 1;
                assert_eq!(*running.lock().unwrap(), 1);
                tokio::task::yield_now().await;
                *running.lock().unwrap() -= 1;
            })
            .await
        };
        let done = tokio::join!(request(), request(), request());
        assert_eq!(done, (Some(()), Some(()), Some(())));
        assert!(flights.lock().is_empty());
    }

    #[tokio::test]
    async fn a_deallocation_ends_all_of_its_id_and_no_later_one() {
        let flights = Flights::default();
        let (first, second, other) = (flights.join("a"), flights.join("a"), flights.join("b"));
        let ended = async {
            tokio::join!(
                first.run(std::future::pending::<()>()),
                second.run(std::future::pending::<()>()),
            )
        };
        let (ended, cancelled) = tokio::join!(ended, flights.cancel("a"));
        assert_eq!((ended, cancelled), ((None, None), true));
        assert_eq!(other.run(async { 1 }).await, Some(1));
        assert_eq!(flights.join("a").run(async { 2 }).await, Some(2));
        assert!(!flights.cancel("a").await);
    }
}
