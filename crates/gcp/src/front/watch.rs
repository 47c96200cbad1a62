//! The pods of this node, watched: their marker `live.cast.ai/move-out-ip` is recorded in the allocation when it appears, so
//! that the move and the DEL know it when the Pod is gone.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use berth_cni::CniError;
use berth_core::Record;
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::Api;
use kube::runtime::watcher::{self, Event, watcher};
use tokio::time::sleep;

use super::add::owner;
use super::cluster::PodFacts;
use super::engine::{Engine, jittered, method_of, unrecorded};
use super::events::PodEvent;
use super::journal::{FoundRow, POOL, is_of_nic};
use super::moves::is_moving;
use crate::migrate::MOVE_OUT_IP;
use crate::pool::attributes::MOVE_OUT;

const PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

impl Engine {
    /// Runs until the front stops.
    pub(super) async fn watch_pods(self: Arc<Self>) {
        let api: Api<Pod> = Api::all(self.cluster.client());
        let of_node = watcher::Config::default().fields(&format!("spec.nodeName={}", self.node));
        let mut pause = PAUSE.0;
        loop {
            let mut events = watcher(api.clone(), of_node.clone()).boxed();
            while let Some(event) = events.next().await {
                match event {
                    Ok(Event::Apply(pod) | Event::InitApply(pod)) => {
                        pause = PAUSE.0;
                        self.saw(PodFacts::of(pod)).await;
                    }
                    Ok(_) => {}
                    Err(error) => {
                        tracing::warn!(%error, "the node's pods can't be watched; tried again");
                        break;
                    }
                }
            }
            sleep(jittered(pause)).await;
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    async fn saw(self: &Arc<Self>, pod: PodFacts) {
        let marker = pod.annotation(MOVE_OUT_IP);
        if let Err(error) = self.record_marker(&pod, marker).await {
            tracing::warn!(pod = %owner(&pod), %error, "the marker {MOVE_OUT_IP} is not recorded yet");
        }
    }

    /// Makes the allocation say what the pod says.
    async fn record_marker(
        self: &Arc<Self>,
        pod: &PodFacts,
        marker: Option<&str>,
    ) -> Result<(), CniError> {
        let owner = owner(pod);
        let mut known = false;
        let held = self.attachments()?.held_by(&owner).await;
        for found in held.map_err(unrecorded)?.into_iter().filter(is_of_nic) {
            let FoundRow { target, item, row } = found;
            let (address, holder): (Ipv4Addr, _) = (item, row.holder);
            known = true;
            if holder.attribute(MOVE_OUT) == marker {
                continue;
            }
            let Some(name) = holder.attribute(POOL) else {
                continue;
            };
            let info = self.pool_named(name, method_of(&holder)).await?;
            loop {
                let record = self.holder(&info, address).await?;
                let Some(record) =
                    record.filter(|record| record.owner == owner && !is_moving(record))
                else {
                    break;
                };
                let next = marked(&record, marker);
                if next == record || self.transfer(&info, address, (&record, &next)).await? {
                    break;
                }
            }
            let row = marked(&holder, marker);
            let held = self.attachments()?.hold(&target, &address, &row).await;
            held.map_err(unrecorded)?;
            tracing::info!(%address, pod = %owner, marker, "recorded whether the address moves away");
        }
        if !known && marker.is_some() {
            self.tell(PodEvent::nothing_to_move(owner, MOVE_OUT_IP))
                .await;
        }
        Ok(())
    }
}

fn marked(record: &Record, marker: Option<&str>) -> Record {
    let mut next = record.clone();
    match marker {
        Some(marker) => drop(
            next.attributes
                .insert(MOVE_OUT.to_owned(), marker.to_owned()),
        ),
        None => drop(next.attributes.remove(MOVE_OUT)),
    }
    next
}
