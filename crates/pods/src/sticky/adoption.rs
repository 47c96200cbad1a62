//! ADD with an IPAMClaim: the claim's addresses, and no others, once it has some.
//!
//! ```text
//!   the claim has addresses -> take them over from the claim's last pod -> allocate exactly these
//!   it has none yet         -> allocate any      -> record them in the claim, unless another pod was faster
//! ```
//! A claim's addresses are never changed: two pods that meet at a claim without any both get one set, the loser after a
//! repeat. An address of the claim is taken from its holder only if that is the claim's last pod (a VM that
//! migrates has two for a while) or a pod that is provably gone (I4); else the call fails and names the holder.

use berth_core::{Address, Answer, Record, Request};
use berth_kube::{Failure, Part, Verb};
use berth_ledger::PoolKey;
use kube::api::Patch;
use serde::Deserialize;
use serde_json::{Value, json};

use super::claim::{Claim, IPAM_CLAIMS, reference};
use super::{ReadError, Sticky};
use crate::attachment::Attachment;
use crate::config::PodNetwork;
use crate::error::PodError;
use crate::layout::Layout;
use crate::reserve::Reservations;
use crate::store::Store;
use berth_collector::observed::{Phase, PodRef, PodState};
use berth_collector::quorum_reader::PODS;

const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";

/// A claim that an ADD is for.
#[derive(Debug)]
pub struct Adoption {
    claim: Claim,
    pod: PodRef,
}

#[derive(Deserialize)]
struct Annotated {
    metadata: Annotations,
}

#[derive(Deserialize)]
struct Annotations {
    #[serde(default)]
    annotations: std::collections::BTreeMap<String, String>,
}

/// Finds the claim that the attachment refers to, takes its addresses over for it, and narrows the network to them.
/// None if it refers to none.
pub async fn adopt(
    store: &Store,
    sticky: &Sticky,
    network: &mut PodNetwork,
    who: &Attachment,
    record: &Record,
) -> Result<Option<Adoption>, PodError> {
    let Some(pod) = PodRef::parse(&who.owner.subject) else {
        return Ok(None);
    };
    let Some(name) = sticky.reference(&pod, &who.owner.part).await? else {
        return Ok(None);
    };
    let read = sticky.reader.get(&IPAM_CLAIMS, &pod.namespace, &name);
    let found: Option<Claim> = read.await?;
    let Some(claim) = found else {
        // It may be created a moment after the pod: the runtime retries.
        return Err(PodError::Sticky(format!(
            "IPAMClaim {}/{name}, which the pod refers to, does not exist",
            pod.namespace
        )));
    };
    for address in claim.addresses() {
        narrow(network, &name, address)?;
        let layout = Layout::of(network);
        let pools = layout.pools.iter().map(|pool| &pool.key);
        let mut of_address = pools.filter(|key| key.network.is_some_and(|n| n.contains(address)));
        if let Some(key) = of_address.next() {
            take_over(store, sticky, network, key, address, &claim, record).await?;
        }
    }
    Ok(Some(Adoption { claim, pod }))
}

/// Records what was allocated in a claim that had nothing, and which pod uses it.
pub async fn settle(
    sticky: &Sticky,
    adoption: &Adoption,
    allocated: &[String],
) -> Result<(), PodError> {
    let claim = &adoption.claim;
    let mut status = json!({ "ownerPod": { "name": adoption.pod.name } });
    if claim.status.ips.is_empty() {
        status["ips"] = json!(allocated);
    } else if claim.owner_pod() == Some(&adoption.pod.name) {
        return Ok(());
    }
    // Exactly the claim that was read: another pod's addresses are never overwritten.
    let patch: Value = json!({
        "metadata": { "resourceVersion": claim.metadata.resource_version },
        "status": status,
    });
    sticky.patch_status(adoption, patch).await
}

impl Sticky {
    async fn reference(&self, pod: &PodRef, ifname: &str) -> Result<Option<String>, ReadError> {
        let read = self.reader.get(&PODS, &pod.namespace, &pod.name);
        let found: Option<Annotated> = read.await?;
        let annotation = found.and_then(|pod| pod.metadata.annotations.get(NETWORKS).cloned());
        Ok(annotation.and_then(|annotation| reference(&annotation, ifname)))
    }

    async fn patch_status(&self, adoption: &Adoption, patch: Value) -> Result<(), PodError> {
        let (namespace, name) = (&adoption.pod.namespace, &adoption.claim.metadata.name);
        let failed = |why: String| PodError::Sticky(format!("IPAMClaim {namespace}/{name}: {why}"));
        let patch = Patch::Merge(patch);
        let (objects, status) = (self.objects.in_namespace(namespace), Part::Status);
        let patched = objects.patch_part(&IPAM_CLAIMS, status, name, &patch);
        match patched.await {
            Ok(_) => Ok(()),
            Err(Failure::Refused(refusal)) if refusal.code == 409 => Err(failed(
                "another pod recorded its addresses first; a repeat gets those".into(),
            )),
            Err(failure) => {
                let ask = objects.ask(Verb::Patch, &IPAM_CLAIMS, name).of(status);
                let error = failure.into_error(ask);
                Err(failed(format!("its status can't be written: {error}")))
            }
        }
    }
}

/// Makes the range of an address allocate that address.
fn narrow(network: &mut PodNetwork, claim: &str, address: Address) -> Result<(), PodError> {
    let mut of_address = network
        .ranges
        .iter_mut()
        .filter(|range| range.wanted.is_none() || range.wanted == Some(address))
        .filter(|range| range.spec.prefix.contains(address));
    match of_address.next() {
        Some(range) => {
            range.wanted = Some(address);
            Ok(())
        }
        None => Err(PodError::Named {
            address,
            why: format!("IPAMClaim {claim} records it, and no range of the network has it"),
        }),
    }
}

async fn take_over(
    store: &Store,
    sticky: &Sticky,
    network: &PodNetwork,
    pool: &PoolKey,
    address: Address,
    claim: &Claim,
    record: &Record,
) -> Result<(), PodError> {
    let now = store.load(pool).await?;
    let Some(holder) = now.pool.get(address).cloned() else {
        return Ok(());
    };
    if holder.owner != record.owner {
        if !may_take(sticky, claim, &holder).await? {
            return Err(PodError::Named {
                address,
                why: format!(
                    "IPAMClaim {} records it, and {} holds it",
                    claim.metadata.name, holder.owner
                ),
            });
        }
        let transfer = Request::Transfer {
            address,
            expected: holder,
            record: record.clone(),
        };
        if store.ask(pool, transfer).await? != Answer::Transferred {
            // Another pod was faster: the claim that follows names it.
            return Ok(());
        }
    }
    if !network.overlap_checks {
        return Ok(());
    }
    // Transferred, never ended and created again: the former pod may still use the address. A call that was cut short
    // after the entry also has this left to do.
    let reservations = Reservations::of(store, &network.network_name);
    if let Some(held) = reservations.holder(address).await?
        && held.owner != record.owner
        && may_take(sticky, claim, &held).await?
    {
        reservations.transfer(address, &held, record).await?;
    }
    Ok(())
}

/// Whether the claim's new pod may have what `holder` has: that is its last pod, or gone.
async fn may_take(sticky: &Sticky, claim: &Claim, holder: &Record) -> Result<bool, ReadError> {
    let subject = &holder.owner.subject;
    let last = claim
        .owner_pod()
        .map(|name| format!("{}/{name}", claim.metadata.namespace));
    Ok(last.as_ref() == Some(subject) || is_gone(sticky, subject).await?)
}

async fn is_gone(sticky: &Sticky, subject: &str) -> Result<bool, ReadError> {
    let Some(pod) = PodRef::parse(subject) else {
        return Ok(false);
    };
    Ok(match sticky.reader.pod(&pod).await? {
        PodState::Absent => true,
        PodState::Present(pod) => pod.phase != Phase::Open,
    })
}
