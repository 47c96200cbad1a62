//! Where a node keeps its CNI plugins and configurations.
//!
//! A directory has two names: the one on the host, which goes into files that the host's processes read, and
//! the one that this process sees, below the host root when it runs in a container. Both whereabouts' way of
//! naming it (`/host/etc/cni/net.d`) and the host's own (`/etc/cni/net.d`) are understood.
//!
//! What is not named is searched: k3s and RKE2 first (they bring their own containerd), then the node's
//! containerd. A containerd configuration that says where its CNI directories are is believed before any habit.

use std::path::{Component, Path, PathBuf};

use crate::containerd;
use crate::error::InstallError;

const BIN: &str = "/opt/cni/bin";
const CONF: &str = "/etc/cni/net.d";
const K3S: &str = "/var/lib/rancher/k3s";
const RKE2: &str = "/var/lib/rancher/rke2";
const CONTAINERD: &str = "/etc/containerd/config.toml";
/// Where a daemon set mounts what it needs of the host.
const MOUNTED: &str = "/host";

/// A directory of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dir {
    /// As this process sees it.
    pub here: PathBuf,
    /// As the host sees it.
    pub there: PathBuf,
}

/// What the caller says of the directories.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// Where the host's root is; `/host` when that is a directory, else `/`.
    pub host_root: Option<PathBuf>,
    pub bin_dir: Option<PathBuf>,
    pub conf_dir: Option<PathBuf>,
}

/// The node's directories.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    root: PathBuf,
    pub bin: Dir,
    pub conf: Dir,
    /// Why these, for the log.
    pub because: String,
}

impl Layout {
    pub fn locate(wanted: &Wanted) -> Result<Layout, InstallError> {
        let root = match &wanted.host_root {
            Some(root) => absolute("--host-root", root)?,
            None if Path::new(MOUNTED).is_dir() => PathBuf::from(MOUNTED),
            None => PathBuf::from("/"),
        };
        let usual = Usual::of(&root)?;
        let named = |flag, wanted: &Option<PathBuf>, found: &Path| match wanted {
            Some(path) => absolute(flag, path).map(|path| of(&root, &path)),
            None => Ok(of(&root, found)),
        };
        let layout = Layout {
            bin: named("--cni-bin-dir (CNI_BIN_DIR)", &wanted.bin_dir, &usual.bin)?,
            conf: named(
                "--cni-conf-dir (CNI_CONF_DIR)",
                &wanted.conf_dir,
                &usual.conf,
            )?,
            because: match (&wanted.bin_dir, &wanted.conf_dir) {
                (Some(_), Some(_)) => "both directories were named".to_owned(),
                _ => usual.because,
            },
            root,
        };
        for (dir, what, flag) in [
            (&layout.bin, "CNI plugins", "--cni-bin-dir (CNI_BIN_DIR)"),
            (
                &layout.conf,
                "CNI configurations",
                "--cni-conf-dir (CNI_CONF_DIR)",
            ),
        ] {
            if !dir.here.is_dir() {
                return Err(InstallError::Settings(format!(
                    "{} is no directory, and this node's {what} should be there ({}): mount it, create it, or name \
                     another one with {flag}",
                    dir.here.display(),
                    layout.because
                )));
            }
        }
        Ok(layout)
    }

    /// What this process calls a file of the host.
    pub fn here(&self, there: &Path) -> PathBuf {
        of(&self.root, there).here
    }

    /// Where Berth keeps its own files among the configurations.
    pub fn own(&self) -> Dir {
        Dir {
            here: self.conf.here.join("whereabouts.d"),
            there: self.conf.there.join("whereabouts.d"),
        }
    }
}

/// The directories of a node that the caller did not name.
struct Usual {
    bin: PathBuf,
    conf: PathBuf,
    because: String,
}

impl Usual {
    fn of(root: &Path) -> Result<Usual, InstallError> {
        let at = |path: &str| of(root, Path::new(path)).here;
        let rancher = [("k3s", K3S), ("RKE2", RKE2)]
            .into_iter()
            .filter(|(_, home)| at(&format!("{home}/agent")).is_dir())
            .map(|(name, home)| {
                let config = format!("{home}/agent/etc/containerd/config.toml");
                Ok(match containerd::cni(&at(&config))? {
                    Some(cni) => Usual::said_by(&config, cni),
                    None if home == K3S => Usual::k3s(at),
                    None => Usual::plain(&format!("{name} is on this node and uses them")),
                })
            })
            .collect::<Result<Vec<Usual>, InstallError>>()?;
        let mut rancher = rancher.into_iter();
        match (rancher.next(), rancher.next()) {
            (Some(first), Some(second))
                if (&first.bin, &first.conf) != (&second.bin, &second.conf) =>
            {
                Err(InstallError::Settings(format!(
                    "both k3s and RKE2 left their files on this node ({K3S}/agent, {RKE2}/agent): say which \
                     directories are in use with --cni-bin-dir and --cni-conf-dir"
                )))
            }
            (Some(only), _) => Ok(only),
            (None, _) => Ok(match containerd::cni(&at(CONTAINERD))? {
                Some(cni) => Usual::said_by(CONTAINERD, cni),
                None => Usual::plain("they are the usual ones"),
            }),
        }
    }

    fn plain(because: &str) -> Usual {
        Usual {
            bin: BIN.into(),
            conf: CONF.into(),
            because: because.to_owned(),
        }
    }

    /// What the configuration does not say is at containerd's default.
    fn said_by(config: &str, cni: containerd::Cni) -> Usual {
        Usual {
            bin: cni.bin_dir.unwrap_or_else(|| BIN.into()),
            conf: cni.conf_dir.unwrap_or_else(|| CONF.into()),
            because: format!("{config} says so"),
        }
    }

    /// k3s has a directory for added plugins since the releases of October 2024; before, they went among its own,
    /// where every upgrade of k3s leaves them behind.
    fn k3s(at: impl Fn(&str) -> PathBuf) -> Usual {
        let lasting = format!("{K3S}/data/cni");
        let bin = match at(&lasting).is_dir() {
            true => lasting,
            false => format!("{K3S}/data/current/bin"),
        };
        Usual {
            bin: bin.into(),
            conf: format!("{K3S}/agent/etc/cni/net.d").into(),
            because: "k3s is on this node and uses them".to_owned(),
        }
    }
}

fn of(root: &Path, path: &Path) -> Dir {
    let below = |base: &Path| path.strip_prefix(base).map(Path::to_owned).ok();
    let slash = Path::new("/");
    match below(root) {
        Some(rest) => Dir {
            here: path.to_owned(),
            there: slash.join(rest),
        },
        None => Dir {
            here: root.join(below(slash).unwrap_or_else(|| path.to_owned())),
            there: path.to_owned(),
        },
    }
}

/// The path without `.`, doubled or trailing slashes: it is compared with others and written into files.
fn absolute(flag: &str, path: &Path) -> Result<PathBuf, InstallError> {
    if !path.is_absolute() || path.components().any(|part| part == Component::ParentDir) {
        return Err(InstallError::Settings(format!(
            "{flag} is {:?}; it must be an absolute path without `..`, like /opt/cni/bin",
            path.display().to_string()
        )));
    }
    Ok(path.components().collect())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn mk_host(dirs: &[&str]) -> tempfile::TempDir {
        let host = tempfile::tempdir().unwrap();
        for dir in ["opt/cni/bin", "etc/cni/net.d"].iter().chain(dirs) {
            fs::create_dir_all(host.path().join(dir)).unwrap();
        }
        host
    }

    fn locate(host: &tempfile::TempDir) -> (String, String) {
        let layout = Layout::locate(&Wanted {
            host_root: Some(host.path().to_owned()),
            ..Wanted::default()
        })
        .unwrap();
        let text = |dir: &Dir| dir.there.display().to_string();
        (text(&layout.bin), text(&layout.conf))
    }

    fn usual() -> (String, String) {
        (BIN.to_owned(), CONF.to_owned())
    }

    #[test]
    fn a_path_below_the_host_root_and_a_path_of_the_host_are_the_same() {
        let dir = of(Path::new("/host"), Path::new("/host/etc/cni/net.d"));
        assert_eq!(dir, of(Path::new("/host"), Path::new("/etc/cni/net.d")));
        assert_eq!(dir.there, Path::new("/etc/cni/net.d"));
        let dir = of(Path::new("/"), Path::new("/etc/cni/net.d"));
        assert_eq!(dir.here, dir.there);
    }

    #[test]
    fn paths_that_lead_elsewhere_are_refused() {
        for path in ["opt/cni/bin", "/opt/../etc", ""] {
            let wanted = Wanted {
                bin_dir: Some(path.into()),
                ..Wanted::default()
            };
            let error = Layout::locate(&wanted).unwrap_err();
            assert!(error.to_string().contains("CNI_BIN_DIR"), "{error}");
        }
        assert_eq!(
            absolute("", Path::new("/host/opt//cni/bin/")).unwrap(),
            Path::new("/host/opt/cni/bin")
        );
    }

    #[test]
    fn a_plain_node_has_the_usual_directories() {
        assert_eq!(locate(&mk_host(&[])), usual());
    }

    #[test]
    fn k3s_has_directories_of_its_own() {
        let conf = "var/lib/rancher/k3s/agent/etc/cni/net.d";
        let old = mk_host(&[conf, "var/lib/rancher/k3s/data/current/bin"]);
        let there = |bin: &str| (format!("{K3S}/data/{bin}"), format!("/{conf}"));
        assert_eq!(locate(&old), there("current/bin"));
        let new = mk_host(&[
            conf,
            "var/lib/rancher/k3s/data/current/bin",
            "var/lib/rancher/k3s/data/cni",
        ]);
        assert_eq!(locate(&new), there("cni"));
    }

    #[test]
    fn rke2_uses_the_usual_ones() {
        assert_eq!(locate(&mk_host(&["var/lib/rancher/rke2/agent"])), usual());
    }

    #[test]
    fn containerd_s_own_word_counts_more_than_any_habit() {
        for config in [
            "var/lib/rancher/k3s/agent/etc/containerd/config.toml",
            "var/lib/rancher/rke2/agent/etc/containerd/config.toml",
            "etc/containerd/config.toml",
        ] {
            let dir = Path::new(config).parent().unwrap().to_str().unwrap();
            let host = mk_host(&[dir, "srv/plugins", "srv/networks"]);
            let write = |text: &str| fs::write(host.path().join(config), text).unwrap();
            write(
                "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".cni]\n  bin_dir = \"/srv/plugins\"\n  conf_dir = \"/srv/networks\"\n",
            );
            assert_eq!(
                locate(&host),
                ("/srv/plugins".to_owned(), "/srv/networks".to_owned()),
                "{config}"
            );
            // k3s without flannel has no such section, and its containerd looks where any other does.
            write("version = 2\n");
            assert_eq!(locate(&host), usual(), "{config}");
        }
    }

    #[test]
    fn two_distributions_at_once_are_a_question_for_a_person() {
        let host = mk_host(&[
            "var/lib/rancher/k3s/agent/etc/cni/net.d",
            "var/lib/rancher/k3s/data/cni",
            "var/lib/rancher/rke2/agent",
        ]);
        let error = Layout::locate(&Wanted {
            host_root: Some(host.path().to_owned()),
            ..Wanted::default()
        });
        assert!(error.unwrap_err().to_string().contains("--cni-bin-dir"));
    }

    #[test]
    fn a_directory_that_is_not_there_is_named() {
        let host = tempfile::tempdir().unwrap();
        let error = Layout::locate(&Wanted {
            host_root: Some(host.path().to_owned()),
            ..Wanted::default()
        })
        .unwrap_err()
        .to_string();
        assert!(
            error.contains("/opt/cni/bin is no directory") && error.contains("CNI_BIN_DIR"),
            "{error}"
        );
    }
}
