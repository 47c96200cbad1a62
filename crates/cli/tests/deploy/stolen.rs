//! What a token that was stolen from the agent of one node can't do to the others: one test for each write that is denied.
//!
//! Every test first makes with node-b's own token what it is about, so that the policies are shown to let the owner work.

use std::time::{Duration, Instant};

use berth_api::claim::{SliceClaim, SliceClaimSpec};
use berth_api::whereabouts::IPPool;
use berth_testkit::Account;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Event;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::ApiResource;
use serde_json::{Value, json};

use crate::{CLAIMS, HOME, agents, deployed};

/// The thief's own node, and the one that it is after.
pub(crate) async fn nodes() -> (Account, Account) {
    let agents = agents().await;
    let on = async |node| agents.on(node).await.unwrap();
    (on("node-a").await, on("node-b").await)
}

pub(crate) async fn leases(account: &Account, namespace: &str) -> Api<Lease> {
    Api::namespaced(account.client().await.unwrap(), namespace)
}

/// As whatever there is: the type would refuse what is wrong before it is sent.
pub(crate) async fn pools(account: &Account) -> Api<DynamicObject> {
    let resource = ApiResource::erase::<IPPool>(&());
    Api::namespaced_with(account.client().await.unwrap(), HOME, &resource)
}

/// A policy (none: the role) and words of its message. xtask finds these pairs: every message has a test.
pub(crate) type Denial<'a> = (&'a str, &'a str);

pub(crate) fn denied<T: std::fmt::Debug>(outcome: Result<T, kube::Error>, by: Denial<'_>) {
    refused(outcome, 403, by, "");
}

pub(crate) fn refused<T: std::fmt::Debug>(
    outcome: Result<T, kube::Error>,
    code: u16,
    (policy, words): Denial<'_>,
    what: &str,
) {
    match outcome {
        Err(kube::Error::Api(status)) => {
            assert_eq!(status.code, code, "{what}: {status:?}");
            let named = policy.is_empty() || status.message.contains(&format!("'{policy}'"));
            assert!(named, "{what}, {policy:?}: {status:?}");
            let said = status.message.contains(words);
            assert!(said, "{what}, {words:?}: {status:?}");
        }
        other => panic!("{what}: not denied by {policy} ({words}): {other:?}"),
    }
}

pub(crate) fn slice(node: &str, range: &str) -> Lease {
    let name = range.replace('/', "-");
    let spec = SliceClaimSpec {
        range: range.to_owned(),
        node: node.to_owned(),
        node_uid: format!("uid-of-{node}"),
        ..SliceClaimSpec::default()
    };
    let mut claim = SliceClaim::new(&name, spec);
    let labels = [("berth.dev/node", node), ("berth.dev/range", "10.0.0.0-8")];
    let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
    claim.metadata.labels = Some(labels.into_iter().collect());
    claim.into()
}

/// A claim of node-b, made by itself.
pub(crate) async fn claimed(range: &str) -> (Api<Lease>, Api<Lease>, String) {
    let (thief, owner) = nodes().await;
    let lease = slice("node-b", range);
    let theirs = leases(&owner, CLAIMS).await;
    theirs.create(&PostParams::default(), &lease).await.unwrap();
    let name = lease.metadata.name.unwrap();
    (leases(&thief, CLAIMS).await, theirs, name)
}

pub(crate) async fn merge<K>(api: &Api<K>, name: &str, patch: Value) -> Result<K, kube::Error>
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let params = PatchParams::default();
    api.patch(name, &params, &Patch::Merge(patch)).await
}

pub(crate) fn slice_text(spec: SliceClaimSpec) -> Value {
    spec.merge()
}

#[tokio::test]
async fn a_stolen_token_deletes_no_other_nodes_slice() {
    let (thief, owner, name) = claimed("10.1.0.0/26").await;
    denied(
        thief.delete(&name, &DeleteParams::default()).await,
        ("berth-agents-slices", "the slice is of node node-b"),
    );
    owner.delete(&name, &DeleteParams::default()).await.unwrap();
}

#[tokio::test]
async fn a_stolen_token_takes_over_no_other_nodes_slice() {
    let (thief, owner, name) = claimed("10.1.0.64/26").await;
    let words = ("berth-agents-slices", "may only say that it wants a part");
    let held = merge(
        &thief,
        &name,
        json!({ "spec": { "holderIdentity": "node-a" } }),
    );
    denied(held.await, words);
    let epoch = merge(&thief, &name, json!({ "spec": { "leaseTransitions": 9 } }));
    denied(epoch.await, words);
    let bare = SliceClaimSpec {
        range: "10.1.0.64/26".into(),
        node: "node-b".into(),
        node_uid: "uid-of-node-b".into(),
        ..SliceClaimSpec::default()
    };
    let recalled = SliceClaimSpec {
        recalled: true,
        ..bare.clone()
    };
    denied(merge(&thief, &name, slice_text(recalled)).await, words);
    let labels = json!({ "metadata": { "labels": { "berth.dev/range": "10.9.0.0-16" } } });
    denied(merge(&thief, &name, labels).await, words);
    let owners = json!({ "metadata": { "ownerReferences": [
        { "apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "gone" },
    ] } });
    denied(merge(&thief, &name, owners).await, words);
    // Its owner may offer parts, and pass it on to a node that wants it.
    let wanted = SliceClaimSpec {
        wants: vec!["node-a".into()],
        ..bare.clone()
    };
    merge(&thief, &name, slice_text(wanted)).await.unwrap();
    let mut passed = slice_text(SliceClaimSpec {
        node: "node-a".into(),
        node_uid: String::new(),
        epoch: 1,
        ..bare
    });
    passed["metadata"]["labels"] = json!({ "berth.dev/node": "node-a" });
    merge(&owner, &name, passed).await.unwrap();
}

#[tokio::test]
async fn a_stolen_token_wants_parts_in_its_own_name_only() {
    let (thief, owner, name) = claimed("10.1.0.128/26").await;
    let wants = |wants: &[&str]| {
        slice_text(SliceClaimSpec {
            range: "10.1.0.128/26".into(),
            node: "node-b".into(),
            node_uid: "uid-of-node-b".into(),
            wants: wants.iter().map(|want| (*want).to_owned()).collect(),
            ..SliceClaimSpec::default()
        })
    };
    let words = ("berth-agents-slices", "may only say that it wants a part");
    denied(merge(&thief, &name, wants(&["node-c"])).await, words);
    merge(&owner, &name, wants(&["node-c"])).await.unwrap();
    let both = wants(&["node-c", "node-a"]);
    merge(&thief, &name, both).await.unwrap();
    denied(merge(&thief, &name, wants(&["node-a"])).await, words);
    merge(&thief, &name, wants(&["node-c", "(leaving)"]))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_stolen_token_claims_no_slice_for_another_node_and_none_that_nobody_can_read() {
    let (thief, _) = nodes().await;
    let thief = leases(&thief, CLAIMS).await;
    let create = async |lease: &Lease| thief.create(&PostParams::default(), lease).await;
    let theirs = slice("node-b", "10.1.1.0/26");
    denied(
        create(&theirs).await,
        (
            "berth-agents-slices",
            "can not claim a slice for node node-b",
        ),
    );
    let mut labelled = slice("node-a", "10.1.1.0/26");
    let labels = labelled.metadata.labels.as_mut().unwrap();
    labels.insert("berth.dev/node".into(), "node-b".into());
    denied(
        create(&labelled).await,
        ("berth-agents-slices", "names another node"),
    );
    let words = ("berth-agents-slices", "is not what Berth writes there");
    for text in [
        "",
        "{}",
        r#"{"range":"10.1.1.0/26"},"#,
        r#"{"range":"10.0.0.0/8"}"#,
        r#"{"range":"10.1.1.0/26","wants":["x]"]}"#,
        r#"{"range":"999.1.1.0/26"}"#,
        r#"{"range":"10.1.1.0/26","offers":[{"range":":::/999","node":"node-a"}]}"#,
        r#"{"range":"10.1.1.0/26","offers":[{"range":"10.1.1.0/28","node":"node-b"},{"range":"10.1.1.999/28","node":"node-b"}]}"#,
        // A part of another's slice.
        r#"{"range":"10.1.1.0/26","offers":[{"range":"10.1.2.0/28","node":"node-a"}]}"#,
    ] {
        let mut unreadable = slice("node-a", "10.1.1.0/26");
        if text.contains(r#""999."#) {
            unreadable.metadata.name = Some("999.1.1.0-26".into());
        }
        let annotations = unreadable.metadata.annotations.as_mut().unwrap();
        annotations.insert("berth.dev/slice".into(), text.into());
        denied(create(&unreadable).await, words);
    }
    let mut offered = slice("node-a", "10.1.1.0/26");
    let text = r#"{"range":"10.1.1.0/26","nodeUID":"u","offers":[{"range":"10.1.1.0/28","node":"node-b"},{"range":"10.1.1.16/28","node":"node-c"}],"wants":["node-c"]}"#;
    let annotations = offered.metadata.annotations.as_mut().unwrap();
    annotations.insert("berth.dev/slice".into(), text.into());
    create(&offered).await.unwrap();
}

/// The attack as it was done: without a controller, the thief makes its Lease, names its own desk and certificate there, and
/// every node asks it for addresses.
#[tokio::test]
async fn berth_16_2_a_stolen_token_does_not_become_the_leader() {
    let (thief, _) = nodes().await;
    let home = leases(&thief, HOME).await;
    let lease = |name: &str| -> Lease {
        serde_json::from_value(json!({
            "metadata": { "name": name, "annotations": {
                "berth.dev/desk-address": "192.0.2.1:9471", "berth.dev/desk-certificate": "AAAA",
            } },
            "spec": { "holderIdentity": "thief", "leaseDurationSeconds": 2147483647,
                "renewTime": "2026-01-01T00:00:00.000000Z" },
        }))
        .unwrap()
    };
    // By its role, whatever the policies say. (The Lease may be there: the API server asks for rights first.)
    let params = PostParams::default();
    let made = home.create(&params, &lease("berth-controller")).await;
    denied(made, ("", "cannot create resource"));
    let written = merge(
        &home,
        "berth-controller",
        json!({ "spec": { "holderIdentity": "thief" } }),
    );
    denied(written.await, ("", "cannot patch resource"));
    let how = DeleteParams::default();
    let deleted = home.delete("berth-controller", &how).await;
    denied(deleted, ("", "cannot delete resource"));
    let made = home.create(&params, &lease("whereabouts")).await;
    denied(made, ("", "cannot create resource"));

    // And by the policies, whatever a role says.
    let cluster = deployed().await;
    let namespace = cluster.namespace("generous").await.unwrap();
    let thief = cluster.agent(&namespace, "node-a").await.unwrap();
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": { "name": "too-much", "namespace": namespace },
        "rules": [{ "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["*"] }],
    });
    cluster.apply_object(role).await.unwrap();
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": { "name": "too-much", "namespace": namespace },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "too-much" },
        "subjects": [{ "kind": "ServiceAccount", "name": "berth-agent", "namespace": namespace }],
    });
    cluster.apply_object(binding).await.unwrap();
    let home = leases(&thief, &namespace).await;
    let words = (
        "berth-agents-leases",
        "agents write the Leases berth-sweep and berth-turns",
    );
    // The right has to be in force, or RBAC would be what denies.
    let end = Instant::now() + Duration::from_secs(30);
    let outcome = loop {
        match home.create(&params, &lease("berth-controller")).await {
            Err(kube::Error::Api(status))
                if status.message.contains("cannot create") && Instant::now() < end =>
            {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            outcome => break outcome,
        }
    };
    denied(outcome, words);
    let admin: Api<Lease> = Api::namespaced(cluster.client().await.unwrap(), &namespace);
    let theirs = lease("berth-controller");
    admin.create(&params, &theirs).await.unwrap();
    let spec = json!({ "spec": { "holderIdentity": "thief" } });
    denied(merge(&home, "berth-controller", spec).await, words);
    denied(home.delete("berth-controller", &how).await, words);
}

#[tokio::test]
async fn a_stolen_token_sweeps_in_its_own_name_only() {
    let (thief, owner) = nodes().await;
    let sweep = async |account: &Account, holder: &str| {
        let home = leases(account, HOME).await;
        let mut lease = home.get("berth-sweep").await.unwrap();
        lease.spec.get_or_insert_default().holder_identity = Some(holder.to_owned());
        home.replace("berth-sweep", &PostParams::default(), &lease)
            .await
    };
    sweep(&owner, "node-b").await.unwrap();
    denied(
        sweep(&thief, "node-b").await,
        ("berth-agents-leases", "in its own name only"),
    );
    let home = leases(&thief, HOME).await;
    let turns = merge(
        &home,
        "berth-turns",
        json!({ "spec": { "holderIdentity": "node-a" } }),
    );
    denied(
        turns.await,
        ("berth-agents-leases", "turns are annotations"),
    );
}

pub(crate) fn pool(name: &str, range: &str, metadata: Value) -> DynamicObject {
    let mut object = json!({
        "apiVersion": "whereabouts.cni.cncf.io/v1alpha1", "kind": "IPPool",
        "metadata": metadata,
        "spec": { "range": range, "allocations": {} },
    });
    object["metadata"]["name"] = json!(name);
    serde_json::from_value(object).unwrap()
}

pub(crate) fn published_by(node: &str) -> Value {
    json!({ "annotations": { "berth.dev/published-by": node } })
}

#[tokio::test]
async fn a_stolen_token_writes_no_other_nodes_published_pool() {
    let (thief, owner) = nodes().await;
    let (thief, owner) = (pools(&thief).await, pools(&owner).await);
    let name = "node-b-10.2.0.0-26";
    let object = pool(name, "10.2.0.0/26", published_by("node-b"));
    owner.create(&PostParams::default(), &object).await.unwrap();
    let entry = json!({ "spec": { "allocations": { "1": { "id": "c", "podref": "ns/p" } } } });
    merge(&owner, name, entry).await.unwrap();
    let words = ("berth-agents-pools", "the pool is published by node node-b");
    let freed = json!({ "spec": { "allocations": { "1": null } } });
    denied(merge(&thief, name, freed.clone()).await, words);
    let taken = json!({ "metadata": published_by("node-a") });
    denied(merge(&thief, name, taken).await, words);
    let given_back = json!({ "metadata": { "labels": { "berth.dev/given-back": "true" } } });
    denied(merge(&thief, name, given_back.clone()).await, words);
    merge(&owner, name, given_back).await.unwrap();
    merge(&owner, name, freed).await.unwrap();
    // Nor is one made in its place.
    let before = |node: &str| pool("node-b-10.2.0.64-26", "10.2.0.64/26", published_by(node));
    let made = async |node: &str| thief.create(&PostParams::default(), &before(node)).await;
    denied(made("node-b").await, words);
    denied(
        made("node-a").await,
        (
            "berth-agents-pools",
            "publishes the pools that have its name",
        ),
    );
    let deleted = thief.delete(name, &DeleteParams::default()).await;
    denied(deleted, ("", "cannot delete resource"));
}

/// The longest text that the ledger writes: 192 KiB.
fn full_cooldown_annotation() -> String {
    let rest = |n: u32| {
        let owner = json!({ "subject": format!("namespace-{n}/pod-{n}"), "part": "net1" });
        let rest = json!({ "since": 1_700_000_000_000_u64, "until": 1_700_000_060_000_u64, "owner": owner });
        format!("\"{n}\":{rest}")
    };
    let mut text = format!("{{{}", rest(0));
    for next in (1..).map(rest) {
        if text.len() + next.len() + 2 > 192 * 1024 {
            break;
        }
        text = text + "," + &next;
    }
    text + "}"
}

#[tokio::test]
async fn a_stolen_token_breaks_no_shared_pool() {
    let (thief, owner) = nodes().await;
    let (thief, owner) = (pools(&thief).await, pools(&owner).await);
    let name = "10.3.0.0-24";
    let object = pool(name, "10.3.0.0/24", json!({}));
    owner.create(&PostParams::default(), &object).await.unwrap();
    let annotated = |key: &str, value: &str| {
        let key = format!("berth.dev/{key}");
        json!({ "metadata": { "annotations": { key: value } } })
    };
    let words = ("berth-agents-pools", "in Berth's own form");
    for (key, value) in [
        ("resting", "broken"),
        (
            "resting",
            r#"{"1":{"since":1,"until":2,"owner":{"subject":"ns/p"}},}"#,
        ),
        (
            "resting",
            r#"{"x":{"since":1,"until":2,"owner":{"subject":"ns/p"}}}"#,
        ),
        // No comma, numbers that begin with zero, a control character: text that no JSON reader takes.
        (
            "resting",
            r#"{"1":{"since":1,"until":2,"owner":{"subject":"ns/p"}}"2":{"since":1,"until":2,"owner":{"subject":"ns/p"}}}"#,
        ),
        (
            "resting",
            r#"{"1":{"since":01,"until":2,"owner":{"subject":"ns/p"}}}"#,
        ),
        (
            "resting",
            r#"{"1":{"since":1,"until":02,"owner":{"subject":"ns/p"}}}"#,
        ),
        (
            "resting",
            "{\"1\":{\"since\":1,\"until\":2,\"owner\":{\"subject\":\"ns/\np\"}}}",
        ),
        (
            "resting",
            "{\"1\":{\"since\":1,\"until\":2,\"owner\":{\"subject\":\"ns/p\",\"part\":\"\u{1f}\"}}}",
        ),
        ("sliced", "yes"),
        ("sliced", r#"{"state":"sliced","size":300}"#),
        ("sliced", r#"{"state":"sliced","size":07}"#),
        ("assigned", "{}"),
        ("assigned", "{\"by\":[\"blue\n\"]}"),
        ("assigned", "{\"by\":[\"blue\"],\"opening\":\"\t\"}"),
        ("unreserved", "{\"by\":[\"blue\",\"\n\"]}"),
        ("unreserved", "[]"),
        ("anything", "else"),
    ] {
        denied(merge(&thief, name, annotated(key, value)).await, words);
    }
    for (key, value) in [
        (
            "resting",
            r#"{"1":{"since":1,"until":2,"owner":{"subject":"ns/p","part":"net1"}},"2":{"since":1,"until":2,"owner":{"subject":"ns/p"}}}"#,
        ),
        (
            "sliced",
            r#"{"state":"leaving","size":26,"unreserved":true}"#,
        ),
        ("assigned", r#"{"by":["blue","red"],"opening":"x"}"#),
        ("sliced", r#"{"state":"sliced","size":8}"#),
        // As much as Berth writes: what an expression may cost bounds what a pattern can be tried on.
        ("resting", &full_cooldown_annotation()),
    ] {
        merge(&owner, name, annotated(key, value)).await.unwrap();
    }
    let range = json!({ "spec": { "range": "10.0.0.0/8" } });
    denied(
        merge(&thief, name, range).await,
        ("berth-agents-pools", "spec.range"),
    );
    let owners = json!({ "metadata": { "ownerReferences": [
        { "apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "gone" },
    ] } });
    denied(
        merge(&thief, name, owners).await,
        ("berth-agents-pools", "no owners"),
    );
    let finalizers = json!({ "metadata": { "finalizers": ["example.com/never"] } });
    denied(
        merge(&thief, name, finalizers).await,
        ("berth-agents-pools", "no owners"),
    );
    let given_back = json!({ "metadata": { "labels": { "berth.dev/given-back": "true" } } });
    denied(
        merge(&thief, name, given_back).await,
        ("berth-agents-pools", "labels"),
    );
    let other = pool("10.3.1.0-24", "10.0.0.0/8", json!({}));
    let made = thief.create(&PostParams::default(), &other).await;
    denied(made, ("berth-agents-pools", "spec.range"));
}

#[tokio::test]
async fn a_stolen_token_changes_no_address_that_a_claim_records() {
    let (thief, owner) = nodes().await;
    let cluster = deployed().await;
    let claim = json!({
        "apiVersion": "k8s.cni.cncf.io/v1alpha1", "kind": "IPAMClaim",
        "metadata": { "name": "migrating", "namespace": "default" },
        "spec": { "network": "blue", "interface": "net1" },
    });
    cluster.apply_object(claim).await.unwrap();
    let resource = ApiResource::erase::<berth_api::cncf::IPAMClaim>(&());
    let claims = async |account: &Account| -> Api<DynamicObject> {
        Api::namespaced_with(account.client().await.unwrap(), "default", &resource)
    };
    let (thief, owner) = (claims(&thief).await, claims(&owner).await);
    let write = async |api: &Api<DynamicObject>, status: Value| {
        let patch = Patch::Merge(json!({ "status": status }));
        api.patch_status("migrating", &PatchParams::default(), &patch)
            .await
    };
    let given = json!({ "ips": ["10.4.0.5/24"], "ownerPod": { "name": "vm-1" } });
    write(&owner, given).await.unwrap();
    let words = ("berth-agents-ipamclaims", "stay as they are");
    denied(
        write(&thief, json!({ "ips": ["10.4.0.9/24"] })).await,
        words,
    );
    denied(write(&thief, json!({ "ips": [] })).await, words);
    // The next pod of a machine that migrates is on another node.
    let next = json!({ "ownerPod": { "name": "vm-2" } });
    write(&thief, next).await.unwrap();
}

#[tokio::test]
async fn a_stolen_token_forges_no_event_of_another_node() {
    let (thief, owner) = nodes().await;
    let report = async |account: &Account,
                        (component, host): (&str, &str),
                        about: (&str, &str),
                        (reporter, instance): (&str, &str)| {
        let events: Api<Event> = Api::namespaced(account.client().await.unwrap(), "default");
        let event = json!({
            "metadata": { "generateName": "forged-", "namespace": "default" },
            "involvedObject": { "kind": about.0, "name": about.1 },
            "reason": "SliceLost", "type": "Warning",
            "source": { "component": component, "host": host },
            "reportingComponent": reporter, "reportingInstance": instance,
        });
        let event: Event = serde_json::from_value(event).unwrap();
        events.create(&PostParams::default(), &event).await
    };
    let tell = async |account: &Account, component: &str, host: &str, about: (&str, &str)| {
        report(account, (component, host), about, ("", "")).await
    };
    let node = ("Node", "node-b");
    tell(&owner, "berth-agent", "node-b", node).await.unwrap();
    let words = ("berth-agents-events", "in the name of Berth on that node");
    denied(tell(&thief, "berth-agent", "node-b", node).await, words);
    denied(tell(&thief, "kubelet", "node-a", node).await, words);
    let outcome = tell(&thief, "berth-agent", "node-a", node).await;
    denied(outcome, ("berth-agents-events", "tells of no other Node"));
    // The other pair of fields that say whose an event is.
    let (own, own_node) = (("berth-agent", "node-a"), ("Node", "node-a"));
    report(&thief, own, own_node, own).await.unwrap();
    let words = ("berth-agents-events", "reports events as itself");
    for reporter in [("kubelet", "node-a"), ("berth-agent", "node-b")] {
        denied(report(&thief, own, own_node, reporter).await, words);
    }
}
