//! Builds one module: sources written out, `go build` per binary, the whole renamed into place.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::cache::Cache;
use crate::catalog::Module;

/// How often a long build reports progress.
const TICK: Duration = Duration::from_secs(15);

pub(crate) fn module(
    cache: &Cache,
    module: &Module,
    nth: usize,
    of: usize,
    progress: &mut impl FnMut(&str),
) -> Result<()> {
    let started = Instant::now();
    let shop = cache.workshop(module.name)?;
    let (source, out) = (shop.join("source"), shop.join("out"));
    fs::create_dir_all(&source).with_context(|| format!("create {}", source.display()))?;
    for (name, content) in module.files {
        let path = source.join(name);
        fs::write(&path, content).with_context(|| format!("write {}", path.display()))?;
    }
    for binary in module.binaries {
        let target = out.join(binary.file);
        let mut go = Command::new("go");
        go.current_dir(&source)
            .args(["build", "-trimpath", "-buildvcs=false", "-ldflags"])
            .arg(format!("-s -w {}", module.ldflags))
            .arg("-o")
            .arg(&target)
            .arg(binary.package)
            // The binaries run in namespaces and containers that may have no C library.
            .env("CGO_ENABLED", "0")
            .env("GOWORK", "off");
        let what = format!("{} ({nth} of {of}): {}", module.name, binary.file);
        run(&mut go, &what, &shop.join("log"), progress)
            .context("build a test part (Go 1.26 or later and the Go module proxy are needed)")?;
    }
    if let Some(first) = module.binaries.first() {
        for alias in module.aliases {
            symlink(first.file, out.join(alias))
                .with_context(|| format!("link {alias} to {}", first.file))?;
        }
    }
    for data in module.data {
        let found = module_dir(&source, data.module)?.join(data.path);
        fs::copy(&found, out.join(data.file))
            .with_context(|| format!("copy {}", found.display()))?;
    }
    let place = cache.place(module);
    fs::rename(&out, &place).with_context(|| format!("move {} into place", place.display()))?;
    // Best effort: the next build of the module clears the rest.
    let _ = fs::remove_dir_all(&shop);
    progress(&format!(
        "{} ({nth} of {of}): built in {} s",
        module.name,
        started.elapsed().as_secs()
    ));
    Ok(())
}

/// The directory in which Go keeps a required module.
fn module_dir(source: &Path, module: &str) -> Result<PathBuf> {
    let output = Command::new("go")
        .current_dir(source)
        .args(["list", "-m", "-f", "{{.Dir}}", module])
        .env("GOWORK", "off")
        .stdin(Stdio::null())
        .output()
        .context("start `go list`")?;
    let dir = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if !output.status.success() || dir.is_empty() {
        let text = String::from_utf8_lossy(&output.stderr);
        bail!("`go list -m {module}` names no directory: {text}");
    }
    Ok(PathBuf::from(dir))
}

/// Runs a build to its end; its output goes to `log`, whose tail becomes the error's text if it fails.
pub(crate) fn run(
    command: &mut Command,
    what: &str,
    log: &Path,
    progress: &mut impl FnMut(&str),
) -> Result<()> {
    let started = Instant::now();
    progress(what);
    let output = File::create(log).with_context(|| format!("create {}", log.display()))?;
    let program = command.get_program().to_string_lossy().into_owned();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(output.try_clone().context("share the log")?)
        .stderr(output)
        .spawn()
        .with_context(|| format!("start `{program}`: is it installed and on the PATH?"))?;
    let mut reported = started;
    loop {
        if let Some(status) = child.try_wait().context("wait for the build")? {
            if !status.success() {
                bail!("{what}: `{program}` failed ({status}):\n{}", tail(log));
            }
            return Ok(());
        }
        if reported.elapsed() >= TICK {
            reported = Instant::now();
            progress(&format!("{what}: {} s", started.elapsed().as_secs()));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn tail(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_build_shows_its_output() {
        let dir = std::env::temp_dir().join(format!("berth-parts-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let mut sh = Command::new("sh");
        sh.args(["-c", "echo no such package; exit 3"]);
        let error = run(&mut sh, "x (1 of 1)", &dir.join("log"), &mut |_| {}).unwrap_err();
        fs::remove_dir_all(&dir).unwrap();
        assert!(error.to_string().contains("no such package"), "{error}");
    }

    #[test]
    fn a_missing_tool_is_named() {
        let log = std::env::temp_dir().join(format!("berth-parts-{}.log", std::process::id()));
        let mut none = Command::new("berth-no-such-tool");
        let error = run(&mut none, "x", &log, &mut |_| {}).unwrap_err();
        fs::remove_file(&log).unwrap();
        assert!(error.to_string().contains("berth-no-such-tool"), "{error}");
    }
}
