//! What a node knows of itself.

use std::fs;

/// The node's name: as told, else `NODENAME`, else the machine's.
pub fn name(told: Option<String>) -> String {
    let given = |text: String| {
        let text = text.trim().to_owned();
        (!text.is_empty()).then_some(text)
    };
    told.and_then(given)
        .or_else(|| std::env::var("NODENAME").ok().and_then(given))
        .or_else(|| fs::read_to_string("/etc/hostname").ok().and_then(given))
        .unwrap_or_else(|| "localhost".to_owned())
}
