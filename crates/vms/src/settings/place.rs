//! Where this process runs: the node's name and the namespace of the pools.
//!
//! Guarantees the documented order of sources. Never falls back to a made-up name: a wrong node name would release
//! another node's VMs.

use std::path::Path;

/// From the first source that has one: the setting, `NODE_NAME`, the downward API's file, the host's name.
pub fn node_name(setting: Option<&str>, root: &Path) -> Option<String> {
    let files = ["etc/podinfo/nodename", "etc/hostname"];
    non_empty(setting).or_else(|| files.iter().find_map(|file| first_line(&root.join(file))))
}

/// The setting, the service account's namespace, `POD_NAMESPACE`, the default.
pub fn namespace(setting: Option<&str>, pod_namespace: Option<&str>, root: &Path) -> String {
    let mounted = "var/run/secrets/kubernetes.io/serviceaccount/namespace";
    non_empty(setting)
        .or_else(|| first_line(&root.join(mounted)))
        .or_else(|| non_empty(pod_namespace))
        .unwrap_or_else(|| DEFAULT_NAMESPACE.into())
}

pub const DEFAULT_NAMESPACE: &str = "confidential-containers-system";

fn non_empty(value: Option<&str>) -> Option<String> {
    let value = value?.trim();
    (!value.is_empty()).then(|| value.into())
}

fn first_line(path: &Path) -> Option<String> {
    non_empty(std::fs::read_to_string(path).ok()?.lines().next())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(root: &Path, file: &str, text: &str) {
        let path = root.join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    #[test]
    fn the_node_is_named_by_the_first_source_that_has_a_name() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        assert_eq!(node_name(None, root), None);
        put(root, "etc/hostname", "host-7\n");
        assert_eq!(node_name(None, root).as_deref(), Some("host-7"));
        put(root, "etc/podinfo/nodename", " \n");
        assert_eq!(node_name(Some(" "), root).as_deref(), Some("host-7"));
        put(root, "etc/podinfo/nodename", "worker-3");
        assert_eq!(node_name(None, root).as_deref(), Some("worker-3"));
        assert_eq!(
            node_name(Some("worker-9"), root).as_deref(),
            Some("worker-9")
        );
    }

    #[test]
    fn the_namespace_has_a_default() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        assert_eq!(
            namespace(None, None, root),
            "confidential-containers-system"
        );
        assert_eq!(namespace(None, Some("from-env"), root), "from-env");
        let mounted = "var/run/secrets/kubernetes.io/serviceaccount/namespace";
        put(root, mounted, "from-account");
        assert_eq!(namespace(None, Some("from-env"), root), "from-account");
        assert_eq!(namespace(Some("set"), Some("from-env"), root), "set");
    }
}
