//! Sizes that change while Berth runs: by an edit of the settings file, or of the ConfigMap that
//! lists pools.
//!
//! Promises that an edit that can't be used changes nothing and is shown; that the two sources
//! never disagree about a VM (one VM in two pools is refused as a whole); and that a source that
//! vanishes does not empty a pool: only an edit that says so does.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use tokio_util::sync::CancellationToken;

use crate::Fleet;
use crate::settings::{PoolSettings, Settings, SettingsError, check_apart, pool_from_configmap};

/// Between two looks at the settings file. A mounted ConfigMap takes a minute to change anyway.
const LOOK: Duration = Duration::from_secs(1);

/// Reads the settings again, as they were read at the start.
pub type Reload = Arc<dyn Fn() -> Result<Settings, SettingsError> + Send + Sync>;

/// The pools by where they are listed.
#[derive(Clone)]
pub(crate) struct Sizes {
    fleet: Fleet,
    lists: Arc<Mutex<Lists>>,
}

#[derive(Default)]
struct Lists {
    settings: Vec<PoolSettings>,
    configmap: Vec<PoolSettings>,
}

impl Sizes {
    pub(crate) fn new(fleet: Fleet, settings: &Settings) -> Self {
        let lists = Lists {
            settings: settings.pools.clone(),
            configmap: Vec::new(),
        };
        Self {
            fleet,
            lists: Arc::new(Mutex::new(lists)),
        }
    }

    /// Puts one list in place of its former self, if both together make sense.
    async fn change(&self, change: impl FnOnce(&mut Lists)) {
        let all = {
            let mut lists = self.lists.lock().unwrap_or_else(PoisonError::into_inner);
            let mut next = Lists {
                settings: lists.settings.clone(),
                configmap: lists.configmap.clone(),
            };
            change(&mut next);
            let all = [next.settings.as_slice(), &next.configmap].concat();
            if let Err(problem) = check_apart(&all) {
                self.fleet.refuse_edit(problem);
                return;
            }
            *lists = next;
            all
        };
        if let Err(error) = self.fleet.resize(&all).await {
            tracing::warn!(%error, "the pools can't be resized yet; it is tried again");
        }
    }

    /// Follows the settings file until `end`.
    pub(crate) async fn follow_file(self, path: PathBuf, reload: Reload, end: CancellationToken) {
        let mut seen = tokio::fs::read(&path).await.ok();
        while end
            .run_until_cancelled(tokio::time::sleep(LOOK))
            .await
            .is_some()
        {
            // A file that is away is being replaced.
            let Ok(now) = tokio::fs::read(&path).await else {
                continue;
            };
            if seen.as_ref() == Some(&now) {
                continue;
            }
            seen = Some(now);
            match reload() {
                Ok(settings) => {
                    tracing::info!(path = %path.display(), "the settings file changed; of it the pools are used, the rest after a restart");
                    self.change(|lists| lists.settings = settings.pools).await;
                }
                Err(error) => self.fleet.refuse_edit(error.to_string()),
            }
        }
    }

    /// Follows the ConfigMap of pools until `end`.
    pub(crate) async fn follow_configmap(
        self,
        client: Client,
        settings: Arc<Settings>,
        name: String,
        end: CancellationToken,
    ) {
        let api: Api<ConfigMap> = Api::namespaced(client, &settings.namespace);
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
            let listed = object.data.unwrap_or_default();
            let pools: Result<Vec<PoolSettings>, String> = listed
                .iter()
                .map(|(pool, ips)| pool_from_configmap(&settings, pool, ips))
                .collect();
            match pools {
                Ok(pools) => self.change(|lists| lists.configmap = pools).await,
                Err(problem) => self
                    .fleet
                    .refuse_edit(format!("ConfigMap {name}: {problem}")),
            }
        }
    }
}
