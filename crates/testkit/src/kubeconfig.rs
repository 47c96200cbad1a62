//! Kubeconfig files: JSON, which is YAML too.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};

use crate::pki::{Identity, secret};

/// The credential of a kubeconfig.
pub(crate) enum Credential<'a> {
    Certificate(&'a Identity),
    Token(&'a str),
}

/// Writes a kubeconfig with one context, in the given namespace.
pub(crate) fn write(
    path: &Path,
    server: &str,
    authority: &str,
    credential: Credential<'_>,
    namespace: &str,
) -> Result<()> {
    let user = match credential {
        Credential::Certificate(identity) => json!({
            "client-certificate-data": BASE64_STANDARD.encode(&identity.certificate),
            "client-key-data": BASE64_STANDARD.encode(&identity.key),
        }),
        Credential::Token(token) => json!({ "token": token }),
    };
    let config: Value = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{
            "name": "berth",
            "cluster": {
                "server": server,
                "certificate-authority-data": BASE64_STANDARD.encode(authority),
            },
        }],
        "users": [{ "name": "berth", "user": user }],
        "contexts": [{
            "name": "berth",
            "context": { "cluster": "berth", "user": "berth", "namespace": namespace },
        }],
        "current-context": "berth",
    });
    // Tests ask for the same account at once: each reads a whole file.
    static WRITTEN: AtomicUsize = AtomicUsize::new(0);
    let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
    let next = path.with_extension(format!("kubeconfig.{number}"));
    secret(&next, &config.to_string())?;
    std::fs::rename(&next, path).with_context(|| format!("write {}", path.display()))
}

/// A client for the kubeconfig, on the current runtime.
pub(crate) async fn client(path: &Path) -> Result<kube::Client> {
    // kube installs no provider of its own with the feature `ring`, and rustls refuses to choose when a test links a
    // second one.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let config = Kubeconfig::read_from(path).with_context(|| format!("read {}", path.display()))?;
    let config = kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default())
        .await
        .with_context(|| format!("use {}", path.display()))?;
    kube::Client::try_from(config).context("make a client of the test cluster")
}
