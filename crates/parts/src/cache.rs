//! The cache's directories: its root, a module's directory in it, and the lock of its writers.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::catalog::Module;

#[derive(Debug, Clone)]
pub(crate) struct Cache {
    root: PathBuf,
}

impl Cache {
    pub fn at(root: PathBuf) -> Cache {
        Cache { root }
    }

    pub fn locate() -> Result<Cache> {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let root = set("BERTH_PARTS_DIR")
            .map(PathBuf::from)
            .or_else(|| set("XDG_CACHE_HOME").map(|dir| Path::new(&dir).join("berth/parts")))
            .or_else(|| set("HOME").map(|dir| Path::new(&dir).join(".cache/berth/parts")))
            .context(
                "no place for the test parts: set BERTH_PARTS_DIR (or XDG_CACHE_HOME, or HOME)",
            )?;
        // Parts are started from other directories than this one.
        let root = std::path::absolute(&root)
            .with_context(|| format!("test parts directory {}", root.display()))?;
        Ok(Cache::at(root))
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The module's directory; it exists only when it is complete.
    pub fn place(&self, module: &Module) -> PathBuf {
        self.root.join(format!("{}-{}", module.name, module.key()))
    }

    /// An empty directory for a build. The caller holds the lock: what is found there was left by a killed build.
    pub fn workshop(&self, name: &str) -> Result<PathBuf> {
        let dir = self.root.join(format!(".building-{name}"));
        if dir.exists() {
            fs::remove_dir_all(&dir).with_context(|| format!("clear {}", dir.display()))?;
        }
        fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
        Ok(dir)
    }

    /// The builders' lock, held until the file is dropped or the process ends.
    pub fn lock(&self, progress: &mut impl FnMut(&str)) -> Result<File> {
        fs::create_dir_all(&self.root)
            .with_context(|| format!("create the parts cache {}", self.root.display()))?;
        let path = self.root.join(".lock");
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .with_context(|| format!("open {}", path.display()))?;
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => {
                progress("another run is building the parts: waiting for it");
            }
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("lock {}", path.display()));
            }
        }
        file.lock()
            .with_context(|| format!("lock {}", path.display()))?;
        Ok(file)
    }
}
