//! A CNI call for a pod as a runtime makes it: as the environment of a program, or over an agent's socket.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use berth_cni::wire::{Answer, Request};
use berth_cni::{Environment, http};
use serde_json::{Value, json};

use crate::programs::isolated;

/// A slower agent counts as not answering.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A verb for one interface of a pod.
#[derive(Clone, Debug)]
pub struct PodCall {
    plugin: String,
    environment: Environment,
}

impl PodCall {
    /// For `net1` of a pod in the namespace `ns`, to a plugin of that name. The pod's one container is named after it.
    pub fn new(plugin: &str, verb: &str, pod: &str) -> PodCall {
        let environment = Environment {
            command: verb.to_owned(),
            container_id: format!("{pod}-container"),
            // Its directory exists and the file does not: the container does not run.
            netns: std::env::temp_dir()
                .join("berth-no-netns")
                .display()
                .to_string(),
            ifname: "net1".to_owned(),
            args: args("ns", pod),
            path: "/opt/cni/bin".to_owned(),
        };
        PodCall {
            plugin: plugin.to_owned(),
            environment,
        }
    }

    /// For a pod of that name in another namespace.
    #[must_use]
    pub fn in_namespace(mut self, namespace: &str, pod: &str) -> PodCall {
        self.environment.args = args(namespace, pod);
        self
    }

    /// For another container of the pod.
    #[must_use]
    pub fn of_container(mut self, container: &str) -> PodCall {
        container.clone_into(&mut self.environment.container_id);
        self
    }

    /// For a container whose network namespace is this file.
    #[must_use]
    pub fn in_netns(mut self, netns: &Path) -> PodCall {
        self.environment.netns = netns.display().to_string();
        self
    }

    /// For another interface.
    #[must_use]
    pub fn of_interface(mut self, ifname: &str) -> PodCall {
        ifname.clone_into(&mut self.environment.ifname);
        self
    }

    /// With these `CNI_ARGS` instead of those of a pod.
    #[must_use]
    pub fn with_args(mut self, args: &str) -> PodCall {
        args.clone_into(&mut self.environment.args);
        self
    }

    /// With more of them.
    #[must_use]
    pub fn and_args(mut self, more: &str) -> PodCall {
        if !more.is_empty() {
            self.environment.args = format!("{};{more}", self.environment.args);
        }
        self
    }

    /// With this `CNI_PATH`.
    #[must_use]
    pub fn in_path(mut self, path: &Path) -> PodCall {
        self.environment.path = path.display().to_string();
        self
    }

    /// Of no container, as GC and STATUS are.
    #[must_use]
    pub fn of_no_container(mut self) -> PodCall {
        let environment = &mut self.environment;
        for field in [
            &mut environment.container_id,
            &mut environment.netns,
            &mut environment.ifname,
        ] {
            field.clear();
        }
        self
    }

    /// A macvlan network with this `ipam`, as the call's plugin is configured with.
    pub fn network(&self, ipam: &Value) -> Value {
        let mut ipam = ipam.clone();
        ipam["type"] = json!(self.plugin);
        json!({ "cniVersion": "1.1.0", "name": "net", "type": "macvlan", "ipam": ipam })
    }

    /// The call for such a network, as an agent takes it.
    pub fn request(&self, ipam: &Value) -> Request {
        self.request_of(&self.network(ipam).to_string())
    }

    /// The call for a network with this configuration.
    pub fn request_of(&self, network: &str) -> Request {
        Request::new(&self.plugin, self.environment.clone(), network.to_owned())
    }

    /// The same, sent over an agent's socket.
    pub fn ask(&self, socket: &Path, ipam: &Value) -> Result<Answer> {
        Ok(http::call(socket, &self.request(ipam), TIMEOUT)?)
    }

    /// A program with only what a runtime puts into its environment, isolated from the machine's files.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = isolated(Command::new(program));
        self.put_into(&mut command);
        command
    }

    /// Adds what a runtime puts into a program's environment.
    pub fn put_into(&self, command: &mut Command) {
        let environment = &self.environment;
        command
            .env("CNI_COMMAND", &environment.command)
            .env("CNI_CONTAINERID", &environment.container_id)
            .env("CNI_NETNS", &environment.netns)
            .env("CNI_IFNAME", &environment.ifname)
            .env("CNI_ARGS", &environment.args)
            .env("CNI_PATH", &environment.path);
    }
}

fn args(namespace: &str, pod: &str) -> String {
    format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={pod}")
}

/// The addresses of the answer to an ADD, with their prefix lengths; or the code and message of a refusal.
pub fn answered_addresses(answer: &Answer) -> Result<Vec<String>, (u64, String)> {
    let said: Value = serde_json::from_str(&answer.stdout).unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    if answer.exit != 0 {
        let code = said["code"].as_u64().unwrap_or_default();
        let words = match said.get("msg") {
            Some(words) => text(words),
            None => answer.stdout.clone(),
        };
        return Err((code, words));
    }
    let ips = said["ips"].as_array().cloned().unwrap_or_default();
    Ok(ips.iter().map(|ip| text(&ip["address"])).collect())
}
