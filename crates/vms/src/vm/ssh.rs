//! VMs over SSH and SFTP. Guarantees one bounded session per request, a host key checked before anything is sent, and
//! no secret in a log. Does not keep connections: a VM reboots between two pods.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use russh::Disconnect;
use russh::client::{self, Handle};
use russh::keys::{PrivateKey, PrivateKeyWithHashAlg, PublicKeyOrCertificate, decode_secret_key};
use russh_sftp::client::error::Error as SftpError;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::hostkeys::fingerprint;
use super::sftp::Sftp;
use super::{AllowList, HostKeyRule, REBOOT, USER_DATA, VmError, Vms, marker_path};

/// How to log in to the VMs of a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    pub user: String,
    /// Read at each connection, so that a rotated key needs no restart.
    pub private_key: PathBuf,
    pub port: u16,
    /// For one whole session.
    pub timeout: Duration,
    /// For the TCP connection alone: a dead VM is passed over after this.
    pub connect_timeout: Duration,
    pub host_keys: HostKeyRule,
}

/// The VMs behind [`Access`].
#[derive(Debug, Clone)]
pub struct SshVms {
    access: Access,
}

type Session = Handle<KeyCheck>;

impl SshVms {
    pub fn new(access: Access) -> Self {
        Self { access }
    }

    /// Reads the files that a connection needs, so that a wrong path shows at start and not at the first pod.
    pub async fn check_access(&self) -> Result<(), VmError> {
        self.allowed()?;
        berth_listen::warn_if_readable_by_others("ssh-priv-key", &self.access.private_key);
        self.private_key().await.map(|_| ())
    }

    fn allowed(&self) -> Result<Option<AllowList>, VmError> {
        match &self.access.host_keys {
            HostKeyRule::AllowList(dir) => AllowList::read(dir).map(Some),
            HostKeyRule::AcceptAny => Ok(None),
            HostKeyRule::Unset => Err(VmError::NoAllowList),
        }
    }

    async fn private_key(&self) -> Result<PrivateKey, VmError> {
        let path = &self.access.private_key;
        let refuse = |source| VmError::PrivateKey {
            path: path.clone(),
            source,
        };
        let text = tokio::fs::read_to_string(path)
            .await
            .map_err(|e| refuse(e.into()))?;
        decode_secret_key(&text, None).map_err(refuse)
    }

    async fn tcp(&self, ip: IpAddr) -> Result<TcpStream, VmError> {
        let port = self.access.port;
        let stream = timeout(self.access.connect_timeout, TcpStream::connect((ip, port)))
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        stream.map_err(|source| VmError::Unreachable { ip, port, source })
    }

    /// A logged-in session. The host key is checked within the handshake, before the login.
    async fn session(&self, ip: IpAddr) -> Result<Session, VmError> {
        let allowed = self.allowed()?;
        let key = Arc::new(self.private_key().await?);
        let stream = self.tcp(ip).await?;
        let ssh = |what| move |source| VmError::Ssh { ip, what, source };

        let mut config = client::Config {
            inactivity_timeout: Some(self.access.timeout),
            nodelay: true,
            ..Default::default()
        };
        let known = allowed.as_ref().map_or(0, AllowList::len);
        if let Some(list) = &allowed {
            config.preferred.key = list.prefer(&config.preferred.key).into();
        }
        let refused = Arc::new(OnceLock::new());
        let check = KeyCheck {
            allowed,
            refused: refused.clone(),
        };
        let connected = client::connect_stream(Arc::new(config), stream, check).await;
        let mut session =
            connected.map_err(|source| match (refused.get(), &self.access.host_keys) {
                (Some(print), HostKeyRule::AllowList(dir)) => VmError::UnknownHostKey {
                    ip,
                    fingerprint: String::clone(print),
                    known,
                    dir: dir.clone(),
                },
                _ => ssh("shaking hands")(source),
            })?;

        let hash = if key.algorithm().is_rsa() {
            session
                .best_supported_rsa_hash()
                .await
                .map_err(ssh("logging in"))?
                .flatten()
        } else {
            None
        };
        let login = session
            .authenticate_publickey(&self.access.user, PrivateKeyWithHashAlg::new(key, hash))
            .await
            .map_err(ssh("logging in"))?;
        if !login.success() {
            return Err(VmError::LoginRefused {
                ip,
                user: self.access.user.clone(),
            });
        }
        Ok(session)
    }

    async fn sftp(&self, ip: IpAddr) -> Result<Conversation, VmError> {
        let ssh = |what| move |source| VmError::Ssh { ip, what, source };
        let session = self.session(ip).await?;
        let channel = session
            .channel_open_session()
            .await
            .map_err(ssh("opening a channel"))?;
        channel
            .request_subsystem(true, "sftp")
            .await
            .map_err(ssh("asking for sftp"))?;
        let sftp = Sftp::open(channel.into_stream(), self.access.timeout.as_secs())
            .await
            .map_err(|source| VmError::Sftp {
                ip,
                path: "cidata".into(),
                source,
            })?;
        Ok(Conversation { ip, session, sftp })
    }

    /// Bounds the whole session: a VM that accepts a connection and then hangs must not delay the pool.
    async fn bounded<T>(
        &self,
        ip: IpAddr,
        what: &'static str,
        talk: impl Future<Output = Result<T, VmError>>,
    ) -> Result<T, VmError> {
        let limit = self.access.timeout;
        timeout(limit, talk)
            .await
            .unwrap_or(Err(VmError::TimedOut { ip, what, limit }))
    }
}

/// A logged-in session with SFTP in it.
struct Conversation {
    ip: IpAddr,
    session: Session,
    sftp: Sftp,
}

impl Conversation {
    /// The error of a step, with its file.
    fn of_file<T>(&self, path: &str, step: Result<T, SftpError>) -> Result<T, VmError> {
        step.map_err(|source| VmError::Sftp {
            ip: self.ip,
            path: path.into(),
            source,
        })
    }

    async fn exists(&self, path: &str) -> Result<bool, VmError> {
        self.of_file(path, self.sftp.exists(path).await)
    }

    /// Closes the session, so that the VM's log shows no broken connection. Nothing depends on it.
    async fn leave(self) {
        let end = Disconnect::ByApplication;
        let _ = self.session.disconnect(end, "", "en").await;
    }
}

#[async_trait]
impl Vms for SshVms {
    async fn connects(&self, ip: IpAddr) -> Result<(), VmError> {
        self.tcp(ip).await.map(|_| ())
    }

    async fn ready(&self, ip: IpAddr) -> Result<(), VmError> {
        self.bounded(ip, "the readiness check", async {
            let vm = self.sftp(ip).await?;
            let used = vm.exists(USER_DATA).await?;
            vm.leave().await;
            match used {
                true => Err(VmError::HasUserData { ip }),
                false => Ok(()),
            }
        })
        .await
    }

    async fn request_reboot(&self, ip: IpAddr, marker: &str) -> Result<(), VmError> {
        self.bounded(ip, "asking for a reboot", async {
            let vm = self.sftp(ip).await?;
            let path = marker_path(marker);
            vm.of_file(&path, vm.sftp.put_whole(&path, b"").await)?;
            if !vm.exists(&path).await? {
                return Err(VmError::NoMarker { ip, path });
            }
            vm.of_file(REBOOT, vm.sftp.touch_off(REBOOT, b"reboot").await)?;
            vm.leave().await;
            Ok(())
        })
        .await
    }

    async fn has_marker(&self, ip: IpAddr, marker: &str) -> Result<bool, VmError> {
        self.bounded(ip, "checking for the marker", async {
            let vm = self.sftp(ip).await?;
            let found = vm.exists(&marker_path(marker)).await?;
            vm.leave().await;
            Ok(found)
        })
        .await
    }

    async fn wipe(&self, ip: IpAddr, marker: &str) -> Result<(), VmError> {
        self.bounded(ip, "removing user data", async {
            let vm = self.sftp(ip).await?;
            for path in [USER_DATA, REBOOT, &marker_path(marker)] {
                vm.of_file(path, vm.sftp.remove(path).await)?;
            }
            vm.leave().await;
            Ok(())
        })
        .await
    }

    async fn put_user_data(&self, ip: IpAddr, data: &[u8]) -> Result<(), VmError> {
        self.bounded(ip, "the upload of user data", async {
            let vm = self.sftp(ip).await?;
            vm.of_file(USER_DATA, vm.sftp.put_whole(USER_DATA, data).await)?;
            vm.leave().await;
            Ok(())
        })
        .await
    }
}

/// Decides on the key that the VM shows, and remembers the one it refused for the message.
struct KeyCheck {
    allowed: Option<AllowList>,
    refused: Arc<OnceLock<String>>,
}

impl client::Handler for KeyCheck {
    type Error = russh::Error;

    async fn check_server_key(
        &mut self,
        shown: &PublicKeyOrCertificate,
    ) -> Result<bool, russh::Error> {
        let key = shown.public_key();
        let allowed = self.allowed.as_ref().is_none_or(|list| list.allows(&key));
        if !allowed {
            let _ = self.refused.set(fingerprint(&key));
        }
        Ok(allowed)
    }
}
