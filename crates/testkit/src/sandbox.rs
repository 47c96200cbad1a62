//! The sandbox that a node runs in: its own network, mount and PID namespaces, and a cgroup.
//!
//! Guarantees: killing the first process inside kills every container, unmounts everything and removes every interface,
//! because all of that exists only inside; and nothing inside changes the machine (its sysctls, /etc, /opt, /run,
//! /var/lib, /var/log). /sys and all other files are the machine's own.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::namespace_holder::NamespaceHolder;
use crate::netns::ip_in;
use crate::process::guarded;

/// Runs as the first process inside; its arguments are the cgroup and the node's directory.
const SETUP: &str = r#"
if [ -f /sys/fs/cgroup/cgroup.controllers ]; then roots=/sys/fs/cgroup; else roots=$(echo /sys/fs/cgroup/*); fi
for root in $roots; do
    [ -f "$root/cgroup.procs" ] || continue
    mkdir -p "$root/$1/parts"
    # Version 1 only: a cpuset without processors takes no process.
    if [ -f "$root/cpuset.mems" ]; then
        for dir in "$root/$1" "$root/$1/parts"; do
            cat "$root/cpuset.cpus" > "$dir/cpuset.cpus"
            cat "$root/cpuset.mems" > "$dir/cpuset.mems"
        done
    fi
done
mount -t tmpfs -o mode=755 tmpfs /run
mount -t tmpfs -o mode=755 tmpfs /var/log
for tree in etc opt var/lib; do
    mkdir -p "/run/over/$tree/upper" "/run/over/$tree/work"
    mount -t overlay -o "lowerdir=/$tree,upperdir=/run/over/$tree/upper,workdir=/run/over/$tree/work" overlay "/$tree"
done
# What this machine's own runtime and its own Berth keep is not the node's.
for home in cni berth; do
    mkdir -p "/var/lib/$home"
    mount -t tmpfs -o mode=755 tmpfs "/var/lib/$home"
done
# In the usual places, for manifests that set no others.
mkdir -p /opt/cni/bin /etc/cni/net.d /run/sysctl
mount --bind "$2/cni/bin" /opt/cni/bin
mount --bind "$2/cni/net.d" /etc/cni/net.d
# The kubelet insists on these, which are the whole machine's: it gets files of its own to write to.
for sysctl in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
    kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
    name=${sysctl%=*}
    file=/run/sysctl/$(basename "$name")
    echo "${sysctl#*=}" > "$file"
    mount --bind "$file" "/proc/sys/$name"
done
ip link set lo up
"#;

/// Joins the cgroup, then becomes the command. It uses the leaf `parts`, because in cgroup version 2 only leaves hold
/// processes: runc creates a container's cgroup next to or below containerd's.
const JOIN: &str = r#"
for procs in /sys/fs/cgroup/"$0"/parts/cgroup.procs /sys/fs/cgroup/*/"$0"/parts/cgroup.procs; do
    [ -f "$procs" ] && echo 0 > "$procs"
done
exec "$@"
"#;

#[derive(Debug)]
pub(crate) struct Sandbox {
    holder: NamespaceHolder,
    cgroup: String,
}

impl Sandbox {
    /// With the plugins and configurations of a node's directory in their usual places.
    pub fn new(cgroup: &str, dir: &Path) -> Result<Sandbox> {
        let flags = [
            "--net",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child=KILL",
            "--mount-proc",
        ];
        let holder = NamespaceHolder::new(&flags, SETUP, &[OsStr::new(cgroup), dir.as_os_str()])?;
        Ok(Sandbox {
            holder,
            cgroup: cgroup.to_owned(),
        })
    }

    pub fn cgroup(&self) -> &str {
        &self.cgroup
    }

    pub fn pid(&self) -> u32 {
        self.holder.pid()
    }

    pub fn netns(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/ns/net", self.pid()))
    }

    pub fn ip(&self, arguments: &[&str]) -> Result<String> {
        ip_in(&self.netns(), arguments)
    }

    /// A command inside; arguments and environment may follow. Its process is a child of the nsenter started here.
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = guarded("nsenter");
        command
            .arg(format!("--target={}", self.pid()))
            .args(["--net", "--mount", "--pid", "--", "sh", "-c", JOIN])
            .arg(&self.cgroup)
            .arg(program.as_ref());
        command
    }
}
