//! Garbage collection on a real API server: pods that are gone lose their addresses, and no others do.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod away;
mod forced;
mod sticky;
mod world;

use std::time::Duration;

use berth_testkit::{Cluster, Part};
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tokio::time::sleep;

use world::{GRACE, NODE_GRACE, POOL, World, network};

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_pods_address_is_freed_on_the_event_and_told() {
    let world = World::new("deleted").await;
    world.put_network("blue", &network()).await;
    let agent = world.agent("n1").await;
    let stays = world.run_pod(&agent, "stays").await;
    let goes = world.run_pod(&agent, "goes").await;
    agent.add(&world, "stays", &stays, "c-stays").await;
    agent.add(&world, "goes", &goes, "c-goes").await;
    assert_eq!(world.reservations().await.len(), 2);

    let running = agent.collect();
    world.delete_pod("goes").await;
    world.until_held_by(&["stays"]).await;
    world
        .until("one reservation", async || {
            world.reservations().await == [("10.0.0.1".into(), "stays".into())]
        })
        .await;
    // The sweep at the start and the pod's event race for it; both know the network.
    let told = |(reason, message): &(String, String)| {
        reason == "IPAddressGarbageCollected"
            && message == "successful cleanup of IP address [10.0.0.2] from network blue"
    };
    world
        .until("told", async || {
            let events = world.events("goes").await;
            events.len() == 1 && events.iter().all(told)
        })
        .await;
    assert_eq!(world.events("stays").await, []);
    world
        .until("one note in the journal", async || {
            agent.journalled().await == 1
        })
        .await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn completed_failed_and_evicted_pods_lose_their_addresses() {
    let world = World::new("finished").await;
    let agent = world.agent("n1").await;
    for pod in ["completed", "evicted", "failed", "runs"] {
        let uid = world.run_pod(&agent, pod).await;
        agent.add(&world, pod, &uid, pod).await;
    }
    let running = agent.collect();
    world.set_phase("completed", "Succeeded", "").await;
    world.set_phase("failed", "Failed", "").await;
    world.set_phase("evicted", "Failed", "Evicted").await;
    world.until_held_by(&["runs"]).await;
    world
        .until("one reservation", async || {
            world.reservations().await.len() == 1
        })
        .await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn entries_that_no_journal_has_are_found_by_the_sweep() {
    let world = World::new("byhand").await;
    let agent = world.agent("n1").await;
    world.run_pod(&agent, "lives").await;
    world.put_entry("1", "c1", "never-existed").await;
    world.put_entry("2", "c2", "lives").await;
    world.put_reservation("10.0.0.1", "never-existed").await;
    world.put_reservation("10.0.0.2", "lives").await;
    // Nobody's entry, of any network.
    world.put_reservation("10.0.0.9", "never-existed").await;
    world.put_reservation("red-10.0.0.9", "never-existed").await;
    // whereabouts #712: all that keeps the address of a living pod.
    world.put_reservation("10.0.0.8", "lives").await;

    let running = agent.sweep();
    world.until_held_by(&["lives"]).await;
    world
        .until("reservations of the living only", async || {
            let held = world.reservations().await;
            held == [
                ("10.0.0.2".into(), "lives".into()),
                ("10.0.0.8".into(), "lives".into()),
            ]
        })
        .await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn berth_15_24_one_unreadable_pool_does_not_stop_the_sweep_of_all_others() {
    let world = World::new("unreadable").await;
    let agent = world.agent("n1").await;
    world.put_entry("1", "c1", "gone").await;
    let entry =
        json!({ "id": "c2", "podref": format!("{}/gone", world.namespace), "ifname": "net1" });
    let other = json!({
        "apiVersion": "whereabouts.cni.cncf.io/v1alpha1", "kind": "IPPool",
        "metadata": { "name": "10.1.0.0-24", "namespace": world.namespace },
        "spec": { "range": "10.1.0.0/24", "allocations": { "1": entry } },
    });
    world.apply(other).await;
    // With an entry each, and with none as far as pools can be read.
    let unreadable = ["10.0.0.1", "10.0.0.9"];
    for name in unreadable
        .iter()
        .chain(&["10.1.0.1", "10.1.0.9", "red-10.0.0.9"])
    {
        world.put_reservation(name, "gone").await;
    }
    let set_range = async |range: &str| {
        let patch = Patch::Merge(json!({ "spec": { "range": range } }));
        let pools = world.dynamic_pools();
        pools
            .patch(POOL, &PatchParams::default(), &patch)
            .await
            .unwrap()
    };
    let broken = set_range("not a range").await;

    let running = agent.sweep();
    let expected = unreadable.map(|name| (name.to_owned(), "gone".to_owned()));
    world
        .until("the other pool is swept", async || {
            let entries = world.entries_of("10.1.0.0-24").await;
            entries.is_empty() && world.reservations().await == expected
        })
        .await;
    let sweeps = running.count("sweeps");
    running.until_count("sweeps", sweeps + 2.0).await;
    let now = world.dynamic_pools().get(POOL).await.unwrap();
    assert_eq!(
        now.metadata.resource_version,
        broken.metadata.resource_version
    );
    assert_eq!(
        world.reservations().await,
        expected,
        "it may have their entries"
    );
    set_range("10.0.0.0/24").await;
    world.until_held_by(&[]).await;
    world
        .until("nothing is left", async || {
            world.reservations().await.is_empty()
        })
        .await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_living_entry_gets_back_the_reservation_that_it_lacks() {
    let world = World::new("repair").await;
    let agent = world.agent("n1").await;
    let named = json!({
        "cniVersion": "1.0.0", "name": "named", "type": "macvlan",
        "ipam": { "type": "whereabouts", "range": "10.0.0.0/24", "network_name": world.namespace },
    });
    world.put_network("named", &named).await;
    let uid = world.run_pod(&agent, "lives").await;
    agent.add_to(&world, &named, "lives", &uid, "c1").await;
    let own = (format!("{}-10.0.0.1", world.namespace), "lives".to_owned());
    assert_eq!(world.reservations().await, std::slice::from_ref(&own));

    let client = world.cluster.client().await.unwrap();
    let reservations: kube::Api<berth_api::whereabouts::OverlappingRangeIPReservation> =
        kube::Api::namespaced(client, &world.namespace);
    reservations
        .delete(&own.0, &kube::api::DeleteParams::default())
        .await
        .unwrap();
    // A pod that is gone has it in its place.
    world.put_reservation(&own.0, "never-existed").await;

    let running = agent.sweep();
    world
        .until("repaired", async || {
            world.reservations().await == std::slice::from_ref(&own)
        })
        .await;
    let pool = format!("{}-{POOL}", world.namespace);
    assert_eq!(world.entries_of(&pool).await.len(), 1);
    running.stop().await;
}

/// Spiderpool #2526, whereabouts #182 #291: the pod is made again under its name on another node, where its ADD takes
/// the entry over. The old node sees its own pod gone and must leave the entry alone.
#[tokio::test(flavor = "multi_thread")]
async fn spiderpool_2526_a_pod_made_again_keeps_what_it_took_over() {
    let world = World::without_a_controller("again").await;
    let (one, two) = (world.agent("n1").await, world.agent("n2").await);
    let old = world.run_pod(&one, "web-0").await;
    let first = one.add(&world, "web-0", &old, "old").await;
    let (a, b) = (one.collect(), two.collect());
    world.delete_pod("web-0").await;
    let new = world.run_pod(&two, "web-0").await;
    let second = two.add(&world, "web-0", &new, "new").await;
    assert_eq!(first["ips"], second["ips"], "it takes the entry over");

    // The old node finds out that its note is of no use, and frees nothing.
    world
        .until("forgotten", async || one.journalled().await == 0)
        .await;
    let kept = [("1".to_owned(), "web-0".to_owned(), "new".to_owned())];
    assert_eq!(world.entries_of(POOL).await, kept);
    assert_eq!(world.reservations().await.len(), 1);
    // azure_885: nor does the old container's late DEL.
    one.del(&world, "web-0", &old, "old").await;
    sleep(GRACE * 2).await;
    assert_eq!(world.entries_of(POOL).await, kept);
    assert_eq!(world.reservations().await.len(), 1);
    a.stop().await;
    b.stop().await;
}

/// The new pod of that name has no interface in this network: the old one's entry is known to be nobody's by its UID.
#[tokio::test(flavor = "multi_thread")]
async fn an_entry_of_a_replaced_pod_is_freed_though_the_name_lives() {
    let world = World::new("replaced").await;
    let agent = world.agent("n1").await;
    let old = world.run_pod(&agent, "web-0").await;
    agent.add(&world, "web-0", &old, "old").await;
    world.delete_pod("web-0").await;
    world.run_pod(&agent, "web-0").await;
    // The sweep does not know any UID: it can't tell.
    let running = agent.sweep();
    running.until_count("sweeps", 4.0).await;
    assert_eq!(world.holders().await, ["web-0"]);
    running.stop().await;
    let running = agent.collect();
    world.until_held_by(&[]).await;
    // Counted when the answer to the write is back, which others see before.
    running.until_count("freed", 1.0).await;
    assert_eq!(running.count("freed"), 1.0);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_of_a_deleted_node_lose_their_addresses() {
    let world = World::without_a_controller("nodegone").await;
    let (one, two) = (world.agent("n1").await, world.agent("n2").await);
    for (agent, pod) in [(&one, "goes"), (&two, "stays")] {
        let uid = world.run_pod(agent, pod).await;
        agent.add(&world, pod, &uid, pod).await;
    }
    let running = two.collect();
    world.delete_node(&one.node).await;
    world.until_held_by(&["stays"]).await;
    running.stop().await;
}

/// Somebody deletes the Node of a machine that is well, and its kubelet registers it anew: its pods go on.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_was_registered_anew_keeps_its_pods_addresses() {
    let world = World::new("nodeback").await;
    let (one, two) = (world.agent("n1").await, world.agent("n2").await);
    let uid = world.run_pod(&one, "stays").await;
    one.add(&world, "stays", &uid, "c1").await;
    world.delete_node(&one.node).await;
    let running = two.collect();
    running.until_count("sweeps", 1.0).await;
    world.put_node(&one.node).await;
    let swept = running.count("sweeps");
    sleep(NODE_GRACE * 2).await;
    running.until_count("sweeps", swept + 2.0).await;
    assert_eq!(world.holders().await, ["stays"]);
    assert_eq!(running.count("freed"), 0.0);
    running.stop().await;
}

/// A reboot: the journal outlives it, the containers do not. A pod that still exists gets its address again.
#[tokio::test(flavor = "multi_thread")]
async fn a_reboot_frees_what_the_old_boot_left_but_not_of_pods_that_live() {
    let world = World::new("reboot").await;
    let local = world.node_file().await;
    let before = world.agent_in("n1", "old-boot", local.clone()).await;
    for pod in ["gone", "lives"] {
        let uid = world.run_pod(&before, pod).await;
        before.add(&world, pod, &uid, pod).await;
    }
    let uid = "static-uid-that-only-the-kubelet-knows";
    drop(before);
    world.delete_pod("gone").await;
    let after = world.agent_in("n1", "new-boot", local).await;
    let running = after.collect_in("new-boot");
    world.until_held_by(&["lives"]).await;
    let again = after.add(&world, "lives", uid, "lives-again").await;
    assert_eq!(again["ips"][0]["address"], "10.0.0.2/24");
    running.stop().await;
}

/// whereabouts #162 #176 #207 #638: addresses of living pods are freed in races. Here a hundred pods come and go while
/// two nodes collect as eagerly as they can; whoever lives keeps what it was given.
#[tokio::test(flavor = "multi_thread")]
async fn whereabouts_162_176_207_638_no_living_pod_loses_its_address_in_a_storm() {
    let world = World::new("storm").await;
    let (one, two) = (world.agent("n1").await, world.agent("n2").await);
    let (a, b) = (one.collect(), two.collect());
    let rounds = (0..4).map(|lane| {
        let (world, one, two) = (&world, &one, &two);
        async move {
            for round in 0..12 {
                let agent = if (lane + round) % 2 == 0 { one } else { two };
                // Half of them under a name that was there before, as a StatefulSet's.
                let name = format!("pod-{lane}-{}", round % 6);
                let uid = world.run_pod(agent, &name).await;
                let container = format!("{name}-{round}");
                let given = agent.add(world, &name, &uid, &container).await;
                sleep(Duration::from_millis(50 * (round % 4))).await;
                let last = round >= 10;
                let entry = world.entries_of(POOL).await;
                assert!(
                    entry.iter().any(|(_, _, id)| *id == container),
                    "{name} lives and lost {given}: {entry:?}"
                );
                if !last {
                    // Its DEL never comes, or comes late.
                    world.delete_pod(&name).await;
                    if round % 3 == 0 {
                        agent.del(world, &name, &uid, &container).await;
                    }
                }
            }
        }
    });
    futures::future::join_all(rounds).await;
    let mut left: Vec<String> = (0..4)
        .flat_map(|lane| [4, 5].map(|round| format!("pod-{lane}-{round}")))
        .collect();
    left.sort();
    let left: Vec<&str> = left.iter().map(String::as_str).collect();
    world.until_held_by(&left).await;
    world
        .until("as many reservations", async || {
            world.reservations().await.len() == left.len()
        })
        .await;
    a.stop().await;
    b.stop().await;
}

/// Nobody who can't see takes anything for gone; and when the server is back, nothing is forgotten.
#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_that_pauses_in_the_middle_frees_nobody_who_lives() {
    static OWN: tokio::sync::OnceCell<Cluster> = tokio::sync::OnceCell::const_new();
    let cluster = OWN
        .get_or_init(|| async { Cluster::start().await.unwrap() })
        .await;
    let world = World::on(cluster, "pause").await;
    let agent = world.agent("n1").await;
    for pod in ["goes", "stays"] {
        let uid = world.run_pod(&agent, pod).await;
        agent.add(&world, pod, &uid, pod).await;
    }
    let running = agent.collect();
    running.until_count("sweeps", 1.0).await;
    world.delete_pod("goes").await;
    // In the grace period, and for longer than it.
    cluster.pause(Part::ApiServer).unwrap();
    sleep(GRACE * 4).await;
    cluster.resume(Part::ApiServer).unwrap();
    world.until_held_by(&["stays"]).await;

    let uid = world.run_pod(&agent, "late").await;
    agent.add(&world, "late", &uid, "late").await;
    world.delete_pod("late").await;
    cluster.kill(Part::ApiServer).unwrap();
    sleep(GRACE * 2).await;
    cluster.restart(Part::ApiServer).await.unwrap();
    world.until_held_by(&["stays"]).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_freed_address_rests_as_its_network_says() {
    let world = World::new("rests").await;
    let agent = world.agent("n1").await;
    let mut restful = network();
    restful["ipam"]["network_name"] = json!(world.namespace);
    restful["ipam"]["cooldown_seconds"] = json!(3600);
    world.put_network("restful", &restful).await;
    let uid = world.run_pod(&agent, "goes").await;
    agent.add_to(&world, &restful, "goes", &uid, "c1").await;
    let running = agent.collect();
    world.delete_pod("goes").await;
    let pool = format!("{}-{POOL}", world.namespace);
    world
        .until("freed", async || world.entries_of(&pool).await.is_empty())
        .await;
    let uid = world.run_pod(&agent, "next").await;
    let next = agent.add_to(&world, &restful, "next", &uid, "c2").await;
    assert_eq!(next["ips"][0]["address"], "10.0.0.2/24", ".1 rests (I10)");
    running.stop().await;
}

/// What can't be freed is told where the pod's owner looks, and is freed once it can be.
#[tokio::test(flavor = "multi_thread")]
async fn a_failure_to_collect_is_told_on_the_pod() {
    let world = World::new("failed").await;
    let agent = world.agent("n1").await;
    let uid = world.run_pod(&agent, "web").await;
    agent.add(&world, "web", &uid, "c1").await;
    let pools = world.api::<berth_api::whereabouts::IPPool>();
    let set_range = async |range: &str| {
        let patch = serde_json::json!({ "spec": { "range": range } });
        let patch = kube::api::Patch::Merge(patch);
        let params = kube::api::PatchParams::default();
        pools.patch(world::POOL, &params, &patch).await.unwrap();
    };
    // A pool of another range under this name is not written.
    set_range("10.9.0.0/16").await;
    let running = agent.collect();
    world.delete_pod("web").await;
    world
        .until("told", async || {
            let events = world.events("web").await;
            let mut reasons = events.iter().map(|(reason, _)| reason.as_str());
            reasons.any(|reason| reason == "IPAddressGarbageCollectionFailed")
        })
        .await;
    set_range("10.0.0.0/24").await;
    world.until_held_by(&[]).await;
    running.stop().await;
}

/// Two pods with one address, in pools whose ranges overlap: found, counted, and told to both of them.
#[tokio::test(flavor = "multi_thread")]
async fn berth_15_4_an_address_with_several_holders_is_reported() {
    let world = World::new("duplicate").await;
    let agent = world.agent("n1").await;
    let name = world.namespace.clone();
    for (network, range, pod) in [
        ("small", "10.0.0.0/29", "one"),
        ("large", "10.0.0.0/27", "two"),
    ] {
        let config = json!({
            "cniVersion": "1.0.0", "name": network, "type": "macvlan",
            "ipam": { "type": "whereabouts", "range": range, "network_name": name,
                "enable_overlapping_ranges": false },
        });
        world.put_network(network, &config).await;
        world.run_pod(&agent, pod).await;
        world
            .apply(json!({
                "apiVersion": "whereabouts.cni.cncf.io/v1alpha1", "kind": "IPPool",
                "metadata": { "name": format!("{name}-{}", range.replace('/', "-")), "namespace": name },
                "spec": { "range": range, "allocations": {
                    "3": { "id": pod, "podref": format!("{name}/{pod}"), "ifname": "net1" },
                } },
            }))
            .await;
    }
    let running = agent.sweep();
    world
        .until("counted", async || running.gauge("disputes") == 1.0)
        .await;
    for pod in ["one", "two"] {
        world
            .until("told", async || {
                let events = world.events(pod).await;
                let told = |(reason, message): &(String, String)| {
                    reason == "IPAddressDuplicate" && message.contains("10.0.0.3 has 2 holders")
                };
                events.len() == 1 && events.iter().all(told)
            })
            .await;
    }
    // One of them goes: the address has one holder again.
    world.delete_pod("two").await;
    world
        .until("over", async || running.gauge("disputes") == 0.0)
        .await;
    running.stop().await;
}

/// A collector's desk kept its copy of a pool until another pool was opened, which may be never.
#[tokio::test(flavor = "multi_thread")]
async fn berth_15_23_no_copy_of_a_pool_is_left_after_its_addresses_were_freed() {
    let world = World::new("copies").await;
    let agent = world.agent("n1").await;
    world.put_entry("5", "c1", "gone").await;
    let running = agent.sweep();
    running.until_count("freed", 1.0).await;
    // The steps of that sweep are done, and their desk was counted.
    running
        .until_count("sweeps", running.count("sweeps") + 1.0)
        .await;
    world
        .until("no copy is left", async || running.gauge("desks") == 0.0)
        .await;
    running.stop().await;
}
