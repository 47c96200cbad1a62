//! Throw-away network namespaces for CNI plugins. Nothing in them reaches the machine's own network.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::namespace_holder::NamespaceHolder;

/// A network namespace with loopback up; gone, with its interfaces, when it is dropped.
///
/// ```no_run
/// # fn example() -> anyhow::Result<()> {
/// use berth_testkit::Netns;
/// let (host, pod) = (Netns::new()?, Netns::new()?);
/// host.veth("veth0", &pod, "eth0")?;
/// host.ip(&["addr", "add", "192.0.2.1/24", "dev", "veth0"])?;
/// pod.ip(&["addr", "add", "192.0.2.2/24", "dev", "eth0"])?;
/// assert!(pod.ping("192.0.2.1")?);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Netns {
    holder: NamespaceHolder,
    path: PathBuf,
}

impl Netns {
    pub fn new() -> Result<Netns> {
        let holder = NamespaceHolder::new(&["--net"], "ip link set lo up", &[])?;
        let path = PathBuf::from(format!("/proc/{}/ns/net", holder.pid()));
        Ok(Netns { holder, path })
    }

    /// CNI_NETNS, as a runtime passes it to a plugin.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn pid(&self) -> u32 {
        self.holder.pid()
    }

    /// A command that runs in the namespace; arguments and environment may follow.
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        command_in(&self.path, program.as_ref())
    }

    /// Runs a command to its end, successful or not.
    pub fn exec(&self, argv: &[&str]) -> Result<Output> {
        let (program, arguments) = argv.split_first().context("exec of nothing")?;
        self.command(program)
            .args(arguments)
            .output()
            .with_context(|| format!("run {argv:?} in {}", self.path.display()))
    }

    /// `ip ...` in the namespace: its output, or why it failed.
    pub fn ip(&self, arguments: &[&str]) -> Result<String> {
        ip_in(&self.path, arguments)
    }

    /// A pair of interfaces, both up: one here, the other in the other namespace.
    pub fn veth(&self, name: &str, other: &Netns, other_name: &str) -> Result<()> {
        let pid = other.pid().to_string();
        self.ip(&[
            "link", "add", name, "type", "veth", "peer", "name", other_name, "netns", &pid,
        ])?;
        self.ip(&["link", "set", name, "up"])?;
        other.ip(&["link", "set", other_name, "up"])?;
        Ok(())
    }

    /// `ip -j addr`: interfaces and their addresses.
    pub fn addresses(&self) -> Result<Value> {
        let text = self.ip(&["-j", "addr"])?;
        serde_json::from_str(&text).context("read what `ip -j addr` printed")
    }

    /// The addresses of one interface, as `192.0.2.7/24`, without link-local ones; none if the interface does not
    /// exist.
    pub fn addresses_of(&self, interface: &str) -> Result<Vec<String>> {
        Ok(addresses_of(&self.addresses()?, interface))
    }

    /// Whether an address, IPv4 or IPv6, answers one echo within a few seconds.
    pub fn ping(&self, address: &str) -> Result<bool> {
        let family = if address.contains(':') { "-6" } else { "-4" };
        // Several tries: an IPv6 address may still be in duplicate address detection.
        let output = self.exec(&[
            "busybox", "ping", family, "-c", "3", "-A", "-W", "2", address,
        ])?;
        Ok(output.status.success())
    }
}

pub(crate) fn command_in(netns: &Path, program: &Path) -> Command {
    let mut command = Command::new("nsenter");
    command
        .arg(format!("--net={}", netns.display()))
        .arg("--")
        .arg(program);
    command
}

pub(crate) fn ip_in(netns: &Path, arguments: &[&str]) -> Result<String> {
    let output = command_in(netns, Path::new("ip"))
        .args(arguments)
        .output()
        .context("run ip")?;
    if !output.status.success() {
        bail!(
            "ip {}: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The addresses of one interface from the output of `ip -j addr`.
pub(crate) fn addresses_of(interfaces: &Value, interface: &str) -> Vec<String> {
    let empty = Vec::new();
    interfaces
        .as_array()
        .unwrap_or(&empty)
        .iter()
        .filter(|entry| entry["ifname"] == interface)
        .flat_map(|entry| entry["addr_info"].as_array().unwrap_or(&empty))
        .filter(|info| info["scope"] != "link")
        .filter_map(|info| Some(format!("{}/{}", info["local"].as_str()?, info["prefixlen"])))
        .collect()
}
