//! Waits until a VM has rebooted. Guarantees `Ok` only after proof that the VM rebooted and is ready again, and not
//! before the floor; ends within the limit either way. Does not request the reboot.
//!
//! The proof: before the reboot was requested, a marker was written into `cidata`, which is a tmpfs in the VM's image.
//! A VM that is ready and has no marker was rebooted; a connection that failed, for however long, proves nothing. Only
//! where the settings say that `cidata` outlives a reboot, so that the marker stays, a VM that was down for long enough
//! counts as rebooted: SFTP shows no difference between such a VM and one that was cut off from the network. A VM that
//! is going down may lose its tmpfs before its SSH server: the marker must be gone in two reads, a while apart.

use std::net::IpAddr;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use super::{VmError, Vms};

/// How long to wait for a reboot, and for which proof.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RebootTiming {
    /// No VM is released sooner than this after the request, regardless of what was observed.
    pub floor: Duration,
    /// The VM must be rebooted and ready within this, or the cleanup has failed.
    pub limit: Duration,
    /// Between two reads of the marker. A reboot takes seconds.
    pub pause: Duration,
    /// Whether a proof of the reboot is needed. Without it a VM that is up after the floor counts as rebooted.
    pub must_be_seen_down: bool,
    /// How long a VM whose marker is still there must have been down to count as rebooted; `None`: it never does.
    pub down_for: Option<Duration>,
}

impl Default for RebootTiming {
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

/// Between two reads that must both find the marker gone; never longer than the floor.
const CONFIRM: Duration = Duration::from_secs(2);

/// How a reboot was proved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    /// The marker is gone: `cidata` is new.
    MarkerGone,
    /// The marker is still there, and the VM was down for long enough: `cidata` outlives a reboot, user data in it too.
    DownForLong,
    /// The settings require none.
    None,
}

/// What the last reads of the marker found.
#[derive(Debug, Clone, Copy)]
enum Seen {
    /// The VM answers: with the marker, with another machine's host key, or by refusing the login.
    Up,
    /// No answer, from the start of the first read of the row to the end of the last one.
    Down { first: Instant, last: Instant },
    /// Ready, and the marker is gone.
    Gone { since: Instant },
}

/// A VM on its way through a reboot; pure.
///
/// ```text
///  requested ──► up ──► down ──► gone ──► still gone after CONFIRM: rebooted
///                 ▲      │ └───► marker there, was down for long enough: rebooted
///                 └──────┘ marker there, was down for less
/// ```
struct Watch<'a> {
    timing: &'a RebootTiming,
    seen: Seen,
    /// The longest time without an answer that ended with the marker still there.
    longest_down: Option<Duration>,
}

impl Watch<'_> {
    /// Adds one read of the marker, from `started` to `ended`. Returns the proof, if this read completes one.
    fn observe(
        &mut self,
        found: &Result<bool, VmError>,
        started: Instant,
        ended: Instant,
    ) -> Option<Proof> {
        self.seen = match (found, self.seen) {
            (Ok(false), Seen::Gone { since })
                if started > since && started >= since + CONFIRM.min(self.timing.floor) =>
            {
                return Some(Proof::MarkerGone);
            }
            (Ok(false), gone @ Seen::Gone { .. }) => gone,
            (Ok(false), _) => Seen::Gone { since: started },
            (Ok(true), _) if !self.timing.must_be_seen_down => return Some(Proof::None),
            (Ok(true), Seen::Down { first, last }) => {
                let down = last - first;
                self.longest_down = self.longest_down.max(Some(down));
                if self.timing.down_for.is_some_and(|enough| down >= enough) {
                    return Some(Proof::DownForLong);
                }
                Seen::Up
            }
            (Err(error), before) if error.is_silence() => {
                let first = match before {
                    Seen::Down { first, .. } => first,
                    Seen::Up | Seen::Gone { .. } => started,
                };
                Seen::Down { first, last: ended }
            }
            (Ok(true) | Err(_), _) => Seen::Up,
        };
        None
    }

    fn failed(self, ip: IpAddr, found: Result<bool, VmError>) -> VmError {
        let limit = self.timing.limit;
        match found {
            Err(source) => VmError::NotBack {
                ip,
                limit,
                source: Box::new(source),
            },
            Ok(_) => VmError::NotRebooted {
                ip,
                limit,
                down: self.longest_down,
            },
        }
    }
}

/// Waits for the reboot of a VM that was just requested.
pub async fn wait_for_reboot(
    vms: &dyn Vms,
    ip: IpAddr,
    marker: &str,
    timing: &RebootTiming,
) -> Result<Proof, VmError> {
    let requested = Instant::now();
    let floor = requested + timing.floor;
    let limit = requested + timing.limit;
    if !timing.must_be_seen_down {
        sleep_until(floor).await;
    }
    let mut watch = Watch {
        timing,
        seen: Seen::Up,
        longest_down: None,
    };
    let proof = loop {
        let started = Instant::now();
        let found = vms.has_marker(ip, marker).await;
        let ended = Instant::now();
        if let Some(proof) = watch.observe(&found, started, ended) {
            break proof;
        }
        if ended >= limit {
            return Err(watch.failed(ip, found));
        }
        sleep(timing.pause).await;
    };
    tracing::debug!(%ip, after = ?requested.elapsed(), ?proof, "VM rebooted");
    sleep_until(floor).await;
    Ok(proof)
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_trait::async_trait;

    use std::sync::Mutex;

    /// What one read of the marker finds.
    #[derive(Clone, Copy, PartialEq)]
    enum Read {
        /// Ready, and the marker is there.
        Up,
        Down,
        /// Ready, and the marker is gone.
        Rebooted,
        /// Another machine answers.
        Impostor,
    }
    use Read::{Down, Impostor, Rebooted, Up};

    /// A VM that answers each read as scripted; the last answer repeats.
    struct Scripted(Mutex<Vec<Read>>);

    #[async_trait]
    impl Vms for Scripted {
        async fn connects(&self, _: IpAddr) -> Result<(), VmError> {
            Ok(())
        }
        async fn ready(&self, _: IpAddr) -> Result<(), VmError> {
            Ok(())
        }
        async fn request_reboot(&self, _: IpAddr, _: &str) -> Result<(), VmError> {
            Ok(())
        }
        async fn has_marker(&self, ip: IpAddr, _: &str) -> Result<bool, VmError> {
            let mut reads = self.0.lock().unwrap();
            let read = if reads.len() > 1 {
                reads.remove(0)
            } else {
                reads[0]
            };
            match read {
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

    const TIMING: RebootTiming = RebootTiming {
        floor: Duration::from_millis(40),
        limit: Duration::from_millis(120),
        pause: Duration::from_millis(1),
        must_be_seen_down: true,
        down_for: Some(Duration::from_millis(20)),
    };

    /// The outcome and the time it took.
    async fn watch(reads: &[Read], timing: RebootTiming) -> (Result<Proof, VmError>, Duration) {
        let start = Instant::now();
        let vm = Scripted(Mutex::new(reads.to_vec()));
        let seen = wait_for_reboot(&vm, "10.0.0.1".parse().unwrap(), "nonce", &timing).await;
        (seen, start.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_marker_that_is_gone_is_a_reboot_and_not_before_the_floor() {
        for reads in [
            &[Up, Up, Down, Down, Rebooted][..],
            &[Up, Rebooted],
            &[Down, Impostor, Rebooted],
            // Its tmpfs was gone before its SSH server: not a reboot yet.
            &[Up, Rebooted, Down, Rebooted],
        ] {
            let (seen, took) = watch(reads, TIMING).await;
            assert_eq!(seen.unwrap(), Proof::MarkerGone);
            assert!(took >= TIMING.floor, "free after {took:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_vm_that_goes_down_without_its_files_is_not_back() {
        let (seen, _) = watch(&[Up, Rebooted, Down], TIMING).await;
        assert!(matches!(seen, Err(VmError::NotBack { .. })), "{seen:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_connection_is_no_reboot() {
        // However often it is refused, as long as it is not down for long.
        let timing = RebootTiming {
            down_for: Some(Duration::from_secs(60)),
            ..TIMING
        };
        let (seen, took) = watch(&[Up, Down, Up, Down, Down, Up], timing).await;
        assert!(matches!(seen, Err(VmError::NotRebooted { .. })), "{seen:?}");
        assert!(took >= TIMING.limit, "failed after {took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn berth_15_8_silence_alone_is_no_reboot_unless_the_settings_say_so() {
        let long = vec![Down; 25].into_iter().chain([Up]).collect::<Vec<_>>();
        let timing = RebootTiming {
            limit: Duration::from_secs(2),
            down_for: RebootTiming::default().down_for,
            ..TIMING
        };
        let (seen, _) = watch(&long, timing).await;
        let message = seen.unwrap_err().to_string();
        for text in ["did not answer for", "no tmpfs", "set vm-cleanup-down-for"] {
            assert!(message.contains(text), "{message}");
        }
        let (seen, _) = watch(&[Up], TIMING).await;
        let message = seen.unwrap_err().to_string();
        assert!(!message.contains("did not answer"), "{message}");
    }

    #[tokio::test(start_paused = true)]
    async fn where_the_marker_stays_the_vm_must_be_down_for_long() {
        let long = vec![Down; 100].into_iter().chain([Up]).collect::<Vec<_>>();
        let timing = RebootTiming {
            limit: Duration::from_secs(60),
            ..TIMING
        };
        let (seen, took) = watch(&long, timing.clone()).await;
        assert_eq!(seen.unwrap(), Proof::DownForLong);
        assert!(took >= timing.down_for.unwrap(), "after {took:?}");
        // An answer of another machine interrupts the silence: the time starts again.
        let timing = RebootTiming {
            down_for: Some(Duration::from_secs(60)),
            ..TIMING
        };
        let (seen, _) = watch(&[Down, Impostor, Down, Up], timing).await;
        assert!(matches!(seen, Err(VmError::NotRebooted { .. })), "{seen:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_vm_that_never_comes_back_ends_at_the_limit() {
        let (seen, took) = watch(&[Up, Down], TIMING).await;
        assert!(matches!(seen, Err(VmError::NotBack { .. })), "{seen:?}");
        assert!(took >= TIMING.limit, "failed after {took:?}");
        let (seen, _) = watch(&[Impostor], TIMING).await;
        let message = berth_ledger::chain(&seen.unwrap_err());
        assert!(message.contains("shows host key SHA256:x"), "{message}");
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_required_proof_the_floor_is_the_wait() {
        let timing = RebootTiming {
            must_be_seen_down: false,
            ..TIMING
        };
        let (seen, took) = watch(&[Up], timing.clone()).await;
        assert_eq!(seen.unwrap(), Proof::None);
        assert!(took >= TIMING.floor, "free after {took:?}");
        let (seen, _) = watch(&[Down, Down, Up], timing).await;
        seen.unwrap();
    }
}
