//! Reads from containerd's configuration where it searches CNI plugins and configurations.
//!
//! Reads the tables `plugins.*.cni`, and in them `bin_dir`, `bin_dirs` (the first counts) and `conf_dir`. Does not follow
//! `imports`. A file that is not TOML is an error: containerd would not start with it either.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use crate::error::InstallError;

/// What the file says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Cni {
    pub bin_dir: Option<PathBuf>,
    pub conf_dir: Option<PathBuf>,
}

/// Reads the file; none if it is not there.
pub(crate) fn cni(path: &Path) -> Result<Option<Cni>, InstallError> {
    let unreadable = |source| InstallError::Source {
        path: path.to_owned(),
        advice: "it would tell where containerd looks for plugins; name the directories with \
                 --cni-bin-dir and --cni-conf-dir instead",
        source,
    };
    match fs::read_to_string(path) {
        Ok(text) => {
            let read =
                read(&text).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error));
            read.map(Some).map_err(unreadable)
        }
        Err(error) if absent(&error) => Ok(None),
        Err(source) => Err(unreadable(source)),
    }
}

fn absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

fn read(text: &str) -> Result<Cni, toml::de::Error> {
    let document: Table = text.parse()?;
    let plugins = document.get("plugins").and_then(Value::as_table);
    let tables = plugins
        .into_iter()
        .flat_map(Table::values)
        .filter_map(|plugin| plugin.get("cni")?.as_table());
    let mut found = Cni::default();
    for cni in tables {
        let bin_dirs = cni.get("bin_dirs").and_then(Value::as_array);
        let first = bin_dirs.and_then(|directories| directories.first());
        let bin_dir = directory(cni.get("bin_dir")).or_else(|| directory(first));
        found.bin_dir = bin_dir.or(found.bin_dir);
        found.conf_dir = directory(cni.get("conf_dir")).or(found.conf_dir);
    }
    Ok(found)
}

fn directory(value: Option<&Value>) -> Option<PathBuf> {
    let text = value?.as_str()?;
    (!text.is_empty()).then(|| PathBuf::from(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk(bin: &str, conf: &str) -> Cni {
        let some = |text: &str| (!text.is_empty()).then(|| PathBuf::from(text));
        Cni {
            bin_dir: some(bin),
            conf_dir: some(conf),
        }
    }

    #[test]
    fn every_version_and_every_spelling_of_toml_is_understood() {
        let two = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".cni]\n  bin_dir = \"/a\"\n  conf_dir = \"/b\"\n";
        let three = "[plugins.'io.containerd.cri.v1.runtime'.cni]\nbin_dirs = ['/a', '/c']\nconf_dir = '/b' # ours\n";
        let dotted = "[plugins.'io.containerd.cri.v1.runtime']\ncni.bin_dirs = [\n  '/a',\n]\ncni.conf_dir = '/b'\n";
        let inline =
            "[plugins.\"io.containerd.grpc.v1.cri\"]\ncni = { bin_dir = '/a', conf_dir = '/b' }\n";
        for text in [two, three, dotted, inline] {
            assert_eq!(read(text), Ok(mk("/a", "/b")), "{text}");
        }
        let one = "[plugins.cri.cni]\nbin_dir=\"/a\"\n";
        assert_eq!(read(one), Ok(mk("/a", "")));
    }

    #[test]
    fn other_tables_and_empty_values_count_for_nothing() {
        for text in [
            "bin_dir = \"/a\"\n",
            "[plugins.cni.other]\nbin_dir = \"/a\"\n",
            "[plugins.cri.cni]\n[x]\nbin_dir = \"/a\"\n",
            "[plugins.cri.cni]\n# bin_dir = \"/a\"\nbin_dir = \"\"\nbin_dirs = []\nconf_dir = 7\n",
            "",
        ] {
            assert_eq!(read(text), Ok(Cni::default()), "{text}");
        }
    }

    #[test]
    fn a_file_that_is_not_toml_is_named_with_its_line() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config.toml");
        assert_eq!(cni(&path).unwrap(), None, "it is not there");
        fs::write(&path, "[plugins.cri.cni]\nbin_dir\n").unwrap();
        let error = cni(&path).unwrap_err();
        assert!(error.to_string().contains("config.toml"), "{error}");
        let InstallError::Source { source, .. } = error else {
            panic!("{error:?}");
        };
        assert!(source.to_string().contains("line 2"), "{source}");
    }
}
