//! What an answer of the API server, or its absence, means to the caller.
//!
//! Promises: a write whose outcome is unknown is [`KubeError::OutcomeUnknown`], never a failure and never
//! a success (I2); what the server refuses before it does anything is distinguished from that; every
//! refusal names the verb, the kind and what would be right.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::time::Duration;

use kube::core::Status;

use crate::resource::{Part, Place, Resource};
use crate::{KubeError, Rejection, chain};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
}

impl Verb {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
        }
    }

    const fn writes(self) -> bool {
        matches!(
            self,
            Self::Create | Self::Update | Self::Patch | Self::Delete
        )
    }
}

/// What was asked: a refusal has to name it.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    pub verb: Verb,
    pub resource: &'static Resource,
    /// The part that a write changes.
    pub part: Part,
    /// The namespace of the connection.
    pub connection: &'a str,
    /// Empty for the whole collection.
    pub name: &'a str,
}

impl Ask<'_> {
    fn namespace(&self) -> Option<Cow<'_, str>> {
        self.resource.namespace(self.connection)
    }

    /// The same for a write of that part.
    #[must_use]
    pub const fn of(self, part: Part) -> Self {
        Self { part, ..self }
    }

    /// The object, or the collection, as messages name it.
    pub fn target(&self) -> String {
        let kind = self.resource.kind;
        match (self.namespace(), self.name) {
            (None, "") => format!("{kind}s"),
            (None, name) => format!("{kind} {name}"),
            (Some(namespace), "") => format!("{kind}s of {namespace}"),
            (Some(namespace), name) => format!("{kind} {namespace}/{name}"),
        }
    }
}

/// A request that did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The server's answer.
    Refused(Refusal),
    /// No connection: nothing was sent.
    Unsent(String),
    /// The request went out and no whole answer came.
    Lost(String),
    /// The request can't even be made.
    Unfit(Rejection),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusal {
    pub code: u16,
    pub reason: String,
    pub message: String,
    /// The object that the server's answer is about.
    pub about: String,
    /// Its kind, as paths have it.
    pub about_kind: String,
    pub retry_after: Option<Duration>,
    /// The answer is the API server's own, and not that of a proxy on the way or of the HTTP layer.
    pub own: bool,
}

impl Refusal {
    /// Reads the body of an answer that is no success.
    pub fn read(code: u16, retry_after: Option<Duration>, body: &[u8]) -> Self {
        let status = serde_json::from_slice::<Status>(body).ok();
        match status.filter(|status| !status.reason.is_empty() || !status.message.is_empty()) {
            Some(status) => Self::of(status, code, retry_after),
            None => Self {
                code,
                message: String::from_utf8_lossy(body).trim().to_owned(),
                retry_after,
                ..Self::default()
            },
        }
    }

    fn of(status: Status, code: u16, retry_after: Option<Duration>) -> Self {
        let (about, about_kind, seconds) = match status.details {
            Some(details) => (details.name, details.kind, details.retry_after_seconds),
            None => (String::new(), String::new(), 0),
        };
        let asked = (seconds > 0).then(|| Duration::from_secs(seconds.into()));
        Self {
            code,
            reason: status.reason,
            message: status.message,
            about,
            about_kind,
            retry_after: retry_after.or(asked),
            own: true,
        }
    }

    /// The same, as proof: the server names the kind too. An answer about anything else shows nothing (I4).
    pub fn proves_absence(&self, resource: &Resource, name: &str) -> bool {
        self.is_absence_of(name) && self.about_kind == resource.plural
    }

    /// The object of that name does not exist, in a kind that does.
    pub fn is_absence_of(&self, name: &str) -> bool {
        self.code == 404 && self.own && self.about == name
    }

    pub fn is_taken_name(&self) -> bool {
        self.code == 409 && self.reason == "AlreadyExists"
    }

    /// The object, or the request for it, is more than the server or etcd takes.
    pub fn is_too_large(&self) -> bool {
        let operations = self.message.contains("maximum operations");
        (self.code == 413 && !operations)
            || self.message.contains("request is too large")
            || self.message.contains("larger than max")
    }
}

impl Failure {
    /// What a client's error says about the fate of the request.
    pub fn of(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => {
                let code = status.code;
                Self::Refused(Refusal::of(*status, code, None))
            }
            kube::Error::Auth(_) => Self::Unfit(Rejection::Unauthenticated(chain(&error))),
            kube::Error::BuildRequest(_) | kube::Error::HttpError(_) => {
                Self::Unfit(Rejection::Invalid {
                    code: 400,
                    message: chain(&error),
                })
            }
            kube::Error::Service(ref cause) if never_connected(cause.as_ref()) => {
                Self::Unsent(chain(&error))
            }
            other => Self::Lost(chain(&other)),
        }
    }

    pub fn into_error(self, ask: Ask<'_>) -> KubeError {
        let refusal = match self {
            Self::Refused(refusal) => refusal,
            Self::Unsent(why) => return unavailable(ask, why, None),
            Self::Lost(why) => return lost(ask, why),
            Self::Unfit(rejection) => return rejected(ask, rejection),
        };
        let Refusal {
            code,
            message,
            retry_after,
            own,
            ..
        } = refusal;
        match code {
            401 => rejected(ask, Rejection::Unauthenticated(unauthenticated(message))),
            403 => rejected(ask, Rejection::Forbidden(forbidden(ask, message))),
            404 => rejected(ask, Rejection::Missing(missing(ask, message, own))),
            409 => KubeError::Conflict {
                target: ask.target(),
            },
            // The list that was being paged through is gone: begin again. And throttled: the
            // server says that it did nothing.
            410 | 429 => unavailable(ask, answer(code, &message), retry_after),
            // Only the API server's own word is proof that nothing was done: a proxy says 503 after
            // it has passed the request on, too.
            503 if own => unavailable(ask, answer(code, &message), retry_after),
            500.. if ask.verb.writes() => lost(ask, answer(code, &message)),
            500.. => unavailable(ask, answer(code, &message), retry_after),
            _ => rejected(ask, Rejection::Invalid { code, message }),
        }
    }
}

fn unauthenticated(message: String) -> String {
    format!("{message}; the token or certificate in use is not valid (any more): renew it")
}

/// RBAC's refusals name the user; say what to grant. Others (quota, admission, a namespace that is
/// going away) explain themselves.
fn forbidden(ask: Ask<'_>, message: String) -> String {
    if !message.contains("cannot") {
        return message;
    }
    let (verb, part) = (ask.verb.name(), ask.part.suffix());
    // A role names the subresource behind the plural: `things/status` of the group, said as `things.group/status`.
    let resource = format!("{}{part}", ask.resource.name());
    match ask.namespace() {
        Some(namespace) => {
            format!("{message}; grant `{verb}` on `{resource}` in namespace `{namespace}`")
        }
        None => format!("{message}; grant `{verb}` on `{resource}` in a ClusterRole"),
    }
}

fn missing(ask: Ask<'_>, message: String, own: bool) -> String {
    if own
        && message.starts_with("namespaces ")
        && let Some(namespace) = ask.namespace()
    {
        let would_be_right = match ask.resource.place {
            Place::Namespaced | Place::Cluster => "create it, or name another",
            Place::Claims => "nodes claim slices there; apply deploy/crds/namespace-slices.yaml",
        };
        return format!("namespace `{namespace}` does not exist: {would_be_right}");
    }
    if own && !message.contains("could not find the requested resource") {
        return message;
    }
    format!(
        "the API server serves no `{}` of `{}`: install its definition, deploy/crds/{}_{}.yaml",
        ask.resource.plural,
        ask.resource.api_version(),
        ask.resource.group,
        ask.resource.plural
    )
}

fn answer(code: u16, message: &str) -> String {
    match message {
        "" => format!("the API server answered {code}"),
        message => format!("the API server answered {code}: {message}"),
    }
}

fn unavailable(ask: Ask<'_>, why: String, retry_after: Option<Duration>) -> KubeError {
    KubeError::Unavailable {
        target: ask.target(),
        why,
        retry_after,
    }
}

fn lost(ask: Ask<'_>, why: String) -> KubeError {
    if !ask.verb.writes() {
        return unavailable(ask, why, None);
    }
    KubeError::OutcomeUnknown {
        operation: ask.verb.name(),
        target: ask.target(),
        why,
    }
}

fn rejected(ask: Ask<'_>, rejection: Rejection) -> KubeError {
    KubeError::Rejected {
        operation: ask.verb.name(),
        target: ask.target(),
        rejection,
    }
}

fn never_connected(cause: &(dyn StdError + 'static)) -> bool {
    let mut next = Some(cause);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<hyper_util::client::legacy::Error>() {
            return error.is_connect();
        }
        next = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_subresource_and_role_of_a_cluster_wide_kind() {
        const SHELVES: Resource = Resource {
            group: "test.berth.dev",
            version: "v1",
            plural: "shelves",
            kind: "Shelf",
            place: Place::Cluster,
        };
        let ask = Ask {
            verb: Verb::Update,
            resource: &SHELVES,
            part: Part::Object,
            connection: "nets",
            name: "a",
        };
        let refusal = Refusal {
            code: 403,
            message: "user cannot update".into(),
            own: true,
            ..Refusal::default()
        };
        let text = Failure::Refused(refusal).into_error(ask.of(Part::Status));
        let text = text.to_string();
        assert!(text.contains("update on Shelf a was refused"), "{text}");
        let right = "grant `update` on `shelves.test.berth.dev/status` in a ClusterRole";
        assert!(text.contains(right), "{text}");
        assert_eq!(Ask { name: "", ..ask }.target(), "Shelfs");
    }
}
