//! A client that follows its credentials, a kubeconfig or the pod's service account: what was rotated (token, CA, client
//! certificate, in the file or in files that it names) is used from the next request on.
//!
//! Why not a new client, and with it a new store? Two stores of one process would each have the node's slices, and
//! each its own lock around them: what one has transferred, the other would allocate (I1, I8).
//!
//! Another server or namespace is not followed: what this process keeps of the cluster's pools would be taken for the other
//! one's. It is logged, and the old credentials stay in use, as they do while the file can't be read.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hyper::{Request, Uri};
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use parking_lot::{Mutex, MutexGuard};

use crate::KubeError;
use crate::connect::{Connect, Connection, Programs};
use crate::files::{self, CREDENTIALS_LIMIT, Owner};

/// Credentials and the client that was made of them.
struct Followed {
    source: Source,
    connect: Connect,
    state: Mutex<State>,
    /// One renewal at a time.
    renewing: tokio::sync::Mutex<()>,
}

/// Where credentials are.
#[derive(Clone, Debug)]
pub(super) enum Source {
    Kubeconfig {
        path: PathBuf,
        programs: Programs,
    },
    /// Of the pod that this process runs in. The client reads its files again too, but only once a minute.
    ServiceAccount,
}

/// Where the kubelet puts the credentials of a pod's service account.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

impl Source {
    /// The file whose change means that all is to be read again.
    fn first(&self) -> PathBuf {
        match self {
            Source::Kubeconfig { path, .. } => path.clone(),
            Source::ServiceAccount => Path::new(SERVICE_ACCOUNT).join("token"),
        }
    }

    async fn read(&self) -> Result<Read, KubeError> {
        match self {
            Source::Kubeconfig { path, programs } => read(path, *programs).await,
            Source::ServiceAccount => {
                let name = "the service account of this pod".to_owned();
                blocking(name, || read_service_account(Path::new(SERVICE_ACCOUNT))).await
            }
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Kubeconfig { path, .. } => write!(f, "kubeconfig {}", path.display()),
            Source::ServiceAccount => f.write_str(SERVICE_ACCOUNT),
        }
    }
}

struct State {
    client: Client,
    home: Home,
    /// What the credentials are in, and the stamps of these files at the last read.
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

/// A connection by these credentials, now and as they will be.
pub(super) async fn open(connect: &Connect, source: Source) -> Result<Connection, KubeError> {
    // Before the files are read: what changes meanwhile is read again.
    let before = stamps(&[source.first()]).await;
    let read = source.read().await?;
    let mut seen = stamps(&read.files).await;
    if let (Some(first), Some(stamp)) = (seen.first_mut(), before.first()) {
        *first = *stamp;
    }
    let made = connect.open_with(read.config, read.home.namespace.clone())?;
    let namespace = made.client.default_namespace().to_owned();
    let followed = Arc::new(Followed {
        source,
        connect: connect.clone(),
        state: Mutex::new(State {
            client: made.client,
            home: read.home,
            files: read.files,
            seen,
        }),
        renewing: tokio::sync::Mutex::default(),
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
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// The client of the credentials as they are now.
    async fn client(self: &Arc<Self>) -> Client {
        let (client, files, seen) = {
            let state = self.state();
            (
                state.client.clone(),
                state.files.clone(),
                state.seen.clone(),
            )
        };
        if stamps(&files).await == seen {
            return client;
        }
        // In a task of its own. A request can be suspended for as long as its caller likes (a watch that is read now and
        // then): holding a lock meanwhile, it would stop all others.
        let followed = Arc::clone(self);
        let renewed = tokio::spawn(async move { followed.renew().await });
        if let Err(error) = renewed.await {
            tracing::error!(from = %self.source, "the changed credentials can't be used, the old ones stay in use; correct the file: {error}");
        }
        self.state().client.clone()
    }

    /// Reads changed credentials again, once for each change: what can't be used now can't be used later, unless it changes.
    async fn renew(&self) {
        let _one = self.renewing.lock().await;
        let (home, files, seen) = {
            let state = self.state();
            (state.home.clone(), state.files.clone(), state.seen.clone())
        };
        let now = stamps(&files).await;
        if now == seen {
            return;
        }
        match self.renewed(&home).await {
            Ok((client, named)) => {
                tracing::info!(from = %self.source, "credentials were read again");
                let now = if named == files {
                    now
                } else {
                    stamps(&named).await
                };
                let mut state = self.state();
                (state.client, state.files, state.seen) = (client, named, now);
            }
            Err(why) => {
                tracing::error!(from = %self.source, "the changed credentials can't be used, the old ones stay in use; correct the file: {why}");
                self.state().seen = now;
            }
        }
    }

    async fn renewed(&self, home: &Home) -> Result<(Client, Vec<PathBuf>), String> {
        let read = self
            .source
            .read()
            .await
            .map_err(|error| error.to_string())?;
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

/// Reads on a blocking thread: a file on a filesystem that hangs delays no other network.
async fn read(path: &Path, programs: Programs) -> Result<Read, KubeError> {
    let name = format!("kubeconfig {}", path.display());
    let path = path.to_owned();
    let runtime = tokio::runtime::Handle::current();
    let read = move || {
        let file = parse(&path, programs)?;
        let files = named_files(&path, &file);
        let namespace = namespace(&file);
        let options = KubeConfigOptions::default();
        let config = runtime.block_on(Config::from_custom_kubeconfig(file, &options));
        let config = config.map_err(|error| crate::chain(&error))?;
        let server = config.cluster_url.clone();
        Ok(Read {
            config,
            home: Home { server, namespace },
            files,
        })
    };
    blocking(name, read).await
}

async fn blocking(
    target: String,
    read: impl FnOnce() -> Result<Read, String> + Send + 'static,
) -> Result<Read, KubeError> {
    let why = match tokio::task::spawn_blocking(read).await {
        Ok(Ok(read)) => return Ok(read),
        Ok(Err(why)) => why,
        Err(error) => error.to_string(),
    };
    Err(KubeError::Unreadable { target, why })
}

fn read_service_account(directory: &Path) -> Result<Read, String> {
    let config = Config::incluster().map_err(|error| crate::chain(&error))?;
    Ok(Read {
        home: Home {
            server: config.cluster_url.clone(),
            namespace: Some(config.default_namespace.clone()),
        },
        files: ["token", "ca.crt"].map(|name| directory.join(name)).into(),
        config,
    })
}

/// A kubeconfig that this process may use: it and the files that it names are regular files of a bounded size, and no program
/// is run for credentials.
fn parse(path: &Path, programs: Programs) -> Result<Kubeconfig, String> {
    let readable = |file: &Path| {
        files::is_readable(file, CREDENTIALS_LIMIT, Owner::Anybody)
            .map_err(|error| format!("{}: {error}", file.display()))
    };
    readable(path)?;
    let file = Kubeconfig::read_from(path).map_err(|error| crate::chain(&error))?;
    for named in named_files(path, &file).iter().chain(&token_files(&file)) {
        readable(named)?;
    }
    match credential_program(&file) {
        Some(key) if programs == Programs::Refused => Err(format!(
            "its user has {key}, which runs a program for credentials, and that is refused; use a token, a tokenFile or a client \
             certificate"
        )),
        _ => Ok(file),
    }
}

/// The key by which the user of the current context asks for a program to be run.
fn credential_program(file: &Kubeconfig) -> Option<&'static str> {
    let context = file.current_context.as_deref().unwrap_or_default();
    let contexts = file.contexts.iter().filter(|named| named.name == context);
    let users = contexts.filter_map(|named| named.context.as_ref()?.user.as_deref());
    let mut keys = users.flat_map(|user| {
        let auths = file
            .auth_infos
            .iter()
            .filter(move |named| named.name == user);
        auths.filter_map(|named| {
            let auth = named.auth_info.as_ref()?;
            match (&auth.exec, &auth.auth_provider) {
                (Some(_), _) => Some("exec"),
                (None, Some(_)) => Some("auth-provider"),
                (None, None) => None,
            }
        })
    });
    keys.next()
}

fn namespace(file: &Kubeconfig) -> Option<String> {
    let context = file.current_context.as_deref().unwrap_or_default();
    file.contexts
        .iter()
        .find(|named| named.name == context)
        .and_then(|named| named.context.as_ref()?.namespace.clone())
        .filter(|namespace| !namespace.is_empty())
}

fn token_files(file: &Kubeconfig) -> Vec<PathBuf> {
    let users = file.auth_infos.iter();
    let named = users.filter_map(|named| named.auth_info.as_ref()?.token_file.clone());
    named.map(PathBuf::from).collect()
}

/// The kubeconfig, and the files that it names and no other code reads again (a `tokenFile` is read every minute).
fn named_files(path: &Path, file: &Kubeconfig) -> Vec<PathBuf> {
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

/// On a blocking thread, as [`read`].
async fn stamps(files: &[PathBuf]) -> Vec<Option<Stamp>> {
    let files = files.to_vec();
    let stamps = move || files.iter().map(|file| stamp(file)).collect();
    tokio::task::spawn_blocking(stamps)
        .await
        .unwrap_or_default()
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
    use std::time::Duration;

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
                // Each for itself: a client may open one and send nothing.
                tokio::spawn(async move {
                    let mut head = Vec::new();
                    while !head.ends_with(b"\r\n\r\n") {
                        let Ok(byte) = stream.read_u8().await else {
                            return;
                        };
                        head.push(byte);
                    }
                    let head = String::from_utf8(head).unwrap();
                    let line = head.lines().find(|line| line.starts_with("authorization"));
                    let answer = line.unwrap_or("nothing");
                    let answer = format!(
                        "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{answer}",
                        answer.len()
                    );
                    stream.write_all(answer.as_bytes()).await.unwrap();
                });
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
        let answer = async || {
            let request = Request::get("/version").body(Vec::new()).unwrap();
            client.request_text(request).await.unwrap()
        };
        assert_eq!(answer().await, "authorization: Bearer one");
        write(&mk_kubeconfig(&ours, "token: two"));
        assert_eq!(answer().await, "authorization: Bearer two");
        write("{");
        assert_eq!(answer().await, "authorization: Bearer two");
        write(&mk_kubeconfig(other, "token: three"));
        assert_eq!(answer().await, "authorization: Bearer two");
        fs::remove_file(&path).unwrap();
        assert_eq!(answer().await, "authorization: Bearer two");
        write(&mk_kubeconfig(&ours, "token: four"));
        assert_eq!(answer().await, "authorization: Bearer four");
    }

    /// A watch begins a request and is not read any further: the other requests of its client are sent all the same.
    #[tokio::test]
    async fn an_abandoned_request_delays_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kubeconfig");
        let server = mirror().await;
        fs::write(&path, mk_kubeconfig(&server, "token: one")).unwrap();
        let connect = Connect {
            kubeconfig: Some(path),
            ..Connect::default()
        };
        let client = connect.open().await.unwrap().client;
        let request = || Request::get("/").body(Body::empty()).unwrap();
        let mut begun: Vec<_> = (0..6).map(|_| Box::pin(client.send(request()))).collect();
        for (polls, request) in begun.iter_mut().enumerate() {
            for _ in 0..=polls {
                let _ = futures::poll!(request.as_mut());
                tokio::task::yield_now().await;
            }
        }
        let next = tokio::time::timeout(Duration::from_secs(20), client.send(request()));
        assert!(next.await.is_ok_and(|answer| answer.is_ok()));
    }

    async fn refused(dir: &Path, text: String) -> String {
        let path = dir.join("refused");
        fs::write(&path, text).unwrap();
        let connect = Connect {
            kubeconfig: Some(path),
            ..Connect::default()
        };
        connect.open().await.unwrap_err().to_string()
    }

    #[tokio::test]
    async fn no_program_is_run_for_credentials() {
        let dir = tempfile::tempdir().unwrap();
        let proof = dir.path().join("proof");
        let exec = format!(
            "exec: {{apiVersion: client.authentication.k8s.io/v1, command: /bin/touch, args: ['{}'], interactiveMode: Never}}",
            proof.display()
        );
        let provider = "auth-provider: {name: gcp, config: {cmd-path: /bin/true}}";
        for (user, key) in [(exec.as_str(), "exec"), (provider, "auth-provider")] {
            let error = refused(dir.path(), mk_kubeconfig("http://127.0.0.1:1", user)).await;
            assert!(error.contains(key) && error.contains("refused"), "{error}");
        }
        assert!(!proof.exists());
    }

    /// Opening a FIFO would block.
    #[tokio::test]
    async fn a_kubeconfig_and_what_it_names_are_regular_files() {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR, 0).unwrap();
        for user in ["tokenFile: fifo", "token: t, client-certificate: fifo"] {
            let text = mk_kubeconfig("https://127.0.0.1:1", user);
            let error = refused(dir.path(), text).await;
            assert!(error.contains("regular file"), "{error}");
        }
        for path in [fifo.as_path(), Path::new("/dev/zero")] {
            let connect = Connect {
                kubeconfig: Some(path.to_owned()),
                ..Connect::default()
            };
            let error = connect.open().await.unwrap_err().to_string();
            assert!(error.contains("regular file"), "{error}");
        }
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
        assert_eq!(named_files(&path, &file), named);
    }
}
