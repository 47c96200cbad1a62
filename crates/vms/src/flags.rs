//! The settings of the VM pools as flags. They are generated from the same table as the environment and the file, so
//! that the three never differ.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use berth_kube::Connect;
use berth_node::BootMarker;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};

use crate::Setup;
use crate::settings::keys::{KEYS, NODE_NAME, POOLS_CONFIGMAP, VM_POOL_IPS};
use crate::settings::{Settings, SettingsError};

const FILE: &str = "vm-settings";
const FILE_ENV: &str = "VM_SETTINGS";
const HEADING: &str = "VM pools";

/// The flags of the command line.
#[derive(Clone, Debug, Default)]
pub struct VmFlags {
    flags: BTreeMap<&'static str, String>,
    file: Option<PathBuf>,
}

impl Args for VmFlags {
    fn augment_args(command: Command) -> Command {
        let file = Arg::new(FILE)
            .long(FILE)
            .env(FILE_ENV)
            .value_name("FILE")
            .help("The VM pools' settings as a YAML or JSON file; edits of its pools count at once")
            .help_heading(HEADING);
        KEYS.iter().fold(command.arg(file), |command, key| {
            let default = match key.default {
                "" => String::new(),
                default => format!(" [default: {default}]"),
            };
            let arg = Arg::new(key.name)
                .long(key.name)
                .value_name("VALUE")
                .help(format!(
                    "{} [env: {}]{default}",
                    sentence(key.help),
                    key.env
                ))
                .help_heading(HEADING)
                .hide_short_help(true);
            command.arg(arg)
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|c| c.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}

impl FromArgMatches for VmFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let flag = |name: &str| matches.get_one::<String>(name).cloned();
        let flags = KEYS
            .iter()
            .filter_map(|key| Some((key.name, flag(key.name)?)));
        Ok(Self {
            flags: flags.collect(),
            file: flag(FILE).map(PathBuf::from),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl VmFlags {
    /// The VM pools, if the command line, the environment or a file configures any.
    pub fn setup(
        mut self,
        node: Option<&str>,
        cluster: Option<Connect>,
        database: &Path,
    ) -> Result<Option<Setup>, SettingsError> {
        let named = [VM_POOL_IPS, POOLS_CONFIGMAP].iter().any(|name| {
            let env = KEYS.iter().find(|key| key.name == *name).map(|key| key.env);
            let in_env = env.and_then(|env| std::env::var(env).ok());
            self.flags.contains_key(name) || in_env.is_some_and(|value| !value.trim().is_empty())
        });
        if !named && self.file.is_none() {
            return Ok(None);
        }
        if let Some(node) = node {
            self.flags.entry(NODE_NAME).or_insert_with(|| node.into());
        }
        let flags = Arc::new(self);
        let read = {
            let flags = Arc::clone(&flags);
            move || {
                Settings::from_process(|name| flags.flags.get(name).cloned(), flags.file.as_deref())
            }
        };
        let settings = read()?;
        let boot_file = settings.boot_file.clone();
        let boot_file = boot_file.unwrap_or_else(|| database.with_extension("vm-boot"));
        Ok(Some(Setup {
            settings,
            reload: Arc::new(read),
            boot: BootMarker::at(&boot_file),
            cluster: cluster.unwrap_or_default(),
        }))
    }
}
