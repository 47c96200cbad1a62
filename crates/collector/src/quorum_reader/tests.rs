use serde_json::{Value, json};

use super::*;

#[test]
fn a_pods_status_names_its_secondary_addresses() {
    let status = r#"[{"name":"cbr0","default":true,"ips":["10.244.0.9"]},
        {"name":"ux/web","interface":"net1","ips":["10.0.0.5","fd00::5"]},
        {"name":"bare","interface":"net2","ips":["10.0.0.6"]}]"#;
    let read = |status: &str, more: Value| {
        let mut metadata = json!({ "name": "p", "namespace": "ns", "uid": "u1",
            "annotations": { "k8s.v1.cni.cncf.io/network-status": status } });
        metadata
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let pod: LeanPod = serde_json::from_value(json!({ "metadata": metadata })).unwrap();
        Attached::read(pod)
    };
    let found = read(status, json!({}));
    let found: Vec<String> = found
        .iter()
        .map(|one| format!("{} {} {:?}", one.owner, one.address, one.network))
        .collect();
    let of = r#"("ux", "web")"#;
    let expected = [
        format!("ns/p (net1) 10.0.0.5 {of}"),
        format!("ns/p (net1) fd00::5 {of}"),
    ];
    assert_eq!(found, expected);
    let deleted = json!({ "deletionTimestamp": "2026-01-01T00:00:00Z" });
    assert!(read(status, deleted).is_empty());
    assert!(read("nonsense", json!({})).is_empty());
}

#[test]
fn a_pod_is_connected_unless_everything_says_that_it_still_waits() {
    let connected = |metadata: Value, status: Value| {
        let pod = json!({ "metadata": metadata, "spec": { "nodeName": "n" }, "status": status });
        let pod: LeanPod = serde_json::from_value(pod).unwrap();
        BoundPod::read(pod).unwrap().connected
    };
    let bare = || json!({ "name": "p", "namespace": "ns" });
    let reported =
        json!({ "name": "p", "annotations": { "k8s.v1.cni.cncf.io/network-status": "[]" } });
    assert!(!connected(bare(), json!({})));
    assert!(!connected(bare(), json!({ "phase": "Pending" })));
    assert!(connected(
        bare(),
        json!({ "phase": "Pending", "podIP": "10.244.0.9" })
    ));
    for phase in ["Running", "Unknown", "Hibernating"] {
        assert!(connected(bare(), json!({ "phase": phase })), "{phase}");
    }
    assert!(connected(reported, json!({ "phase": "Pending" })));
}

#[test]
fn an_error_keeps_how_long_the_server_asks_its_clients_to_wait() {
    let busy = KubeError::Unavailable {
        target: "Pods".to_owned(),
        why: "the API server answered 429".to_owned(),
        retry_after: Some(Duration::from_secs(7)),
    };
    let error = ReadError::from(busy);
    assert_eq!(error.retry_after, Some(Duration::from_secs(7)));
    assert_eq!(error.code, None);
    let text = "Pods can't be read: the API server answered 429";
    assert_eq!(error.to_string(), text);
}
