//! Agents under deploy/gcp/controller/policies.yaml: what they do through the leader's desk works, and what a stolen token would do to other
//! nodes' addresses is denied.

use kube::api::{Api, DynamicObject, PostParams};
use serde_json::{Value, json};

use crate::site::{Host, Site, pools, until};

type Denial<'a> = (&'a str, &'a str);

fn denied<T: std::fmt::Debug>(outcome: Result<T, kube::Error>, (policy, words): Denial<'_>) {
    match outcome {
        Err(kube::Error::Api(status)) => {
            let by = status.message.contains(&format!("'{policy}'"));
            assert!(by && status.message.contains(words), "{status:?}");
        }
        other => panic!("not denied by {policy} ({words}): {other:?}"),
    }
}

/// Changes the pool as it is now, with that client.
async fn write(
    site: &Site,
    api: &Api<DynamicObject>,
    change: impl Fn(&mut Value, &mut Value),
) -> Result<DynamicObject, kube::Error> {
    loop {
        let mut pool = api.get(&site.pool_name()).await?;
        let mut metadata = serde_json::to_value(&pool.metadata).unwrap();
        change(&mut pool.data["spec"], &mut metadata);
        pool.metadata = serde_json::from_value(metadata).unwrap();
        let name = site.pool_name();
        match api.replace(&name, &PostParams::default(), &pool).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            outcome => return outcome,
        }
    }
}

fn new_pool(name: &str) -> DynamicObject {
    serde_json::from_value(json!({
        "apiVersion": "ipam.gcp-cni.cast.ai/v1alpha1", "kind": "IPPool", "metadata": { "name": name },
        "spec": { "cidr": "10.112.0.0/16", "subnet": "s", "allocations": {} },
    }))
    .unwrap()
}

/// Waits until the policy is in force: some moments after it was made.
async fn in_force(thief: &Api<DynamicObject>) {
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let probe = new_pool("probe");
    until("the policy denies", async || {
        thief.create(&dry, &probe).await.is_err()
    })
    .await;
}

async fn of(host: &Host) -> Api<DynamicObject> {
    pools(host.account.client().await.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn addresses_are_allocated_moved_and_released_under_the_policies() {
    let site = Site::under_policies(50).await;
    let (a, b) = (site.host("a").await, site.host("b").await);
    in_force(&of(&a).await).await;
    let mut controller = site.controller("first").await;
    let (_source, _destination) = (site.asking_agent(&a).await, site.asking_agent(&b).await);
    site.pod("cart", &a, json!({})).await;
    let ip = site.add(&a, "cart");
    site.mark_to_move_out("cart").await;
    let annotations = json!({ "live.cast.ai/ip": ip, "live.cast.ai/original-instance": a.name });
    let annotations = json!({ "annotations": annotations });
    site.pod("clone", &b, annotations).await;
    assert_eq!(site.add(&b, "clone"), ip);
    assert_eq!(site.holder(&ip), b.name);
    assert_eq!(site.entry(&ip).await["nodeName"], json!(b.name));
    site.del(&a, "cart");
    // Without a leader each agent writes its own allocations.
    controller.kill().unwrap();
    site.pod("alone", &a, json!({})).await;
    let own = site.add(&a, "alone");
    assert_eq!(site.entry(&own).await["nodeName"], json!(a.name));
    for (host, pod, address) in [(&a, "alone", own), (&b, "clone", ip)] {
        site.del(host, pod);
        site.until_free(&address).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stolen_token_releases_and_moves_no_other_nodes_address_on_google_cloud() {
    let site = Site::under_policies(50).await;
    let (a, b) = (site.host("a").await, site.host("b").await);
    let (thief, owner) = (of(&a).await, of(&b).await);
    in_force(&thief).await;
    let entry = |pod: &str, node: &str| json!({ "podName": pod, "podNamespace": "ns", "podUID": format!("uid-{pod}"), "nodeName": node });
    let (theirs, own) = ("10.111.0.5", "10.111.0.6");
    let set = |address: &'static str, entry: Value| {
        move |spec: &mut Value, _: &mut Value| spec["allocations"][address] = entry.clone()
    };
    write(&site, &owner, set(theirs, entry("p", &b.name)))
        .await
        .unwrap();

    let words = ("berth-agents-gcp", "neither releases nor changes it");
    let removed = |spec: &mut Value, _: &mut Value| {
        spec["allocations"].as_object_mut().unwrap().remove(theirs);
    };
    denied(write(&site, &thief, removed).await, words);
    denied(
        write(&site, &thief, set(theirs, entry("p", &a.name))).await,
        words,
    );
    denied(
        write(&site, &thief, set(theirs, entry("q", &b.name))).await,
        words,
    );

    let words = ("berth-agents-gcp", "would be of another node");
    denied(
        write(&site, &thief, set(own, entry("q", &b.name))).await,
        words,
    );
    denied(write(&site, &thief, set(own, entry("q", ""))).await, words);
    write(&site, &thief, set(own, entry("q", &a.name)))
        .await
        .unwrap();
    denied(
        write(&site, &thief, set(own, entry("q", &b.name))).await,
        words,
    );

    // A move that its destination wrote by itself; then the mark on a pod of the other node.
    let moves = |address: &str, pod: &str| {
        let note = json!({ "to": { "node": a.name }, "from": { "node": b.name }, "until": 1 });
        let text = json!({ address: {
            "move": note.to_string(), "podUID": format!("uid-{pod}"), "stage": "attached",
        } });
        let text = text.to_string();
        move |_: &mut Value, metadata: &mut Value| {
            metadata["annotations"]["berth.dev/attributes"] = json!(text);
        }
    };
    let words = ("berth-agents-gcp", "its moves are written by the leader");
    denied(write(&site, &thief, moves(theirs, "p")).await, words);
    write(&site, &owner, moves(theirs, "p")).await.unwrap();
    let cleared = |_: &mut Value, metadata: &mut Value| {
        metadata["annotations"]["berth.dev/attributes"] = json!("{}");
    };
    denied(write(&site, &thief, cleared).await, words);
    let words = ("berth-agents-gcp", "is not what Berth writes there");
    for text in ["", "broken", r#"{"10.111.0.6":{"stage":"x"}"#] {
        let broken = move |_: &mut Value, metadata: &mut Value| {
            metadata["annotations"]["berth.dev/attributes"] = json!(text);
        };
        denied(write(&site, &owner, broken).await, words);
    }
    write(&site, &owner, cleared).await.unwrap();
    write(&site, &thief, moves(own, "q")).await.unwrap();

    let words = (
        "berth-agents-gcp",
        "range and subnet of a pool stay as they are",
    );
    for field in ["cidr", "subnet", "secondaryRangeName"] {
        let other = |spec: &mut Value, _: &mut Value| spec[field] = json!("10.0.0.0/8");
        denied(write(&site, &thief, other).await, words);
    }
    let words = (
        "berth-agents-gcp",
        "no owners and no finalizers of an IPPool",
    );
    let finalizers = |_: &mut Value, metadata: &mut Value| {
        metadata["finalizers"] = json!(["example.com/never"]);
    };
    denied(write(&site, &thief, finalizers).await, words);
    let owners = |_: &mut Value, metadata: &mut Value| {
        metadata["ownerReferences"] = json!([
            { "apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "gone" },
        ]);
    };
    denied(write(&site, &thief, owners).await, words);

    let pool = new_pool(&format!("ippool-of-{}", site.namespace));
    let words = (
        "berth-agents-gcp",
        "agents create pages of pools, and no pools",
    );
    let params = PostParams::default();
    denied(thief.create(&params, &pool).await, words);
    let loose = site.cluster.account(&site.namespace, "berth-agent").await;
    let loose = pools(loose.unwrap().client().await.unwrap());
    let words = ("berth-agents-gcp", "a token that is bound to its node");
    denied(loose.create(&params, &pool).await, words);
    denied(
        write(&site, &loose, set("10.111.0.7", entry("r", ""))).await,
        words,
    );
}
