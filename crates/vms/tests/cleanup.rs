//! What the pool counts as a reboot, with real SSH servers as VMs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod script;
mod test_vm;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use berth_ledger::MemoryLedger;
use berth_vms::vm::SshVms;
use berth_vms::{Allocation, Applicant, Fleet, Returned, Store};
use script::settings;
use test_vm::{Lab, OnReboot, TestVm};

/// A pool of this VM alone.
async fn pool(lab: &Lab, vm: &TestVm, env: &[(&str, &str)]) -> Fleet {
    let ip = vm.ip.to_string();
    let mut all = vec![("VM_POOL_IPS", ip.as_str()), ("VM_CLEANUP_WAIT", "50ms")];
    all.extend(env);
    let mut settings = settings(&all);
    if let Some(cleanup) = &mut settings.cleanup {
        cleanup.timing.pause = Duration::from_millis(20);
    }
    let store = Store::Local(Arc::new(MemoryLedger::new()));
    let vms = Arc::new(SshVms::new(lab.access()));
    let (meters, desk) = Default::default();
    let fleet = Fleet::new(&settings, store, vms, meters, desk);
    fleet.resize(&settings.pools).await.unwrap();
    fleet
}

async fn allocate(fleet: &Fleet, id: &str) -> Allocation {
    let applicant = Applicant {
        allocation_id: id.into(),
        pod_name: String::new(),
        pod_namespace: String::new(),
    };
    fleet.allocate(None, applicant).await.unwrap()
}

/// A pod used the VM and released it.
async fn use_once(fleet: &Fleet) {
    allocate(fleet, "a").await;
    fleet.put_user_data(None, "a", b"of a pod").await.unwrap();
    let returned = fleet.deallocate(None, "a", false).await.unwrap();
    assert_eq!(returned, Returned::Quarantined);
}

/// The VM did not reboot, and its network was down: its pod still runs there.
#[tokio::test]
async fn berth_15_8_a_network_outage_frees_no_vm() {
    let lab = Lab::new();
    let vm = lab
        .start(81, OnReboot::Blip(Duration::from_millis(1500)))
        .await;
    let fleet = pool(&lab, &vm, &[("VM_CLEANUP_LIMIT", "3s")]).await;
    use_once(&fleet).await;
    let quarantine = loop {
        let found = fleet.by_id(None, "a").await.unwrap().quarantine.unwrap();
        if found.tries > 0 {
            break found;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let error = quarantine.error.unwrap();
    assert!(error.contains("was not rebooted"), "{error}");
    assert_eq!(vm.file("cidata/user-data").unwrap(), b"of a pod");
    assert_eq!(vm.boots(), 1);
}

/// Only where the settings say that `cidata` survives a reboot; and then nothing of the pod is left there.
#[tokio::test]
async fn berth_15_8_where_cidata_outlives_a_reboot_it_is_emptied() {
    let lab = Lab::new();
    let vm = lab
        .start(82, OnReboot::DownFor(Duration::from_millis(1500)))
        .await;
    vm.switches.keeps_files.store(true, Ordering::SeqCst);
    let fleet = pool(&lab, &vm, &[("VM_CLEANUP_DOWN_FOR", "500ms")]).await;
    use_once(&fleet).await;
    while fleet.by_id(None, "a").await.is_ok() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let left: Vec<_> = std::fs::read_dir(vm.root.join("cidata")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(vm.boots(), 2);
    allocate(&fleet, "b").await;
}
