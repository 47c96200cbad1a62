//! `range` and `ipRanges`: each becomes a range from which one address is allocated.

use std::sync::Arc;

use berth_cni::fields::{Fields, Path};
use berth_core::dialect::WHEREABOUTS;
use berth_core::{Address, Block, RangeSpec, Space, Warning};

use super::source::Source;
use super::{ConfigError, RangeConfig, Settings};

/// One range as it is written, before anything is parsed.
struct Written {
    range: String,
    /// Several if inline and flat file both set one: the first valid one is used.
    starts: Vec<String>,
    ends: Vec<String>,
    exclude: Vec<String>,
    gateway: String,
}

/// The top-level `range` first, then `ipRanges`, in their order.
pub(super) fn read(
    source: &Source<'_>,
    settings: &Settings,
    warnings: &mut Vec<Warning>,
) -> Result<Vec<RangeConfig>, ConfigError> {
    let gateway = address("gateway", &source.text("gateway")?)?;
    let mut written = Vec::new();
    let range = source.text("range")?;
    if !range.is_empty() {
        written.push(Written {
            range,
            starts: source.texts_in_turn("range_start")?,
            ends: source.texts_in_turn("range_end")?,
            exclude: source.strings("exclude")?,
            gateway: String::new(),
        });
    }
    let list = Path::Root("ipRanges");
    for (index, item) in source.list("ipRanges")?.iter().enumerate() {
        let path = Path::Index(&list, index);
        let fields = Fields::of(&path, item)?;
        let one = |text: String| {
            if text.is_empty() {
                Vec::new()
            } else {
                vec![text]
            }
        };
        written.push(Written {
            range: fields.text_or_empty("range")?,
            starts: one(fields.text_or_empty("range_start")?),
            ends: one(fields.text_or_empty("range_end")?),
            exclude: fields.texts("exclude")?,
            gateway: fields.text_or_empty("gateway")?,
        });
    }
    written
        .into_iter()
        .map(|one| build(&one, gateway, settings, warnings))
        .collect()
}

fn build(
    written: &Written,
    gateway: Option<Address>,
    settings: &Settings,
    warnings: &mut Vec<Warning>,
) -> Result<RangeConfig, ConfigError> {
    let mut spec = RangeSpec::parse(&written.range)?;
    // A range of the form first-last/length has its bounds; separate bounds are ignored.
    if spec.start.is_none() {
        spec.start = bound("range_start", &written.starts, warnings);
        spec.end = bound("range_end", &written.ends, warnings);
    }
    for entry in &written.exclude {
        let block = Block::parse("exclude", entry).map_err(ConfigError::Exclude)?;
        let range = spec.prefix.block();
        let apart = match block.family() == range.family() {
            true if block.first() > range.last() || block.last() < range.first() => {
                Some("has no address of it")
            }
            true => None,
            false => Some("is of the other family"),
        };
        match apart {
            None => spec.exclude.push(block),
            Some(apart) => warnings.push(Warning {
                field: "exclude",
                value: entry.clone(),
                why: format!("{} {apart}", spec.prefix),
            }),
        }
    }
    let gateway = match address("gateway", &written.gateway)? {
        Some(own) => Some(own),
        None => gateway.filter(|gateway| gateway.family() == spec.prefix.family()),
    };
    spec.gateway = gateway;
    let mut dialect = WHEREABOUTS;
    if settings.exclude_gateway {
        dialect = dialect.withholding_gateway();
    }
    if settings.tiny_networks {
        dialect = dialect.with_tiny_networks();
    }
    let (space, passed_over) = Space::build(&spec, dialect)?;
    warnings.extend(passed_over);
    Ok(RangeConfig {
        spec,
        space: Arc::new(space),
        gateway,
        wanted: None,
    })
}

/// The first text that is an address. Invalid ones are skipped, as in whereabouts.
fn bound(field: &'static str, texts: &[String], warnings: &mut Vec<Warning>) -> Option<Address> {
    for text in texts {
        match Address::parse_lenient(text) {
            Some(address) => return Some(address),
            None => warnings.push(Warning {
                field,
                value: text.clone(),
                why: "it is not an address".to_owned(),
            }),
        }
    }
    None
}

/// An address, if the key is set.
pub(super) fn address(field: &str, text: &str) -> Result<Option<Address>, ConfigError> {
    if text.is_empty() {
        return Ok(None);
    }
    match Address::parse_lenient(text) {
        Some(address) => Ok(Some(address)),
        None => Err(ConfigError::Value {
            field: field.to_owned(),
            value: text.to_owned(),
            expected: "an IPv4 or IPv6 address",
        }),
    }
}
