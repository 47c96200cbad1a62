//! `berth release`: frees an address by hand, after asking.

use std::io::{self, BufRead, IsTerminal, Write};
use std::time::Duration;

use anyhow::bail;
use berth_core::plan::Selector;
use berth_core::{Address, Answer, Record, Request};
use berth_desk::{Desk, DeskMetrics, DeskSettings};
use berth_ledger::{ClaimKind, LedgerError, PoolKey, SharedLedger};
use clap::Args;

use crate::addresses::{AddressRow, holders};
use crate::exit::Negative;
use crate::output::{self, Format};

#[derive(Debug, Args)]
pub struct Release {
    /// The address.
    address: Address,
    /// Only if it is held in this pool.
    #[arg(long)]
    pool: Option<String>,
    /// Only if this owner holds it.
    #[arg(long)]
    owner: Option<String>,
    /// Do not ask.
    #[arg(long, short)]
    yes: bool,
}

impl Release {
    pub async fn run(&self, ledger: SharedLedger, format: Format) -> anyhow::Result<()> {
        let mut found = holders(&ledger, self.address).await?;
        found.retain(|(key, record)| {
            self.pool.as_ref().is_none_or(|pool| *pool == key.name)
                && self
                    .owner
                    .as_ref()
                    .is_none_or(|owner| *owner == record.owner.subject)
        });
        let (key, record) = match found.as_slice() {
            [] => bail!(Negative::NotFound(format!("nobody holds {}", self.address))),
            [one] => one,
            many => {
                let names: Vec<String> = many
                    .iter()
                    .map(|(key, record)| format!("{} in {key}", record.owner))
                    .collect();
                bail!(Negative::Refused(format!(
                    "{} is held by {}; say which with --pool or --owner",
                    self.address,
                    names.join(" and by ")
                )));
            }
        };
        if !self.yes
            && !confirmed(&format!(
                "release {} of {} from {key}?",
                self.address, record.owner
            ))?
        {
            bail!(Negative::Refused("nothing was released".into()));
        }
        release(&ledger, key, self.address, record).await?;
        output::print(format, &[AddressRow::new(key, self.address, record)])
    }
}

/// Frees the address from the holder that was shown (I6), and its reservation with it.
async fn release(
    ledger: &SharedLedger,
    key: &PoolKey,
    address: Address,
    holder: &Record,
) -> anyhow::Result<()> {
    let metrics = DeskMetrics::default().of(&key.name);
    let desk = Desk::open(
        ledger.clone(),
        key.clone(),
        &DeskSettings::default(),
        metrics,
    );
    let selector = Selector::Address {
        address,
        holder: holder.clone(),
    };
    let request = Request::Release(berth_core::Release {
        selector,
        rest: Duration::ZERO,
    });
    match desk.submit(request).await? {
        Answer::Released(freed) if !freed.is_empty() => {}
        Answer::Released(_) => bail!(Negative::NotFound(format!(
            "nobody holds {address} any more"
        ))),
        Answer::Refused(refusal) => bail!(Negative::Refused(refusal.to_string())),
        other => bail!("the desk answered {other:?} to a release"),
    }
    for (name, record) in ledger.claims(ClaimKind::Reservation).await? {
        if record.owner == holder.owner && berth_api::names::reserves(&name.name, address) {
            match ledger.remove(&name, &record).await {
                // The pod was made again meanwhile, and has said so.
                Err(LedgerError::Taken { .. }) => {}
                ended => ended?,
            }
        }
    }
    Ok(())
}

#[allow(clippy::print_stderr)]
fn confirmed(question: &str) -> anyhow::Result<bool> {
    if !io::stdin().is_terminal() {
        bail!(Negative::Refused(format!(
            "{question} There is nobody to ask: say --yes"
        )));
    }
    eprint!("{question} [y/N] ");
    io::stderr().flush()?;
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    Ok(matches!(line.trim(), "y" | "Y" | "yes"))
}
