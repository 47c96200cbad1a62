//! A proxy to the API server that records every request, and may delay, answer or drop it, or drop the server's
//! response.
//!
//! It is plain HTTP on this side and the administrator's TLS on the other: its users have the administrator's rights.
//! What is dropped or answered here never reaches the server. It ends with its [`FaultProxy`].

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, CONTENT_TYPE, HOST, RETRY_AFTER, TRANSFER_ENCODING};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;

use crate::{Account, Cluster};

/// A request as received.
#[derive(Clone, Debug)]
pub struct Asked {
    pub method: String,
    /// Without the query.
    pub path: String,
    /// The content type.
    pub format: String,
    /// Null if it is not JSON.
    pub body: Value,
    pub at: Instant,
}

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Pass,
    /// Forwarded after this delay.
    Later(Duration),
    /// Answered as the API server would refuse it.
    Refuse {
        code: u16,
        /// Seconds.
        retry_after: Option<u32>,
    },
    /// The connection ends without a response.
    Cut,
    /// Forwarded; when the server has responded, the connection ends without that response.
    Lose,
}

type Rule = Box<dyn FnMut(&Asked) -> Fate + Send>;

struct Shared {
    rule: Mutex<Rule>,
    /// Every request, with the status of its response once there is one, lost or not.
    seen: Mutex<Vec<(Asked, Option<u16>)>>,
    client: kube::Client,
}

/// See the module.
pub struct FaultProxy {
    shared: Arc<Shared>,
    _dir: tempfile::TempDir,
    kubeconfig: PathBuf,
    task: JoinHandle<()>,
}

impl std::fmt::Debug for FaultProxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FaultProxy")
            .field("kubeconfig", &self.kubeconfig)
            .finish_non_exhaustive()
    }
}

impl FaultProxy {
    /// Forwards everything until a rule is set.
    pub async fn new(cluster: &Cluster) -> Result<FaultProxy> {
        FaultProxy::over(&cluster.kubeconfig()).await
    }

    /// The same, with the rights of an account.
    pub async fn of(account: &Account) -> Result<FaultProxy> {
        FaultProxy::over(account.kubeconfig()).await
    }

    async fn over(kubeconfig: &Path) -> Result<FaultProxy> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let file = Kubeconfig::read_from(kubeconfig).context("read a kubeconfig")?;
        let options = KubeConfigOptions::default();
        let mut config = kube::Config::from_custom_kubeconfig(file, &options)
            .await
            .context("use a kubeconfig")?;
        // The client under test decides about retries.
        config.default_retry = false;
        let client = kube::Client::try_from(config).context("make a relay's client")?;
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0)))
            .await
            .context("listen")?;
        let url = format!(
            "http://{}",
            listener.local_addr().context("a relay's port")?
        );
        let dir = tempfile::tempdir().context("make a directory")?;
        let kubeconfig = dir.path().join("kubeconfig");
        let text = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "relay",
            "clusters": [{ "name": "relay", "cluster": { "server": url } }],
            "users": [{ "name": "relay", "user": {} }],
            "contexts": [{ "name": "relay", "context": { "cluster": "relay", "user": "relay" } }],
        });
        std::fs::write(&kubeconfig, text.to_string()).context("write a kubeconfig")?;
        let shared = Arc::new(Shared {
            rule: Mutex::new(Box::new(|_| Fate::Pass)),
            seen: Mutex::default(),
            client,
        });
        let task = tokio::spawn(serve(listener, Arc::clone(&shared)));
        Ok(FaultProxy {
            shared,
            _dir: dir,
            kubeconfig,
            task,
        })
    }

    /// Points to this proxy.
    pub fn kubeconfig(&self) -> PathBuf {
        self.kubeconfig.clone()
    }

    /// Applies to every request from now on.
    pub fn rule(&self, rule: impl FnMut(&Asked) -> Fate + Send + 'static) {
        *self.shared.rule.lock() = Box::new(rule);
    }

    /// The requests so far, each with the status of its response, if any, even if the response was dropped.
    pub fn seen(&self) -> Vec<(Asked, Option<u16>)> {
        self.shared.seen.lock().clone()
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        // Its connections are aborted with it.
        self.task.abort();
    }
}

async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        connections.spawn(connection(stream, Arc::clone(&shared)));
        while connections.try_join_next().is_some() {}
    }
}

async fn connection(stream: TcpStream, shared: Arc<Shared>) {
    let answer = service_fn(move |request| {
        let shared = Arc::clone(&shared);
        async move { shared.answer(request).await }
    });
    // It ends when it is dropped, or with its client.
    let _ = hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(stream), answer)
        .await;
}

impl Shared {
    async fn answer(&self, request: Request<Incoming>) -> io::Result<Response<Body>> {
        let (mut head, body) = request.into_parts();
        let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
        let format = head.headers.get(CONTENT_TYPE);
        let asked = Asked {
            method: head.method.to_string(),
            path: head.uri.path().to_owned(),
            format: format
                .and_then(|format| format.to_str().ok())
                .unwrap_or_default()
                .to_owned(),
            body: serde_json::from_slice(&body).unwrap_or_default(),
            at: Instant::now(),
        };
        let place = {
            let mut seen = self.seen.lock();
            seen.push((asked.clone(), None));
            seen.len() - 1
        };
        let fate = (self.rule.lock())(&asked);
        let answer = match fate {
            Fate::Cut => return Err(io::Error::other("cut off")),
            Fate::Refuse { code, retry_after } => refusal(code, retry_after),
            Fate::Pass | Fate::Later(_) | Fate::Lose => {
                if let Fate::Later(pause) = fate {
                    sleep(pause).await;
                }
                for of_the_way in [HOST, CONNECTION, TRANSFER_ENCODING] {
                    head.headers.remove(of_the_way);
                }
                let request = Request::from_parts(head, Body::from(body));
                let sent = self.client.send(request).await;
                let mut answer = sent.map_err(io::Error::other)?;
                for of_the_way in [CONNECTION, TRANSFER_ENCODING] {
                    answer.headers_mut().remove(of_the_way);
                }
                answer
            }
        };
        if let Some((_, code)) = self.seen.lock().get_mut(place) {
            *code = Some(answer.status().as_u16());
        }
        if fate == Fate::Lose {
            return Err(io::Error::other("lost"));
        }
        Ok(answer)
    }
}

fn refusal(code: u16, retry_after: Option<u32>) -> Response<Body> {
    let status = json!({
        "apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code,
        "reason": "Refused", "message": "a test refuses this",
    });
    let mut answer = Response::new(Body::from(status.to_string().into_bytes()));
    *answer.status_mut() = hyper::StatusCode::from_u16(code).unwrap_or_default();
    if let Some(seconds) = retry_after {
        answer.headers_mut().insert(RETRY_AFTER, seconds.into());
    }
    answer
}
