//! What a token that was stolen from the agent of one node can't do to hosts' addresses and objects of other nodes.

use berth_testkit::Account;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

use crate::site::{HOME, Site};

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

async fn api(account: &Account, version: &str, kind: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("nmstate.io", version, kind);
    let client = account.client().await.unwrap();
    Api::all_with(client, &ApiResource::from_gvk(&kind))
}

fn object(version: &str, kind: &str, name: &str, node: &str) -> DynamicObject {
    serde_json::from_value(json!({
        "apiVersion": format!("nmstate.io/{version}"), "kind": kind,
        "metadata": { "name": name, "labels": { "nmstate.io/node": node } },
    }))
    .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stolen_token_writes_no_other_nodes_enactment_and_no_state_of_its_interfaces() {
    let site = Site::new().await;
    let (thief, owner) = (
        site.agents.on("node01").await,
        site.agents.on("node02").await,
    );
    let (thief, owner) = (thief.unwrap(), owner.unwrap());
    let loose = site.cluster.account(HOME, "berth-agent").await.unwrap();
    let (version, kind) = ("v1beta1", "NodeNetworkConfigurationEnactment");
    let (params, how) = (PostParams::default(), DeleteParams::default());
    let words = (
        "berth-agents-hosts",
        "an agent writes what is of its own node",
    );
    let name = "node02.denials";
    let theirs = object(version, kind, name, "node02");
    let enactments = api(&thief, version, kind).await;
    denied(enactments.create(&params, &theirs).await, words);
    let own = api(&owner, version, kind).await;
    own.create(&params, &theirs).await.unwrap();
    denied(enactments.delete(name, &how).await, words);
    let taken = Patch::Merge(json!({ "metadata": { "labels": { "nmstate.io/node": "node01" } } }));
    let merge = PatchParams::default();
    denied(enactments.patch(name, &merge, &taken).await, words);
    // Nor does it make one of its own another's.
    denied(own.patch(name, &merge, &taken).await, words);
    let mut failed = own.get(name).await.unwrap();
    failed.data["status"] = json!({ "conditions": [] });
    let status = enactments.replace_status(name, &params, &failed).await;
    denied(status, words);
    let states = api(&thief, version, "NodeNetworkState").await;
    let state = object(version, "NodeNetworkState", "node02", "node01");
    denied(states.create(&params, &state).await, words);

    let words = ("berth-agents-hosts", "this token is bound to no node");
    let enactments = api(&loose, version, kind).await;
    let any = object(version, kind, "any.denials", "");
    denied(enactments.create(&params, &any).await, words);
    denied(enactments.delete(name, &how).await, words);
    own.delete(name, &how).await.unwrap();
}

fn allocation(offset: u64, node: &str) -> Value {
    json!({ "ip": format!("10.20.0.{}", offset + 1), "offset": offset, "node": node,
        "policy": "p", "capture": "c" })
}

fn status(offsets: &[u64], allocations: &[Value]) -> Value {
    json!({ "allocated-offsets": offsets, "allocations": allocations, "used": offsets.len() })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stolen_token_releases_no_other_nodes_host_address_and_allocates_none_for_it() {
    let site = Site::new().await;
    let thief = site.agents.on("node01").await.unwrap();
    let pool = json!({
        "apiVersion": "nmstate.io/v1", "kind": "NodeIPPool", "metadata": { "name": "denials" },
        "spec": { "range": { "cidr": "10.20.0.0/24" } },
    });
    site.cluster.apply_object(pool).await.unwrap();
    let kind = GroupVersionKind::gvk("nmstate.io", "v1", "NodeIPPool");
    let admin = site.cluster.client().await.unwrap();
    let admin: Api<DynamicObject> = Api::all_with(admin, &ApiResource::from_gvk(&kind));
    let write = async |api: &Api<DynamicObject>, status: Value| {
        let mut pool = admin.get("denials").await.unwrap();
        pool.data["status"] = status;
        let params = PostParams::default();
        api.replace_status("denials", &params, &pool).await
    };
    let both = [allocation(1, "node02"), allocation(2, "node01")];
    // The offset 3 is of a node that the list does not name.
    let before = status(&[1, 2, 3], &both);
    write(&admin, before.clone()).await.unwrap();
    let (pools, own) = (
        api(&thief, "v1", "NodeIPPool").await,
        allocation(2, "node01"),
    );
    let words = (
        "berth-agents-host-pools",
        "neither allocates nor releases addresses of other nodes",
    );
    for changed in [
        status(&[2, 3], std::slice::from_ref(&own)),
        status(&[1, 2, 3], &[allocation(1, "node01"), own.clone()]),
        status(&[1, 2, 3], &[allocation(1, "node03"), own.clone()]),
        status(
            &[1, 2, 3, 4],
            &[both.as_slice(), &[allocation(4, "node02")]].concat(),
        ),
        status(&[1, 2, 3], &[]),
    ] {
        denied(write(&pools, changed).await, words);
    }
    let words = (
        "berth-agents-host-pools",
        "changes the offsets of its own addresses only",
    );
    for offsets in [&[1, 2][..], &[2, 3], &[], &[1, 2, 3, 9]] {
        denied(write(&pools, status(offsets, &both)).await, words);
    }
    let mut forged = before.clone();
    forged["conditions"] = json!([{ "type": "Available", "status": "False", "reason": "Forged",
        "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" }]);
    let words = ("berth-agents-host-pools", "and no conditions");
    denied(write(&pools, forged).await, words);
    // Its own: released, allocated, and an offset of its own that the list did not name.
    let released = status(&[1, 3], &both[..1]);
    write(&pools, released).await.unwrap();
    let named = [both[0].clone(), allocation(3, "node01")];
    write(&pools, status(&[1, 3], &named)).await.unwrap();
    write(
        &pools,
        status(
            &[1, 3, 7],
            &[named.as_slice(), &[allocation(7, "node01")]].concat(),
        ),
    )
    .await
    .unwrap();

    let loose = site.cluster.account(HOME, "berth-agent").await.unwrap();
    let loose = api(&loose, "v1", "NodeIPPool").await;
    let words = (
        "berth-agents-host-pools",
        "a token that is bound to its node",
    );
    denied(write(&loose, before).await, words);
}
