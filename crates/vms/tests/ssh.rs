//! The VM's side against real SSH servers: what is refused, what is bounded, what is whole.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod test_vm;

use std::sync::atomic::Ordering;
use std::time::Duration;

use berth_vms::vm::{HostKeyRule, Proof, RebootTiming, SshVms, VmError, Vms, wait_for_reboot};
use test_vm::{Lab, OnReboot, mk_key};

const REBOOTS: OnReboot = OnReboot::DownFor(Duration::from_millis(600));

fn timing() -> RebootTiming {
    RebootTiming {
        floor: Duration::from_millis(100),
        limit: Duration::from_secs(30),
        pause: Duration::from_millis(50),
        must_be_seen_down: true,
        down_for: Some(Duration::from_millis(300)),
    }
}

#[tokio::test]
async fn a_vm_with_a_listed_key_is_ready() {
    let lab = Lab::new();
    let vm = lab.start(2, REBOOTS).await;
    let vms = SshVms::new(lab.access());
    vms.check_access().await.unwrap();
    vms.ready(vm.ip).await.unwrap();
    vms.connects(vm.ip).await.unwrap();
    assert_eq!(vm.switches.logins.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn an_unknown_host_key_is_refused_before_the_login() {
    let lab = Lab::new();
    let vm = lab.start(3, REBOOTS).await;
    lab.allow("image", mk_key().public_key());
    let error = SshVms::new(lab.access()).ready(vm.ip).await.unwrap_err();
    let shown = lab.host.public_key().fingerprint(Default::default());
    assert!(
        matches!(&error, VmError::UnknownHostKey { fingerprint, known: 1, .. }
        if *fingerprint == shown.to_string()),
        "{error}"
    );
    assert_eq!(vm.switches.logins.load(Ordering::SeqCst), 0);
    // A key added to the directory counts from the next connection on.
    lab.allow("added", lab.host.public_key());
    SshVms::new(lab.access()).ready(vm.ip).await.unwrap();
}

#[tokio::test]
async fn no_list_accepts_nothing_by_default() {
    let lab = Lab::new();
    let vm = lab.start(4, REBOOTS).await;
    let with = |host_keys| {
        SshVms::new(berth_vms::vm::Access {
            host_keys,
            ..lab.access()
        })
    };
    let error = with(HostKeyRule::Unset).ready(vm.ip).await.unwrap_err();
    assert!(matches!(error, VmError::NoAllowList), "{error}");
    assert!(error.to_string().contains("SSH_HOST_KEY_ALLOWLIST_DIR"));
    with(HostKeyRule::AcceptAny).ready(vm.ip).await.unwrap();
}

#[tokio::test]
async fn a_refused_login_and_a_missing_key_are_different_errors() {
    let lab = Lab::new();
    let vm = lab.start(5, REBOOTS).await;
    let pem = mk_key().to_openssh(Default::default()).unwrap();
    std::fs::write(lab.private_key(), pem.as_bytes()).unwrap();
    let vms = SshVms::new(lab.access());
    let error = vms.ready(vm.ip).await.unwrap_err();
    assert!(matches!(error, VmError::LoginRefused { .. }), "{error}");
    std::fs::remove_file(lab.private_key()).unwrap();
    let error = vms.check_access().await.unwrap_err();
    assert!(matches!(error, VmError::PrivateKey { .. }), "{error}");
}

#[tokio::test]
async fn a_dead_vm_and_a_silent_one_end_in_time() {
    let lab = Lab::new();
    let vms = SshVms::new(berth_vms::vm::Access {
        timeout: Duration::from_millis(300),
        ..lab.access()
    });
    let error = vms.ready(lab.ip(6)).await.unwrap_err();
    assert!(matches!(error, VmError::Unreachable { .. }), "{error}");
    assert!(vms.connects(lab.ip(6)).await.is_err());

    let silent = tokio::net::TcpListener::bind((lab.ip(7), lab.port))
        .await
        .unwrap();
    let error = vms.ready(lab.ip(7)).await.unwrap_err();
    assert!(matches!(error, VmError::TimedOut { .. }), "{error}");
    drop(silent);
}

#[tokio::test]
async fn user_data_arrives_whole_and_replaces_what_was_there() {
    let lab = Lab::new();
    let vm = lab.start(8, REBOOTS).await;
    let vms = SshVms::new(lab.access());
    let large: Vec<u8> = (0..300_000u32).map(|n| n as u8).collect();
    for no_posix_rename in [false, true] {
        vm.switches
            .no_posix_rename
            .store(no_posix_rename, Ordering::SeqCst);
        for data in [b"first".as_slice(), &large, b""] {
            vms.put_user_data(vm.ip, data).await.unwrap();
            assert_eq!(vm.file("cidata/user-data").unwrap(), data);
            assert_eq!(vm.file("cidata/.user-data.part"), None);
        }
    }
}

#[tokio::test]
async fn an_upload_cut_short_leaves_the_old_user_data() {
    let lab = Lab::new();
    let vm = lab
        .start(9, OnReboot::DownFor(Duration::from_millis(50)))
        .await;
    // A VM without power closes no connection: only the limit ends the session.
    let vms = SshVms::new(berth_vms::vm::Access {
        timeout: Duration::from_secs(2),
        ..lab.access()
    });
    vm.switches.keeps_files.store(true, Ordering::SeqCst);
    vms.put_user_data(vm.ip, b"old").await.unwrap();
    vm.switches.cut_upload_at.store(100_000, Ordering::SeqCst);
    vms.put_user_data(vm.ip, &[7; 200_000]).await.unwrap_err();
    assert_eq!(vm.file("cidata/user-data").unwrap(), b"old");
}

#[tokio::test]
async fn user_data_without_its_directory_names_the_path() {
    let lab = Lab::new();
    let vm = lab.start(10, REBOOTS).await;
    std::fs::remove_dir(vm.root.join("cidata")).unwrap();
    let error = SshVms::new(lab.access())
        .put_user_data(vm.ip, b"x")
        .await
        .unwrap_err();
    assert!(error.to_string().contains("cidata/user-data"), "{error}");
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.contains("No such file"), "{source}");
}

#[tokio::test]
async fn a_reboot_is_requested_and_observed() {
    let lab = Lab::new();
    let vm = lab.start(11, REBOOTS).await;
    let vms = SshVms::new(lab.access());
    vms.request_reboot(vm.ip, "nonce").await.unwrap();
    let proof = wait_for_reboot(&vms, vm.ip, "nonce", &timing()).await;
    assert_eq!(proof.unwrap(), Proof::MarkerGone);
    assert_eq!(vm.boots(), 2);
    assert_eq!(vm.file("cidata/reboot"), None);
}

#[tokio::test]
async fn a_vm_that_ignores_the_file_was_not_cleaned() {
    let lab = Lab::new();
    let vm = lab.start(12, OnReboot::Ignore).await;
    let vms = SshVms::new(lab.access());
    vms.request_reboot(vm.ip, "nonce").await.unwrap();
    assert_eq!(vm.file("cidata/reboot").unwrap(), b"reboot");
    let short = RebootTiming {
        limit: Duration::from_millis(400),
        ..timing()
    };
    let seen = wait_for_reboot(&vms, vm.ip, "nonce", &short).await;
    assert!(matches!(seen, Err(VmError::NotRebooted { .. })), "{seen:?}");
}

#[tokio::test]
async fn a_vm_that_dies_in_its_reboot_is_not_back() {
    let lab = Lab::new();
    let vm = lab.start(13, OnReboot::Die).await;
    let vms = SshVms::new(lab.access());
    vms.request_reboot(vm.ip, "nonce").await.unwrap();
    let short = RebootTiming {
        limit: Duration::from_millis(400),
        ..timing()
    };
    let seen = wait_for_reboot(&vms, vm.ip, "nonce", &short).await;
    assert!(matches!(seen, Err(VmError::NotBack { .. })), "{seen:?}");
}

#[tokio::test]
async fn berth_15_8_a_network_that_blips_is_no_reboot() {
    let lab = Lab::new();
    let vm = lab
        .start(14, OnReboot::Blip(Duration::from_millis(100)))
        .await;
    let vms = SshVms::new(lab.access());
    vms.put_user_data(vm.ip, b"of a pod").await.unwrap();
    vms.request_reboot(vm.ip, "nonce").await.unwrap();
    while vms.connects(vm.ip).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let short = RebootTiming {
        limit: Duration::from_secs(2),
        down_for: None,
        ..timing()
    };
    let seen = wait_for_reboot(&vms, vm.ip, "nonce", &short).await;
    assert!(matches!(seen, Err(VmError::NotRebooted { .. })), "{seen:?}");
    assert_eq!(
        (vm.boots(), vm.file("cidata/user-data").is_some()),
        (1, true)
    );
}

#[tokio::test]
async fn where_cidata_outlives_a_reboot_the_time_that_it_was_down_counts() {
    let lab = Lab::new();
    let vm = lab
        .start(15, OnReboot::DownFor(Duration::from_millis(900)))
        .await;
    vm.switches.keeps_files.store(true, Ordering::SeqCst);
    let vms = SshVms::new(lab.access());
    vms.put_user_data(vm.ip, b"of a pod").await.unwrap();
    vms.request_reboot(vm.ip, "nonce").await.unwrap();
    let seen = wait_for_reboot(&vms, vm.ip, "nonce", &timing()).await;
    assert_eq!((seen.unwrap(), vm.boots()), (Proof::DownForLong, 2));
    // What is left there is the former pod's.
    let error = vms.ready(vm.ip).await.unwrap_err();
    assert!(matches!(error, VmError::HasUserData { .. }), "{error}");
    vms.wipe(vm.ip, "nonce").await.unwrap();
    vms.ready(vm.ip).await.unwrap();
    assert_eq!(
        vm.file("cidata/reboot"),
        None,
        "its watcher would reboot it again"
    );
    assert_eq!(vm.file("cidata/.berth-nonce"), None);
}

#[tokio::test]
async fn a_vm_with_user_data_is_not_ready() {
    let lab = Lab::new();
    let vm = lab.start(16, REBOOTS).await;
    let vms = SshVms::new(lab.access());
    vms.put_user_data(vm.ip, b"of a pod").await.unwrap();
    let error = vms.ready(vm.ip).await.unwrap_err();
    assert!(matches!(error, VmError::HasUserData { .. }), "{error}");
}
