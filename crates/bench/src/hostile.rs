//! Honest ADDs next to clients that hold connections open and send malformed requests: their latency, and the memory of
//! agent and controller.
//!
//! 2,000 connections, each with half of a head, over all listeners that a network can reach; one that is closed
//! reconnects after five seconds. 100 malformed requests a second: forged tokens, broken heads, endless heads. All on
//! loopback, from several of its addresses.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use berth_cni::http;
use berth_testkit::{Account, Agent, Cluster, PodCall, Process, RawClient, guarded, isolated};
use clap::Args;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use serde_json::json;

use crate::figure::{Figure, Target, progress};
use crate::pods::quantile;

#[derive(Args, Debug)]
pub struct Hostile {
    /// Connections that are held open.
    #[arg(long, default_value_t = 2_000)]
    connections: usize,
    /// Malformed requests a second.
    #[arg(long, default_value_t = 100)]
    malformed: u64,
    /// How long, in seconds; as long again without them, half of it before and half after.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// The built command [default: the one beside this program].
    #[arg(long)]
    berth: Option<std::path::PathBuf>,
}

const AUDIENCE: &str = "desk.berth.dev";
const TIMEOUT: Duration = Duration::from_secs(60);
/// Threads that hold connections, each from its own address.
const HOLDERS: usize = 8;
/// A closed connection reconnects after this time.
const AGAIN: Duration = Duration::from_secs(5);
/// Concurrent pods, and the pause between two of one lane.
const LANES: usize = 2;
const PAUSE: Duration = Duration::from_millis(50);

/// What is attacked.
struct Site {
    _cluster: Cluster,
    controller: Process,
    agent: Agent,
    /// An agent of VM pools alone.
    vms: Agent,
    /// Health and metrics of both.
    health: [SocketAddr; 2],
    desk: SocketAddr,
    vm_api: SocketAddr,
}

impl Hostile {
    pub async fn run(&self) -> Result<Vec<Figure>> {
        let built = std::env::current_exe()?.with_file_name("berth");
        let berth = self.berth.clone().unwrap_or(built);
        ensure!(
            berth.is_file(),
            "{} is not built: run `cargo xtask bench hostile`",
            berth.display()
        );
        let site = Site::new(&berth).await?;
        tokio::task::block_in_place(|| self.measure(&site))
    }

    fn measure(&self, site: &Site) -> Result<Vec<Figure>> {
        let time = Duration::from_secs(self.seconds);
        // The first calls connect, open desks and warm caches.
        site.honest("warm", Duration::from_secs(3))?;
        let mut calm = site.honest("before", time / 2)?;
        let stop = AtomicBool::new(false);
        let (held, sent) = (AtomicU64::new(0), AtomicU64::new(0));
        let attacked = std::thread::scope(|scope| {
            for holder in 0..HOLDERS {
                let (stop, held) = (&stop, &held);
                let each = self.connections / HOLDERS;
                scope.spawn(move || site.hold(holder, each, stop, held));
            }
            scope.spawn(|| site.malform(self.malformed, &stop, &sent));
            let attacked = site.honest("attacked", time);
            stop.store(true, Ordering::Relaxed);
            attacked
        })?;
        calm.extend(site.honest("after", time / 2)?);
        let (agent, controller) = (
            megabytes(&site.agent.process)?,
            megabytes(&site.controller)?,
        );
        let vms = megabytes(&site.vms.process)?;
        let (quiet, loud) = (quantile(&calm, 0.99), quantile(&attacked, 0.99));
        let sent = sent.load(Ordering::Relaxed);
        let what = format!(
            "{} hostile connections ({} opened) and {sent} malformed requests in {} s",
            self.connections,
            held.load(Ordering::Relaxed),
            self.seconds
        );
        Ok(vec![
            Figure::new(
                format!("{what}: the agent's peak memory"),
                agent,
                "MB",
                Target::AtMost(64.0),
            ),
            Figure::new(
                "the controller's peak memory",
                controller,
                "MB",
                Target::AtMost(160.0),
            ),
            Figure::new(
                "the peak memory of an agent with the VM API",
                vms,
                "MB",
                Target::AtMost(64.0),
            ),
            Figure::new(
                format!(
                    "p99 of {} honest ADDs under it, {quiet:.1} ms without ({} ADDs)",
                    attacked.len(),
                    calm.len()
                ),
                loud / quiet,
                "x",
                Target::AtMost(2.0),
            ),
            Figure::new(
                "the same median",
                quantile(&attacked, 0.5) / quantile(&calm, 0.5),
                "x",
                Target::None,
            ),
        ])
    }
}

/// The most that a process has had resident, in MB.
fn megabytes(process: &Process) -> Result<f64> {
    Ok(process.peak_rss()? as f64 * 1024.0 / 1e6)
}

fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

impl Site {
    async fn new(berth: &Path) -> Result<Site> {
        let cluster = Cluster::start().await?;
        for crd in berth_api::crds()? {
            cluster.apply_object(crd).await?;
        }
        let namespace = cluster.namespace("hostile").await?;
        let config =
            json!({"cniVersion": "1.0.0", "name": "shared", "type": "macvlan", "ipam": ipam()});
        let definition = json!({
            "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
            "metadata": {"name": "shared", "namespace": namespace}, "spec": {"config": config.to_string()},
        });
        cluster.apply_object(definition).await?;
        let rules = json!([
            {"apiGroups": ["whereabouts.cni.cncf.io", "berth.dev", "k8s.cni.cncf.io"], "resources": ["*"], "verbs": ["*"]},
            {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["*"]},
            {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]},
            {"apiGroups": ["authorization.k8s.io"], "resources": ["subjectaccessreviews"], "verbs": ["create"]},
            {"apiGroups": [""], "resources": ["nodes", "pods", "events", "configmaps"], "verbs": ["*"]},
        ]);
        let account = cluster
            .service_account(&namespace, "hostile", rules)
            .await?;
        let health = [free_address()?, free_address()?];
        let controller = controller(berth, &account, health[0], cluster.dir())?;
        let desk = desk(&account).await?;
        let agents = cluster.agents(&namespace).await?;
        let node = agents.on("n0").await?;
        let token = cluster.pod_token(&node, "n0", AUDIENCE).await?;
        let token_file = cluster.dir().join("n0.token");
        std::fs::write(&token_file, token)?;
        let agent = Agent::start(berth, cluster.dir(), "agent", |command| {
            command
                .args(["--node", "n0", "--log-format", "json", "--listen"])
                .arg(health[1].to_string())
                .env("BERTH_GARBAGE_GRACE", "86400")
                .env("BERTH_KUBECONFIG", node.kubeconfig())
                .env("BERTH_DESK_TOKEN_FILE", &token_file);
        })?;
        let vm_api = free_address()?;
        let vms = vms(berth, cluster.dir(), vm_api)?;
        Ok(Site {
            _cluster: cluster,
            controller,
            agent,
            vms,
            health,
            desk,
            vm_api,
        })
    }

    /// Starts and stops pods, a few at a time; how long each ADD took.
    fn honest(&self, phase: &str, time: Duration) -> Result<Vec<Duration>> {
        let bar = progress(&format!("honest ADDs: {phase}"), time.as_secs());
        let end = Instant::now() + time;
        let times = std::thread::scope(|scope| {
            let lane = |lane: usize| {
                let mut times = Vec::new();
                for n in 0.. {
                    if Instant::now() >= end {
                        break;
                    }
                    let pod = format!("{phase}-{lane}-{n}");
                    let started = Instant::now();
                    self.call("ADD", &pod)?;
                    times.push(started.elapsed());
                    self.call("DEL", &pod)?;
                    std::thread::sleep(PAUSE);
                }
                Ok(times)
            };
            let lanes: Vec<_> = (0..LANES).map(|at| scope.spawn(move || lane(at))).collect();
            let mut times = Vec::new();
            for lane in lanes {
                let lane: Result<Vec<Duration>> = lane
                    .join()
                    .map_err(|_| anyhow::anyhow!("a lane panicked"))?;
                times.extend(lane?);
            }
            anyhow::Ok(times)
        })?;
        bar.finish_and_clear();
        Ok(times)
    }

    fn call(&self, verb: &str, pod: &str) -> Result<()> {
        let conf =
            json!({"cniVersion": "1.0.0", "name": "shared", "type": "macvlan", "ipam": ipam()});
        let request = PodCall::new("whereabouts", verb, pod).request_of(&conf.to_string());
        let answer = http::call(&self.agent.socket, &request, TIMEOUT)?;
        ensure!(answer.exit == 0, "{verb} {pod}: {}", answer.stdout);
        Ok(())
    }

    /// Holds connections with half of a head open, from its own address.
    fn hold(&self, holder: usize, count: usize, stop: &AtomicBool, opened: &AtomicU64) {
        let source = Ipv4Addr::new(127, 0, 1, u8::try_from(holder + 1).unwrap_or(1));
        let mut held: Vec<(Option<RawClient>, Instant)> = Vec::new();
        held.resize_with(count, || (None, Instant::now()));
        while !stop.load(Ordering::Relaxed) {
            for (at, (slot, due)) in held.iter_mut().enumerate() {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                if Instant::now() < *due {
                    continue;
                }
                // The previous one was closed by its deadline or for another; reconnect.
                *slot = self.half_head(at, source).ok();
                *due = Instant::now() + AGAIN;
                opened.fetch_add(1, Ordering::Relaxed);
                // Spread over the time in which all of them reconnect.
                std::thread::sleep(AGAIN / u32::try_from(count.max(1)).unwrap_or(1) / 2);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn half_head(&self, at: usize, source: Ipv4Addr) -> std::io::Result<RawClient> {
        let mut stranger = match at % 4 {
            0 => RawClient::connect(self.health[0], source)?,
            1 => RawClient::connect(self.health[1], source)?,
            2 => RawClient::connect(self.vm_api, source)?,
            _ => RawClient::connect_tls(self.desk, source)?,
        };
        let head = format!("GET /metrics HTTP/1.1\r\nx: {}", "y".repeat(15_000));
        stranger.send(head.as_bytes())?;
        Ok(stranger)
    }

    /// Sends this many malformed requests a second.
    fn malform(&self, rate: u64, stop: &AtomicBool, sent: &AtomicU64) {
        let source = Ipv4Addr::new(127, 0, 2, 1);
        let started = Instant::now();
        for n in 0.. {
            let due = Duration::from_secs_f64(n as f64 / rate.max(1) as f64);
            while started.elapsed() < due {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            if stop.load(Ordering::Relaxed) {
                return;
            }
            // A refusal in any form is expected.
            let _ = self.one_malformed(n, source);
            sent.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn one_malformed(&self, n: u64, source: Ipv4Addr) -> std::io::Result<()> {
        let health = self.health[usize::from(n.is_multiple_of(2))];
        let forged = format!(
            "POST /v1/desk HTTP/1.1\r\nauthorization: Bearer forged{n}\r\ncontent-length: 4000000\r\n\r\n{{"
        );
        match n % 6 {
            5 => RawClient::connect(self.vm_api, source)?.send(forged.as_bytes()),
            0 => RawClient::connect_tls(self.desk, source)?.send(forged.as_bytes()),
            1 => RawClient::connect(health, source)?.send(&[0xff; 4096]),
            2 => RawClient::connect(health, source)?.send("x: y\r\n".repeat(10_000).as_bytes()),
            3 => RawClient::connect(self.desk, source)?.send(b"GET / HTTP/1.1\r\n\r\n"),
            _ => RawClient::connect(health, source)?
                .send(b"POST /metrics HTTP/1.1\r\ncontent-length: 99999999\r\n\r\nx"),
        }
    }
}

/// An agent that serves the VM API on TCP, and no machine.
fn vms(berth: &Path, dir: &Path, api: SocketAddr) -> Result<Agent> {
    let token_file = dir.join("vm.token");
    std::fs::write(&token_file, "0123456789abcdef")?;
    let dir = dir.join("vms");
    std::fs::create_dir_all(&dir)?;
    Agent::start(berth, &dir, "vms", |command| {
        command
            .args(["--vms-only", "--node", "n0", "--log-format", "json"])
            .args(["--vm-pool-ips", "192.0.2.1-192.0.2.9", "--vm-listen"])
            .arg(api.to_string())
            .arg("--vm-token-file")
            .arg(&token_file)
            .env(
                "VM_LEDGER",
                format!("sqlite:{}", dir.join("state.db").display()),
            )
            .env("VM_READINESS", "off")
            .env("VM_CLEANUP", "false");
    })
}

fn ipam() -> serde_json::Value {
    json!({"type": "whereabouts", "range": "10.9.0.0/16", "enable_overlapping_ranges": false})
}

fn controller(berth: &Path, account: &Account, health: SocketAddr, dir: &Path) -> Result<Process> {
    let mut command = isolated(guarded(berth));
    command
        .args(["controller", "--identity", "bench", "--log-format", "json"])
        .args([
            "--desk-listen",
            "127.0.0.1:0",
            "--listen",
            &health.to_string(),
        ])
        .env("BERTH_KUBECONFIG", account.kubeconfig());
    Process::start("controller", command, dir)
}

/// Where the leader's desk listens, when it leads.
async fn desk(account: &Account) -> Result<SocketAddr> {
    let leases: Api<Lease> = Api::namespaced(account.client().await?, &account.namespace);
    let started = Instant::now();
    while started.elapsed() < TIMEOUT {
        let lease = leases.get_opt("berth-controller").await?;
        let notes = lease.and_then(|lease| lease.metadata.annotations);
        if let Some(address) = notes.and_then(|mut notes| notes.remove("berth.dev/desk-address")) {
            return address.parse().context("the leader's address");
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    bail!("the controller does not lead")
}
