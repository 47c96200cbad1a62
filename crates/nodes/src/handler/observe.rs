//! What the handler reads before it plans: policy, enactment and pools, each by a quorum read.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_core::{Address, AddressRequest, Allocate, Answer, Refusal, Request, plan as dry_run};
use serde_json::Value;

use super::agenda::Memory;
use super::enact;
use super::execute::HandlerError;
use super::phase::Phase;
use super::plan::{Backoff, Enactment, Observed, Peers, PolicyState, PoolView};
use super::run::Handler;
use crate::capture::{CaptureError, PoolPolicy};
use crate::enactment::{ANNOTATION, Claims};
use crate::objects;
use crate::pool::codec::{self, Holder, NodePool};

/// The annotation of an enactment with the UID of the policy that it was recorded for: one that was created again under its name
/// is another policy, though its generation may be the same.
pub const POLICY_UID: &str = "berth.dev/policy-uid";

/// The selector that keeps kubernetes-nmstate away from pool policies; no node has it, and Berth ignores it.
pub const KEPT_AWAY: &str = "berth.dev/pool-policy";

/// This node, as the watch shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThisNode {
    pub uid: String,
    pub labels: BTreeMap<String, String>,
    pub ready: bool,
}

/// Everything that was read about one policy.
#[derive(Debug)]
pub(super) struct Seen {
    pub node: ThisNode,
    /// None if it is deleted or does not select the node.
    pub policy: Option<Value>,
    pub spec: Result<PoolPolicy, CaptureError>,
    pub enactment: Option<Value>,
    pub pools: BTreeMap<String, PoolSeen>,
    /// The host lacks an address that was applied: after a reboot, or because it was removed by hand.
    pub lost: bool,
}

#[derive(Debug)]
pub(super) struct PoolSeen {
    pub object: Value,
    pub read: Result<NodePool, String>,
}

impl PoolSeen {
    /// The pool and its spec: another one is a change.
    pub fn identity(&self) -> (String, i64) {
        let uid = objects::uid(&self.object).to_owned();
        (uid, objects::generation(&self.object))
    }
}

/// Whether a policy selects a node with these labels.
pub fn selects(policy: &Value, labels: &BTreeMap<String, String>) -> bool {
    let selector = policy.pointer("/spec/nodeSelector");
    let wanted = selector.and_then(Value::as_object);
    let mut wanted = wanted.into_iter().flatten();
    wanted.all(|(key, value)| {
        key == KEPT_AWAY || labels.get(key).map(String::as_str) == value.as_str()
    })
}

/// Whether Berth wrote an enactment: those of policies without pools are kubernetes-nmstate's.
pub fn is_ours(enactment: &Value) -> bool {
    objects::annotation(enactment, ANNOTATION).is_some()
        || objects::annotation(enactment, POLICY_UID).is_some()
        || enactment.pointer("/status/ippool").is_some()
}

impl Handler {
    pub(super) async fn see(
        &self,
        policy: &str,
        name: &str,
        memory: &Memory,
    ) -> Result<Seen, HandlerError> {
        let node = self.this_node().unwrap_or_default();
        let found = self.ask(self.policies.get_opt(policy)).await?;
        let found = found.map(|object| objects::value(&object));
        let found = found.filter(|object| {
            selects(object, &node.labels) && object.pointer("/metadata/deletionTimestamp").is_none()
        });
        let enactment = self.ask(self.enactments.get_opt(name)).await?;
        let enactment = enactment.map(|object| objects::value(&object));
        let nothing = Value::Null;
        let spec = found.as_ref().and_then(|object| object.get("spec"));
        let spec = PoolPolicy::read(spec.unwrap_or(&nothing));
        let mut names: Vec<String> = match &spec {
            Ok(spec) => spec.wanted().map(|(_, pool)| pool.to_owned()).collect(),
            Err(_) => Vec::new(),
        };
        if found.is_none() {
            let claims = enactment.as_ref().map(|one| enact::read(one).claims);
            let claimed = claims.iter().flat_map(Claims::pools);
            names.extend(claimed.map(str::to_owned));
            names.extend(memory.held_in().cloned());
        }
        let mut pools = BTreeMap::new();
        for name in names {
            if pools.contains_key(&name) {
                continue;
            }
            if let Some(object) = self.store.object(&name).await? {
                let read = codec::decode(&object).map_err(|error| error.to_string());
                pools.insert(name, PoolSeen { object, read });
            }
        }
        Ok(Seen {
            node,
            policy: found,
            spec,
            enactment,
            pools,
            lost: false,
        })
    }
}

impl Seen {
    pub fn generation(&self) -> i64 {
        self.policy.as_ref().map_or(0, objects::generation)
    }

    pub fn policy_uid(&self) -> &str {
        self.policy.as_ref().map_or("", objects::uid)
    }

    /// The enactment as it counts for this policy: one of a policy that was deleted and created again keeps its claims alone.
    pub fn enactment(&self) -> Option<Enactment> {
        let object = self.enactment.as_ref()?;
        let mut read = enact::read(object);
        let of = objects::annotation(object, POLICY_UID);
        if self.policy.is_some() && of != Some(self.policy_uid()) {
            read = Enactment {
                claims: read.claims,
                ..Enactment::default()
            };
        }
        if self.lost && read.phase == Phase::Available {
            read.phase = Phase::New;
        }
        Some(read)
    }

    /// Whether the enactment's captured states have this address, which are written when pool and enactment both name it.
    fn has_recorded(&self, capture: &str, address: Address) -> bool {
        let status = self.enactment.as_ref().and_then(|one| one.get("status"));
        let ip = status.map(|status| &status["capturedStates"][capture]["state"]["ip"]);
        let ip = ip.and_then(Value::as_str);
        ip.and_then(|text| text.parse().ok()) == Some(address)
    }

    pub fn observed<'a>(
        &'a self,
        handler: &'a Handler,
        policy: &str,
        memory: &Memory,
        peers: Peers,
    ) -> Observed<'a> {
        let pools = self.pools.iter().map(|(name, pool)| {
            let view = self.view(name, pool, (&handler.config.node, policy), memory);
            (name.as_str(), view)
        });
        Observed {
            node: &handler.config.node,
            ready: self.node.ready,
            mode: handler.config.mode,
            policy: match &self.policy {
                None => PolicyState::Gone,
                Some(object) => PolicyState::Selecting {
                    generation: objects::generation(object),
                    spec: self.spec.as_ref().map_err(Clone::clone),
                },
            },
            enactment: self.enactment(),
            pools: pools.collect(),
            peers,
            backoff: memory.backoff().map_or(Backoff::Over, Backoff::Left),
        }
    }

    fn view<'a>(
        &self,
        name: &str,
        pool: &'a PoolSeen,
        (node, policy): (&str, &str),
        memory: &Memory,
    ) -> PoolView<'a> {
        let read = match &pool.read {
            Ok(read) => read,
            Err(why) => {
                return PoolView {
                    space: Err(why.clone()),
                    held: BTreeMap::new(),
                    claimed: BTreeMap::new(),
                    allocates: false,
                    refused: false,
                    changed: false,
                };
            }
        };
        let wanted = self.spec.as_ref().ok().into_iter().flat_map(|spec| {
            let of_pool = spec.wanted().filter(move |(_, of)| *of == name);
            of_pool.map(|(capture, _)| capture.to_owned())
        });
        let wanted: Vec<String> = wanted.collect();
        let enactment = self.enactment();
        let mut held = BTreeMap::new();
        let mut claimed = BTreeMap::new();
        if self.policy.is_none() {
            let described = read.recorded.described.iter();
            let own = described.filter(|one| one.node == node && one.policy == policy);
            held.extend(own.map(|one| (one.capture.clone(), one.address)));
        }
        for capture in &wanted {
            let named = enactment
                .as_ref()
                .and_then(|one| one.claims.address(name, capture));
            let recorded = named.filter(|address| self.has_recorded(capture, *address));
            let holder = Holder::new(node, policy, capture);
            if let Some(address) = held_for(read, &holder, recorded) {
                held.insert(capture.clone(), address);
            }
            // What the enactment lost, this process may remember.
            let known = named.into_iter().chain(memory.granted(name, capture));
            let mut possible = known.filter(|one| {
                may_be_taken_back(read, &holder, *one) && !memory.is_contested(name, *one)
            });
            if let Some(address) = possible.next() {
                claimed.insert(capture.clone(), address);
            }
        }
        let missing = wanted.iter().find(|capture| !held.contains_key(*capture));
        let refused = missing.is_some_and(|capture| {
            !claimed.contains_key(capture)
                && is_exhausted(read, &Holder::new(node, policy, capture))
        });
        PoolView {
            space: Ok(&read.space),
            held,
            claimed,
            allocates: read.allocates(),
            refused: refused && read.allocates(),
            changed: memory.has_changed(name, &pool.identity()),
        }
    }
}

/// The address that a pool has for a holder. One that is allocated without a description is the holder's if its enactment records it: a
/// description is removed only when an enactment claims the address, and none is released that an enactment claims (I1).
fn held_for(read: &NodePool, holder: &Holder, recorded: Option<Address>) -> Option<Address> {
    let record = holder.record();
    let mut mine = read.pool.held_by(&record.owner);
    // A second owner that the status names too is no owner.
    let own = |address: &Address| {
        read.pool
            .get(*address)
            .is_some_and(|r| r.same_holder(&record))
    };
    if let Some(address) = mine.find(own) {
        return Some(address);
    }
    let large = read.pool.len() > berth_api::nmstate::MAX_DESCRIBED;
    recorded.filter(|address| {
        let held = read.pool.get(*address);
        large && held.is_some_and(|held| held.same_holder(&codec::unnamed()))
    })
}

/// Whether an address that a holder had may still be its own: the pool names no other owner.
fn may_be_taken_back(read: &NodePool, holder: &Holder, address: Address) -> bool {
    let free = |held: &berth_core::Record| {
        held.same_holder(&holder.record()) || held.same_holder(&codec::unnamed())
    };
    read.space.offset(address).is_some() && read.pool.get(address).is_none_or(free)
}

/// Whether the pool has nothing for a holder, now.
fn is_exhausted(read: &NodePool, holder: &Holder) -> bool {
    let now = codec::moment(jiff::Timestamp::now());
    let wants = wants(read, &holder.node);
    wants.into_iter().all(|want| {
        let claim = Allocate {
            record: holder.record(),
            wants: vec![want],
        };
        let outcome = dry_run(&mut read.pool.clone(), &[Request::Allocate(claim)], now);
        matches!(
            outcome.answers.first(),
            Some(Answer::Refused(
                Refusal::Exhausted { .. } | Refusal::Held { .. } | Refusal::CoolingDown { .. }
            ))
        )
    })
}

/// What a node may get of a pool, in the order in which it is asked for: its reservation, then each range.
pub(super) fn wants(read: &NodePool, node: &str) -> Vec<AddressRequest> {
    let mut wants = Vec::new();
    if let Some(address) = read.space.reservation_of(node) {
        let space = Arc::new(berth_core::Space::only(address));
        wants.push(AddressRequest::exactly(space, address));
    }
    let reserved: Vec<Address> = read.space.reserved().collect();
    for space in read.space.spaces() {
        let mut want = AddressRequest::any(Arc::new(space.clone()));
        want.avoid.clone_from(&reserved);
        wants.push(want);
    }
    wants
}
