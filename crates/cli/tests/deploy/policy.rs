//! Pools edited by hand: a wrong entry is refused and named, whatever a program writes is taken.

use std::time::{Duration, Instant};

use berth_api::whereabouts::IPPool;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::core::ApiResource;
use serde_json::{Value, json};

use crate::{HOME, deployed};

const POOL: &str = "10.99.0.0-24";

/// As whatever there is: the type would refuse what is wrong before it is sent.
async fn pools(client: kube::Client) -> Api<DynamicObject> {
    Api::namespaced_with(client, HOME, &ApiResource::erase::<IPPool>(&()))
}

async fn write(api: &Api<DynamicObject>, offset: &str, entry: Value) -> Result<(), String> {
    let merge = Patch::Merge(json!({ "spec": { "allocations": { offset: entry } } }));
    match api.patch(POOL, &PatchParams::default(), &merge).await {
        Ok(_) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

#[tokio::test]
async fn a_person_is_told_which_entry_is_wrong_and_a_program_is_not_looked_at() {
    let cluster = deployed().await;
    let spec = json!({ "range": "10.99.0.0/24", "allocations": {
        "1": { "id": "c1", "podref": "default/one", "ifname": "net1" },
    } });
    let pool = json!({
        "apiVersion": "whereabouts.cni.cncf.io/v1alpha1", "kind": "IPPool",
        "metadata": { "name": POOL, "namespace": HOME }, "spec": spec,
    });
    cluster.apply_object(pool).await.unwrap();
    let person = pools(cluster.client().await.unwrap()).await;
    // Agents have a policy of their own; this is another program, as whereabouts is.
    let rules = json!([{ "apiGroups": ["whereabouts.cni.cncf.io"], "resources": ["ippools"], "verbs": ["get", "patch"] }]);
    let program = cluster.service_account(HOME, "another-program", rules);
    let program = pools(program.await.unwrap().client().await.unwrap()).await;
    let wrong = [
        ("2", json!({ "id": 7, "podref": "default/two" })),
        ("2", json!({ "id": "c2" })),
        ("2", json!("default/two")),
        (
            "2",
            json!({ "id": "c2", "podref": "default/two", "ifname": 1 }),
        ),
        ("two", json!({ "id": "c2", "podref": "default/two" })),
        ("02", json!({ "id": "c2", "podref": "default/two" })),
    ];
    // A policy is there some moments after it was made.
    let end = Instant::now() + Duration::from_secs(60);
    while write(&person, "2", json!(2)).await.is_ok() {
        assert!(Instant::now() < end, "the policy never began to work");
        write(&person, "2", Value::Null).await.unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    for (offset, entry) in wrong {
        let told = write(&person, offset, entry.clone()).await.unwrap_err();
        let named = format!("spec.allocations[{offset}]: an entry is");
        assert!(told.contains(&named), "{entry}: {told}");
    }
    let now = person.get(POOL).await.unwrap();
    assert_eq!(now.data["spec"], spec, "nothing of it was written");

    // What a program has put there, right or wrong, does not stand in a person's way; mending it is not refused.
    write(&program, "3", json!({ "id": 7, "podref": "default/three" }))
        .await
        .unwrap();
    write(
        &person,
        "4",
        json!({ "id": "c4", "podref": "default/four" }),
    )
    .await
    .unwrap();
    write(&person, "3", json!({ "id": 8 })).await.unwrap_err();
    write(&person, "3", json!({ "id": "c3" })).await.unwrap();
    write(&person, "1", Value::Null).await.unwrap();
}
