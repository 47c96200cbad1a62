//! Which IPAM a CNI configuration list uses, and the change of it.
//!
//! Only the value of `ipam.type` is replaced, in the text itself: every other byte of the file, key order and spacing
//! included, stays as its writer left it. A configuration that is not understood is refused and left alone.

use serde::Deserialize;
use serde_json::Value;
use thiserror::Error;

pub const HOST_LOCAL: &str = "host-local";
pub const GCP_IPAM: &str = "gcp-ipam";
/// A conflist is 1 to 2 KB.
pub const MAX_FILE: u64 = 64 << 10;

/// Why a configuration list is left as it is.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConflistError {
    #[error("it is not JSON: {0}")]
    NotJson(String),
    #[error("plugins is missing or not a list; a CNI configuration list has one")]
    NoPlugins,
    #[error("no plugin has an ipam section; one with the type host-local is needed")]
    NoIpam,
    #[error("{0} plugins have an ipam section; only one can be switched")]
    SeveralIpams(usize),
    #[error("ipam.type is '{0}', which is neither host-local nor gcp-ipam")]
    ForeignType(String),
    #[error("ipam.type can't be found in the text: it is written with escapes")]
    Escaped,
}

/// The text with `ipam.type` set to `wanted`; None if it is that already.
pub fn with_ipam_type(text: &str, wanted: &str) -> Result<Option<String>, ConflistError> {
    let value: Value =
        serde_json::from_str(text).map_err(|error| ConflistError::NotJson(error.to_string()))?;
    let plugins = value["plugins"]
        .as_array()
        .ok_or(ConflistError::NoPlugins)?;
    let ipams: Vec<&Value> = plugins
        .iter()
        .filter_map(|plugin| plugin.get("ipam"))
        .collect();
    let present = match ipams.as_slice() {
        [] => return Err(ConflistError::NoIpam),
        [one] => one["type"].as_str().unwrap_or_default(),
        many => return Err(ConflistError::SeveralIpams(many.len())),
    };
    match present {
        known if known == wanted => Ok(None),
        HOST_LOCAL | GCP_IPAM => replace(text, wanted).map(Some),
        other => Err(ConflistError::ForeignType(other.to_owned())),
    }
}

/// Borrows the plugins' ipam sections from the text, so that their place in it is known.
#[derive(Deserialize)]
struct List<'a> {
    #[serde(borrow)]
    plugins: Vec<Plugin<'a>>,
}

#[derive(Deserialize)]
struct Plugin<'a> {
    #[serde(borrow, default)]
    ipam: Option<Ipam<'a>>,
}

#[derive(Deserialize)]
struct Ipam<'a> {
    /// Fails to borrow where the text has escapes.
    #[serde(rename = "type")]
    kind: &'a str,
}

fn replace(text: &str, wanted: &str) -> Result<String, ConflistError> {
    let list: List<'_> = serde_json::from_str(text).map_err(|_| ConflistError::Escaped)?;
    let kind = list
        .plugins
        .iter()
        .find_map(|plugin| plugin.ipam.as_ref())
        .ok_or(ConflistError::NoIpam)?
        .kind;
    // `kind` is a part of `text`: its address says where.
    let start = (kind.as_ptr() as usize).wrapping_sub(text.as_ptr() as usize);
    let (before, rest) = text.split_at_checked(start).ok_or(ConflistError::Escaped)?;
    let after = rest.strip_prefix(kind).ok_or(ConflistError::Escaped)?;
    Ok(format!("{before}{wanted}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As GKE's netd writes it.
    const GKE: &str = r#"{
  "name": "gke-pod-network",
  "cniVersion": "0.3.1",
  "disableCheck": true,
  "plugins": [
    {
      "type": "ptp",
      "mtu": 1460,
      "ipam": {
          "type": "host-local",
          "ranges": [[{"subnet": "10.4.0.0/24"}]],
          "routes": [{"dst": "0.0.0.0/0"}]
      }
    },
    { "type": "portmap", "capabilities": {"portMappings": true} },
    { "type": "cilium-cni", "enable-route-mtu": true }
  ]
}
"#;

    #[test]
    fn only_the_type_changes_and_it_changes_back() {
        let patched = with_ipam_type(GKE, GCP_IPAM).unwrap().unwrap();
        assert_eq!(patched, GKE.replace("\"host-local\"", "\"gcp-ipam\""));
        assert_eq!(with_ipam_type(&patched, GCP_IPAM), Ok(None));
        assert_eq!(with_ipam_type(&patched, HOST_LOCAL).unwrap().unwrap(), GKE);
        assert_eq!(with_ipam_type(GKE, HOST_LOCAL), Ok(None));
    }

    #[test]
    fn a_name_elsewhere_in_the_file_is_not_touched() {
        let text = r#"{"name":"host-local","plugins":[{"type":"host-local"},{"type":"ptp","ipam":{"note":"host-local","type":"host-local"}}]}"#;
        let patched = with_ipam_type(text, GCP_IPAM).unwrap().unwrap();
        let expected = r#"{"name":"host-local","plugins":[{"type":"host-local"},{"type":"ptp","ipam":{"note":"host-local","type":"gcp-ipam"}}]}"#;
        assert_eq!(patched, expected);
    }

    #[test]
    fn what_is_not_understood_is_left_alone() {
        let refused = |text: &str| with_ipam_type(text, GCP_IPAM).unwrap_err();
        assert!(matches!(refused("{"), ConflistError::NotJson(_)));
        assert_eq!(
            refused(r#"{"type":"ptp","ipam":{"type":"host-local"}}"#),
            ConflistError::NoPlugins
        );
        assert_eq!(
            refused(r#"{"plugins":[{"type":"ptp"}]}"#),
            ConflistError::NoIpam
        );
        let two = r#"{"plugins":[{"ipam":{"type":"host-local"}},{"ipam":{"type":"host-local"}}]}"#;
        assert_eq!(refused(two), ConflistError::SeveralIpams(2));
        let metis = r#"{"plugins":[{"ipam":{"type":"metis"}}]}"#;
        assert_eq!(
            refused(metis),
            ConflistError::ForeignType("metis".to_owned())
        );
        let escaped = "{\"plugins\":[{\"ipam\":{\"type\":\"host\\u002dlocal\"}}]}";
        assert_eq!(refused(escaped), ConflistError::Escaped);
    }
}
