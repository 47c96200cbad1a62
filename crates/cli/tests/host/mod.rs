//! A host of its own for each test: a directory tree with CNI directories and a mounted service account, and the
//! built `berth` to install on it.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use berth_testkit::isolated;
use serde_json::Value;

pub const OWN: &str = "etc/cni/net.d/whereabouts.d";

pub struct Host {
    dir: tempfile::TempDir,
}

/// A `berth install` that stays; it ends with the test.
pub struct Staying(Child);

impl Drop for Staying {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Staying {
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// SIGTERM, and how it ended.
    pub fn stop(mut self) -> std::process::ExitStatus {
        let kill = Command::new("kill").arg(self.0.id().to_string()).status();
        assert!(kill.unwrap().success());
        self.0.wait().unwrap()
    }

    pub fn wait(&mut self) -> std::process::ExitStatus {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status;
            }
            assert!(begun.elapsed() < Duration::from_secs(90), "it stays");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Host {
    /// A node with the usual directories and no whereabouts.
    pub fn new() -> Host {
        let host = Host {
            dir: tempfile::tempdir().unwrap(),
        };
        for dir in ["opt/cni/bin", "etc/cni/net.d", "account", "image"] {
            fs::create_dir_all(host.at(dir)).unwrap();
        }
        host.write("account/token", "header.payload.signature");
        host.write(
            "account/ca.crt",
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        );
        host.write("account/namespace", "networking");
        host.program("image/plugin", "plugin");
        host.program("image/engine", "engine");
        host
    }

    pub fn root(&self) -> &Path {
        self.dir.path()
    }

    pub fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    /// Whole or not at all, as a kubelet replaces a token.
    pub fn write(&self, path: &str, text: &str) {
        let mut file = tempfile::NamedTempFile::new_in(self.at(path).parent().unwrap()).unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file.as_file()
            .set_permissions(fs::Permissions::from_mode(0o644))
            .unwrap();
        file.into_temp_path().persist(self.at(path)).unwrap();
    }

    /// A program that says who it is.
    pub fn program(&self, path: &str, says: &str) {
        self.write(path, &format!("#!/bin/sh\necho {says}\n"));
        fs::set_permissions(self.at(path), fs::Permissions::from_mode(0o755)).unwrap();
    }

    pub fn read(&self, path: &str) -> String {
        fs::read_to_string(self.at(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    pub fn mode(&self, path: &str) -> u32 {
        fs::metadata(self.at(path)).unwrap().permissions().mode() & 0o7777
    }

    /// `berth install` as a daemon set's container has it; nothing of this machine's environment.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = isolated(Command::new(env!("CARGO_BIN_EXE_berth")));
        command
            .arg("install")
            .args(arguments)
            .env("BERTH_HOST_ROOT", self.root())
            .env("BERTH_PLUGIN", self.at("image/plugin"))
            .env("BERTH_ENGINE", self.at("image/engine"))
            .env("NODENAME", "node-1.example")
            .env("KUBERNETES_SERVICE_HOST", "10.96.0.1")
            .env("KUBERNETES_SERVICE_PORT", "443")
            .arg("--token-file")
            .arg(self.at("account/token"));
        command
    }

    pub fn install(&self) -> Value {
        succeeded(self.command(&["--once", "--output=json"]))
    }

    pub fn remove(&self) -> BTreeMap<String, String> {
        let removed = succeeded(self.command(&["--remove", "--output=json"]));
        states(&removed, "fate")
    }

    /// Stays, and has installed what it would.
    pub fn stay(&self, arguments: &[&str]) -> Staying {
        let mut command = self.command(arguments);
        let log = fs::File::create(self.at("log")).unwrap();
        command.stdout(Stdio::null()).stderr(log);
        let child = Staying(command.spawn().unwrap());
        self.until("it has installed", || {
            self.at("opt/cni/bin/whereabouts").exists()
                && self.read("opt/cni/bin/whereabouts").contains("plugin")
        });
        child
    }

    pub fn until(&self, what: &str, done: impl Fn() -> bool) {
        let begun = Instant::now();
        while !done() {
            let waited = begun.elapsed();
            assert!(
                waited < Duration::from_secs(30),
                "{what}: not after {waited:?}; log: {}",
                fs::read_to_string(self.at("log")).unwrap_or_default()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Every file of the CNI directories, with its content.
    pub fn files(&self) -> BTreeMap<String, String> {
        let mut files = BTreeMap::new();
        for dir in ["opt", "etc"] {
            walk(&self.at(dir), &mut |path| {
                let name = path.strip_prefix(self.root()).unwrap();
                let text = String::from_utf8_lossy(&fs::read(path).unwrap()).into_owned();
                files.insert(name.display().to_string(), text);
            });
        }
        files
    }
}

fn walk(dir: &Path, visit: &mut impl FnMut(&Path)) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => walk(&path, visit),
            false => visit(&path),
        }
    }
}

/// By file name, what became of it.
pub fn states(rows: &Value, field: &str) -> BTreeMap<String, String> {
    let rows = rows.as_array().unwrap().iter();
    rows.map(|row| {
        let path = Path::new(row["path"].as_str().unwrap());
        let name = path.file_name().unwrap().to_str().unwrap();
        (name.to_owned(), row[field].as_str().unwrap().to_owned())
    })
    .collect()
}

pub fn succeeded(mut command: Command) -> Value {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Exit code and message of a failure.
pub fn failed(mut command: Command) -> (i32, String) {
    let output = command.output().unwrap();
    assert!(!output.status.success(), "{}", said(&output));
    (output.status.code().unwrap(), said(&output))
}

pub fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
