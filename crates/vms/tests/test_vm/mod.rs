//! A VM for tests: a real SSH and SFTP server in the test's process, on an address of its own on loopback, whose
//! files are a directory and whose reboot closes the port for a while. It has the behaviour that the pool relies on,
//! including faults. Does not check SSH itself: one test uses OpenSSH for that.
#![allow(dead_code)]

mod files;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use berth_vms::vm::{Access, HostKeyRule};
use russh::keys::{Algorithm, PrivateKey, PublicKey};
use russh::server::{Auth, Msg, Session, VerifiedPublicKey};
use russh::{Channel, ChannelId};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};

pub use files::Served;

/// What the VM does when its reboot file appears.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnReboot {
    /// Down for this long, then up.
    DownFor(Duration),
    /// Its watcher is broken.
    Ignore,
    /// Its watcher is broken, and the network is away for this long.
    Blip(Duration),
    /// Goes down and stays there.
    Die,
}

/// Keys and directories that the VMs of one test share.
pub struct Lab {
    pub dir: tempfile::TempDir,
    pub client: PrivateKey,
    pub host: PrivateKey,
    pub port: u16,
}

impl Lab {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (client, host) = (mk_key(), mk_key());
        let pem = client.to_openssh(Default::default()).unwrap();
        std::fs::write(dir.path().join("id"), pem.as_bytes()).unwrap();
        std::fs::create_dir(dir.path().join("allowed")).unwrap();
        // Every VM of a test has the same port on an address of its own, as real ones have.
        let port = std::net::TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let lab = Self {
            dir,
            client,
            host,
            port,
        };
        lab.allow("image", lab.host.public_key());
        lab
    }

    pub fn allow(&self, name: &str, key: &PublicKey) {
        let path = self.allow_list().join(format!("{name}.pub"));
        std::fs::write(path, key.to_openssh().unwrap()).unwrap();
    }

    pub fn allow_list(&self) -> PathBuf {
        self.dir.path().join("allowed")
    }

    pub fn private_key(&self) -> PathBuf {
        self.dir.path().join("id")
    }

    pub fn access(&self) -> Access {
        Access {
            user: "peerpod".into(),
            private_key: self.private_key(),
            port: self.port,
            timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(2),
            host_keys: HostKeyRule::AllowList(self.allow_list()),
        }
    }

    /// 127.0.0.`n`: every address of 127/8 is this machine's.
    pub fn ip(&self, n: u8) -> IpAddr {
        Ipv4Addr::new(127, 0, 0, n).into()
    }

    pub async fn start(&self, n: u8, on_reboot: OnReboot) -> TestVm {
        let root = self.dir.path().join(format!("vm-{n}"));
        std::fs::create_dir_all(root.join("cidata")).unwrap();
        TestVm::start(self, self.ip(n), root, on_reboot).await
    }
}

pub fn mk_key() -> PrivateKey {
    PrivateKey::random(&mut russh::keys::key::safe_rng(), Algorithm::Ed25519).unwrap()
}

/// What a test may observe or switch while the VM runs.
#[derive(Default)]
pub struct Switches {
    pub boots: AtomicUsize,
    pub logins: AtomicUsize,
    pub no_posix_rename: AtomicBool,
    /// Its `cidata` is a disk and no tmpfs.
    pub keeps_files: AtomicBool,
    /// It accepts connections and says nothing, until this ends.
    pub hangs: AtomicBool,
    /// Cuts the connection at this many bytes of an upload, 0 for never.
    pub cut_upload_at: AtomicUsize,
    pub reboot: Notify,
}

pub struct TestVm {
    pub ip: IpAddr,
    pub root: PathBuf,
    pub switches: Arc<Switches>,
    task: JoinHandle<()>,
}

impl TestVm {
    async fn start(lab: &Lab, ip: IpAddr, root: PathBuf, on_reboot: OnReboot) -> Self {
        let switches = Arc::new(Switches::default());
        let server = Server {
            at: SocketAddr::new(ip, lab.port),
            config: Arc::new(russh::server::Config {
                keys: vec![lab.host.clone()],
                auth_rejection_time: Duration::ZERO,
                auth_rejection_time_initial: Some(Duration::ZERO),
                ..Default::default()
            }),
            client: lab.client.public_key().clone(),
            root: root.clone(),
            switches: switches.clone(),
        };
        let listener = TcpListener::bind(server.at).await.unwrap();
        let task = tokio::spawn(server.live(listener, on_reboot));
        Self {
            ip,
            root,
            switches,
            task,
        }
    }

    pub fn boots(&self) -> usize {
        self.switches.boots.load(Ordering::SeqCst)
    }

    pub fn file(&self, path: &str) -> Option<Vec<u8>> {
        std::fs::read(self.root.join(path)).ok()
    }

    /// Power off: the port is closed when this returns.
    pub async fn die(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}

struct Server {
    at: SocketAddr,
    config: Arc<russh::server::Config>,
    client: PublicKey,
    root: PathBuf,
    switches: Arc<Switches>,
}

impl Server {
    /// One iteration of the loop is one life of the VM, from boot to reboot.
    async fn live(self, mut listener: TcpListener, on_reboot: OnReboot) {
        let mut boots = true;
        loop {
            self.switches
                .boots
                .fetch_add(usize::from(boots), Ordering::SeqCst);
            let mut sessions = JoinSet::new();
            loop {
                tokio::select! {
                    Ok((stream, _)) = listener.accept() => {
                        let guest = Guest {
                            client: self.client.clone(),
                            root: self.root.clone(),
                            switches: self.switches.clone(),
                            channel: None,
                        };
                        let (config, switches) = (self.config.clone(), self.switches.clone());
                        sessions.spawn(async move {
                            while switches.hangs.load(Ordering::SeqCst) {
                                tokio::time::sleep(Duration::from_millis(5)).await;
                            }
                            if let Ok(session) = russh::server::run_stream(config, stream, guest).await {
                                let _ = session.await;
                            }
                        });
                    }
                    _ = self.switches.reboot.notified(), if on_reboot != OnReboot::Ignore => break,
                }
            }
            drop(listener);
            sessions.shutdown().await;
            boots = !matches!(on_reboot, OnReboot::Blip(_));
            if boots && !self.switches.keeps_files.load(Ordering::SeqCst) {
                self.forget_files();
            }
            match on_reboot {
                OnReboot::DownFor(time) | OnReboot::Blip(time) => tokio::time::sleep(time).await,
                OnReboot::Ignore | OnReboot::Die => return,
            }
            listener = TcpListener::bind(self.at).await.unwrap();
        }
    }
}

impl Server {
    /// What a tmpfs does in a reboot.
    fn forget_files(&self) {
        for file in std::fs::read_dir(self.root.join("cidata"))
            .into_iter()
            .flatten()
        {
            std::fs::remove_file(file.unwrap().path()).unwrap();
        }
    }
}

/// One connection.
struct Guest {
    client: PublicKey,
    root: PathBuf,
    switches: Arc<Switches>,
    channel: Option<Channel<Msg>>,
}

impl russh::server::Handler for Guest {
    type Error = russh::Error;

    async fn auth_publickey(
        &mut self,
        user: &str,
        key: VerifiedPublicKey<'_>,
    ) -> Result<Auth, russh::Error> {
        if user == "peerpod" && key.public_key.key_data() == self.client.key_data() {
            self.switches.logins.fetch_add(1, Ordering::SeqCst);
            return Ok(Auth::Accept);
        }
        Ok(Auth::reject())
    }

    async fn channel_open_session(
        &mut self,
        channel: Channel<Msg>,
        reply: russh::server::ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), russh::Error> {
        self.channel = Some(channel);
        reply.accept().await;
        Ok(())
    }

    async fn subsystem_request(
        &mut self,
        id: ChannelId,
        name: &str,
        session: &mut Session,
    ) -> Result<(), russh::Error> {
        match self.channel.take() {
            Some(channel) if name == "sftp" => {
                session.channel_success(id)?;
                let served = Served::new(&self.root, self.switches.clone());
                russh_sftp::server::run(channel.into_stream(), served).await;
            }
            _ => session.channel_failure(id)?,
        }
        Ok(())
    }
}

/// Whether a path is what the VM's watcher waits for.
fn is_reboot_file(path: &Path) -> bool {
    path.ends_with("cidata/reboot")
}
