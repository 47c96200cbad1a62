//! Jittered exponential backoff with a deadline, and how it is set.
//!
//! Guarantees: never sleeps past the deadline, never retries more often than the policy says. The jitter is full
//! between half and the whole of a step: writers that collided once do not collide again in step.

use std::time::{Duration, Instant};

use rand::RngExt;
use serde::{Deserialize, Serialize};

/// Every knob of a retried operation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RetryPolicy {
    /// The whole operation, all tries included.
    #[serde(with = "millis", rename = "timeout_ms")]
    pub timeout: Duration,
    /// Tries after the first one.
    pub retries: u32,
    /// The first pause.
    #[serde(with = "millis", rename = "base_interval_ms")]
    pub base: Duration,
    /// What each further pause is multiplied by.
    pub factor: f64,
    /// The longest pause.
    #[serde(with = "millis", rename = "max_interval_ms")]
    pub max: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(30),
            retries: 50,
            base: Duration::from_millis(10),
            factor: 1.5,
            max: Duration::from_secs(2),
        }
    }
}

impl RetryPolicy {
    pub fn start(&self) -> Backoff {
        Backoff {
            policy: *self,
            deadline: Instant::now() + self.timeout,
            tries: 0,
        }
    }

    /// Every value that can't work, named.
    pub fn validate(&self) -> Result<(), String> {
        if self.timeout.is_zero() {
            return Err("timeout_ms: 0 leaves no time for a first try; give at least 1".into());
        }
        if !(self.factor >= 1.0 && self.factor.is_finite()) {
            return Err(format!(
                "factor: {} would shorten the pauses; give 1 or more",
                self.factor
            ));
        }
        if self.max < self.base {
            return Err(format!(
                "max_interval_ms: {} is below base_interval_ms {}; give at least that",
                self.max.as_millis(),
                self.base.as_millis()
            ));
        }
        Ok(())
    }
}

/// One operation's tries.
#[derive(Clone, Debug)]
pub struct Backoff {
    policy: RetryPolicy,
    deadline: Instant,
    tries: u32,
}

impl Backoff {
    /// The pause before the next try; `None` when tries or time are used up. A server that says
    /// when to come back is obeyed, within the deadline.
    pub fn pause(&mut self, retry_after: Option<Duration>) -> Option<Duration> {
        if self.tries >= self.policy.retries {
            return None;
        }
        let step = self.policy.base.as_secs_f64() * self.policy.factor.powf(f64::from(self.tries));
        let step = step.min(self.policy.max.as_secs_f64());
        let jitter = rand::rng().random_range(0.5..=1.0);
        let pause = Duration::from_secs_f64(step * jitter).max(retry_after.unwrap_or_default());
        self.tries += 1;
        (Instant::now() + pause < self.deadline).then_some(pause)
    }

    pub const fn tries(&self) -> u32 {
        self.tries
    }

    pub fn remaining(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }
}

pub(crate) mod millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(value: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(u64::try_from(value.as_millis()).unwrap_or(u64::MAX))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        u64::deserialize(deserializer).map(Duration::from_millis)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_stay_under_the_maximum_and_end() {
        let policy = RetryPolicy {
            retries: 20,
            ..RetryPolicy::default()
        };
        let mut backoff = policy.start();
        let pauses: Vec<Duration> = std::iter::from_fn(|| backoff.pause(None)).collect();
        assert_eq!(pauses.len(), 20);
        assert!(pauses[0] <= policy.base && pauses[0] >= policy.base / 2);
        assert!(pauses.iter().all(|pause| *pause <= policy.max));
        assert!(pauses[19] > pauses[0]);
    }

    #[test]
    fn a_deadline_ends_the_tries_and_a_server_is_obeyed() {
        let policy = RetryPolicy {
            timeout: Duration::from_millis(500),
            ..RetryPolicy::default()
        };
        assert_eq!(policy.start().pause(Some(Duration::from_secs(1))), None);
        let pause = policy
            .start()
            .pause(Some(Duration::from_millis(200)))
            .unwrap();
        assert!(pause >= Duration::from_millis(200));
    }

    #[test]
    fn settings_that_can_not_work_are_named() {
        let bad = [
            (
                RetryPolicy {
                    timeout: Duration::ZERO,
                    ..RetryPolicy::default()
                },
                "timeout_ms",
            ),
            (
                RetryPolicy {
                    factor: 0.5,
                    ..RetryPolicy::default()
                },
                "factor",
            ),
            (
                RetryPolicy {
                    max: Duration::ZERO,
                    ..RetryPolicy::default()
                },
                "max_interval_ms",
            ),
        ];
        for (policy, field) in bad {
            assert!(policy.validate().unwrap_err().starts_with(field));
        }
    }
}
