//! The specification's error: a code for the runtime, a message for a person.

use serde_json::json;

use crate::version::Version;

/// What went wrong, as the runtime needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Code {
    /// The configuration's `cniVersion`, or the verb at that version, is not supported.
    IncompatibleVersion,
    /// A field of the configuration is known and its value is not supported.
    UnsupportedField,
    /// CHECK of a container that is unknown here. The runtime need not call DEL.
    UnknownContainer,
    /// A CNI_* variable is missing or malformed.
    Environment,
    /// Reading or writing failed.
    Io,
    /// The configuration is not JSON of the expected shape.
    Decode,
    /// The configuration is well-formed but wrong.
    Config,
    /// A temporary condition: the runtime should retry.
    TryLater,
    /// STATUS: no ADD can be served now.
    NotAvailable,
    /// STATUS: ADDs cannot be served; existing containers may have limited connectivity.
    LimitedConnectivity,
    /// CHECK: the record and the container differ. Berth's own code.
    Mismatch,
    /// Everything else.
    Internal,
}

impl Code {
    pub fn number(self) -> u32 {
        match self {
            Code::IncompatibleVersion => 1,
            Code::UnsupportedField => 2,
            Code::UnknownContainer => 3,
            Code::Environment => 4,
            Code::Io => 5,
            Code::Decode => 6,
            Code::Config => 7,
            Code::TryLater => 11,
            Code::NotAvailable => 50,
            Code::LimitedConnectivity => 51,
            Code::Mismatch => 101,
            // The reference plugins use this for errors without their own number.
            Code::Internal => 999,
        }
    }
}

/// An error as a plugin prints it: JSON on stdout, exit status 1.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{msg}")]
pub struct CniError {
    pub code: Code,
    pub msg: String,
    pub details: String,
}

impl CniError {
    pub fn new(code: Code, msg: impl Into<String>) -> Self {
        CniError {
            code,
            msg: msg.into(),
            details: String::new(),
        }
    }

    #[must_use]
    pub fn details(mut self, details: impl Into<String>) -> Self {
        self.details = details.into();
        self
    }

    /// The JSON of the error. `version` is the configuration's, if it could be parsed.
    pub fn render(&self, version: Option<Version>) -> String {
        let mut body = json!({
            "cniVersion": version.unwrap_or(Version::LATEST).as_str(),
            "code": self.code.number(),
            "msg": self.msg,
        });
        if !self.details.is_empty() {
            body["details"] = json!(self.details);
        }
        body.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renders_the_four_fields() {
        let error = CniError::new(Code::Config, "range is missing").details("set ipam.range");
        let body: serde_json::Value =
            serde_json::from_str(&error.render(Some(Version::V0_3_1))).unwrap();
        assert_eq!(
            body,
            json!({"cniVersion": "0.3.1", "code": 7, "msg": "range is missing", "details": "set ipam.range"})
        );
    }

    #[test]
    fn leaves_empty_details_out() {
        let body = CniError::new(Code::TryLater, "busy").render(None);
        assert!(!body.contains("details"));
        assert!(body.contains(r#""code":11"#));
    }
}
