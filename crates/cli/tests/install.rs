//! `berth install` black-box, on hosts that are directory trees.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod host;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::process::Command;

use berth_testkit::isolated;
use host::{Host, OWN, failed, states, succeeded};
use serde_json::{Value, json};

fn kubeconfig(host: &Host) -> Value {
    serde_saphyr::from_str(&host.read(&format!("{OWN}/whereabouts.kubeconfig"))).unwrap()
}

fn token(host: &Host) -> String {
    let token = &kubeconfig(host)["users"][0]["user"]["token"];
    token.as_str().unwrap().to_owned()
}

#[test]
fn a_bare_node_gets_everything_and_is_bare_again() {
    let host = Host::new();
    let before = host.files();
    let report = host.install();
    let all = [
        "whereabouts.kubeconfig",
        "whereabouts.conf",
        "nodename",
        "berth-full.json",
        "berth-full",
        "berth",
        "whereabouts",
    ];
    let every = |state: &str| -> BTreeMap<String, String> {
        let rows = all.iter();
        rows.map(|name| ((*name).to_owned(), state.to_owned()))
            .collect()
    };
    assert_eq!(states(&report, "action"), every("written"));
    for (name, says) in [
        ("whereabouts", "plugin"),
        ("berth", "plugin"),
        ("berth-full", "engine"),
    ] {
        let path = format!("opt/cni/bin/{name}");
        let run = isolated(Command::new(host.at(&path))).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&run.stdout).trim(), says, "{name}");
        assert_eq!(host.mode(&path), 0o755);
    }
    for name in [
        "whereabouts.kubeconfig",
        "whereabouts.conf",
        "nodename",
        "berth-install.json",
    ] {
        assert_eq!(host.mode(&format!("{OWN}/{name}")), 0o600, "{name}");
    }
    let pointer: Value = serde_json::from_str(&host.read("opt/cni/bin/berth-full.json")).unwrap();
    assert_eq!(pointer["configuration_path"], format!("/{OWN}"));
    assert_eq!(states(&host.install(), "action"), every("unchanged"));
    assert_eq!(host.remove(), every("removed"));
    assert_eq!(host.files(), before);
    assert!(!host.at(OWN).exists());
    // There is nothing to remove, and that is no failure.
    assert_eq!(host.remove(), BTreeMap::new());
}

/// The plugin's own engine allocates slices from the file that the agent has, or two pods get one address.
#[test]
fn berth_15_15_the_engine_is_told_the_agents_database() {
    let database = |arguments: &[&str], env: &[(&str, &str)]| {
        let host = Host::new();
        let mut command = host.command(&["--once", "--output=json"]);
        command.args(arguments).envs(env.iter().copied());
        succeeded(command);
        let pointer = host.read("opt/cni/bin/berth-full.json");
        let pointer: Value = serde_json::from_str(&pointer).unwrap();
        pointer["database"].as_str().unwrap().to_owned()
    };
    assert_eq!(database(&[], &[]), "/var/lib/berth/berth.db");
    let flag = ["--database", "/srv/x.db"];
    assert_eq!(database(&flag, &[]), "/srv/x.db");
    let variable = [("BERTH_DATABASE", "/srv/y.db")];
    assert_eq!(database(&[], &variable), "/srv/y.db");
    assert_eq!(database(&flag, &variable), "/srv/x.db");
}

#[test]
fn berth_20_5_the_plugin_and_the_engine_are_told_the_agents_socket() {
    let socket = |arguments: &[&str], env: &[(&str, &str)]| {
        let host = Host::new();
        let mut command = host.command(&["--once", "--output=json"]);
        command.args(arguments).envs(env.iter().copied());
        succeeded(command);
        let pointer = host.read("opt/cni/bin/berth-full.json");
        let pointer: Value = serde_json::from_str(&pointer).unwrap();
        pointer["socket"].as_str().unwrap().to_owned()
    };
    assert_eq!(socket(&[], &[]), "/run/berth/berth.sock");
    assert_eq!(
        socket(&[], &[("BERTH_SOCKET", "")]),
        "/run/berth/berth.sock"
    );
    let flag = ["--socket", "/srv/x.sock"];
    assert_eq!(socket(&flag, &[]), "/srv/x.sock");
    assert_eq!(
        socket(&[], &[("BERTH_SOCKET", "/srv/y.sock")]),
        "/srv/y.sock"
    );
}

#[test]
fn what_whereabouts_left_is_kept_once_and_comes_back() {
    let host = Host::new();
    fs::create_dir(host.at(OWN)).unwrap();
    host.program("opt/cni/bin/whereabouts", "theirs");
    host.write(
        &format!("{OWN}/whereabouts.conf"),
        "{\"log_level\": \"debug\"}",
    );
    host.write(&format!("{OWN}/whereabouts.kubeconfig"), "their: token\n");
    // The same name for both, and still theirs.
    host.write(&format!("{OWN}/nodename"), "node-1.example");
    host.write(&format!("{OWN}/other"), "nobody's business");
    let before = host.files();

    host.install();
    assert!(host.read("opt/cni/bin/whereabouts").contains("plugin"));
    assert!(
        host.read("opt/cni/bin/whereabouts.before-berth")
            .contains("theirs")
    );
    assert_eq!(host.mode("opt/cni/bin/whereabouts.before-berth"), 0o755);
    // An upgrade is no reason to keep our own plugin as if it were theirs.
    host.program("image/plugin", "newer plugin");
    host.install();
    assert!(
        host.read("opt/cni/bin/whereabouts.before-berth")
            .contains("theirs")
    );

    let fates = host.remove();
    assert_eq!(fates["whereabouts"], "restored");
    assert_eq!(fates["nodename"], "restored");
    assert_eq!(fates["berth"], "removed");
    assert_eq!(host.files(), before);
    assert_eq!(host.mode("opt/cni/bin/whereabouts"), 0o755);
}

#[test]
fn a_plugin_that_is_a_link_comes_back_as_a_link() {
    let host = Host::new();
    host.program("image/theirs", "theirs");
    symlink(host.at("image/theirs"), host.at("opt/cni/bin/whereabouts")).unwrap();
    host.install();
    assert!(host.read("image/theirs").contains("theirs"));
    assert!(host.read("opt/cni/bin/whereabouts").contains("plugin"));
    host.remove();
    assert_eq!(
        fs::read_link(host.at("opt/cni/bin/whereabouts")).unwrap(),
        host.at("image/theirs")
    );
}

#[test]
fn what_others_changed_is_left_and_named() {
    let host = Host::new();
    host.program("opt/cni/bin/whereabouts", "first");
    host.install();
    host.program("opt/cni/bin/whereabouts", "second");
    host.write(&format!("{OWN}/whereabouts.conf"), "{}");
    fs::remove_file(host.at("opt/cni/bin/berth")).unwrap();

    let output = host.command(&["--remove"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success());
    for line in [
        "/opt/cni/bin/whereabouts                             left: changed by others; before berth it was whereabouts.before-berth",
        "/opt/cni/bin/berth                                   gone already",
        "/etc/cni/net.d/whereabouts.d/whereabouts.conf        left: changed by others",
    ] {
        assert!(text.contains(line), "{text}");
    }
    let names: Vec<String> = host.files().into_keys().collect();
    assert_eq!(
        names,
        [
            format!("{OWN}/whereabouts.conf"),
            "opt/cni/bin/whereabouts".to_owned(),
            "opt/cni/bin/whereabouts.before-berth".to_owned(),
        ]
    );
}

#[test]
fn a_plugin_that_whereabouts_put_back_itself_is_as_before() {
    let host = Host::new();
    host.program("opt/cni/bin/whereabouts", "theirs");
    let before = host.files();
    host.install();
    host.program("opt/cni/bin/whereabouts", "theirs");
    assert_eq!(host.remove()["whereabouts"], "restored");
    assert_eq!(host.files(), before);
}

#[test]
fn a_lost_manifest_costs_neither_their_plugin_nor_ours() {
    let host = Host::new();
    host.program("opt/cni/bin/whereabouts", "theirs");
    let before = host.files();
    host.install();
    fs::remove_file(host.at(&format!("{OWN}/berth-install.json"))).unwrap();
    fs::remove_dir_all(host.at(OWN)).unwrap();
    host.install();
    host.remove();
    assert_eq!(host.files(), before);
}

#[test]
fn a_manifest_that_can_t_be_read_is_not_overwritten() {
    let host = Host::new();
    host.install();
    let record = format!("{OWN}/berth-install.json");
    host.write(&record, "{ cut sho");
    for arguments in ["--once", "--remove"] {
        let (code, text) = failed(host.command(&[arguments]));
        assert_eq!(code, 6);
        assert!(
            text.contains(&record) && text.contains("move it away"),
            "{text}"
        );
    }
    assert_eq!(host.read(&record), "{ cut sho");
    assert!(host.at("opt/cni/bin/whereabouts").exists());
}

#[test]
fn a_plugin_in_use_is_replaced_and_goes_on_running() {
    let host = Host::new();
    let plugin = host.at("opt/cni/bin/whereabouts");
    // Copied by another process: none of this one's threads can pass on the file while it is open.
    let copy = Command::new("cp").arg("/bin/busybox").arg(&plugin).status();
    assert!(copy.unwrap().success());
    let mut running = isolated(Command::new(&plugin))
        .arg0("sleep")
        .arg("60")
        .spawn()
        .unwrap();
    let busy = || fs::OpenOptions::new().write(true).open(&plugin).is_err();
    host.until("the plugin runs", busy);
    host.install();
    assert!(host.read("opt/cni/bin/whereabouts").contains("plugin"));
    assert!(running.try_wait().unwrap().is_none());
    running.kill().unwrap();
    running.wait().unwrap();
}

#[test]
fn a_target_that_can_t_be_written_is_named_and_left_whole() {
    for dir in ["opt/cni/bin", "etc/cni/net.d"] {
        let host = Host::new();
        host.program("opt/cni/bin/whereabouts", "theirs");
        let before = host.files();
        let at = host.at(dir).display().to_string();
        // A mount namespace of its own, in which the directory is read-only.
        let install = host.command(&["--once"]);
        let mut command = isolated(Command::new("unshare"));
        let script =
            format!("mount --bind {at} {at} && mount -o remount,ro,bind {at} && exec \"$@\"");
        command
            .args(["--mount", "sh", "-c", &script, "sh"])
            .arg(install.get_program())
            .args(install.get_args());
        for (name, value) in install.get_envs() {
            command.env(name, value.unwrap());
        }
        let (code, text) = failed(command);
        assert_eq!(code, 1, "{text}");
        assert!(
            text.contains(&at)
                && text.contains("can't be written: the file system is mounted read-only"),
            "{text}"
        );
        let mut now = host.files();
        now.retain(|name, _| !name.starts_with(OWN));
        assert_eq!(now, before, "{dir}");
        // What was begun is finished, and can be undone.
        host.install();
        host.remove();
        assert_eq!(host.files(), before);
    }
}

#[test]
fn missing_credentials_are_named_before_anything_is_touched() {
    let host = Host::new();
    let before = host.files();
    let expect = |command: Command, words: &[&str]| {
        let (code, text) = failed(command);
        assert_eq!(code, 1, "{text}");
        for word in words {
            assert!(text.contains(word), "{word}: {text}");
        }
        assert!(!text.contains("payload"), "{text}");
        assert_eq!(host.files(), before);
    };
    let mut without_host = host.command(&["--once"]);
    without_host.env("KUBERNETES_SERVICE_HOST", "");
    expect(without_host, &["KUBERNETES_SERVICE_HOST is not set"]);

    fs::remove_file(host.at("account/ca.crt")).unwrap();
    expect(
        host.command(&["--once"]),
        &["account/ca.crt", "KUBE_CA_FILE", "SKIP_TLS_VERIFY"],
    );
    for odd in ["", "\n", "header.payload\nsignature"] {
        host.write("account/token", odd);
        expect(
            host.command(&["--once"]),
            &["account/token has no token in it"],
        );
    }
    fs::remove_file(host.at("account/token")).unwrap();
    expect(
        host.command(&["--once"]),
        &["account/token is not there", "--token-file", "--standalone"],
    );

    // A node of no cluster has no use for any of them.
    let mut standalone = host.command(&["--once", "--standalone", "--output=json"]);
    standalone.env_remove("NODENAME");
    let names: Vec<String> = states(&succeeded(standalone), "action")
        .into_keys()
        .collect();
    assert_eq!(names, ["berth", "berth-full", "whereabouts"]);
    host.remove();
    assert_eq!(host.files(), before);
}

#[test]
fn wrong_settings_are_refused() {
    let host = Host::new();
    for (name, value, word) in [
        ("KUBECONFIG_MODE", "999", "octal"),
        ("KUBECONFIG_MODE", "000", "octal"),
        ("SKIP_TLS_VERIFY", "maybe", "true or false"),
        ("CNI_BIN_DIR", "relative/bin", "absolute"),
        ("CNI_CONF_DIR", "/no/such/dir", "CNI_CONF_DIR"),
    ] {
        let mut command = host.command(&["--once"]);
        command.env(name, value);
        let (code, text) = failed(command);
        assert_eq!(code, 2, "{name}: {text}");
        assert!(text.contains(word), "{name}: {text}");
    }
    let mut command = host.command(&["--once"]);
    command.env("BERTH_PLUGIN", host.at("image/none"));
    let (code, text) = failed(command);
    assert_eq!(code, 1);
    assert!(
        text.contains("image/none") && text.contains("--plugin"),
        "{text}"
    );
    // Empty is as good as not set: manifests leave variables so.
    let mut command = host.command(&["--once"]);
    for name in [
        "KUBECONFIG_MODE",
        "SKIP_TLS_VERIFY",
        "CNI_BIN_DIR",
        "CNI_CONF_DIR",
        "KUBE_CA_FILE",
        "WHEREABOUTS_NAMESPACE",
        "KUBERNETES_SERVICE_PROTOCOL",
        "BERTH_REMOVE_ON_EXIT",
    ] {
        command.env(name, "");
    }
    command.arg("--output=json");
    succeeded(command);
    assert_eq!(host.mode(&format!("{OWN}/whereabouts.kubeconfig")), 0o600);
    let context = &kubeconfig(&host)["contexts"][0]["context"];
    assert_eq!(context["namespace"], "networking");
}

#[test]
fn k3s_and_rke2_have_their_own_directories() {
    let k3s = Host::new();
    let conf = "var/lib/rancher/k3s/agent/etc/cni/net.d";
    for dir in [conf, "var/lib/rancher/k3s/data/cni"] {
        fs::create_dir_all(k3s.at(dir)).unwrap();
    }
    k3s.install();
    assert!(k3s.at("var/lib/rancher/k3s/data/cni/whereabouts").exists());
    // On the host, the files refer to each other by the host's paths.
    let flat: Value =
        serde_json::from_str(&k3s.read(&format!("{conf}/whereabouts.d/whereabouts.conf"))).unwrap();
    assert_eq!(
        flat["kubernetes"]["kubeconfig"],
        json!(format!("/{conf}/whereabouts.d/whereabouts.kubeconfig"))
    );
    assert_eq!(k3s.files(), BTreeMap::new());
    k3s.remove();
    assert!(!k3s.at("var/lib/rancher/k3s/data/cni/whereabouts").exists());

    let rke2 = Host::new();
    fs::create_dir_all(rke2.at("var/lib/rancher/rke2/agent")).unwrap();
    rke2.install();
    assert!(rke2.at("opt/cni/bin/whereabouts").exists());
    assert!(rke2.at(OWN).join("whereabouts.conf").exists());
    // Flags say more than what is found.
    fs::create_dir_all(rke2.at("srv/bin")).unwrap();
    succeeded(rke2.command(&["--once", "--output=json", "--cni-bin-dir=/srv/bin"]));
    assert!(rke2.at("srv/bin/whereabouts").exists());
    // Both installations are ours to remove.
    rke2.remove();
    assert_eq!(rke2.files(), BTreeMap::new());
    assert!(!rke2.at("srv/bin/whereabouts").exists());
}

#[test]
fn two_at_once_take_turns() {
    let host = Host::new();
    host.program("opt/cni/bin/whereabouts", "theirs");
    let before = host.files();
    let running: Vec<_> = (0..4)
        .map(|_| {
            let mut command = host.command(&["--once"]);
            command.stdout(std::process::Stdio::null());
            command.spawn().unwrap()
        })
        .collect();
    for mut one in running {
        assert!(one.wait().unwrap().success());
    }
    assert_eq!(token(&host), "header.payload.signature");
    host.remove();
    assert_eq!(host.files(), before);
}

#[test]
fn a_mode_for_other_readers_can_be_asked_for() {
    let host = Host::new();
    let mut command = host.command(&["--once", "--output=json"]);
    command.env("KUBECONFIG_MODE", "0640");
    succeeded(command);
    for name in ["whereabouts.kubeconfig", "whereabouts.conf", "nodename"] {
        assert_eq!(host.mode(&format!("{OWN}/{name}")), 0o640);
    }
    // Back again: the mode is part of what is kept right.
    fs::set_permissions(
        host.at(&format!("{OWN}/nodename")),
        fs::Permissions::from_mode(0o666),
    )
    .unwrap();
    host.install();
    assert_eq!(host.mode(&format!("{OWN}/nodename")), 0o600);
}
