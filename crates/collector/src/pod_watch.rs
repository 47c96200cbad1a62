//! The pods of this node, from a watch: a hint that one is gone, never the proof (I4).

use std::collections::HashMap;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod as PodObject;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as start};
use kube::{Api, Client};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::observed::{Phase, Pod, PodRef, PodState};

#[derive(Debug, Default)]
pub(crate) struct PodWatch {
    /// None until the first list is complete: before that, no pod is absent.
    pods: Mutex<Option<HashMap<PodRef, Pod>>>,
    /// A pod may be gone.
    pub changed: Notify,
}

impl PodWatch {
    /// The states of those pods; none before the first list.
    pub fn states<'a>(
        &self,
        pods: impl Iterator<Item = &'a PodRef>,
    ) -> Option<HashMap<PodRef, PodState>> {
        let known = self.pods.lock();
        let known = known.as_ref()?;
        let state = |pod: &PodRef| match known.get(pod) {
            Some(found) => (pod.clone(), PodState::Present(found.clone())),
            None => (pod.clone(), PodState::Absent),
        };
        Some(pods.map(state).collect())
    }

    /// Follows the pods that are bound to `node`, forever.
    pub async fn follow(&self, client: Client, node: &str) {
        let config = watcher::Config::default().fields(&format!("spec.nodeName={node}"));
        let pods: Api<PodObject> = Api::all(client);
        let mut events = start(pods, config).default_backoff().boxed();
        let mut listed = HashMap::new();
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Init) => listed.clear(),
                Ok(Event::InitApply(pod)) => {
                    listed.extend(read(&pod));
                }
                Ok(Event::InitDone) => {
                    *self.lock() = Some(std::mem::take(&mut listed));
                    self.changed.notify_one();
                }
                Ok(Event::Apply(pod)) => self.put(&pod),
                Ok(Event::Delete(pod)) => self.drop_pod(&pod),
                Err(error) => {
                    tracing::debug!(%error, "the watch of this node's pods broke; it is started again")
                }
            }
        }
    }

    fn put(&self, pod: &PodObject) {
        let Some((name, pod)) = read(pod) else {
            return;
        };
        let finished = pod.phase != Phase::Open;
        if let Some(known) = self.lock().as_mut() {
            known.insert(name, pod);
        }
        if finished {
            self.changed.notify_one();
        }
    }

    fn drop_pod(&self, pod: &PodObject) {
        let Some((name, _)) = read(pod) else {
            return;
        };
        if let Some(known) = self.lock().as_mut() {
            known.remove(&name);
        }
        self.changed.notify_one();
    }

    fn lock(&self) -> parking_lot::MutexGuard<'_, Option<HashMap<PodRef, Pod>>> {
        self.pods.lock()
    }
}

fn read(pod: &PodObject) -> Option<(PodRef, Pod)> {
    let meta = &pod.metadata;
    let name = PodRef::new(meta.namespace.clone()?, meta.name.clone()?);
    let static_uid = meta
        .annotations
        .as_ref()
        .and_then(|annotations| annotations.get(STATIC_UID));
    let status = pod.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref());
    let read = Pod {
        uids: meta.uid.iter().chain(static_uid).cloned().collect(),
        phase: Phase::read(phase.unwrap_or_default()),
        node: pod.spec.as_ref().and_then(|spec| spec.node_name.clone()),
    };
    Some((name, read))
}

/// The UID of a static pod, which its containers carry, on its mirror, which has another.
const STATIC_UID: &str = "kubernetes.io/config.hash";
