//! The flat file (a bare `ipam` object with a node's defaults), and which files of the node a network definition may
//! name.
//!
//! A definition is written by a tenant. Where the node's cluster is known (a flag, an installation, the marker of an
//! earlier agent, the node's own flat file), the paths that a definition names are ignored. Elsewhere they are read
//! only from below the administrator's directories, and only if root owns the file. Nothing but a regular file of at
//! most 64 KiB is read.
//!
//! The flat file is optional. Where the node has one that cannot be read, that is an error: serving without the node's
//! defaults could send addresses to another store. These calls block.

use std::path::{Component, Path, PathBuf};

use berth_cni::NetConf;
use berth_cni::fields::{FieldError, Fields, Path as FieldPath};
use berth_core::Warning;
use berth_kube::files::{self, CONFIGURATION_LIMIT, Owner};
use serde_json::Value;

use super::ConfigError;

/// Where whereabouts searches, in its order, and then where `berth install` puts it on k3s.
pub const PLACES: [&str; 4] = [
    "/etc/kubernetes/cni/net.d/whereabouts.d/whereabouts.conf",
    "/etc/cni/net.d/whereabouts.d/whereabouts.conf",
    "/host/etc/cni/net.d/whereabouts.d/whereabouts.conf",
    "/var/lib/rancher/k3s/agent/etc/cni/net.d/whereabouts.d/whereabouts.conf",
];

/// The directories of CNI configurations: below these a definition may name files, unless the administrator names
/// others.
pub const DIRECTORIES: [&str; 5] = [
    "/etc/kubernetes/cni/net.d",
    "/etc/cni/net.d",
    "/host/etc/cni/net.d",
    "/var/lib/rancher/k3s/agent/etc/cni/net.d",
    "/var/lib/rancher/rke2/agent/etc/cni/net.d",
];

/// Its name in a directory.
pub const NAME: &str = "whereabouts.conf";

const CONFIGURATION_PATH: &str = "configuration_path";
const KUBECONFIG: &str = "kubernetes.kubeconfig";

/// A flat file that was found.
#[derive(Debug, Clone, PartialEq)]
pub struct FlatFile {
    pub path: PathBuf,
    pub object: Value,
}

/// The paths that a network definition names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NamedPaths {
    pub configuration: Option<PathBuf>,
    pub kubeconfig: Option<PathBuf>,
}

/// The node's files, as far as a network's configuration is completed by them.
#[derive(Debug, Clone)]
pub struct NodeFiles {
    /// Where the flat file may be, the likeliest first.
    places: Vec<PathBuf>,
    /// Below which a definition may name files.
    directories: Vec<PathBuf>,
    cluster_known: bool,
}

/// The node's files and those that a definition names, as far as they are used.
#[derive(Debug, Default)]
pub struct Found {
    pub flat: Option<FlatFile>,
    /// The cluster of the network, where neither a flag nor the process's environment names it.
    pub kubeconfig: Option<PathBuf>,
    pub warnings: Vec<Warning>,
    /// Why no address is allocated. They do not stop a DEL.
    pub faults: Vec<ConfigError>,
}

impl NamedPaths {
    pub fn of(conf: &NetConf) -> Result<NamedPaths, ConfigError> {
        let Some(ipam) = &conf.ipam else {
            return Ok(NamedPaths::default());
        };
        let root = FieldPath::Root("ipam");
        let text = Fields::of(&root, ipam)?.text_or_empty(CONFIGURATION_PATH)?;
        Ok(NamedPaths {
            configuration: (!text.is_empty()).then(|| PathBuf::from(text)),
            kubeconfig: kubeconfig_of(&root, ipam)?,
        })
    }

    pub fn is_empty(&self) -> bool {
        self.each().next().is_none()
    }

    fn each(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let configuration = self.configuration.as_deref();
        let kubeconfig = self.kubeconfig.as_deref();
        let configuration = configuration.map(|path| (CONFIGURATION_PATH, path));
        configuration
            .into_iter()
            .chain(kubeconfig.map(|path| (KUBECONFIG, path)))
    }
}

impl NodeFiles {
    /// A node whose flat file is at one of `places`. A definition may name files below `directories`.
    pub fn new(places: Vec<PathBuf>, directories: Vec<PathBuf>) -> NodeFiles {
        NodeFiles {
            places,
            directories,
            cluster_known: false,
        }
    }

    /// A node, or a process of the cluster, for which a definition names no files at all.
    pub fn of_known_cluster(places: Vec<PathBuf>) -> NodeFiles {
        NodeFiles::new(places, Vec::new()).with_known_cluster(true)
    }

    #[must_use]
    pub fn with_known_cluster(mut self, known: bool) -> NodeFiles {
        self.cluster_known |= known;
        self
    }

    /// The node's own flat file.
    pub fn flat(&self) -> Result<Option<FlatFile>, ConfigError> {
        for place in &self.places {
            if let Some(file) = read(place, Owner::Anybody)? {
                return Ok(Some(file));
            }
        }
        Ok(None)
    }

    /// The directories that may have the node's name in a file `nodename`, the likeliest first: the one that the
    /// node's flat file names, and the flat file's own. A definition can't name one.
    pub fn homes(&self) -> Vec<PathBuf> {
        let Ok(Some(file)) = self.flat() else {
            return Vec::new();
        };
        let configured = file.object.get(CONFIGURATION_PATH).and_then(Value::as_str);
        let configured = configured
            .filter(|text| !text.is_empty())
            .map(PathBuf::from);
        let beside = file.path.parent().map(Path::to_owned);
        configured.into_iter().chain(beside).collect()
    }

    /// Reads the node's flat file, and what `named` names as far as it is allowed here.
    pub fn find(&self, named: &NamedPaths) -> Result<Found, ConfigError> {
        let mut found = Found {
            flat: self.flat()?,
            ..Found::default()
        };
        found.kubeconfig = kubeconfig_in(found.flat.as_ref())?;
        if self.cluster_known || found.kubeconfig.is_some() {
            let ignored = named
                .each()
                .filter(|(_, path)| !self.is_installed(path, &found));
            let ignored: Vec<Warning> = ignored
                .map(|(field, path)| ignored_path(field, path))
                .collect();
            found.warnings.extend(ignored);
            return Ok(found);
        }
        if let Some(path) = &named.configuration {
            match self.named_flat(path) {
                Ok(Some((file, kubeconfig))) => {
                    found.kubeconfig = kubeconfig;
                    found.flat = Some(file);
                }
                Ok(None) => found.warnings.push(unfound(path, found.flat.as_ref())),
                Err(fault) => found.faults.push(fault),
            }
        }
        if let Some(path) = &named.kubeconfig {
            match self.named_kubeconfig(path) {
                Ok(()) => found.kubeconfig = Some(path.clone()),
                Err(fault) => found.faults.push(fault),
            }
        }
        Ok(found)
    }

    /// Whether the path is one of those that the installer of this node, or of whereabouts, writes.
    fn is_installed(&self, path: &Path, found: &Found) -> bool {
        let flat = found.flat.iter().map(|file| file.path.as_path());
        let places = self.places.iter().map(PathBuf::as_path).chain(flat);
        let mut homes = places.filter_map(Path::parent);
        is_plain(path)
            && (homes.any(|home| path.starts_with(home))
                || found.kubeconfig.as_deref() == Some(path))
    }

    /// The flat file that a definition names, and the kubeconfig in it.
    fn named_flat(&self, path: &Path) -> Result<Option<(FlatFile, Option<PathBuf>)>, ConfigError> {
        self.allow(CONFIGURATION_PATH, path)?;
        let Some(file) = read(path, Owner::Root)? else {
            return Ok(None);
        };
        let kubeconfig = kubeconfig_in(Some(&file))?;
        Ok(Some((file, kubeconfig)))
    }

    fn named_kubeconfig(&self, path: &Path) -> Result<(), ConfigError> {
        self.allow(KUBECONFIG, path)?;
        let refuse = |why: String| ConfigError::Path {
            field: KUBECONFIG,
            path: path.display().to_string(),
            why,
        };
        match files::is_readable(path, CONFIGURATION_LIMIT, Owner::Root) {
            Ok(true) => Ok(()),
            Ok(false) => Err(refuse("there is no such file".to_owned())),
            Err(error) => Err(refuse(error.to_string())),
        }
    }

    fn allow(&self, field: &'static str, path: &Path) -> Result<(), ConfigError> {
        let mut directories = self.directories.iter();
        if is_plain(path) && directories.any(|directory| path.starts_with(directory)) {
            return Ok(());
        }
        let directories: Vec<String> = self
            .directories
            .iter()
            .map(|directory| directory.display().to_string())
            .collect();
        Err(ConfigError::Path {
            field,
            path: path.display().to_string(),
            why: format!(
                "a network definition may name files below {} only; the administrator names others with \
                 BERTH_DEFINITION_PATHS, or names the node's cluster with --kubeconfig",
                directories.join(", ")
            ),
        })
    }
}

/// Whether the path is absolute and has no `..`.
fn is_plain(path: &Path) -> bool {
    let down = |part: Component<'_>| !matches!(part, Component::ParentDir);
    path.is_absolute() && path.components().all(down)
}

fn ignored_path(field: &'static str, path: &Path) -> Warning {
    Warning {
        field,
        value: path.display().to_string(),
        why: "the node's cluster is known, and a network definition names no other; remove the key"
            .to_owned(),
    }
}

/// The warning about a `configuration_path` without a file: whereabouts searches elsewhere without one.
fn unfound(path: &Path, flat: Option<&FlatFile>) -> Warning {
    Warning {
        field: CONFIGURATION_PATH,
        value: path.display().to_string(),
        why: match flat {
            Some(found) => format!("no flat file is there; {} is used", found.path.display()),
            None => "no flat file is there, nor at any of the usual places".to_owned(),
        },
    }
}

fn kubeconfig_in(file: Option<&FlatFile>) -> Result<Option<PathBuf>, ConfigError> {
    let Some(file) = file else {
        return Ok(None);
    };
    kubeconfig_of(&FieldPath::Root("flat file"), &file.object).map_err(|error| ConfigError::Flat {
        path: file.path.display().to_string(),
        why: error.to_string(),
    })
}

fn kubeconfig_of(path: &FieldPath<'_>, object: &Value) -> Result<Option<PathBuf>, FieldError> {
    let fields = Fields::of(path, object)?;
    let Some(kubernetes) = fields.get("kubernetes") else {
        return Ok(None);
    };
    let inner = FieldPath::Key(path, "kubernetes");
    let text = Fields::of(&inner, kubernetes)?.text_or_empty("kubeconfig")?;
    Ok((!text.is_empty()).then(|| PathBuf::from(text)))
}

/// The flat file at `path`, or in that directory.
fn read(path: &Path, owner: Owner) -> Result<Option<FlatFile>, ConfigError> {
    let path = match path.is_dir() {
        true => path.join(NAME),
        false => path.to_owned(),
    };
    let fail = |why: String| ConfigError::Flat {
        path: path.display().to_string(),
        why,
    };
    let text = files::read(&path, CONFIGURATION_LIMIT, owner);
    let Some(text) = text.map_err(|error| fail(format!("it cannot be read: {error}")))? else {
        return Ok(None);
    };
    let object =
        serde_json::from_str(&text).map_err(|error| fail(format!("it is not JSON: {error}")))?;
    Ok(Some(FlatFile { path, object }))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;

    struct Node {
        dir: tempfile::TempDir,
    }

    impl Node {
        fn new() -> Node {
            let dir = tempfile::tempdir().unwrap();
            for home in ["net.d/whereabouts.d", "net.d/other", "elsewhere"] {
                fs::create_dir_all(dir.path().join(home)).unwrap();
            }
            Node { dir }
        }

        fn at(&self, path: &str) -> PathBuf {
            self.dir.path().join(path)
        }

        fn files(&self) -> NodeFiles {
            let place = self.at("net.d/whereabouts.d").join(NAME);
            NodeFiles::new(vec![place], vec![self.at("net.d")])
        }

        fn write(&self, path: &str, text: &str) -> PathBuf {
            fs::write(self.at(path), text).unwrap();
            self.at(path)
        }
    }

    fn named(configuration: Option<PathBuf>, kubeconfig: Option<PathBuf>) -> NamedPaths {
        NamedPaths {
            configuration,
            kubeconfig,
        }
    }

    #[test]
    fn where_the_cluster_is_known_a_definition_names_no_files() {
        let node = Node::new();
        let own = node.write(
            "net.d/other/whereabouts.conf",
            r#"{"range": "10.9.0.0/24"}"#,
        );
        let foreign = named(Some(own), Some(node.write("net.d/other/kubeconfig", "")));
        // Known by a flag or a marker.
        let found = node
            .files()
            .with_known_cluster(true)
            .find(&foreign)
            .unwrap();
        assert_eq!((found.flat, found.kubeconfig), (None, None));
        let fields: Vec<&str> = found.warnings.iter().map(|warning| warning.field).collect();
        assert_eq!(fields, [CONFIGURATION_PATH, KUBECONFIG]);
        assert!(found.faults.is_empty());
        // Known by the node's own flat file.
        let ours = node.at("net.d/whereabouts.d/whereabouts.kubeconfig");
        let flat = json!({"kubernetes": {"kubeconfig": ours}});
        node.write("net.d/whereabouts.d/whereabouts.conf", &flat.to_string());
        let found = node.files().find(&foreign).unwrap();
        assert_eq!(found.kubeconfig, Some(ours.clone()));
        assert_eq!(found.warnings.len(), 2);
        // Whereabouts' own manifests name the installed files: no warning.
        let usual = named(Some(node.at("net.d/whereabouts.d")), Some(ours));
        let found = node.files().find(&usual).unwrap();
        assert_eq!(found.warnings, []);
        let up = node.at("net.d/whereabouts.d/../other");
        assert_eq!(
            node.files()
                .find(&named(Some(up), None))
                .unwrap()
                .warnings
                .len(),
            1
        );
    }

    #[test]
    fn elsewhere_only_files_of_root_below_the_directories_count() {
        let node = Node::new();
        let good = node.write("net.d/other/kubeconfig", "");
        let found = node.files().find(&named(None, Some(good.clone()))).unwrap();
        assert_eq!(found.kubeconfig, Some(good.clone()));
        let theirs = node.write("net.d/other/theirs", "");
        std::os::unix::fs::chown(&theirs, Some(1000), None).unwrap();
        let long = node.write("net.d/other/long", &" ".repeat(65 * 1024));
        let outside = node.write("elsewhere/kubeconfig", "");
        let up = node.at("net.d/../elsewhere/kubeconfig");
        let none = node.at("net.d/none");
        for bad in [
            theirs,
            long,
            outside,
            up,
            none,
            "/dev/zero".into(),
            "kubeconfig".into(),
        ] {
            let found = node.files().find(&named(None, Some(bad.clone()))).unwrap();
            assert_eq!(found.kubeconfig, None, "{bad:?}");
            assert!(found.faults[0].to_string().contains(KUBECONFIG), "{bad:?}");
        }
        for bad in ["/dev/zero", "/dev/ptmx", "/etc/passwd"] {
            let found = node.files().find(&named(Some(bad.into()), None)).unwrap();
            assert!(found.faults[0].to_string().contains(bad), "{bad}");
            assert!(found.flat.is_none());
        }
        for bad in [
            "",
            "[]",
            "7",
            r#"{"kubernetes": []}"#,
            r#"{"kubernetes": {"kubeconfig": 7}}"#,
        ] {
            let broken = node.write("net.d/other/broken.conf", bad);
            let found = node.files().find(&named(Some(broken), None)).unwrap();
            let fault = found.faults[0].to_string();
            assert!(fault.contains("broken.conf"), "{bad}: {fault}");
            assert!(found.flat.is_none(), "{bad}");
        }
    }

    #[test]
    fn a_definition_s_flat_file_may_name_the_cluster_where_nothing_else_does() {
        let node = Node::new();
        let own = node.write(
            "net.d/other/whereabouts.conf",
            r#"{"range": "10.9.0.0/24", "kubernetes": {"kubeconfig": "/k"}}"#,
        );
        for path in [own.clone(), node.at("net.d/other")] {
            let found = node.files().find(&named(Some(path), None)).unwrap();
            assert_eq!(found.kubeconfig.as_deref(), Some(Path::new("/k")));
            assert_eq!(found.flat.unwrap().path, own);
        }
        let typo = node
            .files()
            .find(&named(Some(node.at("net.d/typo")), None))
            .unwrap();
        assert!(typo.warnings[0].to_string().contains("typo"));
    }

    #[test]
    fn the_node_s_name_is_beside_its_own_flat_file() {
        let node = Node::new();
        assert!(node.files().homes().is_empty());
        node.write(
            "net.d/whereabouts.d/whereabouts.conf",
            r#"{"configuration_path": "/configured"}"#,
        );
        let homes = [PathBuf::from("/configured"), node.at("net.d/whereabouts.d")];
        assert_eq!(node.files().homes(), homes);
    }
}
