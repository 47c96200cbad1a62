//! The cluster: kubernetes-nmstate's definitions, Berth's roles and policies, nodes, and a leader.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use berth_nodes::objects::{self, Kind, NODE_IP_POOL, POLICY};
use berth_parts::Parts;
use berth_testkit::{Account, Agents, Cluster, Process, guarded, isolated};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::api::PostParams;
use kube::core::Request;
use kube::{Api, Client};
use serde_json::{Value, json};

pub const HOME: &str = "kube-system";
const AUDIENCE: &str = "desk.berth.dev";
const TIMEOUT: Duration = Duration::from_secs(120);

/// Keeps the state of its last apply. Shell built-ins alone: one process a call.
const HOST: &str = r#"#!/bin/sh
for last; do :; done
case "$1" in
show) if [ -f "$0.state" ]; then while read -r line || [ -n "$line" ]; do echo "$line"; done < "$0.state"; else echo '{"interfaces":[]}'; fi ;;
apply) while read -r line || [ -n "$line" ]; do echo "$line"; done < "$last" > "$0.state" ;;
esac
"#;

pub struct Site {
    pub cluster: Cluster,
    pub admin: Client,
    agents: Agents,
    controller: Account,
    pub berth: PathBuf,
    pub dir: tempfile::TempDir,
    sources: AtomicU16,
}

/// What one node's handler has of its own.
#[derive(Clone, Debug)]
pub struct Credentials {
    pub node: String,
    pub kubeconfig: PathBuf,
    /// For the leader's desk.
    pub token_file: PathBuf,
    /// The loopback address that its connections to the leader come from: the leader limits connections per peer.
    pub source: IpAddr,
    pub host: PathBuf,
}

impl Site {
    pub async fn start() -> Result<Site> {
        let berth = std::env::current_exe()?.with_file_name("berth");
        let berth = berth
            .canonicalize()
            .context("berth is not built: run `cargo xtask bench nodes`")?;
        let cluster = Cluster::start().await?;
        for crd in berth_api::crds()? {
            cluster.apply_object(crd).await?;
        }
        let upstream = Parts::find()?.kubernetes_nmstate()?;
        for file in ["crds.yaml", "admission.yaml"] {
            let text = std::fs::read_to_string(upstream.join(file))?;
            cluster.apply(&text).await?;
        }
        for text in [
            include_str!("../../../../deploy/crds/namespace-slices.yaml"),
            include_str!("../../../../deploy/controller/rbac.yaml"),
            include_str!("../../../../deploy/slices/rbac.yaml"),
            include_str!("../../../../deploy/nodes/rbac.yaml"),
            include_str!("../../../../deploy/nodes/captures.yaml"),
        ] {
            cluster.apply(text).await?;
        }
        let agents = cluster.agents(HOME).await?;
        let controller = cluster.account(HOME, "berth-controller").await?;
        Ok(Site {
            admin: cluster.client().await?,
            cluster,
            agents,
            controller,
            berth,
            dir: tempfile::tempdir()?,
            sources: AtomicU16::new(1),
        })
    }

    /// Puts the policies on hosts' objects in force. Handlers that each write the pool break them.
    pub async fn limit_agents(&self) -> Result<()> {
        for text in [
            include_str!("../../../../deploy/nodes/policies.yaml"),
            include_str!("../../../../deploy/nodes/status-policies.yaml"),
        ] {
            self.cluster.apply(text).await?;
        }
        Ok(())
    }

    /// A `berth controller` that leads.
    pub async fn leader(&self) -> Result<Process> {
        let mut command = isolated(guarded(&self.berth));
        command
            .env("PATH", "/usr/bin:/bin")
            .args(["controller", "--identity", "bench", "--nodes"])
            .args(["--desk-listen", "127.0.0.1:0", "--log-format", "json"])
            .env("BERTH_KUBECONFIG", self.controller.kubeconfig());
        let mut process = Process::start("controller", command, self.dir.path())?;
        let leases: Api<Lease> = Api::namespaced(self.admin.clone(), HOME);
        let started = Instant::now();
        loop {
            let lease = leases.get_opt("berth-controller").await?;
            let holder = lease.and_then(|lease| lease.spec?.holder_identity);
            if holder.is_some_and(|holder| holder.starts_with("bench")) {
                return Ok(process);
            }
            if let Some(status) = process.ended()? {
                bail!("the controller ended with {status}; {}", process.tail());
            }
            if started.elapsed() > TIMEOUT {
                bail!("the controller does not lead; {}", process.tail());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The account, the tokens and the host program of a node's agent.
    pub async fn credentials(&self, node: &str) -> Result<Credentials> {
        let account = self.agents.on(node).await?;
        let token = self.cluster.pod_token(&account, node, AUDIENCE).await?;
        let token_file = self.dir.path().join(format!("{node}.token"));
        std::fs::write(&token_file, token)?;
        let host = self.dir.path().join(format!("{node}.host"));
        write_program(&host)?;
        Ok(Credentials {
            node: node.to_owned(),
            kubeconfig: account.kubeconfig().to_owned(),
            token_file,
            source: self.source(),
            host,
        })
    }

    /// 127.1.x.y, another one at each call.
    fn source(&self) -> IpAddr {
        let [high, low] = self.sources.fetch_add(1, Ordering::Relaxed).to_be_bytes();
        Ipv4Addr::new(127, 1, high, low).into()
    }

    /// A Node that is Ready from its registration on.
    pub async fn node(&self, name: &str, group: &str) -> Result<()> {
        let nodes: Api<Node> = Api::all(self.admin.clone());
        let node = serde_json::from_value(json!({
            "metadata": { "name": name, "labels": { "bench": group } },
            "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
        }))?;
        nodes.create(&PostParams::default(), &node).await?;
        Ok(())
    }

    pub fn api(&self, kind: Kind) -> Api<kube::api::DynamicObject> {
        objects::api(self.admin.clone(), kind)
    }

    async fn create(&self, kind: Kind, name: &str, spec: Value) -> Result<()> {
        let (version, kind_name, _) = kind;
        let object = serde_json::from_value(json!({
            "apiVersion": format!("nmstate.io/{version}"), "kind": kind_name,
            "metadata": { "name": name }, "spec": spec,
        }))?;
        self.api(kind)
            .create(&PostParams::default(), &object)
            .await
            .with_context(|| format!("create {kind_name} {name}"))?;
        Ok(())
    }

    pub async fn pool(&self, name: &str, third: u8) -> Result<()> {
        let range = json!({ "cidr": format!("10.{third}.0.0/16"), "start": format!("10.{third}.0.1"), "end": format!("10.{third}.3.254") });
        self.create(NODE_IP_POOL, name, json!({ "range": range }))
            .await
    }

    /// A policy that takes an address of a pool for eth1 of a group's nodes.
    pub async fn policy(&self, name: &str, group: &str, pool: &str) -> Result<()> {
        let spec = json!({
            "nodeSelector": { "bench": group },
            // All at once: what is measured is the pool, not a roll-out.
            "maxUnavailable": "100%",
            "capture": { "address": format!("ippool.{pool}.allocate") },
            "desiredState": { "interfaces": [{
                "name": "eth1", "type": "ethernet", "state": "up",
                "ipv4": { "enabled": true, "dhcp": false, "address": [{
                    "ip": "{{ capture.address.ip }}", "prefix-length": "{{ capture.address.prefix-length }}",
                }] },
            }] },
        });
        self.create(POLICY, name, spec).await
    }

    pub async fn get(&self, kind: Kind, name: &str) -> Result<Value> {
        let found = self.api(kind).get_opt(name).await?;
        Ok(found.map_or(Value::Null, |object| objects::value(&object)))
    }

    /// Waits until a pool may be allocated from.
    pub async fn until_available(&self, pool: &str) -> Result<Value> {
        let started = Instant::now();
        loop {
            let object = self.get(NODE_IP_POOL, pool).await?;
            if reason(&object) == "ReconciledPool" {
                return Ok(object);
            }
            if started.elapsed() > TIMEOUT {
                bail!("NodeIPPool {pool}: {}", object["status"]);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// The API server's own metrics.
    async fn metrics(&self) -> Result<String> {
        let request = Request::new("/metrics").list(&kube::api::ListParams::default())?;
        Ok(self.admin.request_text(request).await?)
    }

    /// Waits until the API server serves that many watches of a resource.
    pub async fn until_watched(&self, resource: &str, count: usize) -> Result<()> {
        let started = Instant::now();
        loop {
            let text = self.metrics().await?;
            let watches = text.lines().filter(|line| {
                line.starts_with("apiserver_longrunning_requests{")
                    && line.contains(&format!("resource=\"{resource}\""))
                    && line.contains("verb=\"WATCH\"")
            });
            let open: f64 = watches.filter_map(sample).sum();
            if open >= count as f64 {
                return Ok(());
            }
            if started.elapsed() > TIMEOUT {
                bail!("{open} of {count} watches of {resource} are open");
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Write requests that the API server has answered, by resource.
    pub async fn writes(&self) -> Result<Writes> {
        let text = self.metrics().await?;
        let mut writes = Writes::default();
        for line in text.lines() {
            let Some(labels) = line.strip_prefix("apiserver_request_total{") else {
                continue;
            };
            let is_write = ["POST", "PUT", "PATCH", "APPLY", "DELETE"];
            let is_write = is_write
                .iter()
                .any(|verb| labels.contains(&format!("verb=\"{verb}\"")));
            let (true, Some(count)) = (is_write, sample(line)) else {
                continue;
            };
            let of = |resource: &str| labels.contains(&format!("resource=\"{resource}\""));
            if of("nodenetworkconfigurationenactments") || of("nodenetworkstates") {
                writes.nodes += count;
            } else if of("nodeippools") {
                writes.pools += count;
            } else if of("nodenetworkconfigurationpolicies") {
                writes.policies += count;
            }
        }
        Ok(writes)
    }

    /// The same when nothing has been written for three seconds.
    pub async fn settled_writes(&self) -> Result<Writes> {
        let mut last = self.writes().await?;
        let mut since = Instant::now();
        while since.elapsed() < Duration::from_secs(3) {
            tokio::time::sleep(Duration::from_millis(200)).await;
            let now = self.writes().await?;
            if now != last {
                (last, since) = (now, Instant::now());
            }
        }
        Ok(last)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Writes {
    /// Enactments and NodeNetworkStates.
    pub nodes: f64,
    pub pools: f64,
    pub policies: f64,
}

/// The value of a line of metrics.
fn sample(line: &str) -> Option<f64> {
    line.rsplit(' ').next()?.parse().ok()
}

/// The reason of a pool's condition.
pub fn reason(pool: &Value) -> &str {
    let conditions = pool.pointer("/status/conditions").and_then(Value::as_array);
    let mut all = conditions.into_iter().flatten();
    let one = all.find(|one| one["type"] == "Available");
    one.and_then(|one| one["reason"].as_str())
        .unwrap_or_default()
}

fn write_program(path: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(path, HOST)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))?;
    Ok(())
}
