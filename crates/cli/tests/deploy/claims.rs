//! Claims of slices, with the manifests of deploy/slices: in a namespace of their own, and out of the way of elections.

use std::time::{Duration, Instant};

use k8s_openapi::api::flowcontrol::v1::FlowSchema;
use kube::api::Api;
use kube::client::Body;
use serde_json::{Value, json};

use crate::manifests::build;
use crate::{CLAIMS, NODE, agent, deployed};

/// As docs/install.md has it.
const ELSEWHERE: &str = r#"
namespace: berth-networking
patches:
- target: { kind: RoleBinding }
  patch: |-
    - { op: replace, path: /subjects/0/namespace, value: networking }
- target: { kind: FlowSchema }
  patch: |-
    - { op: replace, path: /spec/rules/0/subjects/0/serviceAccount/namespace, value: networking }
    - { op: replace, path: /spec/rules/0/subjects/1/serviceAccount/namespace, value: networking }
    - { op: replace, path: /spec/rules/0/resourceRules/0/namespaces/0, value: berth-networking }
"#;

/// The API server seats the Leases that accounts of kube-system write with elections, a few at a time: thousands of nodes
/// that claim at once would keep leaders from renewing theirs.
#[tokio::test]
async fn a_claim_takes_no_seat_of_an_election() {
    let cluster = deployed().await;
    let schemas: Api<FlowSchema> = Api::all(cluster.client().await.unwrap());
    let ours = schemas.get("berth-slices").await.unwrap().metadata.uid;
    let client = agent().await.client().await.unwrap();
    let begun = Instant::now();
    for n in 0.. {
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {
                "name": format!("10.200.{n}.0-26"),
                "labels": { "berth.dev/node": NODE },
                "annotations": { "berth.dev/slice": json!({ "range": format!("10.200.{n}.0/26") }).to_string() },
            },
            "spec": { "holderIdentity": NODE },
        });
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/{CLAIMS}/leases");
        let request = hyper::Request::post(path).header("content-type", "application/json");
        let request = request.body(Body::from(lease.to_string().into_bytes()));
        let answer = client.send(request.unwrap()).await.unwrap();
        let seat = answer.headers().get("x-kubernetes-pf-flowschema-uid");
        let seat = seat.map(|seat| seat.to_str().unwrap().to_owned());
        if answer.status() == 201 && seat == ours {
            break;
        }
        // Rights and flows are learnt by watch.
        let waited = begun.elapsed() < Duration::from_secs(20);
        assert!(waited, "{}: {seat:?}, not {ours:?}", answer.status());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

#[test]
fn pools_elsewhere_have_their_claims_beside_them() {
    let objects = build("slices", ELSEWHERE);
    assert_eq!(objects.len(), 5);
    for object in &objects {
        let subjects = match object["kind"].as_str().unwrap() {
            "FlowSchema" => {
                let rule = &object["spec"]["rules"][0];
                assert_eq!(
                    rule["resourceRules"][0]["namespaces"][0],
                    "berth-networking"
                );
                let subjects = rule["subjects"].as_array().unwrap();
                subjects.iter().map(|one| &one["serviceAccount"]).collect()
            }
            _ => {
                assert_eq!(object["metadata"]["namespace"], "berth-networking");
                let subjects = object["subjects"].as_array().into_iter().flatten();
                subjects.collect::<Vec<&Value>>()
            }
        };
        for subject in subjects {
            assert_eq!(subject["namespace"], "networking");
        }
    }
}
