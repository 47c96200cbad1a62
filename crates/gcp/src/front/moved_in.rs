//! ADD of a pod that brings its address along: checks that it may have it, and moves it here.

use std::net::Ipv4Addr;

use std::sync::Arc;

use berth_cni::{CniError, Code};
use berth_core::{NODE, Record};
use tokio::time::timeout_at;

use super::add::{Call, owner};
use super::cluster::PodFacts;
use super::config::{invalid, later};
use super::engine::{Engine, now, unrecorded, vm_of};
use super::events::PodEvent;
use super::journal::{holder, moves_of};
use super::moves::{MoveNote, Place, finished, of_record, reserved};
use super::pools::unread;
use crate::migrate::executor::Vm;
use crate::migrate::machine::Winner;
use crate::migrate::rules::{Applicant, Denied, Holder, Verdict, address_of, judge};
use crate::migrate::{IP, MOVE_OUT_IP, ORIGINAL_INSTANCE};
use crate::pool::attributes::{CONTROLLER, MOVE_OUT};

/// The allocation changes under the reader this many times at most.
const TRIES: usize = 16;

impl Engine {
    /// The address of `live.cast.ai/ip`, once it is this pod's.
    pub(super) async fn moved_in(self: &Arc<Self>, call: &Call<'_>) -> Result<Ipv4Addr, CniError> {
        let text = call.pod.annotation(IP).unwrap_or_default();
        let address = address_of(text, call.info.cidr).map_err(denied)?;
        let mut rolled_back = None;
        for _ in 0..TRIES {
            let Some(record) = self.holder(call.info, address).await? else {
                self.check_sound(call.info).await?;
                return self.allocate_exactly(call, address).await;
            };
            let found = of_record(&record).map_err(|why| {
                invalid(
                    format!("IPPool {}: {address}: {why}", call.info.name),
                    "it is left as it is; `berth gcp check` explains it",
                )
            })?;
            if let Some((note, _)) = found {
                if note.uid != call.pod.uid {
                    return Err(later(
                        format!(
                            "{IP}: {address} is moving to pod {} on {}",
                            note.pod, note.to.node
                        ),
                        "one address moves to one pod at a time",
                    ));
                }
                rolled_back = self.await_move(call, address, &note).await?;
                continue;
            }
            if let Some(error) = rolled_back.take() {
                return Err(error);
            }
            match self.verdict(call, address, &record).await? {
                Verdict::Allocate(address) | Verdict::Own(address) => {
                    return self.allocate_exactly(call, address).await;
                }
                Verdict::Move { source, .. } => {
                    self.begin(call, address, &record, &source).await?;
                }
            }
        }
        Err(later(
            format!("{address}: its allocation keeps changing"),
            "the runtime tries again",
        ))
    }

    async fn verdict(
        &self,
        call: &Call<'_>,
        address: Ipv4Addr,
        record: &Record,
    ) -> Result<Verdict, CniError> {
        let (namespace, name) = record.owner.subject.split_once('/').unwrap_or_default();
        let uid = record.owner.part.as_str();
        // The holder's own object, if it is still there: what the allocation recorded holds when it is not.
        let seen = self.cluster.pod(namespace, name).await.map_err(unread)?;
        let seen = seen.filter(|pod| pod.uid == uid).unwrap_or_default();
        let controller = seen.controller.as_deref();
        let holder = Holder {
            namespace,
            name,
            uid,
            controller: controller.or_else(|| record.attribute(CONTROLLER)),
            node: record.attribute(NODE).unwrap_or_default(),
            move_out: seen
                .annotation(MOVE_OUT_IP)
                .or_else(|| record.attribute(MOVE_OUT)),
        };
        let ip = address.to_string();
        let applicant = applicant(call.pod, &self.node, &ip);
        judge(&applicant, call.info.cidr, Some(&holder)).map_err(denied)
    }

    /// Records that the move begins. Another process may have changed the allocation: the caller reads it again.
    async fn begin(
        &self,
        call: &Call<'_>,
        address: Ipv4Addr,
        record: &Record,
        source: &str,
    ) -> Result<(), CniError> {
        let vm = self.source_vm(record, source).await?;
        let time = u64::try_from(self.settings.move_timeout.as_millis()).unwrap_or(u64::MAX);
        let note = MoveNote {
            from: Place {
                node: source.to_owned(),
                zone: vm.zone,
                instance: vm.instance,
            },
            to: Place {
                node: self.node.clone(),
                zone: call.site.vm.zone.clone(),
                instance: call.site.vm.instance.clone(),
            },
            pod: call.pod.name.clone(),
            uid: call.pod.uid.clone(),
            container: call.container.to_owned(),
            controller: call.pod.controller.clone(),
            until: now().saturating_add(time),
        };
        // Between two pods of one node the alias stays where it is.
        let next = match source == self.node {
            true => finished(record, &note, Winner::Destination),
            false => reserved(record, &note),
        };
        if source != self.node {
            let row = holder(&self.record(call), &call.info.name);
            let recorded = moves_of(self.attachments()?).hold(&address, &row).await;
            recorded.map_err(unrecorded)?;
        }
        let begun = self.transfer(call.info, address, (record, &next)).await?;
        if begun {
            tracing::info!(%address, pod = %owner(call.pod), from = source, to = self.node, "the address moves");
        }
        Ok(())
    }

    /// Waits for the move as long as the call may take. Why it was rolled back, if it was.
    async fn await_move(
        self: &Arc<Self>,
        call: &Call<'_>,
        address: Ipv4Addr,
        note: &MoveNote,
    ) -> Result<Option<CniError>, CniError> {
        let running = self.carry_on(call.info, address, note.until).await?;
        let unfinished = |why: String| {
            later(
                format!("the move of {address} is not over: {why}"),
                "it goes on in the background; the runtime tries again",
            )
        };
        let over = match timeout_at(call.deadline, running).await {
            Err(_) => return Err(unfinished("its time is longer than the call's".to_owned())),
            Ok(Err(error)) => return Err(unfinished(error.to_string())),
            Ok(Ok(over)) => over,
        };
        if over.winner == Some(Winner::Destination) {
            let moved = PodEvent::moved(owner(call.pod), address, &note.from.node, &note.to.node);
            self.tell(moved).await;
        }
        let back = (over.winner == Some(Winner::Source)).then(|| {
            let why = match over.refused {
                Some(error) => format!("{address} went back to its source: {error}"),
                None => format!("{address} went back to its source: the move's time was over"),
            };
            later(
                why,
                "correct what the cloud refused; the runtime tries again",
            )
        });
        Ok(back)
    }

    /// The VM that has the alias.
    async fn source_vm(&self, record: &Record, node: &str) -> Result<Vm, CniError> {
        if let Some(vm) = vm_of(record) {
            return Ok(vm);
        }
        let found = self.cluster.provider_id(node).await.map_err(unread)?;
        let vm = found.as_deref().and_then(Vm::of_provider_id);
        vm.ok_or_else(|| {
            let why = match found {
                None => "there is no Node of that name".to_owned(),
                Some(id) => format!("its Node's spec.providerID is '{id}'"),
            };
            invalid(
                format!("{ORIGINAL_INSTANCE}: the VM of '{node}' is unknown: {why}"),
                "name a Node of this cluster whose spec.providerID is gce://project/zone/name",
            )
        })
    }
}

fn applicant<'a>(pod: &'a PodFacts, node: &'a str, ip: &'a str) -> Applicant<'a> {
    Applicant {
        namespace: &pod.namespace,
        name: &pod.name,
        uid: &pod.uid,
        controller: pod.controller.as_deref(),
        node,
        ip,
        original_instance: pod.annotation(ORIGINAL_INSTANCE),
    }
}

fn denied(denied: Denied) -> CniError {
    let code = match denied.code() {
        11 => Code::TryLater,
        _ => Code::Config,
    };
    let remedy = match &denied {
        Denied::NotMarked { .. } => {
            "it passes when the source's pod carries live.cast.ai/move-out-ip"
        }
        Denied::OtherNamespace { .. } | Denied::OtherAddress { .. } => {
            "only the holder can let its address go, to a pod of its own namespace"
        }
        Denied::OtherInstance { .. } | Denied::SameInstance(_) => {
            "name the node that holds the address, or leave the annotation out"
        }
        _ => "name an address of the pool that a pod can have",
    };
    CniError::new(code, denied.to_string()).details(remedy)
}
