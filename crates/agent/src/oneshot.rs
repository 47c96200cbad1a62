//! One CNI call without an agent: what `berth cni` does.

use std::sync::Arc;

use berth_cni::wire::{Answer, Request};
use berth_cni::{CniError, Code, NetConf};
use berth_desk::DeskMetrics;
use berth_front::{Front, Host, Lifetime, Node};
use berth_node::LazyFile;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::fronts::unknown;

/// Serves one call by the front whose plugin name it has. No other front is started.
pub async fn oneshot(node: &Node, fronts: Vec<Box<dyn Front>>, request: &Request) -> Answer {
    let known: Vec<&'static str> = fronts
        .iter()
        .flat_map(|front| front.plugins())
        .copied()
        .collect();
    let plugin = request.plugin.as_str();
    let named = fronts
        .into_iter()
        .find(|front| front.plugins().contains(&plugin));
    let Some(front) = named else {
        return unknown(request, known.iter());
    };
    let host = Host {
        node,
        file: Arc::new(LazyFile::of_call(&node.database)),
        lifetime: Lifetime::Call,
        clusters: Arc::default(),
        registry: &mut Registry::default(),
        desk_metrics: DeskMetrics::default(),
        stop: CancellationToken::new(),
        tasks: TaskTracker::new(),
    };
    let name = front.name();
    let serving = match front.start(host).await {
        Ok(serving) => serving,
        Err(error) => {
            let error = CniError::new(
                Code::TryLater,
                format!("the {name} front can't be started: {error}"),
            );
            return Answer::failure(error.render(NetConf::version_of(&request.stdin)));
        }
    };
    let answer = serving.call(request).await;
    serving.finish().await;
    answer
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use berth_ledger::{SharedRecordLedger, SqliteLedger};
    use berth_pods::Store;
    use berth_pods::node::PodFront;
    use berth_testkit::PodCall;
    use serde_json::json;

    use super::*;

    fn mk_add(container: &str) -> Request {
        // Two addresses.
        let network = json!({
            "cniVersion": "1.0.0", "name": "blue", "type": "bridge",
            "ipam": { "type": "berth", "range": "10.0.0.0/30" },
        });
        let call = PodCall::new("berth", "ADD", "").of_container(container);
        call.with_args("").request_of(&network.to_string())
    }

    async fn call(database: &Path, container: &str) -> i32 {
        let node = Node {
            database: database.to_owned(),
            ..Node::default()
        };
        let front = PodFront {
            flat_places: Some(Vec::new()),
            definition_paths: Some(Vec::new()),
            ..PodFront::default()
        };
        oneshot(&node, vec![Box::new(front)], &mk_add(container))
            .await
            .exit
    }

    /// Containers of an older boot, which were not deleted.
    async fn left(database: &Path, containers: &[&str]) {
        let ledger: SharedRecordLedger = Arc::new(SqliteLedger::open(database).unwrap());
        let store = Arc::new(Store::standalone(ledger, DeskMetrics::default()));
        let front = berth_pods::Front::new(Arc::new(store), "")
            .with_boot("old")
            .with_flat_places(Vec::new());
        for container in containers {
            let answer = front.answer(&mk_add(container)).await;
            assert_eq!(answer.exit, 0, "{}", answer.stdout);
        }
    }

    #[tokio::test]
    async fn plugins_252_697_a_machine_without_an_agent_loses_no_address_to_a_reboot() {
        let dir = tempfile::tempdir().unwrap();
        let database = dir.path().join("berth.db");
        left(&database, &["old-1", "old-2"]).await;
        assert_eq!(call(&database, "new-1").await, 0);
        assert_eq!(call(&database, "new-2").await, 0);
        assert_ne!(call(&database, "new-3").await, 0, "both are in use");
    }

    #[tokio::test]
    async fn a_name_that_no_front_answers_to_is_refused_on_del_too() {
        let dir = tempfile::tempdir().unwrap();
        let node = Node {
            database: dir.path().join("berth.db"),
            ..Node::default()
        };
        for verb in ["ADD", "DEL"] {
            let mut request = mk_add("c");
            request.environment.command = verb.into();
            request.plugin = "gcp-ipam".into();
            let answer = oneshot(&node, vec![Box::new(PodFront::default())], &request).await;
            assert_eq!(answer.exit, 1, "{verb}");
            assert!(answer.stdout.contains("gcp-ipam"), "{}", answer.stdout);
            assert!(
                answer.stdout.contains("berth, whereabouts"),
                "{}",
                answer.stdout
            );
        }
        assert!(!node.database.exists(), "no front was started");
    }
}
