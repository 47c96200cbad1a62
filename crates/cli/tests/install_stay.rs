//! A `berth install` that stays: tokens and CAs that change, files that others overwrite, readers at the worst moment,
//! and ends of all kinds.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod host;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use berth_testkit::isolated;
use host::{Host, OWN, failed};
use serde_json::Value;

fn kubeconfig(host: &Host) -> Value {
    let text = host.read(&format!("{OWN}/whereabouts.kubeconfig"));
    serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn token(host: &Host) -> String {
    let token = &kubeconfig(host)["users"][0]["user"]["token"];
    token.as_str().unwrap().to_owned()
}

fn authority(host: &Host) -> String {
    let cluster = &kubeconfig(host)["clusters"][0]["cluster"];
    cluster["certificate-authority-data"]
        .as_str()
        .unwrap()
        .to_owned()
}

#[test]
fn a_new_token_and_a_new_ca_reach_the_kubeconfig() {
    let host = Host::new();
    let staying = host.stay(&[]);
    assert_eq!(token(&host), "header.payload.signature");
    host.write("account/token", "a.new.token");
    host.until("the new token is there", || token(&host) == "a.new.token");
    let before = authority(&host);
    host.write("account/ca.crt", "another CA\n");
    host.until("the new CA is there", || authority(&host) != before);
    assert_eq!(host.mode(&format!("{OWN}/whereabouts.kubeconfig")), 0o600);
    assert!(staying.stop().success());
    // Told to stop, not to remove.
    assert_eq!(token(&host), "a.new.token");
    assert!(!host.read("log").contains("a.new.token"));
}

/// A kubelet swaps a whole directory of secrets by a link.
#[test]
fn a_projected_volume_is_followed() {
    let host = Host::new();
    let fill = |name: &str, token: &str| {
        fs::create_dir(host.at("account").join(name)).unwrap();
        host.write(&format!("account/{name}/token"), token);
        host.write(&format!("account/{name}/ca.crt"), "CA\n");
    };
    fill("..first", "first.first.first");
    for name in ["token", "ca.crt"] {
        fs::remove_file(host.at("account").join(name)).unwrap();
        symlink(format!("..data/{name}"), host.at("account").join(name)).unwrap();
    }
    symlink("..first", host.at("account/..data")).unwrap();
    let _staying = host.stay(&[]);
    assert_eq!(token(&host), "first.first.first");
    fill("..second", "second.second.second");
    symlink("..second", host.at("account/..next")).unwrap();
    fs::rename(host.at("account/..next"), host.at("account/..data")).unwrap();
    host.until("the new token is there", || {
        token(&host) == "second.second.second"
    });
}

/// whereabouts#459, #401: the token was rotated by writing over the file, and a plugin read half of it.
#[test]
fn a_reader_never_sees_a_part_of_a_kubeconfig() {
    let host = Host::new();
    host.install();
    let tokens: Vec<String> = (0..40).map(|n| format!("token-{n}").repeat(200)).collect();
    let mut expected: BTreeSet<&str> = tokens.iter().map(String::as_str).collect();
    expected.insert("header.payload.signature");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut seen = BTreeSet::new();
            while !done.load(Ordering::Relaxed) {
                let found = token(&host);
                assert!(expected.contains(found.as_str()), "{found}");
                seen.insert(found);
            }
            seen
        });
        for token in &tokens {
            host.write("account/token", token);
            host.install();
        }
        done.store(true, Ordering::Relaxed);
        // It did look while they changed.
        assert!(reader.join().unwrap().len() > 10);
    });
}

#[test]
fn a_plugin_can_be_run_at_every_moment_of_an_upgrade() {
    let host = Host::new();
    host.install();
    let plugin = host.at("opt/cni/bin/whereabouts");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let runner = scope.spawn(|| {
            let mut runs = 0;
            while !done.load(Ordering::Relaxed) {
                let run = isolated(Command::new(&plugin)).output().unwrap();
                let said = String::from_utf8(run.stdout).unwrap();
                assert!(said.starts_with("plugin"), "{said}");
                runs += 1;
            }
            runs
        });
        for version in 0..30 {
            host.program("image/plugin", &format!("plugin {version}"));
            host.install();
        }
        done.store(true, Ordering::Relaxed);
        assert!(runner.join().unwrap() > 10);
    });
}

/// A kill at any moment leaves whole files, and the next run finishes what this one began.
#[test]
fn kill_9_leaves_nothing_half_done() {
    let host = Host::new();
    host.program("opt/cni/bin/whereabouts", "theirs");
    let before = host.files();
    let whole = |text: &str| {
        [
            "echo theirs\n",
            "echo plugin",
            "echo engine\n",
            "berth.sock\"\n}\n",
        ]
        .iter()
        .any(|says| text.contains(says))
            && text.ends_with('\n')
    };
    for moment in 0..25 {
        host.program("image/plugin", &format!("plugin {moment}"));
        host.write("account/token", &format!("token.number.{moment}"));
        let mut command = host.command(&["--once"]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        std::thread::sleep(Duration::from_millis(moment));
        child.kill().unwrap();
        child.wait().unwrap();
        for (name, text) in host.files() {
            if name.starts_with("opt") && !name.contains(".berth-install-") {
                assert!(whole(&text), "{name}: {text}");
            }
        }
        let kept = host.at("opt/cni/bin/whereabouts.before-berth");
        assert!(!kept.exists() || fs::read_to_string(kept).unwrap().contains("theirs"));
    }
    host.install();
    let left = |files: Vec<String>| {
        files
            .into_iter()
            .find(|name| name.contains(".berth-install-"))
    };
    assert_eq!(left(host.files().into_keys().collect()), None);
    host.remove();
    assert_eq!(host.files(), before);
}

/// A whereabouts pod that restarts copies its plugin and its kubeconfig over ours, and dies with its token.
#[test]
fn what_another_installer_overwrites_is_put_back() {
    let host = Host::new();
    let _staying = host.stay(&[]);
    host.program("opt/cni/bin/whereabouts", "theirs");
    host.write(&format!("{OWN}/whereabouts.kubeconfig"), "their: token\n");
    fs::remove_file(host.at("opt/cni/bin/berth")).unwrap();
    host.until("all is put back", || {
        host.at("opt/cni/bin/berth").exists()
            && host.read("opt/cni/bin/whereabouts").contains("plugin")
            && !host
                .read(&format!("{OWN}/whereabouts.kubeconfig"))
                .contains("their")
    });
    assert!(
        host.read("opt/cni/bin/whereabouts.before-berth")
            .contains("theirs")
    );
}

#[test]
fn told_to_remove_on_exit_it_does() {
    let host = Host::new();
    host.program("opt/cni/bin/whereabouts", "theirs");
    let before = host.files();
    let staying = host.stay(&["--remove-on-exit"]);
    assert!(staying.stop().success());
    assert_eq!(host.files(), before);
    // As a variable, as a manifest would have it.
    let mut command = host.command(&[]);
    command
        .env("BERTH_REMOVE_ON_EXIT", "true")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    host.until("it has installed", || {
        host.read("opt/cni/bin/whereabouts").contains("plugin")
    });
    let kill = Command::new("kill").arg(child.id().to_string()).status();
    assert!(kill.unwrap().success());
    assert!(child.wait().unwrap().success());
    assert_eq!(host.files(), before);
}

#[test]
fn one_that_stays_does_not_undo_a_removal() {
    let host = Host::new();
    let before = host.files();
    let mut staying = host.stay(&[]);
    host.remove();
    assert_eq!(staying.wait().code(), Some(3));
    assert_eq!(host.files(), before);
    assert!(
        host.read("log")
            .contains("Berth was removed from this node")
    );
}

#[test]
fn a_token_that_is_away_for_a_moment_is_waited_for() {
    let host = Host::new();
    let _staying = host.stay(&[]);
    fs::rename(host.at("account/token"), host.at("account/away")).unwrap();
    host.until("it has noticed", || {
        host.read("log").contains("can't be kept up to date")
    });
    assert_eq!(token(&host), "header.payload.signature");
    host.write("account/token", "a.new.token");
    host.until("the new token is there", || token(&host) == "a.new.token");
    host.until("it says so", || {
        host.read("log").contains("up to date again")
    });
}

#[test]
fn two_do_not_look_after_the_same_node() {
    let host = Host::new();
    let _staying = host.stay(&[]);
    let (code, text) = failed(host.command(&[]));
    assert_eq!(code, 5, "{text}");
    assert!(text.contains("another `berth install`"), "{text}");
}
