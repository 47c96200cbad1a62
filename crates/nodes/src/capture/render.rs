//! A policy's state with the allocated addresses filled in.

use std::collections::BTreeMap;

use berth_core::{Address, Family};
use serde_json::{Map, Value, json};

use super::error::CaptureError;
use super::inline;
use super::policy::{PoolPolicy, Source};
use super::template::{Part, capture_path, parts};
use crate::pool::PoolSpace;

/// What a pool capture returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    pub pool: String,
    pub address: Address,
    pub prefix_length: u8,
    pub gateway: Option<Address>,
    pub dns: Vec<Address>,
}

impl Granted {
    /// The result of a capture whose address is known; none if the pool does not have it.
    pub fn of(pool: &str, space: &PoolSpace, address: Address) -> Option<Granted> {
        Some(Granted {
            pool: pool.to_owned(),
            address,
            prefix_length: space.prefix_length(address)?,
            gateway: space.gateway(address),
            dns: space.dns().to_vec(),
        })
    }

    /// `{ip, prefix-length}`, and gateway and dns where the pool has them.
    pub fn captured(&self) -> Value {
        let mut state =
            json!({ "ip": self.address.to_string(), "prefix-length": self.prefix_length });
        if let Some(gateway) = self.gateway {
            state["gateway"] = gateway.to_string().into();
        }
        if !self.dns.is_empty() {
            state["dns"] = self.dns();
        }
        state
    }

    fn dns(&self) -> Value {
        let texts = self
            .dns
            .iter()
            .map(|server| Value::from(server.to_string()));
        texts.collect()
    }
}

/// A policy without pools: the input of nmstate.
#[derive(Clone, Debug, PartialEq)]
pub struct Rendered {
    /// `desiredState` with addresses for pool templates.
    pub desired_state: Value,
    /// The captures that nmstate evaluates.
    pub capture: BTreeMap<String, String>,
    /// The results of pool captures by name, for the enactment.
    pub captured: BTreeMap<String, Value>,
}

pub(super) fn render(
    policy: &PoolPolicy,
    granted: &BTreeMap<String, Granted>,
) -> Result<Rendered, CaptureError> {
    for (capture, wanted) in &policy.wanted {
        if !granted.contains_key(capture) {
            return Err(CaptureError::NotGranted {
                capture: capture.clone(),
                pool: wanted.pool.clone(),
            });
        }
    }
    let walk = Walk { policy, granted };
    let mut desired_state = policy.desired.clone();
    walk.fill(&mut desired_state, &mut Path::root())?;
    walk.fill_inline(&mut desired_state);
    walk.check_families(&desired_state)?;
    let of_capture = |(name, wanted): (&String, &super::policy::Wanted)| {
        let result = granted
            .get(name)
            .filter(|_| wanted.source == Source::Capture)?;
        Some((name.clone(), result.captured()))
    };
    Ok(Rendered {
        desired_state,
        capture: policy.others.clone(),
        captured: policy.wanted.iter().filter_map(of_capture).collect(),
    })
}

/// Where a value is, for messages.
struct Path(Vec<String>);

impl Path {
    fn root() -> Path {
        Path(vec!["spec.desiredState".to_owned()])
    }

    fn text(&self) -> String {
        self.0.concat()
    }
}

struct Walk<'a> {
    policy: &'a PoolPolicy,
    granted: &'a BTreeMap<String, Granted>,
}

impl Walk<'_> {
    /// Replaces pool templates everywhere under a value.
    fn fill(&self, value: &mut Value, path: &mut Path) -> Result<(), CaptureError> {
        match value {
            Value::String(text) => {
                if let Some(filled) = self.filled(text, path)? {
                    *value = filled;
                }
            }
            Value::Array(list) => {
                for (index, child) in list.iter_mut().enumerate() {
                    path.0.push(format!("[{index}]"));
                    self.fill(child, path)?;
                    path.0.pop();
                }
            }
            Value::Object(map) => {
                for (key, child) in map.iter_mut() {
                    path.0.push(format!(".{key}"));
                    self.fill(child, path)?;
                    path.0.pop();
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// A text with its pool templates replaced; none if it has none. A template that is the whole text keeps its type.
    fn filled(&self, text: &str, path: &Path) -> Result<Option<Value>, CaptureError> {
        let parts = parts(text);
        let mut values = Vec::new();
        for part in &parts {
            values.push(match part {
                Part::Template(template) => self.value(template, path)?,
                Part::Text(_) => None,
            });
        }
        if values.iter().all(Option::is_none) {
            return Ok(None);
        }
        if let [Some(_)] = values.as_slice() {
            return Ok(values.pop().flatten());
        }
        let mut filled = String::new();
        for (part, value) in parts.iter().zip(values) {
            match (part, value) {
                (_, Some(Value::String(text))) => filled.push_str(&text),
                (_, Some(Value::Number(number))) => filled.push_str(&number.to_string()),
                (Part::Template(template), Some(_)) => {
                    return Err(CaptureError::ListInText {
                        path: path.text(),
                        text: text.to_owned(),
                        template: (*template).to_owned(),
                    });
                }
                (Part::Text(text), _) => filled.push_str(text),
                // Another capture's: nmstate fills it.
                (Part::Template(template), None) => {
                    filled.push_str(&format!("{{{{ {template} }}}}"))
                }
            }
        }
        Ok(Some(filled.into()))
    }

    /// What a template stands for; none if it is not about a pool capture.
    fn value(&self, template: &str, path: &Path) -> Result<Option<Value>, CaptureError> {
        let Some((name, field)) = capture_path(template) else {
            return Ok(None);
        };
        let wanted = self.policy.wanted.get(name);
        if wanted.is_none_or(|wanted| wanted.source != Source::Capture) {
            return Ok(None);
        }
        let Some(granted) = self.granted.get(name) else {
            return Ok(None);
        };
        let absent = |field: &'static str| CaptureError::Absent {
            path: path.text(),
            template: template.to_owned(),
            pool: granted.pool.clone(),
            field,
        };
        let value = match field {
            "ip" => granted.address.to_string().into(),
            "prefix-length" => granted.prefix_length.into(),
            "gateway" => granted
                .gateway
                .ok_or_else(|| absent("gateway"))?
                .to_string()
                .into(),
            "dns" if granted.dns.is_empty() => return Err(absent("dns")),
            "dns" => granted.dns(),
            other => {
                let index = other
                    .strip_prefix("dns.")
                    .and_then(|index| index.parse::<usize>().ok());
                let Some(index) = index else {
                    return Err(CaptureError::Field {
                        path: path.text(),
                        template: template.to_owned(),
                    });
                };
                let server = granted.dns.get(index).ok_or_else(|| absent("dns"))?;
                server.to_string().into()
            }
        };
        Ok(Some(value))
    }

    /// Replaces `ipam: {pool: NAME}` by the address.
    fn fill_inline(&self, desired: &mut Value) {
        let list = desired.get_mut("interfaces").and_then(Value::as_array_mut);
        for (place, interface) in list.into_iter().flatten().enumerate() {
            let name = inline::named(place, interface);
            for family in [Family::V4, Family::V6] {
                let block = interface.get_mut(inline::block_of(family));
                let entries = block
                    .and_then(|block| block.get_mut("address"))
                    .and_then(Value::as_array_mut);
                for (index, entry) in entries.into_iter().flatten().enumerate() {
                    let granted = self.granted.get(&inline::name(&name, family, index));
                    if let (Some(entry), Some(granted)) = (entry.as_object_mut(), granted) {
                        put_address(entry, granted);
                    }
                }
            }
        }
    }

    /// An address of a pool stands in a block of its family.
    fn check_families(&self, desired: &Value) -> Result<(), CaptureError> {
        let list = desired.get("interfaces").and_then(Value::as_array);
        for (place, interface) in list.into_iter().flatten().enumerate() {
            for expected in [Family::V4, Family::V6] {
                let block = inline::block_of(expected);
                let entries = interface.pointer(&format!("/{block}/address"));
                let entries = entries.and_then(Value::as_array);
                for (index, entry) in entries.into_iter().flatten().enumerate() {
                    let text = entry.get("ip").and_then(Value::as_str);
                    let address: Option<Address> = text.and_then(|text| text.parse().ok());
                    let Some(address) = address.filter(|address| address.family() != expected)
                    else {
                        continue;
                    };
                    let mut all = self.granted.values();
                    let Some(granted) = all.find(|granted| granted.address == address) else {
                        continue;
                    };
                    return Err(CaptureError::Family {
                        path: format!(
                            "spec.desiredState.interfaces[{place}].{block}.address[{index}].ip"
                        ),
                        address,
                        pool: granted.pool.clone(),
                        found: address.family(),
                        expected,
                    });
                }
            }
        }
        Ok(())
    }
}

fn put_address(entry: &mut Map<String, Value>, granted: &Granted) {
    if entry.shift_remove("ipam").is_some() {
        entry.insert("ip".to_owned(), granted.address.to_string().into());
        entry.insert("prefix-length".to_owned(), granted.prefix_length.into());
    }
}

#[cfg(test)]
mod tests;
