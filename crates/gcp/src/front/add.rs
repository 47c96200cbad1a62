//! ADD: an address of the pool for a pod, attached to this VM.
//!
//! Guarantees: the answer follows when the allocation is durable and the alias is attached (I2); a repeat gets the same
//! address (I3); what was allocated for a call that failed is detached and released.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use berth_attachment::Refusal as AttachRefusal;
use berth_cni::call::Target;
use berth_cni::result::{IpConfig, IpamResult, Route};
use berth_cni::{CniError, Code};
use berth_core::{AddressRequest, Allocate, Answer, Handle, NODE, Owner, Record, Request};
use ipnet::{IpNet, Ipv4Net};
use tokio::time::Instant;

use super::cluster::PodFacts;
use super::config::{IpamConf, invalid, later};
use super::engine::{Engine, Nic, unrecorded};
use super::events::PodEvent;
use super::journal::{FoundRow, POOL, State, holder, is_of_nic, moves_of};
use super::moves::is_moving;
use super::pools::{PoolInfo, at, unallocated, unread, v4};
use super::settings::Select;
use super::site::{Site, refused};
use crate::cloud::CloudError;
use crate::migrate;
use crate::nic::NicError;
use crate::pool::attributes::{ALLOCATED_AT, CONTROLLER, INSTANCE, METHOD, STATIC, ZONE};

/// The label that selects a pod, or the pods of a namespace.
pub const LABEL: &str = "berth.dev/live-ip";
/// Addresses that turned out to be another VM's are replaced so many times.
const TRIES: usize = 4;
/// How long such an address is not chosen again.
const AVOIDED: Duration = Duration::from_secs(600);

/// What an ADD answers.
#[derive(Debug)]
pub(super) enum Added {
    Address(Box<IpamResult>),
    /// The pod is the predecessor's.
    Delegated,
}

/// One ADD.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call<'a> {
    pub pod: &'a PodFacts,
    pub container: &'a str,
    pub info: &'a Arc<PoolInfo>,
    pub site: &'a Site,
    pub deadline: Instant,
}

impl Engine {
    pub(super) async fn add(
        self: &Arc<Self>,
        target: &Target,
        conf: &IpamConf,
        deadline: Instant,
    ) -> Result<Added, CniError> {
        let pod = self.pod_of(target).await?;
        if !self.is_selected(&pod, conf).await? {
            return Ok(Added::Delegated);
        }
        let added = self.add_selected(target, &pod, conf, deadline).await;
        if let Err(error) = &added {
            self.tell(PodEvent::refused(owner(&pod), error)).await;
        }
        Ok(Added::Address(Box::new(added?)))
    }

    async fn add_selected(
        self: &Arc<Self>,
        target: &Target,
        pod: &PodFacts,
        conf: &IpamConf,
        deadline: Instant,
    ) -> Result<IpamResult, CniError> {
        let site = self.site().await?;
        let info = self.pool(conf, site).await?;
        self.start_background().await;
        let nic = self.nic(&info).await?;
        let call = Call {
            pod,
            container: target.container_id.as_str(),
            info: &info,
            site,
            deadline,
        };
        let served = self.allocate_and_attach(&call, &nic).await;
        if let Err(error) = &served
            && error.code == Code::Config
        {
            // The settings may be old: they are read again with the next call.
            self.forget_pool(&info.name);
        }
        let address = served?;
        tracing::info!(%address, pod = %owner(pod), container = call.container, pool = info.name, "ADD");
        result(&info, address)
    }

    async fn pod_of(&self, target: &Target) -> Result<PodFacts, CniError> {
        let (namespace, name) = (&target.args.pod_namespace, &target.args.pod_name);
        if namespace.is_empty() || name.is_empty() {
            return Err(CniError::new(
                Code::Environment,
                "CNI_ARGS names no pod: K8S_POD_NAMESPACE and K8S_POD_NAME are needed",
            ));
        }
        let found = self.cluster.pod(namespace, name).await.map_err(unread)?;
        let uid = &target.args.pod_uid;
        let same = |pod: &PodFacts| uid.is_empty() || pod.uid == *uid;
        found.filter(same).ok_or_else(|| {
            later(
                format!("pod {namespace}/{name} {uid} is not there any more"),
                "the runtime ends its sandbox",
            )
        })
    }

    async fn is_selected(&self, pod: &PodFacts, conf: &IpamConf) -> Result<bool, CniError> {
        if conf.select.unwrap_or(self.settings.select) == Select::All {
            return Ok(true);
        }
        let chosen = |value: Option<&String>| value.map(String::as_str) == Some("true");
        // The pod's own label decides, also against its namespace's.
        if let Some(own) = pod.labels.get(LABEL) {
            return Ok(own == "true");
        }
        let labels = self
            .cluster
            .labels_of(&pod.namespace)
            .await
            .map_err(unread)?;
        Ok(chosen(labels.get(LABEL)))
    }

    async fn allocate_and_attach(
        self: &Arc<Self>,
        call: &Call<'_>,
        nic: &Nic,
    ) -> Result<Ipv4Addr, CniError> {
        let moves = call.pod.annotation(migrate::IP).is_some();
        let mut instead_of = None;
        for _ in 0..TRIES {
            let address = match (moves, instead_of) {
                (true, _) => self.moved_in(call).await?,
                (false, None) => match self.take_warm(call, nic).await? {
                    Some(address) => address,
                    None => self.allocate(call).await?,
                },
                (false, Some(rejected)) => {
                    let address = self.exchange(call, rejected).await?;
                    let dropped = nic.journal.drop_row_of(&owner(call.pod), &rejected).await;
                    dropped.map_err(unrecorded)?;
                    address
                }
            };
            match self.attach(call, nic, address).await {
                Ok(()) => {
                    if moves {
                        let begun = moves_of(self.attachments()?);
                        let dropped = begun.drop_row_of(&owner(call.pod), &address).await;
                        dropped.map_err(unrecorded)?;
                    }
                    return Ok(address);
                }
                // The release of an earlier sandbox's address came first: ask the pool again.
                Err(AttachRefusal::Superseded) => instead_of = None,
                Err(AttachRefusal::Failed(error)) if in_use(&error) && !moves => {
                    self.in_use
                        .lock()
                        .insert(address, std::time::Instant::now());
                    tracing::warn!(%address, pool = call.info.name, %error, "another VM has this alias: another address is chosen");
                    instead_of = Some(address);
                }
                Err(refusal) => {
                    self.give_up(nic, address).await;
                    return Err(unattached(address, &refusal));
                }
            }
        }
        if let Some(address) = instead_of {
            self.give_up(nic, address).await;
        }
        Err(later(
            format!(
                "IPPool {}: {TRIES} addresses in a row can't be attached",
                call.info.name
            ),
            "`berth gcp check` names the VMs that have aliases without an allocation",
        ))
    }

    /// The pod's address: the one that it has, or a free one.
    async fn allocate(&self, call: &Call<'_>) -> Result<Ipv4Addr, CniError> {
        let owner = owner(call.pod);
        let mut own = self.held_here(&owner, &call.info.name).await?;
        if let Some(address) = own {
            let record = self.holder(call.info, address).await?;
            let record = record.filter(|record| record.owner == owner);
            // A pod whose address is moving away can't start a new sandbox with it: its record is the move's.
            if record.as_ref().is_some_and(is_moving) {
                return Err(later(
                    format!("{address} of pod {owner} is moving to another node"),
                    "it passes when the move is over",
                ));
            }
            // The pool may have forgotten it: then this is a new allocation.
            own = own.filter(|_| record.is_some());
        }
        let claim = |want| Request::Allocate(self.claim(call, want));
        let answer = match own {
            // Where the pod has an address already, its object says so.
            Some(address) => {
                let (_, space) = call.info.part_of(address);
                let want = AddressRequest::any(Arc::clone(space));
                self.ask(call.info, address, claim(want)).await?
            }
            None => self.ask_any(call.info, &owner, claim).await?,
        };
        granted(call, answer)
    }

    /// The address of a pool that this node's file has for an owner.
    pub(super) async fn held_here(
        &self,
        owner: &Owner,
        pool: &str,
    ) -> Result<Option<Ipv4Addr>, CniError> {
        let held = self.attachments()?.held_by(owner).await;
        let held: Vec<FoundRow<Ipv4Addr>> = held.map_err(unrecorded)?;
        let of_pool = |found: &&FoundRow<Ipv4Addr>| {
            is_of_nic(found) && found.row.holder.attribute(POOL) == Some(pool)
        };
        Ok(held.iter().find(of_pool).map(|found| found.item))
    }

    /// Another address in the place of one that can't be attached.
    async fn exchange(&self, call: &Call<'_>, rejected: Ipv4Addr) -> Result<Ipv4Addr, CniError> {
        self.check_sound(call.info).await?;
        let request = Request::Exchange {
            address: at(rejected),
            expected: self.record(call),
            claim: self.claim(
                call,
                AddressRequest::any(Arc::clone(call.info.part_of(rejected).1)),
            ),
        };
        granted(call, self.ask(call.info, rejected, request).await?)
    }

    /// Exactly this address, if it is free or the pod's own.
    pub(super) async fn allocate_exactly(
        &self,
        call: &Call<'_>,
        address: Ipv4Addr,
    ) -> Result<Ipv4Addr, CniError> {
        let (_, space) = call.info.part_of(address);
        let want = AddressRequest::exactly(Arc::clone(space), at(address));
        let request = Request::Allocate(self.claim(call, want));
        granted(call, self.ask(call.info, address, request).await?)
    }

    fn claim(&self, call: &Call<'_>, mut want: AddressRequest) -> Allocate {
        if want.exact.is_none() {
            let mut in_use = self.in_use.lock();
            in_use.retain(|_, since| since.elapsed() < AVOIDED);
            want.avoid = in_use.keys().map(|address| at(*address)).collect();
        }
        Allocate {
            record: self.record(call),
            wants: vec![want],
        }
    }

    /// The allocation of the pod on this node.
    pub(super) fn record(&self, call: &Call<'_>) -> Record {
        let mut record = Record::new(owner(call.pod), Handle::new(call.container))
            .with(NODE, &self.node)
            .with(
                ALLOCATED_AT,
                jiff::Timestamp::now()
                    .strftime("%Y-%m-%dT%H:%M:%SZ")
                    .to_string(),
            )
            .with(ZONE, &call.site.vm.zone)
            .with(INSTANCE, &call.site.vm.instance);
        if let Some(controller) = &call.pod.controller {
            record = record.with(CONTROLLER, controller);
        }
        if call.info.range.is_none() {
            record = record.with(METHOD, STATIC);
        }
        record
    }

    async fn attach(
        &self,
        call: &Call<'_>,
        nic: &Nic,
        address: Ipv4Addr,
    ) -> Result<(), AttachRefusal<NicError>> {
        let failed = |error: CniError| AttachRefusal::Failed(NicError::Journal(error.msg));
        let holder = holder(&self.record(call), &call.info.name);
        let row = nic.journal.row(&address).await;
        let row = row.map_err(|error| failed(unrecorded(error)))?;
        let other =
            row.filter(|row| row.state == State::Present && row.holder.owner != holder.owner);
        // An IPPool that was deleted and made again has forgotten it.
        if let Some(other) = other.filter(|_| call.pod.annotation(migrate::IP).is_none()) {
            let text = format!(
                "by pod {} of this node, as the node's own file says",
                other.holder.owner
            );
            return Err(AttachRefusal::Failed(NicError::Cloud {
                what: format!("attach {address}"),
                error: CloudError::InUse(text),
            }));
        }
        let held = nic.journal.hold(&address, &holder).await;
        held.map_err(|error| failed(unrecorded(error)))?;
        if call.info.range.is_none() {
            let reserved = self.reserve(call, address, &holder).await;
            reserved.map_err(|error| {
                let what = format!("addresses.insert of {address}");
                AttachRefusal::Failed(NicError::Cloud { what, error })
            })?;
        }
        nic.reconciler.attach(address, call.deadline).await
    }

    /// Whatever the attach has left behind goes, then the address is released.
    async fn give_up(&self, nic: &Nic, address: Ipv4Addr) {
        if let Err(error) = nic.reconciler.detach(address).await {
            tracing::warn!(%address, %error, "the failed ADD's address stays allocated until its pod ends");
        }
    }
}

fn granted(call: &Call<'_>, answer: Answer) -> Result<Ipv4Addr, CniError> {
    match answer {
        Answer::Granted(granted) => {
            let address = granted.first().and_then(|granted| v4(granted.address));
            address.ok_or_else(|| CniError::new(Code::Internal, "the pool granted no IPv4 address"))
        }
        Answer::Refused(refusal) => Err(unallocated(call.info, &refusal)),
        other => Err(CniError::new(
            Code::Internal,
            format!("the pool answered {other:?}"),
        )),
    }
}

pub(super) fn owner(pod: &PodFacts) -> Owner {
    Owner::new(format!("{}/{}", pod.namespace, pod.name), &pod.uid)
}

fn in_use(error: &NicError) -> bool {
    matches!(
        error,
        NicError::Cloud {
            error: CloudError::InUse(_),
            ..
        }
    )
}

fn unattached(address: Ipv4Addr, refusal: &AttachRefusal<NicError>) -> CniError {
    match refusal {
        AttachRefusal::Failed(NicError::Cloud { what, error }) => {
            refused(&format!("{address} is not attached: {what}"), error)
        }
        AttachRefusal::Failed(error) if !error.is_transient() => {
            invalid(error.to_string(), "correct it, and the runtime tries again")
        }
        other => later(
            format!("{address} is not attached: {other}"),
            "the runtime tries again",
        ),
    }
}

/// The address with the pool's mask: `ptp` refuses one whose network does not hold the gateway.
fn result(info: &PoolInfo, address: Ipv4Addr) -> Result<IpamResult, CniError> {
    let wrong = |_| CniError::new(Code::Internal, "the pool's mask is not one");
    let net = Ipv4Net::new(address, info.cidr.prefix_len()).map_err(wrong)?;
    let everywhere = Ipv4Net::new(Ipv4Addr::UNSPECIFIED, 0).map_err(wrong)?;
    Ok(IpamResult {
        ips: vec![IpConfig {
            address: IpNet::V4(net),
            gateway: Some(info.gateway().into()),
        }],
        routes: vec![Route::to(IpNet::V4(everywhere), None)],
        ..IpamResult::default()
    })
}
