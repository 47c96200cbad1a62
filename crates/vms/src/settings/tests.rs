//! Where each setting is read from, and how invalid ones are refused.

use std::collections::HashMap;

use super::*;

/// Settings as if from this environment, these flags and this file.
fn settings(
    env: &[(&str, &str)],
    flags: &[(&str, &str)],
    file: Option<&str>,
) -> Result<Settings, SettingsError> {
    let dir = tempfile::tempdir().unwrap();
    let map = |pairs: &[(&str, &str)]| -> HashMap<String, String> {
        pairs
            .iter()
            .map(|(k, v)| (k.to_string(), v.to_string()))
            .collect()
    };
    let (env, flags) = (map(env), map(flags));
    let path = dir.path().join("settings.yaml");
    if let Some(text) = file {
        std::fs::write(&path, text).unwrap();
    }
    Settings::new(
        |name| flags.get(name).cloned(),
        |name| env.get(name).cloned(),
        file.map(|_| path.as_path()),
        dir.path(),
    )
}

const IPS: (&str, &str) = ("VM_POOL_IPS", "10.0.0.1-10.0.0.3");
const NODE: (&str, &str) = ("NODE_NAME", "worker");

fn refused(env: &[(&str, &str)], file: Option<&str>, want: &str) {
    let mut all = vec![NODE];
    all.extend(env);
    let error = settings(&all, &[], file).expect_err(want).to_string();
    assert!(error.contains(want), "{error}\nlacks {want}");
}

#[test]
fn the_defaults_are_the_ones_that_users_know() {
    let settings = settings(&[IPS, NODE], &[], None).unwrap();
    assert_eq!(settings.pools.len(), 1);
    let pool = &settings.pools[0];
    assert_eq!(
        (pool.name.as_str(), pool.configmap.as_str()),
        ("default", "byom-ip-pool-state")
    );
    assert_eq!(settings.namespace, "confidential-containers-system");
    assert_eq!(settings.node, "worker");
    assert_eq!(settings.max_range_ips, 100);
    assert_eq!(settings.access.user, "peerpod");
    assert_eq!(settings.access.private_key, Path::new("/root/.ssh/id_rsa"));
    assert_eq!(settings.access.port, 22);
    assert_eq!(settings.access.timeout, Duration::from_secs(30));
    assert_eq!(settings.access.host_keys, HostKeyRule::Unset);
    assert_eq!(settings.order, Order::HashIndex);
    assert_eq!(settings.readiness, Readiness::Ssh);
    let cleanup = settings.cleanup.unwrap();
    assert_eq!(cleanup.timing.floor, Duration::from_secs(5));
    assert!(cleanup.timing.must_be_seen_down);
    assert_eq!(settings.ledger, LedgerChoice::ConfigMap);
    assert_eq!(settings.retry.timeout, Duration::from_secs(30));
    assert_eq!(settings.tcp, None);
}

#[test]
fn every_default_of_the_table_can_be_read() {
    for key in keys::KEYS.iter().filter(|key| !key.default.is_empty()) {
        settings(&[IPS, NODE, (key.env, key.default)], &[], None)
            .unwrap_or_else(|error| panic!("{}: {error}", key.name));
    }
}

#[test]
fn flags_win_over_the_environment_and_that_over_the_file() {
    let file = Some("ssh-username: from-file\nssh-timeout: 7\nssh-port: 2222\nmax-range-ips: 5\n");
    let env = [
        IPS,
        NODE,
        ("SSH_USERNAME", "from-env"),
        ("SSH_TIMEOUT", "8s"),
        ("SSH_PORT", " "),
    ];
    let flags = [("ssh-username", "from-flag")];
    let settings = settings(&env, &flags, file).unwrap();
    assert_eq!(settings.access.user, "from-flag");
    assert_eq!(settings.access.timeout, Duration::from_secs(8));
    assert_eq!(
        settings.access.port, 2222,
        "an empty variable is no setting"
    );
    assert_eq!(settings.max_range_ips, 5);
}

#[test]
fn the_file_may_be_json_and_lists_pools() {
    let yaml = "
vm-pool-ips: [10.0.0.1, 10.0.0.2]
pools:
- name: gpu
  ips: 10.0.1.1-10.0.1.3
- name: large
  ips: [fd00::1]
  configmap: large-state
";
    let settings_of = |text| settings(&[NODE], &[], Some(text)).unwrap().pools;
    let pools = settings_of(yaml);
    let names: Vec<_> = pools
        .iter()
        .map(|p| (p.name.as_str(), p.configmap.as_str(), p.ips.len()))
        .collect();
    assert_eq!(
        names,
        [
            ("default", "byom-ip-pool-state", 2),
            ("gpu", "byom-ip-pool-state-gpu", 3),
            ("large", "large-state", 1)
        ]
    );
    let json = r#"{"vm-pool-ips": "10.0.0.1,10.0.0.2", "pools": [
        {"name": "gpu", "ips": "10.0.1.1-10.0.1.3"}, {"name": "large", "ips": ["fd00::1"], "configmap": "large-state"}]}"#;
    assert_eq!(settings_of(json), pools);
}

#[test]
fn invalid_settings_are_refused_by_name() {
    refused(&[], None, "pool IPs cannot be empty: set VM_POOL_IPS");
    refused(
        &[("VM_POOL_IPS", "10.0.0.1,10.0.0.999")],
        None,
        "environment VM_POOL_IPS: vm-pool-ips: entry 2 \"10.0.0.999\": invalid IP address",
    );
    refused(&[("VM_POOL_IPS", ",")], None, "pool IPs cannot be empty");
    refused(
        &[IPS, ("SSH_TIMEOUT", "soon")],
        None,
        "environment SSH_TIMEOUT: ssh-timeout: \"soon\" is no duration",
    );
    refused(&[IPS, ("SSH_TIMEOUT", "0")], None, "leaves no time");
    refused(
        &[IPS, ("SSH_PORT", "70000")],
        None,
        "ssh-port: \"70000\" is no whole number",
    );
    refused(&[IPS, ("MAX_RANGE_IPS", "0")], None, "of at least 1");
    refused(
        &[IPS, ("VM_ORDER", "random")],
        None,
        "none of hash, rendezvous, lowest, longest-released",
    );
    refused(
        &[IPS, ("VM_READINESS", "ping")],
        None,
        "none of ssh, tcp, off",
    );
    refused(
        &[IPS, ("VM_CLEANUP", "maybe")],
        None,
        "neither true nor false",
    );
    refused(
        &[IPS, ("VM_LEDGER", "sqlite:relative.db")],
        None,
        "sqlite:/path/to/file",
    );
    refused(
        &[IPS, ("VM_CLEANUP_LIMIT", "2s")],
        None,
        "vm-cleanup-limit 2s is below vm-cleanup-wait 5s",
    );
    refused(
        &[IPS, ("VM_LISTEN", "0.0.0.0:8480")],
        None,
        "vm-listen needs vm-token-file",
    );
    refused(
        &[IPS, ("VM_LISTEN", "8480"), ("VM_TOKEN_FILE", "/t")],
        None,
        "no address with a port",
    );
    refused(
        &[
            IPS,
            ("SSH_ACCEPT_ANY_HOST_KEY", "true"),
            ("SSH_HOST_KEY_ALLOWLIST_DIR", "/k"),
        ],
        None,
        "contradict",
    );
    refused(
        &[IPS],
        Some("ssh-usrname: x\n"),
        "there is no setting \"ssh-usrname\"",
    );
    refused(
        &[IPS],
        Some("ssh-username: {a: b}\n"),
        "neither a value nor a list",
    );
    refused(&[IPS], Some("- a\n"), "settings are `name: value` pairs");
    refused(&[IPS], Some("a: [\n"), "is no YAML");
    refused(&[IPS], Some("pools: {a: b}\n"), "pools: is no list");
    refused(
        &[IPS],
        Some("pools: [{name: a, ips: 10.1.0.1, size: 3}]\n"),
        "pools[0]: there is no field \"size\"",
    );
    refused(
        &[IPS],
        Some("pools: [{name: a}]\n"),
        "pools[0]: ips is missing",
    );
    refused(
        &[IPS],
        Some("pools: [{name: A_b, ips: 10.1.0.1}]\n"),
        "pool \"A_b\": a pool's name",
    );
    refused(
        &[IPS],
        Some("pools: [{name: a, ips: 10.0.0.2}]\n"),
        "10.0.0.2 is in pool \"default\" and in pool \"a\"",
    );
    refused(
        &[IPS],
        Some("pools: [{name: default, ips: 10.1.0.1}]\n"),
        "there are two pools \"default\"",
    );
    refused(
        &[IPS],
        Some("pools: [{name: a, ips: 10.1.0.1, configmap: byom-ip-pool-state}]\n"),
        "share the ConfigMap",
    );
}

#[test]
fn without_a_node_name_nothing_starts() {
    let error = settings(&[IPS], &[], None).unwrap_err().to_string();
    assert!(
        error.starts_with("unable to determine node name"),
        "{error}"
    );
}

#[test]
fn the_pools_may_all_come_from_a_configmap() {
    let settings = settings(&[NODE, ("POOLS_CONFIGMAP", "vm-pools")], &[], None).unwrap();
    assert!(settings.pools.is_empty());
    assert_eq!(settings.pools_configmap.as_deref(), Some("vm-pools"));
}

#[test]
fn the_backoff_of_the_design_document_can_be_set() {
    let file = "retry-interval: 500ms\nretry-factor: 1.5\nmax-retries: 5\n";
    let retry = settings(&[IPS, NODE], &[], Some(file)).unwrap().retry;
    assert_eq!(
        (retry.base, retry.factor),
        (Duration::from_millis(500), 1.5)
    );
    assert_eq!(retry.retries, 5);
    refused(
        &[IPS, ("RETRY_FACTOR", "0.5")],
        None,
        "no number from 1 to 10",
    );
}

#[test]
fn water_marks_and_shards_that_make_no_sense_are_refused() {
    let marks = [IPS, NODE, ("VM_LOW_WATER", "10%"), ("VM_HIGH_WATER", "7")];
    let scaling = settings(&marks, &[], None).unwrap().scaling.unwrap();
    assert_eq!(scaling.low, Some(Level::Percent(10.0)));
    assert_eq!(scaling.high, Some(Level::Count(7)));
    let (low, hook) = (("VM_LOW_WATER", "3"), "VM_SCALE_HOOK");
    refused(&[IPS, ("VM_LOW_WATER", "few")], None, "a number of VMs");
    refused(&[IPS, ("VM_LOW_WATER", "101%")], None, "from 0% to 100%");
    refused(&[IPS, low, ("VM_HIGH_WATER", "3")], None, "must be above");
    refused(&[IPS, low, (hook, "ftp://x")], None, "http or https");
    refused(&[IPS, (hook, "http://x")], None, "never called without");
    let shards = ("POOL_CONFIGMAP_COUNT", "2");
    refused(
        &[IPS, shards, ("VM_LEDGER", "sqlite:/x.db")],
        None,
        "vm-ledger configmap",
    );
    let pools = settings(&[IPS, NODE, shards], &[], None).unwrap().pools;
    assert_eq!(pools[1].configmap, "byom-ip-pool-state-shard-1");
    let clash = "pools: [{ name: shard-1, ips: 10.0.1.1 }]";
    refused(&[IPS, shards], Some(clash), "share the ConfigMap");
}
