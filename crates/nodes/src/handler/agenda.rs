//! Which policies are to be reconciled when, from what the watches show.
//!
//! Guarantees: a policy is due after every change of its spec, its node and its pools' specs, and after every write of its enactment by
//! another. A change of a pool's status
//! usually comes from other nodes: policies that wait for the pool are due at once, the others later, so that nodes which join at
//! once do not read each pool once for every pair of nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use berth_core::Address;
use rand::RngExt;
use tokio::time::Instant;

use super::execute::Next;
use super::observe::ThisNode;

/// When a policy that waits for nothing is reconciled after its pool's status has changed.
const RESYNC: Duration = Duration::from_secs(60);

/// A pool or a policy, and its spec: UID and generation. None: it is deleted.
pub(super) type Identity = Option<(String, i64)>;

/// Versions of an enactment that are remembered as this handler's own.
const OWN: usize = 64;

/// A change that concerns this node.
#[derive(Debug)]
pub(super) enum Sign {
    Node(Option<ThisNode>),
    /// A policy exists, with this spec, and names these pools.
    Policy(String, Identity, BTreeSet<String>),
    PolicyGone(String),
    /// An enactment of this node has changed, by its policy: the version that it has now.
    Enactment(String, String),
    Pool(String, Identity),
    /// All pools were listed, this among them: it may name policies that went while this process did not run.
    PoolListed(String, Identity),
    /// All policies were listed: one that is not among them may have been deleted unnoticed.
    PoliciesListed,
}

/// What is kept about one policy between two plans. Losing it costs time, never an address.
#[derive(Debug, Default)]
pub(super) struct Memory {
    granted: BTreeMap<(String, String), Address>,
    /// Addresses that the enactment of another node claims too: they are not taken back.
    contested: BTreeSet<(String, Address)>,
    /// The pools, by UID and generation, that the last apply failed with.
    failed_with: BTreeMap<String, (String, i64)>,
    next_try: Option<Instant>,
    /// Whether the host lacked an address when it was first shown.
    lost: Option<bool>,
    /// Pools that had allocated addresses to this node and policy when they were listed.
    held_in: BTreeSet<String>,
    /// Versions of the enactment that this handler wrote: the watch shows them again.
    own: BTreeSet<String>,
}

impl Memory {
    /// This handler has written the enactment.
    pub fn wrote(&mut self, version: &str) {
        if self.own.len() >= OWN {
            self.own.clear();
        }
        self.own.insert(version.to_owned());
    }

    pub const fn is_first_look(&self) -> bool {
        self.lost.is_none()
    }

    pub fn has_lost(&self) -> bool {
        self.lost == Some(true)
    }

    pub fn looked(&mut self, lost: bool) {
        self.lost = Some(lost);
    }

    pub fn grant(&mut self, pool: &str, capture: &str, address: Address) {
        let key = (pool.to_owned(), capture.to_owned());
        self.granted.insert(key, address);
    }

    pub fn granted(&self, pool: &str, capture: &str) -> Option<Address> {
        let key = (pool.to_owned(), capture.to_owned());
        self.granted.get(&key).copied()
    }

    pub fn contest(&mut self, pool: &str, address: Address) {
        self.contested.insert((pool.to_owned(), address));
    }

    pub fn is_contested(&self, pool: &str, address: Address) -> bool {
        self.contested.contains(&(pool.to_owned(), address))
    }

    pub fn failed(&mut self, pause: Duration, pools: BTreeMap<String, (String, i64)>) {
        self.next_try = Some(Instant::now() + pause);
        self.failed_with = pools;
    }

    pub fn succeeded(&mut self) {
        self.next_try = None;
        self.failed_with.clear();
    }

    pub fn has_changed(&self, pool: &str, identity: &(String, i64)) -> bool {
        let known = self.failed_with.get(pool);
        known.is_some_and(|known| known != identity)
    }

    pub fn backoff(&self) -> Option<Duration> {
        let left = self.next_try?.checked_duration_since(Instant::now())?;
        (!left.is_zero()).then_some(left)
    }

    pub fn held_in(&self) -> impl Iterator<Item = &String> {
        self.held_in.iter()
    }

    pub fn forget(&mut self) {
        *self = Memory::default();
    }
}

/// A policy that this node knows of.
#[derive(Debug, Default)]
struct Known {
    identity: Identity,
    pools: BTreeSet<String>,
    gone: bool,
    due: Option<Instant>,
    /// Any change of its pools makes it due.
    waits: bool,
    memory: Memory,
}

#[derive(Debug, Default)]
pub(super) struct Agenda {
    policies: BTreeMap<String, Known>,
    pools: BTreeMap<String, Identity>,
    /// Pools that were listed and not searched yet, and when they are to be.
    listed: BTreeMap<String, Instant>,
    complete: bool,
}

impl Agenda {
    /// Takes a change in. The node's own is for its caller.
    pub fn take(&mut self, sign: Sign, now: Instant) {
        match sign {
            Sign::Node(_) => self.all_due(now),
            Sign::PoliciesListed => {
                self.complete = true;
                self.all_due(now);
            }
            Sign::Policy(name, identity, pools) => {
                let known = self.policies.entry(name).or_default();
                // The leader counts nodes in the policy's status: with many nodes that join, each count would wake all of them.
                if known.gone || known.identity != identity {
                    known.due = Some(now);
                }
                (known.identity, known.pools, known.gone) = (identity, pools, false);
            }
            Sign::PolicyGone(name) => {
                let known = self.policies.entry(name).or_default();
                (known.gone, known.due) = (true, Some(now));
            }
            Sign::Enactment(policy, version) => {
                let known = self.policies.entry(policy).or_default();
                if !known.memory.own.remove(&version) {
                    known.due = Some(now);
                }
            }
            Sign::PoolListed(pool, identity) => {
                self.listed.insert(pool.clone(), now);
                self.pool_changed(pool, identity, now);
            }
            Sign::Pool(pool, identity) => self.pool_changed(pool, identity, now),
        }
    }

    fn all_due(&mut self, now: Instant) {
        self.policies
            .values_mut()
            .for_each(|known| known.due = Some(now));
    }

    fn pool_changed(&mut self, pool: String, identity: Identity, now: Instant) {
        let other = self.pools.get(&pool) != Some(&identity);
        let policies = self.policies.values_mut();
        for known in policies.filter(|known| known.pools.contains(&pool)) {
            known.due = match other || known.waits {
                true => Some(now),
                false => known.due.or_else(|| Some(now + jittered(RESYNC))),
            };
        }
        self.pools.insert(pool, identity);
    }

    /// The pools that are to be searched for addresses of this node.
    pub fn take_listed(&mut self, now: Instant) -> Vec<String> {
        let due = self.listed.extract_if(.., |_, due| *due <= now);
        due.map(|(pool, _)| pool).collect()
    }

    /// A pool could not be searched.
    pub fn search_later(&mut self, pool: &str, due: Instant) {
        self.listed.insert(pool.to_owned(), due);
    }

    /// A pool has allocated an address to this node under a policy.
    pub fn held(&mut self, policy: &str, pool: &str, now: Instant) {
        let absent = || Known {
            gone: true,
            ..Known::default()
        };
        let known = self
            .policies
            .entry(policy.to_owned())
            .or_insert_with(absent);
        known.memory.held_in.insert(pool.to_owned());
        known.due = Some(now);
    }

    /// All policies were listed.
    pub const fn is_complete(&self) -> bool {
        self.complete
    }

    pub fn next(&self) -> Option<Instant> {
        let policies = self.policies.values().filter_map(|known| known.due);
        policies.chain(self.listed.values().copied()).min()
    }

    /// The policies that are due.
    pub fn due(&self, now: Instant) -> Vec<String> {
        let due = self.policies.iter();
        let due = due.filter(|(_, known)| known.due.is_some_and(|due| due <= now));
        due.map(|(name, _)| name.clone()).collect()
    }

    /// Begins to reconcile a policy.
    pub fn begin(&mut self, policy: &str) -> Option<&mut Memory> {
        let known = self.policies.get_mut(policy)?;
        (known.due, known.waits) = (None, false);
        Some(&mut known.memory)
    }

    /// A policy was reconciled, and this is when it is due next.
    pub fn end(&mut self, policy: &str, next: Next) {
        let Some(known) = self.policies.get_mut(policy) else {
            return;
        };
        match next {
            Next::Settled if known.gone && known.due.is_none() => {
                self.policies.remove(policy);
            }
            Next::Settled => {}
            Next::WhenPoolChanges => known.waits = true,
            Next::After(pause) => known.due = Some(Instant::now() + jittered(pause)),
        }
    }
}

fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(rand::rng().random_range(0.7..1.3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(generation: i64) -> Identity {
        Some(("u".to_owned(), generation))
    }

    fn known(now: Instant) -> Agenda {
        let mut agenda = Agenda::default();
        agenda.take(Sign::PoolListed("p".to_owned(), identity(1)), now);
        let pools = BTreeSet::from(["p".to_owned()]);
        agenda.take(
            Sign::Policy("static-ip".to_owned(), identity(1), pools),
            now,
        );
        agenda
    }

    fn reconciled(agenda: &mut Agenda, next: Next) {
        assert!(agenda.begin("static-ip").is_some());
        agenda.end("static-ip", next);
    }

    #[tokio::test]
    async fn a_pools_status_matters_at_once_only_to_those_who_wait_for_it() {
        let now = Instant::now();
        let mut agenda = known(now);
        assert_eq!(agenda.due(now), ["static-ip"]);
        reconciled(&mut agenda, Next::Settled);
        let changed = || Sign::Pool("p".to_owned(), identity(1));
        agenda.take(changed(), now);
        assert!(agenda.due(now).is_empty(), "other nodes' addresses");
        assert_eq!(agenda.due(now + RESYNC * 2), ["static-ip"], "later");
        reconciled(&mut agenda, Next::WhenPoolChanges);
        agenda.take(changed(), now);
        assert_eq!(agenda.due(now), ["static-ip"]);
        reconciled(&mut agenda, Next::Settled);
        for identity in [identity(2), None, identity(2)] {
            agenda.take(Sign::Pool("p".to_owned(), identity), now);
            assert_eq!(agenda.due(now), ["static-ip"], "another spec, or none");
            reconciled(&mut agenda, Next::Settled);
        }
    }

    /// 200 nodes that join make the leader write the policy's status often, and each write of an enactment is shown to its writer.
    #[tokio::test]
    async fn only_a_policys_spec_and_others_writes_matter() {
        let now = Instant::now();
        let mut agenda = known(now);
        reconciled(&mut agenda, Next::Settled);
        let pools = || BTreeSet::from(["p".to_owned()]);
        let policy = |identity| Sign::Policy("static-ip".to_owned(), identity, pools());
        agenda.take(policy(identity(1)), now);
        assert!(agenda.due(now).is_empty(), "its status alone changed");
        agenda.take(policy(identity(2)), now);
        assert_eq!(agenda.due(now), ["static-ip"]);
        agenda.begin("static-ip").unwrap().wrote("7");
        agenda.end("static-ip", Next::Settled);
        let enactment = |version: &str| Sign::Enactment("static-ip".to_owned(), version.to_owned());
        agenda.take(enactment("7"), now);
        assert!(agenda.due(now).is_empty(), "this handler's own write");
        agenda.take(enactment("7"), now);
        assert_eq!(agenda.due(now), ["static-ip"], "the same version again");
        reconciled(&mut agenda, Next::Settled);
        agenda.take(enactment("8"), now);
        assert_eq!(agenda.due(now), ["static-ip"], "another writer's");
        // Deleted and created again.
        reconciled(&mut agenda, Next::WhenPoolChanges);
        agenda.take(Sign::PolicyGone("static-ip".to_owned()), now);
        reconciled(&mut agenda, Next::WhenPoolChanges);
        agenda.take(policy(identity(2)), now);
        assert_eq!(agenda.due(now), ["static-ip"]);
    }

    #[tokio::test]
    async fn a_policy_that_only_a_pool_remembers_is_reconciled_once() {
        let now = Instant::now();
        let mut agenda = Agenda::default();
        agenda.take(Sign::PoolListed("p".to_owned(), identity(1)), now);
        assert_eq!(agenda.take_listed(now), ["p"]);
        // It could not be read, and is searched later.
        let later = now + Duration::from_secs(1);
        agenda.search_later("p", later);
        assert!(agenda.take_listed(now).is_empty());
        assert_eq!(agenda.next(), Some(later));
        assert_eq!(agenda.take_listed(later), ["p"]);
        agenda.held("static-ip", "p", now);
        assert_eq!(agenda.due(now), ["static-ip"]);
        reconciled(&mut agenda, Next::Settled);
        assert_eq!(agenda.next(), None);
        assert!(agenda.begin("static-ip").is_none(), "nothing is kept of it");
    }
}
