//! The engine in-process: `berth cni`, run with this call's environment and configuration.
//!
//! Searched in `BERTH_BIN`, then as `berth-full` next to the plugin, then as `berth` on PATH. The plugin may itself be
//! installed as `berth`: a file in the plugin's own directory, or of its own size, is a copy of it and is skipped; an
//! environment variable stops a loop that gets past both.
//!
//! The engine replaces the plugin's process (exec). A runtime that times out kills the process that it started: an
//! engine next to it would continue, and allocate an address after the DEL.

use std::convert::Infallible;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use berth_cni::delegate;
use berth_cni::wire::Request;

const OVERRIDE: &str = "BERTH_BIN";
const SIBLING: &str = "berth-full";
const ON_PATH: &str = "berth";
/// Set for the engine: a plugin that finds it was mistaken for the engine.
const GUARD: &str = "BERTH_CALLED_BY_PLUGIN";

/// Why there is no engine to run.
#[derive(Debug)]
pub enum Absent {
    NotFound,
    /// The program that we ran as the engine was this plugin again.
    Ourselves,
    CannotRun {
        path: PathBuf,
        what: String,
    },
}

impl fmt::Display for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Absent::NotFound => {
                f.write_str("no berth executable was found to do the work in-process")
            }
            Absent::Ourselves => f.write_str("the berth executable found is this plugin itself"),
            Absent::CannotRun { path, what } => {
                write!(f, "{} cannot be run: {what}", path.display())
            }
        }
    }
}

/// Becomes the engine, with `request`. Returns only if that fails.
pub fn run(request: &Request) -> Result<Infallible, Absent> {
    if std::env::var_os(GUARD).is_some() {
        return Err(Absent::Ourselves);
    }
    let path = find().ok_or(Absent::NotFound)?;
    let cannot = |error: io::Error| Absent::CannotRun {
        path: path.clone(),
        what: error.to_string(),
    };
    let stdin = delegate::stdin(&request.stdin).map_err(cannot)?;
    let error = Command::new(&path)
        .args(["cni", "--plugin", &request.plugin])
        .env(GUARD, "1")
        .stdin(stdin)
        .exec();
    Err(cannot(error))
}

fn find() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os(OVERRIDE).filter(|value| !value.is_empty()) {
        return Some(PathBuf::from(path));
    }
    let own = std::env::current_exe().ok();
    let own_dir = own.as_deref().and_then(Path::parent);
    if let Some(sibling) = own_dir
        .map(|dir| dir.join(SIBLING))
        .filter(|path| executable(path))
    {
        return Some(sibling);
    }
    let own_size = own.as_deref().and_then(size);
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .filter(|dir| Some(dir.as_path()) != own_dir)
        .map(|dir| dir.join(ON_PATH))
        .find(|candidate| executable(candidate) && size(candidate) != own_size)
}

fn executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

fn size(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().map(|meta| meta.len())
}
