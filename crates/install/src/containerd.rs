//! Where containerd looks for CNI plugins and configurations, out of its configuration file.
//!
//! Reads the few keys it is after and no more of TOML than they need: a section whose name ends in `cni`, and in
//! it `bin_dir`, `bin_dirs` (the first counts) and `conf_dir`. Does not follow `imports`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::error::InstallError;

/// What the file says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Cni {
    pub bin_dir: Option<PathBuf>,
    pub conf_dir: Option<PathBuf>,
}

/// Reads the file; none if it is not there.
pub(crate) fn cni(path: &Path) -> Result<Option<Cni>, InstallError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(read(&text))),
        Err(error) if absent(&error) => Ok(None),
        Err(source) => Err(InstallError::Source {
            path: path.to_owned(),
            advice: "it would tell where containerd looks for plugins; name the directories with \
                     --cni-bin-dir and --cni-conf-dir instead",
            source,
        }),
    }
}

fn absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

fn read(text: &str) -> Cni {
    let mut found = Cni::default();
    let mut inside = false;
    for line in text.lines() {
        let line = line.trim();
        if let Some(header) = line.strip_prefix('[') {
            let name = header.split(']').next().unwrap_or_default();
            let last = name.rsplit('.').next().unwrap_or_default();
            inside = last.trim().trim_matches(['"', '\'']) == "cni";
            continue;
        }
        let Some((key, value)) = line.split_once('=').filter(|_| inside) else {
            continue;
        };
        let value = quoted(value).map(PathBuf::from);
        match key.trim() {
            "bin_dir" | "bin_dirs" => found.bin_dir = value.or(found.bin_dir),
            "conf_dir" => found.conf_dir = value.or(found.conf_dir),
            _ => {}
        }
    }
    found
}

/// The first string in a value; none if it has none or an empty one.
fn quoted(value: &str) -> Option<&str> {
    let start = value.find(['"', '\''])?;
    let quote = value.get(start..=start)?;
    let rest = value.get(start + 1..)?;
    let text = rest.get(..rest.find(quote)?)?;
    (!text.is_empty()).then_some(text)
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
    fn versions_two_and_three_are_understood() {
        let two = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".cni]\n  bin_dir = \"/a\"\n  conf_dir = \"/b\"\n";
        assert_eq!(read(two), mk("/a", "/b"));
        let three = "[plugins.'io.containerd.cri.v1.runtime'.cni]\nbin_dirs = ['/a', '/c']\nconf_dir = '/b' # ours\n";
        assert_eq!(read(three), mk("/a", "/b"));
        let one = "[plugins.cri.cni]\nbin_dir=\"/a\"\n";
        assert_eq!(read(one), mk("/a", ""));
    }

    #[test]
    fn other_sections_and_odd_lines_count_for_nothing() {
        for text in [
            "bin_dir = \"/a\"\n",
            "[plugins.cni.other]\nbin_dir = \"/a\"\n",
            "[plugins.cri.cni]\n[x]\nbin_dir = \"/a\"\n",
            "[plugins.cri.cni]\n# bin_dir = \"/a\"\nbin_dir\nbin_dir = \nbin_dir = \"\nbin_dir = \"\"\n",
            "[",
            "",
        ] {
            assert_eq!(read(text), Cni::default(), "{text}");
        }
    }
}
