//! Seeing a VM reboot. Promises `Ok` only after the VM was down, then up and ready, and not
//! before the floor; and an end within the limit either way. Does not ask for the reboot.

use std::net::IpAddr;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use super::{VmError, Vms};

/// How long to look for a reboot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CyclePatience {
    /// No VM is given back sooner than this after it was asked, whatever was seen.
    pub floor: Duration,
    /// Down and up again within this, or the cleanup has failed.
    pub limit: Duration,
    /// Between two looks. A reboot takes seconds; this only has to be shorter than the time
    /// that the SSH port is closed.
    pub pause: Duration,
    /// Whether the VM must be seen down. Without it a VM that is up after the floor counts as
    /// rebooted, which is what a pool gets whose VMs come back faster than can be seen.
    pub must_be_seen_down: bool,
}

impl Default for CyclePatience {
    fn default() -> Self {
        Self {
            floor: Duration::from_secs(5),
            limit: Duration::from_secs(300),
            pause: Duration::from_millis(250),
            must_be_seen_down: true,
        }
    }
}

/// Watches a VM that was just asked to reboot:
///
/// ```text
///  asked ──► still up ──► down ──► listens ──► ready ──► (floor passed) ──► Ok
///               │           └──────────┴── limit ──► NotBack
///               └── limit ──► NotSeenDown
/// ```
pub async fn see_reboot(
    vms: &dyn Vms,
    ip: IpAddr,
    patience: &CyclePatience,
) -> Result<(), VmError> {
    let asked = Instant::now();
    let floor = asked + patience.floor;
    let limit = asked + patience.limit;

    if patience.must_be_seen_down {
        while vms.connects(ip).await.is_ok() {
            if Instant::now() >= limit {
                return Err(VmError::NotSeenDown {
                    ip,
                    limit: patience.limit,
                });
            }
            sleep(patience.pause).await;
        }
        tracing::debug!(%ip, after = ?asked.elapsed(), "VM seen down");
    } else {
        sleep_until(floor).await;
    }
    loop {
        let not_ready = match vms.ready(ip).await {
            Ok(()) => break,
            Err(error) => error,
        };
        if Instant::now() >= limit {
            return Err(VmError::NotBack {
                ip,
                limit: patience.limit,
                source: Box::new(not_ready),
            });
        }
        sleep(patience.pause).await;
    }
    tracing::debug!(%ip, after = ?asked.elapsed(), "VM back");
    sleep_until(floor).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_trait::async_trait;

    use std::sync::Mutex;

    /// A VM that answers each look as the test wrote it down; the last answer stays.
    struct Scripted(Mutex<Vec<bool>>);

    #[async_trait]
    impl Vms for Scripted {
        async fn connects(&self, ip: IpAddr) -> Result<(), VmError> {
            let mut looks = self.0.lock().unwrap();
            let up = if looks.len() > 1 {
                looks.remove(0)
            } else {
                looks[0]
            };
            up.then_some(()).ok_or_else(|| VmError::Unreachable {
                ip,
                port: 22,
                source: std::io::ErrorKind::ConnectionRefused.into(),
            })
        }
        async fn ready(&self, ip: IpAddr) -> Result<(), VmError> {
            self.connects(ip).await
        }
        async fn ask_reboot(&self, _: IpAddr) -> Result<(), VmError> {
            Ok(())
        }
        async fn put_user_data(&self, _: IpAddr, _: &[u8]) -> Result<(), VmError> {
            Ok(())
        }
    }

    const UP: bool = true;
    const DOWN: bool = false;
    const PATIENCE: CyclePatience = CyclePatience {
        floor: Duration::from_millis(40),
        limit: Duration::from_millis(120),
        pause: Duration::from_millis(1),
        must_be_seen_down: true,
    };

    /// The outcome and the time it took, which tests hold from below only: a loaded machine may
    /// always take longer.
    async fn watch(looks: &[bool], patience: CyclePatience) -> (Result<(), VmError>, Duration) {
        let start = Instant::now();
        let vm = Scripted(Mutex::new(looks.to_vec()));
        let seen = see_reboot(&vm, "10.0.0.1".parse().unwrap(), &patience).await;
        if seen.is_ok() {
            assert_eq!(
                vm.0.lock().unwrap().len(),
                1,
                "it looked until the VM was up"
            );
        }
        (seen, start.elapsed())
    }

    #[tokio::test]
    async fn down_then_up_is_a_reboot_and_not_before_the_floor() {
        let (seen, took) = watch(&[UP, UP, DOWN, DOWN, DOWN, UP], PATIENCE).await;
        seen.unwrap();
        assert!(took >= PATIENCE.floor, "free after {took:?}");
    }

    #[tokio::test]
    async fn a_vm_that_stays_up_was_not_rebooted() {
        let (seen, took) = watch(&[UP], PATIENCE).await;
        assert!(matches!(seen, Err(VmError::NotSeenDown { .. })), "{seen:?}");
        assert!(took >= PATIENCE.limit, "given up after {took:?}");
    }

    #[tokio::test]
    async fn a_vm_that_never_comes_back_ends_at_the_limit() {
        let (seen, took) = watch(&[UP, DOWN], PATIENCE).await;
        assert!(matches!(seen, Err(VmError::NotBack { .. })), "{seen:?}");
        assert!(took >= PATIENCE.limit, "given up after {took:?}");
    }

    #[tokio::test]
    async fn told_not_to_look_for_down_the_floor_is_the_wait() {
        let patience = CyclePatience {
            must_be_seen_down: false,
            ..PATIENCE
        };
        let (seen, took) = watch(&[UP], patience.clone()).await;
        seen.unwrap();
        assert!(took >= PATIENCE.floor, "free after {took:?}");
        let (seen, _) = watch(&[DOWN, DOWN, UP], patience).await;
        seen.unwrap();
    }
}
