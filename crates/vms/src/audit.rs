//! Writes one structured line per operation, under the target `audit`: what, on which VM, for which pod, by which
//! node, the outcome and the duration. Guarantees exactly one line per operation; it holds no user data and no keys.

use std::net::IpAddr;
use std::time::Instant;

use berth_ledger::chain;

use crate::Allocation;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Act {
    Allocate,
    Deallocate,
    Clean,
    Recover,
    UserData,
    Resize,
}

impl Act {
    const fn name(self) -> &'static str {
        match self {
            Self::Allocate => "allocate",
            Self::Deallocate => "deallocate",
            Self::Clean => "clean",
            Self::Recover => "recover",
            Self::UserData => "user-data",
            Self::Resize => "resize",
        }
    }

    /// What operators search the log for: `IP allocation` is the text that the adaptor's own manager documents.
    const fn subject(self) -> &'static str {
        match self {
            Self::Allocate | Self::Deallocate => "IP allocation",
            Self::Clean => "VM cleanup",
            Self::Recover => "state recovery",
            Self::UserData => "VM user data",
            Self::Resize => "pool resize",
        }
    }
}

/// An operation under way. Dropping it without an end logs that it was cancelled.
#[derive(Debug)]
pub(crate) struct Audit {
    act: Act,
    pool: String,
    node: String,
    allocation: String,
    pod: String,
    ip: String,
    started: Instant,
    ended: bool,
}

impl Audit {
    pub(crate) fn begin(act: Act, pool: &str, node: &str) -> Self {
        Self {
            act,
            pool: pool.into(),
            node: node.into(),
            allocation: String::new(),
            pod: String::new(),
            ip: String::new(),
            started: Instant::now(),
            ended: false,
        }
    }

    pub(crate) fn allocation(mut self, id: &str) -> Self {
        self.allocation = id.into();
        self
    }

    pub(crate) fn pod(mut self, namespace: &str, name: &str) -> Self {
        if !name.is_empty() {
            self.pod = format!("{namespace}/{name}");
        }
        self
    }

    /// Adds the VM and its owner.
    pub(crate) fn of(self, allocation: &Allocation) -> Self {
        self.allocation(&allocation.allocation_id)
            .pod(&allocation.pod_namespace, &allocation.pod_name)
            .ip(allocation.ip)
    }

    /// Sets the pool, where it is known only later.
    pub(crate) fn pool(mut self, pool: &str) -> Self {
        self.pool = pool.into();
        self
    }

    pub(crate) fn ip(mut self, ip: IpAddr) -> Self {
        self.ip = ip.to_string();
        self
    }

    pub(crate) fn done(mut self, outcome: &str) {
        self.write(true, outcome);
    }

    pub(crate) fn failed(mut self, error: &(dyn std::error::Error + 'static)) {
        self.write(false, &chain(error));
    }

    fn write(&mut self, ok: bool, outcome: &str) {
        self.ended = true;
        let millis = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        tracing::info!(
            target: "audit",
            operation = self.act.name(),
            pool = self.pool,
            node = self.node,
            allocation = self.allocation,
            pod = self.pod,
            ip = self.ip,
            ok,
            outcome,
            millis,
            "{}",
            self.act.subject(),
        );
    }
}

impl Drop for Audit {
    fn drop(&mut self) {
        if !self.ended {
            self.write(false, "cancelled before it ended");
        }
    }
}
