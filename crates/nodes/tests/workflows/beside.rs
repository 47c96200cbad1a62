//! `--nodes-apply=policy`: kubernetes-nmstate applies one concrete policy per node. It is played here by a task that does what its handler does with an
//! ordinary policy, because its handler can't be built from its modules.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

use berth_nodes::handler::{Mode, check_kept_away};
use berth_nodes::objects::{self, ENACTMENT, NODE_IP_POOL, POLICY};
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::bed::{Bed, all_different, is_true, message, offsets};

/// The condition that kubernetes-nmstate's enactment of a concrete policy has; none yet for one that it still applies.
type Outcome<'a> = dyn Fn(&Value) -> Option<Value> + Sync + 'a;

fn condition(kind: &str, reason: &str, message: &str) -> Value {
    json!({ "type": kind, "status": "True", "reason": reason, "message": message })
}

pub fn available(_: &Value) -> Option<Value> {
    let (reason, message) = ("SuccessfullyConfigured", "successfully reconciled");
    Some(condition("Available", reason, message))
}

/// Serves each concrete policy of this test, as kubernetes-nmstate's enactments say it.
pub async fn play_kubernetes_nmstate(bed: &Bed, outcome: &Outcome<'_>) {
    let policies = bed.api(POLICY);
    loop {
        let params = ListParams::default().labels("berth.dev/of-pool-policy");
        for policy in policies.list(&params).await.unwrap().items {
            let policy = objects::value(&policy);
            let node = objects::label(&policy, objects::NODE_LABEL).unwrap();
            let condition = outcome(&policy);
            if !node.starts_with(&bed.name) || condition.is_none() {
                continue;
            }
            let name = format!("{node}.{}", objects::name(&policy));
            if bed.get(ENACTMENT, &name).await.is_none() {
                let labels =
                    json!({ "nmstate.io/node": node, "nmstate.io/policy": objects::name(&policy) });
                let object = json!({ "metadata": { "name": name, "labels": labels } });
                bed.create(ENACTMENT, object).await;
            }
            let status = json!({ "status": {
                "policyGeneration": objects::generation(&policy),
                "desiredState": policy["spec"]["desiredState"],
                "conditions": [condition],
            } });
            let (params, patch) = (PatchParams::default(), Patch::Merge(&status));
            let api = bed.api(ENACTMENT);
            // A test may delete it at the same time.
            let _ = api.patch_status(&name, &params, &patch).await;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

pub async fn keeps_away(bed: &Bed) {
    let text = include_str!("../../../../deploy/nodes/beside-nmstate/pool-policies.yaml");
    bed.cluster.apply(text).await.unwrap();
}

/// A policy of that spec with the selector that no node has. The API server takes a new rule up after a moment.
pub async fn kept_away(bed: &Bed, spec: Value) -> String {
    for number in 0.. {
        let policy = bed.policy_with("static-ip", spec.clone()).await;
        let made = bed.get(POLICY, &policy).await.unwrap();
        if made["spec"]["nodeSelector"]["berth.dev/pool-policy"] == "none" {
            return policy;
        }
        assert!(number < 300, "the rule is not enforced");
        bed.delete(POLICY, &policy).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    unreachable!()
}

/// Without the policy that keeps kubernetes-nmstate away, the mode refuses to start and says what to apply; with it, it starts.
/// Then three nodes: pool policies get a selector that no node has, concrete policies the addresses.
#[tokio::test(flavor = "multi_thread")]
async fn kubernetes_nmstate_gets_one_concrete_policy_per_node() {
    let bed = Bed::alone("beside").await;
    let _collector = bed.cluster.garbage_collector().unwrap();
    let _leader = bed.leader().await;
    let client = bed.agent_client("beside-node00").await;
    let timeout = Duration::from_secs(10);
    let refused = check_kept_away(&client, timeout).await.unwrap_err();
    assert!(refused.contains("deploy/nodes/beside-nmstate"), "{refused}");
    keeps_away(&bed).await;
    check_kept_away(&client, timeout).await.unwrap();
    let pool = bed.pool("traffic-1", "10.24.1.1", "10.24.1.9").await;
    let policy = kept_away(&bed, bed.policy_spec(&[&pool])).await;
    let mut handlers = Vec::new();
    for number in 1..=3 {
        let node = bed.add_node(number).await;
        handlers.push(bed.handler_in(&node, Mode::Policy).await);
    }
    tokio::select! {
        () = play_kubernetes_nmstate(&bed, &available) => {}
        _ = bed.until_policy(&policy, "Available") => {}
    }
    let addresses = bed.addresses(&policy).await;
    assert_eq!(addresses.len(), 3);
    all_different(&addresses);
    for (node, list) in &addresses {
        let concrete = bed.get(POLICY, &format!("{policy}.{node}")).await.unwrap();
        assert_eq!(
            concrete["spec"]["nodeSelector"],
            json!({ "kubernetes.io/hostname": node })
        );
        assert_eq!(concrete["spec"].get("capture"), None::<&Value>);
        let interface = &concrete["spec"]["desiredState"]["interfaces"][0];
        assert_eq!(
            interface["ipv4"]["address"],
            json!([{ "ip": list[0], "prefix-length": 24 }])
        );
        assert_eq!(
            concrete["metadata"]["ownerReferences"][0]["name"],
            policy.as_str()
        );
    }
    assert!(
        handlers.iter().all(|handler| handler.calls().is_empty()),
        "the host is kubernetes-nmstate's"
    );
    // At each of its reconciles kubernetes-nmstate calls the pool policy ignored and deletes the enactments of its name.
    let ignored = condition(
        "Ignored",
        "NoMatchingNode",
        "Policy does not match any node",
    );
    let ignored = json!({ "status": { "conditions": [ignored] } });
    let (params, patch) = (PatchParams::default(), Patch::Merge(&ignored));
    let api = bed.api(POLICY);
    api.patch_status(&policy, &params, &patch).await.unwrap();
    for (node, _) in &addresses {
        bed.delete(ENACTMENT, &format!("{node}.{policy}")).await;
    }
    for (node, _) in &addresses {
        bed.until_enacted(node, &policy, "Available").await;
    }
    assert_eq!(bed.addresses(&policy).await, addresses, "kept");
    let shown = bed.until_policy(&policy, "Available").await;
    assert!(!is_true(&shown, "Ignored"));
    // The policy goes while one handler is dead: the garbage collector deletes the concrete policies, which the policy owned. The enactments
    // go with their handlers, and nothing shows the addresses.
    handlers.pop().unwrap().kill().await;
    bed.delete(POLICY, &policy).await;
    for (node, _) in &addresses {
        bed.until_gone(POLICY, &format!("{policy}.{node}")).await;
    }
    let (last, _) = addresses.last().unwrap();
    let _back = bed.handler_in(last, Mode::Policy).await;
    for (node, _) in &addresses {
        bed.until_gone(ENACTMENT, &format!("{node}.{policy}")).await;
    }
    bed.until(NODE_IP_POOL, &pool, |pool| offsets(pool).is_empty())
        .await;
}

/// `off`: nothing is allocated, nothing is written.
#[tokio::test(flavor = "multi_thread")]
async fn off_allocates_and_writes_nothing() {
    let bed = Bed::new("off").await;
    let pool = bed.pool("traffic-1", "10.24.2.1", "10.24.2.9").await;
    let policy = bed.policy(&[&pool]).await;
    let (off, on) = (bed.add_node(1).await, bed.add_node(2).await);
    let quiet = bed.handler_in(&off, Mode::Off).await;
    let _loud = bed.handler(&on).await;
    bed.until_enacted(&on, &policy, "Available").await;
    bed.until_pool(&pool, "ReconciledPool").await;
    assert!(bed.enactment(&off, &policy).await.is_none());
    assert!(quiet.calls().is_empty());
    let pool = bed.get(NODE_IP_POOL, &pool).await.unwrap();
    assert_eq!(offsets(&pool).len(), 1);
}

/// A pool policy that is older than the rule, with the shorter syntax and without a selector of its own, waits: kubernetes-nmstate would serve
/// it too. When it is created again, the API server adds the selector, and the concrete policy follows.
#[tokio::test(flavor = "multi_thread")]
async fn an_older_policy_waits_until_it_is_kept_away() {
    let bed = Bed::alone("older").await;
    let _leader = bed.leader().await;
    let pool = bed.pool("traffic-1", "10.24.3.1", "10.24.3.9").await;
    let inline = |address: Value| {
        json!({ "desiredState": { "interfaces": [
            { "name": "eth1", "type": "ethernet", "state": "up", "ipv6": { "enabled": false },
              "ipv4": { "enabled": true, "address": [address] } }] } })
    };
    let from_pool = || inline(json!({ "ipam": { "pool": pool.as_str() } }));
    let policy = bed.policy_with("static-ip", from_pool()).await;
    let node = bed.add_node(1).await;
    let _handler = bed.handler_in(&node, Mode::Policy).await;
    let waits = bed.until_enacted(&node, &policy, "Pending").await;
    let text = message(&waits);
    assert!(
        text.contains("spec.nodeSelector")
            && text.contains("berth.dev/pool-policy")
            && text.contains("create it again"),
        "{text}"
    );
    let concrete = format!("{policy}.{node}");
    assert!(bed.get(POLICY, &concrete).await.is_none());
    keeps_away(&bed).await;
    let selector = |object: &Value| object["spec"]["nodeSelector"].clone();
    bed.delete(POLICY, &policy).await;
    kept_away(&bed, from_pool()).await;
    let rendered = bed.until(POLICY, &concrete, |_| true).await;
    let interface = &rendered["spec"]["desiredState"]["interfaces"][0];
    assert_eq!(interface["ipv4"]["address"][0]["prefix-length"], 24);
    assert_eq!(
        selector(&rendered),
        json!({ "kubernetes.io/hostname": node })
    );
    // New ones get it at once, beside a selector of their own; ordinary ones do not, whatever their state is.
    let mut own = from_pool();
    own["nodeSelector"] = json!({ "a": "b" });
    let own = bed.policy_with("own", own).await;
    let made = bed.get(POLICY, &own).await.unwrap();
    assert_eq!(
        selector(&made),
        json!({ "a": "b", "berth.dev/pool-policy": "none" })
    );
    for (name, spec) in [
        (
            "ordinary",
            inline(json!({ "ip": "192.0.2.1", "prefix-length": 24 })),
        ),
        ("odd", json!({ "desiredState": { "interfaces": "none" } })),
        (
            "empty",
            json!({ "desiredState": { "interfaces": [{ "name": "eth1", "ipv4": { "enabled": false } }, 7] } }),
        ),
    ] {
        let name = bed.policy_with(name, spec).await;
        let made = bed.get(POLICY, &name).await.unwrap();
        assert_eq!(selector(&made), Value::Null, "{name}");
    }
}

/// What kubernetes-nmstate says of a concrete policy is what the pool policy's enactment says.
#[tokio::test(flavor = "multi_thread")]
async fn what_failed_and_what_was_aborted_is_mirrored() {
    let bed = Bed::new("mirror").await;
    keeps_away(&bed).await;
    let pool = bed.pool("traffic-1", "10.24.4.1", "10.24.4.9").await;
    let policy = kept_away(&bed, bed.policy_spec(&[&pool])).await;
    let failed = "NmstateError: InvalidArgument: eth1 is a bond's port";
    let outcome = |concrete: &Value| {
        let node = objects::label(concrete, objects::NODE_LABEL)?;
        Some(match node.ends_with("node01") {
            true => condition("Aborted", "ConfigurationAborted", "aborted elsewhere"),
            false => condition("Failing", "FailedToConfigure", failed),
        })
    };
    let work = async {
        // The one that fails is second: what failed is not begun on further nodes.
        for (number, condition, text) in
            [(1, "Aborted", "aborted elsewhere"), (2, "Failing", failed)]
        {
            let node = bed.add_node(number).await;
            let running = bed.handler_in(&node, Mode::Policy).await;
            let enactment = bed.until_enacted(&node, &policy, condition).await;
            assert_eq!(message(&enactment), text);
            running.kill().await;
        }
        let third = bed.add_node(3).await;
        let _third = bed.handler_in(&third, Mode::Policy).await;
        let aborted = bed.until_enacted(&third, &policy, "Aborted").await;
        assert!(
            message(&aborted).contains(&bed.node(2)),
            "{}",
            message(&aborted)
        );
        let concrete = format!("{policy}.{third}");
        assert!(bed.get(POLICY, &concrete).await.is_none());
        let degraded = bed.until_policy(&policy, "Degraded").await;
        assert!(message(&degraded).starts_with("1/3 nodes failed to configure"));
    };
    tokio::select! {
        () = play_kubernetes_nmstate(&bed, &outcome) => {}
        () = work => {}
    }
}

/// `maxUnavailable: 1`: the next node's concrete policy is written when the one before is applied.
#[tokio::test(flavor = "multi_thread")]
async fn at_most_max_unavailable_concrete_policies_are_applied_at_a_time() {
    let bed = Bed::new("onebyone").await;
    keeps_away(&bed).await;
    let pool = bed.pool("traffic-1", "10.24.5.1", "10.24.5.9").await;
    let mut spec = bed.policy_spec(&[&pool]);
    spec["maxUnavailable"] = json!(1);
    let policy = kept_away(&bed, spec).await;
    let _handlers = bed.handlers_in(4, Mode::Policy).await;
    let (begun, most) = (Mutex::new(BTreeSet::new()), Mutex::new(0));
    let applied = Mutex::new(BTreeSet::new());
    // Each is applied when it is seen for the second time.
    let outcome = |concrete: &Value| {
        let name = objects::name(concrete).to_owned();
        if !name.starts_with(&bed.name) {
            return None;
        }
        let (mut begun, mut applied) = (begun.lock().unwrap(), applied.lock().unwrap());
        if begun.insert(name.clone()) {
            let mut most = most.lock().unwrap();
            *most = (*most).max(begun.len() - applied.len());
            return None;
        }
        applied.insert(name);
        available(concrete)
    };
    tokio::select! {
        () = play_kubernetes_nmstate(&bed, &outcome) => {}
        _ = bed.until_policy(&policy, "Available") => {}
    }
    assert_eq!(
        (applied.lock().unwrap().len(), *most.lock().unwrap()),
        (4, 1)
    );
}

/// Captures of the host's state are kubernetes-nmstate's: they are in the concrete policy, which is made again when the state changes, because
/// captures can't be modified.
#[tokio::test(flavor = "multi_thread")]
async fn a_concrete_policy_has_the_captures_that_are_nmstates() {
    let bed = Bed::new("concrete").await;
    keeps_away(&bed).await;
    let pool = bed.pool("traffic-1", "10.24.6.1", "10.24.6.9").await;
    let mut spec = bed.policy_spec(&[&pool]);
    let nic = "interfaces.name==\"eth1\"";
    spec["capture"]["nic"] = json!(nic);
    spec["desiredState"]["interfaces"][0]["name"] = json!("{{ capture.nic.interfaces.0.name }}");
    let policy = kept_away(&bed, spec).await;
    let node = bed.add_node(1).await;
    let _handler = bed.handler_in(&node, Mode::Policy).await;
    let work = async {
        let done = bed.until_policy(&policy, "Available").await;
        let name = format!("{policy}.{node}");
        let first = bed.get(POLICY, &name).await.unwrap();
        assert_eq!(first["spec"]["capture"], json!({ "nic": nic }));
        let interface = &first["spec"]["desiredState"]["interfaces"][0];
        assert_eq!(interface["name"], "{{ capture.nic.interfaces.0.name }}");
        assert_eq!(interface["ipv4"]["address"][0]["ip"], "10.24.6.1");
        let mut state = done["spec"]["desiredState"].clone();
        state["interfaces"][0]["mtu"] = json!(1400);
        let patch = json!({ "spec": { "desiredState": state } });
        let (params, patch) = (PatchParams::default(), Patch::Merge(&patch));
        let api = bed.api(POLICY);
        api.patch(&policy, &params, &patch).await.unwrap();
        let second = bed
            .until(POLICY, &name, |concrete| {
                concrete["spec"].to_string().contains("1400")
            })
            .await;
        assert_ne!(second["metadata"]["uid"], first["metadata"]["uid"]);
        assert_eq!(second["spec"]["capture"], json!({ "nic": nic }));
        let again = |object: &Value| {
            is_true(object, "Available") && object["status"]["policyGeneration"] == 2
        };
        bed.until(ENACTMENT, &format!("{node}.{policy}"), again)
            .await;
    };
    tokio::select! {
        () = play_kubernetes_nmstate(&bed, &available) => {}
        () = work => {}
    }
}
