//! Writes deploy/crds: `cargo run -p berth-api --example crds`.

use std::path::Path;

use anyhow::{Context, Result};

fn main() -> Result<()> {
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/crds");
    for crd in berth_api::crds()? {
        let file = place.join(berth_api::file_name(&crd));
        let text = serde_saphyr::to_string(&crd)?;
        std::fs::write(&file, text).with_context(|| format!("writing {}", file.display()))?;
    }
    Ok(())
}
