//! `berth-host` with a real NetworkManager: Debian's, with a D-Bus of its own, managing a veth in a network namespace.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use berth_parts::Parts;
use berth_testkit::{Process, guarded};
use serde_json::{Value, json};
use tempfile::TempDir;

/// /sys of the namespace, read-only: without udev NetworkManager asks it what devices there are. /run, /etc and /var/lib are
/// the test's own.
const SETUP: &str = r#"
set -e
tree=$1
mount -t tmpfs tmpfs /run
mount -t sysfs -o ro sysfs /sys
for dir in etc var/lib; do
    mkdir -p "/run/over/$dir/upper" "/run/over/$dir/work"
    mount -t overlay -o "lowerdir=/$dir,upperdir=/run/over/$dir/upper,workdir=/run/over/$dir/work" overlay "/$dir"
done
ip link set lo up
ip link add eth1 type veth peer name port1
ip link set port1 up
mkdir -p /run/dbus /etc/NetworkManager/system-connections
cat > /run/bus.conf <<CONF
<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN" "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>system</type>
  <listen>unix:path=/run/dbus/system_bus_socket</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow user="*"/> <allow own="*"/> <allow eavesdrop="true"/>
    <allow send_destination="*"/> <allow receive_sender="*"/> <allow receive_requested_reply="true"/>
  </policy>
</busconfig>
CONF
cat > /etc/NetworkManager/NetworkManager.conf <<CONF
[main]
plugins=keyfile
dhcp=internal
dns=none
rc-manager=unmanaged
auth-polkit=false
no-auto-default=*
[device-peer]
match-device=interface-name:port1
managed=0
CONF
rm -rf /etc/NetworkManager/conf.d
dbus-daemon --config-file=/run/bus.conf --nofork --nopidfile &
while ! [ -S /run/dbus/system_bus_socket ]; do sleep 0.05; done
export LD_LIBRARY_PATH="$tree/usr/lib/x86_64-linux-gnu"
exec "$tree/usr/sbin/NetworkManager" --no-daemon
"#;

struct Host {
    /// In the namespaces, as this process sees it.
    pid: u32,
    _process: Process,
    dir: TempDir,
}

impl Host {
    fn new() -> Host {
        let dir = tempfile::tempdir().unwrap();
        let tree = Parts::find().unwrap().network_manager().unwrap();
        let mut unshare = guarded("unshare");
        unshare
            .args([
                "--net",
                "--mount",
                "--pid",
                "--fork",
                "--kill-child=KILL",
                "--mount-proc",
            ])
            .args(["--", "sh", "-c", SETUP, "setup"])
            .arg(&tree);
        let process = Process::start("network-manager", unshare, dir.path()).unwrap();
        let outer = process.pid().unwrap();
        let mut pid = None;
        until("NetworkManager's namespaces are there", &process, || {
            let path = format!("/proc/{outer}/task/{outer}/children");
            let text = std::fs::read_to_string(path).unwrap_or_default();
            pid = text
                .split_whitespace()
                .next()
                .and_then(|pid| pid.parse().ok());
            pid.is_some()
        });
        let host = Host {
            pid: pid.unwrap(),
            _process: process,
            dir,
        };
        let nmcli = tree.join("usr/bin/nmcli");
        let libraries = tree.join("usr/lib/x86_64-linux-gnu");
        until("NetworkManager manages eth1", &host._process, || {
            let mut asked = host.command(&nmcli);
            asked.env("LD_LIBRARY_PATH", &libraries);
            let asked = asked.args(["--terse", "--fields", "DEVICE,STATE", "device"]);
            let said = asked.output().unwrap();
            String::from_utf8_lossy(&said.stdout).contains("eth1:disconnected")
        });
        host
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--target={}", self.pid))
            .args(["--net", "--mount", "--pid", "--"])
            .arg(program)
            .env(
                "DBUS_SYSTEM_BUS_ADDRESS",
                "unix:path=/run/dbus/system_bus_socket",
            );
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = self.command(env!("CARGO_BIN_EXE_berth-host").as_ref());
        command.args(arguments).output().unwrap()
    }

    fn succeeded(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "{arguments:?}: {complaint}\n{}",
            self._process.tail()
        );
        String::from_utf8(output.stdout).unwrap()
    }

    fn state(&self, state: &Value) -> String {
        let file = self.dir.path().join("state.json");
        std::fs::write(&file, state.to_string()).unwrap();
        file.to_str().unwrap().to_owned()
    }

    fn addresses(&self) -> Vec<String> {
        let mut ip = self.command("ip".as_ref());
        let said = ip
            .args(["-j", "-4", "addr", "show", "eth1"])
            .output()
            .unwrap();
        let links: Value = serde_json::from_slice(&said.stdout).unwrap();
        let infos = links[0]["addr_info"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let text =
            |info: &Value| format!("{}/{}", info["local"].as_str().unwrap(), info["prefixlen"]);
        infos.iter().map(text).collect()
    }
}

fn until(what: &str, process: &Process, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "not yet: {what}\n{}",
            process.tail()
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn state() -> Value {
    let address = json!({ "ip": "192.0.2.7", "prefix-length": 24 });
    let ipv4 = json!({ "enabled": true, "dhcp": false, "address": [address] });
    json!({ "interfaces": [{ "name": "eth1", "type": "ethernet", "state": "up", "ipv4": ipv4 }] })
}

#[test]
fn network_managers_checkpoint_is_committed_or_rolled_back() {
    let host = Host::new();
    let file = host.state(&state());
    // The probe fails.
    host.succeeded(&["apply", "--no-commit", "--timeout", "60", &file]);
    assert_eq!(host.addresses(), ["192.0.2.7/24"]);
    host.succeeded(&["rollback"]);
    until("the address is gone", &host._process, || {
        host.addresses().is_empty()
    });
    // It succeeds.
    host.succeeded(&["apply", "--no-commit", "--timeout", "60", &file]);
    host.succeeded(&["commit"]);
    assert_eq!(host.addresses(), ["192.0.2.7/24"]);
    let shown: Value = serde_json::from_str(&host.succeeded(&["show", "eth1", "--json"])).unwrap();
    assert_eq!(
        shown["interfaces"][0]["ipv4"]["address"][0]["ip"],
        "192.0.2.7"
    );
    // There is nothing to commit or to roll back any more.
    assert_eq!(host.run(&["rollback"]).status.code(), Some(1));
}

#[test]
fn network_manager_itself_undoes_what_nobody_commits() {
    let host = Host::new();
    let file = host.state(&state());
    host.succeeded(&["apply", "--no-commit", "--timeout", "10", &file]);
    assert_eq!(host.addresses(), ["192.0.2.7/24"]);
    until("NetworkManager has rolled back", &host._process, || {
        host.addresses().is_empty()
    });
}
