//! Pods of a node, seen from outside: whether they run, and their interfaces and addresses.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::Pod;
use kube::api::Api;
use serde_json::Value;
use tokio::time::sleep;

use super::Node;
use super::launch::ctr;
use crate::cluster::TIMEOUT;
use crate::image::run;
use crate::netns::addresses_of;

impl Node {
    /// Returns the pod when it runs; after the timeout fails with kubectl's description of it.
    pub async fn wait_pod_running(&self, namespace: &str, pod: &str) -> Result<Pod> {
        let pods: Api<Pod> = Api::namespaced(self.cluster().client().await?, namespace);
        let started = Instant::now();
        while started.elapsed() < TIMEOUT {
            let found = pods
                .get_opt(pod)
                .await
                .with_context(|| format!("get pod {namespace}/{pod}"))?;
            let phase = found
                .as_ref()
                .and_then(|pod| pod.status.as_ref())
                .and_then(|status| status.phase.as_deref());
            if phase == Some("Running")
                && let Some(found) = found
            {
                return Ok(found);
            }
            sleep(Duration::from_millis(200)).await;
        }
        let story = self.kubectl(&["describe", "pod", "--namespace", namespace, pod])?;
        bail!(
            "pod {namespace}/{pod} does not run after {} s:\n{}",
            TIMEOUT.as_secs(),
            String::from_utf8_lossy(&story.stdout)
        )
    }

    /// Returns when the pod is gone from the API server, which the kubelet allows only when its networks are torn down.
    pub async fn wait_pod_gone(&self, namespace: &str, pod: &str) -> Result<()> {
        let pods: Api<Pod> = Api::namespaced(self.cluster().client().await?, namespace);
        let started = Instant::now();
        while started.elapsed() < TIMEOUT {
            if pods.get_opt(pod).await.context("get a pod")?.is_none() {
                return Ok(());
            }
            sleep(Duration::from_millis(200)).await;
        }
        bail!(
            "pod {namespace}/{pod} is still there after {} s",
            TIMEOUT.as_secs()
        )
    }

    /// The pod's interfaces and their addresses, as `192.0.2.7/24`, without link-local ones.
    pub fn pod_addresses(
        &self,
        namespace: &str,
        pod: &str,
    ) -> Result<BTreeMap<String, Vec<String>>> {
        let text = run(self.pod_command(namespace, pod, "ip")?.args(["-j", "addr"]))?;
        let interfaces: Value =
            serde_json::from_str(&text).context("read what `ip -j addr` printed")?;
        let names = interfaces.as_array().into_iter().flatten();
        Ok(names
            .filter_map(|entry| entry["ifname"].as_str())
            .map(|name| (name.to_owned(), addresses_of(&interfaces, name)))
            .collect())
    }

    /// A command in the pod's network namespace, with the node's files; arguments may follow.
    pub fn pod_command(
        &self,
        namespace: &str,
        pod: &str,
        program: impl AsRef<Path>,
    ) -> Result<Command> {
        let pid = self.sandbox(namespace, pod)?;
        // The PID belongs to the sandbox's PID namespace.
        let mut command = self.command("nsenter");
        command
            .arg(format!("--target={pid}"))
            .args(["--net", "--"])
            .arg(program.as_ref());
        Ok(command)
    }

    /// The process that holds the pod's namespaces.
    fn sandbox(&self, namespace: &str, pod: &str) -> Result<u32> {
        let filter = format!(
            "labels.\"io.cri-containerd.kind\"==sandbox,\
             labels.\"io.kubernetes.pod.namespace\"=={namespace},\
             labels.\"io.kubernetes.pod.name\"=={pod}"
        );
        let ids = run(ctr(&self.parts, self.dir()).args(["containers", "ls", "--quiet", &filter]))?;
        let tasks = run(ctr(&self.parts, self.dir()).args(["tasks", "ls"]))?;
        // A sandbox that failed may still be listed next to its successor: only one has a running task.
        tasks
            .lines()
            .filter_map(|line| {
                let mut words = line.split_whitespace();
                let (id, pid, state) = (words.next()?, words.next()?, words.next()?);
                (state == "RUNNING" && ids.lines().any(|known| known == id))
                    .then(|| pid.parse().ok())
                    .flatten()
            })
            .next()
            .with_context(|| {
                format!(
                    "pod {namespace}/{pod} has no running sandbox on {}",
                    self.name()
                )
            })
    }
}
