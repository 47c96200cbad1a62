//! The CNI plugin: a node's container runtime runs it for every pod and network.
//!
//! It sends the call to the agent's socket and prints the answer. It answers VERSION itself and decides nothing else:
//! it reads no configuration. Without an agent it runs the same engine in-process (`engine.rs`). If neither is
//! available it fails, also on DEL: a success that released nothing would leak the address, and an error makes the
//! runtime retry.

mod engine;

use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use berth_cni::call::{Environment, Verb};
use berth_cni::conf::{LONGEST_CONFIGURATION, NetConf};
use berth_cni::delegate;
use berth_cni::error::{CniError, Code};
use berth_cni::http::{self, ClientError};
use berth_cni::version::{Version, version_answer};
use berth_cni::wire::{self, Answer, Request};

/// Longer than the agent's own limit, so that the user sees the agent's error, and shorter than a runtime's two
/// minutes.
const ADD_TIMEOUT: Duration = Duration::from_secs(115);
const DEL_TIMEOUT: Duration = Duration::from_secs(58);

fn main() -> ExitCode {
    let environment = Environment::from_process();
    match environment.command.as_str() {
        "VERSION" => return finish(&Answer::success(version_answer())),
        "" => return introduce(),
        _ => {}
    }
    let mut stdin = Vec::new();
    // A longer text is refused for its length, and so is any longer piece of it.
    let longest = LONGEST_CONFIGURATION as u64 + 1;
    if let Err(error) = io::stdin().lock().take(longest).read_to_end(&mut stdin) {
        let error = CniError::new(Code::Io, format!("stdin cannot be read: {error}"));
        return fail(&error, None);
    }
    if stdin.len() > LONGEST_CONFIGURATION {
        // The piece may end within a character.
        stdin = String::from_utf8_lossy(&stdin).into_owned().into_bytes();
    }
    let Ok(stdin) = String::from_utf8(stdin) else {
        let error = CniError::new(
            Code::Decode,
            "the network configuration on stdin is not UTF-8",
        );
        return fail(&error, None);
    };
    let argv0 = std::env::args_os().next().unwrap_or_default();
    let plugin = wire::accepted_type(&argv0.to_string_lossy()).to_owned();
    let socket = socket();
    let timeout = match environment.command.as_str() {
        "DEL" => DEL_TIMEOUT,
        _ => ADD_TIMEOUT,
    };
    let request = Request::new(&plugin, environment, stdin);
    match http::call(&socket, &request, timeout) {
        Ok(answer) => match &answer.delegate {
            Some(delegate) => {
                let error = delegate::exec(delegate, &request.environment.path);
                fail(&error, NetConf::version_of(&request.stdin))
            }
            None => finish(&answer),
        },
        Err(ClientError::NoAgent { socket, .. }) => {
            let Err(why) = engine::run(&request);
            fail(
                &unserved(&request, &socket, &why),
                NetConf::version_of(&request.stdin),
            )
        }
        Err(error) => {
            let code = match Verb::parse(&request.environment.command) {
                Ok(Verb::Status) => Code::NotAvailable,
                _ => Code::TryLater,
            };
            fail(
                &CniError::new(code, error.to_string()),
                NetConf::version_of(&request.stdin),
            )
        }
    }
}

fn socket() -> PathBuf {
    let configured = std::env::var_os("BERTH_SOCKET").filter(|value| !value.is_empty());
    let installed = || wire::installed_socket(&std::env::current_exe().ok()?);
    let named = configured.map(PathBuf::from).or_else(installed);
    named.unwrap_or_else(|| PathBuf::from(wire::DEFAULT_SOCKET))
}

/// Neither an agent nor an engine: what is missing and what to do.
fn unserved(request: &Request, socket: &str, why: &engine::Absent) -> CniError {
    let code = match request.environment.command.as_str() {
        "STATUS" => Code::NotAvailable,
        _ => Code::TryLater,
    };
    CniError::new(code, format!("no agent listens on {socket}, and {why}")).details(
        "start the agent (`berth agent`, or the berth daemon set's pod on this node), \
         or install the engine beside this plugin as berth-full",
    )
}

/// A person ran the plugin by hand.
fn introduce() -> ExitCode {
    let versions: Vec<&str> = Version::ALL
        .iter()
        .map(|version| version.as_str())
        .collect();
    let text = format!(
        "berth {} (CNI IPAM plugin)\nCNI protocol versions supported: {}\n",
        env!("CARGO_PKG_VERSION"),
        versions.join(", ")
    );
    let _ = io::stderr().write_all(text.as_bytes());
    ExitCode::SUCCESS
}

fn fail(error: &CniError, version: Option<Version>) -> ExitCode {
    finish(&Answer::failure(error.render(version)))
}

/// Prints the answer. An answer that can't be printed did not reach the runtime, so it must see a failure.
fn finish(answer: &Answer) -> ExitCode {
    if !answer.stdout.is_empty() {
        let mut text = answer.stdout.clone();
        text.push('\n');
        let mut stdout = io::stdout().lock();
        if stdout
            .write_all(text.as_bytes())
            .and_then(|()| stdout.flush())
            .is_err()
        {
            return ExitCode::FAILURE;
        }
    }
    match u8::try_from(answer.exit) {
        Ok(code) => ExitCode::from(code),
        Err(_) => ExitCode::FAILURE,
    }
}
