//! The protocol between the plugin and the agent: one call, one answer, JSON over HTTP/1.1 on a unix socket.
//!
//! `PROTOCOL` grows when a message changes so that an older agent would misread it. New optional fields do not count:
//! both sides ignore unknown fields.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::call::Environment;

/// The version of the protocol, in the `berth-protocol` header and in the message.
pub const PROTOCOL: u32 = 1;

/// The header that names a side's protocol.
pub const PROTOCOL_HEADER: &str = "berth-protocol";

/// The path that accepts calls.
pub const CALL_PATH: &str = "/v1/cni";

/// The agent's socket, unless `BERTH_SOCKET` is set, or an installation names another one.
pub const DEFAULT_SOCKET: &str = "/run/berth/berth.sock";

/// What `berth install` leaves beside the plugin: where the node's configuration, its agent's database and socket are.
const ENGINE_CONFIG: &str = "berth-full.json";

/// The agent's socket, as the installation beside the program `plugin` has it. What can't be read names none: the engine
/// that is run then reports it.
pub fn installed_socket(plugin: &Path) -> Option<PathBuf> {
    #[derive(Deserialize)]
    struct Named {
        socket: PathBuf,
    }
    let text = std::fs::read(plugin.with_file_name(ENGINE_CONFIG)).ok()?;
    let named: Named = serde_json::from_slice(&text).ok()?;
    Some(named.socket)
}

/// The largest message that either side accepts. A GC of all attachments of a node is about ten kilobytes.
pub const MAX_BODY: usize = 4 * 1024 * 1024;

/// A CNI call on its way to the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    pub protocol: u32,
    /// The name the plugin was called by: the `ipam.type` it answers to.
    pub plugin: String,
    #[serde(flatten)]
    pub environment: Environment,
    /// The network configuration, as received.
    #[serde(default)]
    pub stdin: String,
}

/// What the plugin prints and how it exits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    pub exit: i32,
    #[serde(default)]
    pub stdout: String,
    /// Another plugin of the machine that serves the call instead. `exit` and `stdout` are then a refusal, for a plugin
    /// that does not know this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delegate: Option<Delegate>,
}

/// A call that is passed to another IPAM plugin, with the same environment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delegate {
    /// Its file name in `CNI_PATH`, such as `host-local`.
    pub plugin: String,
    /// The network configuration that it gets.
    pub stdin: String,
}

impl Request {
    pub fn new(plugin: &str, environment: Environment, stdin: String) -> Request {
        Request {
            protocol: PROTOCOL,
            plugin: plugin.to_owned(),
            environment,
            stdin,
        }
    }

    pub fn encode(&self) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(self)
    }

    pub fn decode(body: &[u8]) -> Result<Request, serde_json::Error> {
        serde_json::from_slice(body)
    }
}

impl Answer {
    /// A success that prints `stdout`.
    pub fn success(stdout: String) -> Answer {
        Answer {
            exit: 0,
            stdout,
            delegate: None,
        }
    }

    /// A failure that prints an error's JSON.
    pub fn failure(stdout: String) -> Answer {
        Answer {
            exit: 1,
            stdout,
            delegate: None,
        }
    }

    /// The plugin becomes another one, with this configuration. A plugin that can't do that prints `refusal`.
    pub fn delegated(plugin: &str, stdin: String, refusal: String) -> Answer {
        Answer {
            exit: 1,
            stdout: refusal,
            delegate: Some(Delegate {
                plugin: plugin.to_owned(),
                stdin,
            }),
        }
    }

    pub fn encode(&self) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(self)
    }

    pub fn decode(body: &[u8]) -> Result<Answer, serde_json::Error> {
        serde_json::from_slice(body)
    }
}

/// The `ipam.type` of a plugin, from the path it was called by.
///
/// Under its own file name it is `berth`.
pub fn accepted_type(argv0: &str) -> &str {
    let base = argv0.rsplit('/').next().unwrap_or_default();
    match base {
        "" | "berth-cni" | "berth-full" => "berth",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_name_called_by_is_the_type() {
        assert_eq!(accepted_type("/opt/cni/bin/whereabouts"), "whereabouts");
        assert_eq!(accepted_type("berth"), "berth");
        assert_eq!(accepted_type("/opt/cni/bin/berth-cni"), "berth");
        assert_eq!(accepted_type(""), "berth");
    }

    #[test]
    fn fields_added_later_are_ignored() {
        let request =
            Request::decode(br#"{"protocol":1,"plugin":"berth","command":"ADD","colour":"blue"}"#)
                .unwrap();
        assert_eq!(request.environment.command, "ADD");
        assert_eq!(
            Answer::decode(br#"{"exit":0,"took":3}"#).unwrap(),
            Answer::success("".into())
        );
    }

    proptest! {
        #[test]
        fn a_request_reads_back(
            plugin in ".*", command in ".*", container_id in ".*", netns in ".*",
            ifname in ".*", args in ".*", path in ".*", stdin in ".*",
        ) {
            let environment = Environment { command, container_id, netns, ifname, args, path };
            let request = Request::new(&plugin, environment, stdin);
            prop_assert_eq!(Request::decode(&request.encode().unwrap()).unwrap(), request);
        }

        #[test]
        fn garbage_never_panics(body in proptest::collection::vec(any::<u8>(), 0..256)) {
            let _ = Request::decode(&body);
            let _ = Answer::decode(&body);
        }
    }
}
