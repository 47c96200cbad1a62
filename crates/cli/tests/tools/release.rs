use berth_testkit::{fed, isolated};
use serde_json::json;

use crate::world::{BERTH, NODE, Said, World};

const POOL: &str = "10.5.0.0-24";

#[tokio::test(flavor = "multi_thread")]
async fn berth_15_1_a_running_pods_address_stays() {
    let world = World::new().await;
    world.put_pool(POOL, "10.5.0.0/24", &[("1", "lives")]).await;
    world.put_reservation("10.5.0.1", "lives").await;
    world.run_pod("lives", json!({})).await;
    let told = world.berth(&["release", "10.5.0.1", "--yes"]).failed(7);
    let pod = format!("pod {}/lives", world.namespace);
    assert!(told.contains(&pod), "{told}");
    assert!(told.contains(&format!("node {NODE}")), "{told}");
    assert!(world.entries(POOL)["1"].is_object(), "it was released");

    // Who insists has to type the address, which nobody does by mistake.
    let unconfirmed: [&[&str]; 3] = [
        &["--force"],
        &["--force", "--yes"],
        &["--force", "--confirm", "10.5.0.2"],
    ];
    for more in unconfirmed {
        let told = world.berth(&[&["release", "10.5.0.1"], more].concat());
        let told = told.failed(4);
        assert!(told.contains("confirm"), "{told}");
    }
    assert!(world.entries(POOL)["1"].is_object(), "it was released");
    let confirmed = ["release", "10.5.0.1", "--force", "--confirm", "10.5.0.1"];
    world.berth(&confirmed).succeeded();
    assert_eq!(world.entries(POOL), json!({}));
    assert!(world.reservations().is_empty());
}

/// `script` runs a command on a terminal of its own.
#[tokio::test(flavor = "multi_thread")]
async fn berth_15_1_a_terminal_is_asked_for_the_address() {
    let world = World::new().await;
    world.put_pool(POOL, "10.5.0.0/24", &[("1", "lives")]).await;
    world.run_pod("lives", json!({})).await;
    let typed = |text: &str| {
        let line = format!(
            "{BERTH} --kubeconfig {} --namespace {} release 10.5.0.1 --force",
            world.cluster.kubeconfig().display(),
            world.namespace
        );
        let mut command = isolated(std::process::Command::new("script"));
        command.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
        Said::from(fed(&mut command, text).unwrap())
    };
    for wrong in ["y\n", "yes\n", "10.5.0.11\n", "\n"] {
        let said = typed(wrong);
        assert_eq!(said.code, 4, "{said}");
        assert!(said.stdout.contains("Type the address"), "{said}");
    }
    assert!(world.entries(POOL)["1"].is_object(), "it was released");
    typed("10.5.0.1\n").succeeded();
    assert_eq!(world.entries(POOL), json!({}));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_of_a_pod_that_is_gone_is_released_with_its_reservation() {
    let world = World::new().await;
    let entries = [("1", "gone"), ("2", "other")];
    world.put_pool(POOL, "10.5.0.0/24", &entries).await;
    world.put_reservation("10.5.0.1", "gone").await;
    world.put_reservation("10.5.0.2", "other").await;
    let asked = world.berth(&["release", "10.5.0.1"]).failed(4);
    assert!(asked.contains("--yes"), "{asked}");
    world.berth(&["release", "10.5.0.1", "--yes"]).succeeded();
    let left = world.entries(POOL);
    assert!(left["1"].is_null() && left["2"].is_object(), "{left}");
    assert_eq!(world.reservations(), ["10.5.0.2"]);
}

/// A forced deletion removes the pod at once, whatever runs.
#[tokio::test(flavor = "multi_thread")]
async fn berth_15_1_a_deleted_pods_address_stays_until_its_node_has_released_it() {
    let world = World::new().await;
    let entry = |node: &str| json!({ "id": "c", "podref": "nowhere/gone", "node": node });
    let allocations = json!({ "1": entry(NODE), "2": entry("node-that-is-lost") });
    let spec = json!({ "range": "10.5.0.0/24", "allocations": allocations });
    world.put_raw_pool(POOL, spec, json!({})).await;
    let told = world.berth(&["release", "10.5.0.1", "--yes"]).failed(7);
    assert!(
        told.contains("nowhere/gone") && told.contains(NODE),
        "{told}"
    );
    world.berth(&["release", "10.5.0.2", "--yes"]).succeeded();
    let left = world.entries(POOL);
    assert!(left["1"].is_object() && left["2"].is_null(), "{left}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_is_no_pod_proves_nothing() {
    let world = World::new().await;
    let entry = json!({ "id": "x", "podref": "somebody" });
    let spec = json!({ "range": "10.5.0.0/24", "allocations": { "1": entry } });
    world.put_raw_pool(POOL, spec, json!({})).await;
    let told = world.berth(&["release", "10.5.0.1", "--yes"]).failed(7);
    assert!(
        told.contains("somebody") && told.contains("--force"),
        "{told}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn berth_16_1_an_address_that_cools_down_is_shown_and_can_be_released() {
    let world = World::new().await;
    let now = jiff::Timestamp::now().as_second();
    let end = jiff::Timestamp::from_second(now + 3600).unwrap();
    let cooling = json!({ "3": { "since": now * 1000, "until": end.as_millisecond(),
        "owner": { "subject": "shop/web-0", "part": "net1" } } });
    let spec = json!({ "range": "10.5.0.0/29", "allocations": {} });
    let annotations = json!({ "berth.dev/resting": cooling.to_string() });
    world.put_raw_pool("10.5.0.0-29", spec, annotations).await;

    let numbers = || {
        let rows = world.berth(&["pools", "--output", "json"]).json();
        (rows[0]["cooling"].clone(), rows[0]["free"].clone())
    };
    assert_eq!(numbers(), (json!(1), json!(5)));
    let shown: [&[&str]; 2] = [&["addresses"], &["who", "10.5.0.3"]];
    for command in shown {
        let shown = world.berth(command).succeeded();
        let until = format!("cooling until {end}");
        assert!(
            shown.contains(&until) && shown.contains("shop/web-0"),
            "{shown}"
        );
    }
    let asked = world.berth(&["release", "10.5.0.3"]).failed(4);
    assert!(asked.contains("end the cooldown"), "{asked}");
    world.berth(&["release", "10.5.0.3", "--yes"]).succeeded();
    assert_eq!(numbers(), (json!(0), json!(6)));
    world.berth(&["release", "10.5.0.3", "--yes"]).failed(3);
}
