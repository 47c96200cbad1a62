//! The texts that go beside the plugin: kubeconfig and flat file, with the fields of whereabouts' own installer, so that
//! either plugin can read what either installer wrote. Pure.

use std::fmt;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

/// How a plugin reaches the API server.
pub struct Cluster {
    pub server: String,
    /// The server's CA, a PEM bundle; none to accept any server.
    pub authority: Option<Vec<u8>>,
    pub token: String,
    /// Where the pools are.
    pub namespace: String,
}

/// A token never appears in a message.
impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster")
            .field("server", &self.server)
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

/// The URL of the API server; an IPv6 address gets its brackets.
pub(crate) fn server(protocol: &str, host: &str, port: &str) -> String {
    match host.contains(':') && !host.starts_with('[') {
        true => format!("{protocol}://[{host}]:{port}"),
        false => format!("{protocol}://{host}:{port}"),
    }
}

pub fn kubeconfig(cluster: &Cluster) -> String {
    let trust = match &cluster.authority {
        Some(pem) => format!("certificate-authority-data: {}", STANDARD.encode(pem)),
        None => "insecure-skip-tls-verify: true".to_owned(),
    };
    format!(
        "\
# The CNI plugin's access to the API server. Written by `berth install`, again whenever the token or the CA changes.
apiVersion: v1
kind: Config
clusters:
- name: local
  cluster:
    server: {server}
    {trust}
users:
- name: whereabouts
  user:
    token: {token}
contexts:
- name: whereabouts-context
  context:
    cluster: local
    user: whereabouts
    namespace: {namespace}
current-context: whereabouts-context
",
        server = quoted(&cluster.server),
        token = quoted(&cluster.token),
        namespace = quoted(&cluster.namespace),
    )
}

/// The node's defaults for every network. `own` is the directory it goes to, as the host sees it.
pub fn flat_file(own: &Path, cron: &str) -> String {
    let text = json!({
        "datastore": "kubernetes",
        "configuration_path": own,
        "kubernetes": { "kubeconfig": own.join("whereabouts.kubeconfig") },
        "reconciler_cron_expression": cron,
    });
    format!("{text:#}\n")
}

/// A JSON string is a YAML one.
fn quoted(text: &str) -> Value {
    Value::from(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_cluster() -> Cluster {
        Cluster {
            server: server("https", "10.96.0.1", "443"),
            authority: Some(b"pem\n".to_vec()),
            token: "a.b.c".into(),
            namespace: "kube-system".into(),
        }
    }

    #[test]
    fn ipv6_addresses_get_brackets_and_names_do_not() {
        for (host, url) in [
            ("10.96.0.1", "https://10.96.0.1:443"),
            ("fd00::1", "https://[fd00::1]:443"),
            ("::1", "https://[::1]:443"),
            ("[fd00::1]", "https://[fd00::1]:443"),
            ("api.example", "https://api.example:443"),
        ] {
            assert_eq!(server("https", host, "443"), url);
        }
    }

    #[test]
    fn the_kubeconfig_is_yaml_whatever_is_put_in() {
        let mut cluster = mk_cluster();
        cluster.namespace = "odd: \"name\"\n# no comment".into();
        let read: Value = serde_saphyr::from_str(&kubeconfig(&cluster)).unwrap();
        assert_eq!(
            read["contexts"][0]["context"]["namespace"],
            json!(cluster.namespace)
        );
        assert_eq!(
            read["clusters"][0]["cluster"]["certificate-authority-data"],
            "cGVtCg=="
        );
    }

    #[test]
    fn without_an_authority_the_server_is_believed() {
        let mut cluster = mk_cluster();
        cluster.authority = None;
        let read: Value = serde_saphyr::from_str(&kubeconfig(&cluster)).unwrap();
        assert_eq!(
            read["clusters"][0]["cluster"],
            json!({ "server": "https://10.96.0.1:443", "insecure-skip-tls-verify": true })
        );
    }
}
