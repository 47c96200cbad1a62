//! Throw-away network namespaces, and a real CNI plugin in one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use berth_parts::Parts;
use berth_testkit::{Netns, PodCall, fed};
use serde_json::{Value, json};

#[test]
fn a_pair_of_namespaces_talks_both_families_and_is_gone_after() {
    let (host, pod) = (Netns::new().unwrap(), Netns::new().unwrap());
    host.veth("veth0", &pod, "eth0").unwrap();
    for (netns, dev, four, six) in [
        (&host, "veth0", "192.0.2.1/24", "2001:db8::1/64"),
        (&pod, "eth0", "192.0.2.2/24", "2001:db8::2/64"),
    ] {
        netns.ip(&["addr", "add", four, "dev", dev]).unwrap();
        netns
            .ip(&["addr", "add", six, "dev", dev, "nodad"])
            .unwrap();
    }
    assert_eq!(
        pod.addresses_of("eth0").unwrap(),
        ["192.0.2.2/24", "2001:db8::2/64"]
    );
    assert!(pod.ping("192.0.2.1").unwrap());
    assert!(pod.ping("2001:db8::1").unwrap());
    assert!(!pod.ping("192.0.2.9").unwrap());
    let path = pod.path().to_owned();
    drop(pod);
    assert!(!path.exists());
    // The peer goes with the namespace of the other.
    let gone = (0..50).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(100));
        host.ip(&["link", "show", "veth0"]).is_err()
    });
    assert!(gone);
}

#[test]
fn a_plugin_puts_an_interface_into_a_namespace() {
    let parts = Parts::find().unwrap();
    let data = tempfile::tempdir().unwrap();
    let (host, pod) = (Netns::new().unwrap(), Netns::new().unwrap());
    let config = json!({
        "cniVersion": "1.1.0", "name": "lan", "type": "bridge", "bridge": "br0",
        "ipam": {
            "type": "host-local", "dataDir": data.path(),
            "ranges": [[{ "subnet": "192.0.2.0/24" }]],
        },
    });
    let mut add = host.command(parts.cni_dir().join("bridge"));
    let call = PodCall::new("bridge", "ADD", "pod-1").in_netns(pod.path());
    call.in_path(&parts.cni_dir()).put_into(&mut add);
    let output = fed(&mut add, config.to_string()).unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    let result: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(result["cniVersion"], "1.1.0");
    assert_eq!(
        pod.addresses_of("net1").unwrap(),
        [result["ips"][0]["address"].as_str().unwrap()]
    );
}
