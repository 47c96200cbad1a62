//! What a command printed, and how it ended.

#![expect(
    clippy::panic,
    reason = "a test that can't run its command has to fail at once"
)]

use std::fmt;
use std::process::{Command, Output};

use serde_json::Value;

/// The outcome of a command that ran to its end.
#[derive(Clone, Debug)]
pub struct Said {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Said {
    /// Runs it. Panics if it can't be run: the test is wrong then, and not the program.
    #[track_caller]
    pub fn of(mut command: Command) -> Said {
        match command.output() {
            Ok(output) => Said::from(output),
            Err(error) => panic!("run {command:?}: {error}"),
        }
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        match serde_json::from_str(&self.stdout) {
            Ok(value) => value,
            Err(error) => panic!("{error}: {self}"),
        }
    }

    /// What was printed, if the command succeeded.
    #[track_caller]
    pub fn succeeded(self) -> String {
        assert_eq!(self.code, 0, "{self}");
        self.stdout
    }

    /// The error text, if the command ended with that code.
    #[track_caller]
    pub fn failed(self, code: i32) -> String {
        assert_eq!(self.code, code, "{self}");
        self.stderr
    }
}

impl From<Output> for Said {
    fn from(output: Output) -> Said {
        Said {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "exit {}\n{}\n{}", self.code, self.stdout, self.stderr)
    }
}
