//! Which cluster and which namespace a command works on.

use std::process::Command;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use berth_testkit::isolated;
use serde_json::{Value, json};

use crate::world::{BERTH, Said, World, bare};

#[tokio::test(flavor = "multi_thread")]
async fn berth_15_26_kubeconfig_is_taken_from_the_environment() {
    let world = World::new().await;
    world.put_pool("10.4.0.0-24", "10.4.0.0/24", &[]).await;
    let kubeconfig = world.cluster.kubeconfig();
    // Several files too, as kubectl has them.
    let list = format!("{}:/nonexistent/config", kubeconfig.display());
    for value in [kubeconfig.display().to_string(), list] {
        let mut command = bare();
        command
            .env("KUBECONFIG", value)
            .args(["--namespace", &world.namespace, "pools"]);
        assert!(Said::of(command).succeeded().contains("10.4.0.0-24"));
    }
    // A file that is named comes first.
    let dir = tempfile::tempdir().unwrap();
    let mut command = bare();
    command
        .env("KUBECONFIG", kubeconfig)
        .arg("--database")
        .arg(dir.path().join("berth.db"))
        .arg("pools");
    assert!(Said::of(command).failed(3).contains("berth.db"));
}

#[tokio::test(flavor = "multi_thread")]
async fn berth_15_26_pools_are_found_in_whatever_namespace_they_are() {
    let world = World::new().await;
    let pool = format!("{}-10.4.1.0-24", world.namespace);
    world.put_pool(&pool, "10.4.1.0/24", &[]).await;
    let empty = world.cluster.namespace("empty").await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(world.cluster.kubeconfig()).unwrap();
    let mut document: Value = serde_saphyr::from_str(&text).unwrap();
    document["contexts"][0]["context"]["namespace"] = json!(empty);
    let kubeconfig = dir.path().join("kubeconfig");
    std::fs::write(&kubeconfig, document.to_string()).unwrap();

    let mut command = bare();
    command.env("KUBECONFIG", &kubeconfig).arg("pools");
    let said = Said::of(command);
    let note = format!("namespace {empty} has no pools; using ");
    assert!(said.stderr.contains(&note), "{said}");
    assert!(said.stderr.contains(&world.namespace), "{said}");
    assert!(said.succeeded().contains(&pool));
    // One that was named is not exchanged for another.
    let mut command = bare();
    command
        .env("KUBECONFIG", &kubeconfig)
        .args(["--namespace", &empty, "pools"]);
    let told = Said::of(command).failed(3);
    assert!(told.contains(&world.namespace), "{told}");
}

/// `kubectl exec ds/berth-agent -- /berth pools`: nothing but the service account, and no HOME.
#[tokio::test(flavor = "multi_thread")]
async fn berth_15_26_a_pods_own_service_account_is_enough() {
    let world = World::new().await;
    world
        .put_pool("10.4.0.0-24", "10.4.0.0/24", &[("1", "a")])
        .await;
    let rules = berth_testkit::Agent::rules();
    let account = world
        .cluster
        .service_account(&world.namespace, "tool", rules);
    let account = account.await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(world.cluster.kubeconfig()).unwrap();
    let document: Value = serde_saphyr::from_str(&text).unwrap();
    let authority = &document["clusters"][0]["cluster"];
    let certificate = match authority["certificate-authority"].as_str() {
        Some(path) => std::fs::read(path).unwrap(),
        None => {
            let data = authority["certificate-authority-data"].as_str().unwrap();
            STANDARD.decode(data).unwrap()
        }
    };
    std::fs::write(dir.path().join("ca.crt"), certificate).unwrap();
    std::fs::write(dir.path().join("token"), account.token()).unwrap();
    std::fs::write(dir.path().join("namespace"), &world.namespace).unwrap();
    let place = "/var/run/secrets/kubernetes.io/serviceaccount";
    let script = format!(
        "mount -t tmpfs none /run && mkdir -p {place} && mount --bind {} {place} && exec {BERTH} pools",
        dir.path().display()
    );
    let mut command = isolated(Command::new("unshare"));
    command
        .args(["--mount", "--propagation", "private", "sh", "-c", &script])
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        .env("KUBERNETES_SERVICE_PORT", world.cluster.port().to_string());
    assert!(Said::of(command).succeeded().contains("10.4.0.0-24"));
}
