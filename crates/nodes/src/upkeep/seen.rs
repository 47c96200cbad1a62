//! What the leader knows of pools, policies, nodes, enactments and host states, each reduced to what it decides by.
//!
//! It is filled by watches, which trigger a pass, and by [`Seen::read`], the paged quorum reads that every write is decided
//! by. Objects are reduced as they come; no list of whole objects is held.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::nmstate::RESET_ANNOTATION;
use berth_core::Address;
use k8s_openapi::api::core::v1::Node;
use kube::api::{DynamicObject, ListParams};
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::Value;

use super::plan::{Answered, Claim, Observed, Reset, Seen as Shown};
use crate::capture::{CaptureError, PoolPolicy};
use crate::enactment::Claims;
use crate::handler::{InUse, Phase, enact, is_ours, no_free_address, selects};
use crate::host;
use crate::objects::{self, ENACTMENT, NODE_IP_POOL, NODE_LABEL, NODE_STATE, POLICY, POLICY_LABEL};
use crate::pool::codec::{self, Holder, NodePool};
use crate::pool::{Health, PoolSpace, SpecError};

/// Objects in one answer of a list: a NodeNetworkState may have some hundred kilobytes.
const PAGE: u32 = 100;

#[derive(Clone, Debug)]
pub struct PolicySeen {
    /// Without its managed fields.
    pub object: Value,
    pub spec: Result<PoolPolicy, CaptureError>,
}

#[derive(Clone, Debug)]
pub struct EnactmentSeen {
    pub name: String,
    pub uid: String,
    pub node: String,
    pub policy: String,
    pub claims: Claims,
    /// What of its claims can't be read.
    pub faults: Vec<String>,
    pub phase: Phase,
    pub message: String,
    pub generation: i64,
    pub policy_uid: String,
    pub reset: Option<String>,
    /// An address of it that another machine uses, as the node's probe found.
    pub in_use: Option<InUse>,
}

/// What a NodeNetworkState shows of a host.
#[derive(Clone, Debug, Default)]
pub struct HostSeen {
    /// Interface and address.
    pub addresses: Vec<(String, Address)>,
    /// Hardware addresses, in lower case.
    pub macs: BTreeSet<String>,
}

/// Each kind by name; none until its first list is complete: before that, nothing is absent.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub pools: Option<BTreeMap<String, Value>>,
    pub policies: Option<BTreeMap<String, PolicySeen>>,
    /// Labels by name.
    pub nodes: Option<BTreeMap<String, BTreeMap<String, String>>>,
    pub enactments: Option<BTreeMap<String, EnactmentSeen>>,
    pub states: Option<BTreeMap<String, HostSeen>>,
}

pub fn policy(object: &DynamicObject) -> PolicySeen {
    let mut object = objects::value(object);
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.shift_remove("managedFields");
    }
    let spec = PoolPolicy::read(object.get("spec").unwrap_or(&Value::Null));
    PolicySeen { object, spec }
}

/// None for an enactment that Berth has nothing to do with.
pub fn enactment(object: &DynamicObject) -> Option<EnactmentSeen> {
    let object = objects::value(object);
    let reset = objects::annotation(&object, RESET_ANNOTATION).map(str::to_owned);
    if !is_ours(&object) && reset.is_none() {
        return None;
    }
    let (claims, faults) = Claims::read(&object);
    let status = object.get("status").unwrap_or(&Value::Null);
    Some(EnactmentSeen {
        name: objects::name(&object).to_owned(),
        uid: objects::uid(&object).to_owned(),
        node: objects::label(&object, NODE_LABEL)?.to_owned(),
        policy: objects::label(&object, POLICY_LABEL)?.to_owned(),
        claims,
        faults,
        phase: enact::phase(status),
        message: enact::message(status).to_owned(),
        generation: status["policyGeneration"].as_i64().unwrap_or_default(),
        policy_uid: objects::annotation(&object, crate::handler::POLICY_UID)
            .unwrap_or_default()
            .to_owned(),
        reset,
        in_use: InUse::read(&object),
    })
}

pub fn state(object: &DynamicObject) -> HostSeen {
    let Some(current) = object.data.pointer("/status/currentState") else {
        return HostSeen::default();
    };
    HostSeen {
        addresses: host::addresses(current),
        macs: host::macs(current),
    }
}

impl PolicySeen {
    pub fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        selects(&self.object, labels)
    }

    /// Whether Berth serves it: it names a pool, or tries to.
    pub fn is_ours(&self) -> bool {
        match &self.spec {
            Ok(spec) => spec.uses_pools(),
            Err(_) => {
                let text = self.object["spec"].to_string();
                text.contains("ippool") || text.contains("\"ipam\"")
            }
        }
    }
}

impl Seen {
    pub fn is_complete(&self) -> bool {
        self.pools.is_some()
            && self.policies.is_some()
            && self.nodes.is_some()
            && self.enactments.is_some()
            && self.states.is_some()
    }

    /// All of it by quorum reads. States last: an address that went to a host before its enactment was read is seen.
    pub async fn read(client: &Client) -> kube::Result<Seen> {
        let api = |kind| objects::api(client.clone(), kind);
        let mut seen = Seen::default();
        let mut pools = BTreeMap::new();
        each(&api(NODE_IP_POOL), |object| {
            pools.insert(object.name_any(), objects::value(&object));
        })
        .await?;
        let mut policies = BTreeMap::new();
        each(&api(POLICY), |object| {
            policies.insert(object.name_any(), policy(&object));
        })
        .await?;
        let mut nodes = BTreeMap::new();
        each(&Api::<Node>::all(client.clone()), |node| {
            nodes.insert(node.name_any(), node.labels().clone());
        })
        .await?;
        let mut enactments = BTreeMap::new();
        each(&api(ENACTMENT), |object| {
            if let Some(read) = enactment(&object) {
                enactments.insert(read.name.clone(), read);
            }
        })
        .await?;
        let mut states = BTreeMap::new();
        each(&api(NODE_STATE), |object| {
            states.insert(object.name_any(), state(&object));
        })
        .await?;
        seen.pools = Some(pools);
        seen.policies = Some(policies);
        seen.nodes = Some(nodes);
        seen.enactments = Some(enactments);
        seen.states = Some(states);
        Ok(seen)
    }

    pub fn pools(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.pools.iter().flatten()
    }

    pub fn policies(&self) -> impl Iterator<Item = (&String, &PolicySeen)> {
        self.policies.iter().flatten()
    }

    pub fn nodes(&self) -> impl Iterator<Item = (&String, &BTreeMap<String, String>)> {
        self.nodes.iter().flatten()
    }

    pub fn enactments(&self) -> impl Iterator<Item = &EnactmentSeen> {
        self.enactments.iter().flatten().map(|(_, one)| one)
    }

    /// The specs of all pools that can be read.
    pub fn spaces(&self) -> BTreeMap<String, Result<PoolSpace, SpecError>> {
        let pools = self.pools();
        pools
            .map(|(name, object)| (name.clone(), codec::space_of(object)))
            .collect()
    }

    /// Where a reset of this pool is asked for.
    pub fn resets(&self, pool: &str) -> Vec<Reset> {
        let object = self.pools.as_ref().and_then(|pools| pools.get(pool));
        let annotations = object.and_then(|object| object.pointer("/metadata/annotations"));
        let asked = annotations.is_some_and(|all| all.get(RESET_ANNOTATION).is_some());
        let mut resets: Vec<Reset> = asked.then_some(Reset::Pool).into_iter().collect();
        let policies = self.policies().filter(|(_, policy)| {
            objects::annotation(&policy.object, RESET_ANNOTATION) == Some(pool)
        });
        resets.extend(policies.map(|(name, _)| Reset::Policy(name.clone())));
        let enactments = self.enactments();
        let asked = enactments.filter(|one| one.reset.as_deref() == Some(pool));
        resets.extend(asked.map(|one| Reset::Enactment {
            node: one.node.clone(),
            policy: one.policy.clone(),
        }));
        resets
    }

    /// Who may hold an address of this pool.
    fn live(&self, pool: &str) -> BTreeSet<Holder> {
        let mut live = BTreeSet::new();
        for (name, policy) in self.policies() {
            let Ok(spec) = &policy.spec else {
                continue;
            };
            let captures: Vec<&str> = spec
                .wanted()
                .filter(|(_, of)| *of == pool)
                .map(|(capture, _)| capture)
                .collect();
            if captures.is_empty() {
                continue;
            }
            for (node, _) in self.nodes().filter(|(_, labels)| policy.selects(labels)) {
                let of = captures.iter();
                live.extend(of.map(|capture| Holder::new(node, name, capture)));
            }
        }
        live
    }

    /// A policy that can't be read keeps what its nodes hold: a typing error releases nothing.
    fn unreadable_policies(&self) -> BTreeSet<&str> {
        let broken = self.policies().filter(|(_, policy)| policy.spec.is_err());
        broken.map(|(name, _)| name.as_str()).collect()
    }

    /// The addresses of this pool that other machines use. The claim of a node that is gone, or that names another address by now, is none.
    fn answered(&self, pool: &str) -> Vec<Answered> {
        let mut found = Vec::new();
        for one in self.enactments() {
            let Some(in_use) = &one.in_use else { continue };
            let mut claims = one.claims.of_pool(pool);
            if !claims.any(|(_, address)| address == in_use.address) {
                continue;
            }
            let mut hosts = self.states.iter().flatten();
            let of_node = hosts.find(|(_, host)| host.macs.contains(&in_use.mac));
            found.push(Answered {
                address: in_use.address,
                node: one.node.clone(),
                interface: in_use.interface.clone(),
                other: of_node.map_or_else(|| in_use.mac.clone(), |(node, _)| node.clone()),
            });
        }
        found
    }

    pub fn observed<'a>(
        &'a self,
        pool: &str,
        read: &'a NodePool,
        spaces: &'a BTreeMap<String, Result<PoolSpace, SpecError>>,
    ) -> Observed<'a> {
        let claims = self.enactments().flat_map(|one| {
            let of_pool = one.claims.of_pool(pool);
            of_pool.map(|(capture, address)| Claim {
                address,
                node: one.node.clone(),
                policy: one.policy.clone(),
                capture: capture.to_owned(),
            })
        });
        let mut live = self.live(pool);
        let broken = self.unreadable_policies();
        let kept = read.recorded.described.iter();
        let kept = kept.filter(|one| broken.contains(one.policy.as_str()));
        live.extend(kept.map(|one| Holder::new(&one.node, &one.policy, &one.capture)));
        let shown = self.states.iter().flatten().flat_map(|(node, host)| {
            let of_pool = host
                .addresses
                .iter()
                .filter(|(_, address)| read.space.offset(*address).is_some());
            of_pool.map(|(interface, address)| Shown {
                address: *address,
                node: node.clone(),
                interface: interface.clone(),
            })
        });
        let refused = self.enactments().find_map(|one| {
            let failing = one.phase == Phase::Failing;
            let says = one.message.contains(&no_free_address(pool, &one.node));
            (failing && says).then(|| format!("node {} (policy {})", one.node, one.policy))
        });
        let others = spaces.iter().filter(|(name, _)| *name != pool);
        let object = self.pools.as_ref().and_then(|pools| pools.get(pool));
        Observed {
            uid: object.map_or("", objects::uid),
            space: Ok(&read.space),
            recorded: &read.recorded,
            new: read.reason.is_none(),
            reconciling: read.reason.as_deref() == Some(Health::Reconciling.condition().reason),
            resets: self.resets(pool),
            others: others
                .filter_map(|(name, space)| Some((name.as_str(), space.as_ref().ok()?)))
                .collect(),
            claims: claims.collect(),
            live,
            nodes: self.nodes().map(|(name, _)| name.clone()).collect(),
            shown: shown.collect(),
            answered: self.answered(pool),
            refused,
        }
    }
}

/// Every object of a kind, page by page, read with quorum.
async fn each<K>(api: &Api<K>, mut take: impl FnMut(K)) -> kube::Result<()>
where
    K: Resource + Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let mut params = ListParams::default().limit(PAGE);
    loop {
        let page = api.list(&params).await?;
        page.items.into_iter().for_each(&mut take);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(()),
        }
    }
}
