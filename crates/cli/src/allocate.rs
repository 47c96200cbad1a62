//! `berth allocate`: allocates an address by hand, from a network's definition, for an owner that is not a pod.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use berth_core::{Address, Record};
use berth_pods::{PodError, PodNetwork, by_hand};
use clap::Args;

use crate::addresses::AddressRow;
use crate::exit::Negative;
use crate::output::{self, Format};
use crate::store::{Store, Stores};

/// The directory, next to its file, in which `berth up` stores the network that it shows.
pub const NETWORKS: &str = "networks";

#[derive(Debug, Args)]
pub struct Allocate {
    /// The NetworkAttachmentDefinition to allocate from, as [NAMESPACE/]NAME [default namespace: default]. Without a
    /// cluster: a network of `berth up`.
    #[arg(long, required_unless_present = "config")]
    network: Option<String>,
    /// A file with the CNI configuration to allocate from, if no definition has it.
    #[arg(long, value_name = "FILE", conflicts_with = "network")]
    config: Option<PathBuf>,
    /// The nodes' flat file, such as whereabouts.conf: its gateway and exclusions also apply.
    #[arg(long, value_name = "FILE")]
    flat_file: Option<PathBuf>,
    /// The owner, such as default/printer. The same owner gets the same addresses again.
    #[arg(long)]
    owner: String,
    /// The owner's interface.
    #[arg(long, default_value = "")]
    interface: String,
    /// This address only [default: one of each range].
    #[arg(long)]
    address: Option<Address>,
    /// A note that `addresses` and `who` show.
    #[arg(long)]
    note: Option<String>,
}

impl Allocate {
    pub async fn run(&self, stores: Stores, format: Format) -> anyhow::Result<()> {
        let store = stores.only()?;
        let record = Record::by_hand(&self.owner, &self.interface, self.note.as_deref())?;
        let network = self.network(&store).await?;
        for warning in &network.warnings {
            output::note(&warning.to_string());
        }
        let allocated =
            by_hand::allocate(&store.engine(), network, record.clone(), self.address).await;
        let allocated = allocated.map_err(|error| match error {
            PodError::NoAddress(_) | PodError::Named { .. } => {
                anyhow::Error::new(Negative::Refused(error.to_string()))
            }
            error => error.into(),
        })?;
        let rows: Vec<AddressRow> = allocated
            .iter()
            .map(|one| AddressRow::new(&one.pool.name, one.address, &record).of(store.namespace()))
            .collect();
        output::print(format, &rows)
    }

    /// The flat file to use. Where an engine searches one, a missing file is skipped; one that a person names must
    /// exist.
    fn flat(&self) -> anyhow::Result<&[PathBuf]> {
        if let Some(file) = self.flat_file.as_ref().filter(|file| !file.exists()) {
            bail!(Negative::NotFound(format!(
                "there is no flat file {}",
                file.display()
            )));
        }
        Ok(self.flat_file.as_slice())
    }

    async fn network(&self, store: &Store) -> anyhow::Result<PodNetwork> {
        let flat = self.flat()?;
        if let Some(file) = &self.config {
            return read(file, store, flat);
        }
        let name = self.network.as_deref().unwrap_or_default();
        let Some(cluster) = &store.cluster else {
            let directory = store.directory.clone().unwrap_or_default().join(NETWORKS);
            if name.contains('/') {
                bail!(Negative::NotFound(format!(
                    "{name}: definitions are in a cluster; name it with --kubeconfig or KUBECONFIG"
                )));
            }
            return read(&directory.join(format!("{name}.json")), store, flat);
        };
        let (namespace, name) = name.split_once('/').unwrap_or(("default", name));
        let network = by_hand::network_of_cluster(&cluster.reader(), namespace, name, flat).await?;
        Ok(network)
    }
}

fn read(file: &Path, store: &Store, flat: &[PathBuf]) -> anyhow::Result<PodNetwork> {
    let text = match std::fs::read_to_string(file) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            bail!(Negative::NotFound(format!(
                "there is no network configuration {}",
                file.display()
            )))
        }
        text => text.with_context(|| file.display().to_string())?,
    };
    let name = file.file_stem().unwrap_or_default().to_string_lossy();
    let network = by_hand::network_of_text(&name, &text, store.cluster.is_some(), flat)?;
    Ok(network)
}
