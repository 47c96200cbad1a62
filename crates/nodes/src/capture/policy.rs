//! The captures of a policy, read: which are a pool's, and which are nmstate's.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::error::CaptureError;
use super::inline;
use super::render::{self, Granted, Rendered};
use crate::pool::PoolSpace;

/// The most captures of a policy, and the most addresses that it takes from pools.
const MOST: usize = 256;
/// The deepest state that is read: recursion over it has to end.
const DEEPEST: usize = 64;

/// Where a policy asks for an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// `ippool.NAME.allocate` under `spec.capture`.
    Capture,
    /// `ipam: {pool: NAME}` in an address list.
    Inline,
}

/// What a policy takes from pools. Each entry has a name that is unique in the policy: (node, policy, name) owns the address.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolPolicy {
    pub(super) wanted: BTreeMap<String, Wanted>,
    pub(super) others: BTreeMap<String, String>,
    pub(super) desired: Value,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub pool: String,
    pub source: Source,
}

impl PoolPolicy {
    /// Reads the `spec` of a policy. A policy without pools has an empty [`PoolPolicy::wanted`].
    pub fn read(spec: &Value) -> Result<PoolPolicy, CaptureError> {
        let captures = match spec.get("capture") {
            None | Some(Value::Null) => &Map::new(),
            Some(Value::Object(captures)) => captures,
            Some(_) => {
                return Err(CaptureError::Shape {
                    field: "capture",
                    expected: "a map of names to expressions",
                });
            }
        };
        let desired = spec.get("desiredState").cloned().unwrap_or(Value::Null);
        if depth(&desired) > DEEPEST {
            return Err(CaptureError::TooMany {
                field: "desiredState",
                found: depth(&desired),
                most: DEEPEST,
            });
        }
        let mut policy = PoolPolicy {
            wanted: BTreeMap::new(),
            others: BTreeMap::new(),
            desired,
        };
        for (name, expression) in captures {
            let Some(expression) = expression.as_str() else {
                return Err(CaptureError::Malformed {
                    name: name.clone(),
                    value: expression.to_string(),
                });
            };
            match pool_of(name, expression)? {
                Some(pool) => policy.want(name.clone(), pool, Source::Capture),
                None => drop(policy.others.insert(name.clone(), expression.to_owned())),
            }
        }
        for (name, pool) in inline::find(&policy.desired)? {
            policy.want(name, pool, Source::Inline);
        }
        let found = policy.wanted.len().max(captures.len());
        if found > MOST {
            return Err(CaptureError::TooMany {
                field: "capture",
                found,
                most: MOST,
            });
        }
        policy.check_others()?;
        Ok(policy)
    }

    /// The capture and the pool of each address that the policy needs.
    pub fn wanted(&self) -> impl Iterator<Item = (&str, &str)> {
        self.wanted
            .iter()
            .map(|(name, wanted)| (name.as_str(), wanted.pool.as_str()))
    }

    /// Whether the policy takes anything from a pool.
    pub fn uses_pools(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// Renders the state with the first address of each pool, so that what can't be rendered is known before anything is allocated.
    /// Pools that are not there are passed over: their captures wait.
    pub fn rehearse<'a>(
        &self,
        pools: impl Fn(&str) -> Option<&'a PoolSpace>,
    ) -> Result<(), CaptureError> {
        let mut granted = BTreeMap::new();
        for (name, pool) in self.wanted() {
            let Some(space) = pools(pool) else {
                return Ok(());
            };
            let first = space.spaces().find_map(berth_core::Space::first);
            if let Some(example) = first.and_then(|address| Granted::of(pool, space, address)) {
                granted.insert(name.to_owned(), example);
            }
        }
        self.render(&granted).map(drop)
    }

    /// The policy for nmstate: pool captures and their templates replaced by what was allocated.
    pub fn render(&self, granted: &BTreeMap<String, Granted>) -> Result<Rendered, CaptureError> {
        render::render(self, granted)
    }

    fn want(&mut self, name: String, pool: String, source: Source) {
        self.wanted.insert(name, Wanted { pool, source });
    }

    /// What ordinary captures may not do with pool captures, and what nmstate does not know.
    fn check_others(&self) -> Result<(), CaptureError> {
        // A policy that has nothing to do with pools is nmstate's alone.
        if !self.uses_pools() {
            return Ok(());
        }
        for (name, value) in &self.others {
            let bare = without_quotes(value);
            if bare.contains("!=") {
                let (name, value) = (name.clone(), value.clone());
                return Err(CaptureError::NotEqual { name, value });
            }
            let pooled = |text: &str| {
                let mut words = text.split(|c: char| !is_path(c));
                let names_pool = |word: &str| {
                    let capture = word
                        .strip_prefix("capture.")
                        .and_then(|rest| rest.split('.').next());
                    capture.is_some_and(|capture| self.wanted.contains_key(capture))
                        || word.starts_with("ippool.")
                };
                words.find(|word| names_pool(word)).map(str::to_owned)
            };
            let piped = bare.split_once('|').and_then(|(before, _)| pooled(before));
            if let Some(pool) = piped {
                return Err(CaptureError::Piped {
                    name: name.clone(),
                    value: value.clone(),
                    pool: pool.trim_start_matches("capture.").to_owned(),
                });
            }
            if pooled(&bare).is_some() {
                let (name, value) = (name.clone(), value.clone());
                return Err(CaptureError::Compared { name, value });
            }
        }
        Ok(())
    }
}

const fn is_path(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_')
}

/// The pool that a capture is of; none for nmstate's own captures.
fn pool_of(name: &str, expression: &str) -> Result<Option<String>, CaptureError> {
    let text = expression.trim();
    if text != "ippool" && !text.starts_with("ippool.") {
        return Ok(None);
    }
    let (owned, value) = (|| name.to_owned(), || expression.to_owned());
    let bare = without_quotes(text);
    if bare.contains('|') {
        return Err(CaptureError::Piped {
            name: owned(),
            value: value(),
            pool: owned(),
        });
    }
    if bare.contains('=') {
        return Err(CaptureError::Compared {
            name: owned(),
            value: value(),
        });
    }
    let parts = text
        .strip_prefix("ippool.")
        .and_then(|rest| rest.rsplit_once('.'));
    let Some((pool, action)) = parts.filter(|(pool, _)| !pool.is_empty()) else {
        return Err(CaptureError::Malformed {
            name: owned(),
            value: value(),
        });
    };
    if action != "allocate" {
        return Err(CaptureError::Action {
            name: owned(),
            value: value(),
            action: action.to_owned(),
        });
    }
    if !is_pool_name(pool) {
        return Err(CaptureError::PoolName {
            name: owned(),
            pool: pool.to_owned(),
        });
    }
    if !is_spellable(name) {
        return Err(CaptureError::Name { name: owned() });
    }
    Ok(Some(pool.to_owned()))
}

/// A name that `{{ capture.NAME.ip }}` can hold.
fn is_spellable(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.len() <= 253
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
}

/// A name that an object can have, and a label's value too.
pub(super) fn is_pool_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    (1..=63).contains(&name.len())
        && name.split('.').all(|part| {
            let ends = [part.bytes().next(), part.bytes().next_back()];
            ends.into_iter().all(|end| end.is_some_and(plain))
                && part.bytes().all(|byte| plain(byte) || byte == b'-')
        })
}

/// An expression less its quoted texts, in which anything may stand.
fn without_quotes(expression: &str) -> String {
    let outside = expression.split('"').step_by(2);
    outside.collect::<Vec<_>>().join("\"\"")
}

fn depth(value: &Value) -> usize {
    // Level by level: a state that is too deep must not be walked by recursion.
    let mut level = vec![value];
    let mut depth = 0;
    while !level.is_empty() && depth <= DEEPEST {
        depth += 1;
        level = level
            .into_iter()
            .flat_map(|value| match value {
                Value::Object(map) => map.values().collect::<Vec<_>>(),
                Value::Array(list) => list.iter().collect(),
                _ => Vec::new(),
            })
            .collect();
    }
    depth
}
