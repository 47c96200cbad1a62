//! A way to the API server on which a test sees every request, and may hold it up, answer it or cut it off in the server's
//! place, or keep the server's answer to itself.
//!
//! It is plain HTTP here and the administrator's TLS there: whoever takes this way is the administrator. What is cut off or
//! answered here never reaches the server. It ends with its [`Relay`].

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;

use crate::{Account, Cluster};

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Asked {
    pub method: String,
    /// Without the query.
    pub path: String,
    /// The content type.
    pub format: String,
    /// What is no JSON is null.
    pub body: Value,
    pub at: Instant,
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Pass,
    /// Passed on after so long.
    Later(Duration),
    /// Answered as the API server would refuse it.
    Refuse {
        code: u16,
        /// Seconds.
        retry_after: Option<u32>,
    },
    /// The connection ends without an answer.
    Cut,
    /// Passed on; when the server has answered, the connection ends without that.
    Lose,
}

type Rule = Box<dyn FnMut(&Asked) -> Fate + Send>;

struct Shared {
    rule: Mutex<Rule>,
    /// Every request, and the code of its answer once there is one, lost or not.
    seen: Mutex<Vec<(Asked, Option<u16>)>>,
    client: kube::Client,
}

/// See the module.
pub struct Relay {
    shared: Arc<Shared>,
    _dir: tempfile::TempDir,
    kubeconfig: PathBuf,
    task: JoinHandle<()>,
}

impl std::fmt::Debug for Relay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Relay")
            .field("kubeconfig", &self.kubeconfig)
            .finish_non_exhaustive()
    }
}

impl Relay {
    /// Passes everything on until it is told otherwise.
    pub async fn new(cluster: &Cluster) -> Result<Relay> {
        Relay::over(&cluster.kubeconfig()).await
    }

    /// The same, with the rights of an account.
    pub async fn of(account: &Account) -> Result<Relay> {
        Relay::over(account.kubeconfig()).await
    }

    async fn over(kubeconfig: &Path) -> Result<Relay> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let file = Kubeconfig::read_from(kubeconfig).context("read a kubeconfig")?;
        let options = KubeConfigOptions::default();
        let mut config = kube::Config::from_custom_kubeconfig(file, &options)
            .await
            .context("use a kubeconfig")?;
        // Whoever asks decides whether to ask again.
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
        Ok(Relay {
            shared,
            _dir: dir,
            kubeconfig,
            task,
        })
    }

    /// Leads here.
    pub fn kubeconfig(&self) -> PathBuf {
        self.kubeconfig.clone()
    }

    /// Decides over every request from now on.
    pub fn rule(&self, rule: impl FnMut(&Asked) -> Fate + Send + 'static) {
        *locked(&self.shared.rule) = Box::new(rule);
    }

    /// What was asked so far, each with the code that it was answered with, if it was; so is what was lost on its way back.
    pub fn seen(&self) -> Vec<(Asked, Option<u16>)> {
        locked(&self.shared.seen).clone()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // Its connections are of a set that goes with it.
        self.task.abort();
    }
}

fn locked<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
    // It ends when it is cut off, or with the one who asks.
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
            let mut seen = locked(&self.seen);
            seen.push((asked.clone(), None));
            seen.len() - 1
        };
        let fate = (locked(&self.rule))(&asked);
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
        if let Some((_, code)) = locked(&self.seen).get_mut(place) {
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
