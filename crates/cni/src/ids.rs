//! Names that come from outside and end up in file names, object names and records: checked once, here.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::{CniError, Code};

/// The longest interface name Linux takes, without its terminating zero.
const IFNAME_MAX: usize = 15;

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
        if is_token(text) {
            Ok(ContainerId(text.to_owned()))
        } else {
            Err(CniError::new(
                Code::Environment,
                format!(
                    "CNI_CONTAINERID {text:?} is malformed: a letter or digit, then letters, digits, '_', '.', '-'"
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
                format!("CNI_IFNAME {text:?} is malformed: {why}"),
            ))
        };
        if text.is_empty() {
            return refuse("it is empty");
        }
        if text.len() > IFNAME_MAX {
            return refuse("an interface name has at most 15 bytes");
        }
        if text == "." || text == ".." {
            return refuse("'.' and '..' are no interface names");
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

/// Whether a configuration's `name` is one the specification allows.
pub fn check_network_name(name: &str) -> Result<(), CniError> {
    if name.is_empty() {
        return Err(CniError::new(
            Code::Config,
            "missing network name: set \"name\"",
        ));
    }
    if !is_token(name) {
        return Err(CniError::new(
            Code::Config,
            format!(
                "network name {name:?} is malformed: a letter or digit, then letters, digits, '_', '.', '-'"
            ),
        ));
    }
    Ok(())
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
