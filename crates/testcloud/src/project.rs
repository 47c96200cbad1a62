//! The state of one project: what there is, and which operations are under way.
//!
//! Time comes in with every call: [`Project::settle`] completes the operations that are due. No task runs in the
//! background.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::addresses::Address;
use crate::aliases::Course;
use crate::error::ApiError;
use crate::instances::{AliasRange, Instance};
use crate::limits::{Limits, Rates};
use crate::operations::{Operation, Scope};
use crate::ranges::InternalRange;
use crate::subnetworks::{SecondaryRange, Subnetwork};

/// How the API reports a stale fingerprint; the real one does both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stale {
    /// 412 in the answer.
    Answer,
    /// `CONDITION_NOT_MET` in the finished operation.
    Operation,
}

/// What an operation changes when it ends.
#[derive(Clone, Debug)]
pub enum Effect {
    Aliases {
        zone: String,
        instance: String,
        aliases: Vec<AliasRange>,
    },
    SecondaryRanges {
        region: String,
        subnet: String,
        ranges: Vec<SecondaryRange>,
    },
    InsertAddress(Address),
    DeleteAddress {
        region: String,
        name: String,
    },
    CreateRange(InternalRange),
    DeleteRange(String),
}

/// See the module.
#[derive(Debug)]
pub struct Project {
    pub name: String,
    pub number: u64,
    /// How long an operation takes.
    pub operation_time: Duration,
    /// `zoneOperations.wait` answers after this long though the operation still runs.
    pub wait_time: Duration,
    pub stale: Stale,
    /// The metadata server is GKE's own, which pods with Workload Identity see: it has fewer answers.
    pub gke_metadata: bool,
    pub limits: Limits,
    pub(crate) instances: BTreeMap<(String, String), Instance>,
    pub(crate) subnetworks: BTreeMap<(String, String), Subnetwork>,
    pub(crate) addresses: BTreeMap<(String, String), Address>,
    pub(crate) ranges: BTreeMap<String, InternalRange>,
    pub(crate) operations: BTreeMap<String, Operation>,
    pub(crate) requests: BTreeMap<String, String>,
    pub(crate) rates: Rates,
    serial: u64,
}

impl Project {
    pub fn new(name: &str) -> Project {
        Project {
            name: name.to_owned(),
            number: 123_456_789,
            operation_time: Duration::from_millis(50),
            wait_time: Duration::from_secs(120),
            stale: Stale::Answer,
            gke_metadata: false,
            limits: Limits::default(),
            instances: BTreeMap::new(),
            subnetworks: BTreeMap::new(),
            addresses: BTreeMap::new(),
            ranges: BTreeMap::new(),
            operations: BTreeMap::new(),
            requests: BTreeMap::new(),
            rates: Rates::default(),
            serial: 0,
        }
    }

    pub(crate) fn serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    /// Adds a subnet with a primary range.
    pub fn add_subnetwork(&mut self, region: &str, name: &str, cidr: &str) {
        let subnet = Subnetwork::new(self.serial(), region, name, cidr);
        let key = (region.to_owned(), name.to_owned());
        self.subnetworks.insert(key, subnet);
    }

    /// Adds a VM whose NIC lies in a subnet, with the alias ranges that it starts with.
    pub fn add_instance(
        &mut self,
        zone: &str,
        name: &str,
        subnet: (&str, &str),
        aliases: Vec<AliasRange>,
    ) {
        let id = self.serial();
        let instance = Instance {
            zone: zone.to_owned(),
            name: name.to_owned(),
            id,
            region: subnet.0.to_owned(),
            subnet: subnet.1.to_owned(),
            address: format!("10.0.0.{}", 1 + id % 250),
            version: 1,
            aliases,
            busy: None,
        };
        self.instances
            .insert((zone.to_owned(), name.to_owned()), instance);
    }

    /// The VM vanishes, with its aliases.
    pub fn remove_instance(&mut self, zone: &str, name: &str) {
        self.instances.remove(&(zone.to_owned(), name.to_owned()));
    }

    /// Adds a secondary range to a subnet, as an administrator would.
    pub fn add_secondary_range(&mut self, region: &str, subnet: &str, range: &str, cidr: &str) {
        let key = (region.to_owned(), subnet.to_owned());
        if let Some(subnet) = self.subnetworks.get_mut(&key) {
            subnet.version += 1;
            subnet.secondary.push(SecondaryRange {
                range_name: range.to_owned(),
                ip_cidr_range: cidr.to_owned(),
                reserved_internal_range: None,
            });
        }
    }

    /// Removes a secondary range underneath its users.
    pub fn drop_secondary_range(&mut self, region: &str, subnet: &str, range: &str) {
        let key = (region.to_owned(), subnet.to_owned());
        if let Some(subnet) = self.subnetworks.get_mut(&key) {
            subnet.version += 1;
            subnet.secondary.retain(|known| known.range_name != range);
        }
    }

    /// The alias ranges of a NIC, as they are now; None where there is no such VM.
    pub fn aliases(&mut self, zone: &str, name: &str) -> Option<Vec<AliasRange>> {
        self.settle(Instant::now());
        let instance = self.instances.get(&(zone.to_owned(), name.to_owned()))?;
        Some(instance.aliases.clone())
    }

    /// Changes the alias ranges of a NIC by hand.
    pub fn set_aliases(&mut self, zone: &str, name: &str, aliases: Vec<AliasRange>) {
        if let Some(instance) = self.instances.get_mut(&(zone.to_owned(), name.to_owned())) {
            instance.version += 1;
            instance.aliases = aliases;
        }
    }

    /// Which VM has this address as an alias; all of them, if a fault gave it to several.
    pub fn holders(&mut self, address: &str) -> Vec<(String, String)> {
        self.settle(Instant::now());
        let wanted = format!("{address}/32");
        let holds = |instance: &&Instance| {
            let mut aliases = instance.aliases.iter();
            aliases.any(|alias| alias.ip_cidr_range == wanted)
        };
        let holders = self.instances.values().filter(holds);
        holders
            .map(|instance| (instance.zone.clone(), instance.name.clone()))
            .collect()
    }

    /// Requests that were refused because of the rate.
    pub fn refused(&self) -> usize {
        self.rates.refused()
    }

    pub(crate) fn operation(&self, scope: &Scope, name: &str) -> Result<&Operation, ApiError> {
        let found = self
            .operations
            .get(name)
            .filter(|operation| &operation.scope == scope);
        found.ok_or_else(|| ApiError::not_found(&format!("operations/{name}")))
    }

    /// The operation that a request with this id started before.
    fn repeated(&self, request_id: Option<&str>) -> Option<Operation> {
        let name = self.requests.get(request_id?)?;
        self.operations.get(name).cloned()
    }

    /// Starts the operation of a request that `plan` allows, or answers with the one that an earlier copy of the
    /// request started.
    pub(crate) fn once(
        &mut self,
        query: &dyn Fn(&str) -> Option<String>,
        course: Course,
        now: Instant,
        plan: impl FnOnce(&Project) -> Result<Planned, ApiError>,
    ) -> Result<Operation, ApiError> {
        let id = request_id(query("requestId").as_deref())?;
        if let Some(repeated) = self.repeated(id.as_deref()) {
            return Ok(repeated);
        }
        let planned = plan(self)?;
        let fault = course.error.map(|(code, message)| (code, message, 400));
        let started = NewOperation {
            scope: planned.scope,
            kind: planned.kind,
            target: planned.target,
            request_id: id,
            error: planned.error.or(fault),
            effect: planned.effect,
            response: planned.response,
            endless: course.endless,
        };
        Ok(self.start(started, now))
    }

    /// Whether an operation that has not ended yet will have such an effect.
    pub(crate) fn is_under_way(&self, wanted: impl Fn(&Effect) -> bool) -> bool {
        let mut effects = self
            .operations
            .values()
            .filter_map(|one| one.effect.as_ref());
        effects.any(wanted)
    }

    /// Starts an operation.
    fn start(&mut self, started: NewOperation, now: Instant) -> Operation {
        let serial = self.serial();
        let name = format!("operation-{serial}");
        let operation = Operation {
            name: name.clone(),
            scope: started.scope,
            kind: started.kind,
            target: started.target,
            request_id: started.request_id.clone(),
            ends: (!started.endless).then(|| now + self.operation_time),
            error: started.error,
            effect: Some(started.effect),
            done: false,
            response: started.response,
        };
        if let Some(Effect::Aliases { zone, instance, .. }) = &operation.effect
            && let Some(instance) = self.instances.get_mut(&(zone.clone(), instance.clone()))
        {
            instance.busy = Some(name.clone());
        }
        if let Some(id) = started.request_id {
            self.requests.insert(id, name.clone());
        }
        self.operations.insert(name, operation.clone());
        operation
    }

    /// Completes what is due.
    pub(crate) fn settle(&mut self, now: Instant) {
        let due = |operation: &Operation| {
            !operation.done && operation.ends.is_some_and(|ends| ends <= now)
        };
        let mut names: Vec<(Option<Instant>, String)> = Vec::new();
        for operation in self.operations.values().filter(|operation| due(operation)) {
            names.push((operation.ends, operation.name.clone()));
        }
        names.sort();
        for (_, name) in names {
            let Some(operation) = self.operations.get_mut(&name) else {
                continue;
            };
            operation.done = true;
            let (effect, failed) = (operation.effect.take(), operation.error.is_some());
            if let Some(effect) = effect {
                self.carry_out(effect, failed);
            }
        }
    }

    fn carry_out(&mut self, effect: Effect, failed: bool) {
        match effect {
            Effect::Aliases {
                zone,
                instance,
                aliases,
            } => {
                let Some(instance) = self.instances.get_mut(&(zone, instance)) else {
                    return;
                };
                instance.busy = None;
                if !failed {
                    instance.version += 1;
                    instance.aliases = aliases;
                }
            }
            _ if failed => {}
            Effect::SecondaryRanges {
                region,
                subnet,
                ranges,
            } => {
                if let Some(subnet) = self.subnetworks.get_mut(&(region, subnet)) {
                    subnet.version += 1;
                    subnet.secondary = ranges;
                }
            }
            Effect::InsertAddress(address) => {
                let key = (address.region.clone(), address.name.clone());
                self.addresses.insert(key, address);
            }
            Effect::DeleteAddress { region, name } => {
                self.addresses.remove(&(region, name));
            }
            Effect::CreateRange(range) => {
                self.ranges.insert(range.name.clone(), range);
            }
            Effect::DeleteRange(name) => {
                self.ranges.remove(&name);
            }
        }
    }
}

/// An operation that is about to start.
struct NewOperation {
    scope: Scope,
    kind: &'static str,
    target: String,
    request_id: Option<String>,
    error: Option<(String, String, u16)>,
    effect: Effect,
    response: Option<Value>,
    endless: bool,
}

/// What a request changes, once it was allowed.
pub(crate) struct Planned {
    pub scope: Scope,
    pub kind: &'static str,
    pub target: String,
    /// The operation fails so.
    pub error: Option<(String, String, u16)>,
    pub effect: Effect,
    pub response: Option<Value>,
}

/// A UUID that is not the zero one, as a requestId must be.
fn request_id(given: Option<&str>) -> Result<Option<String>, ApiError> {
    let Some(given) = given else {
        return Ok(None);
    };
    let groups: Vec<&str> = given.split('-').collect();
    let lengths: Vec<usize> = groups.iter().map(|group| group.len()).collect();
    let hex = groups
        .iter()
        .all(|group| group.chars().all(|digit| digit.is_ascii_hexdigit()));
    let zero = given.chars().all(|digit| digit == '0' || digit == '-');
    if lengths != [8, 4, 4, 4, 12] || !hex || zero {
        let message = format!(
            "Invalid value for field 'requestId': '{given}'. Must be a valid non-zero UUID."
        );
        return Err(ApiError::invalid(message));
    }
    Ok(Some(given.to_owned()))
}
