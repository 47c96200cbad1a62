//! Real ptp with gcp-ipam as its IPAM, driven by cnitool as a runtime would; real host-local for pods that are not selected.

use berth_testkit::{Machine, Netns};
use serde_json::{Value, json};

use crate::site::{Host, Site, directory};

pub fn cnitool(
    site: &Site,
    host: &Host,
    machine: &Machine,
    verb: &str,
    (pod, netns): (&str, &Netns),
) -> String {
    let plugin = site.plugin();
    let args = format!(
        "IgnoreUnknown=1;K8S_POD_NAMESPACE={};K8S_POD_NAME={pod}",
        site.namespace
    );
    let mut variables = site.environment(host);
    variables.push(("CNI_ARGS", args));
    let output = machine
        .cnitool(verb, netns, directory(&plugin), &variables)
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{verb} {pod}: {text} {}",
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn ptp_gives_a_pod_its_address_and_host_local_serves_the_others() {
    let site = Site::new(50).await;
    let host = site.host("a").await;
    let _agent = site.agent(&host);
    let data = site.dir.path().join("host-local");
    let ipam = json!({
        "type": "gcp-ipam", "pods": "labelled", "dataDir": data,
        "ranges": [[{ "subnet": "10.4.97.0/24" }]], "routes": [{ "dst": "0.0.0.0/0" }],
    });
    let machine = Machine::with_network(json!({ "type": "ptp", "mtu": 1460 }), ipam).unwrap();
    let (live, plain) = (Netns::new().unwrap(), Netns::new().unwrap());
    site.pod(
        "live",
        &host,
        json!({ "labels": { "berth.dev/live-ip": "true" } }),
    )
    .await;
    site.pod("plain", &host, json!({})).await;

    let result: Value =
        serde_json::from_str(&cnitool(&site, &host, &machine, "add", ("live", &live))).unwrap();
    assert_eq!(result["ips"][0]["address"], "10.111.0.2/16");
    assert_eq!(live.addresses_of("eth0").unwrap(), ["10.111.0.2/16"]);
    assert!(
        live.ping("10.111.0.1").unwrap(),
        "the gateway, on the host's side of the pair"
    );
    cnitool(&site, &host, &machine, "check", ("live", &live));

    cnitool(&site, &host, &machine, "add", ("plain", &plain));
    assert_eq!(
        plain.addresses_of("eth0").unwrap(),
        ["10.4.97.2/24"],
        "host-local's own range"
    );
    let files: Vec<String> = std::fs::read_dir(data.join("net"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert!(files.contains(&"10.4.97.2".to_owned()), "{files:?}");
    // Each reaches the other through the host.
    machine
        .host()
        .exec(&["sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"])
        .unwrap();
    assert!(live.ping("10.4.97.2").unwrap());

    // A DEL finds the plugin that served its pod.
    cnitool(&site, &host, &machine, "del", ("plain", &plain));
    assert!(!data.join("net/10.4.97.2").exists());
    cnitool(&site, &host, &machine, "del", ("live", &live));
    site.until_free("10.111.0.2").await;
}
