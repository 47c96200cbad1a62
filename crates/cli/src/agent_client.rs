//! One request to an agent over its socket.

use std::path::Path;

use anyhow::Context;
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;

const USER_AGENT: &str = concat!("berth/", env!("CARGO_PKG_VERSION"));

/// The status and the body of the response.
pub async fn exchange(
    socket: &Path,
    method: Method,
    path: &str,
    body: Vec<u8>,
) -> anyhow::Result<(StatusCode, Bytes)> {
    let stream = UnixStream::connect(socket).await.with_context(|| {
        let socket = socket.display();
        format!(
            "no agent answers at {socket}: start `berth agent`, or name its socket with --socket"
        )
    })?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", "berth")
        .header("user-agent", USER_AGENT)
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(body)))?;
    let answer = sender.send_request(request).await?;
    let status = answer.status();
    Ok((status, answer.into_body().collect().await?.to_bytes()))
}
