//! The time since boot: it is never set, and is the same in every process.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// A moment of this boot. It is kept in files that a reboot removes.
pub fn since_boot() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanos = u32::try_from(now.tv_nsec).unwrap_or(0);
    Duration::new(seconds, nanos)
}
