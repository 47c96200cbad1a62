//! Settings from four layers: flags over environment over file over defaults.
//!
//! Guarantees that a value is always reported with where it came from, and that an unknown name
//! is refused instead of ignored.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde_json::Value;
use thiserror::Error;

use super::keys::{self, KEYS};

/// A settings problem, with the setting, its value and its origin.
#[derive(Debug, Error)]
pub enum SettingsError {
    #[error("{origin}: {name}: {why}")]
    Value {
        origin: Origin,
        name: String,
        why: String,
    },
    #[error("{origin}: there is no setting {name:?}; there are {known}")]
    Unknown {
        origin: Origin,
        name: String,
        known: String,
    },
    #[error("can't read the settings file {path:?}")]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("the settings file {path:?} is no YAML: {why}")]
    Syntax { path: PathBuf, why: String },
    #[error("{0}")]
    Together(String),
    #[error("unable to determine node name: set NODE_NAME, or mount it as /etc/podinfo/nodename")]
    NoNodeName,
}

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    Flag,
    Environment(&'static str),
    File(PathBuf),
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag => f.write_str("flag"),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Default => f.write_str("default"),
        }
    }
}

/// A pool as the file lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ListedPool {
    pub name: String,
    pub ips: String,
    pub configmap: Option<String>,
}

/// All layers, the strongest first.
#[derive(Debug, Clone, Default)]
pub struct Layers {
    values: Vec<BTreeMap<&'static str, (String, Origin)>>,
    pub(super) pools: Vec<ListedPool>,
    pub(super) file: Option<PathBuf>,
}

impl Layers {
    /// `flags` and `env` return a value by name; the file is optional.
    pub fn read(
        flags: impl Fn(&str) -> Option<String>,
        env: impl Fn(&str) -> Option<String>,
        file: Option<&Path>,
    ) -> Result<Self, SettingsError> {
        let mut layers = Self::default();
        let mut from_flags = BTreeMap::new();
        let mut from_env = BTreeMap::new();
        for key in KEYS {
            if let Some(value) = flags(key.name) {
                from_flags.insert(key.name, (value, Origin::Flag));
            }
            // An empty variable counts as unset: a manifest left it out.
            if let Some(value) = env(key.env).filter(|value| !value.trim().is_empty()) {
                from_env.insert(key.name, (value, Origin::Environment(key.env)));
            }
        }
        layers.values = vec![from_flags, from_env];
        if let Some(path) = file {
            let text = std::fs::read_to_string(path).map_err(|source| SettingsError::Read {
                path: path.into(),
                source,
            })?;
            layers.read_file(path, &text)?;
        }
        Ok(layers)
    }

    fn read_file(&mut self, path: &Path, text: &str) -> Result<(), SettingsError> {
        let origin = || Origin::File(path.into());
        let parsed: Value = if text.trim().is_empty() {
            Value::Object(serde_json::Map::new())
        } else {
            serde_saphyr::from_str(text).map_err(|error| SettingsError::Syntax {
                path: path.into(),
                why: error.to_string(),
            })?
        };
        let Value::Object(fields) = parsed else {
            return Err(SettingsError::Syntax {
                path: path.into(),
                why: "settings are `name: value` pairs".into(),
            });
        };
        let mut values = BTreeMap::new();
        for (name, value) in fields {
            if name == "pools" {
                self.pools = listed_pools(&origin(), &value)?;
                continue;
            }
            let key = keys::find(&name).ok_or_else(|| unknown(origin(), &name))?;
            let text = scalar(&value).ok_or_else(|| SettingsError::Value {
                origin: origin(),
                name: name.clone(),
                why: format!("{value} is neither a value nor a list of values"),
            })?;
            values.insert(key.name, (text, origin()));
        }
        self.values.push(values);
        self.file = Some(path.into());
        Ok(())
    }

    /// The strongest layer's value, or the default; `None` if there is neither.
    pub(super) fn get(&self, name: &'static str) -> Option<(String, Origin)> {
        let set = self.values.iter().find_map(|layer| layer.get(name));
        set.cloned().or_else(|| {
            let default = keys::find(name)?.default;
            (!default.is_empty()).then(|| (default.into(), Origin::Default))
        })
    }

    /// The value read by `parse`, whose error is reported with the setting's name and origin.
    pub(super) fn parse<T>(
        &self,
        name: &'static str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Option<T>, SettingsError> {
        let Some((text, origin)) = self.get(name) else {
            return Ok(None);
        };
        let parsed = parse(text.trim()).map_err(|why| SettingsError::Value {
            origin,
            name: name.into(),
            why,
        })?;
        Ok(Some(parsed))
    }
}

fn unknown(origin: Origin, name: &str) -> SettingsError {
    let known: Vec<&str> = KEYS.iter().map(|key| key.name).chain(["pools"]).collect();
    SettingsError::Unknown {
        origin,
        name: name.into(),
        known: known.join(", "),
    }
}

/// A value as the text that a flag would have; a list is joined with commas.
fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        Value::Array(items) => {
            let items: Option<Vec<String>> = items.iter().map(scalar).collect();
            Some(items?.join(","))
        }
        Value::Null | Value::Object(_) => None,
    }
}

fn listed_pools(origin: &Origin, value: &Value) -> Result<Vec<ListedPool>, SettingsError> {
    let wrong = |place: usize, why: String| SettingsError::Value {
        origin: origin.clone(),
        name: format!("pools[{place}]"),
        why,
    };
    let Value::Array(items) = value else {
        return Err(SettingsError::Value {
            origin: origin.clone(),
            name: "pools".into(),
            why: "is no list".into(),
        });
    };
    let mut pools = Vec::new();
    for (place, item) in items.iter().enumerate() {
        let Value::Object(fields) = item else {
            return Err(wrong(place, format!("{item} has no name and no ips")));
        };
        let (mut name, mut ips, mut configmap) = (None, None, None);
        for (field, value) in fields {
            let slot = match field.as_str() {
                "name" => &mut name,
                "ips" => &mut ips,
                "configmap" => &mut configmap,
                _ => {
                    let why =
                        format!("there is no field {field:?}; there are name, ips, configmap");
                    return Err(wrong(place, why));
                }
            };
            *slot = Some(
                scalar(value)
                    .ok_or_else(|| wrong(place, format!("{field}: {value} is no value")))?,
            );
        }
        pools.push(ListedPool {
            name: name.ok_or_else(|| wrong(place, "name is missing".into()))?,
            ips: ips.ok_or_else(|| wrong(place, "ips is missing".into()))?,
            configmap,
        });
    }
    Ok(pools)
}
