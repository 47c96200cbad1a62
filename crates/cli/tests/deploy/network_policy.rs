//! The NetworkPolicy of the controller's ports.

use serde_json::Value;

use crate::{HOME, deployed};

/// No CNI here enforces them: that the API server takes what is shipped is all that can be shown.
#[tokio::test]
async fn the_controllers_network_policy_is_taken_by_a_server_side_dry_run() {
    let cluster = deployed().await;
    let file = crate::deploy("controller/networkpolicy.yaml");
    let file = file.to_str().unwrap();
    let dry = [
        "apply",
        "--server-side",
        "--dry-run=server",
        "--force-conflicts",
        "-f",
        file,
    ];
    assert!(crate::kubectl(cluster, &dry).contains("berth-controller"));
    // It is about the ports that the controller has, and none is left out.
    let get = |what: &str| -> Value {
        let get = [
            "get",
            what,
            "berth-controller",
            "--namespace",
            HOME,
            "--output=json",
        ];
        serde_json::from_str(&crate::kubectl(cluster, &get)).unwrap()
    };
    let (policy, deployment) = (get("networkpolicy"), get("deployment"));
    let ports = |list: &Value, field: &str| -> Vec<Value> {
        let ports = list["ports"].as_array().unwrap();
        ports.iter().map(|port| port[field].clone()).collect()
    };
    let template = &deployment["spec"]["template"];
    let named = ports(&template["spec"]["containers"][0], "name");
    let rules = policy["spec"]["ingress"].as_array().unwrap();
    let allowed: Vec<Value> = rules.iter().flat_map(|rule| ports(rule, "port")).collect();
    assert!(
        allowed.iter().all(|port| named.contains(port)),
        "{allowed:?}"
    );
    assert!(named.iter().all(|port| allowed.contains(port)), "{named:?}");
    let selected = &policy["spec"]["podSelector"]["matchLabels"];
    let labels = &template["metadata"]["labels"];
    let selected = selected.as_object().unwrap();
    assert!(selected.iter().all(|(key, value)| labels[key] == *value));
}
