//! Putting Berth on a node, again and again: what is right already is left alone.
//!
//! Order: credentials are read before anything is touched; the manifest is written before the files it speaks of;
//! configurations come before programs, the engine before the plugin that runs it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::atomic_write::{self, Content, Digest, Found};
use crate::cluster::ClusterSource;
use crate::elf;
use crate::engine_config;
use crate::error::InstallError;
use crate::layout::{Dir, Layout};
use crate::lock::{self, Lock};
use crate::manifest::{Aside, Entry, Manifest};
use crate::templates;

/// What is kept of the time before Berth.
const BEFORE: &str = ".before-berth";
/// Where the plugin searches the engine.
const ENGINE: &str = "berth-full";
const PROGRAM_MODE: u32 = 0o755;

/// A text that goes beside the plugin's configuration.
#[derive(Clone, Copy, Debug)]
pub struct TextFile {
    pub name: &'static str,
    /// None where there is nothing to write on this node.
    pub text: fn(&Settings, Option<&templates::Cluster>) -> Option<String>,
}

/// What is installed, and where.
#[derive(Debug, Clone)]
pub struct Settings {
    pub layout: Layout,
    /// The CNI plugin's executable.
    pub plugin: PathBuf,
    /// The names that it is installed under, one for each `ipam.type` that a front answers to.
    pub plugin_names: Vec<&'static str>,
    /// What a front's plugin reads beside it, in the order in which it is written.
    pub texts: &'static [TextFile],
    /// `berth` itself: what the plugin runs where no agent listens.
    pub engine: PathBuf,
    /// None on a node of no cluster: there the programs are all there is to install.
    pub cluster: Option<ClusterSource>,
    /// The database that the node's agent allocates slices from, as the host sees it.
    pub database: PathBuf,
    /// The socket that the node's agent listens on, as the host sees it.
    pub socket: PathBuf,
    /// The node's name in its cluster, if it is known.
    pub node: Option<String>,
    /// Of the configuration files.
    pub mode: u32,
    /// When whereabouts' own reconciler would run, should it come back.
    pub cron: String,
}

/// What became of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    Written,
    Unchanged,
}

/// A file that is installed now. Paths are the host's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Placed {
    pub path: PathBuf,
    pub action: Action,
    /// Where the file is that had its name before Berth.
    pub aside: Option<PathBuf>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    pub files: Vec<Placed>,
    pub warnings: Vec<String>,
}

impl Report {
    pub fn written(&self) -> impl Iterator<Item = &Placed> {
        self.files
            .iter()
            .filter(|placed| placed.action == Action::Written)
    }
}

/// A file to install.
#[derive(Debug)]
struct Item {
    file: Dir,
    mode: u32,
    content: Content,
    /// Whether whereabouts has a file of this name and purpose, too.
    shared: bool,
}

/// An item, and what to do about it.
struct Step {
    item: Item,
    digest: Digest,
    entry: Entry,
    /// There already, written by Berth.
    done: bool,
    /// What is there is not Berth's: keep it.
    keep: bool,
}

/// Installs Berth, or brings an installation up to date.
pub fn install(settings: &Settings) -> Result<Report, InstallError> {
    bring(settings, Manifest::new())
}

/// Brings an installation up to date; one that was removed meanwhile stays removed.
pub(crate) fn renew(settings: &Settings) -> Result<Report, InstallError> {
    bring(settings, None)
}

fn bring(settings: &Settings, first: impl Into<Option<Manifest>>) -> Result<Report, InstallError> {
    let items = settings.items()?;
    let layout = &settings.layout;
    let own = layout.own();
    let _lock = Lock::take(&layout.conf.here, lock::FOR_WORK)?;
    let record = Manifest::path(&own);
    let known = Manifest::load(&record)?;
    let Some(mut manifest) = known.clone().or(first.into()) else {
        return Err(InstallError::Gone { path: record });
    };
    manifest.berth = Manifest::new().berth;
    if make_dir(&own.here)? {
        manifest.directories.push(own.there.clone());
    }
    atomic_write::sweep(&own.here)?;
    atomic_write::sweep(&layout.bin.here)?;

    let mut steps = Vec::new();
    for item in items {
        let step = plan(item, &manifest)?;
        manifest.set(step.entry.clone());
        steps.push(step);
    }
    if known.as_ref() != Some(&manifest) {
        manifest.save(&record)?;
    }
    let mut report = Report {
        warnings: settings.warnings(),
        ..Report::default()
    };
    for step in steps {
        report.files.push(carry_out(layout, step)?);
    }
    Ok(report)
}

fn plan(item: Item, manifest: &Manifest) -> Result<Step, InstallError> {
    let digest = item.content.digest()?;
    let found = atomic_write::read(&item.file.here)?;
    let known = manifest.entry(&item.file.there);
    let ours = is_ours(&item, known, &found, &digest);
    let keep = !ours && found != Found::Nothing;
    let mut sha256 = vec![digest.clone()];
    if let Found::File(current) = &found
        && ours
        && *current != digest
    {
        sha256.push(current.clone());
    }
    let done = ours
        && found == Found::File(digest.clone())
        && atomic_write::mode_of(&item.file.here) == Some(item.mode);
    let aside = match known.and_then(|entry| entry.aside.clone()) {
        Some(aside) => Some(aside),
        None => set_aside(&item.file, keep, found)?,
    };
    let entry = Entry {
        path: item.file.there.clone(),
        sha256,
        aside,
    };
    Ok(Step {
        item,
        digest,
        entry,
        done,
        keep,
    })
}

/// Only Berth brings Berth's programs, so an equal one is ours even if the manifest is lost. An equal text may well be
/// whereabouts': the same node has the same name for both.
fn is_ours(item: &Item, known: Option<&Entry>, found: &Found, digest: &Digest) -> bool {
    let Found::File(current) = found else {
        return false;
    };
    match known {
        Some(entry) if entry.sha256.contains(current) => true,
        _ => !item.shared && current == digest,
    }
}

/// What is kept, or was kept by an installation whose manifest is lost.
fn set_aside(file: &Dir, keep: bool, found: Found) -> Result<Option<Aside>, InstallError> {
    let digest_in = |found| match found {
        Found::File(digest) => Some(digest),
        Found::Nothing | Found::Other => None,
    };
    let path = before(&file.there);
    let sha256 = match atomic_write::read(&before(&file.here))? {
        Found::Nothing if keep => digest_in(found),
        Found::Nothing => return Ok(None),
        kept => digest_in(kept),
    };
    Ok(Some(Aside { path, sha256 }))
}

fn carry_out(layout: &Layout, step: Step) -> Result<Placed, InstallError> {
    let here = &step.item.file.here;
    if step.keep {
        atomic_write::keep(here, &before(here))?;
    }
    if !step.done {
        atomic_write::write(here, step.item.mode, &step.item.content, &step.digest)?;
    }
    let aside = step.entry.aside.map(|aside| aside.path);
    Ok(Placed {
        path: step.entry.path,
        action: match step.done {
            true => Action::Unchanged,
            false => Action::Written,
        },
        aside: aside.filter(|path| fs::symlink_metadata(layout.here(path)).is_ok()),
    })
}

impl Settings {
    fn items(&self) -> Result<Vec<Item>, InstallError> {
        let own = self.layout.own();
        let source = self.cluster.as_ref();
        let cluster = source.map(ClusterSource::read).transpose()?;
        let texts = self.texts.iter().filter_map(|file| {
            Some(Item {
                file: join(&own, file.name),
                mode: self.mode,
                content: Content::Text((file.text)(self, cluster.as_ref())?),
                shared: true,
            })
        });
        let program = |name: &str, source: &Path| Item {
            file: join(&self.layout.bin, name),
            mode: PROGRAM_MODE,
            content: Content::Copy(source.to_owned()),
            shared: false,
        };
        let pointer = self.cluster.is_some().then(|| Item {
            file: join(&self.layout.bin, engine_config::NAME),
            mode: self.mode,
            content: Content::Text(engine_config::text(
                &own.there,
                &self.database,
                &self.socket,
            )),
            shared: false,
        });
        let engine = [program(ENGINE, &self.engine)];
        let names = self.plugin_names.iter();
        let plugins = names.map(|name| program(name, &self.plugin));
        let programs = engine.into_iter().chain(plugins);
        Ok(texts.chain(pointer).chain(programs).collect())
    }

    fn warnings(&self) -> Vec<String> {
        [&self.plugin, &self.engine]
            .into_iter()
            .filter(|path| elf::needs_linker(path) == Some(true))
            .map(|path| {
                format!(
                    "{} is linked dynamically: it runs on the host only with the libraries it was built for",
                    path.display()
                )
            })
            .collect()
    }

    /// Every file that this installs, as this process sees it.
    pub(crate) fn places(&self) -> Vec<PathBuf> {
        let own = self.layout.own().here;
        let texts = self.texts.iter().map(|file| own.join(file.name));
        let plugins = self.plugin_names.iter().copied();
        let beside = [engine_config::NAME, ENGINE].into_iter().chain(plugins);
        texts
            .chain(beside.map(|name| self.layout.bin.here.join(name)))
            .collect()
    }
}

fn join(dir: &Dir, name: &str) -> Dir {
    Dir {
        here: dir.here.join(name),
        there: dir.there.join(name),
    }
}

fn before(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(BEFORE);
    PathBuf::from(name)
}

/// Whether it had to be made.
fn make_dir(path: &Path) -> Result<bool, InstallError> {
    match fs::create_dir(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(InstallError::write(path)(error)),
    }
}
