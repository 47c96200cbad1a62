//! A real cluster under test: etcd and kube-apiserver on loopback with TLS, RBAC and service-account
//! tokens; throw-away network namespaces; and whole nodes with kubelet, containerd and Multus.
//!
//! Promises: nothing outlives the test process, however it ends (parts die with it, scratch files and
//! cgroups are swept by a janitor that outlives it by a second); a part that fails to start shows its log. Does
//! not build the parts: `cargo xtask parts` does, and a missing part fails the test with that advice.
//!
//! `BERTH_KEEP_SCRATCH=1` keeps the scratch directories (logs, data) for a look at them.
//!
//! ```no_run
//! use berth_testkit::{Cluster, Fate, Part, Relay};
//!
//! # async fn example() -> anyhow::Result<()> {
//! // One per test process, started by whoever asks first; each test takes a namespace of its own.
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
//! // A cluster of one's own, to be hurt.
//! let own = Cluster::start().await?;
//! own.kill(Part::ApiServer)?;
//! own.restart(Part::ApiServer).await?;
//! own.pause(Part::Etcd)?;
//! own.resume(Part::Etcd)?;
//!
//! // A way to a cluster, shared or not, on which single requests are refused, held up or lost.
//! let relay = Relay::new(cluster).await?;
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
mod capsule;
mod cluster;
mod forward;
mod holder;
mod image;
mod kubeconfig;
mod machine;
mod netns;
mod node;
mod pki;
mod plane;
mod ports;
mod process;
mod programs;
mod relay;
mod scratch;
mod served;
mod sheet;
mod stranger;
mod turn;
mod whereabouts;

pub use account::Account;
pub use agent::Agent;
pub use agents::Agents;
pub use call::{PodCall, given};
pub use cluster::{Cluster, Options, Part};
pub use machine::Machine;
pub use netns::Netns;
pub use node::{Node, NodeOptions};
pub use process::{Process, guarded};
pub use programs::{fed, host_beside, isolated, no_machine_files, plugin_beside};
pub use relay::{Asked, Fate, Relay};
pub use served::{Served, Told};
pub use sheet::Sheet;
pub use stranger::Stranger;
pub use whereabouts::{Attachment, Whereabouts};
