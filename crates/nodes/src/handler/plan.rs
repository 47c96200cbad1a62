//! The decision: pure, from what was observed.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_core::Address;

use super::phase::{Phase, Shown};
use crate::capture::{CaptureError, Granted, PoolPolicy, Rendered};
use crate::enactment::Claims;
use crate::pool::PoolSpace;

/// How often a generation is applied before it stays Failing.
pub const TRIES: u32 = 5;

/// How a rendered state is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// This node applies it.
    Host,
    /// kubernetes-nmstate applies it, from a concrete policy of this node.
    Policy,
    /// Nothing is allocated, recorded or applied.
    Off,
}

/// The policy, as it concerns this node.
#[derive(Clone, Debug)]
pub enum PolicyState<'a> {
    /// It is deleted, or it no longer selects the node.
    Gone,
    Selecting {
        generation: i64,
        spec: Result<&'a PoolPolicy, CaptureError>,
    },
}

/// One pool that the policy names, as it concerns (node, policy).
#[derive(Clone, Debug)]
pub struct PoolView<'a> {
    /// Its spec, or why it can't be used.
    pub space: Result<&'a PoolSpace, String>,
    /// What it has allocated to this node and policy: capture -> address.
    pub held: BTreeMap<String, Address>,
    /// What the enactment names, and the pool may allocate to it again.
    pub claimed: BTreeMap<String, Address>,
    /// Its condition allows new allocations.
    pub allocates: bool,
    /// An allocation for this node found no free address, and the pool has not changed since.
    pub refused: bool,
    /// It has changed since the enactment failed.
    pub changed: bool,
}

/// The enactment of (node, policy), as it was read.
#[derive(Clone, Debug, Default)]
pub struct Enactment {
    pub generation: i64,
    pub phase: Phase,
    pub tries: u32,
    pub claims: Claims,
}

/// The policy on other nodes.
#[derive(Clone, Debug, Default)]
pub struct Peers {
    /// Nodes that apply it now, and may be unreachable.
    pub unavailable: usize,
    /// How many may apply at the same time.
    pub max_unavailable: usize,
    /// A node that has failed to apply this generation.
    pub failed: Option<String>,
}

/// Whether the time between two tries is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backoff {
    Over,
    Left(Duration),
}

impl Backoff {
    /// How long to wait after a number of failed tries: a second, doubled each time, at most 30.
    pub fn after(tries: u32) -> Duration {
        let seconds = 1u64
            .checked_shl(tries.saturating_sub(1))
            .unwrap_or(u64::MAX);
        Duration::from_secs(seconds.min(30))
    }
}

#[derive(Clone, Debug)]
pub struct Observed<'a> {
    pub node: &'a str,
    pub ready: bool,
    pub mode: Mode,
    pub policy: PolicyState<'a>,
    pub enactment: Option<Enactment>,
    /// The pools that exist, by name.
    pub pools: BTreeMap<&'a str, PoolView<'a>>,
    pub peers: Peers,
    pub backoff: Backoff,
}

/// What a plan waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wait {
    /// A pool that is not there, can't be used, or has no free address.
    Pool(String),
    NodeReady,
    MaxUnavailable,
    Backoff(Duration),
    /// Nothing more is done until the policy changes, or a pool of it.
    PolicyChange,
}

/// Claims, captured states and the rendered state, to be written to the enactment under a generation.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    pub generation: i64,
    pub claims: Claims,
    pub rendered: Rendered,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Makes `<node>.<policy>`, all conditions Unknown.
    CreateEnactment,
    /// Claims an address in the pool: this one, if named, else the node's reservation or the first free one.
    Allocate {
        capture: String,
        pool: String,
        address: Option<Address>,
    },
    Record(Record),
    /// Writes the enactment's conditions.
    Show(Shown),
    /// Applies the rendered state to the host, and shows how it went; counts a try.
    Apply(Rendered),
    /// Writes the concrete policy of this node.
    RenderPolicy(Rendered),
    /// Removes from the host what this node applied, so that it can be released.
    Withdraw {
        addresses: Vec<Address>,
    },
    DeleteEnactment,
    Wait(Wait),
}

/// What one node does next about one policy.
pub fn plan(observed: &Observed<'_>) -> Vec<Step> {
    let (generation, spec) = match &observed.policy {
        PolicyState::Gone => return leave(observed),
        PolicyState::Selecting { generation, spec } => (*generation, spec),
    };
    let policy = match spec {
        Err(error) => return refuse(observed, error),
        Ok(policy) if !policy.uses_pools() => return Vec::new(),
        Ok(policy) => *policy,
    };
    if observed.mode == Mode::Off {
        return Vec::new();
    }
    let spaces = |name: &str| observed.pools.get(name)?.space.as_ref().ok().copied();
    if let Err(error) = policy.rehearse(spaces) {
        return refuse(observed, &error);
    }
    let enactment = current(observed, generation);
    let mut steps = Vec::new();
    if observed.enactment.is_none() {
        steps.push(Step::CreateEnactment);
    }
    match addresses(observed, policy, &enactment) {
        Addresses::Settled => {}
        Addresses::Missing(missing) => steps.extend(missing),
        Addresses::Held { claims, granted } => match policy.render(&granted) {
            Err(error) => return refuse(observed, &error),
            Ok(rendered) => {
                steps.extend(proceed(observed, generation, &enactment, claims, rendered))
            }
        },
    }
    steps
}

/// The enactment under the policy's generation: an older one keeps its claims and nothing else. One that failed is tried again when its pool has
/// changed.
fn current(observed: &Observed<'_>, generation: i64) -> Enactment {
    let mut enactment = observed.enactment.clone().unwrap_or_default();
    let retried =
        enactment.phase == Phase::Failing && observed.pools.values().any(|pool| pool.changed);
    if enactment.generation != generation || retried {
        enactment.phase = Phase::New;
        enactment.tries = 0;
    }
    enactment
}

/// The policy no longer selects this node. Its enactment may be deleted already; then the pools say what was applied. The leader releases the
/// offsets when the enactment is gone and the host no longer shows the addresses.
fn leave(observed: &Observed<'_>) -> Vec<Step> {
    let held = observed
        .pools
        .values()
        .flat_map(|pool| pool.held.values().copied());
    let enactment = observed.enactment.as_ref();
    let claimed = enactment.into_iter().flat_map(|one| one.claims.addresses());
    let mut addresses: Vec<Address> = held.chain(claimed).collect();
    addresses.sort_unstable();
    addresses.dedup();
    let mut steps = Vec::new();
    if observed.mode == Mode::Host && !addresses.is_empty() {
        steps.push(Step::Withdraw { addresses });
    }
    if enactment.is_some() {
        steps.push(Step::DeleteEnactment);
    }
    steps
}

/// A policy that can't be rendered: the host is not touched, and nothing is allocated.
fn refuse(observed: &Observed<'_>, error: &CaptureError) -> Vec<Step> {
    let mut steps = Vec::new();
    if observed.enactment.is_none() {
        steps.push(Step::CreateEnactment);
    }
    steps.push(Step::Show(failed_generation(error)));
    steps.push(Step::Wait(Wait::PolicyChange));
    steps
}

/// Upstream's words for a state that could not be generated.
pub(super) fn failed_generation(why: impl std::fmt::Display) -> Shown {
    let message = format!("failure generating desiredState and capturedStates: {why}");
    Shown::new(Phase::Failing, "FailedToConfigure", message)
}

enum Addresses {
    /// Applied, and a pool is gone: the address stays until the pool is back.
    Settled,
    /// What is to be done before all addresses are held.
    Missing(Vec<Step>),
    /// The pools hold an address for each capture.
    Held {
        claims: Claims,
        granted: BTreeMap<String, Granted>,
    },
}

/// The address of each capture, or what is missing.
fn addresses(observed: &Observed<'_>, policy: &PoolPolicy, enactment: &Enactment) -> Addresses {
    let mut claims = Claims::default();
    let mut granted = BTreeMap::new();
    let mut missing = Vec::new();
    for (capture, pool) in policy.wanted() {
        let usable = observed.pools.get(pool).map(|view| (view, &view.space));
        let (view, space) = match usable {
            Some((view, Ok(space))) => (view, *space),
            _ if enactment.phase == Phase::Available => return Addresses::Settled,
            Some((_, Err(why))) => {
                let why = format!("NodeIPPool {pool} can't be used: {why}");
                return Addresses::Missing(vec![
                    Step::Show(failed_generation(why)),
                    Step::Wait(Wait::Pool(pool.to_owned())),
                ]);
            }
            None => return Addresses::Missing(absent(pool)),
        };
        let held = view.held.get(capture).copied();
        if let Some(address) = held
            && let Some(result) = Granted::of(pool, space, address)
        {
            claims.set(pool, capture, address);
            granted.insert(capture.to_owned(), result);
            continue;
        }
        let step = match view.claimed.get(capture).copied() {
            None if view.refused => return Addresses::Missing(exhausted(pool, observed.node)),
            None if !observed.ready => return Addresses::Missing(not_ready(observed.node)),
            None if !view.allocates => {
                return Addresses::Missing(vec![Step::Wait(Wait::Pool(pool.to_owned()))]);
            }
            address => Step::Allocate {
                capture: capture.to_owned(),
                pool: pool.to_owned(),
                address,
            },
        };
        missing.push(step);
    }
    match missing.is_empty() {
        true => Addresses::Held { claims, granted },
        false => Addresses::Missing(missing),
    }
}

fn absent(pool: &str) -> Vec<Step> {
    let message =
        format!("NodeIPPool {pool} does not exist; the policy is applied when it is created");
    let shown = Shown::new(Phase::Pending, "NodeIPPoolNotFound", message);
    vec![Step::Show(shown), Step::Wait(Wait::Pool(pool.to_owned()))]
}

/// What an enactment says when a pool has nothing for its node; the leader finds it there.
pub fn no_free_address(pool: &str, node: &str) -> String {
    format!("NodeIPPool {pool} has no free address for node {node}")
}

fn exhausted(pool: &str, node: &str) -> Vec<Step> {
    vec![
        Step::Show(failed_generation(no_free_address(pool, node))),
        Step::Wait(Wait::Pool(pool.to_owned())),
    ]
}

fn not_ready(node: &str) -> Vec<Step> {
    let message = format!("node {node} is not Ready; it gets an address when it is");
    let shown = Shown::new(Phase::Pending, "NodeNotReady", message);
    vec![Step::Show(shown), Step::Wait(Wait::NodeReady)]
}

/// Every address is held: record it, then apply.
fn proceed(
    observed: &Observed<'_>,
    generation: i64,
    enactment: &Enactment,
    claims: Claims,
    rendered: Rendered,
) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut phase = enactment.phase;
    let mut tries = enactment.tries;
    let known = observed.enactment.as_ref();
    let recorded =
        known.is_some_and(|known| known.generation == generation && known.claims == claims);
    if !recorded {
        let rendered = rendered.clone();
        steps.push(Step::Record(Record {
            generation,
            claims,
            rendered,
        }));
        // Another address is another state.
        (phase, tries) = (Phase::New, 0);
    }
    if observed.mode == Mode::Policy {
        steps.push(Step::RenderPolicy(rendered));
        return steps;
    }
    match phase {
        Phase::Available => {}
        Phase::Aborted => steps.push(Step::Wait(Wait::PolicyChange)),
        Phase::Failing if tries >= TRIES => steps.push(Step::Wait(Wait::PolicyChange)),
        Phase::Failing => match observed.backoff {
            Backoff::Left(left) => steps.push(Step::Wait(Wait::Backoff(left))),
            Backoff::Over => steps.extend(apply(observed, tries, rendered)),
        },
        // The process ended during an apply: this node already counts as unavailable.
        Phase::Progressing => steps.push(Step::Apply(rendered)),
        Phase::New | Phase::Pending => steps.extend(apply(observed, tries, rendered)),
    }
    steps
}

/// Applies, unless another node failed or enough nodes are unavailable.
fn apply(observed: &Observed<'_>, tries: u32, rendered: Rendered) -> Vec<Step> {
    if let Some(other) = &observed.peers.failed {
        let message = format!("policy has failed on node {other}; it is not applied here");
        let shown = Shown::new(Phase::Aborted, "ConfigurationAborted", message);
        return vec![Step::Show(shown), Step::Wait(Wait::PolicyChange)];
    }
    if observed.peers.unavailable >= observed.peers.max_unavailable {
        let message = format!(
            "{} nodes apply the policy, and maxUnavailable is {}",
            observed.peers.unavailable, observed.peers.max_unavailable
        );
        let shown = Shown::new(Phase::Pending, "MaxUnavailableLimitReached", message);
        return vec![Step::Show(shown), Step::Wait(Wait::MaxUnavailable)];
    }
    let (reason, message) = match tries {
        0 => (
            "ConfigurationProgressing",
            "Applying desired state".to_owned(),
        ),
        tries => (
            "Retrying",
            format!("Applying desired state, try {} of {TRIES}", tries + 1),
        ),
    };
    vec![
        Step::Show(Shown::new(Phase::Progressing, reason, message)),
        Step::Apply(rendered),
    ]
}

#[cfg(test)]
mod tests;
