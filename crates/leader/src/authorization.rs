//! Whom the leader serves: service accounts that could write pools of that kind themselves, each for its own node.
//!
//! The API server decides both: TokenReview says who it is and which node its token is bound to, SubjectAccessReview
//! whether it may. So a leader grants no right that the caller does not have, and a token that is shown for another node
//! than its own is refused. Which entries it may change is the scope that its requests are planned in.
//!
//! A peer costs the API server little, whatever it sends: answers are cached, a refusal for half as long as a yes; reviews
//! of one peer's tokens are made one at a time; and a peer whose tokens are refused has ten reviews at once and then one
//! every six seconds.

use std::collections::HashMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_kube::{Connection, ObjectClient};
use berth_listen::{Peer, Strikes};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::PoolKind;
use crate::kind::MoveOf;
use crate::transfer::Transfers;

/// What a token for the leader's desk has to be made for. One for the API server is not taken: an agent would hand the
/// leader all of its rights.
pub const AUDIENCE: &str = "desk.berth.dev";

/// The node that a token is bound to, as the API server's TokenReview names it.
const NODE: &str = "authentication.kubernetes.io/node-name";

/// How long a yes is cached: as long as a right that was taken away may still be used.
const YES: Duration = Duration::from_secs(60);

/// How long a refusal is cached.
const NO: Duration = Duration::from_secs(30);

/// Tokens in the cache.
const TOKENS: usize = 20_000;

/// Reviews at a time, over all peers.
const REVIEWS: usize = 64;

/// Why a caller is not served.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum Refused {
    #[error("no token, or not one for {AUDIENCE}: {0}")]
    Unknown(String),
    #[error("{0}")]
    Forbidden(String),
    #[error("too many tokens of this peer were refused; try again later")]
    TooMany,
    /// The API server could not be asked.
    #[error("no token can be checked now: {0}")]
    Blind(String),
}

pub struct Authorizer {
    client: Client,
    /// Where the pools are.
    namespace: String,
    timeout: Duration,
    known: Mutex<HashMap<Key, Known>>,
    strikes: Strikes,
    /// Peers share them by their hash.
    turns: Vec<tokio::sync::Mutex<()>>,
}

/// The digest of a token and of the kind that it was shown for: the token itself is kept nowhere.
type Key = [u8; 32];

fn key(token: &str, kind: &PoolKind) -> Key {
    let mut digest = Sha256::new();
    // No name of a kind has this byte, and no token.
    for part in [kind.name().as_bytes(), &[0], token.as_bytes()] {
        digest.update(part);
    }
    digest.finalize().into()
}

#[derive(Clone, Debug)]
struct Known {
    since: Instant,
    /// The node that the token is bound to, or why it is refused.
    verdict: Result<Arc<str>, Refused>,
}

impl Known {
    fn is_fresh(&self) -> bool {
        let limit = if self.verdict.is_ok() { YES } else { NO };
        self.since.elapsed() < limit
    }
}

impl fmt::Debug for Authorizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authorizer").finish_non_exhaustive()
    }
}

impl Authorizer {
    pub fn new(client: Client, namespace: impl Into<String>, timeout: Duration) -> Authorizer {
        Authorizer {
            client,
            namespace: namespace.into(),
            timeout,
            known: Mutex::default(),
            strikes: Strikes::default(),
            turns: (0..REVIEWS)
                .map(|_| tokio::sync::Mutex::default())
                .collect(),
        }
    }

    /// Who may take over another node's entries, by the same API server.
    pub(crate) fn transfers(&self, move_of: Option<MoveOf>) -> Transfers {
        let objects = ObjectClient::new(&Connection {
            client: self.client.clone(),
            namespace: self.namespace.clone(),
            timeout: self.timeout,
        });
        Transfers::new(objects, move_of)
    }

    /// The node that the bearer of `token` may ask for, where it asks for pools of that kind.
    pub(crate) async fn check(
        &self,
        token: &str,
        kind: &PoolKind,
        peer: Peer,
    ) -> Result<Arc<str>, Refused> {
        let key = key(token, kind);
        if let Some(verdict) = self.recall(&key) {
            return verdict;
        }
        // Requests of one agent that come together need one review.
        let _turn = match self.turns.get(slot(peer)) {
            Some(turn) => Some(turn.lock().await),
            None => None,
        };
        if let Some(verdict) = self.recall(&key) {
            return verdict;
        }
        // A token that was good before is not counted: others at the same address can't lock its bearer out.
        let charged = !self.was_good(&key);
        if charged && !self.strikes.take(peer) {
            return Err(Refused::TooMany);
        }
        let verdict = self.review(token, kind).await;
        let faultless = matches!(verdict, Ok(_) | Err(Refused::Blind(_)));
        if charged && faultless {
            self.strikes.give_back(peer);
        }
        if !matches!(verdict, Err(Refused::Blind(_))) {
            self.remember(key, verdict.clone());
        }
        verdict
    }

    async fn review(&self, token: &str, kind: &PoolKind) -> Result<Arc<str>, Refused> {
        let asked = async {
            let user = self.who(token).await?;
            let node = bound_node(&user)?;
            self.may_write(user, kind).await?;
            Ok(node)
        };
        tokio::time::timeout(self.timeout, asked)
            .await
            .map_err(|_| Refused::Blind("the API server does not answer".into()))?
    }

    fn recall(&self, key: &Key) -> Option<Result<Arc<str>, Refused>> {
        let known = self.known.lock();
        let known = known.get(key).filter(|known| known.is_fresh())?;
        Some(known.verdict.clone())
    }

    fn was_good(&self, key: &Key) -> bool {
        let known = self.known.lock();
        known.get(key).is_some_and(|known| known.verdict.is_ok())
    }

    fn remember(&self, key: Key, verdict: Result<Arc<str>, Refused>) {
        let mut known = self.known.lock();
        if known.len() >= TOKENS {
            known.retain(|_, known| known.is_fresh());
        }
        if known.len() >= TOKENS {
            known.retain(|_, known| known.verdict.is_ok());
        }
        if known.len() < TOKENS {
            let since = Instant::now();
            known.insert(key, Known { since, verdict });
        }
    }

    async fn who(&self, token: &str) -> Result<UserInfo, Refused> {
        let review = TokenReview {
            spec: TokenReviewSpec {
                token: token.to_owned(),
                audiences: Some(vec![AUDIENCE.to_owned()]),
            },
            ..TokenReview::default()
        };
        let status = Api::<TokenReview>::all(self.client.clone())
            .create(&PostParams::default(), &review)
            .await
            .map_err(blind)?
            .status
            .unwrap_or_default();
        let meant = status.audiences.unwrap_or_default();
        match status.user {
            Some(user)
                if status.authenticated == Some(true)
                    && meant.iter().any(|one| one == AUDIENCE) =>
            {
                Ok(user)
            }
            _ => Err(Refused::Unknown(status.error.unwrap_or_default())),
        }
    }

    async fn may_write(&self, user: UserInfo, kind: &PoolKind) -> Result<(), Refused> {
        let name = user.username.clone().unwrap_or_default();
        let namespace = kind.resource.namespace(&self.namespace);
        let (plural, subresource) = kind.right();
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: user.username,
                uid: user.uid,
                groups: user.groups,
                extra: user.extra,
                resource_attributes: Some(ResourceAttributes {
                    namespace: namespace.as_deref().map(str::to_owned),
                    verb: Some(kind.verb.name().to_owned()),
                    group: Some(kind.resource.group.to_owned()),
                    resource: Some(plural.to_owned()),
                    subresource: subresource.map(str::to_owned),
                    ..ResourceAttributes::default()
                }),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let answer = Api::<SubjectAccessReview>::all(self.client.clone())
            .create(&PostParams::default(), &review)
            .await
            .map_err(blind)?;
        if answer.status.is_some_and(|status| status.allowed) {
            return Ok(());
        }
        let verb = kind.verb.name();
        let part = subresource.map_or_else(String::new, |part| format!("/{part}"));
        let place = namespace.map_or_else(String::new, |namespace| format!(" in {namespace}"));
        Err(Refused::Forbidden(format!(
            "{name} may not {verb} {plural}{part}{place}, so the leader writes none for it"
        )))
    }
}

/// A token that is bound to no node speaks for none.
fn bound_node(user: &UserInfo) -> Result<Arc<str>, Refused> {
    let extra = user.extra.as_ref();
    let bound = extra.and_then(|extra| extra.get(NODE)?.first());
    bound.map(|node| Arc::from(node.as_str())).ok_or_else(|| {
        Refused::Forbidden("the token is bound to no node; mount one of a pod".to_owned())
    })
}

/// A request is made for the node of its token.
pub(crate) fn same_node(bound: &str, node: &str) -> Result<(), Refused> {
    if bound == node {
        return Ok(());
    }
    Err(Refused::Forbidden(format!(
        "the token is bound to node {bound}, the request is of {node}"
    )))
}

fn slot(peer: Peer) -> usize {
    let mut hasher = DefaultHasher::new();
    peer.hash(&mut hasher);
    usize::try_from(hasher.finish() % REVIEWS as u64).unwrap_or_default()
}

fn blind(error: kube::Error) -> Refused {
    Refused::Blind(error.to_string())
}
