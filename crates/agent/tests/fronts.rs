//! The agent runs the fronts of its list: calls are routed by plugin name, it is ready when all fronts are, and a
//! front finishes its work at the stop.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use axum::routing::get;
use berth_agent::{AgentConfig, AgentError, serve};
use berth_cni::wire::{Answer, Request};
use berth_cni::{Environment, http};
use berth_front::{Front, Host, Node, Readiness, Serving, StartError};
use berth_testkit::InProcess;

#[derive(Debug, Clone)]
struct Echo {
    plugin: &'static [&'static str],
    readiness: Arc<Mutex<Readiness>>,
    finished: Arc<AtomicBool>,
}

impl Echo {
    fn new(plugin: &'static [&'static str]) -> Echo {
        Echo {
            plugin,
            readiness: Arc::new(Mutex::new(Readiness::Ready)),
            finished: Arc::default(),
        }
    }

    fn says(&self, readiness: Readiness) {
        *self.readiness.lock().unwrap() = readiness;
    }
}

#[async_trait]
impl Front for Echo {
    fn name(&self) -> &'static str {
        self.plugin[0]
    }

    fn plugins(&self) -> &'static [&'static str] {
        self.plugin
    }

    async fn start(self: Box<Self>, _host: Host<'_>) -> Result<Arc<dyn Serving>, StartError> {
        Ok(Arc::new(*self))
    }
}

#[async_trait]
impl Serving for Echo {
    async fn call(&self, request: &Request) -> Answer {
        Answer::success(format!("\"{} by {}\"", request.plugin, self.plugin[0]))
    }

    fn routes(&self) -> Router {
        let name = self.plugin[0];
        Router::new().route(&format!("/v1/{name}"), get(move || async move { name }))
    }

    async fn ready(&self) -> Readiness {
        self.readiness.lock().unwrap().clone()
    }

    async fn finish(&self) {
        self.finished.store(true, Ordering::SeqCst);
    }
}

fn config(dir: &Path, fronts: &[Echo]) -> AgentConfig {
    let boxed = |front: &Echo| Box::new(front.clone()) as Box<dyn Front>;
    AgentConfig {
        socket: dir.join("berth.sock"),
        listen: None,
        node: Node::default(),
        fronts: fronts.iter().map(boxed).collect(),
    }
}

async fn ask(socket: &Path, plugin: &str) -> Answer {
    let (socket, request) = (
        socket.to_owned(),
        Request::new(plugin, Environment::default(), "{}".into()),
    );
    let asked = move || http::call(&socket, &request, Duration::from_secs(60)).unwrap();
    tokio::task::spawn_blocking(asked).await.unwrap()
}

async fn get_of(socket: PathBuf, path: &'static str) -> (u16, String) {
    let asked = move || {
        let mut stream = UnixStream::connect(socket).unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: agent\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        (answer.split(' ').nth(1).unwrap().parse().unwrap(), answer)
    };
    tokio::task::spawn_blocking(asked).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_routes_readiness_and_the_stop_reach_each_front() {
    let dir = tempfile::tempdir().unwrap();
    let (red, blue) = (Echo::new(&["red", "crimson"]), Echo::new(&["blue"]));
    let config = config(dir.path(), &[red.clone(), blue.clone()]);
    let socket = config.socket.clone();
    let agent = InProcess::start(|stop| async {
        serve(config, stop).await.unwrap();
    });
    while !socket.exists() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(ask(&socket, "crimson").await.stdout, "\"crimson by red\"");
    assert_eq!(ask(&socket, "blue").await.stdout, "\"blue by blue\"");
    let refused = ask(&socket, "green").await;
    assert_eq!(refused.exit, 1);
    let names = "red, crimson, blue";
    assert!(refused.stdout.contains(names), "{}", refused.stdout);
    for path in ["/v1/red", "/v1/blue"] {
        assert_eq!(get_of(socket.clone(), path).await.0, 200, "{path}");
    }
    blue.says(Readiness::Degraded("half of it".into()));
    red.says(Readiness::NotReady("no red today".into()));
    let (code, text) = get_of(socket.clone(), "/readyz").await;
    assert!(code == 503 && text.contains("no red today"), "{text}");
    assert!(!red.finished.load(Ordering::SeqCst));
    agent.stop().await;
    for front in [red, blue] {
        assert!(front.finished.load(Ordering::SeqCst), "{front:?}");
    }
}

#[tokio::test]
async fn two_fronts_never_answer_to_one_name() {
    let dir = tempfile::tempdir().unwrap();
    let fronts = [Echo::new(&["red"]), Echo::new(&["blue", "red"])];
    let ended = serve(config(dir.path(), &fronts), std::future::pending()).await;
    let same = matches!(ended, Err(AgentError::SamePlugin { plugin: "red" }));
    assert!(same, "{ended:?}");
}
