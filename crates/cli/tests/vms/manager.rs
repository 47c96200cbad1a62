//! A `berth agent` process that manages VM pools, and the little HTTP that its socket needs.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use berth_testkit::isolated;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// One process with a socket and a database of its own; killed when dropped.
pub struct Manager {
    pub socket: PathBuf,
    child: Child,
    dir: tempfile::TempDir,
}

impl Manager {
    /// Starts the built binary and waits until its pools are open.
    pub async fn start(kubeconfig: &Path, env: &[(&str, &str)]) -> Self {
        Self::start_with(kubeconfig, env, &[]).await
    }

    pub async fn start_with(kubeconfig: &Path, env: &[(&str, &str)], args: &[&str]) -> Self {
        let mut manager = Self::spawn(kubeconfig, env, args);
        manager
            .until("its pools are open", async |manager| {
                let status = manager.call("GET", "/status", "").await;
                matches!(status, Ok((200, _)))
            })
            .await;
        manager
    }

    /// Waits for something that the process does some time after its start.
    pub async fn until(&mut self, what: &str, is_so: impl AsyncFn(&Self) -> bool) {
        for _ in 0..600 {
            if is_so(self).await {
                return;
            }
            if let Some(ended) = self.child.try_wait().unwrap() {
                panic!("the manager ended with {ended}:\n{}", self.log());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("never: {what}:\n{}", self.log());
    }

    /// Starts one whose pools can't be opened; why not.
    pub async fn start_shut(kubeconfig: &Path, env: &[(&str, &str)], args: &[&str]) -> String {
        let manager = Self::spawn(kubeconfig, env, args);
        for _ in 0..600 {
            if let Ok((503, told)) = manager.call("GET", "/status", "").await
                && told["code"] == "starting"
                && told["error"] != "the VM pools are not open yet: the state was not read yet"
            {
                return told["error"].as_str().unwrap().to_owned();
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("the manager opened its pools:\n{}", manager.log());
    }

    /// Starts the built binary and waits for nothing.
    pub fn spawn(kubeconfig: &Path, env: &[(&str, &str)], args: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("berth.sock");
        let log = std::fs::File::create(dir.path().join("log")).unwrap();
        let child = isolated(Command::new(env!("CARGO_BIN_EXE_berth")))
            .args(["agent", "--log-format", "json"])
            .args(args)
            .env("BERTH_SOCKET", &socket)
            .env("BERTH_DATABASE", dir.path().join("berth.db"))
            .env("BERTH_KUBECONFIG", kubeconfig)
            .envs(env.iter().copied())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        Self { socket, child, dir }
    }

    pub fn log_file(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_file()).unwrap()
    }

    pub async fn call(
        &self,
        method: &str,
        path: &str,
        body: &str,
    ) -> std::io::Result<(u16, Value)> {
        call(&self.socket, method, &format!("/v1/vms{path}"), body).await
    }

    /// `berth vm ...` on this manager's socket: what it printed, and whether it succeeded.
    pub fn cli(&self, args: &[&str]) -> (String, bool) {
        let output = isolated(Command::new(env!("CARGO_BIN_EXE_berth")))
            .arg("vm")
            .args(args)
            .env("BERTH_SOCKET", &self.socket)
            .output()
            .unwrap();
        let told = [output.stdout, output.stderr].concat();
        (String::from_utf8(told).unwrap(), output.status.success())
    }

    /// One series of the agent's metrics; 0 if there is none yet.
    pub async fn metric(&self, series: &str) -> f64 {
        let (_, text) = call(&self.socket, "GET", "/metrics", "").await.unwrap();
        let text = text.as_str().unwrap().to_string();
        let line = text.lines().find_map(|line| line.strip_prefix(series));
        line.map_or(0.0, |value| value.trim().parse().unwrap())
    }

    /// The audit's lines of one operation, in their order.
    pub fn audit(&self, operation: &str) -> Vec<Value> {
        let log = self.log();
        let lines = log
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let is_asked =
            |line: &Value| line["target"] == "audit" && line["fields"]["operation"] == operation;
        lines.filter(is_asked).collect()
    }

    /// kill -9.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One request on a connection of its own.
pub async fn call(
    socket: &Path,
    method: &str,
    path: &str,
    body: &str,
) -> std::io::Result<(u16, Value)> {
    let mut stream = UnixStream::connect(socket).await?;
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: berth\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + body).as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    let answer = String::from_utf8_lossy(&answer);
    let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    let status = status.ok_or(std::io::ErrorKind::UnexpectedEof)?;
    Ok((
        status,
        serde_json::from_str(body).unwrap_or(Value::String(body.into())),
    ))
}
