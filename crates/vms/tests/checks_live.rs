//! What happens while a VM is being checked, on ConfigMaps of a real API server and with real SSH servers as VMs; with
//! one ConfigMap and with three. `checks.rs` has every order of failures, on a ledger in memory.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod place;
mod script;
mod test_vm;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use berth_vms::vm::{SshVms, Vms};
use berth_vms::{Allocation, Fleet, PoolError, Returned};
use place::{Place, applicant, until};
use script::settings;
use test_vm::{Lab, OnReboot, TestVm};

/// Two agents with a pool of three VMs, all of which hang.
struct Live {
    machines: BTreeMap<IpAddr, TestVm>,
    one: Fleet,
    two: Fleet,
    _place: Place,
    _lab: Lab,
}

impl Live {
    async fn new(first: u8, count: &str) -> Self {
        let (place, lab) = (Place::new().await, Lab::new());
        let mut machines = BTreeMap::new();
        for n in first..first + 3 {
            let reboots = OnReboot::DownFor(Duration::from_millis(300));
            let vm = lab.start(n, reboots).await;
            vm.switches.hangs.store(true, Ordering::SeqCst);
            machines.insert(vm.ip, vm);
        }
        let list = format!("{}-{}", lab.ip(first), lab.ip(first + 2));
        let port = lab.port.to_string();
        let vms: Arc<dyn Vms> = Arc::new(SshVms::new(lab.access()));
        let node = |name: &'static str| {
            settings(&[
                ("VM_POOL_IPS", list.as_str()),
                ("POOL_CONFIGMAP_COUNT", count),
                ("SSH_PORT", &port),
                ("NODE_NAME", name),
                ("VM_ALLOCATE_TIMEOUT", "2m"),
            ])
        };
        Self {
            one: place.fleet(&node("worker"), Arc::clone(&vms)).await,
            two: place.fleet(&node("other"), vms).await,
            machines,
            _place: place,
            _lab: lab,
        }
    }

    /// All VMs answer from now on.
    fn answer(&self) {
        for vm in self.machines.values() {
            vm.switches.hangs.store(false, Ordering::SeqCst);
        }
    }

    /// The VM that is being checked for the ID.
    async fn checked(&self, id: &str) -> IpAddr {
        loop {
            if let Ok(found) = self.two.by_id(None, id).await {
                assert!(found.checking.is_some(), "{found:?}");
                return found.ip;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

type Outcome = tokio::task::JoinHandle<Result<Allocation, PoolError>>;

fn allocate(fleet: &Fleet, id: &str) -> Outcome {
    let (fleet, applicant) = (fleet.clone(), applicant(id));
    tokio::spawn(async move { fleet.allocate(None, applicant).await })
}

#[tokio::test(flavor = "multi_thread")]
async fn berth_15_5_repeats_wait_for_the_check_on_a_real_server() {
    for (first, count) in [(91, "1"), (101, "3")] {
        let live = Live::new(first, count).await;
        let asked = allocate(&live.one, "a");
        let checked = live.checked("a").await;
        let repeats = [allocate(&live.one, "a"), allocate(&live.two, "a")];
        live.answer();
        for outcome in repeats.into_iter().chain([asked]) {
            assert_eq!(outcome.await.unwrap().unwrap().ip, checked, "{count}");
        }
        let listed = live.two.list(None).await.unwrap();
        assert_eq!(listed.len(), 1, "one VM for one ID: {listed:?}");
        assert!(listed[0].checking.is_none());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn berth_15_6_a_deallocation_ends_the_check_on_a_real_server() {
    for (first, count) in [(111, "1"), (121, "3")] {
        let live = Live::new(first, count).await;
        for (id, by) in [("a", &live.one), ("b", &live.two)] {
            for vm in live.machines.values() {
                vm.switches.hangs.store(true, Ordering::SeqCst);
            }
            let asked = allocate(&live.one, id);
            let checked = live.checked(id).await;
            let before = live.machines[&checked].boots();
            let returned = by.deallocate(None, id, false).await.unwrap();
            assert_eq!(returned, Returned::Quarantined);
            live.answer();
            let error = asked.await.unwrap().unwrap_err();
            assert!(matches!(error, PoolError::Deallocated(_)), "{error}");
            until(&live.one, (3, 0, 0)).await;
            assert_eq!(live.machines[&checked].boots(), before + 1, "{count}");
            assert_eq!(live.two.list(None).await.unwrap(), []);
        }
    }
}
