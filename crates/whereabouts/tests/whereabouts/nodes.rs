//! The node in entries and reservations: kept where the object's definition keeps it, and missed nowhere.

use berth_ledger::{ClaimKey, ClaimKind};
use berth_whereabouts::{ETCD_REQUEST_LIMIT, NODE, NODE_ANNOTATION};

use super::*;

fn on(node: &str, name: &str) -> Record {
    mk_record(name).with(NODE, node)
}

fn claim_on(n: u32, node: &str, name: &str) -> Change {
    Change::Allocate {
        address: mk_address(n),
        record: on(node, name),
    }
}

/// A pod that was made again: another container, perhaps on another node.
fn transfer(n: u32, from: &Record, to: &Record) -> Change {
    Change::Update {
        address: mk_address(n),
        expected: from.clone(),
        record: to.clone(),
    }
}

fn again(record: &Record) -> Record {
    Record {
        handle: Handle::new("id-again"),
        ..record.clone()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_entry_names_the_node_of_its_container() {
    let bed = Bed::new("entry-node").await;
    bed.write(&[claim_on(1, "node-a", "p"), claim(2, "q")])
        .await
        .unwrap();
    let entries = bed.raw().await["spec"]["allocations"].clone();
    assert_eq!(entries["1"]["node"], "node-a");
    assert_eq!(entries["2"].get("node"), None);
    let kept = held(&bed.ledger, &mk_pool()).await;
    assert_eq!(kept[&mk_address(1)].attribute(NODE), Some("node-a"));
    assert_eq!(kept[&mk_address(2)].attribute(NODE), None);

    // Another program's field stays through every rewrite (I7).
    bed.merge(json!({ "spec": { "allocations": { "1": { "since": 5 } } } }))
        .await;
    let first = on("node-a", "p");
    let moved = again(&on("node-b", "p"));
    bed.write(&[transfer(1, &first, &moved)]).await.unwrap();
    let entry = bed.raw().await["spec"]["allocations"]["1"].clone();
    assert_eq!(
        entry,
        json!({ "id": "id-again", "podref": "default/p", "ifname": "net1", "node": "node-b", "since": 5 })
    );
    // A writer that does not say where its container runs leaves no node of the one before.
    let unknown = mk_record("p");
    bed.write(&[transfer(1, &moved, &unknown)]).await.unwrap();
    let entry = bed.raw().await["spec"]["allocations"]["1"].clone();
    assert_eq!(entry.get("node"), None, "{entry}");
    // A release names the holder, not the node.
    bed.write(&[release(1, "p"), release(2, "q")])
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reservation_names_the_node_of_its_container() {
    let bed = Bed::new("reservation-node").await;
    let key = ClaimKey::new(ClaimKind::Reservation, "10.0.0.1");
    let first = on("node-a", "p");
    bed.ledger.create(&key, &first).await.unwrap();
    let node = async || {
        let found = bed.ledger.get(&key).await.unwrap().unwrap();
        found.attribute(NODE).map(str::to_owned)
    };
    assert_eq!(node().await.as_deref(), Some("node-a"));
    let listed = bed.ledger.list(ClaimKind::Reservation).await.unwrap();
    assert_eq!(listed[0].1.attribute(NODE), Some("node-a"));
    let moved = again(&on("node-b", "p"));
    bed.ledger.transfer(&key, &first, &moved).await.unwrap();
    assert_eq!(node().await.as_deref(), Some("node-b"));
    let unknown = mk_record("p");
    bed.ledger.transfer(&key, &moved, &unknown).await.unwrap();
    assert_eq!(node().await, None, "{NODE_ANNOTATION} went with its holder");
    bed.ledger.delete(&key, &unknown).await.unwrap();
}

/// whereabouts' own definition of the kind.
async fn strict_cluster() -> Cluster {
    let cluster = Cluster::start().await.unwrap();
    for mut crd in berth_api::crds().unwrap() {
        if crd["spec"]["names"]["plural"] == "ippools" {
            let spec = &mut crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
            let text = json!({ "type": "string" });
            spec["spec"]["properties"]["allocations"] = json!({
                "type": "object",
                "additionalProperties": {
                    "type": "object",
                    "required": ["id", "podref"],
                    "properties": { "id": text, "podref": text, "ifname": text },
                },
            });
        }
        cluster.apply_object(crd).await.unwrap();
    }
    cluster
}

#[tokio::test(flavor = "multi_thread")]
async fn a_definition_that_prunes_the_node_costs_nothing_else() {
    let cluster = strict_cluster().await;
    let bed = Bed::on(&cluster, "strict").await;
    let first = on("node-a", "p");
    let mut version = bed.write(&[claim_on(1, "node-a", "p")]).await.unwrap();
    assert_eq!(
        held(&bed.ledger, &mk_pool()).await[&mk_address(1)].attribute(NODE),
        None
    );
    // All of it on what this process believes that it has written.
    let second = again(&on("node-b", "p"));
    let changes = [
        transfer(1, &first, &second),
        transfer(1, &second, &first),
        transfer(1, &first, &on("node-c", "p")),
        transfer(1, &on("node-c", "p"), &mk_record("p")),
        release(1, "p"),
    ];
    for change in changes {
        version = bed.commit(&version, &[change]).await.unwrap();
    }
    assert!(held(&bed.ledger, &mk_pool()).await.is_empty());
}

/// A container id of containerd and names of the usual length.
fn usual(n: u32, node: Option<&str>) -> Change {
    let owner = Owner::new(format!("default/web-7d4b9c8f6d-{n:05}"), "net1");
    let record = Record::new(owner, Handle::new(format!("{n:064x}")));
    Change::Allocate {
        address: mk_address(n),
        record: match node {
            Some(node) => record.with(NODE, node),
            None => record,
        },
    }
}

/// How many usual entries one object takes.
async fn capacity(node: Option<&str>) -> u32 {
    let bed = Bed::new("capacity").await;
    let mut version = bed.ledger.load(&mk_pool()).await.unwrap().version;
    let mut n = 0;
    for batch in [1000, 100, 10] {
        loop {
            let claims: Vec<Change> = (n..n + batch).map(|n| usual(n, node)).collect();
            match bed.commit(&version, &claims).await {
                Ok(next) => (version, n) = (next, n + batch),
                Err(LedgerError::Full { .. }) => break,
                Err(error) => panic!("{error}"),
            }
        }
    }
    n
}

/// Room for addresses outranks the node: a large pool is written without it.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_pool_loses_little_room_to_the_nodes() {
    let without = capacity(None).await;
    for node in ["node-0123", "ip-10-100-123-234.eu-west-1.compute.internal"] {
        let with = capacity(Some(node)).await;
        println!("{ETCD_REQUEST_LIMIT} bytes: {without} entries, {with} with nodes like {node}");
        assert!(with >= 10_000);
    }
}
