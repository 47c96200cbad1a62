//! Forwards a port of one network namespace to a loopback port of another. A server in a namespace then has the same
//! address for the test, for its own namespace and for every node, so that one kubeconfig fits all. And a node can have
//! it at a service's address, as kube-proxy would.
//!
//! A connection to a server that is down is accepted and closed at once, where the server's own loopback would refuse
//! it.

use std::fs::File;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

#[derive(Debug)]
pub(crate) struct Forward {
    port: u16,
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Forward {
    /// Listens in `from` (None: where the test runs), on the loopback port given or on a free one (0), and connects to
    /// the same port in `to`.
    pub fn new(from: Option<&Path>, to: &Path, port: u16) -> Result<Forward> {
        Forward::between(from, SocketAddr::from(([127, 0, 0, 1], port)), to, None)
    }

    /// Listens in `from` on any address of it, and connects to a loopback port in `to`.
    pub fn service(from: &Path, at: SocketAddr, to: &Path, port: u16) -> Result<Forward> {
        Forward::between(Some(from), at, to, Some(port))
    }

    fn between(
        from: Option<&Path>,
        at: SocketAddr,
        to: &Path,
        target: Option<u16>,
    ) -> Result<Forward> {
        let stop = Arc::new(AtomicBool::new(false));
        let (from, to) = (from.map(Path::to_owned), to.to_owned());
        let (tell, told) = std::sync::mpsc::channel();
        let stopped = stop.clone();
        // A separate thread: it changes its namespace for good, and sockets belong to the namespace they were created
        // in.
        let thread = thread::Builder::new()
            .name("testkit-forward".into())
            .spawn(move || match open(from, at, &to) {
                Ok((listener, port)) => {
                    let _ = tell.send(Ok(port));
                    serve(&listener, target.unwrap_or(port), &stopped);
                }
                Err(error) => {
                    let _ = tell.send(Err(error));
                }
            })
            .context("start a forwarding thread")?;
        let port = told.recv().context("the forwarding thread is gone")??;
        Ok(Forward {
            port,
            stop,
            thread: Some(thread),
        })
    }

    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn open(from: Option<PathBuf>, at: SocketAddr, to: &Path) -> Result<(TcpListener, u16)> {
    if let Some(from) = from {
        enter(&from)?;
    }
    let listener = TcpListener::bind(at).with_context(|| format!("listen on {at}"))?;
    let port = listener.local_addr().context("port of a listener")?.port();
    // Non-blocking, to check `stop` regularly.
    listener
        .set_nonblocking(true)
        .context("set up a listener")?;
    enter(to)?;
    Ok((listener, port))
}

/// Moves the calling thread into the network namespace.
pub(crate) fn enter(netns: &Path) -> Result<()> {
    let file = File::open(netns).with_context(|| format!("open {}", netns.display()))?;
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
        .with_context(|| format!("enter {}", netns.display()))
}

fn serve(listener: &TcpListener, port: u16, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok((here, _)) => {
                if let Ok(there) = TcpStream::connect(("127.0.0.1", port)) {
                    let _ = join(here, there);
                }
            }
            Err(_) => thread::sleep(Duration::from_millis(5)),
        }
    }
}

fn join(here: TcpStream, there: TcpStream) -> io::Result<()> {
    here.set_nonblocking(false)?;
    for stream in [&here, &there] {
        stream.set_nodelay(true)?;
    }
    for (mut read, mut write) in [(here.try_clone()?, there.try_clone()?), (there, here)] {
        thread::spawn(move || {
            let _ = io::copy(&mut read, &mut write);
            let _ = write.shutdown(Shutdown::Write);
        });
    }
    Ok(())
}
