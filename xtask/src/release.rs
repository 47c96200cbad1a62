//! The release: three static programs, their checksums and the bill of materials of each (CycloneDX).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use berth_parts::Tool;

use crate::parts;
use crate::steps::{self, cargo, step};
use crate::test::{self, PLUGIN_TARGET};

/// Program, and the folder of its package.
const PROGRAMS: [(&str, &str, &str); 3] = [
    ("berth", "crates/cli", "dist"),
    ("berth-host", "crates/host", "dist"),
    ("berth-cni", "crates/plugin", "plugin"),
];

/// The file name that cargo-cyclonedx writes next to each package of the workspace.
const BILL: &str = "berth-bill-of-materials";

pub fn run() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .canonicalize()?;
    let out = root.join("target/packages");
    let cyclonedx = step("parts: cargo-cyclonedx", || parts::tool(Tool::Cyclonedx))?;
    step("plugin", test::plugin)?;
    step("berth, static", || static_program("berth"))?;
    // By itself: in one call with `berth` it would be built with features that only `berth` needs.
    step("berth-host, static", || static_program("berth-host"))?;
    fs::create_dir_all(&out).with_context(|| format!("create {}", out.display()))?;
    step("bills of materials", || bills(&root, &out, &cyclonedx))?;
    step("programs and checksums", || programs(&root, &out))
}

fn static_program(package: &str) -> Result<()> {
    let build = ["build", "--locked", "--profile", "dist"];
    let target = ["--package", package, "--target", PLUGIN_TARGET];
    cargo(&[build.as_slice(), &target].concat())
}

fn programs(root: &Path, out: &Path) -> Result<()> {
    for (program, _, profile) in PROGRAMS {
        let built = root
            .join("target")
            .join(PLUGIN_TARGET)
            .join(profile)
            .join(program);
        fs::copy(&built, out.join(program)).with_context(|| format!("copy {}", built.display()))?;
    }
    let names = PROGRAMS.map(|(program, ..)| program);
    let sums = Command::new("sha256sum")
        .args(names)
        .current_dir(out)
        .output()?;
    if !sums.status.success() {
        bail!(
            "sha256sum failed: {}",
            String::from_utf8_lossy(&sums.stderr)
        );
    }
    fs::write(out.join("SHA256SUMS"), sums.stdout)?;
    Ok(())
}

/// cargo-cyclonedx writes one next to every package: those of the programs are kept.
fn bills(root: &Path, out: &Path, cyclonedx: &Path) -> Result<()> {
    let text = steps::run(
        Command::new(cyclonedx)
            .args(["cyclonedx", "--format", "json", "--spec-version", "1.5"])
            .args(["--target", PLUGIN_TARGET, "--override-filename", BILL])
            .current_dir(root),
    );
    let written = written(root)?;
    let kept = text.and_then(|()| keep(root, out));
    for file in written {
        let _ = fs::remove_file(file);
    }
    kept
}

fn keep(root: &Path, out: &Path) -> Result<()> {
    for (program, folder, _) in PROGRAMS {
        let bill = root.join(folder).join(format!("{BILL}.json"));
        let to = out.join(format!("{program}.cdx.json"));
        fs::copy(&bill, &to).with_context(|| format!("no bill of materials {}", bill.display()))?;
    }
    Ok(())
}

fn written(root: &Path) -> Result<Vec<PathBuf>> {
    let mut folders = vec![root.join("xtask")];
    for entry in fs::read_dir(root.join("crates"))? {
        folders.push(entry?.path());
    }
    let bills = folders
        .into_iter()
        .map(|folder| folder.join(format!("{BILL}.json")));
    Ok(bills.filter(|bill| bill.is_file()).collect())
}
