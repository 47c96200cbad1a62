//! When a pool is reported as too small or too large, and to whom.

use std::path::PathBuf;
use std::time::Duration;

use super::layers::{Layers, SettingsError};
use super::{keys, required, some_time};

/// What is reported, and how often.
#[derive(Debug, Clone, PartialEq)]
pub struct Scaling {
    /// Fewer free VMs than this are too few.
    pub low: Option<Level>,
    /// More free VMs than this are too many.
    pub high: Option<Level>,
    pub hook: Option<Hook>,
    /// The least time between two reports of one pool.
    pub cooldown: Duration,
}

/// A number of free VMs, or a share of all VMs of the pool.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Level {
    Count(usize),
    Percent(f64),
}

/// The URL that is called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hook {
    pub url: String,
    /// Read again for every call.
    pub token_file: Option<PathBuf>,
    /// The certificates that an https URL is trusted by, read again for every call; `None`: the system's.
    pub ca_file: Option<PathBuf>,
    pub timeout: Duration,
}

impl Level {
    fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is neither a number of VMs nor a share from 0% to 100%");
        match text.strip_suffix('%') {
            Some(share) => match share.trim().parse::<f64>() {
                Ok(share) if (0.0..=100.0).contains(&share) => Ok(Self::Percent(share)),
                _ => Err(wrong()),
            },
            None => text.parse().map(Self::Count).map_err(|_| wrong()),
        }
    }

    /// As a number of VMs of a pool of this size.
    pub fn of(self, total: usize) -> f64 {
        match self {
            Self::Count(count) => count as f64,
            Self::Percent(share) => total as f64 * share / 100.0,
        }
    }
}

pub(super) fn read(layers: &Layers) -> Result<Option<Scaling>, SettingsError> {
    let low = layers.parse(keys::LOW_WATER, Level::parse)?;
    let high = layers.parse(keys::HIGH_WATER, Level::parse)?;
    let url = layers.parse(keys::SCALE_HOOK, |text| {
        let is_url = ["http://", "https://"].iter().any(|scheme| {
            let rest = text.strip_prefix(scheme);
            rest.is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/'))
        });
        match is_url {
            true => Ok(text.to_owned()),
            false => Err(format!("{text:?} is no http or https URL")),
        }
    })?;
    let ca_file = layers.parse(keys::SCALE_HOOK_CA, |text| Ok(PathBuf::from(text)))?;
    let token_file = layers.parse(keys::SCALE_HOOK_TOKEN, |text| Ok(PathBuf::from(text)))?;
    let (timeout, cooldown) = (
        required(layers, keys::SCALE_HOOK_TIMEOUT, some_time)?,
        required(layers, keys::SCALE_COOLDOWN, some_time)?,
    );
    let together = |why: &str| Err(SettingsError::Together(why.into()));
    match (low, high) {
        (None, None) if url.is_some() => together(
            "vm-scale-hook is never called without vm-low-water or vm-high-water: set one of them",
        ),
        (None, None) => Ok(None),
        (Some(Level::Count(low)), Some(Level::Count(high))) if high <= low => together(
            "vm-high-water must be above vm-low-water: a pool would be too small and too large at once",
        ),
        (Some(Level::Percent(low)), Some(Level::Percent(high))) if high <= low => together(
            "vm-high-water must be above vm-low-water: a pool would be too small and too large at once",
        ),
        _ => Ok(Some(Scaling {
            low,
            high,
            hook: url.map(|url| Hook {
                url,
                token_file,
                ca_file,
                timeout,
            }),
            cooldown,
        })),
    }
}
