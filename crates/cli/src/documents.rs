//! YAML and JSON files that a person passes to a command.
//!
//! Guarantees: no more is read than an API server would store, and an error names the file.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, bail};
use serde_json::Value;

use crate::exit::Negative;

/// The largest file that is read. etcd stores no object over 1.5 MiB; a node's whole network state is smaller too.
const LARGEST: u64 = 4 << 20;

/// The text of a file, or of stdin for `-`.
pub fn text(file: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    let name = file.display();
    let read = if file == Path::new("-") {
        std::io::stdin().take(LARGEST + 1).read_to_string(&mut text)
    } else {
        let open = File::open(file);
        let open = open.map_err(|error| Negative::Usage(format!("{name}: {error}")))?;
        open.take(LARGEST + 1).read_to_string(&mut text)
    };
    read.with_context(|| Negative::Usage(format!("{name} can't be read")))?;
    if text.len() as u64 > LARGEST {
        bail!(Negative::Usage(format!(
            "{name} is larger than {LARGEST} bytes; give a smaller file"
        )));
    }
    Ok(text)
}

/// The documents of a file, without empty ones.
pub fn all(file: &Path, expected: &str) -> anyhow::Result<Vec<Value>> {
    let read: Vec<Value> = serde_saphyr::from_multiple(&text(file)?).map_err(|error| {
        let name = file.display();
        Negative::Usage(format!("{name}: {error}; give {expected}"))
    })?;
    Ok(read.into_iter().filter(|one| !one.is_null()).collect())
}
