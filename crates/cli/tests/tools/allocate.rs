use serde_json::json;

use crate::world::{Said, World, until};

impl World {
    fn allocate(&self, owner: &str, more: &[&str]) -> Said {
        let network = format!("{}/web", self.namespace);
        let mut arguments = vec!["allocate", "--network", &network, "--owner", owner];
        arguments.extend(more);
        self.berth(&arguments)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn berth_15_3_gateway_exclusions_and_reservations_count() {
    let world = World::new().await;
    let ipam = json!({ "range": "10.6.0.0/29", "gateway": "10.6.0.1", "exclude": ["10.6.0.2/32"] });
    world.put_network("web", ipam).await;
    // Another network, whose range overlaps, has it.
    world.put_reservation("10.6.0.3", "other").await;
    let first = world.allocate("default/printer", &["--note", "second floor"]);
    let first = first.succeeded();
    assert!(
        first.contains("10.6.0.4") && first.contains("second floor"),
        "{first}"
    );
    let again = world.allocate("default/printer", &[]).succeeded();
    assert!(
        again.contains("10.6.0.4"),
        "the same owner, the same address (I3): {again}"
    );
    for taken in ["10.6.0.1", "10.6.0.2", "10.6.0.3", "10.6.0.4", "10.7.0.1"] {
        let message = world.allocate("default/scanner", &["--address", taken]);
        let message = message.failed(4);
        assert!(message.contains(taken), "{message}");
    }
    assert!(world.reservations().contains(&"10.6.0.4".to_owned()));
    let who = world.berth(&["who", "10.6.0.4"]).succeeded();
    for message in ["default/printer", "by hand", "second floor"] {
        assert!(who.contains(message), "{who}");
    }
    // whereabouts' reconciler, and a Berth that does not know the mark, leave an entry without a pod alone.
    assert_eq!(world.entries("10.6.0.0-29")["4"]["podref"], "");

    world.berth(&["release", "10.6.0.4", "--yes"]).succeeded();
    assert_eq!(world.entries("10.6.0.0-29"), json!({}));
    assert_eq!(world.reservations(), ["10.6.0.3"]);
}

/// An exclusion that stands only in the nodes' flat file.
#[tokio::test(flavor = "multi_thread")]
async fn berth_15_3_the_nodes_flat_file_counts_where_it_is_named() {
    let world = World::new().await;
    let network = json!({ "range": "10.6.0.0/29" });
    world.put_network("web", network).await;
    let dir = tempfile::tempdir().unwrap();
    let flat = dir.path().join("whereabouts.conf");
    let flat_file = flat.to_str().unwrap();
    let missing = world.allocate("default/printer", &["--flat-file", flat_file]);
    assert!(missing.failed(3).contains(flat_file));
    let excluded = json!({ "gateway": "10.6.0.1", "exclude": ["10.6.0.2/32"] });
    std::fs::write(&flat, excluded.to_string()).unwrap();
    let allocated = world.allocate("default/printer", &["--flat-file", flat_file]);
    let allocated = allocated.succeeded();
    assert!(allocated.contains("10.6.0.3"), "{allocated}");
    for address in ["10.6.0.1", "10.6.0.2"] {
        let named = ["--flat-file", flat_file, "--address", address];
        world.allocate("default/scanner", &named).failed(4);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn berth_15_3_the_collector_leaves_what_was_allocated_by_hand() {
    let world = World::new().await;
    // A name of its own: the collector reads the networks of all tests.
    let name = world.namespace.clone();
    let ipam = json!({ "range": "10.6.0.0/29", "network_name": name });
    world.put_network("web", ipam).await;
    world.allocate("default/printer", &[]).succeeded();
    let pool = format!("{name}-10.6.0.0-29");
    let gone = json!({ "id": "c", "podref": "nowhere/gone" });
    let patch = json!({ "spec": { "allocations": { "5": gone } } }).to_string();
    world.kubectl(&["patch", "ippool", &pool, "--type=merge", "--patch", &patch]);
    let dir = tempfile::tempdir().unwrap();
    let flags = ["--garbage-grace=1", "--garbage-interval=1"];
    let _agent = world.start_agent(dir.path(), &flags).await;
    until("the pod that is gone lost its address", || {
        world.entries(&pool)["5"].is_null()
    });
    assert!(world.entries(&pool)["1"].is_object(), "it was collected");
    // What whereabouts' reconciler does to it.
    let reservation = format!("{name}-10.6.0.1");
    world.kubectl(&["delete", "overlappingrangeipreservation", &reservation]);
    until("the reservation is there again", || {
        world.reservations() == [reservation.as_str()]
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn networks_that_only_nodes_allocate_from_are_refused() {
    let world = World::new().await;
    let ipam = json!({ "range": "10.6.0.0/24", "fast_ipam": true });
    world.put_network("web", ipam).await;
    let message = world.allocate("a", &[]).failed(4);
    assert!(message.contains("exclude"), "{message}");
    let absent = ["allocate", "--network", "default/none", "--owner", "a"];
    assert!(world.berth(&absent).failed(3).contains("default/none"));
}
