//! Time since the collector started. A wall clock that is set would shorten or stretch a grace period.

use std::time::Duration;

use berth_core::Moment;
use tokio::time::Instant;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(Instant);

impl Clock {
    pub fn start() -> Clock {
        Clock(Instant::now())
    }

    pub fn now(&self) -> Moment {
        Moment(0).plus(self.0.elapsed())
    }

    pub fn instant(&self, moment: Moment) -> Instant {
        // A millisecond more: moments are rounded down.
        self.0 + Duration::from_millis(moment.0 + 1)
    }
}
