//! `routes` and `dns`: copied to the result.

use std::net::IpAddr;

use berth_cni::fields::{Fields, Path};
use berth_cni::result::{Dns, Route};
use berth_core::{Address, Prefix};
use ipnet::IpNet;

use super::ConfigError;
use super::ranges::address;
use super::source::Source;

pub(super) fn routes(source: &Source<'_>) -> Result<Vec<Route>, ConfigError> {
    let list = Path::Root("routes");
    let mut routes = Vec::new();
    for (index, item) in source.list("routes")?.iter().enumerate() {
        let path = Path::Index(&list, index);
        let fields = Fields::of(&path, item)?;
        let gateway = address(&format!("{path}.gw"), &fields.text_or_empty("gw")?)?;
        routes.push(Route {
            dst: destination(&path, &fields.text_or_empty("dst")?)?,
            gw: gateway.map(IpAddr::from),
            mtu: fields.integer("mtu")?.filter(|mtu| *mtu != 0),
            advmss: fields.integer("advmss")?.filter(|advmss| *advmss != 0),
            priority: fields
                .integer("priority")?
                .filter(|priority| *priority != 0),
            // Table 0 and scope 0 are valid values.
            table: fields.integer("table")?,
            scope: fields.integer("scope")?,
        });
    }
    Ok(routes)
}

fn destination(path: &Path<'_>, text: &str) -> Result<IpNet, ConfigError> {
    let parse = || {
        let prefix = Prefix::parse_lenient("dst", text).ok()?;
        let address = Address::parse_lenient(text.split('/').next()?)?;
        IpNet::new(address.into(), prefix.length()).ok()
    };
    parse().ok_or_else(|| ConfigError::Value {
        field: format!("{path}.dst"),
        value: text.to_owned(),
        expected: "a CIDR such as 0.0.0.0/0 or 10.0.0.0/8",
    })
}

pub(super) fn dns(source: &Source<'_>) -> Result<Dns, ConfigError> {
    let path = Path::Root("dns");
    let dns = source.inner(&path, "dns")?;
    Ok(Dns {
        nameservers: dns.strings("nameservers")?,
        domain: dns.text("domain")?,
        search: dns.strings("search")?,
        options: dns.strings("options")?,
    })
}
