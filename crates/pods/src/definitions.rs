//! NetworkAttachmentDefinitions: the networks that one describes, each as its plugin would get it.
//!
//! A list of plugins is read whole. What is no network of ours is left out; what is ours and can't be
//! served is given back with its reason. A definition is untrusted input: one that is too long is not parsed, and no file that
//! it names is read. Pure but for the node's own flat file, which is read by a call that blocks.

use std::path::PathBuf;

use berth_cni::fields::{Fields, Path};
use berth_cni::{Args, NetConf};
use berth_cni::{CniError, conf};
use serde_json::{Value, json};

use crate::config::{ConfigError, Found, NamedPaths, NodeFiles, PodNetwork};
use crate::node::PLUGINS;

/// What a definition says.
#[derive(Debug, Default)]
pub struct Definition {
    /// Its networks of ours.
    pub networks: Vec<DefinedNetwork>,
    /// What it says is not known here: its configuration is on the nodes' disks, or no JSON.
    pub unknown: Option<String>,
    /// Whether its text speaks of a plugin of ours, though it could not be read.
    pub may_be_ours: bool,
}

/// One plugin's network.
#[derive(Debug)]
pub struct DefinedNetwork {
    /// `node_slice_size` as it is written; empty where it is not.
    pub slice_size: String,
    pub network: Result<PodNetwork, DefinitionError>,
}

/// A network of ours that can't be served: the user's to mend.
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
    // The paths that a definition names belong to nodes: nothing that reads definitions from the cluster opens them.
    let files = NodeFiles::of_known_cluster(flat_places.to_vec());
    let confs = confs(name, document);
    let networks = confs.iter().filter_map(|conf| network(conf, &files));
    Definition {
        networks: networks.collect(),
        ..Definition::default()
    }
}

/// The plugins' configurations: one, or those of a list, each as its plugin would get it.
fn confs(definition: &str, mut document: Value) -> Vec<Value> {
    // Multus gives a configuration without a name the definition's.
    let name = match document["name"].as_str() {
        None | Some("") => json!(definition),
        Some(name) => json!(name),
    };
    let version = document.get("cniVersion").cloned();
    let plugins = match document.get_mut("plugins").map(Value::take) {
        Some(Value::Array(plugins)) => plugins,
        _ => vec![document],
    };
    let complete = |mut plugin: Value| {
        let fields = plugin.as_object_mut()?;
        fields.insert("name".into(), name.clone());
        if let Some(version) = &version {
            fields.insert("cniVersion".into(), version.clone());
        }
        Some(plugin)
    };
    plugins.into_iter().filter_map(complete).collect()
}

/// None for what is not ours.
fn network(conf: &Value, files: &NodeFiles) -> Option<DefinedNetwork> {
    let path = Path::Root("ipam");
    let ipam = Fields::of(&path, conf.get("ipam")?).ok()?;
    let kind = ipam.text_or_empty("type").ok()?;
    let kind = PLUGINS.iter().copied().find(|plugin| *plugin == kind)?;
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
    fn what_is_ours_and_wrong_is_given_back_with_its_reason() {
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
            let told: Vec<String> = network.warnings.iter().map(ToString::to_string).collect();
            assert_eq!(told.len(), 2, "{told:?}");
            assert!(told[0].contains(path), "{told:?}");
        }
    }

    #[test]
    fn what_nobody_can_see_is_said() {
        for unknown in ["", "  ", "{"] {
            assert!(read("nad", unknown, &[]).unknown.is_some());
        }
        assert!(read("nad", "[]", &[]).networks.is_empty());
    }
}
