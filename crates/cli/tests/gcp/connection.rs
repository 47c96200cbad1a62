//! An open TCP connection survives a migration: real ptp in namespaces, a router that follows the cloud's aliases, and a socket that
//! moves by TCP_REPAIR, as a checkpoint tool moves it.
//!
//! ```text
//!  client ── router ──┬── host a ── pod        the router sends an address to the VM that has its alias
//!                     └── host b ── clone
//! ```

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use berth_testkit::{Machine, Netns};
use serde_json::{Value, json};

use crate::namespaces::cnitool;
use crate::site::{Host, Site, until};

const PORT: &str = "7000";
const PATIENCE: Duration = Duration::from_secs(90);

/// Builds the program that moves a socket: this workspace has no unsafe code, and TCP_REPAIR needs it.
fn build(site: &Site) -> PathBuf {
    let program = site.dir.path().join("repair");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gcp/repair.c");
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-Wall", "-Werror", "-o"])
        .arg(&program)
        .arg(source);
    let output = cc.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    program
}

/// One end of the connection.
struct End {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
}

impl End {
    fn start(program: &Path, netns: &Netns, arguments: &[&str]) -> End {
        let mut command = netns.command(program);
        command.args(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (sender, lines) = channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        End {
            stdin: child.stdin.take().unwrap(),
            child,
            lines,
        }
    }

    fn say(&mut self, line: &str) {
        // In one write: the program may end at the first part of it.
        let text = format!("{line}\n");
        self.stdin.write_all(text.as_bytes()).unwrap();
    }

    fn next(&self) -> String {
        self.lines.recv_timeout(PATIENCE).expect("a line")
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A host of the cloud: a namespace with the pod network, one hop from the router.
struct Place {
    host: Host,
    machine: Machine,
    /// Where the router sends what is for the VM.
    hop: String,
}

fn forward(netns: &Netns) {
    let on = "echo 1 > /proc/sys/net/ipv4/ip_forward";
    assert!(netns.exec(&["sh", "-c", on]).unwrap().status.success());
}

async fn place(site: &Site, router: &Netns, which: &str, net: u8) -> Place {
    let host = site.host(which).await;
    let ipam = json!({ "type": "gcp-ipam" });
    let machine = Machine::with_network(json!({ "type": "ptp", "mtu": 1460 }), ipam).unwrap();
    let port = format!("to-{which}");
    let (gateway, hop) = (format!("10.128.{net}.1"), format!("10.128.{net}.2"));
    router.veth(&port, machine.host(), "nic0").unwrap();
    let with_mask = format!("{gateway}/24");
    router
        .ip(&["addr", "add", &with_mask, "dev", &port])
        .unwrap();
    let own = format!("{hop}/24");
    let vm = machine.host();
    vm.ip(&["addr", "add", &own, "dev", "nic0"]).unwrap();
    vm.ip(&["route", "add", "default", "via", &gateway])
        .unwrap();
    forward(vm);
    Place { host, machine, hop }
}

/// The network of the cloud: sends each pod's address to the VM that has it as an alias, and nowhere if none has.
struct Fabric {
    stop: Arc<AtomicBool>,
    task: Option<JoinHandle<()>>,
}

impl Fabric {
    fn start(site: &Arc<Site>, router: &Arc<Netns>, places: &[&Place]) -> Fabric {
        let stop = Arc::new(AtomicBool::new(false));
        let hops: BTreeMap<String, String> = places
            .iter()
            .map(|place| (place.host.name.clone(), place.hop.clone()))
            .collect();
        let (site, router, ended) = (Arc::clone(site), Arc::clone(router), Arc::clone(&stop));
        let task = thread::spawn(move || {
            let mut routes: BTreeMap<String, String> = BTreeMap::new();
            while !ended.load(Ordering::Relaxed) {
                let mut wanted = BTreeMap::new();
                for (vm, hop) in &hops {
                    for alias in site.aliases(vm) {
                        wanted.insert(alias, hop.clone());
                    }
                }
                for alias in routes.keys().filter(|alias| !wanted.contains_key(*alias)) {
                    router.ip(&["route", "del", alias]).unwrap();
                }
                for (alias, hop) in &wanted {
                    if routes.get(alias) != Some(hop) {
                        router.ip(&["route", "replace", alias, "via", hop]).unwrap();
                    }
                }
                routes = wanted;
                thread::sleep(Duration::from_millis(10));
            }
        });
        Fabric {
            stop,
            task: Some(task),
        }
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(task) = self.task.take() {
            let _ = task.join();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_connection_survives_a_migration() {
    let site = Arc::new(Site::new(300).await);
    let repair = build(&site);
    let (router, client) = (Arc::new(Netns::new().unwrap()), Netns::new().unwrap());
    forward(&router);
    router.veth("to-client", &client, "eth0").unwrap();
    router
        .ip(&["addr", "add", "192.0.2.1/24", "dev", "to-client"])
        .unwrap();
    client
        .ip(&["addr", "add", "192.0.2.2/24", "dev", "eth0"])
        .unwrap();
    client
        .ip(&["route", "add", "default", "via", "192.0.2.1"])
        .unwrap();
    let (a, b) = (
        place(&site, &router, "a", 1).await,
        place(&site, &router, "b", 2).await,
    );
    let _agents = (site.agent(&a.host), site.agent(&b.host));
    let _fabric = Fabric::start(&site, &router, &[&a, &b]);

    let (source, destination) = (Netns::new().unwrap(), Netns::new().unwrap());
    site.pod("cart", &a.host, json!({})).await;
    let result = cnitool(&site, &a.host, &a.machine, "add", ("cart", &source));
    let result: Value = serde_json::from_str(&result).unwrap();
    let address = result["ips"][0]["address"].as_str().unwrap();
    let ip = address.strip_suffix("/16").unwrap().to_owned();
    until("the client reaches the pod", async || {
        client.ping(&ip).unwrap()
    })
    .await;

    let mut pod = End::start(&repair, &source, &["pod", PORT]);
    assert_eq!(pod.next(), "listening");
    let mut caller = End::start(&repair, &client, &["client", &ip, PORT]);
    assert_eq!(
        (pod.next(), caller.next()),
        ("connected".into(), "connected".into())
    );
    caller.say("one");
    assert_eq!(pod.next(), "one");
    pod.say("two");
    assert_eq!(caller.next(), "two");

    // The pod is frozen; what is sent to it meanwhile is lost on the way, and no answer says so.
    pod.say("!freeze");
    let state = pod.next();
    source.ip(&["link", "set", "eth0", "down"]).unwrap();
    caller.say("three");

    // The seed's order: ADD on the destination, then the source's DEL with move-out-ip.
    site.mark_to_move_out("cart").await;
    let annotations =
        json!({ "live.cast.ai/ip": ip, "live.cast.ai/original-instance": a.host.name });
    site.pod("clone", &b.host, json!({ "annotations": annotations }))
        .await;
    // Until the socket is there the kernel would reset the connection: a checkpoint tool holds the network back, too.
    let back = ["route", "add", "blackhole", "192.0.2.0/24"];
    destination.ip(&back).unwrap();
    cnitool(&site, &b.host, &b.machine, "add", ("clone", &destination));
    assert_eq!(destination.addresses_of("eth0").unwrap(), [address]);
    assert_eq!(site.holder(&ip), b.host.name);
    destination
        .ip(&["route", "del", "blackhole", "192.0.2.0/24"])
        .unwrap();
    let mut clone = End::start(&repair, &destination, &["clone", &state]);
    assert_eq!(clone.next(), "connected");
    assert_eq!(clone.next(), "three", "sent while the pod was nowhere");
    cnitool(&site, &a.host, &a.machine, "del", ("cart", &source));
    assert_eq!(site.holder(&ip), b.host.name, "the source's DEL keeps it");

    clone.say("four");
    assert_eq!(caller.next(), "four");
    caller.say("five");
    assert_eq!(clone.next(), "five");
    cnitool(&site, &b.host, &b.machine, "del", ("clone", &destination));
    site.until_free(&ip).await;
}
