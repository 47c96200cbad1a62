//! Allocations under way in this process, by pool and allocation ID.
//!
//! Guarantees: two requests for one ID run one after the other, so that the second finds the first one's result; a
//! deallocation ends all that are under way for its ID, and waits until they have ended.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tokio_util::sync::CancellationToken;

use crate::pool::{Deadline, PoolError};

/// A pool's name and an allocation ID.
type Key = (String, String);

#[derive(Debug, Default)]
pub(super) struct Flights(Mutex<BTreeMap<Key, Arc<Flight>>>);

/// The requests for one ID.
#[derive(Debug, Default)]
struct Flight {
    running: tokio::sync::Mutex<()>,
    cancelled: CancellationToken,
}

/// One request among them.
#[derive(Debug)]
pub(super) struct Passenger<'a> {
    flights: &'a Flights,
    flight: Arc<Flight>,
    key: Key,
}

impl Flights {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, Arc<Flight>>> {
        self.0.lock()
    }

    pub(super) fn join(&self, pool: &str, id: &str) -> Passenger<'_> {
        let key = (pool.to_owned(), id.to_owned());
        let flight = Arc::clone(self.lock().entry(key.clone()).or_default());
        Passenger {
            flights: self,
            flight,
            key,
        }
    }

    /// Ends the requests under way for the ID. Returns whether there were any.
    pub(super) async fn cancel(&self, pool: &str, id: &str) -> bool {
        // A request that joins from now on joins another flight.
        let Some(flight) = self.lock().remove(&(pool.to_owned(), id.to_owned())) else {
            return false;
        };
        flight.cancelled.cancel();
        drop(flight.running.lock().await);
        true
    }
}

impl Passenger<'_> {
    /// Runs after the requests that joined before it, unless they run until its deadline.
    pub(super) async fn run<T>(
        &self,
        deadline: Deadline,
        work: impl Future<Output = Result<T, PoolError>>,
    ) -> Result<T, PoolError> {
        let in_order = async {
            let turn = async { Ok(self.flight.running.lock().await) };
            let _running = deadline.bound(turn).await?;
            work.await
        };
        let (_, id) = &self.key;
        let ended = self.flight.cancelled.run_until_cancelled(in_order).await;
        ended.unwrap_or_else(|| Err(PoolError::Deallocated(id.clone())))
    }
}

impl Drop for Passenger<'_> {
    fn drop(&mut self) {
        let mut flights = self.flights.lock();
        let is_mine = |flight: &Arc<Flight>| Arc::ptr_eq(flight, &self.flight);
        // Held by the map and this request: no other request is on it.
        if Arc::strong_count(&self.flight) <= 2 && flights.get(&self.key).is_some_and(is_mine) {
            flights.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn within(seconds: u64) -> Deadline {
        Deadline::within(Duration::from_secs(seconds))
    }

    #[tokio::test]
    async fn requests_of_one_id_follow_each_other_and_leave_nothing() {
        let flights = Flights::default();
        let running = Mutex::new(0);
        let request = || async {
            let passenger = flights.join("pool", "a");
            let work = async {
                *running.lock() += 1;
                assert_eq!(*running.lock(), 1);
                tokio::task::yield_now().await;
                *running.lock() -= 1;
                Ok(())
            };
            passenger.run(within(600), work).await
        };
        tokio::try_join!(request(), request(), request()).unwrap();
        assert!(flights.lock().is_empty());
    }

    #[tokio::test]
    async fn a_deallocation_ends_all_of_its_id_and_no_later_one() {
        let flights = Flights::default();
        let join = |pool, id| flights.join(pool, id);
        let (first, second) = (join("pool", "a"), join("pool", "a"));
        let others = [join("pool", "b"), join("other", "a")];
        let (first, second, cancelled) = tokio::join!(
            first.run(within(600), std::future::pending::<Result<(), _>>()),
            second.run(within(600), std::future::pending::<Result<(), _>>()),
            flights.cancel("pool", "a"),
        );
        for ended in [first, second] {
            assert!(matches!(ended, Err(PoolError::Deallocated(id)) if id == "a"));
        }
        assert!(cancelled);
        for other in others {
            other.run(within(600), async { Ok(()) }).await.unwrap();
        }
        let next = join("pool", "a");
        next.run(within(600), async { Ok(()) }).await.unwrap();
        drop(next);
        assert!(!flights.cancel("pool", "a").await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_waits_for_the_one_before_it_until_its_deadline() {
        let flights = Flights::default();
        let (first, second) = (flights.join("pool", "a"), flights.join("pool", "a"));
        let slow = async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            Ok(())
        };
        let hangs = first.run(within(1), slow);
        let (first, second) = tokio::join!(hangs, second.run(within(1), async { Ok(()) }));
        assert!(first.is_ok());
        assert!(
            matches!(second, Err(PoolError::TooLate { .. })),
            "{second:?}"
        );
    }
}
