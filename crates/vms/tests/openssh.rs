//! The same conversations with OpenSSH's sshd, set up as the VM images are: the user sees a
//! chroot with `cidata` in it, through internal-sftp, and nothing else.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use berth_vms::vm::{
    Access, HostKeyRule, Proof, RebootTiming, SshVms, VmError, Vms, wait_for_reboot,
};

const SSHD: &str = "/usr/sbin/sshd";
const IP: &str = "127.0.0.77";

/// sshd on a directory of its own. Not under /tmp: sshd wants every part of the chroot's path to
/// be writable by root alone.
struct Sshd {
    dir: tempfile::TempDir,
    port: u16,
    child: Option<Child>,
}

impl Sshd {
    fn new() -> Self {
        assert!(
            Path::new(SSHD).exists(),
            "{SSHD} is missing: install openssh-server"
        );
        std::fs::create_dir_all("/run/sshd").expect("sshd's own directory (run as root)");
        let dir = tempfile::Builder::new()
            .prefix("berth-sshd-")
            .tempdir_in("/run")
            .expect("a directory under /run (run as root)");
        let port = std::net::TcpListener::bind((IP, 0))
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let sshd = Self {
            dir,
            port,
            child: None,
        };
        // RSA for the login: the default of the settings is an id_rsa.
        sshd.keygen("id", "rsa");
        sshd.keygen("host_ed25519", "ed25519");
        sshd.keygen("host_rsa", "rsa");
        std::fs::create_dir_all(sshd.path("allowed")).unwrap();
        std::fs::create_dir_all(sshd.path("media/cidata")).unwrap();
        use std::os::unix::fs::PermissionsExt;
        for dir in ["", "media"] {
            let mode = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(sshd.path(dir), mode).unwrap();
        }
        let d = sshd.dir.path().display();
        std::fs::write(
            sshd.path("config"),
            format!(
                "ListenAddress {IP}:{port}\nHostKey {d}/host_ed25519\nHostKey {d}/host_rsa\n\
                 AuthorizedKeysFile {d}/id.pub\nPermitRootLogin prohibit-password\nUsePAM no\n\
                 StrictModes no\nPidFile none\nPasswordAuthentication no\n\
                 Subsystem sftp internal-sftp\nForceCommand internal-sftp\nChrootDirectory {d}/media\n"
            ),
        )
        .unwrap();
        sshd
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn keygen(&self, name: &str, kind: &str) {
        let done = Command::new("ssh-keygen")
            .args(["-q", "-N", "", "-t", kind, "-f"])
            .arg(self.path(name))
            .status()
            .expect("ssh-keygen (install openssh-client)");
        assert!(done.success());
    }

    fn allow(&self, host_key: &str) {
        std::fs::copy(
            self.path(&format!("{host_key}.pub")),
            self.path("allowed/vm.pub"),
        )
        .unwrap();
    }

    fn start(&mut self) {
        let child = Command::new(SSHD)
            .args(["-D", "-f"])
            .arg(self.path("config"))
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        self.child = Some(child);
    }

    fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    fn vms(&self) -> SshVms {
        SshVms::new(Access {
            user: "root".into(),
            private_key: self.path("id"),
            port: self.port,
            timeout: Duration::from_secs(20),
            connect_timeout: Duration::from_secs(2),
            host_keys: HostKeyRule::AllowList(self.path("allowed")),
        })
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        self.stop();
    }
}

#[tokio::test]
async fn openssh_with_a_chroot_serves_the_whole_life_of_a_vm() {
    let ip: IpAddr = IP.parse().unwrap();
    let mut sshd = Sshd::new();
    sshd.allow("host_ed25519");
    sshd.start();
    let vms = sshd.vms();
    while vms.connects(ip).await.is_err() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    vms.ready(ip).await.unwrap();
    // Of several host keys the server shows the one that is on the list.
    sshd.allow("host_rsa");
    vms.ready(ip).await.unwrap();
    sshd.allow("id");
    let error = vms.ready(ip).await.unwrap_err();
    assert!(matches!(error, VmError::UnknownHostKey { .. }), "{error}");
    sshd.allow("host_rsa");

    for data in [b"#cloud-config\n".as_slice(), &[9; 100_000], b"short"] {
        vms.put_user_data(ip, data).await.unwrap();
        assert_eq!(
            std::fs::read(sshd.path("media/cidata/user-data")).unwrap(),
            data
        );
    }
    assert!(!sshd.path("media/cidata/.user-data.part").exists());

    let used = vms.ready(ip).await.unwrap_err();
    assert!(matches!(used, VmError::HasUserData { .. }), "{used}");
    vms.request_reboot(ip, "nonce").await.unwrap();
    let marker = sshd.path("media/cidata/.berth-nonce");
    assert!(marker.exists() && vms.has_marker(ip, "nonce").await.unwrap());
    let file = sshd.path("media/cidata/reboot");
    assert_eq!(std::fs::read(&file).unwrap(), b"reboot");
    let timing = RebootTiming {
        floor: Duration::from_millis(100),
        limit: Duration::from_secs(30),
        pause: Duration::from_millis(50),
        must_be_seen_down: true,
        down_for: Some(Duration::from_secs(60)),
    };
    let reboot = async {
        sshd.stop();
        std::fs::remove_file(&file).unwrap();
        std::fs::remove_file(&marker).unwrap();
        tokio::time::sleep(Duration::from_millis(700)).await;
        sshd.start();
    };
    let (seen, ()) = tokio::join!(wait_for_reboot(&vms, ip, "nonce", &timing), reboot);
    assert_eq!(seen.unwrap(), Proof::MarkerGone);
    vms.wipe(ip, "nonce").await.unwrap();
    vms.ready(ip).await.unwrap();
}
