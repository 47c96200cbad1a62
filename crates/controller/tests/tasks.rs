//! The controller runs the tasks of its list: all of them while it leads, to the end of the term, and no subset.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use berth_controller::{Controller, ControllerConfig, ControllerError, Tasks};
use berth_front::LeaderTask;
use berth_kube::Connect;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

const KUBECONFIG: &str = "{apiVersion: v1, kind: Config, current-context: c,
    clusters: [{name: k, cluster: {server: 'http://127.0.0.1:1'}}],
    users: [{name: u, user: {token: t}}],
    contexts: [{name: c, context: {cluster: k, user: u}}]}";

/// Counts its terms, and notifies when the first one started.
#[derive(Debug, Default)]
struct Counting {
    started: AtomicUsize,
    ended: AtomicUsize,
    leads: Notify,
}

#[async_trait]
impl LeaderTask for Counting {
    fn name(&self) -> &'static str {
        "counting"
    }

    async fn lead(&self, term: CancellationToken) {
        self.started.fetch_add(1, Ordering::SeqCst);
        self.leads.notify_one();
        term.cancelled().await;
        self.ended.fetch_add(1, Ordering::SeqCst);
    }
}

/// Ends by itself as soon as the other leads.
#[derive(Debug)]
struct Broken(Arc<Counting>);

#[async_trait]
impl LeaderTask for Broken {
    fn name(&self) -> &'static str {
        "broken"
    }

    async fn follow(&self, _stop: CancellationToken) {
        self.0.leads.notified().await;
    }
}

/// Without an election, on a cluster that does not exist: tasks bring their own requests.
async fn controller(dir: &tempfile::TempDir) -> Controller {
    let kubeconfig = dir.path().join("kubeconfig");
    std::fs::write(&kubeconfig, KUBECONFIG).unwrap();
    let config = ControllerConfig {
        cluster: Connect {
            kubeconfig: Some(kubeconfig),
            ..Connect::default()
        },
        identity: "test".into(),
        notice: Default::default(),
        lease: None,
        listen: None,
    };
    Controller::open(config).await.unwrap()
}

#[tokio::test]
async fn a_task_leads_until_the_controller_stops() {
    let dir = tempfile::tempdir().unwrap();
    let task = Arc::new(Counting::default());
    let tasks: Tasks = vec![Arc::clone(&task) as Arc<dyn LeaderTask>];
    let until_led = task.leads.notified();
    let ended = controller(&dir).await.run(tasks, until_led).await;
    assert!(ended.is_ok(), "{ended:?}");
    assert_eq!(task.started.load(Ordering::SeqCst), 1);
    assert_eq!(
        task.ended.load(Ordering::SeqCst),
        1,
        "the term was cancelled, not dropped"
    );
}

#[tokio::test]
async fn a_task_that_ends_by_itself_ends_the_controller_and_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let task = Arc::new(Counting::default());
    let tasks: Tasks = vec![
        Arc::clone(&task) as Arc<dyn LeaderTask>,
        Arc::new(Broken(Arc::clone(&task))),
    ];
    let ended = controller(&dir)
        .await
        .run(tasks, std::future::pending())
        .await;
    assert!(
        matches!(ended, Err(ControllerError::Task("broken"))),
        "{ended:?}"
    );
    assert_eq!(task.ended.load(Ordering::SeqCst), 1);
}
