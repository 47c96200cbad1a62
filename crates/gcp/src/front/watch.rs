//! The pods of this node, watched: their marker `live.cast.ai/move-out-ip` is recorded in the allocation when it appears, so
//! that the move and the DEL know it when the Pod is gone.

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
use super::journal::POOL;
use super::moves::{MOVE_OUT, is_moving};
use super::pools::at;
use crate::migrate::MOVE_OUT_IP;

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

    async fn saw(&self, pod: PodFacts) {
        let marker = pod.annotation(MOVE_OUT_IP);
        if let Err(error) = self.record_marker(&pod, marker).await {
            tracing::warn!(pod = %owner(&pod), %error, "the marker {MOVE_OUT_IP} is not recorded yet");
        }
    }

    /// Makes the allocation say what the pod says.
    async fn record_marker(&self, pod: &PodFacts, marker: Option<&str>) -> Result<(), CniError> {
        let owner = owner(pod);
        let mut known = false;
        for (journal, address, holder) in self.rows().await? {
            if holder.owner != owner {
                continue;
            }
            known = true;
            if holder.attribute(MOVE_OUT) == marker {
                continue;
            }
            let Some(name) = holder.attribute(POOL) else {
                continue;
            };
            let info = self.pool_named(name, method_of(&holder)).await?;
            loop {
                let pool = self.load(&info).await?.pool;
                let record = pool.get(at(address));
                let Some(record) =
                    record.filter(|record| record.owner == owner && !is_moving(record))
                else {
                    break;
                };
                let next = marked(record, marker);
                if next == *record || self.transfer(&info, address, (record, &next)).await? {
                    break;
                }
            }
            let row = marked(&holder, marker);
            journal.hold(address, &row).await.map_err(unrecorded)?;
            tracing::info!(%address, pod = %owner, marker, "recorded whether the address moves away");
        }
        if !known && marker.is_some() {
            tracing::info!(pod = %owner, "{MOVE_OUT_IP} is on a pod that has no address of a pool on this node: nothing moves");
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
