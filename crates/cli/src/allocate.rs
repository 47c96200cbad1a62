//! `berth allocate`: an address by hand, for what is no pod.

use std::sync::Arc;

use anyhow::{Context, bail};
use berth_core::dialect::WHEREABOUTS;
use berth_core::{Address, Answer, Claim, Handle, Owner, RangeSpec, Record, Request, Space, Want};
use berth_desk::{Desk, DeskMetrics, DeskSettings};
use berth_ledger::{PoolKey, SharedLedger};
use clap::Args;

use crate::addresses::AddressRow;
use crate::exit::Negative;
use crate::output::{self, Format};

#[derive(Debug, Args)]
pub struct Allocate {
    /// The range to allocate from, such as 10.0.0.0/24 or 10.0.0.5-10.0.0.9/24.
    #[arg(long)]
    range: String,
    /// Addresses to leave out: an address, a CIDR or first-last.
    #[arg(long)]
    exclude: Vec<String>,
    /// The pool; by default that of the range's network.
    #[arg(long)]
    pool: Option<String>,
    /// Who gets it, such as default/my-pod. The same owner gets the same address again.
    #[arg(long)]
    owner: String,
    /// The owner's interface.
    #[arg(long, default_value = "")]
    interface: String,
    /// This address and no other.
    #[arg(long)]
    address: Option<Address>,
}

impl Allocate {
    pub async fn run(&self, ledger: SharedLedger, format: Format) -> anyhow::Result<()> {
        if self.owner.trim().is_empty() {
            bail!(Negative::Refused(
                "--owner: `` names nobody; give a name such as default/my-pod".into()
            ));
        }
        let spec = RangeSpec::parse(&self.range).context("--range")?;
        let spec = spec.excluding(&self.exclude).context("--exclude")?;
        let dialect = WHEREABOUTS.with_tiny_networks();
        let (space, warnings) = Space::build(&spec, dialect).context("--range")?;
        for warning in warnings {
            tracing::warn!("{warning}");
        }
        let name = match &self.pool {
            Some(name) => name.clone(),
            None => berth_api::names::pool("", "", spec.prefix),
        };
        let key = PoolKey::of_network(name, spec.prefix);
        let record = Record::new(
            Owner::new(&self.owner, &self.interface),
            Handle::new("by-hand"),
        );
        let space = Arc::new(space);
        let want = Want {
            exact: self.address,
            ..Want::any(space)
        };
        let request = Request::Claim(Claim {
            record: record.clone(),
            wants: vec![want],
        });
        let metrics = DeskMetrics::default().of(&key.name);
        let desk = Desk::open(ledger, key.clone(), &DeskSettings::default(), metrics);
        match desk.submit(request).await? {
            Answer::Granted(granted) => {
                let rows: Vec<AddressRow> = granted
                    .iter()
                    .map(|grant| AddressRow::new(&key, grant.address, &record))
                    .collect();
                output::print(format, &rows)
            }
            Answer::Refused(refusal) => bail!(Negative::Refused(refusal.to_string())),
            other => bail!("the desk answered {other:?} to a claim"),
        }
    }
}
