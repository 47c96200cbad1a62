//! Bad input and failing hosts: each is said where it is wrong, nothing is applied, nothing is lost.

use berth_nodes::objects::{NODE_IP_POOL, POLICY};
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::bed::{Bed, message, offsets};

impl Bed {
    /// Waits for an event of an object, with these parts in its message.
    pub async fn until_event(&self, of: &str, reason: &str, parts: Vec<&str>) {
        let begun = std::time::Instant::now();
        loop {
            let events = self.events(of).await;
            let mut texts = events
                .iter()
                .filter(|event| event.reason.as_deref() == Some(reason))
                .map(|event| event.message.as_deref().unwrap_or_default());
            if texts.any(|text| parts.iter().all(|part| text.contains(part))) {
                return;
            }
            assert!(
                begun.elapsed().as_secs() < 90,
                "no event {reason} of {of} with {parts:?}"
            );
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    }

    fn interface(&self, ip: &str) -> Value {
        json!({ "interfaces": [{ "name": "eth1", "type": "ethernet", "state": "up",
            "ipv4": { "enabled": true, "address": [{ "ip": ip, "prefix-length": 24 }] } }] })
    }
}

/// Captures that can't be resolved: the enactment is Failing and says field, value and what would be right; nothing is allocated.
#[tokio::test(flavor = "multi_thread")]
async fn bad_captures_are_refused_before_anything_is_allocated() {
    let bed = Bed::new("captures").await;
    let pool = bed.pool("traffic-1", "10.23.1.1", "10.23.1.9").await;
    let six = bed
        .pool_with("six", json!({ "range": { "cidr": "fd00:23::/64", "start": "fd00:23::1", "end": "fd00:23::9" } }))
        .await;
    bed.until_pool(&pool, "ReconciledPool").await;
    bed.until_pool(&six, "ReconciledPool").await;
    let node = bed.add_node(1).await;
    let handler = bed.handler(&node).await;
    let allocate = format!("ippool.{pool}.allocate");
    let cases = [
        (
            "typo",
            json!({ "a": format!("ippool.{pool}.alocate") }),
            "{{ capture.a.ip }}",
            vec!["spec.capture.a", "`alocate`", "is allocate"],
        ),
        (
            "dotted",
            json!({ "my.addr": allocate }),
            "{{ capture.my.addr.ip }}",
            vec!["spec.capture.my.addr", "letters, digits"],
        ),
        (
            "field",
            json!({ "a": allocate }),
            "{{ capture.a.ipx }}",
            vec![
                "spec.desiredState.interfaces[0].ipv4.address[0].ip",
                "capture.a.ipx",
                "prefix-length",
            ],
        ),
        (
            "piped",
            json!({ "a": format!("{allocate} | interfaces.name==\"eth1\"") }),
            "{{ capture.a.ip }}",
            vec!["spec.capture.a", "pipes a pool capture", "capture.a.ip"],
        ),
        (
            "compared",
            json!({ "a": format!("{allocate} == \"10.23.1.1\"") }),
            "{{ capture.a.ip }}",
            vec!["spec.capture.a", "compares", "fields for templates"],
        ),
        (
            "unequal",
            json!({ "a": allocate, "b": "interfaces.name!=\"eth1\"" }),
            "{{ capture.a.ip }}",
            vec!["spec.capture.b", "`!=`", "use =="],
        ),
        (
            "family",
            json!({ "a": format!("ippool.{six}.allocate") }),
            "{{ capture.a.ip }}",
            vec!["ipv4.address[0].ip", "is IPv6", "a pool of IPv4"],
        ),
    ];
    for (name, capture, ip, words) in cases {
        let spec = json!({ "nodeSelector": { "bed": bed.name }, "capture": capture, "desiredState": bed.interface(ip) });
        let policy = bed.policy_with(name, spec).await;
        let refused = bed.until_enacted(&node, &policy, "Failing").await;
        let text = message(&refused);
        assert!(
            text.starts_with("failure generating desiredState and capturedStates:"),
            "{name}: {text}"
        );
        for word in &words {
            assert!(text.contains(word), "{name}: {text}");
        }
        let degraded = bed.until_policy(&policy, "Degraded").await;
        assert!(message(&degraded).contains("1/1 nodes failed"), "{name}");
        bed.until_event(&policy, "InvalidCapture", words).await;
        bed.delete(POLICY, &policy).await;
    }
    for pool in [&pool, &six] {
        let pool = bed.get(NODE_IP_POOL, pool).await.unwrap();
        assert!(offsets(&pool).is_empty(), "nothing was allocated");
    }
    assert!(!handler.calls().contains("apply"), "nothing was applied");
}

/// A node whose name is too long for a label has no enactment; the policy's event says so, and other nodes are served.
#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_is_too_long_is_an_event_of_the_policy() {
    let bed = Bed::new("toolong").await;
    let pool = bed.pool("traffic-1", "10.23.7.1", "10.23.7.9").await;
    let policy = bed.policy(&[&pool]).await;
    let long = format!("toolong-{}", "n".repeat(60));
    let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": long, "labels": { "bed": bed.name } } });
    bed.cluster.apply_object(node).await.unwrap();
    let _long = bed.handler(&long).await;
    let short = bed.add_node(1).await;
    let _short = bed.handler(&short).await;
    bed.until_enacted(&short, &policy, "Available").await;
    let parts = vec![long.as_str(), "68 characters", "at most 63"];
    bed.until_event(&policy, "NameTooLong", parts).await;
    let pool = bed.get(NODE_IP_POOL, &pool).await.unwrap();
    assert_eq!(offsets(&pool).len(), 1);
}

/// A policy that names a pool which does not exist waits, and is served when the pool appears.
#[tokio::test(flavor = "multi_thread")]
async fn a_policy_waits_for_its_pool() {
    let bed = Bed::new("waits").await;
    let policy = bed.policy(&["waits-later"]).await;
    let node = bed.add_node(1).await;
    let _handler = bed.handler(&node).await;
    let waits = bed.until_enacted(&node, &policy, "Pending").await;
    let text = message(&waits);
    assert!(
        text.contains("NodeIPPool waits-later does not exist"),
        "{text}"
    );
    bed.pool("later", "10.23.2.1", "10.23.2.9").await;
    bed.until_enacted(&node, &policy, "Available").await;
}

/// nmstate's own message: five tries, then Failing; the other node is not begun. The address stays whose it is.
#[tokio::test(flavor = "multi_thread")]
async fn an_apply_that_fails_is_tried_five_times_and_aborts_the_others() {
    let bed = Bed::new("fails").await;
    let pool = bed.pool("traffic-1", "10.23.3.1", "10.23.3.9").await;
    let mut spec = bed.policy_spec(&[&pool]);
    spec["maxUnavailable"] = json!(1);
    let policy = bed.policy_with("static-ip", spec).await;
    let node = bed.add_node(1).await;
    let told = "NmstateError: InvalidArgument: Interface eth1 not found";
    std::fs::write(bed.host_dir(&node).join("fail"), told).unwrap();
    let handler = bed.handler(&node).await;
    let failed = bed
        .until(
            berth_nodes::objects::ENACTMENT,
            &format!("{node}.{policy}"),
            |object| object["status"]["retryCount"]["1"] == 5,
        )
        .await;
    assert!(message(&failed).contains(told), "{}", message(&failed));
    let enactment = format!("{node}.{policy}");
    bed.until_event(&enactment, "FailedToConfigure", vec![told])
        .await;
    let calls = handler.calls();
    let applies = calls
        .lines()
        .filter(|line| line.starts_with("apply"))
        .count();
    assert_eq!(applies, 5, "{calls}");
    assert!(calls.contains("rollback"), "{calls}");
    let second = bed.add_node(2).await;
    let other = bed.handler(&second).await;
    let aborted = bed.until_enacted(&second, &policy, "Aborted").await;
    assert!(message(&aborted).contains(&node), "{}", message(&aborted));
    assert!(!other.calls().contains("apply"));
    let degraded = bed.until_policy(&policy, "Degraded").await;
    let text = message(&degraded);
    assert!(
        text.starts_with("1/2 nodes failed to configure, 1 nodes aborted configuration"),
        "{text}"
    );
    // The interface is there now, and the pool grows: the same generation is tried again, with the same address.
    let before = bed.addresses(&policy).await;
    std::fs::remove_file(bed.host_dir(&node).join("fail")).unwrap();
    let patch = json!({ "spec": { "range": { "end": "10.23.3.19" } } });
    let (params, patch) = (PatchParams::default(), Patch::Merge(&patch));
    let api = bed.api(NODE_IP_POOL);
    api.patch(&pool, &params, &patch).await.unwrap();
    bed.until_enacted(&node, &policy, "Available").await;
    assert_eq!(bed.addresses(&policy).await[0], before[0]);
}

/// `maxUnavailable: 1`: no two hosts are changed at the same time, and all are.
#[tokio::test(flavor = "multi_thread")]
async fn at_most_max_unavailable_nodes_apply_at_a_time() {
    let bed = Bed::new("atatime").await;
    let pool = bed.pool("traffic-1", "10.23.6.1", "10.23.6.9").await;
    let shared = bed.host_dir("x");
    let shared = shared.parent().unwrap();
    std::fs::write(shared.join("slow"), "").unwrap();
    let mut spec = bed.policy_spec(&[&pool]);
    spec["maxUnavailable"] = json!(1);
    let policy = bed.policy_with("static-ip", spec).await;
    let _handlers = bed.handlers(5).await;
    bed.until_policy(&policy, "Available").await;
    let overlaps = std::fs::read_to_string(shared.join("overlaps"));
    assert!(overlaps.is_err(), "{overlaps:?}");
}

/// An apply that hangs is ended in time, rolled back and tried again.
#[tokio::test(flavor = "multi_thread")]
async fn an_apply_that_hangs_is_rolled_back_and_tried_again() {
    let bed = Bed::new("hangs").await;
    let pool = bed.pool("traffic-1", "10.23.4.1", "10.23.4.9").await;
    let policy = bed.policy(&[&pool]).await;
    let node = bed.add_node(1).await;
    let hang = bed.host_dir(&node).join("hang");
    std::fs::write(&hang, "").unwrap();
    let handler = bed.handler(&node).await;
    let failed = bed.until_enacted(&node, &policy, "Failing").await;
    assert!(
        message(&failed).contains("gave no result within 15 s"),
        "{}",
        message(&failed)
    );
    std::fs::remove_file(&hang).unwrap();
    bed.until_enacted(&node, &policy, "Available").await;
    assert!(handler.calls().contains("rollback"));
}

/// An address that is reserved for a node goes to no other, though it is the first.
#[tokio::test(flavor = "multi_thread")]
async fn a_reservation_is_kept_for_its_node() {
    let bed = Bed::new("reserved").await;
    let reserved = bed.node(2);
    let pool = bed
        .pool_with(
            "traffic-1",
            json!({
                "range": { "cidr": "10.23.5.0/24", "start": "10.23.5.1", "end": "10.23.5.3" },
                "reservations": { reserved.as_str(): "10.23.5.1" },
            }),
        )
        .await;
    let policy = bed.policy(&[&pool]).await;
    let _handlers = bed.handlers(3).await;
    bed.until_policy(&policy, "Available").await;
    let addresses = bed.addresses(&policy).await;
    assert_eq!(addresses[1], (reserved, vec!["10.23.5.1".to_owned()]));
    crate::bed::all_different(&addresses);
}

/// Excludes that only together leave nothing: the API server can't find that, the condition and an event say it.
#[tokio::test(flavor = "multi_thread")]
async fn a_pool_without_any_address_is_invalid() {
    let bed = Bed::new("nothing").await;
    let pool = bed
        .pool_with("traffic-1", json!({ "range": { "cidr": "10.23.8.0/24", "start": "10.23.8.1", "end": "10.23.8.2", "exclude": ["10.23.8.1", "10.23.8.2"] } }))
        .await;
    let told = bed.until_pool(&pool, "InvalidIPPool").await;
    let (status, _, text) = crate::bed::available(&told);
    assert_eq!(status, "False");
    assert!(text.contains("spec.range.exclude"), "{text}");
    bed.until_event(&pool, "InvalidIPPool", vec!["spec.range.exclude"])
        .await;
}

/// A released address waits for the reuse delay: another node does not get it, though no other one is free; its own node does.
#[tokio::test(flavor = "multi_thread")]
async fn a_released_address_waits_for_the_reuse_delay() {
    let bed = Bed::new("delay").await;
    let pool = bed
        .pool_with("traffic-1", json!({ "range": { "cidr": "10.23.9.0/24", "start": "10.23.9.1", "end": "10.23.9.2" }, "reuse-delay": "1h" }))
        .await;
    let policy = bed.policy(&[&pool]).await;
    let mut handlers = bed.handlers(2).await;
    bed.until_policy(&policy, "Available").await;
    let before = bed.addresses(&policy).await;
    handlers.pop().unwrap().kill().await;
    let second = bed.node(2);
    bed.delete_node(&second).await;
    let released = bed
        .until(NODE_IP_POOL, &pool, |pool| offsets(pool).len() == 1)
        .await;
    let cooling = &released["status"]["cooling-down"][0];
    assert_eq!(cooling["node"], second.as_str());
    let third = bed.add_node(3).await;
    let _third = bed.handler(&third).await;
    let failed = bed.until_enacted(&third, &policy, "Failing").await;
    assert!(
        message(&failed).contains("no free address"),
        "{}",
        message(&failed)
    );
    bed.add_node(2).await;
    let _back = bed.handler(&second).await;
    bed.until_enacted(&second, &policy, "Available").await;
    let after = bed.addresses(&policy).await;
    assert_eq!(after[..2], before[..]);
}

/// A NodeNetworkState that another program writes is left alone.
#[tokio::test(flavor = "multi_thread")]
async fn a_state_of_another_program_is_left_alone() {
    use berth_nodes::objects::NODE_STATE;
    let bed = Bed::new("foreignstate").await;
    let pool = bed.pool("traffic-1", "10.23.10.1", "10.23.10.9").await;
    let node = bed.add_node(1).await;
    bed.create(NODE_STATE, json!({ "metadata": { "name": node } }))
        .await;
    let state = json!({ "status": { "currentState": { "interfaces": [{ "name": "eth7" }] } } });
    let (params, patch) = (PatchParams::default(), Patch::Merge(&state));
    let api = bed.api(NODE_STATE);
    api.patch_status(&node, &params, &patch).await.unwrap();
    let before = bed.get(NODE_STATE, &node).await.unwrap();
    let _handler = bed.handler(&node).await;
    // The second one is applied after all that belongs to the first.
    for name in ["first", "second"] {
        let spec = bed.policy_spec(&[&pool]);
        let policy = bed.policy_with(name, spec).await;
        bed.until_enacted(&node, &policy, "Available").await;
    }
    let after = bed.get(NODE_STATE, &node).await.unwrap();
    assert_eq!(after, before);
}

/// Without kubernetes-nmstate's own rule a policy may have a name that is too long for a label: an event says so.
#[tokio::test(flavor = "multi_thread")]
async fn a_policy_name_that_is_too_long_is_an_event() {
    let bed = Bed::alone("longname").await;
    let _leader = bed.leader().await;
    let pool = bed.pool("traffic-1", "10.23.11.1", "10.23.11.9").await;
    let node = bed.add_node(1).await;
    let handler = bed.handler(&node).await;
    let rule = [
        "delete",
        "validatingadmissionpolicybinding",
        "nncp-validation-policy-binding",
    ];
    assert!(bed.cluster.kubectl(&rule).unwrap().status.success());
    let long = "p".repeat(64);
    let object = json!({
        "apiVersion": "nmstate.io/v1", "kind": "NodeNetworkConfigurationPolicy",
        "metadata": { "name": long }, "spec": bed.policy_spec(&[&pool]),
    });
    // The API server forgets the rule after a moment.
    let begun = std::time::Instant::now();
    while let Err(error) = bed.cluster.apply_object(object.clone()).await {
        assert!(begun.elapsed().as_secs() < 60, "{error:#}");
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
    let parts = vec![long.as_str(), "64 characters", "at most 63"];
    bed.until_event(&long, "NameTooLong", parts).await;
    assert!(!handler.calls().contains("apply"));
    // Other policies are served.
    let policy = bed.policy(&[&pool]).await;
    bed.until_enacted(&node, &policy, "Available").await;
    let pool = bed.get(NODE_IP_POOL, &pool).await.unwrap();
    assert_eq!(offsets(&pool).len(), 1);
}
