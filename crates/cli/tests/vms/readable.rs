//! Secrets of the VM front that every user of the machine can read.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use berth_testkit::Cluster;

use crate::manager::Manager;
use crate::test_vm::{Lab, OnReboot};

#[tokio::test(flavor = "multi_thread")]
async fn berth_16_3_vm_keys_and_tokens_that_everyone_can_read_are_warned_about() {
    let cluster = Cluster::shared().await;
    let namespace = cluster.namespace("readable").await.unwrap();
    let lab = Lab::new();
    let vm = lab
        .start(61, OnReboot::DownFor(Duration::from_millis(500)))
        .await;
    let (key, token) = (lab.private_key(), lab.dir.path().join("token"));
    fs::write(&token, "0123456789abcdef0123456789abcdef\n").unwrap();
    for file in [&key, &token] {
        fs::set_permissions(file, Permissions::from_mode(0o644)).unwrap();
    }
    let (ip, port, allowed) = (vm.ip.to_string(), lab.port.to_string(), lab.allow_list());
    let listen = format!("{}:{}", lab.ip(62), lab.port);
    let env = [
        ("VM_POOL_IPS", ip.as_str()),
        ("NODE_NAME", "worker"),
        ("POOL_NAMESPACE", &namespace),
        ("SSH_PORT", &port),
        ("SSH_PRIV_KEY_PATH", key.to_str().unwrap()),
        ("SSH_HOST_KEY_ALLOWLIST_DIR", allowed.to_str().unwrap()),
        ("VM_LISTEN", &listen),
        ("VM_TOKEN_FILE", token.to_str().unwrap()),
    ];
    let mut manager = Manager::start_with(&cluster.kubeconfig(), &env, &["--vms-only"]).await;
    for (what, path) in [("ssh-priv-key", &key), ("vm-token-file", &token)] {
        let path = path.to_str().unwrap().to_owned();
        let told = "can be read by every user of this machine";
        let is_warning =
            |line: &str| line.contains(&format!("{what} {told}")) && line.contains(&path);
        manager
            .until("it is warned about", async |manager| {
                manager.log().lines().any(is_warning)
            })
            .await;
    }
}
