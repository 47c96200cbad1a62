//! The real installer of whereabouts v0.9.4, run in a root of its own, and ours: the same node, the same files.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod host;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;

use berth_testkit::{Whereabouts, isolated};
use host::{Host, OWN, succeeded};
use serde_json::Value;

const ACCOUNT: &str = "var/run/secrets/kubernetes.io/serviceaccount";

/// A container's root with whereabouts' scripts in it, and the host's directories where its manifest mounts them.
fn container() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let at = |path: &str| root.path().join(path);
    for dir in [
        "bin",
        "host/opt/cni/bin",
        "host/etc/cni/net.d",
        "host/srv/plugins",
        "host/srv/networks",
        ACCOUNT,
    ] {
        fs::create_dir_all(at(dir)).unwrap();
    }
    fs::copy("/bin/busybox", at("bin/busybox")).unwrap();
    let applets = Command::new("/bin/busybox").arg("--list").output().unwrap();
    for applet in String::from_utf8(applets.stdout).unwrap().lines() {
        if applet != "busybox" {
            symlink("busybox", at("bin").join(applet)).unwrap();
        }
    }
    let scripts = Whereabouts::sources().unwrap().join("script");
    for script in ["install-cni.sh", "lib.sh"] {
        fs::copy(scripts.join(script), at(script)).unwrap();
    }
    fs::write(at("whereabouts"), "theirs").unwrap();
    root
}

/// Settings of a node, and what they are in both installers' environment.
struct Case {
    name: &'static str,
    env: &'static [(&'static str, &'static str)],
    token: &'static str,
    /// Where the files go, below the host's root.
    own: &'static str,
}

const CASES: &[Case] = &[
    Case {
        name: "as the manifest has it",
        env: &[
            ("NODENAME", "node-1.example"),
            ("WHEREABOUTS_NAMESPACE", "kube-system"),
            ("KUBERNETES_SERVICE_HOST", "10.96.0.1"),
            ("KUBERNETES_SERVICE_PORT", "443"),
        ],
        token: "header.payload.signature",
        own: OWN,
    },
    Case {
        name: "IPv6, another protocol, port, mode, schedule and namespace; a token with a newline",
        env: &[
            ("NODENAME", "n"),
            ("WHEREABOUTS_NAMESPACE", "networking"),
            ("KUBERNETES_SERVICE_HOST", "fd00:10:96::1"),
            ("KUBERNETES_SERVICE_PORT", "6443"),
            ("KUBERNETES_SERVICE_PROTOCOL", "http"),
            ("KUBECONFIG_MODE", "640"),
            ("WHEREABOUTS_RECONCILER_CRON", "*/5 * * * *"),
        ],
        token: "header.payload.signature\n",
        own: OWN,
    },
    Case {
        name: "no check of TLS, no node name",
        env: &[
            ("WHEREABOUTS_NAMESPACE", "kube-system"),
            ("KUBERNETES_SERVICE_HOST", "api.example"),
            ("KUBERNETES_SERVICE_PORT", "443"),
            ("SKIP_TLS_VERIFY", "true"),
        ],
        token: "header.payload.signature",
        own: OWN,
    },
    Case {
        name: "directories of another distribution",
        env: &[
            ("NODENAME", "n"),
            ("WHEREABOUTS_NAMESPACE", "kube-system"),
            ("KUBERNETES_SERVICE_HOST", "10.96.0.1"),
            ("KUBERNETES_SERVICE_PORT", "443"),
            ("CNI_CONF_DIR", "/host/srv/networks"),
            ("CNI_BIN_DIR", "/host/srv/plugins/"),
        ],
        token: "header.payload.signature",
        own: "srv/networks/whereabouts.d",
    },
];

#[test]
fn both_installers_write_the_same() {
    // More than a line of base64, so that its line breaks would show.
    let authority = "-----BEGIN CERTIFICATE-----\n".repeat(20);
    for case in CASES {
        let theirs = container();
        let account = theirs.path().join(ACCOUNT);
        fs::write(account.join("token"), case.token).unwrap();
        fs::write(account.join("ca.crt"), &authority).unwrap();
        let output = isolated(Command::new("chroot"))
            .arg(theirs.path())
            .args(["/bin/sh", "/install-cni.sh"])
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("SLEEP", "false")
            .envs(case.env.iter().copied())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}: {output:?}", case.name);

        let ours = Host::new();
        for dir in ["srv/plugins", "srv/networks"] {
            fs::create_dir_all(ours.at(dir)).unwrap();
        }
        ours.write("account/token", case.token);
        ours.write("account/ca.crt", &authority);
        let mut command = ours.command(&["--once", "--output=json"]);
        command.env_remove("NODENAME");
        for (name, value) in case.env {
            // The same directories, seen from a host root of our own.
            match value.strip_prefix("/host") {
                Some(rest) => command.env(name, format!("{}{rest}", ours.root().display())),
                None => command.env(name, value),
            };
        }
        succeeded(command);

        let dir = theirs.path().join("host").join(case.own);
        let mut names: Vec<String> = fs::read_dir(&dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(
            names.contains(&"nodename".to_owned()),
            ours.at(case.own).join("nodename").exists()
        );
        for name in names {
            let text = fs::read_to_string(dir.join(&name)).unwrap();
            let path = format!("{}/{name}", case.own);
            match name.as_str() {
                "nodename" => assert_eq!(ours.read(&path), text, "{}", case.name),
                _ => assert_eq!(
                    yaml(&ours.read(&path)),
                    yaml(&text),
                    "{}: {name}",
                    case.name
                ),
            }
            let mode = fs::metadata(dir.join(&name)).unwrap().permissions().mode();
            assert_eq!(ours.mode(&path), mode & 0o7777, "{}: {name}", case.name);
        }
    }
}

/// JSON is YAML too.
fn yaml(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}
