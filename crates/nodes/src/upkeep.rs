//! What the leader does about one pool: `plan(observed) -> steps`.
//!
//! A pool and the enactments that claim its addresses can each rebuild the other. The plan brings them together: what an enactment claims is
//! taken into the pool, and so is what a host shows; what no enactment claims and no host shows is released.
//!
//! Guarantees: an address is released only when its owner is gone, no enactment has claimed it for the grace period, and no host shows it;
//! the executor reads all three again, with quorum, just before (I4). While a pool takes back what enactments claim,
//! its condition is ReconcilingPool and it allocates nothing new. What can't be read is kept aside before anything is written (I5).
//!
//! Grace periods are the collector's ([`berth_collector::suspicions`]), and nothing else of it is: docs/decisions/0019-enactments-are-the-journal.md.

mod collisions;
mod events;
mod execute;
mod figures;
mod objects;
mod plan;
mod policies;
mod run;
mod seen;

pub use plan::{Answered, Claim, Freed, Observed, Outcome, Reset, Seen, Step, plan};
pub use run::{Upkeep, UpkeepConfig};
