//! VMs whose behaviour the test writes, and settings from an environment.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use berth_vms::settings::Settings;
use berth_vms::vm::{VmError, Vms};

#[derive(Debug, Default, Clone)]
struct Vm {
    dead: bool,
    refuses_logins: bool,
    ignores_reboots: bool,
    held_down: bool,
    /// Its readiness check gets no answer.
    hangs: bool,
    host_key_changed: bool,
    marker: Option<String>,
    /// Connections that still find it down.
    down_connections: u32,
    asked: usize,
    reboots: usize,
    user_data: Vec<u8>,
}

/// All VMs exist and are well unless scripted otherwise.
#[derive(Debug, Default)]
pub struct ScriptedVms(Mutex<BTreeMap<IpAddr, Vm>>);

impl ScriptedVms {
    fn with<T>(&self, ip: impl ToString, act: impl FnOnce(&mut Vm) -> T) -> T {
        let ip: IpAddr = ip.to_string().parse().unwrap();
        act(self.0.lock().unwrap().entry(ip).or_default())
    }

    pub fn kill(&self, ip: &str) {
        self.with(ip, |vm| vm.dead = true);
    }

    pub fn revive(&self, ip: &str) {
        self.with(ip, |vm| vm.dead = false);
    }

    pub fn refuse_logins(&self, ip: &str) {
        self.with(ip, |vm| vm.refuses_logins = true);
    }

    pub fn ignore_reboots(&self, ip: &str) {
        self.with(ip, |vm| vm.ignores_reboots = true);
    }

    /// It stays down from its next reboot on.
    pub fn hold_down(&self, ip: &str) {
        self.with(ip, |vm| vm.held_down = true);
    }

    pub fn let_up(&self, ip: &str) {
        self.with(ip, |vm| vm.held_down = false);
    }

    /// Its readiness checks wait from now on, until `go_on`.
    pub fn hang(&self, ip: &str) {
        self.with(ip, |vm| vm.hangs = true);
    }

    pub fn go_on(&self, ip: &str) {
        self.with(ip, |vm| vm.hangs = false);
    }

    pub fn change_host_key(&self, ip: &str) {
        self.with(ip, |vm| vm.host_key_changed = true);
    }

    /// Another program writes user data to it.
    pub fn write_user_data(&self, ip: &str) {
        self.with(ip, |vm| vm.user_data = b"of another pod".into());
    }

    /// How often it was connected to.
    pub fn asked(&self, ip: &str) -> usize {
        self.with(ip, |vm| vm.asked)
    }

    pub fn reboots(&self, ip: &str) -> usize {
        self.with(ip, |vm| vm.reboots)
    }

    pub fn user_data(&self, ip: IpAddr) -> Vec<u8> {
        self.with(ip, |vm| vm.user_data.clone())
    }

    fn connect(&self, ip: IpAddr) -> Result<(), VmError> {
        let up = self.with(ip, |vm| {
            vm.asked += 1;
            if vm.down_connections > 0 {
                vm.down_connections -= u32::from(!vm.held_down);
                return false;
            }
            !vm.dead
        });
        up.then_some(()).ok_or_else(|| VmError::Unreachable {
            ip,
            port: 22,
            source: std::io::ErrorKind::ConnectionRefused.into(),
        })
    }
}

#[async_trait]
impl Vms for ScriptedVms {
    async fn connects(&self, ip: IpAddr) -> Result<(), VmError> {
        self.connect(ip)
    }

    async fn ready(&self, ip: IpAddr) -> Result<(), VmError> {
        while self.with(ip, |vm| vm.hangs) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        self.connect(ip)?;
        if self.with(ip, |vm| vm.host_key_changed) {
            return Err(VmError::UnknownHostKey {
                ip,
                fingerprint: "SHA256:other".into(),
                known: 1,
                dir: "keys".into(),
            });
        }
        if self.with(ip, |vm| vm.refuses_logins) {
            let user = "peerpod".into();
            return Err(VmError::LoginRefused { ip, user });
        }
        if self.with(ip, |vm| !vm.user_data.is_empty()) {
            return Err(VmError::HasUserData { ip });
        }
        Ok(())
    }

    async fn request_reboot(&self, ip: IpAddr, marker: &str) -> Result<(), VmError> {
        self.connect(ip)?;
        self.with(ip, |vm| {
            vm.marker = Some(marker.into());
            if !vm.ignores_reboots {
                vm.reboots += 1;
                vm.down_connections = 3;
                vm.marker = None;
                vm.user_data.clear();
            }
        });
        Ok(())
    }

    async fn has_marker(&self, ip: IpAddr, marker: &str) -> Result<bool, VmError> {
        self.connect(ip)?;
        Ok(self.with(ip, |vm| vm.marker.as_deref() == Some(marker)))
    }

    async fn wipe(&self, ip: IpAddr, _: &str) -> Result<(), VmError> {
        self.connect(ip)?;
        self.with(ip, |vm| {
            vm.marker = None;
            vm.user_data.clear();
        });
        Ok(())
    }

    async fn put_user_data(&self, ip: IpAddr, data: &[u8]) -> Result<(), VmError> {
        self.connect(ip)?;
        self.with(ip, |vm| vm.user_data = data.to_vec());
        Ok(())
    }
}

/// Settings of a node `worker` with short waits, unless the environment says otherwise.
pub fn settings(env: &[(&str, &str)]) -> Settings {
    let quick = [
        ("NODE_NAME", "worker"),
        ("VM_CLEANUP_WAIT", "1ms"),
        ("VM_CLEANUP_RETRY", "20ms"),
        ("SSH_ACCEPT_ANY_HOST_KEY", "true"),
    ];
    let find = |name: &str| {
        let all = env.iter().chain(&quick);
        all.into_iter()
            .find(|(key, _)| *key == name)
            .map(|(_, value)| value.to_string())
    };
    Settings::new(|_| None, find, None, Path::new("/nowhere")).unwrap()
}
