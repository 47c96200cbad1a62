//! Claims by name: the CREATE of an object is the claim, and etcd lets one of two win.
//!
//! A reservation is whereabouts' object: the owner as pod and interface, and the handle as the
//! container, a field that whereabouts has, never writes and never reads. So one of whereabouts' has an
//! empty handle; what that means, its reader decides. The node is an annotation, which no definition of the kind prunes.
//!
//! Slices are not claimed so: who looks for them does by range and network, which a name and a holder do not tell
//! ([`super::slices`]).

use std::collections::BTreeMap;

use berth_api::whereabouts::{OverlappingRangeIPReservation, OverlappingRangeIPReservationSpec};
use berth_core::Record;
use berth_kube::{Failure, KubeError, ObjectClient, Resource, Verb};
use kube::api::{Patch, Preconditions};
use serde_json::{Value, json};

use super::base::{NODE, NODE_ANNOTATION};
use super::by_hand;
use super::resource::RESERVATIONS;
use berth_ledger::{ClaimKey, ClaimKind, LedgerError, Rejection};

/// Objects of a claim, in one answer of a list.
const PAGE: u32 = 500;

/// Looks at a claim that changes under our hands, before the caller has to.
const TRIES: usize = 3;

fn resource(kind: ClaimKind) -> Result<&'static Resource, LedgerError> {
    match kind {
        ClaimKind::Reservation => Ok(&RESERVATIONS),
        ClaimKind::Slice => Err(LedgerError::Rejected {
            operation: "claim by name",
            target: format!("{kind}s"),
            rejection: Rejection::Storage(
                "slices of a cluster are claimed with their range and network (kube::slices)"
                    .into(),
            ),
        }),
    }
}

struct Found {
    record: Record,
    uid: Option<String>,
    resource_version: Option<String>,
}

/// Reservations, by the client that reads and writes them.
pub(super) struct Reservations<'a>(pub &'a ObjectClient);

impl Reservations<'_> {
    pub async fn create(&self, key: &ClaimKey, record: &Record) -> Result<(), LedgerError> {
        let resource = resource(key.kind)?;
        let object = object(key, record)?;
        for _ in 0..TRIES {
            match self.0.create(resource, &object).await {
                Ok(_) => return Ok(()),
                Err(Failure::Refused(refusal)) if refusal.is_taken_name() => {}
                Err(failure) => {
                    return Err(failure
                        .into_error(self.0.ask(Verb::Create, resource, &key.name))
                        .into());
                }
            }
            match self.find(key).await? {
                Some(found) if found.record.same_holder(record) => return Ok(()),
                Some(found) => return Err(taken(key, Some(&found.record))),
                // Removed in between: the name is free again.
                None => {}
            }
        }
        Err(self.contended(resource, key))
    }

    pub async fn delete(&self, key: &ClaimKey, expected: &Record) -> Result<(), LedgerError> {
        let resource = resource(key.kind)?;
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
            match self.0.delete(resource, &key.name, preconditions).await {
                Err(KubeError::Conflict { .. }) => {}
                done => return Ok(done?),
            }
        }
        Err(self.contended(resource, key))
    }

    pub async fn transfer(
        &self,
        key: &ClaimKey,
        expected: &Record,
        record: &Record,
    ) -> Result<(), LedgerError> {
        let resource = resource(key.kind)?;
        let object = object(key, record)?;
        for _ in 0..TRIES {
            let found = match self.find(key).await? {
                Some(found) if found.record.same_holder(record) => return Ok(()),
                Some(found) if found.record.same_holder(expected) => found,
                found => return Err(taken(key, found.map(|found| found.record).as_ref())),
            };
            // Exactly the object that was looked at, and what others wrote beside stays (I7).
            let patch = Patch::Merge(json!({
                "metadata": {
                    "uid": found.uid,
                    "resourceVersion": found.resource_version,
                    "annotations": { NODE_ANNOTATION: record.attribute(NODE) },
                },
                "spec": object["spec"],
            }));
            match self.0.patch(resource, &key.name, &patch).await {
                Ok(_) => return Ok(()),
                Err(Failure::Refused(refusal))
                    if refusal.code == 409 || refusal.is_absence_of(&key.name) => {}
                Err(failure) => {
                    return Err(failure
                        .into_error(self.0.ask(Verb::Patch, resource, &key.name))
                        .into());
                }
            }
        }
        Err(self.contended(resource, key))
    }

    pub async fn get(&self, key: &ClaimKey) -> Result<Option<Record>, LedgerError> {
        Ok(self.find(key).await?.map(|found| found.record))
    }

    /// Shows every claim of a kind to `visit`.
    pub async fn visit(
        &self,
        kind: ClaimKind,
        mut visit: impl FnMut(ClaimKey, Record),
    ) -> Result<(), LedgerError> {
        let resource = resource(kind)?;
        let show = |object: Value| {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            let key = ClaimKey::new(kind, name);
            // One that can't be read is somebody's claim all the same: it must not hide the others.
            match read(&object) {
                Ok(record) => visit(key, record),
                Err(why) => tracing::warn!(claim = %key, why, "a claim can't be read"),
            }
        };
        Ok(self.0.reduce(resource, "", PAGE, show).await?)
    }

    async fn find(&self, key: &ClaimKey) -> Result<Option<Found>, LedgerError> {
        let resource = resource(key.kind)?;
        let Some(fetched) = self.0.get(resource, &key.name).await? else {
            return Ok(None);
        };
        let text = |field: &str| {
            fetched.object["metadata"][field]
                .as_str()
                .map(str::to_owned)
        };
        let record = read(&fetched.object).map_err(|why| LedgerError::Unreadable {
            target: self.0.ask(Verb::Get, resource, &key.name).target(),
            why,
        })?;
        Ok(Some(Found {
            record,
            uid: text("uid"),
            resource_version: text("resourceVersion"),
        }))
    }

    fn contended(&self, resource: &'static Resource, key: &ClaimKey) -> LedgerError {
        LedgerError::Conflict {
            pool: self.0.ask(Verb::Get, resource, &key.name).target(),
            held: Vec::new(),
        }
    }
}

fn object(key: &ClaimKey, record: &Record) -> Result<Value, LedgerError> {
    let spec = OverlappingRangeIPReservationSpec {
        containerid: by_hand::id(record).into_owned(),
        podref: by_hand::podref(record).to_owned(),
        ifname: record.owner.part.clone(),
    };
    let mut object = OverlappingRangeIPReservation::new(&key.name, spec);
    if let Some(node) = record.attribute(NODE) {
        let annotation = (NODE_ANNOTATION.to_owned(), node.to_owned());
        object.metadata.annotations = Some(BTreeMap::from([annotation]));
    }
    serde_json::to_value(object).map_err(|error| LedgerError::Rejected {
        operation: Verb::Create.name(),
        target: key.to_string(),
        rejection: Rejection::Invalid {
            code: 422,
            message: error.to_string(),
        },
    })
}

fn read(object: &Value) -> Result<Record, String> {
    let spec = object.get("spec").cloned().unwrap_or_default();
    let spec: OverlappingRangeIPReservationSpec = serde_json::from_value(spec)
        .map_err(|error| format!("its spec is not readable: {error}"))?;
    let record = by_hand::record(spec.containerid, spec.podref, spec.ifname);
    Ok(
        match object["metadata"]["annotations"][NODE_ANNOTATION].as_str() {
            Some(node) => record.with(NODE, node),
            None => record,
        },
    )
}

fn taken(key: &ClaimKey, found: Option<&Record>) -> LedgerError {
    LedgerError::Taken {
        name: key.to_string(),
        by: found.map_or_else(|| "nobody".into(), |found| found.owner.to_string()),
    }
}
