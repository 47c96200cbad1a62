//! What a token that was stolen from the agent of one node can't do to the entries and reservations of others, where the
//! controller is deployed.

use std::time::{Duration, Instant};

use berth_testkit::Account;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::HOME;
use crate::stolen::{Denial, denied, merge, nodes, pool, pools, refused};

/// With the controller deployed: freeing node-b's entry in a plain pool, which gave an address twice.
#[tokio::test]
async fn berth_16_2_a_stolen_token_frees_no_other_nodes_entry() {
    let (thief, owner) = nodes().await;
    let (thief, owner) = (pools(&thief).await, pools(&owner).await);
    let name = "10.6.0.0-24";
    let object = pool(name, "10.6.0.0/24", json!({}));
    owner.create(&PostParams::default(), &object).await.unwrap();
    let entry =
        |node: &str| json!({ "id": "c1", "podref": "ns/p", "ifname": "net1", "node": node });
    let write = async |api: &Api<DynamicObject>, offset: &str, entry: Value| {
        let allocations = json!({ "spec": { "allocations": { offset: entry } } });
        merge(api, name, allocations).await
    };
    write(&owner, "1", entry("node-b")).await.unwrap();
    let refused = |outcome: Result<DynamicObject, kube::Error>| {
        let by = ("berth-agents-entries", "entry 1 is of node node-b");
        invalid(outcome, by, "another's entry");
    };
    in_force(async || write(&thief, "1", json!({ "id": "c9" })).await.is_err()).await;
    refused(write(&thief, "1", Value::Null).await);
    refused(write(&thief, "1", json!({ "id": "c2" })).await);
    refused(write(&thief, "1", json!({ "node": "node-a" })).await);
    let replaced = json!([{ "op": "replace", "path": "/spec/allocations", "value": {} }]);
    let replaced = Patch::Json::<()>(serde_json::from_value(replaced).unwrap());
    refused(thief.patch(name, &PatchParams::default(), &replaced).await);
    // Its own entries, beside the other's, and those that name no node.
    write(&thief, "2", entry("node-a")).await.unwrap();
    let of_whereabouts = json!({ "id": "c3", "podref": "ns/w", "ifname": "net1" });
    write(&owner, "3", of_whereabouts).await.unwrap();
    write(&thief, "3", Value::Null).await.unwrap();
    write(&thief, "2", Value::Null).await.unwrap();
    write(&owner, "1", Value::Null).await.unwrap();
}

/// And the reservation beside it.
#[tokio::test]
async fn a_stolen_token_deletes_no_other_nodes_reservation() {
    use berth_api::whereabouts::OverlappingRangeIPReservation as Reservation;
    let (thief, owner) = nodes().await;
    let api = async |account: &Account| -> Api<Reservation> {
        Api::namespaced(account.client().await.unwrap(), HOME)
    };
    let (thief, owner) = (api(&thief).await, api(&owner).await);
    let reservation = |name: &str, node: &str| -> Reservation {
        serde_json::from_value(json!({
            "apiVersion": "whereabouts.cni.cncf.io/v1alpha1", "kind": "OverlappingRangeIPReservation",
            "metadata": { "name": name, "annotations": { "berth.dev/node": node } },
            "spec": { "containerid": "c", "podref": "ns/p", "ifname": "net1" },
        }))
        .unwrap()
    };
    let params = PostParams::default();
    let theirs = reservation("10.6.0.1", "node-b");
    owner.create(&params, &theirs).await.unwrap();
    let forged = reservation("10.6.0.2", "node-b");
    in_force(async || {
        let dry = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        thief.create(&dry, &forged).await.is_err()
    })
    .await;
    let made = thief.create(&params, &forged).await;
    denied(
        made,
        (
            "berth-agents-reservations",
            "reserves nothing for node node-b",
        ),
    );
    let how = DeleteParams::default();
    let words = (
        "berth-agents-reservations",
        "the reservation is of node node-b",
    );
    denied(thief.delete("10.6.0.1", &how).await, words);
    let stripped = json!({ "metadata": { "annotations": { "berth.dev/node": null } } });
    denied(merge(&thief, "10.6.0.1", stripped).await, words);
    owner.delete("10.6.0.1", &how).await.unwrap();
}

/// A policy is there some moments after it was made.
async fn in_force(denies: impl AsyncFn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !denies().await {
        assert!(Instant::now() < end, "the policy never began to work");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// A pool that is large is written without nodes, and such entries anyone may change: no stray bytes make it large.
#[tokio::test]
async fn a_stolen_token_adds_no_entry_that_berth_does_not_write() {
    let (thief, owner) = nodes().await;
    let (thief, owner) = (pools(&thief).await, pools(&owner).await);
    let name = "10.6.1.0-24";
    let object = pool(name, "10.6.1.0/24", json!({}));
    owner.create(&PostParams::default(), &object).await.unwrap();
    let allocations = |entries: Value| json!({ "spec": { "allocations": entries } });
    let fits = |id: usize, podref: usize, ifname: usize| json!({ "id": "c".repeat(id), "podref": "p".repeat(podref), "ifname": "i".repeat(ifname), "node": "node-a" });
    let stray = json!({ "x": { "id": "c".repeat(600_000), "podref": "ns/p" } });
    in_force(async || {
        merge(&thief, name, allocations(stray.clone()))
            .await
            .is_err()
    })
    .await;
    let whole = "9".repeat(40);
    for entries in [
        stray,
        json!({ "x": fits(1, 1, 1) }),
        json!({ "01": fits(1, 1, 1) }),
        json!({ "-1": fits(1, 1, 1) }),
        json!({ "256": fits(1, 1, 1) }),
        json!({ whole: fits(1, 1, 1) }),
        json!({ "1": "held" }),
        json!({ "1": { "id": ["c"], "podref": "ns/p" } }),
        json!({ "1": { "id": "c", "podref": "ns/p", "more": "x" } }),
        json!({ "1": fits(257, 1, 1) }),
        json!({ "1": fits(1, 321, 1) }),
        json!({ "1": fits(1, 1, 16) }),
    ] {
        let what = entries.to_string();
        let what = what.get(..what.len().min(100)).unwrap();
        let written = merge(&thief, name, allocations(entries.clone())).await;
        invalid(
            written,
            ("berth-agents-entries", "is not what Berth writes"),
            what,
        );
        let name = "10.6.2.0-24";
        let mut made = pool(name, "10.6.2.0/24", json!({}));
        made.data["spec"]["allocations"] = entries;
        let made = thief.create(&PostParams::default(), &made).await;
        invalid(
            made,
            ("berth-agents-entries", "is not what Berth writes"),
            what,
        );
    }
    let most = json!({ "0": fits(256, 320, 15), "255": fits(1, 1, 0) });
    merge(&thief, name, allocations(most)).await.unwrap();
    // A field that another program wrote stays where its entry is changed.
    let admin: Api<DynamicObject> = {
        let cluster = crate::deployed().await;
        let resource = kube::core::ApiResource::erase::<berth_api::whereabouts::IPPool>(&());
        Api::namespaced_with(cluster.client().await.unwrap(), HOME, &resource)
    };
    let foreign = json!({ "7": { "id": "c7", "podref": "ns/p7", "since": "today" } });
    merge(&admin, name, allocations(foreign)).await.unwrap();
    let changed = json!({ "7": { "id": "c8", "node": "node-a" } });
    merge(&thief, name, allocations(changed)).await.unwrap();
}

/// Nobody could tell whose it is, and its node could not free it.
#[tokio::test]
async fn a_stolen_token_writes_no_entry_in_another_nodes_name() {
    let (thief, owner) = nodes().await;
    let (thief, owner) = (pools(&thief).await, pools(&owner).await);
    let name = "10.6.3.0-24";
    let object = pool(name, "10.6.3.0/24", json!({}));
    owner.create(&PostParams::default(), &object).await.unwrap();
    let entry = |node: &str| json!({ "id": "c1", "podref": "ns/p", "node": node });
    let entries = |entries: Value| json!({ "spec": { "allocations": entries } });
    let forged = entries(json!({ "1": entry("node-b") }));
    in_force(async || merge(&thief, name, forged.clone()).await.is_err()).await;
    let words = ("berth-agents-entries", "would be of another node");
    invalid(merge(&thief, name, forged).await, words, "a new entry");
    let nameless = json!({ "id": "c2", "podref": "ns/p" });
    for mine in [json!({ "1": entry("node-a") }), json!({ "2": nameless })] {
        merge(&thief, name, entries(mine)).await.unwrap();
    }
    // Nobody's, and so nobody could free it.
    let nobodys = merge(&thief, name, entries(json!({ "3": entry("") })));
    invalid(nobodys.await, words, "an entry of a node without a name");
    let given = merge(&thief, name, entries(json!({ "1": { "node": "node-b" } })));
    invalid(given.await, words, "an own entry");
    let named = merge(&thief, name, entries(json!({ "2": { "node": "node-b" } })));
    invalid(named.await, words, "one that names no node");
    let mut made = pool("10.6.4.0-24", "10.6.4.0/24", json!({}));
    made.data["spec"]["allocations"] = json!({ "1": entry("node-b") });
    let made = thief.create(&PostParams::default(), &made).await;
    invalid(made, words, "a new pool");
}

/// What an expression may cost is bounded, and one that costs more denies: a pool of 10,000 entries is written all the same.
#[tokio::test]
async fn a_pool_of_ten_thousand_entries_is_written_under_the_policies() {
    let (thief, owner) = nodes().await;
    let (thief, owner) = (pools(&thief).await, pools(&owner).await);
    let entry = |n: u32, node: &str| json!({ "id": format!("c{n}"), "podref": format!("namespace/pod-{n}"), "ifname": "net1", "node": node });
    let half = |from: u32| -> Value {
        let all = (from..from + 5_000).map(|n| (n.to_string(), entry(n, "node-b")));
        Value::Object(all.collect())
    };
    let name = "10.7.0.0-16";
    let mut object = pool(name, "10.7.0.0/16", json!({}));
    object.data["spec"]["allocations"] = half(0);
    owner.create(&PostParams::default(), &object).await.unwrap();
    // Without what the API server notes of each field, as Berth writes it: that would be as large again.
    let untracked = json!([{}]);
    let entries = |entries: Value| json!({ "metadata": { "managedFields": untracked }, "spec": { "allocations": entries } });
    merge(&owner, name, entries(half(5_000))).await.unwrap();
    let one = |n: u32, node: &str| entries(json!({ n.to_string(): entry(n, node) }));
    in_force(async || merge(&thief, name, one(0, "node-a")).await.is_err()).await;
    merge(&thief, name, one(10_000, "node-a")).await.unwrap();
    let freed = |n: u32| entries(json!({ n.to_string(): null }));
    invalid(
        merge(&thief, name, freed(1)).await,
        ("berth-agents-entries", "entry 1 is of node node-b"),
        "another's",
    );
    merge(&owner, name, freed(1)).await.unwrap();
    merge(&thief, name, freed(10_000)).await.unwrap();
}

/// Invalid, and not Forbidden: a desk that writes for several pods then finds out which of them it is.
fn invalid(outcome: Result<DynamicObject, kube::Error>, by: Denial<'_>, what: &str) {
    refused(outcome, 422, by, what);
}
