//! What libcni remembers of the attachments of this node: one file each, written when the runtime has its ADD's result and
//! removed after its DEL.
//!
//! It outlives Berth's file, and is newer than anything published: an address that it shows is not allocated to another
//! container (I1). It is read once, when a process begins, and never written.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use berth_core::{Address, Handle, Owner, Record};
use serde::Deserialize;
use serde_json::Value;

/// No result is as large.
const LARGEST: u64 = 1 << 20;

/// An address that a container has by its runtime's word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CachedResult {
    pub address: Address,
    pub record: Record,
    /// The `network_name`s of its configuration; none where it can't be read, and it may be of any network.
    networks: Option<Vec<String>>,
}

impl CachedResult {
    pub fn may_be_of(&self, network: &str) -> bool {
        match &self.networks {
            Some(networks) => networks.iter().any(|name| name == network),
            None => true,
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Cached {
    kind: String,
    container_id: String,
    #[serde(default)]
    config: String,
    #[serde(default)]
    if_name: String,
    #[serde(default)]
    cni_args: Vec<(String, String)>,
    #[serde(default)]
    result: Value,
}

/// Everything in these directories. A directory that is not there has nothing; a file that is no result is passed over.
pub(crate) fn read(directories: &[PathBuf]) -> io::Result<Vec<CachedResult>> {
    let mut all = Vec::new();
    for directory in directories {
        let entries = match fs::read_dir(directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                all.extend(read_file(&entry.path())?);
            }
        }
    }
    Ok(all)
}

fn read_file(path: &Path) -> io::Result<Vec<CachedResult>> {
    let mut text = Vec::new();
    match File::open(path) {
        Ok(file) => file.take(LARGEST).read_to_end(&mut text)?,
        // Its container ended meanwhile.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    match serde_json::from_slice::<Cached>(&text) {
        Ok(cached) if cached.kind.starts_with("cniCache") => Ok(results(&cached)),
        _ => Ok(Vec::new()),
    }
}

fn results(cached: &Cached) -> Vec<CachedResult> {
    let argument = |key: &str| {
        let mut arguments = cached.cni_args.iter();
        let found = arguments.find(|(name, _)| name == key);
        found.map(|(_, value)| value.as_str()).unwrap_or_default()
    };
    let pod = argument("K8S_POD_NAME");
    let subject = match pod {
        "" => cached.container_id.clone(),
        pod => format!("{}/{pod}", argument("K8S_POD_NAMESPACE")),
    };
    let record = Record::new(
        Owner::new(subject, &cached.if_name),
        Handle::new(&cached.container_id),
    );
    let networks = networks(&cached.config);
    let one = |text: &str| {
        let address = text.split('/').next()?.parse().ok()?;
        Some(CachedResult {
            address,
            record: record.clone(),
            networks: networks.clone(),
        })
    };
    // Since CNI 0.3 a list, before that one of each family.
    let listed = cached.result["ips"].as_array().into_iter().flatten();
    let listed = listed.filter_map(|ip| ip["address"].as_str());
    let named = ["ip4", "ip6"].map(|family| cached.result[family]["ip"].as_str());
    listed
        .chain(named.into_iter().flatten())
        .filter_map(one)
        .collect()
}

/// The `network_name`s of a configuration's IPAM sections; the configuration is base64, as Go writes bytes.
fn networks(config: &str) -> Option<Vec<String>> {
    let config: Value = serde_json::from_slice(&base64(config)?).ok()?;
    let plugins = config["plugins"].as_array().cloned();
    let plugins = plugins.unwrap_or_else(|| vec![config]);
    let sections = plugins.iter().map(|plugin| &plugin["ipam"]);
    let names = sections.filter(|ipam| ipam.is_object()).map(|ipam| {
        let name = ipam["network_name"].as_str();
        name.unwrap_or_default().to_owned()
    });
    let names: Vec<String> = names.collect();
    (!names.is_empty()).then_some(names)
}

fn base64(text: &str) -> Option<Vec<u8>> {
    let value = |byte: u8| match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let digits: Option<Vec<u8>> = text.trim_end_matches('=').bytes().map(value).collect();
    let digits = digits?;
    let mut bytes = Vec::with_capacity(digits.len() * 3 / 4);
    for group in digits.chunks(4) {
        let bits = group
            .iter()
            .fold(0u32, |bits, digit| bits << 6 | u32::from(*digit));
        let bits = bits << (6 * (4 - group.len()));
        let [_, first, second, third] = bits.to_be_bytes();
        let whole = group.len().checked_sub(1)?;
        bytes.extend([first, second, third].iter().take(whole));
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_result_is_read_as_libcni_writes_it() {
        let dir = tempfile::tempdir().unwrap();
        // {"plugins":[{"ipam":{"network_name":"blue"}}]}
        let config = "eyJwbHVnaW5zIjpbeyJpcGFtIjp7Im5ldHdvcmtfbmFtZSI6ImJsdWUifX1dfQ==";
        let cached = json!({
            "kind": "cniCacheV1", "containerId": "c1", "config": config, "ifName": "net1", "networkName": "net",
            "cniArgs": [["IgnoreUnknown", "1"], ["K8S_POD_NAMESPACE", "ns"], ["K8S_POD_NAME", "web-0"]],
            "result": { "cniVersion": "1.1.0", "ips": [{ "address": "10.0.0.5/24" }, { "address": "fd00::5/64" }] },
        });
        fs::write(dir.path().join("net-c1-net1"), cached.to_string()).unwrap();
        fs::write(dir.path().join("other"), "{}").unwrap();
        let absent = dir.path().join("absent");
        let found = read(&[absent, dir.path().to_owned()]).unwrap();
        let addresses: Vec<String> = found.iter().map(|one| one.address.to_string()).collect();
        assert_eq!(addresses, ["10.0.0.5", "fd00::5"]);
        let first = &found[0];
        assert_eq!(first.record.owner, Owner::new("ns/web-0", "net1"));
        assert_eq!(first.record.handle, Handle::new("c1"));
        assert!(first.may_be_of("blue") && !first.may_be_of(""));
    }

    #[test]
    fn a_configuration_that_can_t_be_read_may_be_of_any_network() {
        assert_eq!(networks("e30="), None);
        assert_eq!(networks("?"), None);
        // {"ipam":{}}
        assert_eq!(networks("eyJpcGFtIjp7fX0="), Some(vec![String::new()]));
    }
}
