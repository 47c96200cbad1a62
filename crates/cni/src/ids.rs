//! Untrusted names that end up in file names, object names and records: checked once, here.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::{CniError, Code};

/// The maximum length of an interface name on Linux, without its terminating zero.
const IFNAME_MAX: usize = 15;

/// The maximum length of a container id. Runtimes use 64 characters.
const CONTAINER_ID_MAX: usize = 256;

/// `CNI_CONTAINERID`: a letter or digit, then letters, digits, `_`, `.`, `-`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ContainerId(String);

/// `CNI_IFNAME`: a name the kernel accepts for an interface.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct IfName(String);

impl ContainerId {
    pub fn new(text: &str) -> Result<Self, CniError> {
        if text.len() > CONTAINER_ID_MAX {
            return Err(CniError::new(
                Code::Environment,
                format!(
                    "CNI_CONTAINERID {} is malformed: it has {} bytes, and at most {CONTAINER_ID_MAX} are taken",
                    shown(text),
                    text.len()
                ),
            ));
        }
        ContainerId::for_del(text)
    }

    /// An id of any length: what an earlier version stored under it must be released.
    pub fn for_del(text: &str) -> Result<Self, CniError> {
        if is_token(text) {
            Ok(ContainerId(text.to_owned()))
        } else {
            Err(CniError::new(
                Code::Environment,
                format!(
                    "CNI_CONTAINERID {} is malformed: a letter or digit, then letters, digits, '_', '.', '-'",
                    shown(text)
                ),
            ))
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl IfName {
    pub fn new(text: &str) -> Result<Self, CniError> {
        let refuse = |why: &str| {
            Err(CniError::new(
                Code::Environment,
                format!("CNI_IFNAME {} is malformed: {why}", shown(text)),
            ))
        };
        if text.is_empty() {
            return refuse("it is empty");
        }
        if text.len() > IFNAME_MAX {
            return refuse("an interface name has at most 15 bytes");
        }
        if text == "." || text == ".." {
            return refuse("'.' and '..' are not interface names");
        }
        if text
            .chars()
            .any(|c| c == '/' || c == ':' || c.is_whitespace() || c.is_control())
        {
            return refuse("'/', ':', spaces and control characters are not allowed");
        }
        Ok(IfName(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The maximum length of a network's name: it is part of object names.
pub const NETWORK_NAME_MAX: usize = DNS_SUBDOMAIN_MAX;

/// Whether a configuration's `name` is one that the specification allows.
pub fn check_network_name(name: &str) -> Result<(), CniError> {
    if name.is_empty() {
        return Err(CniError::new(
            Code::Config,
            "missing network name: set \"name\"",
        ));
    }
    if !is_token(name) || name.len() > NETWORK_NAME_MAX {
        return Err(CniError::new(
            Code::Config,
            format!(
                "network name {} is malformed: a letter or digit, then letters, digits, '_', '.', '-', at most 253",
                shown(name)
            ),
        ));
    }
    Ok(())
}

/// The maximum length of an object's name in Kubernetes, and of one part of it.
const DNS_SUBDOMAIN_MAX: usize = 253;
const DNS_LABEL_MAX: usize = 63;

/// Whether `text` is a DNS-1123 label, as a namespace's name is.
pub fn is_dns_label(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    !text.is_empty()
        && text.len() <= DNS_LABEL_MAX
        && !text.starts_with('-')
        && !text.ends_with('-')
        && text.bytes().all(inner)
}

/// Whether `text` is a DNS-1123 subdomain, as most objects' names are. Its parts may have any length.
pub fn is_dns_subdomain(text: &str) -> bool {
    let part = |part: &str| {
        let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        !part.is_empty()
            && !part.starts_with('-')
            && !part.ends_with('-')
            && part.bytes().all(inner)
    };
    text.len() <= DNS_SUBDOMAIN_MAX && text.split('.').all(part)
}

/// An untrusted value as errors show it: escaped, and no longer than a line.
pub fn shown(text: &str) -> String {
    const LONGEST: usize = 64;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{:?}...", text.get(..end).unwrap_or_default()),
        None => format!("{text:?}"),
    }
}

fn is_token(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_alphanumeric())
        && bytes.all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'))
}

macro_rules! text_newtype {
    ($name:ident) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl TryFrom<String> for $name {
            type Error = CniError;
            fn try_from(text: String) -> Result<Self, CniError> {
                $name::new(&text)
            }
        }
        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0
            }
        }
    };
}

text_newtype!(ContainerId);
text_newtype!(IfName);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn container_ids() {
        for good in ["a", "0", "dummy-123", "a_b.c-d", "4f2c9d"] {
            assert!(ContainerId::new(good).is_ok(), "{good}");
        }
        for bad in ["", "-a", ".a", "_a", "a/b", "a b", "é", "a\n", "../x"] {
            let error = ContainerId::new(bad).unwrap_err();
            assert_eq!(error.code, Code::Environment, "{bad:?}");
        }
    }

    #[test]
    fn a_long_container_id_is_refused_and_can_be_deleted() {
        let longest = "a".repeat(256);
        assert!(ContainerId::new(&longest).is_ok());
        let long = "a".repeat(1_000_000);
        let error = ContainerId::new(&long).unwrap_err();
        assert_eq!(error.code, Code::Environment);
        assert!(error.msg.len() < 300, "{}", error.msg);
        assert_eq!(ContainerId::for_del(&long).unwrap().as_str(), long);
    }

    #[test]
    fn names_of_kubernetes() {
        for good in ["a", "0", "web-0", "a.b-c.d"] {
            assert!(is_dns_subdomain(good), "{good}");
        }
        for bad in [
            "", ".", "a.", ".a", "a..b", "A", "a_b", "-a", "a-", "a.-b", "a/b",
        ] {
            assert!(!is_dns_subdomain(bad), "{bad}");
        }
        assert!(is_dns_label("kube-system") && !is_dns_label("a.b"));
    }

    #[test]
    fn interface_names() {
        for good in ["eth0", "net1", "a", "x234567890abcde"] {
            assert!(IfName::new(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            ".",
            "..",
            "a/b",
            "a:b",
            "a b",
            "a\t",
            "x234567890abcdef",
        ] {
            assert!(IfName::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn network_names() {
        assert!(check_network_name("mynet").is_ok());
        assert_eq!(check_network_name("").unwrap_err().code, Code::Config);
        assert_eq!(check_network_name("my net").unwrap_err().code, Code::Config);
    }
}
