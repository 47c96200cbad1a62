use serde_json::{Value, json};

use crate::world::World;

fn status(network: &str, address: &str) -> Value {
    let status = json!([{ "name": network, "interface": "net1", "ips": [address] }]);
    json!({ "k8s.v1.cni.cncf.io/network-status": status.to_string() })
}

fn findings(rows: &Value, pool: &str) -> String {
    let rows = rows.as_array().unwrap();
    let row = rows.iter().find(|row| row["pool"] == pool).unwrap();
    row["findings"].to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn berth_15_4_an_address_with_several_holders_is_found() {
    let world = World::new().await;
    let name = &world.namespace;
    let named = |range: &str| format!("{name}-{range}");
    for (network, range) in [("small", "10.7.1.0/29"), ("large", "10.7.1.0/27")] {
        let ipam = json!({ "range": range, "network_name": name });
        world.put_network(network, ipam).await;
    }
    let (small, large) = (named("10.7.1.0-29"), named("10.7.1.0-27"));
    world
        .put_pool(&small, "10.7.1.0/29", &[("1", "a"), ("2", "c")])
        .await;
    world
        .put_pool(&large, "10.7.1.0/27", &[("1", "b"), ("4", "gone")])
        .await;
    world.put_reservation(&named("10.7.1.1"), "d").await;
    // A pod that is gone is no holder.
    world.put_reservation(&named("10.7.1.4"), "a").await;
    let network = format!("{name}/small");
    for (pod, annotations) in [
        ("a", status(&network, "10.7.1.1")),
        ("b", json!({})),
        ("c", status(&network, "10.7.1.2")),
        ("d", json!({})),
        // It runs with an address that its pool has allocated to another pod.
        ("e", status(&network, "10.7.1.2")),
    ] {
        world.run_pod(pod, annotations).await;
    }
    let rows = world.berth(&["pools", "--output", "json"]).json();
    let (small, large) = (findings(&rows, &small), findings(&rows, &large));
    for found in [&small, &large] {
        assert!(found.contains("10.7.1.1 has 3 holders"), "{found}");
        for pod in ["a", "b", "d"] {
            assert!(found.contains(&format!("{name}/{pod}")), "{found}");
        }
    }
    assert!(small.contains("10.7.1.2 has 2 holders"), "{small}");
    let by_status = format!("{name}/e (net1) by its network-status");
    assert!(small.contains(&by_status), "{small}");
    assert!(!large.contains("10.7.1.4"), "{large}");
}

/// Pods that have an address of which no pool knows.
#[tokio::test(flavor = "multi_thread")]
async fn berth_15_4_holders_without_a_pools_entry_are_found() {
    let world = World::new().await;
    let name = &world.namespace;
    for (network, range) in [("web", "10.7.2.0/29"), ("bare", "10.7.3.0/29")] {
        let ipam = json!({ "range": range, "network_name": name });
        world.put_network(network, ipam).await;
    }
    let pool = format!("{name}-10.7.2.0-29");
    world.put_pool(&pool, "10.7.2.0/29", &[]).await;
    // Of the second network there is no pool yet.
    for (pods, network, address) in [
        (["a", "b"], "web", "10.7.2.3"),
        (["c", "d"], "bare", "10.7.3.3"),
    ] {
        for pod in pods {
            let annotations = status(&format!("{name}/{network}"), address);
            world.run_pod(pod, annotations).await;
        }
    }
    let rows = world.berth(&["pools", "--output", "json"]).json();
    assert!(findings(&rows, &pool).contains("10.7.2.3 has 2 holders"));
    // Other namespaces' pods may be there too.
    let in_none = rows.as_array().unwrap().iter();
    let mut in_none = in_none.filter(|row| row["pool"] == "");
    let told = format!("10.7.3.3 has 2 holders: {name}/c");
    assert!(
        in_none.any(|row| row["findings"].to_string().contains(&told)),
        "{rows}"
    );
    let table = world.berth(&["pools"]);
    let told = "in no pool's range: 10.7.3.3 has 2 holders";
    assert!(table.stderr.contains(told), "{table}");
    assert!(table.stdout.contains("10.7.2.3 has 2 holders"), "{table}");
}

#[tokio::test(flavor = "multi_thread")]
async fn berth_15_26_pools_tell_how_full_they_are() {
    let world = World::new().await;
    let name = &world.namespace;
    let ipam = json!({ "range": "10.7.0.0/29", "gateway": "10.7.0.1", "network_name": name });
    world.put_network("web", ipam).await;
    let pool = format!("{name}-10.7.0.0-29");
    world.put_pool(&pool, "10.7.0.0/29", &[("2", "a")]).await;
    let table = world.berth(&["pools"]).succeeded();
    let row: Vec<&str> = table.lines().nth(1).unwrap().split_whitespace().collect();
    let expected = [&pool, "10.7.0.0/29", "5", "1", "0", "4", "20%", "none"];
    assert_eq!(row, expected);
    world
        .put_pool("fd07---64", "fd07::/64", &[("2", "a")])
        .await;
    let table = world.berth(&["pools", "--without-pods"]).succeeded();
    assert!(table.contains("~2^64"), "{table}");
}

#[tokio::test(flavor = "multi_thread")]
async fn berth_16_5_one_unreadable_pool_blinds_nobody() {
    let world = World::new().await;
    world
        .put_pool("10.7.0.0-24", "10.7.0.0/24", &[("2", "a")])
        .await;
    let strange = json!({ "range": "not a range", "allocations": {} });
    world.put_raw_pool("strange", strange, json!({})).await;
    let pools = world.berth(&["pools"]).succeeded();
    assert!(
        pools.contains("10.7.0.0-24") && pools.contains("strange"),
        "{pools}"
    );
    let addresses = world.berth(&["addresses"]);
    assert!(addresses.stdout.contains("10.7.0.2"), "{addresses}");
    assert!(addresses.failed(6).contains("strange"));
    let who = world.berth(&["who", "10.7.0.2"]);
    assert!(who.stderr.contains("strange"), "{who}");
    who.succeeded();
    // It may be in the one that can't be read.
    let unknown = world.berth(&["who", "10.7.0.9"]).failed(6);
    assert!(unknown.contains("strange"), "{unknown}");
}
