//! Whom the leader serves: service accounts that could write the pools themselves, each for its own node.
//!
//! The API server decides both: TokenReview says who it is and which node its token is bound to, SubjectAccessReview
//! whether it may. So a leader grants no right that the caller does not have, and a token that is shown for another node
//! than its own is refused. Which addresses it may claim or release is not looked at: an account that may write pools
//! may write all of them. Yes is remembered for a while, no is not.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client};
use sha2::{Digest, Sha256};
use thiserror::Error;

/// What a token for the common desk has to be made for. One for the API server is not taken: an agent would hand the
/// leader all of its rights.
pub const AUDIENCE: &str = "desk.berth.dev";

/// The node that a token is bound to, as the API server tells it.
const NODE: &str = "authentication.kubernetes.io/node-name";

/// How long a yes is remembered: as long as a right that was taken away may still be used.
const MEMORY: Duration = Duration::from_secs(60);

/// Yeses remembered at once; at more the old ones go.
const MEMORIES: usize = 20_000;

/// Why somebody is not served.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum Refused {
    #[error("no token, or not one for {AUDIENCE}: {0}")]
    Unknown(String),
    #[error("{0}")]
    Forbidden(String),
    /// The API server could not be asked.
    #[error("nobody can be checked now: {0}")]
    Blind(String),
}

pub struct Guard {
    client: Client,
    /// Where the pools are.
    namespace: String,
    timeout: Duration,
    known: Mutex<HashMap<Key, Instant>>,
}

/// A token's digest, and the node that it was used for: the token itself is kept nowhere.
type Key = ([u8; 32], String);

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard").finish_non_exhaustive()
    }
}

impl Guard {
    pub fn new(client: Client, namespace: impl Into<String>, timeout: Duration) -> Guard {
        Guard {
            client,
            namespace: namespace.into(),
            timeout,
            known: Mutex::default(),
        }
    }

    /// Whether the bearer of `token` may ask for `node`.
    pub(crate) async fn check(&self, token: &str, node: &str) -> Result<(), Refused> {
        let key: Key = (Sha256::digest(token.as_bytes()).into(), node.to_owned());
        if self.remembers(&key) {
            return Ok(());
        }
        let asked = async {
            let user = self.who(token).await?;
            is_of(&user, node)?;
            self.may_write(user).await
        };
        tokio::time::timeout(self.timeout, asked)
            .await
            .map_err(|_| Refused::Blind("the API server does not answer".into()))??;
        self.remember(key);
        Ok(())
    }

    fn remembers(&self, key: &Key) -> bool {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(key).is_some_and(|since| since.elapsed() < MEMORY)
    }

    fn remember(&self, key: Key) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MEMORIES {
            known.retain(|_, since| since.elapsed() < MEMORY);
        }
        if known.len() < MEMORIES {
            known.insert(key, Instant::now());
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

    async fn may_write(&self, user: UserInfo) -> Result<(), Refused> {
        let name = user.username.clone().unwrap_or_default();
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: user.username,
                uid: user.uid,
                groups: user.groups,
                extra: user.extra,
                resource_attributes: Some(ResourceAttributes {
                    namespace: Some(self.namespace.clone()),
                    verb: Some("patch".to_owned()),
                    group: Some("whereabouts.cni.cncf.io".to_owned()),
                    resource: Some("ippools".to_owned()),
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
        let namespace = &self.namespace;
        Err(Refused::Forbidden(format!(
            "{name} may not patch ippools in {namespace}, so nobody writes them for it"
        )))
    }
}

/// A token that is bound to no node speaks for none.
fn is_of(user: &UserInfo, node: &str) -> Result<(), Refused> {
    let extra = user.extra.as_ref();
    let bound = extra.and_then(|extra| extra.get(NODE)?.first());
    match bound {
        Some(bound) if bound == node => Ok(()),
        Some(bound) => Err(Refused::Forbidden(format!(
            "the token is bound to node {bound}, the request is of {node}"
        ))),
        None => Err(Refused::Forbidden(format!(
            "the token is bound to no node, the request is of {node}; mount one of a pod"
        ))),
    }
}

fn blind(error: kube::Error) -> Refused {
    Refused::Blind(error.to_string())
}
