//! VM instances and their network interfaces.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// One alias range of a NIC. An absent range name means the subnet's primary range.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AliasRange {
    pub ip_cidr_range: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subnetwork_range_name: Option<String>,
}

impl AliasRange {
    pub fn of(range: &str, cidr: &str) -> AliasRange {
        AliasRange {
            ip_cidr_range: cidr.to_owned(),
            subnetwork_range_name: Some(range.to_owned()),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Instance {
    pub zone: String,
    pub name: String,
    pub id: u64,
    pub region: String,
    pub subnet: String,
    pub address: String,
    /// Grows with every change of the NIC.
    pub version: u64,
    pub aliases: Vec<AliasRange>,
    /// The operation that changes the NIC now.
    pub busy: Option<String>,
}

impl Instance {
    pub fn path(&self) -> String {
        format!("zones/{}/instances/{}", self.zone, self.name)
    }

    pub fn fingerprint(&self) -> String {
        fingerprint(self.id, self.version)
    }

    pub fn show(&self, project: &str, base: &str) -> Value {
        let parent = format!("{base}/compute/v1/projects/{project}");
        let mut nic = json!({
            "kind": "compute#networkInterface",
            "name": "nic0",
            "network": format!("{parent}/global/networks/default"),
            "subnetwork": format!("{parent}/regions/{}/subnetworks/{}", self.region, self.subnet),
            "networkIP": self.address,
            "fingerprint": self.fingerprint(),
        });
        if !self.aliases.is_empty() {
            nic["aliasIpRanges"] = json!(self.aliases);
        }
        json!({
            "kind": "compute#instance",
            "id": self.id.to_string(),
            "name": self.name,
            "status": "RUNNING",
            "zone": format!("{parent}/zones/{}", self.zone),
            "selfLink": format!("{parent}/{}", self.path()),
            "networkInterfaces": [nic],
        })
    }
}

/// Eight bytes in base64, as Google's fingerprints are: `AAAAAAAAAAA=` and so on.
pub fn fingerprint(id: u64, version: u64) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut bits = id.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ version;
    let mut text: Vec<u8> = Vec::new();
    for _ in 0..11 {
        let digit = usize::try_from(bits & 63).unwrap_or_default();
        text.push(DIGITS.get(digit).copied().unwrap_or(b'A'));
        bits >>= 6;
    }
    text.push(b'=');
    String::from_utf8(text).unwrap_or_default()
}
