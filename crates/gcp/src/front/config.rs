//! The `ipam` object of a network that gcp-ipam serves, and the configuration that its predecessor gets.

use berth_cni::fields::{Fields, Path};
use berth_cni::{CniError, Code, NetConf};
use serde_json::{Value, json};

use super::settings::Select;

/// The plugin's name.
pub const PLUGIN: &str = "gcp-ipam";
/// The plugin that GKE's configurations name, and that serves what gcp-ipam does not.
pub const PREDECESSOR: &str = "host-local";
/// Keys of gcp-ipam's own; host-local refuses none of them, and gets none.
const OWN: [&str; 3] = ["ipPoolName", "method", "pods"];

/// How an address becomes a VM's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Method {
    /// A /32 alias of the subnet's secondary range.
    #[default]
    SecondaryRange,
    /// A /32 alias of the primary range, reserved as a static address first.
    Static,
}

/// What the `ipam` object says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IpamConf {
    /// None: the pool of the node's subnet.
    pub pool: Option<String>,
    pub method: Method,
    /// None: as the agent is set.
    pub select: Option<Select>,
}

impl IpamConf {
    pub fn read(conf: &NetConf) -> Result<IpamConf, CniError> {
        let Some(ipam) = &conf.ipam else {
            return Err(invalid(
                "the configuration has no ipam object",
                format!("add \"ipam\": {{\"type\": \"{PLUGIN}\"}}"),
            ));
        };
        let root = Path::Root("ipam");
        let fields = Fields::of(&root, ipam)?;
        let plugin = fields.text_or_empty("type")?;
        if plugin != PLUGIN {
            return Err(invalid(
                format!("ipam.type is '{plugin}'"),
                format!("this plugin serves ipam.type {PLUGIN}"),
            ));
        }
        let pool = fields.text("ipPoolName")?.map(str::to_owned);
        if let Some(name) = pool.as_ref().filter(|name| !is_object_name(name)) {
            return Err(invalid(
                format!("ipam.ipPoolName: '{}' is not a name", name.escape_debug()),
                "name an IPPool, such as ippool-nodes",
            ));
        }
        let method = match fields.text("method")? {
            None | Some("" | "secondary-range") => Method::SecondaryRange,
            Some("static") => Method::Static,
            Some(other) => {
                return Err(invalid(
                    format!("ipam.method: '{}' is unknown", other.escape_debug()),
                    "use secondary-range or static",
                ));
            }
        };
        let select = match fields.text("pods")? {
            None | Some("") => None,
            Some(text) => Some(Select::parse(text).ok_or_else(|| {
                invalid(
                    format!("ipam.pods: '{}' is unknown", text.escape_debug()),
                    "use all or labelled",
                )
            })?),
        };
        Ok(IpamConf {
            pool,
            method,
            select,
        })
    }
}

/// The same network as host-local was configured with, if it was.
pub fn predecessor(document: &Value) -> Option<String> {
    let ipam = document.get("ipam")?.as_object()?;
    if !ipam.contains_key("ranges") && !ipam.contains_key("subnet") {
        return None;
    }
    let mut network = document.clone();
    let ipam = network.get_mut("ipam")?.as_object_mut()?;
    ipam.insert("type".to_owned(), json!(PREDECESSOR));
    for key in OWN {
        ipam.remove(key);
    }
    Some(network.to_string())
}

/// What has to be changed by an administrator: CNI code 7.
pub(super) fn invalid(message: impl Into<String>, remedy: impl Into<String>) -> CniError {
    CniError::new(Code::Config, message).details(remedy)
}

/// What passes by itself: CNI code 11.
pub(super) fn later(message: impl Into<String>, remedy: impl Into<String>) -> CniError {
    CniError::new(Code::TryLater, message).details(remedy)
}

fn is_object_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    name.len() <= 253
        && name.chars().all(plain)
        && edge(name.chars().next())
        && edge(name.chars().last())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(ipam: Value) -> Value {
        json!({ "cniVersion": "0.3.1", "name": "gke-pod-network", "type": "ptp", "mtu": 1460, "ipam": ipam })
    }

    fn read(ipam: Value) -> Result<IpamConf, CniError> {
        IpamConf::read(&NetConf::of(&network(ipam)).unwrap())
    }

    #[test]
    fn the_keys_are_read_and_host_locals_are_left_alone() {
        let ipam = json!({ "type": "gcp-ipam", "ranges": [[{ "subnet": "10.4.0.0/24" }]], "routes": [{ "dst": "0.0.0.0/0" }] });
        assert_eq!(read(ipam).unwrap(), IpamConf::default());
        let ipam = json!({ "type": "gcp-ipam", "ipPoolName": "ippool-x", "method": "static", "pods": "labelled" });
        let conf = read(ipam).unwrap();
        assert_eq!(conf.pool.as_deref(), Some("ippool-x"));
        assert_eq!(
            (conf.method, conf.select),
            (Method::Static, Some(Select::Labelled))
        );
    }

    #[test]
    fn a_wrong_key_is_code_7_with_its_field_and_value() {
        for (ipam, text) in [
            (json!({ "type": "host-local" }), "ipam.type is 'host-local'"),
            (
                json!({ "type": "gcp-ipam", "ipPoolName": "../x" }),
                "ipam.ipPoolName: '../x'",
            ),
            (
                json!({ "type": "gcp-ipam", "method": "forwarding" }),
                "ipam.method: 'forwarding'",
            ),
            (
                json!({ "type": "gcp-ipam", "pods": "some" }),
                "ipam.pods: 'some'",
            ),
        ] {
            let error = read(ipam).unwrap_err();
            assert_eq!(error.code, Code::Config);
            assert!(
                error.msg.contains(text) && !error.details.is_empty(),
                "{error:?}"
            );
        }
    }

    #[test]
    fn the_predecessor_gets_its_own_configuration_back() {
        let before =
            network(json!({ "type": "host-local", "ranges": [[{ "subnet": "10.4.0.0/24" }]] }));
        let mut now = before.clone();
        now["ipam"]["type"] = json!("gcp-ipam");
        now["ipam"]["ipPoolName"] = json!("ippool-x");
        let given: Value = serde_json::from_str(&predecessor(&now).unwrap()).unwrap();
        assert_eq!(given, before);
        assert_eq!(predecessor(&network(json!({ "type": "gcp-ipam" }))), None);
        assert_eq!(predecessor(&json!([])), None);
    }
}
