//! Which of three modes a range is in: its plain pool, slices that the controller assigns, slices that nodes claim.
//!
//! Guarantees: no address is allocated in two modes at once (I1). Two modes that both reserve every address (overlap
//! checks are on) conflict at the reservation, and may both allocate. Otherwise one waits until the other has ended, or
//! has copied its allocations into the plain pool. An annotation of the plain pool records that slices allocated
//! *without* reservations, because a network's checks may be switched on together with its mode.
//!
//! Each mode writes its own annotation first and reads the others' after that, in one version of the pool:
//!
//! ```text
//!   assigned:  closes the pool (Exclusion) -> reads the annotation of claims -> copies the pool's entries -> allocates
//!   claimed:   creates claim and annotation -> reads whether the pool is closed, copies its entries -> allocates
//!   plain:     allocates in the pool, in one write that tests that no annotation excludes it
//! ```
//! A network whose checks are switched off repeats these steps before it allocates without them.

mod closed;

pub use self::closed::Closed;
use super::elastic::Mark;

/// What the annotations of a plain pool show about its range's slices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PlainMarks {
    /// Nodes claim slices.
    pub sliced: Option<Mark>,
    /// The controller assigns slices.
    pub assigned: bool,
    /// Assigned slices allocated without reservations.
    pub unreserved: bool,
}

/// To which allocations a plain pool is closed while slices of its range are assigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Exclusion {
    /// To those without reservations.
    Assigned,
    /// To all: slices allocated without reservations.
    Unreserved,
}

impl Exclusion {
    /// The exclusions that a network sets before it allocates from assigned slices.
    pub const fn closed_by(checked: bool) -> &'static [Exclusion] {
        match checked {
            true => &[Exclusion::Assigned],
            // The first one too: it is the only one that older versions of Berth know.
            false => &[Exclusion::Assigned, Exclusion::Unreserved],
        }
    }

    /// The exclusions that forbid a network to allocate in another mode.
    pub const fn before(checked: bool) -> &'static [Exclusion] {
        match checked {
            true => &[Exclusion::Unreserved],
            false => &[Exclusion::Assigned, Exclusion::Unreserved],
        }
    }
}

impl PlainMarks {
    pub fn has(&self, exclusion: Exclusion) -> bool {
        match exclusion {
            Exclusion::Assigned => self.assigned,
            Exclusion::Unreserved => self.unreserved,
        }
    }

    /// Whether assigned slices forbid a network to allocate in another mode.
    pub fn bars(&self, checked: bool) -> bool {
        Exclusion::before(checked)
            .iter()
            .any(|exclusion| self.has(*exclusion))
    }

    /// Whether claimed slices must return to the plain pool before assigned ones are allocated from.
    pub fn must_leave(&self, checked: bool) -> bool {
        self.sliced.is_some_and(|mark| !checked || mark.unreserved)
    }
}

#[cfg(test)]
mod tests;
