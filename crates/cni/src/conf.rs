//! The network configuration on stdin: the envelope around a plugin's `ipam` object.
//!
//! The `ipam` object itself is kept as JSON: the front interprets it.

use serde_json::Value;

use crate::error::{CniError, Code};
use crate::fields::{Fields, Path};
use crate::ids::check_network_name;
use crate::version::Version;

/// A network configuration, as far as an IPAM plugin reads it.
#[derive(Debug, Clone, PartialEq)]
pub struct NetConf {
    pub version: Version,
    pub name: String,
    /// The interface plugin that delegates to us (`macvlan`, `bridge`).
    pub plugin: String,
    pub ipam: Option<Value>,
    pub prev_result: Option<Value>,
    /// `runtimeConfig.ips`: what the runtime requests, for instance a network selection element's `ips`.
    pub runtime_ips: Vec<String>,
    /// `args.cni.ips`: the older form of the same request.
    pub arg_ips: Vec<String>,
    /// The host's interface that the container's is attached to: `master`, or `bridge`. Empty if none is named.
    pub link: String,
    /// `allowPersistentIPs`: pods may refer to claims whose addresses outlive them.
    pub persistent_ips: bool,
    /// On GC the attachments that are still valid. `None` if the configuration does not list them: then nothing may be
    /// released.
    pub valid_attachments: Option<Vec<Attachment>>,
}

/// One interface of one container.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Attachment {
    pub container_id: String,
    pub ifname: String,
}

const ROOT: Path<'static> = Path::Root("configuration");

/// The maximum length of a network configuration. A parsed one takes 20 times the memory of its text, and the cluster's
/// users write definitions.
pub const LONGEST_CONFIGURATION: usize = 128 * 1024;

/// The nesting depth that serde_json accepts.
const DEEPEST: usize = 128;

/// Why a configuration was not parsed. It never repeats the text, which may contain secrets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unread {
    Long,
    /// Nested deeper than serde_json accepts.
    Deep,
    NotJson(String),
}

impl Unread {
    /// Whether it exceeds a limit: no ADD of such a network was ever served.
    pub fn is_beyond_limits(&self) -> bool {
        matches!(self, Unread::Long | Unread::Deep)
    }
}

impl From<Unread> for CniError {
    fn from(why: Unread) -> CniError {
        let message = match why {
            Unread::Long => {
                format!("the network configuration has more than {LONGEST_CONFIGURATION} bytes")
            }
            Unread::Deep => {
                format!("the network configuration is nested deeper than {DEEPEST} levels")
            }
            Unread::NotJson(why) => format!("the network configuration is not JSON: {why}"),
        };
        CniError::new(Code::Decode, message)
    }
}

/// Parses a configuration's text, once.
pub fn document(text: &str) -> Result<Value, Unread> {
    if text.len() > LONGEST_CONFIGURATION {
        return Err(Unread::Long);
    }
    serde_json::from_str(text).map_err(|error| match error.to_string() {
        // serde_json has no error kind for this.
        why if why.starts_with("recursion limit exceeded") => Unread::Deep,
        why => Unread::NotJson(why),
    })
}

impl NetConf {
    /// Parses a configuration's text. An error names the field.
    pub fn parse(text: &str) -> Result<NetConf, CniError> {
        NetConf::of(&document(text)?)
    }

    /// Reads a parsed [`document`].
    pub fn of(document: &Value) -> Result<NetConf, CniError> {
        let fields = Fields::of(&ROOT, document)?;
        let version = Version::parse(fields.text("cniVersion")?.unwrap_or_default())?;
        let name = fields.text_or_empty("name")?;
        check_network_name(&name)?;
        Ok(NetConf {
            version,
            name,
            plugin: fields.text_or_empty("type")?,
            ipam: fields.get("ipam").cloned(),
            prev_result: fields.get("prevResult").cloned(),
            runtime_ips: runtime_ips(&fields)?,
            arg_ips: arg_ips(&fields)?,
            link: link(&fields)?,
            persistent_ips: fields.flag("allowPersistentIPs")?.unwrap_or(false),
            valid_attachments: valid_attachments(&fields)?,
        })
    }

    /// The version of a configuration that may be invalid otherwise: it selects the error's format.
    pub fn version_of(stdin: &str) -> Option<Version> {
        NetConf::version_in(&document(stdin).ok()?)
    }

    /// The same, of a parsed [`document`].
    pub fn version_in(document: &Value) -> Option<Version> {
        let fields = Fields::of(&ROOT, document).ok()?;
        Version::parse(fields.text("cniVersion").ok()?.unwrap_or_default()).ok()
    }
}

fn link(fields: &Fields<'_>) -> Result<String, CniError> {
    let master = fields.text_or_empty("master")?;
    Ok(match master.as_str() {
        "" => fields.text_or_empty("bridge")?,
        _ => master,
    })
}

fn runtime_ips(fields: &Fields<'_>) -> Result<Vec<String>, CniError> {
    let Some(value) = fields.get("runtimeConfig") else {
        return Ok(Vec::new());
    };
    let path = Path::Key(&ROOT, "runtimeConfig");
    Ok(Fields::of(&path, value)?.texts("ips")?)
}

fn arg_ips(fields: &Fields<'_>) -> Result<Vec<String>, CniError> {
    let Some(args) = fields.get("args") else {
        return Ok(Vec::new());
    };
    let path = Path::Key(&ROOT, "args");
    let Some(cni) = Fields::of(&path, args)?.get("cni") else {
        return Ok(Vec::new());
    };
    let path = Path::Key(&path, "cni");
    Ok(Fields::of(&path, cni)?.texts("ips")?)
}

fn valid_attachments(fields: &Fields<'_>) -> Result<Option<Vec<Attachment>>, CniError> {
    let key = match () {
        () if fields.has("cni.dev/valid-attachments") => "cni.dev/valid-attachments",
        () if fields.has("cni.dev/attachments") => "cni.dev/attachments",
        () => return Ok(None),
    };
    // libcni writes an empty list as null.
    let items = fields.list(key)?.unwrap_or_default();
    let list = Path::Key(&ROOT, key);
    let mut attachments = Vec::with_capacity(items.len());
    for (index, item) in items.iter().enumerate() {
        let path = Path::Index(&list, index);
        let fields = Fields::of(&path, item)?;
        attachments.push(Attachment {
            container_id: fields.text_or_empty("containerID")?,
            ifname: fields.text_or_empty("ifname")?,
        });
    }
    Ok(Some(attachments))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn reads_the_envelope() {
        let conf = NetConf::parse(
            r#"{"cniVersion":"1.1.0","name":"net","type":"macvlan","master":"eth0",
                "ipam":{"type":"berth"},"prevResult":{"ips":[]},
                "runtimeConfig":{"ips":["10.0.0.5/24"]},
                "args":{"cni":{"ips":["10.0.0.6"]}},
                "cni.dev/valid-attachments":[{"containerID":"c1","ifname":"net1"}]}"#,
        )
        .unwrap();
        assert_eq!(conf.version, Version::V1_1_0);
        assert_eq!(conf.name, "net");
        assert_eq!(conf.plugin, "macvlan");
        assert_eq!(conf.ipam.unwrap()["type"], "berth");
        assert_eq!(conf.runtime_ips, ["10.0.0.5/24"]);
        assert_eq!(conf.arg_ips, ["10.0.0.6"]);
        assert_eq!(
            conf.valid_attachments.unwrap(),
            [Attachment {
                container_id: "c1".into(),
                ifname: "net1".into()
            }]
        );
    }

    #[test]
    fn valid_attachments_absent_empty_and_null_differ() {
        let attachments = |text: &str| NetConf::parse(text).unwrap().valid_attachments;
        assert_eq!(attachments(r#"{"name":"n"}"#), None);
        assert_eq!(
            attachments(r#"{"name":"n","cni.dev/valid-attachments":[]}"#),
            Some(vec![])
        );
        assert_eq!(
            attachments(r#"{"name":"n","cni.dev/attachments":null}"#),
            Some(vec![])
        );
    }

    #[test]
    fn codes_of_what_is_refused() {
        let code = |text: &str| NetConf::parse(text).unwrap_err().code;
        assert_eq!(code("{"), Code::Decode);
        assert_eq!(code("[]"), Code::Decode);
        assert_eq!(code(r#"{"name":5}"#), Code::Decode);
        assert_eq!(code(r#"{"cniVersion":"1.1.0"}"#), Code::Config);
        assert_eq!(code(r#"{"name":"a b"}"#), Code::Config);
        assert_eq!(
            code(r#"{"name":"n","cniVersion":"9.9.9"}"#),
            Code::IncompatibleVersion
        );
        assert_eq!(code(r#"{"name":"n","runtimeConfig":[]}"#), Code::Decode);
    }

    #[test]
    fn a_broken_configuration_still_has_a_version() {
        assert_eq!(
            NetConf::version_of(r#"{"cniVersion":"0.3.1"}"#),
            Some(Version::V0_3_1)
        );
        assert_eq!(NetConf::version_of("{"), None);
    }

    #[test]
    fn length_and_depth_are_bounded_before_anything_is_kept() {
        let long = format!(r#"{{"name":"n","x":[{}1]}}"#, "1,".repeat(700_000));
        let refused = NetConf::parse(&long).unwrap_err();
        assert_eq!(refused.code, Code::Decode);
        assert!(refused.msg.contains("131072"), "{}", refused.msg);
        let deep = format!(
            r#"{{"name":"n","x":{}{}}}"#,
            "[".repeat(5000),
            "]".repeat(5000)
        );
        let refused = NetConf::parse(&deep).unwrap_err();
        assert_eq!(refused.code, Code::Decode);
        assert!(refused.msg.contains("128 levels"), "{}", refused.msg);
        for (text, beyond) in [(long.as_str(), true), (&deep, true), ("{", false)] {
            assert_eq!(document(text).unwrap_err().is_beyond_limits(), beyond);
        }
        let fits = format!(
            r#"{{"name":"n","x":"{}"}}"#,
            "x".repeat(LONGEST_CONFIGURATION - 19)
        );
        assert_eq!(fits.len(), LONGEST_CONFIGURATION);
        assert!(NetConf::parse(&fits).is_ok());
    }

    proptest! {
        #[test]
        fn never_panics(text in ".*") {
            let _ = NetConf::parse(&text);
        }
    }
}
