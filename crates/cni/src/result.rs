//! The result of an ADD: addresses, routes and name servers, in the format of the configuration's version.
//!
//! There are three formats. Up to 0.2.0: one address of each family, as `ip4` and `ip6`. 0.3.0 to 0.4.0: a list whose
//! items name their family, and a `dns` that is always present. From 1.0.0: a list without the family, and no empty
//! `dns`.

use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::{Map, Value, json};

use crate::error::{CniError, Code};
use crate::fields::{FieldError, Fields, Path};
use crate::version::Version;

/// An address as a container gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IpConfig {
    /// The address with its network's prefix length; the host bits are the address.
    pub address: IpNet,
    pub gateway: Option<IpAddr>,
}

/// A route as in CNI 1.1. Older formats keep only destination and gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    pub dst: IpNet,
    pub gw: Option<IpAddr>,
    pub mtu: Option<i64>,
    pub advmss: Option<i64>,
    pub priority: Option<i64>,
    pub table: Option<i64>,
    pub scope: Option<i64>,
}

/// Name servers and search domains.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dns {
    pub nameservers: Vec<String>,
    pub domain: String,
    pub search: Vec<String>,
    pub options: Vec<String>,
}

/// An IPAM plugin's result. It has no interfaces: the delegating plugin creates those.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IpamResult {
    pub ips: Vec<IpConfig>,
    pub routes: Vec<Route>,
    pub dns: Dns,
}

impl IpamResult {
    /// The JSON of the result at `version`.
    ///
    /// Fails only if the format can't express it: up to 0.2.0, a result without an address.
    pub fn render(&self, version: Version) -> Result<String, CniError> {
        let body = if version <= Version::V0_2_0 {
            self.by_family(version)?
        } else {
            self.by_list(version)
        };
        Ok(Value::Object(body).to_string())
    }

    fn by_list(&self, version: Version) -> Map<String, Value> {
        let modern = version >= Version::V1_0_0;
        let mut body = Map::new();
        body.insert("cniVersion".into(), json!(version.as_str()));
        if !self.ips.is_empty() {
            let ips = self.ips.iter().map(|ip| {
                let mut item = Map::new();
                if !modern {
                    item.insert("version".into(), json!(family(ip.address.addr())));
                }
                item.insert("address".into(), json!(ip.address.to_string()));
                if let Some(gateway) = ip.gateway {
                    item.insert("gateway".into(), json!(gateway.to_string()));
                }
                Value::Object(item)
            });
            body.insert("ips".into(), ips.collect());
        }
        if !self.routes.is_empty() {
            let routes = self.routes.iter().map(|route| route.json(version));
            body.insert("routes".into(), routes.collect());
        }
        let dns = self.dns.json();
        if !modern || !dns.is_empty() {
            body.insert("dns".into(), Value::Object(dns));
        }
        body
    }

    /// The first address of each family: the format has room for no more.
    fn by_family(&self, version: Version) -> Result<Map<String, Value>, CniError> {
        let mut body = Map::new();
        body.insert("cniVersion".into(), json!(version.as_str()));
        for (key, v4) in [("ip4", true), ("ip6", false)] {
            let Some(ip) = self.ips.iter().find(|ip| ip.address.addr().is_ipv4() == v4) else {
                continue;
            };
            let mut item = Map::new();
            item.insert("ip".into(), json!(ip.address.to_string()));
            if let Some(gateway) = ip.gateway {
                item.insert("gateway".into(), json!(gateway.to_string()));
            }
            let routes: Vec<Value> = self
                .routes
                .iter()
                .filter(|route| route.dst.addr().is_ipv4() == v4)
                .map(|route| route.json(version))
                .collect();
            if !routes.is_empty() {
                item.insert("routes".into(), Value::Array(routes));
            }
            body.insert(key.into(), Value::Object(item));
        }
        if body.len() == 1 {
            return Err(CniError::new(
                Code::Config,
                format!(
                    "a result of cniVersion {version} needs an address: configure a range or addresses"
                ),
            ));
        }
        body.insert("dns".into(), Value::Object(self.dns.json()));
        Ok(body)
    }

    /// The addresses of a `prevResult` of any version: CHECK compares the record with them.
    pub fn addresses_of(prev_result: &Value) -> Result<Vec<IpNet>, FieldError> {
        let root = Path::Root("prevResult");
        let fields = Fields::of(&root, prev_result)?;
        let mut found = Vec::new();
        for (key, name) in [("ip4", "ip"), ("ip6", "ip")] {
            if let Some(value) = fields.get(key) {
                let path = Path::Key(&root, key);
                let item = Fields::of(&path, value)?;
                found.extend(address(&path, name, item.text(name)?)?);
            }
        }
        let list = Path::Key(&root, "ips");
        for (index, value) in fields.list("ips")?.unwrap_or_default().iter().enumerate() {
            let path = Path::Index(&list, index);
            let item = Fields::of(&path, value)?;
            found.extend(address(&path, "address", item.text("address")?)?);
        }
        Ok(found)
    }
}

impl Route {
    pub fn to(dst: IpNet, gw: Option<IpAddr>) -> Route {
        Route {
            dst,
            gw,
            mtu: None,
            advmss: None,
            priority: None,
            table: None,
            scope: None,
        }
    }

    fn json(&self, version: Version) -> Value {
        let mut item = Map::new();
        item.insert("dst".into(), json!(self.dst.to_string()));
        if let Some(gw) = self.gw {
            item.insert("gw".into(), json!(gw.to_string()));
        }
        if version >= Version::V1_1_0 {
            let extras = [
                ("mtu", self.mtu),
                ("advmss", self.advmss),
                ("priority", self.priority),
                ("table", self.table),
                ("scope", self.scope),
            ];
            for (key, value) in extras {
                if let Some(value) = value {
                    item.insert(key.into(), json!(value));
                }
            }
        }
        Value::Object(item)
    }
}

impl Dns {
    fn json(&self) -> Map<String, Value> {
        let mut body = Map::new();
        let lists = [
            ("nameservers", &self.nameservers),
            ("search", &self.search),
            ("options", &self.options),
        ];
        for (key, list) in lists {
            if !list.is_empty() {
                body.insert(key.into(), json!(list));
            }
        }
        if !self.domain.is_empty() {
            body.insert("domain".into(), json!(self.domain));
        }
        body
    }
}

fn family(address: IpAddr) -> &'static str {
    if address.is_ipv4() { "4" } else { "6" }
}

fn address(path: &Path<'_>, key: &str, text: Option<&str>) -> Result<Option<IpNet>, FieldError> {
    let Some(text) = text else {
        return Ok(None);
    };
    match text.parse() {
        Ok(net) => Ok(Some(net)),
        Err(_) => Err(FieldError {
            path: format!("{path}.{key}"),
            expected: "an address with its prefix length",
            found: format!("{text:?}"),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result() -> IpamResult {
        IpamResult {
            ips: vec![IpConfig {
                address: "192.168.1.1/24".parse().unwrap(),
                gateway: Some("192.168.10.1".parse().unwrap()),
            }],
            ..IpamResult::default()
        }
    }

    fn rendered(result: &IpamResult, version: Version) -> Value {
        serde_json::from_str(&result.render(version).unwrap()).unwrap()
    }

    #[test]
    fn from_0_3_to_0_4_the_family_is_named_and_dns_is_there() {
        for version in [Version::V0_3_0, Version::V0_3_1, Version::V0_4_0] {
            assert_eq!(
                rendered(&result(), version),
                json!({"cniVersion": version.as_str(), "dns": {},
                    "ips": [{"version": "4", "address": "192.168.1.1/24", "gateway": "192.168.10.1"}]})
            );
        }
    }

    #[test]
    fn from_1_0_on_neither() {
        for version in [Version::V1_0_0, Version::V1_1_0] {
            assert_eq!(
                rendered(&result(), version),
                json!({"cniVersion": version.as_str(),
                    "ips": [{"address": "192.168.1.1/24", "gateway": "192.168.10.1"}]})
            );
        }
    }

    #[test]
    fn up_to_0_2_one_address_of_each_family_with_its_routes() {
        let mut dual = result();
        dual.ips.push(IpConfig {
            address: "192.168.2.1/24".parse().unwrap(),
            gateway: None,
        });
        dual.ips.push(IpConfig {
            address: "fd00::1/64".parse().unwrap(),
            gateway: None,
        });
        dual.routes = vec![
            Route::to("0.0.0.0/0".parse().unwrap(), None),
            Route::to("::/0".parse().unwrap(), Some("fd00::2".parse().unwrap())),
        ];
        for version in [Version::V0_1_0, Version::V0_2_0] {
            assert_eq!(
                rendered(&dual, version),
                json!({"cniVersion": version.as_str(), "dns": {},
                    "ip4": {"ip": "192.168.1.1/24", "gateway": "192.168.10.1",
                            "routes": [{"dst": "0.0.0.0/0"}]},
                    "ip6": {"ip": "fd00::1/64", "routes": [{"dst": "::/0", "gw": "fd00::2"}]}})
            );
        }
        assert_eq!(
            IpamResult::default()
                .render(Version::V0_2_0)
                .unwrap_err()
                .code,
            Code::Config
        );
    }

    #[test]
    fn an_empty_result_is_valid_from_0_3_on() {
        let empty = IpamResult::default();
        assert_eq!(
            rendered(&empty, Version::V0_3_1),
            json!({"cniVersion": "0.3.1", "dns": {}})
        );
        assert_eq!(
            rendered(&empty, Version::V1_0_0),
            json!({"cniVersion": "1.0.0"})
        );
    }

    #[test]
    fn the_route_fields_of_1_1_stay_out_of_older_forms() {
        let mut routed = result();
        routed.routes = vec![Route {
            mtu: Some(1400),
            table: Some(0),
            ..Route::to("10.0.0.0/8".parse().unwrap(), None)
        }];
        assert_eq!(
            rendered(&routed, Version::V1_1_0)["routes"],
            json!([{"dst": "10.0.0.0/8", "mtu": 1400, "table": 0}])
        );
        assert_eq!(
            rendered(&routed, Version::V1_0_0)["routes"],
            json!([{"dst": "10.0.0.0/8"}])
        );
    }

    #[test]
    fn every_form_reads_back() {
        let mut dual = result();
        dual.ips.push(IpConfig {
            address: "fd00::1/64".parse().unwrap(),
            gateway: None,
        });
        dual.dns.nameservers = vec!["10.0.0.53".into()];
        let addresses: Vec<IpNet> = dual.ips.iter().map(|ip| ip.address).collect();
        for version in Version::ALL {
            let body = rendered(&dual, version);
            assert_eq!(
                IpamResult::addresses_of(&body).unwrap(),
                addresses,
                "{version}"
            );
            assert_eq!(body["dns"]["nameservers"], json!(["10.0.0.53"]));
        }
    }

    #[test]
    fn a_broken_previous_result_is_named() {
        let broken = json!({"ips": [{"address": "10.0.0.1"}]});
        let error = IpamResult::addresses_of(&broken).unwrap_err();
        assert!(error.to_string().contains("prevResult.ips[0].address"));
    }
}
