//! The agent's side: finds the leader, asks it, and leaves it alone for a while when it fails.
//!
//! A leader that does not answer costs one request its time limit, and the others nothing: until the pause is over
//! they are served by their own desks at once. A leader that refuses what one kind of pool asks for (it is older than the
//! kind, or the right is missing) is left alone with that kind, and asked for the others.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use axum::body::Bytes;
use axum::http::{Method, Request as Http, StatusCode, header};
use berth_api::slices::CONTROLLER_LEASE;
use berth_core::{Answer, Request};
use berth_desk::{LeaderAway, LeaderDesk};
use berth_ledger::{PoolKey, chain};
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use parking_lot::Mutex;
use rustls::pki_types::ServerName;

use crate::answers::fault;
use crate::tls::{NAME, trusting};
use crate::wire::{Batch, MAX_BODY, Replies, path};
use crate::{Endpoint, PoolKind};

/// What requests to the leader say about their client.
const USER_AGENT: &str = concat!("berth/", env!("CARGO_PKG_VERSION"));

/// How an agent asks the leader.
#[derive(Clone, Debug)]
pub struct LeaderSettings {
    /// The node that asks.
    pub node: String,
    /// The Lease that the leader holds.
    pub lease: String,
    /// A token for the leader's desk, rotated by the kubelet.
    pub token_file: PathBuf,
    /// How long a connection may take.
    pub connect: Duration,
    /// How long a leader that failed is left alone.
    pub pause: Duration,
    /// How long no leader is searched after none was found.
    pub search_pause: Duration,
    /// How long the read of the leader's Lease may take. Without the leader this node commits through the same API
    /// server, so it gains nothing by giving up early.
    pub lease_read: Duration,
    /// The address that connections come from; the system chooses one if there is none.
    pub source: Option<IpAddr>,
}

impl LeaderSettings {
    pub fn new(node: impl Into<String>, token_file: PathBuf) -> LeaderSettings {
        LeaderSettings {
            node: node.into(),
            lease: CONTROLLER_LEASE.to_owned(),
            token_file,
            connect: Duration::from_secs(1),
            pause: Duration::from_secs(5),
            search_pause: Duration::from_secs(2),
            lease_read: Duration::from_secs(5),
            source: None,
        }
    }
}

type Https = HttpClient<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// The leader, as far as this agent knows it.
pub struct Leader {
    leases: Api<Lease>,
    settings: LeaderSettings,
    state: Mutex<State>,
    /// Kinds of pools that it refused, by name: until when, and why.
    refused: Mutex<BTreeMap<String, (Instant, String)>>,
}

#[derive(Clone)]
enum State {
    /// No leader was searched yet.
    Unknown,
    Known(Arc<Known>),
    /// Not to be asked until then.
    Away(Instant, String),
}

struct Known {
    endpoint: Endpoint,
    https: Https,
}

impl fmt::Debug for Leader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leader")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl Leader {
    /// No leader is searched before the first request.
    pub fn new(client: Client, namespace: &str, settings: LeaderSettings) -> Leader {
        Leader {
            leases: Api::namespaced(client, namespace),
            settings,
            state: Mutex::new(State::Unknown),
            refused: Mutex::default(),
        }
    }

    /// The same leader, asked for pools of another kind than whereabouts'.
    pub fn of_kind(self: &Arc<Self>, kind: PoolKind) -> KindDesk {
        KindDesk {
            leader: Arc::clone(self),
            kind,
        }
    }

    /// Why nothing of that kind is asked now.
    fn refusal(&self, kind: &str) -> Option<String> {
        let refused = self.refused.lock();
        let (until, why) = refused.get(kind)?;
        (Instant::now() < *until).then(|| why.clone())
    }

    fn refuse(&self, kind: String, why: String) {
        let mut refused = self.refused.lock();
        refused.insert(kind, (Instant::now() + self.settings.pause, why));
    }

    async fn find(&self) -> Result<Arc<Known>, LeaderAway> {
        let state = {
            let state = self.state.lock();
            state.clone()
        };
        match state {
            State::Known(known) => return Ok(known),
            State::Away(until, why) if Instant::now() < until => {
                return Err(LeaderAway::NotReceived(why));
            }
            State::Away(..) | State::Unknown => {}
        }
        let read = tokio::time::timeout(
            self.settings.lease_read,
            self.leases.get_opt(&self.settings.lease),
        );
        let lease = match read.await {
            Ok(Ok(lease)) => lease,
            Ok(Err(error)) => return Err(self.away(self.settings.search_pause, error.to_string())),
            Err(_) => {
                return Err(self.away(
                    self.settings.search_pause,
                    "the API server does not answer".to_owned(),
                ));
            }
        };
        let endpoint = lease.and_then(|lease| Endpoint::read(&lease, Timestamp::now()));
        let Some(endpoint) = endpoint else {
            let why = format!("Lease {} names no leader with a desk", self.settings.lease);
            return Err(self.away(self.settings.search_pause, why));
        };
        let https = match self.connector(&endpoint) {
            Ok(https) => https,
            Err(why) => return Err(self.away(self.settings.pause, why)),
        };
        tracing::info!(address = endpoint.address, "the leader's desk is asked");
        let known = Arc::new(Known { endpoint, https });
        self.set(State::Known(Arc::clone(&known)));
        Ok(known)
    }

    fn connector(&self, endpoint: &Endpoint) -> Result<Https, String> {
        let config = trusting(endpoint.certificate.clone()).map_err(|error| error.to_string())?;
        let name = ServerName::try_from(NAME).map_err(|error| error.to_string())?;
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_local_address(self.settings.source);
        tcp.set_connect_timeout(Some(self.settings.connect));
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(config)
            .https_only()
            .with_server_name_resolver(FixedServerNameResolver::new(name))
            .enable_http1()
            .wrap_connector(tcp);
        Ok(HttpClient::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            // Below the leader's own limit: a connection that it has just closed is not used.
            .pool_idle_timeout(Duration::from_secs(7))
            .retry_canceled_requests(false)
            .build(connector))
    }

    fn set(&self, next: State) {
        *self.state.lock() = next;
    }

    /// No request was received; the leader is not asked for a while.
    fn away(&self, pause: Duration, why: String) -> LeaderAway {
        self.set(State::Away(Instant::now() + pause, why.clone()));
        LeaderAway::NotReceived(why)
    }

    async fn ask(
        &self,
        known: &Known,
        kind: &PoolKind,
        body: Bytes,
        limit: Duration,
    ) -> Result<Replies, Unanswered> {
        let token = tokio::fs::read_to_string(&self.settings.token_file)
            .await
            .map_err(|error| {
                let file = self.settings.token_file.display();
                self.away(self.settings.pause, format!("the token {file}: {error}"))
            })?;
        let request = Http::builder()
            .method(Method::POST)
            .uri(format!("https://{}{}", known.endpoint.address, path(kind)))
            .header(header::USER_AGENT, USER_AGENT)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::AUTHORIZATION, format!("Bearer {}", token.trim()))
            .body(Full::new(body))
            .map_err(|error| self.away(self.settings.pause, error.to_string()))?;
        let answered = tokio::time::timeout(limit, async {
            let response = known.https.request(request).await.map_err(|error| {
                let why = chain(&error);
                match error.is_connect() {
                    true => LeaderAway::NotReceived(why),
                    false => LeaderAway::OutcomeUnknown(why),
                }
            })?;
            let status = response.status();
            let body = Limited::new(response.into_body(), MAX_BODY)
                .collect()
                .await
                .map_err(|error| LeaderAway::OutcomeUnknown(error.to_string()))?
                .to_bytes();
            Ok::<_, LeaderAway>((status, body))
        });
        let (status, body) = match answered.await {
            Ok(answered) => answered?,
            Err(_) => {
                let why = format!("not within {} ms", limit.as_millis());
                return Err(LeaderAway::OutcomeUnknown(why).into());
            }
        };
        if status != StatusCode::OK {
            let why = format!("{status}: {}", String::from_utf8_lossy(&body).trim());
            return Err(match status {
                StatusCode::BAD_REQUEST
                | StatusCode::FORBIDDEN
                | StatusCode::NOT_FOUND
                | StatusCode::PAYLOAD_TOO_LARGE => Unanswered::Kind(why),
                _ => LeaderAway::NotReceived(why).into(),
            });
        }
        let replies = serde_json::from_slice(&body);
        replies.map_err(|error| LeaderAway::OutcomeUnknown(error.to_string()).into())
    }
}

/// Why there are no answers.
enum Unanswered {
    /// The leader is not asked for a while.
    Leader(LeaderAway),
    /// It refuses what this kind of pool asks for; others may be served.
    Kind(String),
}

impl From<LeaderAway> for Unanswered {
    fn from(away: LeaderAway) -> Self {
        Self::Leader(away)
    }
}

impl Leader {
    async fn put_to(
        &self,
        kind: &PoolKind,
        pool: &PoolKey,
        requests: &[Request],
        limit: Duration,
    ) -> Result<Vec<Option<Answer>>, LeaderAway> {
        let name = kind.name();
        if let Some(why) = self.refusal(&name) {
            return Err(LeaderAway::NotReceived(why));
        }
        let known = self.find().await?;
        let batch = Batch {
            node: self.settings.node.clone(),
            pool: pool.clone(),
            limit_ms: u64::try_from(limit.as_millis()).unwrap_or(u64::MAX),
            requests: requests.to_vec(),
        };
        let body = serde_json::to_vec(&batch)
            .map_err(|error| LeaderAway::NotReceived(error.to_string()))?;
        let address = &known.endpoint.address;
        let away = match self.ask(&known, kind, body.into(), limit).await {
            Ok(replies) => match fault(requests, &replies.answers) {
                None => return Ok(replies.answers),
                Some(why) => {
                    tracing::error!(
                        address,
                        why,
                        "the leader's answer does not match the request; check which process holds the Lease"
                    );
                    LeaderAway::OutcomeUnknown(why)
                }
            },
            Err(Unanswered::Kind(why)) => {
                tracing::info!(
                    address,
                    kind = name,
                    why,
                    "the leader refuses pools of this kind; this node commits by itself"
                );
                self.refuse(name, why.clone());
                return Err(LeaderAway::NotReceived(why));
            }
            Err(Unanswered::Leader(away)) => away,
        };
        tracing::info!(address, %away, "the leader's desk is not asked for a while");
        self.away(self.settings.pause, away.to_string());
        Err(away)
    }
}

#[async_trait]
impl LeaderDesk for Leader {
    async fn put(
        &self,
        pool: &PoolKey,
        requests: &[Request],
        limit: Duration,
    ) -> Result<Vec<Option<Answer>>, LeaderAway> {
        self.put_to(&PoolKind::IP_POOLS, pool, requests, limit)
            .await
    }
}

/// The leader's desks for one kind of pool. Shares the connection to the leader with all other kinds.
#[derive(Clone, Debug)]
pub struct KindDesk {
    leader: Arc<Leader>,
    kind: PoolKind,
}

#[async_trait]
impl LeaderDesk for KindDesk {
    async fn put(
        &self,
        pool: &PoolKey,
        requests: &[Request],
        limit: Duration,
    ) -> Result<Vec<Option<Answer>>, LeaderAway> {
        let leader = &self.leader;
        leader.put_to(&self.kind, pool, requests, limit).await
    }
}

#[cfg(test)]
mod tests {
    use berth_core::dialect::WHEREABOUTS;
    use berth_core::{AddressRequest, Allocate, Granted, Handle, Owner, RangeSpec, Record, Space};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio::sync::mpsc;
    use tokio_rustls::TlsAcceptor;

    use super::*;
    use crate::TlsIdentity;

    /// A process that has become the leader, and grants an address of its choice.
    async fn impostor(identity: &TlsIdentity) -> (String, mpsc::UnboundedReceiver<String>) {
        let (heads, asked_with) = mpsc::unbounded_channel();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let acceptor = TlsAcceptor::from(identity.server());
        let granted = Granted {
            address: "10.96.0.10".parse().unwrap(),
            fresh: true,
        };
        let answers = vec![Some(Answer::Granted(vec![granted]))];
        let body = serde_json::to_string(&Replies { answers }).unwrap();
        let length = body.len();
        let answer = format!(
            "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
        );
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let mut stream = acceptor.accept(stream).await.unwrap();
                let mut asked = vec![0; 16 * 1024];
                let read = stream.read(&mut asked).await.unwrap_or_default();
                let head = String::from_utf8_lossy(&asked[..read]).to_lowercase();
                let _ = heads.send(head);
                stream.write_all(answer.as_bytes()).await.unwrap();
                let _ = stream.shutdown().await;
            }
        });
        (address, asked_with)
    }

    #[tokio::test]
    async fn an_address_of_the_leaders_choice_reaches_no_pod() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let identity = TlsIdentity::make().unwrap();
        let (address, mut heads) = impostor(&identity).await;
        let endpoint = Endpoint::of(address, &identity);
        let dir = tempfile::tempdir().unwrap();
        let token = dir.path().join("token");
        std::fs::write(&token, "token").unwrap();
        // Never asked: the leader is known.
        let nowhere = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        let client = Client::try_from(nowhere).unwrap();
        let leader = Leader::new(client, "ns", LeaderSettings::new("node-a", token));
        let https = leader.connector(&endpoint).unwrap();
        leader.set(State::Known(Arc::new(Known { endpoint, https })));
        let spec = RangeSpec::parse("10.60.0.0/24").unwrap();
        let space = Arc::new(Space::build(&spec, WHEREABOUTS).unwrap().0);
        let claim = Request::Allocate(Allocate {
            record: Record::new(Owner::new("ns/p", "net1"), Handle::new("c")),
            wants: vec![AddressRequest::any(space)],
        });
        let pool = PoolKey::named("10.60.0.0-24");
        let limit = Duration::from_secs(20);
        match leader.put(&pool, &[claim], limit).await {
            Err(LeaderAway::OutcomeUnknown(why)) => assert!(why.contains("10.96.0.10"), "{why}"),
            other => panic!("{other:?}"),
        }
        let head = heads.recv().await.unwrap();
        assert!(
            head.contains(&format!("user-agent: {USER_AGENT}\r\n")),
            "{head}"
        );
        let now = leader.state.lock().clone();
        assert!(
            matches!(now, State::Away(..)),
            "it is not asked for a while"
        );
    }
}
