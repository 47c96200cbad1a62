//! The plugin's side of HTTP/1.1: one request and its response on a unix socket, with std only.
//!
//! It supports what the agent uses: `Content-Length` framing, one exchange per connection. It does not follow
//! redirects, accept chunks or keep connections open.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::wire::{Answer, CALL_PATH, MAX_BODY, PROTOCOL, PROTOCOL_HEADER, Request};

/// The maximum length of a response head: the agent's has about a hundred bytes.
const MAX_HEAD: usize = 16 * 1024;

/// Why there is no response. Each variant is a decision of the plugin.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No agent listens: run the engine in-process.
    #[error("no agent listens on {socket}")]
    NoAgent {
        socket: String,
        #[source]
        source: io::Error,
    },
    /// The agent has another protocol version: an upgrade is in progress, or incomplete.
    #[error("{0}")]
    Protocol(String),
    /// The exchange broke: whether the agent did the work is unknown, and repeating it is safe.
    #[error("the agent on {socket} did not answer: {what}")]
    Broken { socket: String, what: String },
}

/// Sends `request` to the agent on `socket`.
///
/// `timeout` bounds each read and write, so a hung agent costs at most that.
pub fn call(socket: &Path, request: &Request, timeout: Duration) -> Result<Answer, ClientError> {
    let name = || socket.display().to_string();
    let broken = |what: String| ClientError::Broken {
        socket: name(),
        what,
    };
    let mut stream = UnixStream::connect(socket).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => ClientError::NoAgent {
            socket: name(),
            source,
        },
        _ => broken(source.to_string()),
    })?;
    let body = request
        .encode()
        .map_err(|error| broken(error.to_string()))?;
    let exchange = || -> io::Result<Vec<u8>> {
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        stream.write_all(&encode_request(&body))?;
        read_answer(&mut stream)
    };
    let bytes = { exchange }().map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            broken(format!("nothing for {} s", timeout.as_secs()))
        }
        _ => broken(error.to_string()),
    })?;
    let answer = parse_answer(&bytes).map_err(broken)?;
    interpret(&answer)
}

/// The bytes of a request, head and body together: one write, one packet.
pub fn encode_request(body: &[u8]) -> Vec<u8> {
    let mut bytes = format!(
        "POST {CALL_PATH} HTTP/1.1\r\nhost: berth\r\n{PROTOCOL_HEADER}: {PROTOCOL}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    )
    .into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

/// A parsed response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpAnswer<'a> {
    pub status: u16,
    /// The agent's protocol, if it names one.
    pub protocol: Option<u32>,
    pub body: &'a [u8],
}

struct Head {
    status: u16,
    protocol: Option<u32>,
    length: usize,
    /// Where the body starts.
    end: usize,
}

/// Parses a whole response. Invalid input is an error, never a panic.
pub fn parse_answer(bytes: &[u8]) -> Result<HttpAnswer<'_>, String> {
    let head = parse_head(bytes)?.ok_or("the answer ends within its head")?;
    let body = bytes.get(head.end..).unwrap_or_default();
    let body = body.get(..head.length).ok_or_else(|| {
        format!(
            "the answer ends after {} of {} bytes",
            body.len(),
            head.length
        )
    })?;
    Ok(HttpAnswer {
        status: head.status,
        protocol: head.protocol,
        body,
    })
}

/// `Ok(None)` while the head is not yet complete.
fn parse_head(bytes: &[u8]) -> Result<Option<Head>, String> {
    let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else {
        return Ok(None);
    };
    let text = std::str::from_utf8(bytes.get(..at).unwrap_or_default())
        .map_err(|_| "the answer's head is not text".to_owned())?;
    let mut lines = text.split("\r\n");
    let first = lines.next().unwrap_or_default();
    let status = first
        .strip_prefix("HTTP/1.")
        .and_then(|rest| rest.split(' ').nth(1))
        .and_then(|code| code.parse().ok())
        .ok_or_else(|| format!("{first:?} is not the first line of an HTTP answer"))?;
    let mut head = Head {
        status,
        protocol: None,
        length: 0,
        end: at + 4,
    };
    for line in lines {
        let Some((name, value)) = line.split_once(':') else {
            return Err(format!("{line:?} is not a header"));
        };
        let value = value.trim();
        if name.eq_ignore_ascii_case("content-length") {
            head.length = value
                .parse()
                .ok()
                .filter(|length| *length <= MAX_BODY)
                .ok_or_else(|| format!("content-length {value:?} is not a length we take"))?;
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            return Err(format!("transfer-encoding {value:?} is not spoken here"));
        } else if name.eq_ignore_ascii_case(PROTOCOL_HEADER) {
            head.protocol = value.parse().ok();
        }
    }
    Ok(Some(head))
}

/// Reads until the announced body is complete; does not wait for the agent to close.
fn read_answer(stream: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(2048);
    let mut chunk = [0u8; 4096];
    loop {
        match parse_head(&bytes) {
            Ok(Some(head)) if bytes.len() >= head.end.saturating_add(head.length) => {
                return Ok(bytes);
            }
            Ok(Some(_)) => {}
            Ok(None) if bytes.len() > MAX_HEAD => {
                return Err(io::Error::other("the answer's head has no end"));
            }
            Ok(None) => {}
            Err(what) => return Err(io::Error::other(what)),
        }
        match stream.read(&mut chunk) {
            Ok(0) => return Err(io::Error::other("it closed the connection")),
            Ok(n) => bytes.extend_from_slice(chunk.get(..n).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn interpret(answer: &HttpAnswer<'_>) -> Result<Answer, ClientError> {
    if answer.status == 200 {
        return Answer::decode(answer.body).map_err(|error| {
            ClientError::Protocol(format!("the agent's answer cannot be read: {error}"))
        });
    }
    let theirs = match answer.protocol {
        Some(protocol) => format!("protocol {protocol}"),
        None => "an older protocol".to_owned(),
    };
    Err(ClientError::Protocol(match answer.status {
        404 | 426 => format!(
            "this plugin speaks protocol {PROTOCOL}, the agent {theirs}: \
             finish the upgrade so that both are of one release"
        ),
        status => format!(
            "the agent answered HTTP {status}: {}",
            String::from_utf8_lossy(answer.body)
                .chars()
                .take(300)
                .collect::<String>()
        ),
    }))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::thread;

    use proptest::prelude::*;

    use super::*;
    use crate::call::Environment;

    fn request() -> Request {
        Request::new("berth", Environment::default(), "{}".into())
    }

    /// Serves one connection with fixed bytes and returns the request.
    fn serve_once(
        answer: &'static [u8],
    ) -> (
        tempfile::TempDir,
        std::path::PathBuf,
        thread::JoinHandle<Vec<u8>>,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut asked = vec![0; 65536];
            let n = stream.read(&mut asked).unwrap();
            asked.truncate(n);
            stream.write_all(answer).unwrap();
            asked
        });
        (dir, socket, server)
    }

    fn call_once(answer: &'static [u8]) -> Result<Answer, ClientError> {
        let (_dir, socket, server) = serve_once(answer);
        let result = call(&socket, &request(), Duration::from_secs(5));
        let asked = server.join().unwrap();
        assert!(asked.starts_with(b"POST /v1/cni HTTP/1.1\r\n"));
        result
    }

    #[test]
    fn an_answer_comes_back() {
        let answer = call_once(
            b"HTTP/1.1 200 OK\r\nContent-Length: 28\r\nberth-protocol: 1\r\n\r\n{\"exit\":1,\"stdout\":\"hello\"}\n",
        );
        assert_eq!(
            answer.unwrap(),
            Answer {
                exit: 1,
                stdout: "hello".into(),
                delegate: None,
            }
        );
    }

    #[test]
    fn an_agent_of_another_protocol_is_named_with_both_versions() {
        let error = call_once(
            b"HTTP/1.1 426 Upgrade Required\r\nberth-protocol: 0\r\ncontent-length: 0\r\n\r\n",
        )
        .unwrap_err();
        assert!(matches!(error, ClientError::Protocol(_)));
        let text = error.to_string();
        assert!(
            text.contains("protocol 1") && text.contains("protocol 0"),
            "{text}"
        );
    }

    #[test]
    fn an_agent_that_dies_in_mid_answer_is_broken_not_absent() {
        let error =
            call_once(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{\"exit\"").unwrap_err();
        assert!(matches!(error, ClientError::Broken { .. }), "{error}");
    }

    #[test]
    fn a_silent_agent_costs_the_timeout_and_no_more() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let _listener = UnixListener::bind(&socket).unwrap();
        let error = call(&socket, &request(), Duration::from_millis(50)).unwrap_err();
        assert!(matches!(error, ClientError::Broken { .. }), "{error}");
    }

    #[test]
    fn no_socket_and_no_listener_are_no_agent() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let absent = call(&socket, &request(), Duration::from_secs(1)).unwrap_err();
        assert!(matches!(absent, ClientError::NoAgent { .. }));
        drop(UnixListener::bind(&socket).unwrap());
        let refused = call(&socket, &request(), Duration::from_secs(1)).unwrap_err();
        assert!(matches!(refused, ClientError::NoAgent { .. }));
    }

    proptest! {
        #[test]
        fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse_answer(&bytes);
            let mut with_head = b"HTTP/1.1 200 OK\r\ncontent-length: ".to_vec();
            with_head.extend_from_slice(&bytes);
            with_head.extend_from_slice(b"\r\n\r\n");
            let _ = parse_answer(&with_head);
        }

        #[test]
        fn a_body_of_any_size_is_cut_out_exactly(
            body in proptest::collection::vec(any::<u8>(), 0..5000),
            more in proptest::collection::vec(any::<u8>(), 0..50),
        ) {
            let mut bytes = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len()).into_bytes();
            bytes.extend_from_slice(&body);
            bytes.extend_from_slice(&more);
            prop_assert_eq!(parse_answer(&bytes).unwrap().body, &body[..]);
        }
    }
}
