//! The manifests of deploy/, applied to a real API server as an administrator does, and what can be done with the rights
//! that they give.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod chain;
mod claims;
mod collect;
mod controller;
mod denials;
mod gcp;
mod manifests;
mod network_policy;
mod outage;
mod policy;
mod rights;
mod stolen;
mod stolen_entries;

use std::path::{Path, PathBuf};

use berth_testkit::{Account, Agents, Cluster};
use tokio::sync::OnceCell;

/// Where the manifests put everything.
const HOME: &str = "kube-system";
/// And where nodes claim slices.
const CLAIMS: &str = "berth-kube-system";

/// The node that most tests are on.
const NODE: &str = "node-1";

fn deploy(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../deploy")
        .join(path)
}

/// The shared cluster with Berth deployed to it.
async fn deployed() -> &'static Cluster {
    static DEPLOYED: OnceCell<()> = OnceCell::const_new();
    let cluster = Cluster::shared().await;
    DEPLOYED
        .get_or_init(|| async {
            let crds = deploy("crds");
            kubectl(cluster, &["apply", "--filename", crds.to_str().unwrap()]);
            for part in ["agent", "controller", "slices"] {
                kubectl(cluster, &["apply", "-k", deploy(part).to_str().unwrap()]);
            }
        })
        .await;
    cluster
}

/// The agents of every node, as they are deployed.
async fn agents() -> Agents {
    deployed().await.agents(HOME).await.unwrap()
}

/// The agent of one of them.
async fn agent() -> Account {
    agents().await.on(NODE).await.unwrap()
}

/// kubectl as administrator; what it printed.
fn kubectl(cluster: &Cluster, arguments: &[&str]) -> String {
    let output = cluster.kubectl(arguments).unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {told}");
    String::from_utf8(output.stdout).unwrap()
}
