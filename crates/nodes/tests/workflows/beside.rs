//! `--nodes-apply=policy`: kubernetes-nmstate applies one concrete policy per node. It is played here by a task that does what its handler does with an
//! ordinary policy, because its handler can't be built from its modules.

use std::time::Duration;

use berth_nodes::handler::{Mode, check_kept_away};
use berth_nodes::objects::{self, ENACTMENT, NODE_IP_POOL, POLICY};
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::bed::{Bed, all_different, offsets};

/// Marks each concrete policy of this test as applied, as kubernetes-nmstate's enactments say it.
async fn play_kubernetes_nmstate(bed: &Bed) {
    let policies = bed.api(POLICY);
    loop {
        let params = ListParams::default().labels("berth.dev/of-pool-policy");
        for policy in policies.list(&params).await.unwrap().items {
            let policy = objects::value(&policy);
            let node = objects::label(&policy, objects::NODE_LABEL).unwrap();
            if !node.starts_with(&bed.name) {
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
                "conditions": [{ "type": "Available", "status": "True", "reason": "SuccessfullyConfigured", "message": "successfully reconciled" }],
            } });
            let (params, patch) = (PatchParams::default(), Patch::Merge(&status));
            let api = bed.api(ENACTMENT);
            api.patch_status(&name, &params, &patch).await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn keeps_away(bed: &Bed) {
    let text = include_str!("../../../../deploy/nodes/beside-nmstate/pool-policies.yaml");
    bed.cluster.apply(text).await.unwrap();
}

/// Without the policy that keeps kubernetes-nmstate away, the mode refuses to start and says what to apply; with it, it starts.
/// Then three nodes: pool policies get a selector that no node has, concrete policies the addresses.
#[tokio::test(flavor = "multi_thread")]
async fn kubernetes_nmstate_gets_one_concrete_policy_per_node() {
    let bed = Bed::new("beside").await;
    let account = bed
        .cluster
        .account("kube-system", "berth-agent")
        .await
        .unwrap();
    let client = account.client().await.unwrap();
    let timeout = Duration::from_secs(10);
    let refused = check_kept_away(&client, timeout).await.unwrap_err();
    assert!(refused.contains("deploy/nodes/beside-nmstate"), "{refused}");
    keeps_away(&bed).await;
    check_kept_away(&client, timeout).await.unwrap();
    let pool = bed.pool("traffic-1", "10.24.1.1", "10.24.1.9").await;
    // The API server takes a new policy up after a moment.
    let policy = loop {
        let policy = bed.policy(&[&pool]).await;
        let made = bed.get(POLICY, &policy).await.unwrap();
        if made["spec"]["nodeSelector"]
            .get("berth.dev/pool-policy")
            .is_some()
        {
            break policy;
        }
        bed.delete(POLICY, &policy).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    let mut handlers = Vec::new();
    for number in 1..=3 {
        let node = bed.add_node(number).await;
        handlers.push(bed.handler_by(&node, account.client().await.unwrap(), Mode::Policy));
    }
    tokio::select! {
        () = play_kubernetes_nmstate(&bed) => {}
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
    // The policy goes while one handler is dead: the garbage collector deletes the concrete policies, which the policy owned. The enactments
    // go with their handlers, and nothing shows the addresses.
    handlers.pop().unwrap().kill().await;
    bed.delete(POLICY, &policy).await;
    for (node, _) in &addresses {
        bed.until_gone(POLICY, &format!("{policy}.{node}")).await;
    }
    let (last, _) = addresses.last().unwrap();
    let _back = bed.handler_by(last, account.client().await.unwrap(), Mode::Policy);
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
    let quiet = bed.handler_by(&off, bed.admin.clone(), Mode::Off);
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
    let agent = bed.account("berth-agent").await;
    let _leader = bed.leader(bed.account("berth-controller").await);
    let pool = bed.pool("traffic-1", "10.24.3.1", "10.24.3.9").await;
    let inline = |address: Value| {
        json!({ "desiredState": { "interfaces": [
            { "name": "eth1", "type": "ethernet", "state": "up", "ipv6": { "enabled": false },
              "ipv4": { "enabled": true, "address": [address] } }] } })
    };
    let from_pool = || inline(json!({ "ipam": { "pool": pool.as_str() } }));
    let policy = bed.policy_with("static-ip", from_pool()).await;
    let node = bed.add_node(1).await;
    let _handler = bed.handler_by(&node, agent, Mode::Policy);
    let waits = bed.until_enacted(&node, &policy, "Pending").await;
    let text = crate::bed::message(&waits);
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
    let none = json!({ "berth.dev/pool-policy": "none" });
    // The API server takes a new policy up after a moment.
    bed.delete(POLICY, &policy).await;
    for number in 0.. {
        let policy = bed.policy_with("static-ip", from_pool()).await;
        let made = bed.get(POLICY, &policy).await.unwrap();
        if selector(&made) == none {
            break;
        }
        assert!(number < 300, "the rule is not enforced");
        bed.delete(POLICY, &policy).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
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
