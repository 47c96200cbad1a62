//! The flat file: a bare `ipam` object with a node's defaults.
//!
//! It is optional. Where one exists and cannot be read, that is an error: silently serving without the node's
//! defaults could send addresses to another store.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use berth_cni::NetConf;
use berth_cni::fields::{Fields, Path as FieldPath};
use berth_core::Warning;
use serde_json::Value;

use super::ConfigError;

/// Where whereabouts looks, in its order, and then where `berth install` puts it on k3s. Before these comes the inline
/// `configuration_path`.
pub const PLACES: [&str; 4] = [
    "/etc/kubernetes/cni/net.d/whereabouts.d/whereabouts.conf",
    "/etc/cni/net.d/whereabouts.d/whereabouts.conf",
    "/host/etc/cni/net.d/whereabouts.d/whereabouts.conf",
    "/var/lib/rancher/k3s/agent/etc/cni/net.d/whereabouts.d/whereabouts.conf",
];

/// Its name in a directory.
const NAME: &str = "whereabouts.conf";

/// A flat file that was found.
#[derive(Debug, Clone, PartialEq)]
pub struct FlatFile {
    pub path: PathBuf,
    pub object: Value,
}

/// Reads the first of the `configuration_path` of `conf` and `places` that exists.
pub fn find<P: AsRef<Path>>(conf: &NetConf, places: &[P]) -> Result<Option<FlatFile>, ConfigError> {
    let inline = configuration_path(conf)?;
    let candidates = inline
        .into_iter()
        .chain(places.iter().map(|place| place.as_ref().to_owned()));
    for mut path in candidates {
        if path.is_dir() {
            path.push(NAME);
        }
        if let Some(file) = read(&path)? {
            return Ok(Some(file));
        }
    }
    Ok(None)
}

/// Where the configuration says that the node's files are.
pub fn configuration_path(conf: &NetConf) -> Result<Option<PathBuf>, ConfigError> {
    let Some(ipam) = &conf.ipam else {
        return Ok(None);
    };
    let path = FieldPath::Root("ipam");
    let text = Fields::of(&path, ipam)?.text_or_empty("configuration_path")?;
    Ok((!text.is_empty()).then(|| PathBuf::from(text)))
}

/// What is to be said of a `configuration_path` at which `found` was not: whereabouts looks elsewhere and says nothing.
pub(super) fn unfound(
    conf: &NetConf,
    found: Option<&FlatFile>,
) -> Result<Option<Warning>, ConfigError> {
    let said = configuration_path(conf)?.filter(|path| {
        let is_there = |found: &FlatFile| found.path == *path || found.path == path.join(NAME);
        !found.is_some_and(is_there)
    });
    Ok(said.map(|path| Warning {
        field: "configuration_path",
        value: path.display().to_string(),
        why: match found {
            Some(found) => format!("no flat file is there; {} is used", found.path.display()),
            None => "no flat file is there, nor at any of the usual places".to_owned(),
        },
    }))
}

/// The directories that may have the node's name in a file `nodename`, the likeliest first: whereabouts has it in the
/// `configuration_path`, its installer beside the flat file.
pub fn homes(conf: &NetConf, file: Option<&FlatFile>) -> Vec<PathBuf> {
    let inline = configuration_path(conf).ok().flatten();
    let said = file
        .and_then(|file| file.object.get("configuration_path")?.as_str())
        .filter(|text| !text.is_empty())
        .map(PathBuf::from);
    let beside = file.and_then(|file| file.path.parent().map(Path::to_owned));
    inline.into_iter().chain(said).chain(beside).collect()
}

fn read(path: &Path) -> Result<Option<FlatFile>, ConfigError> {
    let fail = |why: String| ConfigError::Flat {
        path: path.display().to_string(),
        why,
    };
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(fail(format!("it cannot be read: {error}"))),
    };
    let object =
        serde_json::from_str(&text).map_err(|error| fail(format!("it is not JSON: {error}")))?;
    Ok(Some(FlatFile {
        path: path.to_owned(),
        object,
    }))
}
