//! The built plugin and an agent without a cluster: pools in the node's SQLite file.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[path = "../cases/mod.rs"]
mod cases;
mod delegation;
#[path = "../node/mod.rs"]
mod node;

use node::{TestNode, pod};
use serde_json::json;

run_cases!(on_sqlite);

/// A node with its own SQLite file and no cluster.
fn on_sqlite() -> TestNode {
    TestNode::with_defaults(json!({}))
}

#[test]
fn a_new_agent_knows_what_the_old_one_allocated() {
    let mut node = on_sqlite();
    let ipam = json!({"range": "10.0.0.0/24"});
    assert_eq!(
        node.add(&pod("a"), ipam.clone()).addresses(),
        ["10.0.0.1/24"]
    );
    node.stop();
    // No process listens, and there is no engine beside the plugin: the runtime must get an error, on DEL too.
    assert_eq!(node.del(&pod("a"), ipam.clone()).error().0, 11);
    node.start();
    assert_eq!(
        node.add(&pod("b"), ipam.clone()).addresses(),
        ["10.0.0.2/24"]
    );
    assert_eq!(
        node.add(&pod("a"), ipam.clone()).addresses(),
        ["10.0.0.1/24"]
    );
    node.del(&pod("a"), ipam.clone()).succeeded();
    assert_eq!(node.add(&pod("c"), ipam).addresses(), ["10.0.0.1/24"]);
}

#[test]
fn many_pods_at_once_get_one_address_each() {
    let node = on_sqlite();
    let mut allocated: Vec<String> = std::thread::scope(|scope| {
        let starts: Vec<_> = (0..32)
            .map(|n| {
                let node = &node;
                scope.spawn(move || {
                    node.add(&pod(&format!("p{n}")), json!({"range": "10.0.0.0/26"}))
                        .addresses()
                })
            })
            .collect();
        starts
            .into_iter()
            .flat_map(|start| start.join().unwrap())
            .collect()
    });
    allocated.sort_by_key(|address| address[7..].trim_end_matches("/26").parse::<u32>().unwrap());
    let expected: Vec<String> = (1..=32).map(|n| format!("10.0.0.{n}/26")).collect();
    assert_eq!(allocated, expected);
}
