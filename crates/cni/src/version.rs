//! The versions of the CNI specification, and what each supports.

use std::fmt;

use serde_json::json;

use crate::error::{CniError, Code};

/// A supported version of the specification, oldest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    V0_1_0,
    V0_2_0,
    V0_3_0,
    V0_3_1,
    V0_4_0,
    V1_0_0,
    V1_1_0,
}

impl Version {
    pub const ALL: [Version; 7] = [
        Version::V0_1_0,
        Version::V0_2_0,
        Version::V0_3_0,
        Version::V0_3_1,
        Version::V0_4_0,
        Version::V1_0_0,
        Version::V1_1_0,
    ];

    pub const LATEST: Version = Version::V1_1_0;

    pub fn as_str(self) -> &'static str {
        match self {
            Version::V0_1_0 => "0.1.0",
            Version::V0_2_0 => "0.2.0",
            Version::V0_3_0 => "0.3.0",
            Version::V0_3_1 => "0.3.1",
            Version::V0_4_0 => "0.4.0",
            Version::V1_0_0 => "1.0.0",
            Version::V1_1_0 => "1.1.0",
        }
    }

    /// Parses the `cniVersion` of a configuration. An absent one means 0.1.0: the field was added in 0.2.0.
    pub fn parse(text: &str) -> Result<Version, CniError> {
        if text.is_empty() {
            return Ok(Version::V0_1_0);
        }
        Version::ALL
            .into_iter()
            .find(|version| version.as_str() == text)
            .ok_or_else(|| {
                CniError::new(
                    Code::IncompatibleVersion,
                    format!("cniVersion {text:?} is not supported"),
                )
                .details(format!("supported versions: {}", supported().join(", ")))
            })
    }

    pub fn allows_check(self) -> bool {
        self >= Version::V0_4_0
    }

    pub fn allows_gc_and_status(self) -> bool {
        self >= Version::V1_1_0
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

fn supported() -> Vec<&'static str> {
    Version::ALL.iter().map(|v| v.as_str()).collect()
}

/// The answer to VERSION.
///
/// `cniVersion` is always the newest that we support: the reference plugins answer the same, and it avoids reading a
/// stdin that a caller may never close.
pub fn version_answer() -> String {
    json!({
        "cniVersion": Version::LATEST.as_str(),
        "supportedVersions": supported(),
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_version_reads_back() {
        for version in Version::ALL {
            assert_eq!(Version::parse(version.as_str()).unwrap(), version);
        }
    }

    #[test]
    fn absent_means_the_first() {
        assert_eq!(Version::parse("").unwrap(), Version::V0_1_0);
    }

    #[test]
    fn an_unknown_version_is_code_1_and_names_the_known_ones() {
        let refused = Version::parse("0.9.9").unwrap_err();
        assert_eq!(refused.code, Code::IncompatibleVersion);
        assert!(refused.msg.contains("0.9.9"));
        assert!(refused.details.contains("1.1.0"));
    }

    #[test]
    fn version_answer_lists_all_seven() {
        let answer: serde_json::Value = serde_json::from_str(&version_answer()).unwrap();
        assert_eq!(answer["cniVersion"], "1.1.0");
        assert_eq!(
            answer["supportedVersions"],
            json!([
                "0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"
            ])
        );
    }
}
