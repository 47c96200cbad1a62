//! How a test program reports that it only waited for a while: a line in its output.
//!
//! Only one process of a machine may use some parts at a time, above all whole nodes. `berth-testkit` writes the line
//! and `cargo xtask test` parses it.

use std::time::Duration;

const BEFORE: &str = "waited ";
const BETWEEN: &str = " s for the node of ";

/// Names the holder that it waited for, and how long.
pub fn line(time: Duration, holder: &str) -> String {
    format!("{BEFORE}{}{BETWEEN}{holder}", time.as_secs())
}

/// The seconds of such a line; `None` for another line.
pub fn seconds(line: &str) -> Option<u64> {
    let (seconds, _) = line.strip_prefix(BEFORE)?.split_once(BETWEEN)?;
    seconds.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_read() {
        let said = line(Duration::from_millis(42_900), "process 7 (node-1)");
        assert_eq!(said, "waited 42 s for the node of process 7 (node-1)");
        assert_eq!(seconds(&said), Some(42));
        assert_eq!(seconds("waited long for the node of another process"), None);
        assert_eq!(seconds("waiting for the node of process 7 (node-1)"), None);
    }
}
