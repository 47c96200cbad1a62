//! What a NodeNetworkConfigurationPolicy takes from which pool, and its state with the addresses filled in.
//!
//! Two ways to ask for an address: a capture `ippool.NAME.allocate`, whose fields templates name (`{{ capture.X.ip }}`), and an
//! entry `ipam: {pool: NAME}` in an interface's address list. Berth resolves both, on untyped JSON, and leaves every other capture and
//! template to nmstate, the engine of kubernetes-nmstate: a policy means what it means there.
//!
//! Guarantees: a policy that can't be resolved is refused before anything is allocated ([`PoolPolicy::rehearse`]); a number that a template
//! names alone stays a number; what is not about pools is unchanged.

mod error;
mod inline;
mod policy;
mod render;
mod template;

pub use error::CaptureError;
pub use policy::{PoolPolicy, Source};
pub use render::{Granted, Rendered};
