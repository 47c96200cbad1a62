//! A real cluster under test: etcd and kube-apiserver on loopback with TLS, RBAC and service-account
//! tokens; throw-away network namespaces; and whole nodes with kubelet, containerd and Multus.
//!
//! Guarantees: nothing outlives the test process, however it ends (parts die with it, scratch files and
//! cgroups are removed by a janitor that outlives it by a second); a part that fails to start shows its log. Does
//! not build the parts: `cargo xtask parts` does, and a missing part fails the test with that advice.
//!
//! `BERTH_KEEP_SCRATCH=1` keeps the scratch directories (logs, data).
//!
//! ```no_run
//! use berth_testkit::{Cluster, Fate, Part, FaultProxy};
//!
//! # async fn example() -> anyhow::Result<()> {
//! // One per test process, started by the first caller; each test uses its own namespace.
//! let cluster = Cluster::shared().await;
//! let namespace = cluster.namespace("pools").await?;
//! cluster.apply(include_str!("../tests/widget.yaml")).await?;
//!
//! // Clients belong to the runtime they are made in: ask for one in each test, never share it.
//! let admin = cluster.client().await?;
//! let reader = cluster
//!     .service_account(&namespace, "reader", serde_json::json!([
//!         { "apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"] }
//!     ]))
//!     .await?;
//! let restricted = reader.client().await?;
//!
//! // A separate cluster, for tests that kill or pause its parts.
//! let own = Cluster::start().await?;
//! own.kill(Part::ApiServer)?;
//! own.restart(Part::ApiServer).await?;
//! own.pause(Part::Etcd)?;
//! own.resume(Part::Etcd)?;
//!
//! // A proxy to a cluster, shared or not, that refuses, delays or drops single requests.
//! let relay = FaultProxy::new(cluster).await?;
//! relay.rule(|asked| if asked.method == "POST" { Fate::Cut } else { Fate::Pass });
//! # Ok(())
//! # }
//! ```
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod account;
mod agent;
mod agents;
mod apply;
mod call;
mod cluster;
mod configmap;
mod control_plane;
mod fault_proxy;
mod forward;
mod image;
mod in_process;
mod kubeconfig;
mod machine;
mod machine_lock;
mod namespace_holder;
mod netns;
mod node;
mod pki;
mod ports;
mod process;
mod programs;
mod raw_client;
mod said;
mod sandbox;
mod scratch;
mod whereabouts;

pub use account::Account;
pub use agent::Agent;
pub use agents::Agents;
pub use call::{PodCall, answered_addresses};
pub use cluster::{Cluster, Options, Part};
pub use configmap::TestConfigMap;
pub use fault_proxy::{Asked, Fate, FaultProxy};
pub use in_process::{InProcess, StopSignal};
pub use machine::Machine;
pub use netns::Netns;
pub use node::{Node, NodeOptions};
pub use process::{Process, guarded};
pub use programs::{begun, fed, host_beside, isolated, no_machine_files, plugin_beside};
pub use raw_client::RawClient;
pub use said::Said;
pub use whereabouts::{Attachment, Whereabouts};
