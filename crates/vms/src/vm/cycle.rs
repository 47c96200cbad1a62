//! Seeing a VM reboot. Promises `Ok` only after a proof that the VM rebooted and is ready again, and not before the floor; and
//! an end within the limit either way. Does not ask for the reboot.
//!
//! The proof: before the reboot was asked for, a marker was written into `cidata`, which is a tmpfs in the VM's image. A VM
//! that is ready and has no marker was rebooted; a connection that failed, for however long, proves nothing. Only where the
//! settings say that `cidata` outlives a reboot, so that the marker stays, a VM that was down for long enough counts as
//! rebooted: nothing that SFTP shows tells such a VM from one whose network was away. A VM that is going down may lose
//! its tmpfs before its SSH server: the marker must be gone at two looks, a while apart.

use std::net::IpAddr;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use super::{VmError, Vms};

/// How long to look for a reboot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CyclePatience {
    /// No VM is given back sooner than this after it was asked, whatever was seen.
    pub floor: Duration,
    /// Rebooted and ready again within this, or the cleanup has failed.
    pub limit: Duration,
    /// Between two looks. A reboot takes seconds.
    pub pause: Duration,
    /// Whether a proof of the reboot is needed. Without it a VM that is up after the floor counts as rebooted.
    pub must_be_seen_down: bool,
    /// How long a VM whose marker is still there must have been down to count as rebooted; `None`: it never does.
    pub down_for: Option<Duration>,
}

impl Default for CyclePatience {
    fn default() -> Self {
        Self {
            floor: Duration::from_secs(5),
            limit: Duration::from_secs(300),
            pause: Duration::from_millis(250),
            must_be_seen_down: true,
            down_for: None,
        }
    }
}

/// Between two looks that both must find the marker gone; never longer than the floor.
const CONFIRM: Duration = Duration::from_secs(2);

/// How a reboot was proved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    /// The marker is gone: `cidata` was made anew.
    MarkerGone,
    /// The marker is still there, and the VM was down for long enough: `cidata` outlives a reboot, user data in it too.
    DownForLong,
    /// The settings ask for none.
    None,
}

/// Watches a VM that was just asked to reboot:
///
/// ```text
///  asked ──► ready, marker there ──► no answer ──► ready, marker gone ──► (floor passed) ──► Ok
///                  │   ▲                 │ └─────► ready, marker there, was down for long ──► Ok
///                  │   └── was down ◄────┤
///                  │       for less      └── limit ──► NotBack
///                  └── limit ──► NotRebooted
/// ```
pub async fn see_reboot(
    vms: &dyn Vms,
    ip: IpAddr,
    marker: &str,
    patience: &CyclePatience,
) -> Result<Proof, VmError> {
    let asked = Instant::now();
    let floor = asked + patience.floor;
    let limit = asked + patience.limit;
    if !patience.must_be_seen_down {
        sleep_until(floor).await;
    }
    // When the marker was first seen to be gone, of an unbroken row of such looks.
    let mut gone: Option<Instant> = None;
    // The first and the last look in a row that got no answer.
    let mut down: Option<(Instant, Instant)> = None;
    // The longest such row that ended with the marker still there.
    let mut longest: Option<Duration> = None;
    let proof = loop {
        let look = Instant::now();
        let found = vms.has_marker(ip, marker).await;
        if !matches!(found, Ok(false)) {
            gone = None;
        }
        let failed = match found {
            Ok(false) => {
                let since = *gone.get_or_insert(look);
                if look >= since + CONFIRM.min(patience.floor) && look > since {
                    break Proof::MarkerGone;
                }
                None
            }
            Ok(true) if !patience.must_be_seen_down => break Proof::None,
            Ok(true) => {
                let was_down = down.take().map(|(first, last)| last - first);
                longest = longest.max(was_down);
                if let (Some(span), Some(enough)) = (was_down, patience.down_for)
                    && span >= enough
                {
                    break Proof::DownForLong;
                }
                if let Some(span) = was_down {
                    tracing::debug!(%ip, ?span, "no answer for a while, but not rebooted");
                }
                None
            }
            // A VM that answers with the wrong key, or refuses the login, is not down.
            Err(error) => {
                down = match error.is_silence() {
                    true => Some((down.map_or(look, |(first, _)| first), Instant::now())),
                    false => None,
                };
                Some(error)
            }
        };
        if Instant::now() >= limit {
            return Err(match failed {
                Some(source) => VmError::NotBack {
                    ip,
                    limit: patience.limit,
                    source: Box::new(source),
                },
                None => VmError::NotRebooted {
                    ip,
                    limit: patience.limit,
                    down: longest,
                },
            });
        }
        sleep(patience.pause).await;
    };
    tracing::debug!(%ip, after = ?asked.elapsed(), ?proof, "VM back");
    sleep_until(floor).await;
    Ok(proof)
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_trait::async_trait;

    use std::sync::Mutex;

    /// What one look finds.
    #[derive(Clone, Copy, PartialEq)]
    enum Look {
        /// Ready, and the marker is there.
        Up,
        Down,
        /// Ready, and the marker is gone.
        Rebooted,
        /// Another machine answers.
        Impostor,
    }
    use Look::{Down, Impostor, Rebooted, Up};

    /// A VM that answers each look as the test wrote it down; the last answer stays.
    struct Scripted(Mutex<Vec<Look>>);

    #[async_trait]
    impl Vms for Scripted {
        async fn connects(&self, _: IpAddr) -> Result<(), VmError> {
            Ok(())
        }
        async fn ready(&self, _: IpAddr) -> Result<(), VmError> {
            Ok(())
        }
        async fn ask_reboot(&self, _: IpAddr, _: &str) -> Result<(), VmError> {
            Ok(())
        }
        async fn has_marker(&self, ip: IpAddr, _: &str) -> Result<bool, VmError> {
            let mut looks = self.0.lock().unwrap();
            let look = if looks.len() > 1 {
                looks.remove(0)
            } else {
                looks[0]
            };
            match look {
                Up => Ok(true),
                Rebooted => Ok(false),
                Down => Err(VmError::Unreachable {
                    ip,
                    port: 22,
                    source: std::io::ErrorKind::ConnectionRefused.into(),
                }),
                Impostor => Err(VmError::UnknownHostKey {
                    ip,
                    fingerprint: "SHA256:x".into(),
                    known: 1,
                    dir: "keys".into(),
                }),
            }
        }
        async fn wipe(&self, _: IpAddr, _: &str) -> Result<(), VmError> {
            Ok(())
        }
        async fn put_user_data(&self, _: IpAddr, _: &[u8]) -> Result<(), VmError> {
            Ok(())
        }
    }

    const PATIENCE: CyclePatience = CyclePatience {
        floor: Duration::from_millis(40),
        limit: Duration::from_millis(120),
        pause: Duration::from_millis(1),
        must_be_seen_down: true,
        down_for: Some(Duration::from_millis(20)),
    };

    /// The outcome and the time it took, which tests hold from below only: a loaded machine may
    /// always take longer.
    async fn watch(looks: &[Look], patience: CyclePatience) -> (Result<Proof, VmError>, Duration) {
        let start = Instant::now();
        let vm = Scripted(Mutex::new(looks.to_vec()));
        let seen = see_reboot(&vm, "10.0.0.1".parse().unwrap(), "nonce", &patience).await;
        (seen, start.elapsed())
    }

    #[tokio::test]
    async fn a_marker_that_is_gone_is_a_reboot_and_not_before_the_floor() {
        for looks in [
            &[Up, Up, Down, Down, Rebooted][..],
            &[Up, Rebooted],
            &[Down, Impostor, Rebooted],
            // Its tmpfs went before its SSH server: that is no reboot yet.
            &[Up, Rebooted, Down, Rebooted],
        ] {
            let (seen, took) = watch(looks, PATIENCE).await;
            assert_eq!(seen.unwrap(), Proof::MarkerGone);
            assert!(took >= PATIENCE.floor, "free after {took:?}");
        }
    }

    #[tokio::test]
    async fn a_vm_that_goes_down_without_its_files_is_not_back() {
        let (seen, _) = watch(&[Up, Rebooted, Down], PATIENCE).await;
        assert!(matches!(seen, Err(VmError::NotBack { .. })), "{seen:?}");
    }

    #[tokio::test]
    async fn a_refused_connection_is_no_reboot() {
        // However often it is refused, as long as it is not down for long.
        let patience = CyclePatience {
            down_for: Some(Duration::from_secs(60)),
            ..PATIENCE
        };
        let (seen, took) = watch(&[Up, Down, Up, Down, Down, Up], patience).await;
        assert!(matches!(seen, Err(VmError::NotRebooted { .. })), "{seen:?}");
        assert!(took >= PATIENCE.limit, "given up after {took:?}");
    }

    #[tokio::test]
    async fn berth_15_8_silence_alone_is_no_reboot_unless_the_settings_say_so() {
        let long = vec![Down; 25].into_iter().chain([Up]).collect::<Vec<_>>();
        let patience = CyclePatience {
            limit: Duration::from_secs(2),
            down_for: CyclePatience::default().down_for,
            ..PATIENCE
        };
        let (seen, _) = watch(&long, patience).await;
        let told = seen.unwrap_err().to_string();
        for text in ["did not answer for", "no tmpfs", "set vm-cleanup-down-for"] {
            assert!(told.contains(text), "{told}");
        }
        let (seen, _) = watch(&[Up], PATIENCE).await;
        let told = seen.unwrap_err().to_string();
        assert!(!told.contains("did not answer"), "{told}");
    }

    #[tokio::test]
    async fn where_the_marker_stays_the_vm_must_be_down_for_long() {
        let long = vec![Down; 100].into_iter().chain([Up]).collect::<Vec<_>>();
        let patience = CyclePatience {
            limit: Duration::from_secs(60),
            ..PATIENCE
        };
        let (seen, took) = watch(&long, patience.clone()).await;
        assert_eq!(seen.unwrap(), Proof::DownForLong);
        assert!(took >= patience.down_for.unwrap(), "after {took:?}");
        // An answer of another machine is no silence: the time begins anew.
        let patience = CyclePatience {
            down_for: Some(Duration::from_secs(60)),
            ..PATIENCE
        };
        let (seen, _) = watch(&[Down, Impostor, Down, Up], patience).await;
        assert!(matches!(seen, Err(VmError::NotRebooted { .. })), "{seen:?}");
    }

    #[tokio::test]
    async fn a_vm_that_never_comes_back_ends_at_the_limit() {
        let (seen, took) = watch(&[Up, Down], PATIENCE).await;
        assert!(matches!(seen, Err(VmError::NotBack { .. })), "{seen:?}");
        assert!(took >= PATIENCE.limit, "given up after {took:?}");
        let (seen, _) = watch(&[Impostor], PATIENCE).await;
        let told = berth_ledger::chain(&seen.unwrap_err());
        assert!(told.contains("shows host key SHA256:x"), "{told}");
    }

    #[tokio::test]
    async fn told_to_look_for_no_proof_the_floor_is_the_wait() {
        let patience = CyclePatience {
            must_be_seen_down: false,
            ..PATIENCE
        };
        let (seen, took) = watch(&[Up], patience.clone()).await;
        assert_eq!(seen.unwrap(), Proof::None);
        assert!(took >= PATIENCE.floor, "free after {took:?}");
        let (seen, _) = watch(&[Down, Down, Up], patience).await;
        seen.unwrap();
    }
}
