//! NetworkAttachmentDefinitions: the networks of each, as their plugins would get them.
//!
//! A list of plugins is read whole. Networks of other plugins are left out; one of Berth's that can't be served is
//! returned with the reason. A definition is untrusted input: one that is too long is not parsed, what is copied into
//! each of its networks is bounded, and so is their number; no file that it names is read. Pure except the node's own
//! flat file, which is read by a call that blocks.

use std::path::PathBuf;

use berth_cni::fields::{Fields, Path};
use berth_cni::ids::{NETWORK_NAME_MAX, shown};
use berth_cni::{Args, NetConf};
use berth_cni::{CniError, conf};
use berth_kube::{Place, Resource};
use serde_json::{Value, json};

use crate::PLUGINS;
use crate::config::{ConfigError, Found, NamedPaths, NodeFiles, PodNetwork};

pub const DEFINITIONS: Resource = Resource {
    group: "k8s.cni.cncf.io",
    version: "v1",
    plural: "network-attachment-definitions",
    kind: "NetworkAttachmentDefinition",
    place: Place::Namespaced,
};

/// The maximum number of networks in one definition: a real one has one or two.
const MOST_NETWORKS: usize = 64;

/// The longest `cniVersion` that is copied: a real one has five characters.
const LONGEST_VERSION: usize = 32;

/// The contents of a definition.
#[derive(Debug, Default)]
pub struct Definition {
    /// Its networks that are served by Berth.
    pub networks: Vec<DefinedNetwork>,
    /// Why its networks are unknown here: its configuration is on the nodes' disks, or is not JSON.
    pub unknown: Option<String>,
    /// Whether its text names a plugin of Berth, although it could not be parsed.
    pub may_be_ours: bool,
}

/// One plugin's network.
#[derive(Debug)]
pub struct DefinedNetwork {
    /// `node_slice_size` as written; empty if it is not set.
    pub slice_size: String,
    pub network: Result<PodNetwork, DefinitionError>,
}

/// A network of Berth that can't be served: the user has to correct it.
#[derive(Debug, thiserror::Error)]
pub enum DefinitionError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("{0}")]
    Envelope(String),
}

/// Reads the definition `name`, whose `spec.config` is `config`.
pub fn read(name: &str, config: &str, flat_places: &[PathBuf]) -> Definition {
    if config.trim().is_empty() {
        return Definition {
            unknown: Some("its configuration is on the nodes' disks".into()),
            ..Definition::default()
        };
    }
    let document = match conf::document(config) {
        Ok(document) => document,
        Err(error) => {
            let named = |plugin: &str| config.contains(&format!("\"{plugin}\""));
            return Definition {
                unknown: Some(format!("spec.config: {}", CniError::from(error).msg)),
                may_be_ours: PLUGINS.iter().copied().any(named),
                ..Definition::default()
            };
        }
    };
    let confs = match confs(name, document) {
        Ok(confs) => confs,
        Err(why) => {
            return Definition {
                unknown: Some(format!("spec.config: {why}")),
                may_be_ours: true,
                ..Definition::default()
            };
        }
    };
    // The paths that a definition names belong to nodes: nothing that reads definitions from the cluster opens them.
    let files = NodeFiles::of_known_cluster(flat_places.to_vec());
    let networks = confs.iter().filter_map(|conf| network(conf, &files));
    Definition {
        networks: networks.collect(),
        ..Definition::default()
    }
}

/// The configurations of Berth's plugins: one, or those of a list, each as its plugin would get it.
///
/// The document's name and version are copied into each, so they are checked first: 128 KiB of a long name and short
/// plugins would take gigabytes.
fn confs(definition: &str, mut document: Value) -> Result<Vec<Value>, String> {
    let name = document["name"].as_str().unwrap_or_default().to_owned();
    let version = document.get("cniVersion").cloned();
    let mut plugins = match document.get_mut("plugins").map(Value::take) {
        Some(Value::Array(plugins)) => plugins,
        _ => vec![document],
    };
    plugins.retain(|plugin| ipam_of(plugin).is_some());
    if plugins.is_empty() {
        return Ok(plugins);
    }
    if plugins.len() > MOST_NETWORKS {
        let count = plugins.len();
        return Err(format!(
            "plugins: {count} of them are Berth's; a definition has at most {MOST_NETWORKS}"
        ));
    }
    if name.len() > NETWORK_NAME_MAX {
        let (name, length) = (shown(&name), name.len());
        return Err(format!(
            "name: {name} has {length} bytes; a network's name has at most {NETWORK_NAME_MAX}"
        ));
    }
    let is_short = |text: &str| text.len() <= LONGEST_VERSION;
    let version = match version {
        None | Some(Value::Null) => None,
        Some(Value::String(version)) if is_short(&version) => Some(version),
        Some(other) => {
            let other = shown(&other.to_string());
            return Err(format!(
                "cniVersion: {other} is not a version, such as \"1.1.0\""
            ));
        }
    };
    // Multus uses the definition's name for a configuration without one.
    let name = match name.as_str() {
        "" => definition,
        name => name,
    };
    for fields in plugins.iter_mut().filter_map(Value::as_object_mut) {
        fields.insert("name".into(), json!(name));
        if let Some(version) = &version {
            fields.insert("cniVersion".into(), json!(version));
        }
    }
    Ok(plugins)
}

/// The plugin's `ipam` object and which of Berth's names it has, if any.
fn ipam_of(plugin: &Value) -> Option<(Fields<'_>, &'static str)> {
    const PATH: Path<'static> = Path::Root("ipam");
    let ipam = Fields::of(&PATH, plugin.get("ipam")?).ok()?;
    let kind = ipam.text_or_empty("type").ok()?;
    let kind = PLUGINS.iter().copied().find(|plugin| *plugin == kind)?;
    Some((ipam, kind))
}

/// `None` for another plugin.
fn network(conf: &Value, files: &NodeFiles) -> Option<DefinedNetwork> {
    let (ipam, kind) = ipam_of(conf)?;
    let slice_size = ipam.text_or_empty("node_slice_size").unwrap_or_default();
    let conf = match NetConf::of(conf) {
        Ok(conf) => conf,
        Err(error) => {
            return Some(DefinedNetwork {
                slice_size,
                network: Err(DefinitionError::Envelope(error.msg)),
            });
        }
    };
    let found = NamedPaths::of(&conf).and_then(|named| files.find(&named));
    let found: Found = match found {
        Ok(found) => found,
        Err(error) => {
            return Some(DefinedNetwork {
                slice_size,
                network: Err(error.into()),
            });
        }
    };
    let of_file = || {
        let path = Path::Root("flat file");
        let fields = Fields::of(&path, &found.flat.as_ref()?.object).ok()?;
        fields.text_or_empty("node_slice_size").ok()
    };
    let slice_size = match slice_size.is_empty() {
        true => of_file().unwrap_or_default(),
        false => slice_size,
    };
    let network = PodNetwork::read(&conf, &Args::default(), kind, found);
    Some(DefinedNetwork {
        slice_size,
        network: network.map_err(DefinitionError::Config),
    })
}

#[cfg(test)]
mod tests {
    use berth_cni::conf::LONGEST_CONFIGURATION;

    use super::*;

    #[test]
    fn a_list_is_read_whole_and_others_plugins_are_left_out() {
        let config = r#"{"cniVersion":"1.0.0","plugins":[
            {"type":"bridge","ipam":{"type":"berth","range":"10.1.0.0/24","node_slice_size":"26"}},
            {"type":"tuning"},
            {"type":"macvlan","ipam":{"type":"host-local","range":"10.9.0.0/24"}},
            {"type":"macvlan","ipam":{"type":"whereabouts","range":"10.2.0.0/24"}}]}"#;
        let read = read("nad", config, &[]);
        assert!(read.unknown.is_none());
        let sizes: Vec<&str> = read
            .networks
            .iter()
            .map(|n| n.slice_size.as_str())
            .collect();
        assert_eq!(sizes, ["26", ""]);
        for network in &read.networks {
            assert_eq!(network.network.as_ref().unwrap().name, "nad");
        }
    }

    #[test]
    fn an_invalid_network_of_ours_is_returned_with_its_reason() {
        let config = r#"{"cniVersion":"0.3.1","type":"macvlan",
            "ipam":{"type":"whereabouts","range":"10.0.0.0/24","node_slice_size":"large"}}"#;
        let read = read("nad", config, &[]);
        let error = read.networks[0].network.as_ref().unwrap_err().to_string();
        assert!(
            error.contains("node_slice_size") && error.contains("large"),
            "{error}"
        );
        assert_eq!(read.networks[0].slice_size, "large");
    }

    #[test]
    fn a_definition_that_is_too_long_is_not_parsed_and_no_file_that_it_names_is_read() {
        let long = format!(
            r#"{{"cniVersion":"1.0.0","ipam":{{"type":"whereabouts","x":[{}1]}}}}"#,
            "1,".repeat(700_000)
        );
        let read_long = read("nad", &long, &[]);
        let why = read_long.unknown.unwrap();
        assert!(why.contains(&LONGEST_CONFIGURATION.to_string()), "{why}");
        assert!(read_long.may_be_ours && read_long.networks.is_empty());
        for path in ["/dev/zero", "/dev/ptmx"] {
            let config = format!(
                r#"{{"cniVersion":"1.0.0","ipam":{{"type":"whereabouts","range":"10.0.0.0/24",
                    "configuration_path":"{path}","kubernetes":{{"kubeconfig":"{path}"}}}}}}"#
            );
            let read = read("nad", &config, &[]);
            let network = read.networks[0].network.as_ref().unwrap();
            assert_eq!(network.kubeconfig, None);
            let warnings: Vec<String> = network.warnings.iter().map(ToString::to_string).collect();
            assert_eq!(warnings.len(), 2, "{warnings:?}");
            assert!(warnings[0].contains(path), "{warnings:?}");
        }
    }

    /// 128 KiB of text became gigabytes: the name of 64 KB was copied into each of 21,000 plugins.
    #[test]
    fn what_is_copied_into_each_network_is_bounded_and_so_is_their_number() {
        let list = |name: &str, version: &str, plugin: &str| {
            let before = format!(r#"{{"name":"{name}","cniVersion":{version},"plugins":["#);
            let room = LONGEST_CONFIGURATION - before.len() - plugin.len() - 2;
            let more = format!("{plugin},").repeat(room / (plugin.len() + 1));
            format!("{before}{more}{plugin}]}}")
        };
        let long = "n".repeat(64 * 1024);
        let ours = r#"{"ipam":{"type":"berth","range":"10.0.0.0/24"}}"#;
        let one = |name: &str, version: &str| {
            format!(r#"{{"name":"{name}","cniVersion":{version},"plugins":[{ours},{{}}]}}"#)
        };
        // Other plugins are left out before anything is copied.
        let others = list(&long, r#""1.0.0""#, "{}");
        assert!(
            confs("nad", conf::document(&others).unwrap())
                .unwrap()
                .is_empty()
        );
        for (config, word) in [
            (list(&long, r#""1.0.0""#, ours), "64"),
            (list("net", r#""1.0.0""#, ours), "plugins"),
            (one(&long, r#""1.0.0""#), "253"),
            (one("net", &format!(r#""{long}""#)), "cniVersion"),
            (
                one("net", &format!("[{}1]", "1,".repeat(30_000))),
                "cniVersion",
            ),
        ] {
            assert!(config.len() <= LONGEST_CONFIGURATION);
            let read = read("nad", &config, &[]);
            let why = read.unknown.unwrap();
            assert!(why.contains(word) && why.len() < 300, "{why}");
            assert!(read.may_be_ours && read.networks.is_empty());
        }
        let network = read("nad", &one("net", r#""1.0.0""#), &[])
            .networks
            .remove(0);
        assert_eq!(network.network.unwrap().name, "net");
    }

    #[test]
    fn a_definition_of_more_ranges_than_an_interface_has_addresses_is_not_served() {
        let ranges: Vec<Value> = (0..65)
            .map(|n| json!({"range": format!("10.{n}.0.0/24")}))
            .collect();
        let config = json!({"cniVersion": "1.0.0", "ipam": {"type": "berth", "ipRanges": ranges}});
        let mut read = read("nad", &config.to_string(), &[]);
        let error = read.networks.remove(0).network.unwrap_err().to_string();
        assert!(error.contains("65") && error.contains("64"), "{error}");
    }

    #[test]
    fn an_unknown_configuration_is_reported() {
        for unknown in ["", "  ", "{"] {
            assert!(read("nad", unknown, &[]).unknown.is_some());
        }
        assert!(read("nad", "[]", &[]).networks.is_empty());
    }
}
