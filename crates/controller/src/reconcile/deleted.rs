//! Tables that were deleted at once, for as long as an agent may not have noticed.
//!
//! Guarantees: a network that returns meanwhile is cut as it was, so that no slice is assigned to another node before
//! its last one has noticed the deletion (I8). A controller that takes over does not know about it: it assigns nodes in
//! their order, as the last one did.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_core::Moment;
use berth_core::slice::assigned::Assignments;
use parking_lot::Mutex;

/// How long an agent's watch may lag behind.
const WATCH_LAG: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
pub struct Ended(Mutex<BTreeMap<String, (Assignments, Moment)>>);

impl Ended {
    pub(super) fn note(&self, name: &str, table: Assignments, now: Moment) {
        let mut all = self.0.lock();
        all.retain(|_, (_, since)| now < since.plus(WATCH_LAG));
        all.insert(name.to_owned(), (table, now));
    }

    /// The table of that name, if it was deleted a moment ago.
    pub(super) fn recent(&self, name: &str, now: Moment) -> Option<Assignments> {
        let all = self.0.lock();
        let (table, since) = all.get(name)?;
        (now < since.plus(WATCH_LAG)).then(|| table.clone())
    }
}

#[cfg(test)]
mod tests {
    use berth_core::slice::Cut;

    use super::*;

    #[test]
    fn a_table_is_known_until_every_agent_has_noticed_its_deletion() {
        let (ended, now) = (Ended::default(), Moment(1_000));
        let cut = Cut::new("10.0.0.0/24".parse().unwrap(), 26).unwrap();
        ended.note("blue", Assignments::new(cut), now);
        assert!(ended.recent("blue", now).is_some() && ended.recent("red", now).is_none());
        let later = now.plus(WATCH_LAG);
        assert!(ended.recent("blue", later).is_none());
        ended.note("red", Assignments::new(cut), later);
        assert_eq!(ended.0.lock().len(), 1);
    }
}
