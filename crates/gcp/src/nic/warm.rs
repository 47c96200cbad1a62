//! The warm pool: addresses that are attached before a pod asks for them, so that an ADD needs no cloud call. Pure.
//!
//! ```text
//!  reserved ─► attaching ─► warm ─► assigned
//!                            ▲          │ returned
//!                            └─ cooling ┘        surplus: detaching ─► (gone)
//! ```
//! Off by default: both targets are zero, and every address goes straight from its pod to the detach. Each address is the
//! node's in the pool before it is attached, and the reconciler records the intent before its call (I9).

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use thiserror::Error;

/// How many attached addresses are kept without a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Targets {
    min: usize,
    max: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "warm targets: min {min} is greater than max {max}, or max is more than the {limit} alias ranges of a NIC"
)]
pub struct InvalidTargets {
    min: usize,
    max: usize,
    limit: usize,
}

impl Targets {
    /// Fewer than `min`: more are attached. More than `max`: the surplus is detached.
    pub fn new(min: usize, max: usize) -> Result<Targets, InvalidTargets> {
        let limit = super::MAX_ALIASES;
        if min > max || max > limit {
            return Err(InvalidTargets { min, max, limit });
        }
        Ok(Targets { min, max })
    }

    pub fn is_off(self) -> bool {
        self.max == 0
    }
}

/// Where an address of the pool is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WarmState {
    Attaching,
    Warm,
    /// A pod has it.
    Assigned,
    /// Returned by a pod; it is not assigned to another before its cooldown is over.
    Cooling,
    Detaching,
}

/// What has to be done to reach the targets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Allocate so many addresses for the node, then attach each.
    Allocate(usize),
    Detach(Ipv4Addr),
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct WarmPool {
    targets: Targets,
    addresses: BTreeMap<Ipv4Addr, WarmState>,
    /// Allocations that were asked for and have not come yet.
    allocating: usize,
}

impl WarmPool {
    pub fn new(targets: Targets) -> WarmPool {
        WarmPool {
            targets,
            ..WarmPool::default()
        }
    }

    /// What the pool and the NIC say at a start.
    pub fn restore(&mut self, address: Ipv4Addr, state: WarmState) {
        self.addresses.insert(address, state);
    }

    /// An address for a pod, at once; None: the pod's own attach follows.
    pub fn take(&mut self) -> Option<Ipv4Addr> {
        let (address, state) = self
            .addresses
            .iter_mut()
            .find(|(_, state)| **state == WarmState::Warm)?;
        *state = WarmState::Assigned;
        Some(*address)
    }

    /// An address that a pod got by an attach of its own.
    pub fn assigned(&mut self, address: Ipv4Addr) {
        self.addresses.insert(address, WarmState::Assigned);
    }

    /// Addresses that were allocated for the node; `asked` that many allocations have ended.
    pub fn allocated(&mut self, asked: usize, addresses: &[Ipv4Addr]) {
        self.allocating = self.allocating.saturating_sub(asked);
        for address in addresses {
            self.addresses.insert(*address, WarmState::Attaching);
        }
    }

    pub fn attached(&mut self, address: Ipv4Addr) {
        self.change(address, WarmState::Attaching, Some(WarmState::Warm));
    }

    /// The attach failed; the address is not the node's any more.
    pub fn attach_failed(&mut self, address: Ipv4Addr) {
        self.change(address, WarmState::Attaching, None);
    }

    /// A pod ended. Whether the address stays attached and cools down; otherwise it has to be detached.
    pub fn returned(&mut self, address: Ipv4Addr) -> bool {
        let kept = self.spare() < self.targets.max;
        let next = if kept {
            WarmState::Cooling
        } else {
            WarmState::Detaching
        };
        self.change(address, WarmState::Assigned, Some(next)) && kept
    }

    pub fn cooled_down(&mut self, address: Ipv4Addr) {
        self.change(address, WarmState::Cooling, Some(WarmState::Warm));
    }

    /// The alias is gone and the address is released.
    pub fn detached(&mut self, address: Ipv4Addr) {
        self.change(address, WarmState::Detaching, None);
    }

    pub fn state(&self, address: Ipv4Addr) -> Option<WarmState> {
        self.addresses.get(&address).copied()
    }

    /// What to do now. `room` is how many more aliases the NIC can have.
    pub fn plan(&mut self, room: usize) -> Vec<Step> {
        let spare = self.spare() + self.allocating;
        if spare < self.targets.min {
            let missing = (self.targets.min - spare).min(room.saturating_sub(self.allocating));
            self.allocating += missing;
            return (missing > 0)
                .then_some(Step::Allocate(missing))
                .into_iter()
                .collect();
        }
        let surplus = spare.saturating_sub(self.targets.max);
        let warm = self
            .addresses
            .iter_mut()
            .rev()
            .filter(|(_, state)| **state == WarmState::Warm);
        let leaving = warm.take(surplus).map(|(address, state)| {
            *state = WarmState::Detaching;
            Step::Detach(*address)
        });
        leaving.collect()
    }

    /// Attached, or about to be, without a pod.
    fn spare(&self) -> usize {
        let spare = |state: &&WarmState| {
            matches!(
                state,
                WarmState::Attaching | WarmState::Warm | WarmState::Cooling
            )
        };
        self.addresses.values().filter(spare).count()
    }

    fn change(&mut self, address: Ipv4Addr, from: WarmState, to: Option<WarmState>) -> bool {
        let found = self.addresses.get(&address) == Some(&from);
        match to {
            Some(to) if found => drop(self.addresses.insert(address, to)),
            None if found => drop(self.addresses.remove(&address)),
            _ => {}
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 111, 0, last)
    }

    fn filled(min: usize, max: usize, count: u8) -> WarmPool {
        let mut pool = WarmPool::new(Targets::new(min, max).unwrap());
        (2..2 + count).for_each(|last| pool.restore(address(last), WarmState::Warm));
        pool
    }

    #[test]
    fn it_is_off_by_default() {
        let mut pool = WarmPool::new(Targets::default());
        assert!(Targets::default().is_off());
        assert_eq!(pool.plan(100), []);
        assert_eq!(pool.take(), None);
        pool.assigned(address(2));
        assert!(!pool.returned(address(2)), "it is detached at once");
        assert_eq!(pool.state(address(2)), Some(WarmState::Detaching));
    }

    #[test]
    fn it_is_filled_to_its_target_once() {
        let mut pool = filled(3, 5, 1);
        assert_eq!(pool.plan(100), [Step::Allocate(2)]);
        assert_eq!(
            pool.plan(100),
            [],
            "what was asked for is not asked for again"
        );
        pool.allocated(2, &[address(10)]);
        assert_eq!(pool.take(), Some(address(2)));
        assert_eq!(pool.take(), None, "not before it is attached");
        pool.attached(address(10));
        assert_eq!(pool.take(), Some(address(10)));
        assert_eq!(
            pool.plan(1),
            [Step::Allocate(1)],
            "no more than fit on the NIC"
        );
    }

    #[test]
    fn a_returned_address_cools_down_and_the_surplus_is_detached() {
        let mut pool = filled(1, 2, 2);
        assert_eq!(pool.take(), Some(address(2)));
        assert!(pool.returned(address(2)));
        assert_eq!(pool.state(address(2)), Some(WarmState::Cooling));
        assert_eq!(
            pool.take(),
            Some(address(3)),
            "one that cools down is not assigned"
        );
        pool.cooled_down(address(2));
        assert_eq!(pool.take(), Some(address(2)));
        let mut pool = filled(1, 2, 4);
        assert_eq!(
            pool.plan(100),
            [Step::Detach(address(5)), Step::Detach(address(4))]
        );
        pool.detached(address(5));
        assert_eq!(pool.state(address(5)), None);
        assert_eq!(pool.plan(100), []);
    }

    #[test]
    fn targets_that_make_no_sense_are_refused() {
        assert!(Targets::new(3, 2).is_err());
        assert!(Targets::new(0, 151).is_err());
        let message = Targets::new(3, 2).unwrap_err().to_string();
        assert!(
            message.contains("min 3") && message.contains("max 2"),
            "{message}"
        );
    }
}
