//! `berth gcp provision`: the addresses of a cluster's subnet and their IPPool.

use anyhow::Context;
use berth_gcp::cloud::CloudError;
use berth_gcp::pool;
use berth_gcp::provision::executor::{Direction, Provisioner};
use berth_gcp::provision::plan::{Method, Wanted};
use berth_gcp::provision::{Step, SubnetPath};
use clap::{Args, ValueEnum};
use ipnet::Ipv4Net;
use serde::Serialize;

use super::cloud::CloudArgs;
use super::nodes;
use super::objects::{Lists, PoolObjects};
use crate::exit::Negative;
use crate::logs::{self, LogFormat};
use crate::output::{self, Format, Row};
use crate::store::StoreArgs;

/// Where the addresses come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum MethodName {
    /// A secondary range of the subnet, linked to an internal range.
    #[value(alias = "secondary-range")]
    Secondary,
    /// The subnet's primary range; each address is reserved when a pod gets it.
    Static,
}

#[derive(Debug, Args)]
pub struct Provision {
    /// Where the addresses come from.
    #[arg(long, value_enum, default_value_t = MethodName::Secondary)]
    method: MethodName,
    /// Show the remaining steps and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Delete the IPPool, remove the secondary range and release the internal range. Refused while pods hold addresses.
    #[arg(long)]
    undo: bool,
    /// The name of the secondary range and of its internal range.
    #[arg(long, value_name = "NAME", default_value = pool::DEFAULT_RANGE, value_parser = resource_name)]
    range_name: String,
    /// The prefix length of the range.
    #[arg(long, value_name = "BITS", default_value_t = 16, value_parser = clap::value_parser!(u8).range(8..=29))]
    prefix_length: u8,
    /// The CIDR from which Google may choose the range; can be repeated.
    #[arg(long, value_name = "CIDR", default_value = "10.0.0.0/8")]
    target_cidr: Vec<Ipv4Net>,
    /// A CIDR that the range must not overlap; can be repeated.
    #[arg(long, value_name = "CIDR")]
    exclude_cidr: Vec<Ipv4Net>,
    /// With --method static: the part of the primary range for pods [default: all of it].
    #[arg(long, value_name = "CIDR")]
    cidr: Option<Ipv4Net>,
    /// The IPPool [default: ippool-SUBNET].
    #[arg(long, value_name = "NAME", value_parser = object_name)]
    pool: Option<String>,
    /// The subnet, projects/PROJECT/regions/REGION/subnetworks/NAME [default: that of this VM's NIC].
    #[arg(long, value_name = "PATH")]
    subnet: Option<SubnetPath>,
    /// The NIC of this VM whose subnet to use.
    #[arg(long, value_name = "NAME", default_value = "nic0")]
    nic: String,
    #[command(flatten)]
    cloud: CloudArgs,
    #[arg(long, value_enum, default_value_t)]
    log_format: LogFormat,
}

impl Provision {
    pub async fn run(self, store: &StoreArgs, output: Format) -> anyhow::Result<()> {
        logs::start("info", self.log_format);
        self.check()?;
        let connection = store.required_cluster().await?;
        let subnet = self.subnet().await?;
        tracing::info!(%subnet, "the cluster's subnet");
        let provisioner = self.provisioner(PoolObjects::new(&connection), &subnet)?;
        let direction = match self.undo {
            true => Direction::Undo,
            false => Direction::Provision,
        };
        if self.undo {
            self.check_detached(&Lists::new(&connection)).await?;
        }
        let mut rows = Vec::new();
        if self.dry_run {
            let steps = provisioner.steps(direction).await?;
            rows.extend(steps.iter().map(|step| Done::of(step, "planned")));
        } else {
            let run = provisioner.run(direction, |step| {
                tracing::info!("done: {step}");
                rows.push(Done::of(step, "done"));
            });
            let outcome = run.await;
            if outcome.is_err() && !rows.is_empty() {
                output::note("not all steps are done; run the same command again to resume");
            }
            outcome?;
        }
        if rows.is_empty() {
            output::note("nothing is left to do");
        }
        output::print(output, &rows)
    }

    /// Checks that need no cluster.
    fn check(&self) -> anyhow::Result<()> {
        let usage = |text: String| Err(Negative::Usage(text).into());
        if self.method == MethodName::Secondary && self.cidr.is_some() {
            return usage(
                "--cidr is for --method static; --target-cidr says where Google may choose from"
                    .to_owned(),
            );
        }
        if let Some(cidr) = self.cidr.filter(|cidr| cidr.prefix_len() > 29) {
            return usage(format!("--cidr {cidr} is too small: at most /29"));
        }
        let too_small = |target: &&Ipv4Net| target.prefix_len() > self.prefix_length;
        match self.target_cidr.iter().find(too_small) {
            Some(target) => usage(format!(
                "--target-cidr {target} is smaller than --prefix-length {}",
                self.prefix_length
            )),
            None => Ok(()),
        }
    }

    /// Google would refuse to remove the range after the IPPool is deleted: check first, so that nothing is left half
    /// done.
    async fn check_detached(&self, lists: &Lists) -> anyhow::Result<()> {
        if self.method == MethodName::Static {
            return Ok(());
        }
        for (name, node) in nodes::observe(lists, &self.cloud).await? {
            let aliases = node.aliases.iter().flatten();
            let ours = aliases.filter(|alias| alias.range.as_deref() == Some(&self.range_name));
            if let Some(alias) = ours.clone().next() {
                anyhow::bail!(Negative::Refused(format!(
                    "node {name} still has {} aliases of the range {}, {} first: delete their pods, and remove the aliases if no agent runs",
                    ours.count(),
                    self.range_name,
                    alias.cidr
                )));
            }
        }
        Ok(())
    }

    /// The named subnet, or that of this VM's NIC: the instance has it, the metadata server does not.
    async fn subnet(&self) -> anyhow::Result<SubnetPath> {
        if let Some(subnet) = &self.subnet {
            return Ok(subnet.clone());
        }
        let instead = "name the subnet with --subnet, and a key with --key-file";
        let vm = self.cloud.this_vm(instead).await?;
        let client = self.cloud.client(&vm.project)?;
        let found = client.instance(&vm.zone, &vm.instance).await;
        let instance = found.with_context(|| {
            format!(
                "read instance {} of zone {} in project {} (compute.instances.get)",
                vm.instance, vm.zone, vm.project
            )
        })?;
        let nic = instance.nic(&self.nic)?;
        let subnet = nic.subnetwork.parse();
        subnet.map_err(|error| CloudError::Refused(format!("NIC {}: {error}", self.nic)).into())
    }

    fn provisioner(
        &self,
        pools: PoolObjects,
        subnet: &SubnetPath,
    ) -> anyhow::Result<Provisioner<PoolObjects>> {
        let method = match self.method {
            MethodName::Secondary => Method::Secondary {
                range: self.range_name.clone(),
                prefix_length: self.prefix_length,
            },
            MethodName::Static => Method::Static {
                cidr: self.cidr.map(|cidr| cidr.trunc()),
            },
        };
        let path = subnet.to_string();
        let texts = |nets: &[Ipv4Net]| nets.iter().map(|net| net.trunc().to_string()).collect();
        Ok(Provisioner {
            cloud: self.cloud.client(&subnet.project)?,
            pools,
            region: subnet.region.clone(),
            subnetwork: subnet.name.clone(),
            wanted: Wanted {
                method,
                pool: self
                    .pool
                    .clone()
                    .unwrap_or_else(|| pool::default_name(&path)),
                subnet: path,
            },
            within: texts(&self.target_cidr),
            excluded: texts(&self.exclude_cidr),
            patience: self.cloud.timeout(),
        })
    }
}

/// Google's naming rule for ranges: RFC 1035.
fn resource_name(text: &str) -> Result<String, String> {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let begins = text.starts_with(|c: char| c.is_ascii_lowercase());
    match begins && text.len() <= 63 && text.chars().all(allowed) && !text.ends_with('-') {
        true => Ok(text.to_owned()),
        false => Err("1 to 63 of a-z, 0-9 and '-' are expected, a letter first".to_owned()),
    }
}

/// Kubernetes' naming rule for objects: a DNS subdomain.
fn object_name(text: &str) -> Result<String, String> {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let label = |label: &str| {
        let ends = label.starts_with(inner) && label.ends_with(inner);
        ends && label.chars().all(|c| inner(c) || c == '-')
    };
    match text.len() <= 253 && text.split('.').all(label) {
        true => Ok(text.to_owned()),
        false => Err("a name of a-z, 0-9, '-' and '.' is expected".to_owned()),
    }
}

#[derive(Serialize)]
struct Done {
    step: String,
    state: &'static str,
}

impl Done {
    fn of(step: &Step, state: &'static str) -> Done {
        Done {
            step: step.to_string(),
            state,
        }
    }
}

impl Row for Done {
    const COLUMNS: &'static [&'static str] = &["step", "state"];

    fn cells(&self) -> Vec<String> {
        vec![self.step.clone(), self.state.to_owned()]
    }
}
