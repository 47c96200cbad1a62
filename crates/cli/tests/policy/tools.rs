//! The programs, and files for them.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use berth_parts::Parts;
use berth_testkit::{fed, host_beside, isolated};
use serde_json::Value;
use tempfile::TempDir;

const BERTH: &str = env!("CARGO_BIN_EXE_berth");

/// `berth-host`, which Berth runs.
pub fn host_program() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| host_beside(BERTH).unwrap()).clone()
}

/// What reads the states that are compared: in the long form of the tests the real nmstatectl.
fn oracle() -> PathBuf {
    let named = std::env::var_os("BERTH_NMSTATECTL").map(PathBuf::from);
    named.unwrap_or_else(host_program)
}

/// Files of one policy.
pub struct Files(TempDir);

impl Files {
    pub fn new(policy: &Value, current: &Value, captured: &Value) -> Files {
        let files = Files(tempfile::tempdir().unwrap());
        for (name, content) in [
            ("policy", policy),
            ("current", current),
            ("captured", captured),
        ] {
            std::fs::write(files.path(name), content.to_string()).unwrap();
        }
        files
    }

    pub fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    pub fn read(&self, name: &str) -> Value {
        yaml(&std::fs::read_to_string(self.path(name)).unwrap())
    }

    /// What `gen` makes of the policy: the arguments of Berth and of nmpolicyctl are the same.
    pub fn generate(&self, mut program: Command) -> Output {
        program
            .args(["gen", &self.path("policy"), "-s", &self.path("current")])
            .args(["-i", &self.path("captured"), "-o", &self.path("out")])
            .env("HOME", self.0.path())
            .env("BERTH_HOST_PROGRAM", host_program())
            .output()
            .unwrap()
    }

    pub fn by_berth(&self) -> Output {
        let mut berth = isolated(Command::new(BERTH));
        berth.arg("policy");
        self.generate(berth)
    }

    /// The same by nmpolicyctl, given the pools' results as captured states.
    pub fn by_nmpolicyctl(&self) -> Output {
        self.generate(isolated(Command::new(Parts::find().unwrap().nmpolicyctl())))
    }
}

/// A state as nmstate reads it: `nmstatectl format`.
pub fn formatted(state: &str) -> Value {
    let mut format = isolated(Command::new(oracle()));
    let output = fed(format.args(["format", "-"]).stderr(Stdio::piped()), state).unwrap();
    yaml(&printed(&output))
}

pub fn yaml(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// What a program printed, where it succeeded.
#[track_caller]
pub fn printed(output: &Output) -> String {
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complaint}");
    String::from_utf8(output.stdout.clone()).unwrap()
}
