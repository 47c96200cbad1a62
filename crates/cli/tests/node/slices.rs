//! Sets of pods on networks that are sliced: what the slices' pools show is what the pods have, whichever way they scale.

use std::collections::BTreeMap;

use kube::api::{DynamicObject, ListParams};
use serde_json::{Value, json};

use crate::scene::Scene;
use crate::set::Set;
use crate::site::HOME;

/// A slice by the controller for each node; reservations too.
const ASSIGNED: &str = "10.60.0.0/24";
/// Slices of 16 that the node claims by itself: more pods than one of them has addresses.
const ELASTIC: &str = "10.61.0.0/24";

/// Waits until the pools of the slices hold what the pods of both sets have, and nothing else.
async fn pools_are_the_pods(scene: &Scene, sets: [&Set<'_>; 2], count: usize) {
    for (range, interface) in [(ASSIGNED, "net1"), (ELASTIC, "net2")] {
        let mut pods = BTreeMap::new();
        for set in sets {
            let running = set.running(interface).await.into_iter();
            pods.extend(running.map(|(pod, address)| (address, format!("{pod}/{interface}"))));
        }
        assert_eq!(pods.len(), count, "no address twice: {pods:?}");
        scene
            .until(&format!("{range} is published"), async || {
                let now = scene.published(range).await;
                match now == pods {
                    true => Ok(()),
                    false => Err(format!("{now:?} instead of {pods:?}")),
                }
            })
            .await;
    }
    let reserved = scene.reservations().await;
    assert_eq!(reserved.len(), count, "{reserved:?}");
}

/// The slice that the controller gave to this node.
async fn assigned(scene: &Scene, pool: &str) -> String {
    let slice = async || {
        let pools = scene.objects_in(HOME, "whereabouts.cni.cncf.io/v1alpha1", "NodeSlicePool");
        let pool = pools.get_opt(pool).await.unwrap().ok_or("no pool yet")?;
        let rows = &pool.data["status"]["allocations"];
        let mut all = rows.as_array().into_iter().flatten();
        let ours = all.find(|row| row["nodeName"] == scene.site.node.name());
        let slice = ours.and_then(|row| row["sliceRange"].as_str());
        Ok(slice.ok_or_else(|| rows.to_string())?.to_owned())
    };
    scene.until("the node has a slice", slice).await
}

/// Ranges of the claims of an elastic network.
async fn claims(scene: &Scene) -> Vec<String> {
    let claims = scene.objects_in("berth-kube-system", "coordination.k8s.io/v1", "Lease");
    let all = claims.list(&ListParams::default()).await.unwrap();
    let range = |claim: &DynamicObject| {
        let words = &claim.metadata.annotations.as_ref().unwrap()["berth.dev/slice"];
        let words: Value = serde_json::from_str(words).unwrap();
        words["range"].as_str().unwrap().to_owned()
    };
    all.iter().map(range).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn sets_scaled_up_and_down_on_sliced_networks() {
    let scene = Scene::open("sliced").await;
    scene
        .network(
            "assigned",
            json!({ "range": ASSIGNED, "node_slice_size": "/26" }),
        )
        .await;
    scene
        .network(
            "elastic",
            json!({ "range": ELASTIC, "fast_ipam": true, "enable_overlapping_ranges": false }),
        )
        .await;
    // As an administrator sees it, before there is a pod: one retry of the kubelet takes longer than the controller.
    assert_eq!(assigned(&scene, "assigned").await, "10.60.0.0/26");

    let web = Set::replicas(&scene, "web", "assigned,elastic").await;
    let db = Set::stateful(&scene, "db", "assigned,elastic").await;
    for (of_web, of_db) in [(8, 2), (16, 5), (3, 1), (0, 0), (2, 2), (0, 0)] {
        web.scale(of_web);
        db.scale(of_db);
        web.settled(of_web).await;
        db.settled(of_db).await;
        pools_are_the_pods(&scene, [&web, &db], of_web + of_db).await;
        if of_web == 16 {
            let claims = claims(&scene).await;
            assert!(claims.len() >= 2, "{claims:?}");
        }
    }
    scene
        .nothing_is_held(&["10.60.0.0-24", "10.61.0.0-24"])
        .await;
}
