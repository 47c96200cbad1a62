//! `berth gcp install` as built: the programs, the switch of a node's pod network, what it leaves alone, and the way back.
//!
//! The configurations have the shapes that GKE's netd and Calico's installer give them.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::scene::{Said, bare};

/// netd: dual stack, with the plugins of Dataplane V2, a mesh and a bandwidth limit chained behind.
const NETD: &str = r#"{
  "name": "gke-pod-network",
  "cniVersion": "0.3.1",
  "plugins": [
    {
      "type": "ptp",
      "mtu": 1460,
      "ipam": {
        "type": "host-local",
        "ranges": [
          [ { "subnet": "10.4.0.0/24" } ],
          [ { "subnet": "2600:1900:4000:1::/112" } ]
        ],
        "routes": [ { "dst": "0.0.0.0/0" }, { "dst": "::/0" } ]
      }
    },
    { "type": "portmap", "capabilities": { "portMappings": true } },
    { "type": "bandwidth", "capabilities": { "bandwidth": true } },
    { "type": "cilium-cni", "enable-route-mtu": true },
    { "type": "istio-cni", "log_level": "info", "kubernetes": { "kubeconfig": "ZZZ-istio" } }
  ]
}
"#;

/// Calico: the node's own range is filled in by its plugin, on one line, keys in another order.
const CALICO: &str = r#"{"name":"k8s-pod-network","cniVersion":"0.3.1","plugins":[{"type":"calico","ipam":{"subnet":"usePodCidr","type":"host-local"},"policy":{"type":"k8s"},"mtu":1460},{"type":"portmap","snat":true,"capabilities":{"portMappings":true}}]}"#;

struct Node {
    dir: TempDir,
}

impl Node {
    fn new() -> Node {
        let dir = tempfile::tempdir().unwrap();
        for name in ["bin", "net.d", "app"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        fs::write(dir.path().join("app/gcp-ipam"), "the plugin").unwrap();
        fs::write(dir.path().join("app/berth"), "the engine").unwrap();
        Node { dir }
    }

    fn containerd(&self) -> PathBuf {
        self.dir.path().join("net.d/10-containerd-net.conflist")
    }

    fn netd(&self) -> PathBuf {
        self.dir.path().join("net.d/10-gke-ptp.conflist")
    }

    fn program(&self, name: &str) -> PathBuf {
        self.dir.path().join("bin").join(name)
    }

    fn command(&self, flags: &[&str]) -> Command {
        let path = |name: &str| self.dir.path().join(name);
        let mut command = bare();
        command
            .args(["gcp", "install"])
            .arg("--cni-bin-dir")
            .arg(path("bin"))
            .arg("--cni-conf-dir")
            .arg(path("net.d"))
            .arg("--plugin")
            .arg(path("app/gcp-ipam"))
            .arg("--engine")
            .arg(path("app/berth"))
            .args(flags);
        command
    }

    fn start(&self) -> Running {
        let mut child = self
            .command(&[])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (send, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                let _ = send.send(line);
            }
        });
        Running { child, lines }
    }
}

/// An installer that runs; it is killed with this value.
struct Running {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Running {
    /// Waits for a log line with all of these words.
    fn says(&self, words: &[&str]) -> String {
        let begun = Instant::now();
        let mut seen = Vec::new();
        while begun.elapsed() < Duration::from_secs(60) {
            if let Ok(line) = self.lines.recv_timeout(Duration::from_millis(100)) {
                if words.iter().all(|word| line.contains(word)) {
                    return line;
                }
                seen.push(line);
            }
        }
        panic!("{words:?} was not said: {seen:#?}");
    }

    /// Stops it as the kubelet does, and waits for its end.
    fn stop(&mut self) {
        let pid = self.child.id().to_string();
        let kill = Command::new("kill").args(["-TERM", &pid]).status();
        assert!(kill.unwrap().success());
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn until(what: &str, done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn switched(text: &str) -> String {
    text.replacen("\"host-local\"", "\"gcp-ipam\"", 1)
}

#[test]
fn a_node_is_switched_followed_and_reverted() {
    let node = Node::new();
    fs::write(node.containerd(), CALICO).unwrap();
    fs::set_permissions(node.containerd(), fs::Permissions::from_mode(0o640)).unwrap();
    let mut running = node.start();
    until("both programs are there", || {
        node.program("gcp-ipam").exists() && node.program("berth-full").exists()
    });
    assert_eq!(read(&node.program("gcp-ipam")), "the plugin");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&node.program("gcp-ipam")), 0o755);
    until("the one that is there is switched", || {
        read(&node.containerd()) == switched(CALICO)
    });
    assert_eq!(mode(&node.containerd()), 0o640);
    assert!(!node.netd().exists(), "none is ever made");
    // netd writes its own, removes it while Cilium is unhealthy, and writes it again.
    for _ in 0..3 {
        fs::write(node.netd(), NETD).unwrap();
        until("a rewritten file is switched", || {
            read(&node.netd()) == switched(NETD)
        });
        fs::remove_file(node.netd()).unwrap();
    }
    // Replaced by rename, as a careful writer does it.
    let aside = node.dir.path().join("net.d/.aside");
    fs::write(&aside, NETD).unwrap();
    fs::rename(&aside, node.netd()).unwrap();
    until("a replaced file is switched", || {
        read(&node.netd()) == switched(NETD)
    });
    fs::remove_file(node.program("gcp-ipam")).unwrap();
    until("a removed plugin is there again", || {
        read(&node.program("gcp-ipam")) == "the plugin"
    });
    running.stop();
    assert_eq!(read(&node.containerd()), CALICO);
    assert_eq!(read(&node.netd()), NETD);
    let left = fs::read_dir(node.dir.path().join("net.d")).unwrap().count();
    assert_eq!(left, 2, "no temporary file");
    assert!(node.program("gcp-ipam").exists(), "a call may be under way");
}

#[test]
fn an_installer_that_was_killed_is_resumed_and_reverted_by_the_next() {
    let node = Node::new();
    fs::write(node.netd(), NETD).unwrap();
    let running = node.start();
    until("switched", || read(&node.netd()) == switched(NETD));
    drop(running);
    assert_eq!(
        read(&node.netd()),
        switched(NETD),
        "kill -9 reverts nothing"
    );
    let said = Said::of(node.command(&["--once", "--output=json"]));
    assert_eq!(said.json()[1]["state"], "gcp-ipam already", "{said}");
    let said = Said::of(node.command(&["--revert"]));
    assert!(said.succeeded().contains("switched to host-local"));
    assert_eq!(read(&node.netd()), NETD);
}

#[test]
fn what_is_not_understood_is_left_with_an_error_that_says_so() {
    let metis = NETD.replace("host-local", "metis");
    let two = CALICO.replace(r#""snat":true"#, r#""ipam":{"type":"host-local"}"#);
    for (text, why) in [
        (
            r#"{"cniVersion":"0.3.1","plugins":[{"type":"ptp"}]}"#,
            "no plugin has an ipam",
        ),
        (two.as_str(), "2 plugins have an ipam"),
        ("{ \"plugins\": [", "it is not JSON"),
        (
            metis.as_str(),
            "'metis', which is neither host-local nor gcp-ipam",
        ),
        (
            r#"{"type":"ptp","ipam":{"type":"host-local"}}"#,
            "plugins is missing",
        ),
    ] {
        let node = Node::new();
        fs::write(node.netd(), text).unwrap();
        fs::write(node.containerd(), CALICO).unwrap();
        let told = Said::of(node.command(&["--once"])).failed(6);
        assert!(told.contains(why) && told.contains("10-gke-ptp"), "{told}");
        assert_eq!(read(&node.netd()), text);
        assert_eq!(read(&node.containerd()), switched(CALICO), "the other is");
    }
    // A symlink is not followed: what it points to may be another program's.
    let node = Node::new();
    let elsewhere = node.dir.path().join("elsewhere.conflist");
    fs::write(&elsewhere, NETD).unwrap();
    symlink(&elsewhere, node.netd()).unwrap();
    let mut running = node.start();
    let line = running.says(&["ERROR", "10-gke-ptp.conflist", "symlink"]);
    assert!(line.contains("left as it is"), "{line}");
    assert_eq!(read(&elsewhere), NETD);
    // Its writer mends it: it is switched then.
    fs::remove_file(node.netd()).unwrap();
    fs::write(node.netd(), NETD).unwrap();
    running.says(&["switched to gcp-ipam", "10-gke-ptp.conflist"]);
    running.stop();
    assert_eq!(read(&node.netd()), NETD);
}

#[test]
fn a_node_without_a_configuration_or_a_directory_is_said_to_have_none() {
    let node = Node::new();
    let told = Said::of(node.command(&["--once"])).failed(3);
    assert!(told.contains("10-gke-ptp.conflist"), "{told}");
    let mut running = node.start();
    running.says(&["WARN", "waiting"]);
    fs::write(node.netd(), NETD).unwrap();
    running.says(&["switched to gcp-ipam"]);
    running.stop();
    // Without a plugin directory nothing is switched: the runtime would find no plugin.
    fs::remove_dir_all(node.dir.path().join("bin")).unwrap();
    let said = Said::of(node.command(&["--once"]));
    assert_ne!(said.code, 0, "{said}");
    assert_eq!(read(&node.netd()), NETD);
}
