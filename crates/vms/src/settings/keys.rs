//! Every setting by name: its flag is `--name`, in the file it is `name`, in the environment it is `env`. One table,
//! so that the three never differ and the help is printed from it.

/// One setting.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    pub name: &'static str,
    pub env: &'static str,
    /// As text; empty if there is none.
    pub default: &'static str,
    pub help: &'static str,
}

const fn key(
    name: &'static str,
    env: &'static str,
    default: &'static str,
    help: &'static str,
) -> Key {
    Key {
        name,
        env,
        default,
        help,
    }
}

pub const VM_POOL_IPS: &str = "vm-pool-ips";
pub const POOL_NAMESPACE: &str = "pool-namespace";
pub const POOL_CONFIGMAP_NAME: &str = "pool-configmap-name";
pub const POOLS_CONFIGMAP: &str = "pools-configmap";
pub const POOL_CONFIGMAP_COUNT: &str = "pool-configmap-count";
pub const MAX_RANGE_IPS: &str = "max-range-ips";
pub const NODE_NAME: &str = "node-name";
pub const SSH_USERNAME: &str = "ssh-username";
pub const SSH_PRIV_KEY: &str = "ssh-priv-key";
pub const SSH_PORT: &str = "ssh-port";
pub const SSH_TIMEOUT: &str = "ssh-timeout";
pub const SSH_CONNECT_TIMEOUT: &str = "ssh-connect-timeout";
pub const SSH_ALLOWLIST: &str = "ssh-host-key-allowlist-dir";
pub const SSH_ACCEPT_ANY: &str = "ssh-accept-any-host-key";
pub const VM_ORDER: &str = "vm-order";
pub const VM_READINESS: &str = "vm-readiness";
pub const VM_DEAD_FOR: &str = "vm-dead-for";
pub const VM_CLEANUP: &str = "vm-cleanup";
pub const VM_CLEANUP_WAIT: &str = "vm-cleanup-wait";
pub const VM_CLEANUP_LIMIT: &str = "vm-cleanup-limit";
pub const VM_CLEANUP_RETRY: &str = "vm-cleanup-retry";
pub const VM_CLEANUP_SEEN_DOWN: &str = "vm-cleanup-seen-down";
pub const VM_CLEANUP_DOWN_FOR: &str = "vm-cleanup-down-for";
pub const VM_ALLOCATE_TIMEOUT: &str = "vm-allocate-timeout";
pub const VM_BOOT_FILE: &str = "vm-boot-file";
pub const VM_RECOVER: &str = "vm-recover-at-start";
pub const VM_LEDGER: &str = "vm-ledger";
pub const OPERATION_TIMEOUT: &str = "operation-timeout";
pub const MAX_RETRIES: &str = "max-retries";
pub const RETRY_INTERVAL: &str = "retry-interval";
pub const RETRY_FACTOR: &str = "retry-factor";
pub const LOW_WATER: &str = "vm-low-water";
pub const HIGH_WATER: &str = "vm-high-water";
pub const SCALE_HOOK: &str = "vm-scale-hook";
pub const SCALE_HOOK_TOKEN: &str = "vm-scale-hook-token-file";
pub const SCALE_HOOK_CA: &str = "vm-scale-hook-ca-file";
pub const SCALE_HOOK_TIMEOUT: &str = "vm-scale-hook-timeout";
pub const SCALE_COOLDOWN: &str = "vm-scale-cooldown";
pub const LISTEN: &str = "vm-listen";
pub const TOKEN_FILE: &str = "vm-token-file";

pub const KEYS: &[Key] = &[
    key(
        VM_POOL_IPS,
        "VM_POOL_IPS",
        "",
        "the VMs of the pool: addresses and ranges first-last, separated by commas",
    ),
    key(
        POOL_NAMESPACE,
        "POOL_NAMESPACE",
        "",
        "the namespace of the ConfigMaps [the service account's, POD_NAMESPACE, confidential-containers-system]",
    ),
    key(
        POOL_CONFIGMAP_NAME,
        "POOL_CONFIGMAP_NAME",
        "byom-ip-pool-state",
        "the ConfigMap of the pool's state",
    ),
    key(
        POOLS_CONFIGMAP,
        "POOLS_CONFIGMAP",
        "",
        "a ConfigMap whose keys are pools and whose values are their VMs; edits count at once",
    ),
    key(
        POOL_CONFIGMAP_COUNT,
        "POOL_CONFIGMAP_COUNT",
        "1",
        "how many ConfigMaps each pool is spread over; all agents need the same number",
    ),
    key(
        MAX_RANGE_IPS,
        "MAX_RANGE_IPS",
        "100",
        "how many addresses one range may have",
    ),
    key(
        NODE_NAME,
        "NODE_NAME",
        "",
        "this node [/etc/podinfo/nodename, /etc/hostname]",
    ),
    key(
        SSH_USERNAME,
        "SSH_USERNAME",
        "peerpod",
        "the user on the VMs",
    ),
    key(
        SSH_PRIV_KEY,
        "SSH_PRIV_KEY_PATH",
        "/root/.ssh/id_rsa",
        "the private key for the VMs",
    ),
    key(SSH_PORT, "SSH_PORT", "22", "the SSH port of the VMs"),
    key(
        SSH_TIMEOUT,
        "SSH_TIMEOUT",
        "30s",
        "the longest conversation with a VM",
    ),
    key(
        SSH_CONNECT_TIMEOUT,
        "SSH_CONNECT_TIMEOUT",
        "2s",
        "how long a VM may take to accept a connection",
    ),
    key(
        SSH_ALLOWLIST,
        "SSH_HOST_KEY_ALLOWLIST_DIR",
        "",
        "a directory of *.pub files: the host keys that VMs may show",
    ),
    key(
        SSH_ACCEPT_ANY,
        "SSH_ACCEPT_ANY_HOST_KEY",
        "false",
        "accept any host key that a VM shows",
    ),
    key(
        VM_ORDER,
        "VM_ORDER",
        "hash",
        "which free VM is allocated: hash, rendezvous, lowest, longest-released",
    ),
    key(
        VM_READINESS,
        "VM_READINESS",
        "ssh",
        "what a VM must answer before it is allocated: ssh, tcp, off",
    ),
    key(
        VM_DEAD_FOR,
        "VM_DEAD_FOR",
        "30s",
        "how long a VM that did not answer is passed over",
    ),
    key(
        VM_ALLOCATE_TIMEOUT,
        "VM_ALLOCATE_TIMEOUT",
        "30s",
        "the longest that an allocation may take, however many VMs do not answer",
    ),
    key(
        VM_CLEANUP,
        "VM_CLEANUP",
        "true",
        "reboot a VM before another pod gets it",
    ),
    key(
        VM_CLEANUP_WAIT,
        "VM_CLEANUP_WAIT",
        "5s",
        "the least time between the reboot's request and the VM's next use",
    ),
    key(
        VM_CLEANUP_LIMIT,
        "VM_CLEANUP_LIMIT",
        "5m",
        "the longest that a reboot may take",
    ),
    key(
        VM_CLEANUP_RETRY,
        "VM_CLEANUP_RETRY",
        "30s",
        "the pause before a failed cleanup is tried again",
    ),
    key(
        VM_CLEANUP_SEEN_DOWN,
        "VM_CLEANUP_SEEN_DOWN",
        "true",
        "whether a proof of the reboot is needed: a file in cidata that is gone",
    ),
    key(
        VM_CLEANUP_DOWN_FOR,
        "VM_CLEANUP_DOWN_FOR",
        "",
        "only for images whose cidata outlives a reboot: how long a VM must have been down to count as rebooted",
    ),
    key(
        VM_RECOVER,
        "VM_RECOVER_AT_START",
        "boot",
        "when a start of Berth takes this node's VMs back, after their cleanup: boot (the node was rebooted), always, never",
    ),
    key(
        VM_BOOT_FILE,
        "VM_BOOT_FILE",
        "",
        "the file that names the node's boot, on the node's own disk [beside the agent's database]",
    ),
    key(
        VM_LEDGER,
        "VM_LEDGER",
        "configmap",
        "where the state is kept: configmap, or sqlite:/path/to/file",
    ),
    key(
        OPERATION_TIMEOUT,
        "OPERATION_TIMEOUT",
        "30s",
        "the longest that one operation on the state may take",
    ),
    key(
        MAX_RETRIES,
        "MAX_RETRIES",
        "50",
        "how often an operation on the state is tried again; 0: not at all",
    ),
    key(
        RETRY_INTERVAL,
        "RETRY_INTERVAL",
        "10ms",
        "the first pause before that; it grows and is jittered",
    ),
    key(
        RETRY_FACTOR,
        "RETRY_FACTOR",
        "1.5",
        "what each further pause is multiplied by",
    ),
    key(
        LOW_WATER,
        "VM_LOW_WATER",
        "",
        "fewer free VMs than this, a number or a share like 10%, are reported as PoolLow",
    ),
    key(
        HIGH_WATER,
        "VM_HIGH_WATER",
        "",
        "more free VMs than this, a number or a share like 80%, are reported as PoolHigh",
    ),
    key(
        SCALE_HOOK,
        "VM_SCALE_HOOK",
        "",
        "an http or https URL that is called when a pool passes a water mark",
    ),
    key(
        SCALE_HOOK_TOKEN,
        "VM_SCALE_HOOK_TOKEN_FILE",
        "",
        "the file with the bearer token for that URL",
    ),
    key(
        SCALE_HOOK_CA,
        "VM_SCALE_HOOK_CA_FILE",
        "",
        "a PEM file of the certificates that an https URL is trusted by [the system's; the released image has none]",
    ),
    key(
        SCALE_HOOK_TIMEOUT,
        "VM_SCALE_HOOK_TIMEOUT",
        "10s",
        "the longest that a call of that URL may take",
    ),
    key(
        SCALE_COOLDOWN,
        "VM_SCALE_COOLDOWN",
        "5m",
        "the least time between two reports of one pool, over all agents",
    ),
    key(
        LISTEN,
        "VM_LISTEN",
        "",
        "serve the HTTP API on this TCP address too; needs vm-token-file",
    ),
    key(
        TOKEN_FILE,
        "VM_TOKEN_FILE",
        "",
        "the file with the bearer token of the TCP address",
    ),
];

/// The table's row of a name.
pub fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}
