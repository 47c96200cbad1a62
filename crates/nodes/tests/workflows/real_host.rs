//! Handlers with the real berth-host on hosts that are network namespaces: a NIC each, all on one switch.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use berth_nodes::handler::Mode;
use berth_nodes::host::Host as Program;
use berth_nodes::objects::{ENACTMENT, NODE_IP_POOL, POLICY};
use berth_testkit::{Fate, Netns, host_beside};
use tempfile::TempDir;

use crate::bed::{Bed, Running, applied, available, is_true, message, offsets, state_kind};

const NIC: &str = "eth1";
/// The hardware address of the machine on the switch that is no node.
const STRANGER: &str = "02:00:00:00:00:77";
const PATIENCE: Duration = Duration::from_secs(90);

fn berth_host() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        // target/<profile>/deps/<test>
        let test = std::env::current_exe().unwrap();
        let profile = test.parent().unwrap().parent().unwrap();
        host_beside(profile.join("berth")).unwrap()
    })
}

/// The cable between the hosts, and one machine on it that is no node.
struct Switch {
    netns: Netns,
}

impl Switch {
    fn new() -> Switch {
        let netns = Netns::new().unwrap();
        netns.ip(&["link", "add", "lan", "type", "bridge"]).unwrap();
        netns
            .ip(&["link", "set", "lan", "address", STRANGER])
            .unwrap();
        netns.ip(&["link", "set", "lan", "up"]).unwrap();
        Switch { netns }
    }

    fn takes(&self, address: &str) {
        let address = format!("{address}/24");
        self.netns
            .ip(&["addr", "add", &address, "dev", "lan"])
            .unwrap();
    }

    fn leaves(&self, address: &str) {
        let address = format!("{address}/24");
        self.netns
            .ip(&["addr", "del", &address, "dev", "lan"])
            .unwrap();
    }
}

struct Host {
    netns: Netns,
    dir: TempDir,
    program: PathBuf,
}

impl Host {
    fn on(switch: &Switch, number: usize) -> Host {
        let netns = Netns::new().unwrap();
        let port = format!("port{number}");
        netns.veth(NIC, &switch.netns, &port).unwrap();
        switch
            .netns
            .ip(&["link", "set", &port, "master", "lan"])
            .unwrap();
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("berth-host");
        // The file `applied` is there while a change waits for its commit.
        let script = format!(
            "#!/bin/sh\nnsenter --net={} env BERTH_HOST_RUN={run}/run {} \"$@\"\ncode=$?\n\
             case \"$1\" in apply) touch {run}/applied ;; commit|rollback) rm -f {run}/applied ;; esac\nexit $code\n",
            netns.path().display(),
            berth_host().display(),
            run = dir.path().display(),
        );
        write_program(&program, &script);
        Host {
            netns,
            dir,
            program,
        }
    }

    fn with_nic_down(self) -> Host {
        self.netns.ip(&["link", "set", NIC, "down"]).unwrap();
        self
    }

    async fn handler(&self, bed: &Bed, node: &str) -> Running {
        self.handler_by(bed, node, bed.agent_client(node).await)
    }

    fn handler_by(&self, bed: &Bed, node: &str, client: kube::Client) -> Running {
        self.handler_within(bed, node, client, Duration::from_secs(60))
    }

    fn handler_within(
        &self,
        bed: &Bed,
        node: &str,
        client: kube::Client,
        limit: Duration,
    ) -> Running {
        let mut program = Program::new(&self.program);
        program.kernel = true;
        program.limit = limit;
        let netns = Some(self.netns.path().to_owned());
        bed.handler_on(node, client, Mode::Host, program, netns)
    }

    /// The process of berth-host that applies a state in this namespace.
    fn worker(&self) -> Option<String> {
        use std::os::unix::fs::MetadataExt;
        let own = std::fs::metadata(self.netns.path()).unwrap().ino();
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let mut all = processes.map(|entry| entry.path());
        let worker = all.find(|path| {
            let line = std::fs::read(path.join("cmdline")).unwrap_or_default();
            let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
            let namespace = std::fs::metadata(path.join("ns/net"));
            words.contains(&b"work".as_slice())
                && words.contains(&b"--parent".as_slice())
                && namespace.is_ok_and(|one| one.ino() == own)
        });
        Some(worker?.file_name()?.to_str()?.to_owned())
    }

    fn addresses(&self) -> Vec<String> {
        self.netns.addresses_of(NIC).unwrap()
    }

    fn is_up(&self) -> bool {
        let all = self.netns.addresses().unwrap();
        let mut links = all.as_array().unwrap().iter();
        let nic = links.find(|one| one["ifname"] == NIC).unwrap();
        let mut flags = nic["flags"].as_array().unwrap().iter();
        flags.any(|flag| flag == "UP")
    }

    async fn until(&self, what: &str, done: impl Fn(&Host) -> bool) {
        let begun = Instant::now();
        while !done(self) {
            let has = self.addresses();
            assert!(begun.elapsed() < PATIENCE, "not {what}: {has:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

fn write_program(path: &Path, script: &str) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(path, script).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// The address that an enactment names, as the host shows it.
fn on_nic(enactment: &serde_json::Value) -> String {
    format!("{}/24", applied(enactment).pop().unwrap())
}

/// The addresses are on the NICs and answer each other; when the policy is deleted they are gone, and then free.
#[tokio::test(flavor = "multi_thread")]
async fn an_applied_address_is_there_and_answers() {
    let bed = Bed::new("realhost").await;
    let switch = Switch::new();
    let hosts = [Host::on(&switch, 1), Host::on(&switch, 2).with_nic_down()];
    let pool = bed.pool("traffic-1", "10.25.1.1", "10.25.1.9").await;
    let policy = bed.policy(&[&pool]).await;
    let mut handlers = Vec::new();
    for (number, host) in hosts.iter().enumerate() {
        let node = bed.add_node(number).await;
        handlers.push(host.handler(&bed, &node).await);
    }
    bed.until_policy(&policy, "Available").await;
    for (number, host) in hosts.iter().enumerate() {
        let enactment = bed.enactment(&bed.node(number), &policy).await.unwrap();
        assert_eq!(host.addresses(), [on_nic(&enactment)]);
        let other = &hosts[1 - number].netns;
        assert!(other.ping(&applied(&enactment)[0]).unwrap());
    }
    bed.delete(POLICY, &policy).await;
    for host in &hosts {
        let is_bare = |host: &Host| host.addresses().is_empty();
        host.until("without its address", is_bare).await;
    }
    bed.until(NODE_IP_POOL, &pool, |pool| offsets(pool).is_empty())
        .await;
}

/// The probe after the apply fails (the API server is not reached): the address is gone and the link is as it was before.
#[tokio::test(flavor = "multi_thread")]
async fn the_probe_fails_and_the_address_is_gone() {
    let bed = Bed::new("realprobe").await;
    let switch = Switch::new();
    let hosts = [Host::on(&switch, 1), Host::on(&switch, 2).with_nic_down()];
    let pool = bed.pool("traffic-1", "10.25.2.1", "10.25.2.9").await;
    let policy = bed.policy(&[&pool]).await;
    for (number, host) in hosts.iter().enumerate() {
        let was_up = host.is_up();
        let node = bed.add_node(number).await;
        let relay = bed.relay(&node).await;
        let (unconfirmed, path) = (host.dir.path().join("applied"), format!("/{policy}"));
        relay.rule(move |asked| match asked.path.ends_with(&path) {
            true if unconfirmed.exists() => Fate::Cut,
            _ => Fate::Pass,
        });
        let client = bed.client_of(&relay.kubeconfig()).await;
        let _handler = host.handler_by(&bed, &node, client);
        let name = format!("{node}.{policy}");
        let failed = bed
            .until(ENACTMENT, &name, |object| is_true(object, "Failing"))
            .await;
        let text = message(&failed);
        assert!(
            text.contains("the API server is not reached after the apply")
                && text.contains("rolled back"),
            "{text}"
        );
        let as_before = |host: &Host| host.addresses().is_empty() && host.is_up() == was_up;
        host.until("as before", as_before).await;
        relay.rule(|_| Fate::Pass);
        let done = bed.until_enacted(&node, &policy, "Available").await;
        assert_eq!(host.addresses(), [on_nic(&done)]);
    }
}

/// Another machine answers for the address: it is not applied (or taken off again, where the link was down before), pool and enactment
/// name the machine, and it is applied when the machine has it no more.
#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_another_machine_uses_is_a_collision() {
    for (name, down) in [("realtaken", false), ("realtakendown", true)] {
        let bed = Bed::new(name).await;
        let switch = Switch::new();
        let host = match down {
            true => Host::on(&switch, 1).with_nic_down(),
            false => Host::on(&switch, 1),
        };
        let third = if down { 4 } else { 3 };
        let first = format!("10.25.{third}.1");
        switch.takes(&first);
        let pool = bed
            .pool("traffic-1", &first, &format!("10.25.{third}.9"))
            .await;
        let policy = bed.policy(&[&pool]).await;
        let node = bed.add_node(1).await;
        let _handler = host.handler(&bed, &node).await;
        let failed = bed.until_enacted(&node, &policy, "Failing").await;
        let text = message(&failed);
        assert!(
            text.contains(&first) && text.contains(NIC) && text.contains(STRANGER),
            "{text}"
        );
        assert!(host.addresses().is_empty(), "{:?}", host.addresses());
        assert_eq!(host.is_up(), !down);
        let told = bed.until_pool(&pool, "IPCollision").await;
        let sentence = format!(
            "The IP address {first} at node {node} and interface {NIC} is is colliding with node {STRANGER}"
        );
        let (status, _, text) = available(&told);
        assert!(status == "False" && text.starts_with(&sentence), "{text}");
        switch.leaves(&first);
        let done = bed.until_enacted(&node, &policy, "Available").await;
        assert_eq!(host.addresses(), [on_nic(&done)]);
        assert_eq!(done["status"].get("retryCount"), None, "no try was counted");
        bed.until_pool(&pool, "ReconciledPool").await;
    }
}

/// A reboot takes the address off; the handler puts the same one back. Then policy and enactment go while the handler is dead: it finds what
/// it had applied in the pool, takes it off, and only then it is free.
#[tokio::test(flavor = "multi_thread")]
async fn what_went_while_the_handler_was_dead_is_taken_off_the_host() {
    let bed = Bed::new("realdead").await;
    let switch = Switch::new();
    let host = Host::on(&switch, 1);
    host.netns
        .ip(&["addr", "add", "198.51.100.4/24", "dev", NIC])
        .unwrap();
    let pool = bed.pool("traffic-1", "10.25.5.1", "10.25.5.9").await;
    let mut spec = bed.policy_spec(&[&pool]);
    // nmstate replaces the list: an address that is to stay is in the policy.
    let own = serde_json::json!({ "ip": "198.51.100.4", "prefix-length": 24 });
    let list = spec["desiredState"]["interfaces"][0]["ipv4"]["address"].as_array_mut();
    list.unwrap().push(own);
    let policy = bed.policy_with("static-ip", spec).await;
    let node = bed.add_node(1).await;
    let handler = host.handler(&bed, &node).await;
    bed.until_enacted(&node, &policy, "Available").await;
    let mut both = host.addresses();
    both.sort();
    assert_eq!(both, ["10.25.5.1/24", "198.51.100.4/24"]);
    handler.kill().await;
    host.netns.ip(&["addr", "flush", "dev", NIC]).unwrap();
    host.netns.ip(&["link", "set", NIC, "down"]).unwrap();
    let handler = host.handler(&bed, &node).await;
    let is_whole = |host: &Host| host.addresses().len() == 2;
    host.until("applied again", is_whole).await;
    bed.until_enacted(&node, &policy, "Available").await;
    bed.until(state_kind(), &node, |state| {
        state.to_string().contains("10.25.5.1")
    })
    .await;
    handler.kill().await;
    bed.delete(POLICY, &policy).await;
    bed.delete(ENACTMENT, &format!("{node}.{policy}")).await;
    let held = bed
        .until(NODE_IP_POOL, &pool, |pool| {
            available(pool).2.contains("stays held")
        })
        .await;
    assert_eq!(offsets(&held), [0]);
    let _back = host.handler(&bed, &node).await;
    bed.until(NODE_IP_POOL, &pool, |pool| offsets(pool).is_empty())
        .await;
    assert_eq!(host.addresses(), ["198.51.100.4/24"], "the other one stays");
}

/// What the host can't do is said with the words of the program that could not: no such interface, no program, one that is too old.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_host_can_not_do_is_said_in_its_own_words() {
    let bed = Bed::new("realbad").await;
    let switch = Switch::new();
    let pool = bed.pool("traffic-1", "10.25.6.1", "10.25.6.9").await;
    let mut spec = bed.policy_spec(&[&pool]);
    spec["desiredState"]["interfaces"][0]["name"] = serde_json::json!("eth9");
    let policy = bed.policy_with("static-ip", spec).await;
    let absent = Host::on(&switch, 1);
    let mut missing = Host::on(&switch, 2);
    missing.program = missing.dir.path().join("no-such-program");
    let old = Host::on(&switch, 3);
    let script = "#!/bin/sh\necho \"error: unexpected argument '--no-commit' found\" >&2\nexit 2\n";
    write_program(&old.program, script);
    let cases = [
        (&absent, vec!["eth9", "no such interface"]),
        (&missing, vec!["no-such-program", "--host-program"]),
        (&old, vec!["--no-commit", "nmstatectl 2.2.62 or later"]),
    ];
    for (number, (host, words)) in cases.iter().enumerate() {
        let node = bed.add_node(number).await;
        let _handler = host.handler(&bed, &node).await;
        let failed = bed.until_enacted(&node, &policy, "Failing").await;
        for word in words {
            let text = message(&failed);
            assert!(text.contains(word), "{word} is not in: {text}");
        }
        assert!(host.addresses().is_empty());
    }
}

/// An apply that hangs: the enactment has berth-host's own words, and the host is as it was before.
#[tokio::test(flavor = "multi_thread")]
async fn an_apply_that_hangs_is_said_in_the_programs_own_words() {
    let bed = Bed::new("realhang").await;
    let switch = Switch::new();
    let host = Host::on(&switch, 1).with_nic_down();
    let pool = bed.pool("traffic-1", "10.25.7.1", "10.25.7.9").await;
    let mut spec = bed.policy_spec(&[&pool]);
    // Only NetworkManager can turn LLDP on: nmstate verifies for some seconds, and its process is stopped meanwhile.
    spec["desiredState"]["interfaces"][0]["lldp"] = serde_json::json!({ "enabled": true });
    let policy = bed.policy_with("static-ip", spec).await;
    let node = bed.add_node(1).await;
    let client = bed.agent_client(&node).await;
    let _handler = host.handler_within(&bed, &node, client, Duration::from_secs(12));
    let has_address = |host: &Host| !host.addresses().is_empty();
    host.until("configured", has_address).await;
    let worker = host.worker().unwrap();
    let stopped = std::process::Command::new("kill")
        .args(["-STOP", &worker])
        .status();
    assert!(stopped.unwrap().success());
    let name = format!("{node}.{policy}");
    let said = bed.until(ENACTMENT, &name, |object| {
        let text = message(object);
        text.contains("did not finish within") && text.contains("rolled back")
    });
    said.await;
}

/// A capture of the host's state beside one of an IPv6 pool: berth-host evaluates the first, on what Berth has rendered of the second.
#[tokio::test(flavor = "multi_thread")]
async fn captures_of_the_host_and_of_a_pool_are_resolved_together() {
    let bed = Bed::new("realboth").await;
    let switch = Switch::new();
    let host = Host::on(&switch, 1);
    let range =
        serde_json::json!({ "cidr": "fd00:25::/64", "start": "fd00:25::10", "end": "fd00:25::1f" });
    let pool = bed
        .pool_with("six", serde_json::json!({ "range": range }))
        .await;
    let spec = serde_json::json!({
        "nodeSelector": { "bed": bed.name },
        "capture": {
            "address": format!("ippool.{pool}.allocate"),
            "nic": format!("interfaces.name==\"{NIC}\""),
        },
        "desiredState": { "interfaces": [{
            "name": "{{ capture.nic.interfaces.0.name }}", "type": "ethernet", "state": "up",
            "ipv6": { "enabled": true, "autoconf": false, "dhcp": false, "address": [{
                "ip": "{{ capture.address.ip }}", "prefix-length": "{{ capture.address.prefix-length }}" }] },
        }] },
    });
    let policy = bed.policy_with("static-ip", spec).await;
    let node = bed.add_node(1).await;
    let _handler = host.handler(&bed, &node).await;
    let done = bed.until_enacted(&node, &policy, "Available").await;
    assert_eq!(applied(&done), ["fd00:25::10"]);
    let state = &done["status"]["desiredState"]["interfaces"][0];
    assert_eq!(state["name"], NIC);
    let captured = &done["status"]["capturedStates"];
    assert!(captured["nic"].to_string().contains(NIC), "{captured}");
    assert_eq!(captured["address"]["state"]["prefix-length"], 64);
    let own = |host: &Host| host.addresses().contains(&"fd00:25::10/64".to_owned());
    assert!(own(&host), "{:?}", host.addresses());
    bed.delete(POLICY, &policy).await;
    bed.until(NODE_IP_POOL, &pool, |pool| offsets(pool).is_empty())
        .await;
    assert!(!own(&host), "{:?}", host.addresses());
}
