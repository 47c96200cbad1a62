//! `berth release`: releases an address by hand, after reading the holder's pod and asking.
//!
//! | the address | what is needed |
//! |---|---|
//! | allocated by hand, or of a pod that is gone, or cooling down | a yes |
//! | of a pod that runs, or of an owner that is not a pod | `--force`, and the address typed again |
//! | in a file, of a container whose network namespace exists | the same |
//! | of a node's slice | the agent of that node, which applies the same rule |

use std::io::{self, BufRead, IsTerminal, Write};
use std::path::PathBuf;

use anyhow::bail;
use berth_cni::wire::DEFAULT_SOCKET;
use berth_core::{Address, Record};
use berth_pods::by_hand::{self, Origin, Standing};
use berth_pods::node::{RELEASE_PATH, ReleaseFailure, ReleaseReason, ReleaseRequest};
use clap::Args;

use crate::addresses::AddressRow;
use crate::agent_client;
use crate::exit::Negative;
use crate::holders::{Cooling, Found, Holding, find};
use crate::output::{self, Format};
use crate::store::{Store, Stores};

#[derive(Debug, Args)]
pub struct Release {
    /// The address.
    address: Address,
    /// Only if this pool has it.
    #[arg(long)]
    pool: Option<String>,
    /// Only if this owner holds it.
    #[arg(long)]
    owner: Option<String>,
    /// Do not ask. A running pod still keeps its address.
    #[arg(long, short)]
    yes: bool,
    /// Release it although its pod runs: the next pod may get the address while the first still uses it. Asks for the
    /// address to be typed.
    #[arg(long)]
    force: bool,
    /// The address once more: for scripts that use --force.
    #[arg(long, value_name = "ADDRESS", requires = "force")]
    confirm: Option<Address>,
    /// The socket of this node's agent, which releases the addresses of its slices.
    #[arg(long, env = "BERTH_SOCKET", default_value = DEFAULT_SOCKET)]
    socket: PathBuf,
}

impl Release {
    pub async fn run(&self, stores: Stores, format: Format) -> anyhow::Result<()> {
        let mut found = find(&stores, self.address).await?;
        for error in &found.unread {
            output::note(error);
        }
        self.narrow(&mut found);
        let row = match (found.held.as_slice(), found.cooling.as_slice()) {
            ([one], _) => self.release_held(one).await?,
            ([], [one, ..]) => self.end_cooldown(one).await?,
            ([], []) => self.not_held(&stores, &found).await?,
            (many, _) => {
                let names: Vec<String> = many
                    .iter()
                    .map(|one| format!("{} in {}", one.record.owner, one.pool))
                    .collect();
                bail!(Negative::Refused(format!(
                    "{} is held by {}; choose one with --pool or --owner",
                    self.address,
                    names.join(" and by ")
                )));
            }
        };
        output::print(format, &[row])
    }

    fn narrow(&self, found: &mut Found<'_>) {
        let in_pool = |name: &str| self.pool.as_ref().is_none_or(|pool| pool == name);
        let of_owner = |owner: &berth_core::Owner| {
            let named = |wanted: &String| {
                *wanted == owner.subject || Some(wanted.as_str()) == owner.by_hand()
            };
            self.owner.as_ref().is_none_or(named)
        };
        found
            .held
            .retain(|one| in_pool(&one.pool.name) && of_owner(&one.record.owner));
        found
            .slices
            .retain(|one| in_pool(&one.pool.name) && self.owner.is_none());
        found
            .cooling
            .retain(|one| in_pool(&one.pool.name) && of_owner(&one.cooldown.owner));
    }

    async fn release_held(&self, one: &Holding<'_>) -> anyhow::Result<AddressRow> {
        let (address, record) = (self.address, &one.record);
        if by_hand::is_nodes_own(&one.pool) {
            bail!(Negative::Refused(format!(
                "{address} is of a slice of this node, which only its agent may release: run `berth release {address}` \
                 with the cluster's kubeconfig instead of --database"
            )));
        }
        if let Some(node) = &one.publisher {
            self.needs_agent(node, one.store)?;
        }
        let origin = match &one.publisher {
            Some(node) => Origin::Through(node),
            None => Origin::Anywhere,
        };
        self.may_release(one.store, record, origin).await?;
        self.ask(&format!(
            "release {address} of {} from {}?",
            record.owner, one.pool
        ))?;
        // A person takes time to answer: check again.
        self.may_release(one.store, record, origin).await?;
        match &one.publisher {
            Some(node) => {
                self.request_of_agent(node, Some(record), one.store).await?;
            }
            None => {
                let engine = one.store.engine();
                if !by_hand::release(&engine, &one.pool, address, record).await? {
                    bail!(Negative::NotFound(format!(
                        "{} does not hold {address} any more",
                        record.owner
                    )));
                }
            }
        }
        Ok(AddressRow::new(&one.pool.name, address, record).of(one.store.namespace()))
    }

    async fn end_cooldown(&self, one: &Cooling<'_>) -> anyhow::Result<AddressRow> {
        let address = self.address;
        self.ask(&format!(
            "end the cooldown of {address}, which {} had in {}?",
            one.cooldown.owner, one.pool
        ))?;
        match &one.publisher {
            Some(node) => self.request_of_agent(node, None, one.store).await?,
            None => {
                if !by_hand::end_cooldown(&*one.store.ledger, &one.pool, address).await? {
                    bail!(Negative::NotFound(format!(
                        "{address} does not cool down any more"
                    )));
                }
            }
        }
        Ok(AddressRow::cooling(&one.pool.name, address, &one.cooldown).of(one.store.namespace()))
    }

    /// No pool of the cluster shows it. Cooldowns of a node's slices are not published, and an interrupted release of
    /// an allocation by hand may leave a reservation.
    async fn not_held(&self, stores: &Stores, found: &Found<'_>) -> anyhow::Result<AddressRow> {
        for store in &stores.0 {
            let left = by_hand::leftover(&*store.ledger, self.address).await?;
            if let Some((key, record)) = left {
                self.ask(&format!("remove {key}, which {} left?", record.owner))?;
                store.ledger.delete(&key, &record).await?;
                return Ok(AddressRow::new(&key.name, self.address, &record).of(store.namespace()));
            }
        }
        if let Some(slice) = found.slices.first() {
            self.needs_agent(&slice.node, slice.store)?;
            self.ask(&format!(
                "end the cooldown of {}, if node {} has it?",
                self.address, slice.node
            ))?;
            self.request_of_agent(&slice.node, None, slice.store)
                .await?;
            return Ok(AddressRow::cooled(self.address));
        }
        if let Some(store) = stores.0.iter().find(|store| store.cluster.is_some())
            && self.socket.exists()
            && self.pool.is_none()
            && self.owner.is_none()
        {
            self.ask(&format!(
                "end the cooldown of {}, if this node has it?",
                self.address
            ))?;
            self.request_of_agent("", None, store).await?;
            return Ok(AddressRow::cooled(self.address));
        }
        match found.unread.as_slice() {
            [] => bail!(Negative::NotFound(format!(
                "{} is not allocated",
                self.address
            ))),
            unread => bail!(Negative::Broken(format!(
                "{} pools that may hold {} can't be read",
                unread.len(),
                self.address
            ))),
        }
    }

    /// Whether the holder is gone, or a person insists.
    async fn may_release(
        &self,
        store: &Store,
        record: &Record,
        origin: Origin<'_>,
    ) -> anyhow::Result<()> {
        if self.force {
            return Ok(());
        }
        let Some(cluster) = store.cluster.as_ref() else {
            return self.may_release_here(record);
        };
        let standing = match by_hand::standing(&cluster.reader(), record, origin).await {
            Ok(standing) => standing,
            Err(error) => bail!(Negative::Later(format!(
                "whether {} lives can't be read, so {} stays: {error}",
                record.owner, self.address
            ))),
        };
        let why = match standing {
            Standing::ByHand | Standing::Gone(_) => return Ok(()),
            Standing::Alive { pod, node } => {
                let node = node.map_or_else(|| "no node yet".into(), |node| format!("node {node}"));
                format!("pod {pod} lives on {node} and uses {}", self.address)
            }
            Standing::Unreleased { pod, node } => format!(
                "pod {pod} was deleted, and its node {node} has not released {} yet: it may still run there",
                self.address
            ),
            Standing::Unknown => format!(
                "{} is held by {}, which is not a pod: nothing proves that it is unused",
                self.address, record.owner
            ),
        };
        bail!(Negative::Alive(format!(
            "{why}; delete the pod, and the address is released with it. To release it all the same, and risk that two \
             pods use it: --force"
        )))
    }

    /// Without a cluster, the container itself is the proof.
    fn may_release_here(&self, record: &Record) -> anyhow::Result<()> {
        if !by_hand::runs_here(record) {
            return Ok(());
        }
        bail!(Negative::Alive(format!(
            "container {} of {} is still there and uses {}; remove the container, and the address is released with it. \
             To release it all the same, and risk that two containers use it: --force",
            record.handle, record.owner, self.address
        )))
    }

    fn ask(&self, question: &str) -> anyhow::Result<()> {
        if self.force {
            return self.ask_for_address(question);
        }
        let agreed = self.yes
            || matches!(
                answer(question, "[y/N]", "--yes")?.as_str(),
                "y" | "Y" | "yes"
            );
        match agreed {
            true => Ok(()),
            false => bail!(Negative::Refused("nothing was released".into())),
        }
    }

    fn ask_for_address(&self, question: &str) -> anyhow::Result<()> {
        let typed = match self.confirm {
            Some(confirmed) => Some(confirmed),
            None => {
                let hint = format!("--confirm {}", self.address);
                answer(question, "Type the address to confirm:", &hint)?
                    .parse()
                    .ok()
            }
        };
        match typed {
            Some(typed) if typed == self.address => Ok(()),
            _ => bail!(Negative::Refused(format!(
                "{} was not confirmed: nothing was released",
                self.address
            ))),
        }
    }

    fn needs_agent(&self, node: &str, store: &Store) -> anyhow::Result<()> {
        match self.socket.exists() {
            true => Ok(()),
            false => Err(self.elsewhere(node, store)),
        }
    }

    /// Asks the agent of the node, which alone may write the records of its slices.
    async fn request_of_agent(
        &self,
        node: &str,
        holder: Option<&Record>,
        store: &Store,
    ) -> anyhow::Result<()> {
        let request = ReleaseRequest {
            node: node.to_owned(),
            address: self.address,
            holder: holder.cloned(),
            force: self.force,
        };
        let body = serde_json::to_vec(&request)?;
        let sent = agent_client::exchange(&self.socket, hyper::Method::POST, RELEASE_PATH, body);
        let (status, text) = sent.await?;
        if status.is_success() {
            return Ok(());
        }
        let Ok(failure) = serde_json::from_slice::<ReleaseFailure>(&text) else {
            bail!(Negative::Later(format!(
                "the agent at {} answered {status}: it is of another version",
                self.socket.display()
            )));
        };
        match failure.reason {
            ReleaseReason::OtherNode => Err(self.elsewhere(node, store)),
            ReleaseReason::NotFound => bail!(Negative::NotFound(failure.error)),
            ReleaseReason::Alive => bail!(Negative::Alive(failure.error)),
            ReleaseReason::Malformed => bail!(Negative::Broken(failure.error)),
            ReleaseReason::Later => bail!(Negative::Later(failure.error)),
        }
    }

    fn elsewhere(&self, node: &str, store: &Store) -> anyhow::Error {
        let (address, namespace) = (self.address, store.namespace());
        Negative::Refused(format!(
            "{address} is of a slice of node {node}, whose agent releases it. Run there: berth release {address}\n\
             or: kubectl -n {namespace} exec -it $(kubectl -n {namespace} get pods -o name \
             -l app.kubernetes.io/component=agent --field-selector spec.nodeName={node}) -c agent -- \
             /berth release {address}"
        ))
        .into()
    }
}

/// Asks a person.
#[allow(clippy::print_stderr)]
fn answer(question: &str, how: &str, instead: &str) -> anyhow::Result<String> {
    if !io::stdin().is_terminal() {
        bail!(Negative::Refused(format!(
            "{question} There is no terminal to ask on: use {instead}"
        )));
    }
    eprint!("{question} {how} ");
    io::stderr().flush()?;
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    Ok(line.trim().to_owned())
}
