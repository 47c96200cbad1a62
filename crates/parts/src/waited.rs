//! How a test program tells whoever runs it that it did nothing but wait for a while: a line among what it says.
//!
//! What some parts need, whole nodes above all, one process of a machine has at a time. The one who says it
//! (`berth-testkit`) and the one who reads it (`cargo xtask test`) have it from here.

use std::time::Duration;

const BEFORE: &str = "waited ";
const BETWEEN: &str = " s for the node of ";

/// Says for whom it waited, and how long.
pub fn line(time: Duration, holder: &str) -> String {
    format!("{BEFORE}{}{BETWEEN}{holder}", time.as_secs())
}

/// The seconds of such a line; none if it is another.
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
        assert_eq!(seconds("waited long for the node of nobody"), None);
        assert_eq!(seconds("waiting for the node of process 7 (node-1)"), None);
    }
}
