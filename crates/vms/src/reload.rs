//! Reloads pools while Berth runs: after an edit of the settings file, or of the ConfigMap that lists pools.
//!
//! Guarantees that an edit that can't be used changes nothing and is shown; that the two sources never disagree about
//! a VM (an edit with one VM in two pools is refused as a whole); and that a source that disappears does not empty a
//! pool: only an explicit edit does.

use std::sync::Arc;
use std::time::Duration;

use berth_ledger::chain;
use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::settings::{PoolSettings, Settings, SettingsError, check_apart, pool_from_configmap};
use crate::{Fleet, PoolError};

/// The interval in which the settings file is read. A mounted ConfigMap takes a minute to change anyway.
const POLL: Duration = Duration::from_secs(1);

/// Reads the settings again, as they were read at the start.
pub type Reload = Arc<dyn Fn() -> Result<Settings, SettingsError> + Send + Sync>;

/// The pools by where they are listed.
#[derive(Clone)]
pub(crate) struct Sizes {
    fleet: Fleet,
    settings: Arc<Settings>,
    client: Option<Client>,
    lists: Arc<Mutex<Lists>>,
}

#[derive(Clone, Default)]
struct Lists {
    settings: Vec<PoolSettings>,
    configmap: Vec<PoolSettings>,
}

impl Lists {
    /// All pools, if both lists together are valid.
    fn all(&self) -> Result<Vec<PoolSettings>, String> {
        let all = [self.settings.as_slice(), &self.configmap].concat();
        check_apart(&all)?;
        Ok(all)
    }
}

impl Sizes {
    pub(crate) fn new(fleet: Fleet, settings: Arc<Settings>, client: Option<Client>) -> Self {
        let lists = Lists {
            settings: settings.pools.clone(),
            configmap: Vec::new(),
        };
        Self {
            fleet,
            settings,
            client,
            lists: Arc::new(Mutex::new(lists)),
        }
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The ConfigMap that lists pools, and its name.
    fn source(&self) -> Option<(Api<ConfigMap>, &str)> {
        let (client, name) = (
            self.client.clone()?,
            self.settings.pools_configmap.as_ref()?,
        );
        Some((Api::namespaced(client, &self.settings.namespace), name))
    }

    /// The first opening: every pool that is listed now. A ConfigMap that is missing, or whose list can't be used,
    /// delays no other pool; one that can't be read does: its pools' VMs would not be recovered.
    pub(crate) async fn open(&self) -> Result<(), PoolError> {
        let mut next = Lists {
            settings: self.settings.pools.clone(),
            configmap: Vec::new(),
        };
        let mut problem = None;
        if let Some((api, name)) = self.source() {
            let read = api.get_opt(name).await;
            let found = read.map_err(|error| PoolError::Starting {
                why: format!("pools-configmap {name} can't be read: {}", chain(&error)),
            })?;
            if found.is_none() {
                tracing::warn!(configmap = name, "pools-configmap does not exist yet");
            }
            match found.map_or(Ok(Vec::new()), |found| self.listed(name, found)) {
                Ok(pools) => next.configmap = pools,
                Err(wrong) => problem = Some(wrong),
            }
        }
        let all = next.all().or_else(|wrong| {
            problem = Some(wrong);
            next.configmap.clear();
            next.all()
        });
        let all = all.map_err(|why| PoolError::Starting { why })?;
        *self.lists.lock() = next;
        let opened = self.fleet.resize(&all).await;
        if let Some(problem) = problem {
            self.fleet.refuse_edit(problem);
        }
        opened
    }

    /// The pools of the ConfigMap, or its error.
    fn listed(&self, name: &str, object: ConfigMap) -> Result<Vec<PoolSettings>, String> {
        let listed = object.data.unwrap_or_default();
        let pools: Result<Vec<Vec<PoolSettings>>, String> = listed
            .iter()
            .map(|(pool, ips)| pool_from_configmap(&self.settings, pool, ips))
            .collect();
        match pools {
            Ok(pools) => Ok(pools.concat()),
            Err(problem) => Err(format!("ConfigMap {name}: {problem}")),
        }
    }

    /// Replaces one list, if both together are valid.
    async fn change(&self, change: impl FnOnce(&mut Lists)) {
        let all = {
            let mut lists = self.lists.lock();
            let mut next = lists.clone();
            change(&mut next);
            let all = match next.all() {
                Ok(all) => all,
                Err(problem) => return self.fleet.refuse_edit(problem),
            };
            *lists = next;
            all
        };
        if let Err(error) = self.fleet.resize(&all).await {
            tracing::warn!(%error, "the pools can't be resized yet; it is tried again");
        }
    }

    /// Follows the settings file, if there is one, until `end`.
    pub(crate) async fn follow_file(self, reload: Reload, end: CancellationToken) {
        let Some(path) = self.settings.file.clone() else {
            return;
        };
        let mut seen = tokio::fs::read(&path).await.ok();
        while end
            .run_until_cancelled(tokio::time::sleep(POLL))
            .await
            .is_some()
        {
            // A missing file is being replaced.
            let Ok(now) = tokio::fs::read(&path).await else {
                continue;
            };
            if seen.as_ref() == Some(&now) {
                continue;
            }
            seen = Some(now);
            match reload() {
                Ok(settings) => {
                    tracing::info!(path = %path.display(), "the settings file changed: its pools are used now, other settings after a restart");
                    self.change(|lists| lists.settings = settings.pools).await;
                }
                Err(error) => self.fleet.refuse_edit(error.to_string()),
            }
        }
    }

    /// Follows the ConfigMap of pools, if there is one, until `end`.
    pub(crate) async fn follow_configmap(self, end: CancellationToken) {
        let Some((api, name)) = self.source() else {
            return;
        };
        let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
        let mut objects = watcher(api, config)
            .default_backoff()
            .applied_objects()
            .boxed();
        while let Some(Some(event)) = end.run_until_cancelled(objects.next()).await {
            let object = match event {
                Ok(object) => object,
                Err(error) => {
                    tracing::warn!(configmap = name, %error, "the ConfigMap of pools can't be watched now");
                    continue;
                }
            };
            match self.listed(name, object) {
                Ok(pools) => self.change(|lists| lists.configmap = pools).await,
                Err(problem) => self.fleet.refuse_edit(problem),
            }
        }
    }
}
