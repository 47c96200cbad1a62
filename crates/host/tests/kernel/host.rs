//! A host with one NIC, and the program to configure it with.

use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use berth_testkit::Netns;
use serde_json::{Value, json};
use tempfile::TempDir;

pub const NIC: &str = "eth1";

pub struct Host {
    pub netns: Netns,
    /// The other end of the NIC's cable.
    pub switch: Netns,
    dir: TempDir,
}

pub struct Said {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Said {
    #[track_caller]
    pub fn succeeded(self) -> String {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        self.stdout
    }

    /// What it complained of.
    #[track_caller]
    pub fn failed(self) -> String {
        assert_eq!(self.code, Some(1), "{}{}", self.stdout, self.stderr);
        self.stderr
    }
}

impl From<Output> for Said {
    fn from(output: Output) -> Said {
        Said {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Host {
    pub fn new() -> Host {
        let (netns, switch) = (Netns::new().unwrap(), Netns::new().unwrap());
        netns.veth(NIC, &switch, "port1").unwrap();
        switch
            .ip(&["addr", "add", "192.0.2.1/24", "dev", "port1"])
            .unwrap();
        let dir = tempfile::tempdir().unwrap();
        Host { netns, switch, dir }
    }

    /// One whose NIC is down, as a NIC that nobody has configured is.
    pub fn with_nic_down() -> Host {
        let host = Host::new();
        host.netns.ip(&["link", "set", NIC, "down"]).unwrap();
        host
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.netns.command(env!("CARGO_BIN_EXE_berth-host"));
        command
            .args(arguments)
            .env("BERTH_HOST_RUN", self.dir.path().join("run"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Said {
        self.command(arguments).output().unwrap().into()
    }

    /// Applies a state with further arguments.
    pub fn apply(&self, state: &Value, arguments: &[&str]) -> Said {
        let file = self.state(state);
        let all = [&["apply", "--kernel"], arguments, &[file.to_str().unwrap()]].concat();
        self.run(&all)
    }

    /// Begins to apply a state: the running program.
    pub fn begin(&self, state: &Value, arguments: &[&str]) -> Child {
        let file = self.state(state);
        let all = [&["apply", "--kernel"], arguments, &[file.to_str().unwrap()]].concat();
        self.command(&all).spawn().unwrap()
    }

    fn state(&self, state: &Value) -> PathBuf {
        let file = self.dir.path().join("state.json");
        std::fs::write(&file, state.to_string()).unwrap();
        file
    }

    pub fn addresses(&self) -> Vec<String> {
        self.netns.addresses_of(NIC).unwrap()
    }

    /// Whether a link is up, as an administrator sets it.
    pub fn is_up(&self) -> bool {
        let all = self.netns.addresses().unwrap();
        let nic = all
            .as_array()
            .unwrap()
            .iter()
            .find(|one| one["ifname"] == NIC);
        let flags = nic.unwrap()["flags"].as_array().unwrap();
        flags.iter().any(|flag| flag == "UP")
    }

    /// The process that would undo the change.
    pub fn guard(&self) -> Option<String> {
        let run = self.dir.path().join("run");
        let is_guard = |line: &str| line.contains(run.to_str().unwrap()) && line.contains("guard");
        let processes = std::fs::read_dir("/proc")
            .unwrap()
            .map(|entry| entry.unwrap());
        let mut guards = processes.filter(|process| {
            let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
            is_guard(&String::from_utf8_lossy(&line))
        });
        guards
            .next()
            .map(|process| process.file_name().into_string().unwrap())
    }

    /// kill -9 of it.
    pub fn kill_guard(&self) {
        let guard = self.guard().unwrap();
        let killed = Command::new("kill").args(["-KILL", &guard]).status();
        assert!(killed.unwrap().success());
        until("the guard is gone", || self.guard().is_none());
    }

    /// Whether the time of the recorded change is up.
    pub fn is_overdue(&self) -> bool {
        let record = std::fs::read(self.dir.path().join("run/change.json")).unwrap();
        let record: Value = serde_json::from_slice(&record).unwrap();
        let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
        let seconds: f64 = uptime.split(' ').next().unwrap().parse().unwrap();
        seconds * 1000.0 > record["deadline"].as_f64().unwrap()
    }

    pub fn put_record(&self, text: &str) {
        let run = self.dir.path().join("run");
        std::fs::create_dir_all(&run).unwrap();
        std::fs::write(run.join("change.json"), text).unwrap();
    }

    /// Whether a change waits for its commit.
    pub fn has_record(&self) -> bool {
        self.dir.path().join("run/change.json").exists()
    }
}

/// A state with static addresses on the NIC.
pub fn with(addresses: &[&str]) -> Value {
    let of = |ipv6: bool| {
        let mine = addresses.iter().filter(|one| one.contains(':') == ipv6);
        let entries: Vec<Value> = mine
            .map(|one| {
                let (ip, length) = one.split_once('/').unwrap();
                let length: u8 = length.parse().unwrap();
                json!({ "ip": ip, "prefix-length": length })
            })
            .collect();
        json!({ "enabled": !entries.is_empty(), "dhcp": false, "address": entries })
    };
    let mut nic = json!({ "name": NIC, "type": "ethernet", "state": "up", "ipv4": of(false) });
    if addresses.iter().any(|one| one.contains(':')) {
        nic["ipv6"] = of(true);
    }
    json!({ "interfaces": [nic] })
}

pub fn until(what: &str, done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < Duration::from_secs(60), "not yet: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
