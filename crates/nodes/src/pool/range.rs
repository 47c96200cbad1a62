//! One range of a NodeIPPool: its texts, read strictly.
//!
//! Admission refuses most of what is refused here; an API server without the definition's rules does not, and a file
//! for `berth offsets` has passed neither.

use berth_api::nmstate::{MAX_EXCLUDES, Range};
use berth_core::dialect::NODE_IP_POOL;
use berth_core::{Address, Block, Family, Prefix, RangeError, RangeSpec, Space};
use thiserror::Error;

/// A spec that can't be used: the field, the value and what would be right.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SpecError {
    #[error("spec: {0}")]
    Shape(String),
    #[error("spec.{field}: `{value}` can't be read; give {expected}")]
    Malformed {
        field: String,
        value: String,
        expected: &'static str,
    },
    #[error(
        "spec.{field}: {value} is {found}, but the pool is {expected}; make a second pool for it"
    )]
    Family {
        field: String,
        value: String,
        found: Family,
        expected: Family,
    },
    #[error("spec.{field}: {source}")]
    Range { field: String, source: RangeError },
    #[error(
        "spec.{field}: {value} lies outside of the range {range} and excludes nothing; remove or correct it"
    )]
    ExcludesNothing {
        field: String,
        value: String,
        range: Block,
    },
    #[error("spec.{field}: every address of {range} is excluded; leave addresses to allocate")]
    NothingLeft { field: String, range: Block },
    #[error(
        "spec.{field}: {value} is no address of a network of this pool; give one of {expected}"
    )]
    Outside {
        field: String,
        value: String,
        expected: Prefix,
    },
    #[error("spec.{field}: {block} is in spec.{other} too; name each address once")]
    Overlap {
        field: String,
        other: String,
        block: Block,
    },
    #[error("spec.reservations: {address} is reserved for {a} and {b}; give each its own")]
    ReservedTwice {
        address: Address,
        a: String,
        b: String,
    },
    #[error(
        "spec.reservations: {address}, for {node}, can't be allocated: it is {place}; give another"
    )]
    Unreservable {
        node: String,
        address: Address,
        place: &'static str,
    },
    #[error("spec.{field}: {count} entries; give at most {most}")]
    TooMany {
        field: String,
        count: usize,
        most: usize,
    },
}

pub(super) const ADDRESS: &str = "an IPv4 or IPv6 address such as 10.10.10.4 or fd00:10::4";
const NETWORK: &str = "a network such as 10.10.10.0/24 or fd00:10::/64";

/// A range that was read.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    /// The field that it came from, such as `ranges[0]`.
    pub field: String,
    pub prefix: Prefix,
    /// Its first and last address.
    pub bounds: Block,
    pub space: Space,
    pub gateway: Option<Address>,
    /// How many offsets it has, excluded ones included.
    pub offsets: u128,
    /// The offset of its first address.
    pub base: u128,
    /// The CIDR as it was written, where it has host bits.
    pub masked: Option<String>,
}

pub(super) fn address(field: &str, text: &str) -> Result<Address, SpecError> {
    text.parse().map_err(|_| SpecError::Malformed {
        field: field.to_owned(),
        value: text.to_owned(),
        expected: ADDRESS,
    })
}

impl Segment {
    /// Reads one range. `gateway` is the pool's, which counts where it is of this network.
    pub fn read(
        field: String,
        range: &Range,
        gateway: Option<Address>,
    ) -> Result<Segment, SpecError> {
        let at = |name: &str| format!("{field}.{name}");
        let prefix = network(&at("cidr"), &range.cidr)?;
        let bound = |name: &str, text: &Option<String>| {
            let text = text.as_deref();
            text.map(|text| of_family(&at(name), text, prefix.family()))
                .transpose()
        };
        let (start, end) = (bound("start", &range.start)?, bound("end", &range.end)?);
        let own = bound("gateway", &range.gateway)?;
        if let Some(outside) = own.filter(|own| !prefix.contains(*own)) {
            return Err(SpecError::Outside {
                field: at("gateway"),
                value: outside.to_string(),
                expected: prefix,
            });
        }
        let gateway = own.or(gateway.filter(|gateway| prefix.contains(*gateway)));
        let exclude = excludes(&at("exclude"), &range.exclude, prefix.family())?;
        let spec = RangeSpec {
            prefix,
            start,
            end,
            exclude,
            gateway,
        };
        let refused = |source: RangeError| named(&field, source);
        let bare = RangeSpec {
            exclude: Vec::new(),
            gateway: None,
            ..spec.clone()
        };
        // Without excludes first: where it begins and ends, whatever of it is excluded.
        let (whole, _) = Space::build(&bare, NODE_IP_POOL).map_err(refused)?;
        let bounds = whole.blocks().first().copied();
        let bounds = bounds.unwrap_or_else(|| prefix.block());
        let outside =
            |block: &&Block| block.last() < bounds.first() || block.first() > bounds.last();
        if let Some(block) = spec.exclude.iter().find(outside) {
            return Err(SpecError::ExcludesNothing {
                field: at("exclude"),
                value: block.to_string(),
                range: bounds,
            });
        }
        let nothing_left = || SpecError::NothingLeft {
            field: at("exclude"),
            range: bounds,
        };
        let (space, _) = Space::build(&spec, NODE_IP_POOL).map_err(|source| match source {
            RangeError::Nothing { .. } => nothing_left(),
            other => refused(other),
        })?;
        if space.is_empty() {
            return Err(nothing_left());
        }
        Ok(Segment {
            masked: has_host_bits(&range.cidr, prefix).then(|| range.cidr.clone()),
            offsets: whole.count(),
            base: 0,
            field,
            prefix,
            bounds,
            space,
            gateway,
        })
    }
}

/// Core names the fields of its own dialects; a pool's are `start` and `end` of one of its ranges.
fn named(field: &str, source: RangeError) -> SpecError {
    let name = match &source {
        RangeError::BoundOutside { field, .. }
        | RangeError::Reversed { field, .. }
        | RangeError::Family { field, .. } => match *field {
            "range_start" => "start",
            "range_end" => "end",
            other => other,
        },
        RangeError::ExcludesOverlap { .. } => "exclude",
        _ => "cidr",
    };
    SpecError::Range {
        field: format!("{field}.{name}"),
        source,
    }
}

fn network(field: &str, text: &str) -> Result<Prefix, SpecError> {
    let malformed = || SpecError::Malformed {
        field: field.to_owned(),
        value: text.to_owned(),
        expected: NETWORK,
    };
    let (address, length) = text.split_once('/').ok_or_else(malformed)?;
    let address: Address = address.parse().map_err(|_| malformed())?;
    let length = length.parse().map_err(|_| malformed())?;
    Prefix::containing(address, length).ok_or_else(malformed)
}

fn has_host_bits(text: &str, prefix: Prefix) -> bool {
    let address = text.split('/').next().and_then(|text| text.parse().ok());
    address.is_some_and(|address: Address| address != prefix.network())
}

fn of_family(field: &str, text: &str, family: Family) -> Result<Address, SpecError> {
    let address = address(field, text)?;
    if address.family() == family {
        return Ok(address);
    }
    Err(SpecError::Family {
        field: field.to_owned(),
        value: text.to_owned(),
        found: address.family(),
        expected: family,
    })
}

fn excludes(field: &str, entries: &[String], family: Family) -> Result<Vec<Block>, SpecError> {
    if entries.len() > MAX_EXCLUDES {
        return Err(SpecError::TooMany {
            field: field.to_owned(),
            count: entries.len(),
            most: MAX_EXCLUDES,
        });
    }
    let read = |entry: &String| {
        let block = match entry.contains('/') {
            true => network(field, entry)?.block(),
            false => Block::single(address(field, entry)?),
        };
        match block.family() == family {
            true => Ok(block),
            false => Err(SpecError::Family {
                field: field.to_owned(),
                value: entry.clone(),
                found: block.family(),
                expected: family,
            }),
        }
    };
    entries.iter().map(read).collect()
}
