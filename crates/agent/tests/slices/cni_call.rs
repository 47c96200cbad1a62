//! The calls of an agent, with a network's configuration.

use berth_cni::wire::Request;
use berth_testkit::PodCall;
use serde_json::{Value, json};

pub fn request(verb: &str, namespace: &str, pod: &str, container: &str, ipam: &Value) -> Request {
    PodCall::new("whereabouts", verb, pod)
        .in_namespace(namespace, pod)
        .of_container(container)
        .request(ipam)
}

/// A network of slices that nodes claim by themselves, without overlap checks.
pub fn fast(range: &str) -> Value {
    json!({ "range": range, "fast_ipam": true, "enable_overlapping_ranges": false })
}

/// The same, in slices of that size.
pub fn fast_cut(range: &str, size: &str) -> Value {
    let mut ipam = fast(range);
    ipam["slice_size"] = json!(size);
    ipam
}

/// An address without the length of its network.
pub fn bare(address: &str) -> String {
    address.split('/').next().unwrap().to_owned()
}

/// The same network, not sliced by a controller.
pub fn without_size(ipam: &Value) -> Value {
    let mut ipam = ipam.clone();
    ipam.as_object_mut().unwrap().remove("node_slice_size");
    ipam
}
