//! Addresses that outlive their pods: StatefulSets and IPAMClaims.

use berth_api::cncf::IPAMClaim;
use berth_api::whereabouts::{IPPool, OverlappingRangeIPReservation};
use k8s_openapi::api::apps::v1::StatefulSet;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::world::{POOL, World};

/// A network of the test's own, known to the cluster.
async fn network(world: &World, key: &str) -> Value {
    let mut network = json!({
        "cniVersion": "1.0.0", "name": "blue", "type": "macvlan",
        "ipam": { "type": "whereabouts", "range": "10.0.0.0/24", "network_name": world.namespace },
    });
    match key {
        "allowPersistentIPs" => network[key] = json!(true),
        key => network["ipam"][key] = json!(true),
    }
    world.put_network("blue", &network).await;
    network
}

async fn holders(world: &World) -> Vec<(String, String, String)> {
    let pool = format!("{}-{POOL}", world.namespace);
    world.entries_of(&pool).await
}

fn entry(offset: &str, pod: &str, container: &str) -> (String, String, String) {
    (offset.into(), pod.into(), container.into())
}

async fn put_set(world: &World, replicas: u32) {
    let labels = json!({ "app": "web" });
    world
        .apply(json!({
            "apiVersion": "apps/v1", "kind": "StatefulSet",
            "metadata": { "name": "web", "namespace": world.namespace },
            "spec": {
                "replicas": replicas, "serviceName": "web", "selector": { "matchLabels": labels },
                "template": {
                    "metadata": { "labels": labels },
                    "spec": { "containers": [{ "name": "c", "image": "nothing" }] },
                },
            },
        }))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_statefulsets_pods_keep_their_addresses_until_they_are_scaled_away() {
    let world = World::new("set").await;
    let agent = world.agent("n1").await;
    let network = network(&world, "sticky_statefulset").await;
    put_set(&world, 2).await;
    let running = agent.collect();
    for pod in ["web-0", "web-1", "other"] {
        let uid = world.run_pod(&agent, pod).await;
        agent.add_to(&world, &network, pod, &uid, pod).await;
    }
    for pod in ["web-0", "web-1", "other"] {
        agent.del_from(&world, &network, pod, pod).await;
        world.delete_pod(pod).await;
    }
    let kept = [entry("1", "web-0", "web-0"), entry("2", "web-1", "web-1")];
    assert_eq!(holders(&world).await, kept);
    let swept = running.count("sweeps");
    running.until_count("sweeps", swept + 3.0).await;
    assert_eq!(holders(&world).await, kept, "the collector leaves them too");

    let uid = world.run_pod(&agent, "web-1").await;
    let again = agent.add_to(&world, &network, "web-1", &uid, "again").await;
    assert_eq!(again["ips"][0]["address"], "10.0.0.2/24");

    put_set(&world, 1).await;
    agent.del_from(&world, &network, "web-1", "again").await;
    assert_eq!(holders(&world).await, [entry("1", "web-0", "web-0")]);

    world
        .api::<StatefulSet>()
        .delete("web", &DeleteParams::default())
        .await
        .unwrap();
    world
        .until("freed with the set", async || {
            holders(&world).await.is_empty()
        })
        .await;
    running.stop().await;
}

fn referring_to(claim: &str) -> Value {
    let selection = json!([{ "name": "blue", "ipam-claim-reference": claim }]);
    json!({ "k8s.v1.cni.cncf.io/networks": selection.to_string() })
}

async fn put_claim(world: &World, name: &str) {
    world
        .apply(json!({
            "apiVersion": "k8s.cni.cncf.io/v1alpha1", "kind": "IPAMClaim",
            "metadata": { "name": name, "namespace": world.namespace },
            "spec": { "network": "blue", "interface": "net1" },
        }))
        .await;
}

/// Another network may use the same range: its pods' addresses are none of the claim's.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_keeps_nothing_of_another_network() {
    let world = World::new("other").await;
    let agent = world.agent("n1").await;
    let blue = network(&world, "allowPersistentIPs").await;
    let mut red = blue.clone();
    red["name"] = json!("red");
    red["ipam"]["network_name"] = json!(format!("{}-red", world.namespace));
    world.put_network("red", &red).await;
    put_claim(&world, "vm.blue").await;
    let uid = world
        .run_pod_with(&agent, "launcher", referring_to("vm.blue"))
        .await;
    let given = agent
        .add_to(&world, &blue, "launcher", &uid, "launcher")
        .await;
    assert_eq!(given["ips"][0]["address"], "10.0.0.1/24");
    let uid = world.run_pod(&agent, "stranger").await;
    let given = agent
        .add_to(&world, &red, "stranger", &uid, "stranger")
        .await;
    assert_eq!(given["ips"][0]["address"], "10.0.0.1/24");
    agent.del_from(&world, &red, "stranger", "stranger").await;
    let red_pool = format!("{}-red-{POOL}", world.namespace);
    assert_eq!(world.entries_of(&red_pool).await, []);

    // Nor is it by the collector, where the DEL never came.
    let given = agent
        .add_to(&world, &red, "stranger", &uid, "stranger")
        .await;
    assert_eq!(given["ips"][0]["address"], "10.0.0.1/24");
    world.delete_pod("stranger").await;
    world.delete_pod("launcher").await;
    let running = agent.collect();
    world
        .until("freed", async || {
            world.entries_of(&red_pool).await.is_empty()
        })
        .await;
    assert_eq!(holders(&world).await, [entry("1", "launcher", "launcher")]);
    running.stop().await;
}

/// A VM's pods have other names each time; its claim is what stays.
#[tokio::test(flavor = "multi_thread")]
async fn a_claims_address_goes_from_pod_to_pod_and_is_freed_with_the_claim() {
    let world = World::new("claim").await;
    let agent = world.agent("n1").await;
    let network = network(&world, "allowPersistentIPs").await;
    put_claim(&world, "vm.blue").await;
    let running = agent.collect();
    let add = async |pod: &str| {
        let uid = world
            .run_pod_with(&agent, pod, referring_to("vm.blue"))
            .await;
        let given = agent.add_to(&world, &network, pod, &uid, pod).await;
        given["ips"][0]["address"].as_str().unwrap().to_owned()
    };
    assert_eq!(add("launcher-a").await, "10.0.0.1/24");
    let claims = world.api::<IPAMClaim>();
    let status = claims.get("vm.blue").await.unwrap().status.unwrap();
    assert_eq!(status.ips, ["10.0.0.1/24"]);
    assert_eq!(status.owner_pod.unwrap().name, "launcher-a");
    let reservation = async || {
        let name = format!("{}-10.0.0.1", world.namespace);
        let all = world.api::<OverlappingRangeIPReservation>();
        let found = all.get(&name).await.unwrap();
        (found.metadata.uid, found.spec.podref)
    };
    let (uid, _) = reservation().await;

    // It migrates: the next pod is there before the last is gone, and the last one's DEL comes late. Both use the
    // address: its reservation is passed on, it is never gone.
    assert_eq!(add("launcher-b").await, "10.0.0.1/24");
    let of = |pod: &str| (uid.clone(), format!("{}/{pod}", world.namespace));
    assert_eq!(reservation().await, of("launcher-b"));

    // The same cut short after the entry: the repeat finds the reservation with the last pod, and takes it.
    let back = json!({ "spec": { "podref": of("launcher-a").1, "containerid": "launcher-a" } });
    let name = format!("{}-10.0.0.1", world.namespace);
    let params = PatchParams::default();
    world
        .api::<OverlappingRangeIPReservation>()
        .patch(&name, &params, &Patch::Merge(back))
        .await
        .unwrap();
    let unsettled = json!({ "status": { "ownerPod": { "name": "launcher-a" } } });
    claims
        .patch_status("vm.blue", &params, &Patch::Merge(unsettled))
        .await
        .unwrap();
    agent
        .add_to(&world, &network, "launcher-b", "any", "launcher-b")
        .await;
    assert_eq!(reservation().await, of("launcher-b"));
    agent
        .del_from(&world, &network, "launcher-a", "launcher-a")
        .await;
    world.delete_pod("launcher-a").await;
    let moved = [entry("1", "launcher-b", "launcher-b")];
    assert_eq!(holders(&world).await, moved);

    // The VM stops: nobody uses the address, and nobody else gets it.
    agent
        .del_from(&world, &network, "launcher-b", "launcher-b")
        .await;
    world.delete_pod("launcher-b").await;
    let uid = world.run_pod(&agent, "stranger").await;
    let stranger = agent
        .add_to(&world, &network, "stranger", &uid, "stranger")
        .await;
    assert_eq!(stranger["ips"][0]["address"], "10.0.0.2/24");
    let swept = running.count("sweeps");
    running.until_count("sweeps", swept + 3.0).await;
    assert_eq!(holders(&world).await[..1], moved);
    assert_eq!(add("launcher-c").await, "10.0.0.1/24");
    agent
        .del_from(&world, &network, "launcher-c", "launcher-c")
        .await;
    world.delete_pod("launcher-c").await;

    claims
        .delete("vm.blue", &DeleteParams::default())
        .await
        .unwrap();
    world
        .until("freed with the claim", async || {
            holders(&world).await == [entry("2", "stranger", "stranger")]
        })
        .await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_takes_nothing_from_a_stranger_and_never_changes_its_addresses() {
    let world = World::new("claimed").await;
    let agent = world.agent("n1").await;
    let network = network(&world, "allowPersistentIPs").await;
    let uid = world.run_pod(&agent, "stranger").await;
    agent
        .add_to(&world, &network, "stranger", &uid, "stranger")
        .await;
    put_claim(&world, "vm.blue").await;
    let claims = world.api::<IPAMClaim>();
    let theirs = json!({ "status": { "ips": ["10.0.0.1/24"] } });
    claims
        .patch_status("vm.blue", &PatchParams::default(), &Patch::Merge(theirs))
        .await
        .unwrap();
    let uid = world
        .run_pod_with(&agent, "vm", referring_to("vm.blue"))
        .await;
    let refused = agent.call(&world, "ADD", &network, "vm", &uid, "vm").await;
    assert_eq!(refused.exit, 1);
    assert!(
        refused.stdout.contains("vm.blue") && refused.stdout.contains("stranger"),
        "{}",
        refused.stdout
    );
    let status = claims.get("vm.blue").await.unwrap().status.unwrap();
    assert_eq!(status.ips, ["10.0.0.1/24"]);

    // A reference to nothing is not served with just any address.
    let uid = world
        .run_pod_with(&agent, "lost", referring_to("nothing"))
        .await;
    let refused = agent
        .call(&world, "ADD", &network, "lost", &uid, "lost")
        .await;
    assert!(
        refused.exit == 1 && refused.stdout.contains("nothing"),
        "{}",
        refused.stdout
    );
    assert_eq!(holders(&world).await, [entry("1", "stranger", "stranger")]);
}

/// whereabouts' collector knows nothing of claims, and frees what no pod holds.
#[tokio::test(flavor = "multi_thread")]
async fn a_claims_address_that_somebody_freed_is_entered_again() {
    let world = World::new("unheld").await;
    let agent = world.agent("n1").await;
    let network = network(&world, "allowPersistentIPs").await;
    put_claim(&world, "vm.blue").await;
    let uid = world
        .run_pod_with(&agent, "launcher-a", referring_to("vm.blue"))
        .await;
    agent
        .add_to(&world, &network, "launcher-a", &uid, "launcher-a")
        .await;
    agent
        .del_from(&world, &network, "launcher-a", "launcher-a")
        .await;
    world.delete_pod("launcher-a").await;
    let pool = format!("{}-{POOL}", world.namespace);
    let name = format!("{}-10.0.0.1", world.namespace);
    let free = json!({ "spec": { "allocations": { "1": null } } });
    world
        .api::<IPPool>()
        .patch(&pool, &PatchParams::default(), &Patch::Merge(free))
        .await
        .unwrap();
    world
        .api::<OverlappingRangeIPReservation>()
        .delete(&name, &DeleteParams::default())
        .await
        .unwrap();
    assert_eq!(holders(&world).await, []);

    let running = agent.sweep();
    world
        .until("entered again", async || {
            holders(&world).await == [entry("1", "launcher-a", "vm.blue")]
        })
        .await;
    assert_eq!(
        world.reservations().await,
        [(name, "launcher-a".to_owned())]
    );
    let uid = world.run_pod(&agent, "stranger").await;
    let stranger = agent
        .add_to(&world, &network, "stranger", &uid, "stranger")
        .await;
    assert_eq!(stranger["ips"][0]["address"], "10.0.0.2/24");
    let uid = world
        .run_pod_with(&agent, "launcher-b", referring_to("vm.blue"))
        .await;
    let back = agent
        .add_to(&world, &network, "launcher-b", &uid, "launcher-b")
        .await;
    assert_eq!(back["ips"][0]["address"], "10.0.0.1/24");
    running.stop().await;
}
