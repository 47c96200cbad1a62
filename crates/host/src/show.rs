//! `berth-host show`: the host's network state, in nmstatectl's order.

use clap::Args;
use nmstate::{
    DnsState, HostNameState, NetworkState, OvnConfiguration, OvsDbGlobalConfig, RouteRules, Routes,
};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::error::HostError;

#[derive(Debug, Args)]
pub struct Show {
    /// Show this interface only.
    #[arg(value_name = "IFNAME")]
    interface: Option<String>,
    /// Show the kernel's state only.
    #[arg(long, short)]
    kernel: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Show the running configuration only.
    #[arg(long, short)]
    running_config: bool,
    /// Show secrets.
    #[arg(long, short)]
    show_secrets: bool,
}

impl Show {
    pub fn run(&self) -> Result<String, HostError> {
        let mut state = NetworkState::new();
        state.set_kernel_only(self.kernel);
        state.set_running_config_only(self.running_config);
        state.set_include_secrets(self.show_secrets);
        state.retrieve()?;
        match &self.interface {
            Some(name) => print(&of_interface(&state, name), self.json),
            None => print(&Sorted::of(state)?, self.json),
        }
    }
}

pub fn print<T: Serialize>(value: &T, json: bool) -> Result<String, HostError> {
    Ok(match json {
        true => serde_json::to_string_pretty(value)?,
        false => serde_yaml::to_string(value)?,
    })
}

/// A state whose interfaces are sorted by name, each with its name and type first.
#[derive(Debug, Serialize)]
pub struct Sorted {
    #[serde(skip_serializing_if = "Option::is_none")]
    hostname: Option<HostNameState>,
    #[serde(rename = "dns-resolver", skip_serializing_if = "Option::is_none")]
    dns: Option<DnsState>,
    #[serde(rename = "route-rules")]
    rules: RouteRules,
    routes: Routes,
    interfaces: Vec<Value>,
    #[serde(rename = "ovs-db", skip_serializing_if = "Option::is_none")]
    ovsdb: Option<OvsDbGlobalConfig>,
    ovn: OvnConfiguration,
    #[serde(skip_serializing_if = "String::is_empty")]
    description: String,
}

impl Sorted {
    pub fn of(state: NetworkState) -> Result<Sorted, HostError> {
        let mut interfaces = state.interfaces.to_vec();
        interfaces.sort_by(|a, b| a.name().cmp(b.name()));
        let mut sorted = Vec::new();
        for interface in interfaces {
            if let Value::Object(fields) = serde_json::to_value(interface)? {
                sorted.push(name_first(fields));
            }
        }
        Ok(Sorted {
            hostname: state.hostname,
            dns: state.dns,
            rules: state.rules,
            routes: state.routes,
            interfaces: sorted,
            ovsdb: state.ovsdb,
            ovn: state.ovn,
            description: state.description,
        })
    }
}

fn name_first(mut fields: Map<String, Value>) -> Value {
    let mut sorted = Map::new();
    for first in ["name", "type"] {
        if let Some(value) = fields.shift_remove(first) {
            sorted.insert(first.to_owned(), value);
        }
    }
    sorted.extend(fields);
    Value::Object(sorted)
}

/// One interface, with the routes through it and the rules for their tables.
fn of_interface(state: &NetworkState, name: &str) -> NetworkState {
    let mut shown = NetworkState::new();
    let named = state.interfaces.to_vec().into_iter();
    for interface in named.filter(|interface| interface.name() == name) {
        shown.append_interface_data(interface.clone());
    }
    let through = |routes: &Option<Vec<nmstate::RouteEntry>>| {
        let routes = routes.iter().flatten();
        let through = routes.filter(|route| route.next_hop_iface.as_deref() == Some(name));
        let through: Vec<_> = through.cloned().collect();
        (!through.is_empty()).then_some(through)
    };
    shown.routes.running = through(&state.routes.running);
    shown.routes.config = through(&state.routes.config);
    let configured = shown.routes.config.iter().flatten();
    let tables: Vec<u32> = configured.filter_map(|route| route.table_id).collect();
    let rules = state.rules.config.iter().flatten();
    let rules = rules.filter(|rule| rule.table_id.is_some_and(|id| tables.contains(&id)));
    let rules: Vec<_> = rules.cloned().collect();
    shown.rules.config = (!rules.is_empty()).then_some(rules);
    shown
}
