//! What the service accounts may do, verb by verb: neither less than works nor more than is used.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use berth_testkit::Account;
use k8s_openapi::api::authorization::v1::SelfSubjectAccessReview;
use kube::api::{Api, PostParams};
use serde_json::json;

use crate::{CLAIMS, HOME, agent, deployed};

const VERBS: [&str; 8] = [
    "get",
    "list",
    "watch",
    "create",
    "update",
    "patch",
    "delete",
    "deletecollection",
];

/// `group/resource`, `resource/subresource` or `resource=name`, and what is allowed in one namespace and in any
/// other.
pub struct Right(
    pub &'static str,
    pub &'static [&'static str],
    pub &'static [&'static str],
);

const READ: &[&str] = &["get", "list", "watch"];
const NONE: &[&str] = &[];

const AGENT: &[Right] = &[
    Right(
        "whereabouts.cni.cncf.io/ippools",
        &["get", "list", "watch", "create", "update", "patch"],
        NONE,
    ),
    Right(
        "whereabouts.cni.cncf.io/overlappingrangeipreservations",
        &["get", "list", "create", "patch", "delete"],
        NONE,
    ),
    Right("whereabouts.cni.cncf.io/nodeslicepools", READ, NONE),
    Right(
        "berth.dev/slicecalls",
        &["get", "list", "watch", "create", "patch"],
        NONE,
    ),
    Right("berth.dev/rangepolicies", READ, NONE),
    Right(
        "coordination.k8s.io/leases=berth-sweep",
        &["get", "update"],
        NONE,
    ),
    Right(
        "coordination.k8s.io/leases=berth-turns",
        &["get", "watch", "patch"],
        NONE,
    ),
    Right("coordination.k8s.io/leases=whereabouts", NONE, NONE),
    Right(
        "coordination.k8s.io/leases=berth-controller",
        &["get"],
        NONE,
    ),
    Right("authentication.k8s.io/tokenreviews", NONE, NONE),
    Right("/pods", READ, READ),
    Right("/pods/exec", NONE, NONE),
    Right("/pods/status", NONE, NONE),
    Right("/nodes", &["get", "list"], &["get", "list"]),
    Right("/nodes/status", NONE, NONE),
    Right("/nodes/proxy", NONE, NONE),
    Right("/events", &["create"], &["create"]),
    Right(
        "k8s.cni.cncf.io/network-attachment-definitions",
        &["get", "list"],
        &["get", "list"],
    ),
    Right(
        "k8s.cni.cncf.io/ipamclaims",
        &["get", "list"],
        &["get", "list"],
    ),
    Right("k8s.cni.cncf.io/ipamclaims/status", &["patch"], &["patch"]),
    Right("apps/statefulsets", &["get"], &["get"]),
    Right("/secrets", NONE, NONE),
    Right("/configmaps=berth-networks", READ, NONE),
    Right("/configmaps", NONE, NONE),
    Right("/namespaces", NONE, NONE),
    Right("/serviceaccounts", NONE, NONE),
    Right("/serviceaccounts/token", NONE, NONE),
    Right("apps/daemonsets", NONE, NONE),
    Right("rbac.authorization.k8s.io/clusterroles", NONE, NONE),
    Right("apiextensions.k8s.io/customresourcedefinitions", NONE, NONE),
];

const CONTROLLER: &[Right] = &[
    Right(
        "whereabouts.cni.cncf.io/ippools",
        &[
            "get", "list", "watch", "create", "update", "patch", "delete",
        ],
        NONE,
    ),
    Right(
        "whereabouts.cni.cncf.io/overlappingrangeipreservations",
        &["get", "list", "create", "delete"],
        NONE,
    ),
    Right(
        "k8s.cni.cncf.io/ipamclaims",
        &["get", "list"],
        &["get", "list"],
    ),
    Right("k8s.cni.cncf.io/ipamclaims/status", NONE, NONE),
    Right("apps/statefulsets", &["get"], &["get"]),
    Right(
        "whereabouts.cni.cncf.io/nodeslicepools",
        &["get", "list", "watch", "create", "patch", "delete"],
        NONE,
    ),
    Right(
        "berth.dev/slicecalls",
        &["list", "create", "patch", "delete"],
        NONE,
    ),
    Right("berth.dev/rangepolicies", READ, NONE),
    Right(
        "coordination.k8s.io/leases=berth-controller",
        &["get", "create", "update"],
        NONE,
    ),
    Right("coordination.k8s.io/leases=whereabouts", &["create"], NONE),
    Right(
        "/configmaps=berth-networks",
        &["get", "create", "patch"],
        NONE,
    ),
    Right("/configmaps", &["create"], NONE),
    Right("/pods", &["get", "list"], &["get", "list"]),
    Right("/pods/exec", NONE, NONE),
    Right("/nodes", READ, READ),
    Right("/nodes/status", NONE, NONE),
    Right("/events", &["create"], &["create"]),
    Right(
        "authentication.k8s.io/tokenreviews",
        &["create"],
        &["create"],
    ),
    Right(
        "authorization.k8s.io/subjectaccessreviews",
        &["create"],
        &["create"],
    ),
    Right(
        "k8s.cni.cncf.io/network-attachment-definitions",
        &["list", "watch"],
        &["list", "watch"],
    ),
    Right("/secrets", NONE, NONE),
    Right("/serviceaccounts/token", NONE, NONE),
];

/// In the namespace of the claims.
const AGENT_CLAIMS: &[Right] = &[
    Right(
        "coordination.k8s.io/leases",
        &["get", "list", "create", "patch", "delete"],
        NONE,
    ),
    Right("whereabouts.cni.cncf.io/ippools", NONE, NONE),
    Right("/configmaps", NONE, NONE),
    Right("/secrets", NONE, NONE),
];

const CONTROLLER_CLAIMS: &[Right] = &[
    Right(
        "coordination.k8s.io/leases",
        &["get", "list", "watch", "patch", "delete"],
        NONE,
    ),
    Right("whereabouts.cni.cncf.io/ippools", NONE, NONE),
    Right("/configmaps", NONE, NONE),
    Right("/secrets", NONE, NONE),
];

/// The verbs that the API server grants.
async fn granted(
    reviews: &Api<SelfSubjectAccessReview>,
    what: &str,
    namespace: &str,
) -> BTreeSet<&'static str> {
    let (group, rest) = what.split_once('/').unwrap();
    let (rest, name) = rest.split_once('=').unwrap_or((rest, ""));
    let (resource, subresource) = rest.split_once('/').unwrap_or((rest, ""));
    let mut granted = BTreeSet::new();
    for verb in VERBS {
        let question = json!({ "metadata": {}, "spec": { "resourceAttributes": {
            "group": group, "resource": resource, "subresource": subresource, "name": name,
            "namespace": namespace, "verb": verb,
        }}});
        let question = serde_json::from_value(question).unwrap();
        let answer = reviews
            .create(&PostParams::default(), &question)
            .await
            .unwrap();
        if answer.status.unwrap().allowed {
            granted.insert(verb);
        }
    }
    granted
}

pub async fn check(account: &Account, home: &str, rights: &[Right]) {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(account.client().await.unwrap());
    let expected = |verbs: &[&'static str]| verbs.iter().copied().collect::<BTreeSet<_>>();
    // The authorizer learns of a binding by watch: what is allowed may take a moment, what is not does not change.
    let begun = Instant::now();
    for Right(what, here, away) in rights {
        for (namespace, verbs) in [(home, here), ("default", away)] {
            loop {
                let now = granted(&reviews, what, namespace).await;
                if now == expected(verbs) {
                    break;
                }
                let less = now.is_subset(&expected(verbs));
                assert!(
                    less && begun.elapsed() < Duration::from_secs(20),
                    "{what} in {namespace}: {now:?} instead of {verbs:?}"
                );
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

#[tokio::test]
async fn the_agent_may_do_what_it_does_and_nothing_else() {
    let account = agent().await;
    check(&account, HOME, AGENT).await;
    check(&account, CLAIMS, AGENT_CLAIMS).await;
}

#[tokio::test]
async fn the_controller_may_do_what_it_does_and_nothing_else() {
    let account = deployed()
        .await
        .account(HOME, "berth-controller")
        .await
        .unwrap();
    check(&account, HOME, CONTROLLER).await;
    check(&account, CLAIMS, CONTROLLER_CLAIMS).await;
}
