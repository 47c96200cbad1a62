//! Claims by name: the CREATE of an object is the claim, and etcd lets one of two win.
//!
//! A reservation is whereabouts' object: the owner as pod and interface, and the handle as the
//! container, a field that whereabouts has, never writes and never reads. So one of whereabouts' has an
//! empty handle; what that means, its reader decides. A slice keeps the owner as node and network and
//! the handle as the node's UID.

use berth_api::berth::{SliceClaim, SliceClaimSpec};
use berth_api::whereabouts::{OverlappingRangeIPReservation, OverlappingRangeIPReservationSpec};
use berth_core::{Handle, Owner, Record};
use kube::api::{Patch, Preconditions};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::resource::{RESERVATIONS, Resource, SLICES};
use super::status::{Failure, Verb};
use super::wire::Wire;
use crate::{ClaimKey, ClaimKind, LedgerError, Rejection};

/// Attributes of a slice's record.
pub mod attribute {
    /// The slice as a CIDR.
    pub const RANGE: &str = "range";
    /// How often the slice has changed hands (I8).
    pub const EPOCH: &str = "epoch";
}

/// Objects of a claim, in one answer of a list.
const PAGE: u32 = 500;

/// Looks at a claim that changes under our hands, before the caller has to.
const TRIES: usize = 3;

const fn resource(kind: ClaimKind) -> &'static Resource {
    match kind {
        ClaimKind::Reservation => &RESERVATIONS,
        ClaimKind::Slice => &SLICES,
    }
}

struct Found {
    record: Record,
    uid: Option<String>,
    resource_version: Option<String>,
}

impl Wire {
    pub async fn create_claim(&self, key: &ClaimKey, record: &Record) -> Result<(), LedgerError> {
        let resource = resource(key.kind);
        let object = self.object(key, record)?;
        for _ in 0..TRIES {
            match self.create(resource, &object).await {
                Ok(_) => return Ok(()),
                Err(Failure::Refused(refusal)) if refusal.is_taken_name() => {}
                Err(failure) => {
                    return Err(failure.into_error(self.ask(Verb::Create, resource, &key.name)));
                }
            }
            match self.find(key).await? {
                Some(found) if found.record.same_holder(record) => return Ok(()),
                Some(found) => return Err(taken(key, Some(&found.record))),
                // Removed in between: the name is free again.
                None => {}
            }
        }
        Err(self.restless(key))
    }

    pub async fn remove_claim(&self, key: &ClaimKey, expected: &Record) -> Result<(), LedgerError> {
        let resource = resource(key.kind);
        for _ in 0..TRIES {
            let found = match self.find(key).await? {
                None => return Ok(()),
                Some(found) if !found.record.same_holder(expected) => {
                    return Err(taken(key, Some(&found.record)));
                }
                Some(found) => found,
            };
            // Exactly the object that was looked at: another may have taken the name since (I6).
            let preconditions = Preconditions {
                uid: found.uid,
                resource_version: found.resource_version,
            };
            match self.delete(resource, &key.name, preconditions).await {
                Err(LedgerError::Conflict { .. }) => {}
                done => return done,
            }
        }
        Err(self.restless(key))
    }

    pub async fn pass_claim(
        &self,
        key: &ClaimKey,
        expected: &Record,
        record: &Record,
    ) -> Result<(), LedgerError> {
        let resource = resource(key.kind);
        let object = self.object(key, record)?;
        for _ in 0..TRIES {
            let found = match self.find(key).await? {
                Some(found) if found.record.same_holder(record) => return Ok(()),
                Some(found) if found.record.same_holder(expected) => found,
                found => return Err(taken(key, found.map(|found| found.record).as_ref())),
            };
            // Exactly the object that was looked at, and what others wrote beside stays (I7).
            let patch = Patch::Merge(json!({
                "metadata": { "uid": found.uid, "resourceVersion": found.resource_version },
                "spec": object["spec"],
            }));
            match self.patch(resource, &key.name, &patch).await {
                Ok(_) => return Ok(()),
                Err(Failure::Refused(refusal))
                    if refusal.code == 409 || refusal.is_absence_of(&key.name) => {}
                Err(failure) => {
                    return Err(failure.into_error(self.ask(Verb::Patch, resource, &key.name)));
                }
            }
        }
        Err(self.restless(key))
    }

    pub async fn claim(&self, key: &ClaimKey) -> Result<Option<Record>, LedgerError> {
        Ok(self.find(key).await?.map(|found| found.record))
    }

    pub async fn claims(&self, kind: ClaimKind) -> Result<Vec<(ClaimKey, Record)>, LedgerError> {
        let resource = resource(kind);
        let mut claims = Vec::new();
        for object in self.list(resource, "", PAGE).await? {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            let key = ClaimKey::new(kind, name);
            // One that can't be read is somebody's claim all the same: it must not hide the others.
            match read(kind, &object) {
                Ok(record) => claims.push((key, record)),
                Err(why) => tracing::warn!(claim = %key, why, "a claim can't be read"),
            }
        }
        Ok(claims)
    }

    async fn find(&self, key: &ClaimKey) -> Result<Option<Found>, LedgerError> {
        let resource = resource(key.kind);
        let Some(fetched) = self.get(resource, &key.name).await? else {
            return Ok(None);
        };
        let text = |field: &str| {
            fetched.object["metadata"][field]
                .as_str()
                .map(str::to_owned)
        };
        let record = read(key.kind, &fetched.object).map_err(|why| LedgerError::Unreadable {
            target: self.ask(Verb::Get, resource, &key.name).target(),
            why,
        })?;
        Ok(Some(Found {
            record,
            uid: text("uid"),
            resource_version: text("resourceVersion"),
        }))
    }

    fn object(&self, key: &ClaimKey, record: &Record) -> Result<Value, LedgerError> {
        let object = match key.kind {
            ClaimKind::Reservation => encode(&OverlappingRangeIPReservation::new(
                &key.name,
                OverlappingRangeIPReservationSpec {
                    containerid: record.handle.as_str().to_owned(),
                    podref: record.owner.subject.clone(),
                    ifname: record.owner.part.clone(),
                },
            )),
            ClaimKind::Slice => {
                slice(record).and_then(|spec| encode(&SliceClaim::new(&key.name, spec)))
            }
        };
        object.map_err(|message| LedgerError::Rejected {
            operation: Verb::Create.name(),
            target: key.to_string(),
            rejection: Rejection::Invalid { code: 422, message },
        })
    }

    fn restless(&self, key: &ClaimKey) -> LedgerError {
        LedgerError::Conflict {
            pool: self.ask(Verb::Get, resource(key.kind), &key.name).target(),
            held: Vec::new(),
        }
    }
}

fn encode(object: &impl Serialize) -> Result<Value, String> {
    serde_json::to_value(object).map_err(|error| error.to_string())
}

fn slice(record: &Record) -> Result<SliceClaimSpec, String> {
    let epoch = record.attribute(attribute::EPOCH).unwrap_or("0");
    Ok(SliceClaimSpec {
        network: record.owner.part.clone(),
        range: record
            .attribute(attribute::RANGE)
            .unwrap_or_default()
            .to_owned(),
        node: record.owner.subject.clone(),
        node_uid: record.handle.as_str().to_owned(),
        epoch: epoch
            .parse()
            .map_err(|_| format!("the attribute epoch {epoch:?} is no number"))?,
        offers: Vec::new(),
        wants: Vec::new(),
        recalled: false,
    })
}

fn read(kind: ClaimKind, object: &Value) -> Result<Record, String> {
    let spec = object.get("spec").cloned().unwrap_or_default();
    let unreadable = |error: serde_json::Error| format!("its spec is not readable: {error}");
    match kind {
        ClaimKind::Reservation => {
            let spec: OverlappingRangeIPReservationSpec =
                serde_json::from_value(spec).map_err(unreadable)?;
            Ok(Record::new(
                Owner::new(spec.podref, spec.ifname),
                Handle::new(spec.containerid),
            ))
        }
        ClaimKind::Slice => {
            let SliceClaim { spec, .. } =
                SliceClaim::deserialize(object).map_err(|error| error.to_string())?;
            let record = Record::new(
                Owner::new(spec.node, spec.network),
                Handle::new(spec.node_uid),
            );
            Ok(record
                .with(attribute::RANGE, spec.range)
                .with(attribute::EPOCH, spec.epoch.to_string()))
        }
    }
}

fn taken(key: &ClaimKey, found: Option<&Record>) -> LedgerError {
    LedgerError::Taken {
        name: key.to_string(),
        by: found.map_or_else(|| "nobody".into(), |found| found.owner.to_string()),
    }
}
