//! Three ways to give addresses of one range: its plain pool, slices that a controller assigns, slices that nodes claim.
//!
//! Two ways that both reserve every address (overlap checks are on) meet at the reservations, and give at the same time.
//! Otherwise one of them waits until the other has gone, or has copied what it gave into the plain pool (I1). The range
//! remembers on its plain pool that slices gave *without* reservations, for a network may have its checks switched on
//! together with its way.
//!
//! Each way says first what it does and looks at the others' word after that, in one state of the pool:
//!
//! ```text
//!   assigned:  closes the pool (Exclusion)     -> looks for the mark of claims -> takes in the pool's entries -> gives
//!   claimed:   makes claim and mark      -> looks whether it is closed, takes in the pool's entries     -> gives
//!   plain:     claims in the pool, in one write that tests that nothing bars it
//! ```
//! A network whose checks are switched off does the same once more before it gives without them.

use super::elastic::Mark;

/// What a plain pool says about its range's slices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PlainMarks {
    /// Nodes claim them.
    pub sliced: Option<Mark>,
    /// A controller assigns them.
    pub assigned: bool,
    /// What a controller assigned gave without reservations.
    pub unreserved: bool,
}

/// How a pool is closed to other ways while slices of its range are assigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Exclusion {
    /// To those that make no reservations.
    Assigned,
    /// To all: what slices gave has none.
    Unreserved,
}

impl Exclusion {
    /// What a network has to close before it gives from slices that are assigned.
    pub const fn closed_by(checked: bool) -> &'static [Exclusion] {
        match checked {
            true => &[Exclusion::Assigned],
            // The first one too: it is what a Berth of before knows.
            false => &[Exclusion::Assigned, Exclusion::Unreserved],
        }
    }

    /// What keeps a network out that gives in another way.
    pub const fn before(checked: bool) -> &'static [Exclusion] {
        match checked {
            true => &[Exclusion::Unreserved],
            false => &[Exclusion::Assigned, Exclusion::Unreserved],
        }
    }
}

impl PlainMarks {
    pub fn has(&self, bar: Exclusion) -> bool {
        match bar {
            Exclusion::Assigned => self.assigned,
            Exclusion::Unreserved => self.unreserved,
        }
    }

    /// Whether assigned slices keep a network out that gives in another way.
    pub fn bars(&self, checked: bool) -> bool {
        Exclusion::before(checked).iter().any(|bar| self.has(*bar))
    }

    /// Whether slices that nodes have claimed must go back to the plain pool before assigned ones are given from.
    pub fn must_leave(&self, checked: bool) -> bool {
        self.sliced.is_some_and(|mark| !checked || mark.unreserved)
    }
}

#[cfg(test)]
#[path = "ways_tests.rs"]
mod tests;
