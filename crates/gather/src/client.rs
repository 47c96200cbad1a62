//! The agent's side: finds the leader, asks it, and leaves it alone for a while when it fails.
//!
//! A leader that does not answer costs one request its patience, and the others nothing: until the pause is over
//! they are served by their own desks at once. A leader that refuses what one kind of pool asks for (it is older than the
//! kind, or the right is missing) is left alone with that kind, and asked for the others.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use axum::body::Bytes;
use axum::http::{Method, Request as Http, StatusCode, header};
use berth_api::slices::CONTROLLER_LEASE;
use berth_core::{Answer, Request};
use berth_desk::{Away, CommonDesk};
use berth_ledger::{PoolKey, chain};
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use rustls::pki_types::ServerName;

use crate::answers::fault;
use crate::identity::{NAME, trusting};
use crate::wire::{Batch, MAX_BODY, Replies, path};
use crate::{Notice, PoolKind};

/// How an agent asks the leader.
#[derive(Clone, Debug)]
pub struct GatherSettings {
    /// The node that asks.
    pub node: String,
    /// The Lease that the leader holds.
    pub lease: String,
    /// A token for the common desk, rotated by the kubelet.
    pub token_file: PathBuf,
    /// How long a connection may take.
    pub connect: Duration,
    /// How long a leader that failed is left alone.
    pub pause: Duration,
    /// How long nobody is looked for after nobody was found.
    pub look: Duration,
}

impl GatherSettings {
    pub fn new(node: impl Into<String>, token_file: PathBuf) -> GatherSettings {
        GatherSettings {
            node: node.into(),
            lease: CONTROLLER_LEASE.to_owned(),
            token_file,
            connect: Duration::from_secs(1),
            pause: Duration::from_secs(5),
            look: Duration::from_secs(2),
        }
    }
}

type Https = HttpClient<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// The leader, as far as this agent knows it.
pub struct Leader {
    leases: Api<Lease>,
    settings: GatherSettings,
    state: Mutex<State>,
    /// Kinds of pools that it refused, by name: until when, and why.
    refused: Mutex<BTreeMap<String, (Instant, String)>>,
}

#[derive(Clone)]
enum State {
    /// Nobody has been looked for.
    Unknown,
    Known(Arc<Known>),
    /// To be left alone until then.
    Away(Instant, String),
}

struct Known {
    notice: Notice,
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
    /// Nobody is looked for before the first request.
    pub fn new(client: Client, namespace: &str, settings: GatherSettings) -> Leader {
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
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let (until, why) = refused.get(kind)?;
        (Instant::now() < *until).then(|| why.clone())
    }

    fn refuse(&self, kind: String, why: String) {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        refused.insert(kind, (Instant::now() + self.settings.pause, why));
    }

    async fn find(&self) -> Result<Arc<Known>, Away> {
        let state = {
            let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.clone()
        };
        match state {
            State::Known(known) => return Ok(known),
            State::Away(until, why) if Instant::now() < until => return Err(Away::Unheard(why)),
            State::Away(..) | State::Unknown => {}
        }
        let looked = tokio::time::timeout(
            self.settings.connect,
            self.leases.get_opt(&self.settings.lease),
        );
        let lease = match looked.await {
            Ok(Ok(lease)) => lease,
            Ok(Err(error)) => return Err(self.lost(self.settings.look, error.to_string())),
            Err(_) => {
                return Err(self.lost(
                    self.settings.look,
                    "the API server does not answer".to_owned(),
                ));
            }
        };
        let notice = lease.and_then(|lease| Notice::read(&lease, Timestamp::now()));
        let Some(notice) = notice else {
            let why = format!("Lease {} names no leader with a desk", self.settings.lease);
            return Err(self.lost(self.settings.look, why));
        };
        let https = match self.connector(&notice) {
            Ok(https) => https,
            Err(why) => return Err(self.lost(self.settings.pause, why)),
        };
        tracing::info!(address = notice.address, "the common desk is asked");
        let known = Arc::new(Known { notice, https });
        self.turn(State::Known(Arc::clone(&known)));
        Ok(known)
    }

    fn connector(&self, notice: &Notice) -> Result<Https, String> {
        let config = trusting(notice.certificate.clone()).map_err(|error| error.to_string())?;
        let name = ServerName::try_from(NAME).map_err(|error| error.to_string())?;
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
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

    fn turn(&self, next: State) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = next;
    }

    /// Nobody got anything.
    fn lost(&self, pause: Duration, why: String) -> Away {
        self.turn(State::Away(Instant::now() + pause, why.clone()));
        Away::Unheard(why)
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
                self.lost(self.settings.pause, format!("the token {file}: {error}"))
            })?;
        let request = Http::builder()
            .method(Method::POST)
            .uri(format!("https://{}{}", known.notice.address, path(kind)))
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::AUTHORIZATION, format!("Bearer {}", token.trim()))
            .body(Full::new(body))
            .map_err(|error| self.lost(self.settings.pause, error.to_string()))?;
        let answered = tokio::time::timeout(limit, async {
            let response = known.https.request(request).await.map_err(|error| {
                let why = chain(&error);
                match error.is_connect() {
                    true => Away::Unheard(why),
                    false => Away::Unsure(why),
                }
            })?;
            let status = response.status();
            let body = Limited::new(response.into_body(), MAX_BODY)
                .collect()
                .await
                .map_err(|error| Away::Unsure(error.to_string()))?
                .to_bytes();
            Ok::<_, Away>((status, body))
        });
        let (status, body) = match answered.await {
            Ok(answered) => answered?,
            Err(_) => {
                let why = format!("not within {} ms", limit.as_millis());
                return Err(Away::Unsure(why).into());
            }
        };
        if status != StatusCode::OK {
            let why = format!("{status}: {}", String::from_utf8_lossy(&body).trim());
            return Err(match status {
                StatusCode::BAD_REQUEST
                | StatusCode::FORBIDDEN
                | StatusCode::NOT_FOUND
                | StatusCode::PAYLOAD_TOO_LARGE => Unanswered::Kind(why),
                _ => Away::Unheard(why).into(),
            });
        }
        let replies = serde_json::from_slice(&body);
        replies.map_err(|error| Away::Unsure(error.to_string()).into())
    }
}

/// Why there are no answers.
enum Unanswered {
    /// The leader has to be left alone.
    Leader(Away),
    /// It refuses what this kind of pool asks for; others may be served.
    Kind(String),
}

impl From<Away> for Unanswered {
    fn from(away: Away) -> Self {
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
    ) -> Result<Vec<Option<Answer>>, Away> {
        let name = kind.name();
        if let Some(why) = self.refusal(&name) {
            return Err(Away::Unheard(why));
        }
        let known = self.find().await?;
        let batch = Batch {
            node: self.settings.node.clone(),
            pool: pool.clone(),
            limit_ms: u64::try_from(limit.as_millis()).unwrap_or(u64::MAX),
            requests: requests.to_vec(),
        };
        let body = serde_json::to_vec(&batch).map_err(|error| Away::Unheard(error.to_string()))?;
        let address = &known.notice.address;
        let away = match self.ask(&known, kind, body.into(), limit).await {
            Ok(replies) => match fault(requests, &replies.answers) {
                None => return Ok(replies.answers),
                Some(why) => {
                    tracing::error!(
                        address,
                        why,
                        "the leader's answer is not to what was asked; look who holds the Lease"
                    );
                    Away::Unsure(why)
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
                return Err(Away::Unheard(why));
            }
            Err(Unanswered::Leader(away)) => away,
        };
        tracing::info!(address, %away, "the common desk is left alone for a while");
        self.lost(self.settings.pause, away.to_string());
        Err(away)
    }
}

#[async_trait]
impl CommonDesk for Leader {
    async fn put(
        &self,
        pool: &PoolKey,
        requests: &[Request],
        limit: Duration,
    ) -> Result<Vec<Option<Answer>>, Away> {
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
impl CommonDesk for KindDesk {
    async fn put(
        &self,
        pool: &PoolKey,
        requests: &[Request],
        limit: Duration,
    ) -> Result<Vec<Option<Answer>>, Away> {
        let leader = &self.leader;
        leader.put_to(&self.kind, pool, requests, limit).await
    }
}

#[cfg(test)]
mod tests {
    use berth_core::dialect::WHEREABOUTS;
    use berth_core::{Claim, Granted, Handle, Owner, RangeSpec, Record, Space, Want};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;

    use super::*;
    use crate::Identity;

    /// Somebody who has become the leader, by whatever means, and gives an address of its choice.
    async fn impostor(identity: &Identity) -> String {
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
                let _ = stream.read(&mut asked).await;
                stream.write_all(answer.as_bytes()).await.unwrap();
                let _ = stream.shutdown().await;
            }
        });
        address
    }

    #[tokio::test]
    async fn an_address_of_the_leaders_choice_reaches_no_pod() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let identity = Identity::make().unwrap();
        let notice = Notice::of(impostor(&identity).await, &identity);
        let dir = tempfile::tempdir().unwrap();
        let token = dir.path().join("token");
        std::fs::write(&token, "token").unwrap();
        // Never asked: the leader is known.
        let nowhere = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        let client = Client::try_from(nowhere).unwrap();
        let leader = Leader::new(client, "ns", GatherSettings::new("node-a", token));
        let https = leader.connector(&notice).unwrap();
        leader.turn(State::Known(Arc::new(Known { notice, https })));
        let spec = RangeSpec::parse("10.60.0.0/24").unwrap();
        let space = Arc::new(Space::build(&spec, WHEREABOUTS).unwrap().0);
        let claim = Request::Claim(Claim {
            record: Record::new(Owner::new("ns/p", "net1"), Handle::new("c")),
            wants: vec![Want::any(space)],
        });
        let pool = PoolKey::named("10.60.0.0-24");
        let limit = Duration::from_secs(20);
        match leader.put(&pool, &[claim], limit).await {
            Err(Away::Unsure(why)) => assert!(why.contains("10.96.0.10"), "{why}"),
            other => panic!("{other:?}"),
        }
        let now = leader.state.lock().unwrap().clone();
        assert!(matches!(now, State::Away(..)), "it is left alone");
    }
}
