//! A client that follows its kubeconfig: what was rotated (token, CA, client certificate, in the file or in files that it
//! names) is used from the next request on.
//!
//! Why not a new client, and with it a new store? Two stores of one process would each have the node's slices, and
//! each its own lock around them: what one has passed on, the other gives (I1, I8).
//!
//! Another server or namespace is not followed: what this process keeps of the cluster's pools would be taken for the other
//! one's. It is logged, and the old credentials stay in use, as they do while the file can't be read.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hyper::{Request, Uri};
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tokio::sync::Mutex;

use super::connect::{Connect, Connection, unreadable};
use crate::LedgerError;

/// A kubeconfig and the client that was made of it.
struct Followed {
    path: PathBuf,
    connect: Connect,
    state: Mutex<State>,
}

struct State {
    client: Client,
    home: Home,
    /// What the credentials are in, and how these files looked when they were read last.
    files: Vec<PathBuf>,
    seen: Vec<Option<Stamp>>,
}

/// Which cluster it is.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Home {
    server: Uri,
    namespace: Option<String>,
}

/// What tells a file from the one that it was. The time of its last change in any respect: a mode too decides whether it
/// can be read.
type Stamp = [i128; 4];

/// What a kubeconfig says.
struct Read {
    config: Config,
    home: Home,
    files: Vec<PathBuf>,
}

/// A connection by the kubeconfig at `path`, now and as it will be.
pub(super) async fn open(connect: &Connect, path: &Path) -> Result<Connection, LedgerError> {
    // Before the files are read: what changes meanwhile is read again.
    let stamp = stamp(path);
    let read = read(path).await?;
    let mut seen = stamps(&read.files);
    if let Some(first) = seen.first_mut() {
        *first = stamp;
    }
    let made = connect.open_with(read.config, read.home.namespace.clone())?;
    let namespace = made.client.default_namespace().to_owned();
    let followed = Arc::new(Followed {
        path: path.to_owned(),
        connect: connect.clone(),
        state: Mutex::new(State {
            client: made.client,
            home: read.home,
            files: read.files,
            seen,
        }),
    });
    let service = tower::service_fn(move |request: Request<Body>| {
        let followed = Arc::clone(&followed);
        async move { followed.client().await.send(request).await }
    });
    Ok(Connection {
        client: Client::new(service, namespace),
        namespace: made.namespace,
        timeout: made.timeout,
    })
}

impl Followed {
    /// The client of the credentials as they are now.
    async fn client(&self) -> Client {
        let mut state = self.state.lock().await;
        let now = stamps(&state.files);
        if now != state.seen {
            // Tried once for each change: what can't be used now can't be used later, unless it changes.
            state.seen = now;
            match self.renewed(&state.home).await {
                Ok((client, files)) => {
                    tracing::info!(kubeconfig = %self.path.display(), "credentials were read again");
                    state.client = client;
                    if files != state.files {
                        state.seen = stamps(&files);
                        state.files = files;
                    }
                }
                Err(why) => {
                    tracing::error!(kubeconfig = %self.path.display(), "it was changed, and is used as it was before: {why}");
                }
            }
        }
        state.client.clone()
    }

    async fn renewed(&self, home: &Home) -> Result<(Client, Vec<PathBuf>), String> {
        let read = read(&self.path).await.map_err(|error| error.to_string())?;
        if read.home != *home {
            return Err(format!(
                "it names {}, namespace {}, and this process began with {}, namespace {}; restart it to go there",
                read.home.server,
                read.home.namespace.as_deref().unwrap_or("none"),
                home.server,
                home.namespace.as_deref().unwrap_or("none"),
            ));
        }
        let made = self.connect.open_with(read.config, read.home.namespace);
        let made = made.map_err(|error| error.to_string())?;
        Ok((made.client, read.files))
    }
}

async fn read(path: &Path) -> Result<Read, LedgerError> {
    let name = format!("kubeconfig {}", path.display());
    let file = Kubeconfig::read_from(path).map_err(|error| unreadable(&name, &error))?;
    let context = file.current_context.clone().unwrap_or_default();
    let namespace = file
        .contexts
        .iter()
        .find(|named| named.name == context)
        .and_then(|named| named.context.as_ref()?.namespace.clone())
        .filter(|namespace| !namespace.is_empty());
    let files = files(path, &file);
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
        .await
        .map_err(|error| unreadable(&name, &error))?;
    let server = config.cluster_url.clone();
    Ok(Read {
        config,
        home: Home { server, namespace },
        files,
    })
}

/// The kubeconfig, and the files that it names and nobody else reads again (a `tokenFile` is read every minute).
fn files(path: &Path, file: &Kubeconfig) -> Vec<PathBuf> {
    let authorities = file
        .clusters
        .iter()
        .filter_map(|named| named.cluster.as_ref()?.certificate_authority.clone());
    let certificates = file.auth_infos.iter().flat_map(|named| {
        let user = named.auth_info.as_ref();
        let certificate = user.and_then(|user| user.client_certificate.clone());
        let key = user.and_then(|user| user.client_key.clone());
        [certificate, key]
    });
    let named = authorities.chain(certificates.flatten()).map(PathBuf::from);
    [path.to_owned()].into_iter().chain(named).collect()
}

fn stamps(files: &[PathBuf]) -> Vec<Option<Stamp>> {
    files.iter().map(|file| stamp(file)).collect()
}

fn stamp(file: &Path) -> Option<Stamp> {
    let meta = fs::metadata(file).ok()?;
    let changed = i128::from(meta.ctime()) * 1_000_000_000 + i128::from(meta.ctime_nsec());
    Some([
        meta.dev().into(),
        meta.ino().into(),
        meta.len().into(),
        changed,
    ])
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// A server that answers every request with the credentials it came with.
    async fn mirror() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(stream.read_u8().await.unwrap());
                }
                let head = String::from_utf8(head).unwrap();
                let line = head.lines().find(|line| line.starts_with("authorization"));
                let told = line.unwrap_or("nothing");
                let answer = format!(
                    "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{told}",
                    told.len()
                );
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        server
    }

    fn mk_kubeconfig(server: &str, user: &str) -> String {
        format!(
            "{{apiVersion: v1, kind: Config, current-context: c,
               clusters: [{{name: k, cluster: {{server: '{server}'}}}}],
               users: [{{name: u, user: {{{user}}}}}],
               contexts: [{{name: c, context: {{cluster: k, user: u}}}}]}}"
        )
    }

    #[tokio::test]
    async fn a_token_that_was_rotated_is_used_and_another_server_is_not() {
        let (ours, other) = (mirror().await, "http://127.0.0.1:1");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kubeconfig");
        // As `berth install` writes it: whole, another file each time.
        let write = |text: &str| {
            fs::write(dir.path().join("new"), text).unwrap();
            fs::rename(dir.path().join("new"), &path).unwrap();
        };
        write(&mk_kubeconfig(&ours, "token: one"));
        let connect = Connect {
            kubeconfig: Some(path.clone()),
            ..Connect::default()
        };
        let client = connect.open().await.unwrap().client;
        let told = async || {
            let request = Request::get("/version").body(Vec::new()).unwrap();
            client.request_text(request).await.unwrap()
        };
        assert_eq!(told().await, "authorization: Bearer one");
        write(&mk_kubeconfig(&ours, "token: two"));
        assert_eq!(told().await, "authorization: Bearer two");
        write("{");
        assert_eq!(told().await, "authorization: Bearer two");
        write(&mk_kubeconfig(other, "token: three"));
        assert_eq!(told().await, "authorization: Bearer two");
        fs::remove_file(&path).unwrap();
        assert_eq!(told().await, "authorization: Bearer two");
        write(&mk_kubeconfig(&ours, "token: four"));
        assert_eq!(told().await, "authorization: Bearer four");
    }

    #[test]
    fn what_a_kubeconfig_names_is_followed_too() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kubeconfig");
        let user = "client-certificate: /pki/client.pem, client-key: key.pem, tokenFile: token";
        let text = mk_kubeconfig("https://127.0.0.1:1", user);
        let text = text.replace(
            "server: 'https",
            "certificate-authority: ca.crt, server: 'https",
        );
        fs::write(&path, text).unwrap();
        let file = Kubeconfig::read_from(&path).unwrap();
        let at = |name: &str| dir.path().join(name);
        let named = [
            at("kubeconfig"),
            at("ca.crt"),
            "/pki/client.pem".into(),
            at("key.pem"),
        ];
        assert_eq!(files(&path, &file), named);
    }
}
