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
use kube::api::{Patch, Preconditions};
use serde_json::{Value, json};

use super::base::{NODE, NODE_ANNOTATION};
use super::by_hand;
use super::client::ObjectClient;
use super::resource::{RESERVATIONS, Resource};
use super::response::{Failure, Verb};
use crate::{ClaimKey, ClaimKind, LedgerError, Rejection};

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

impl ObjectClient {
    pub async fn create_claim(&self, key: &ClaimKey, record: &Record) -> Result<(), LedgerError> {
        let resource = resource(key.kind)?;
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
        Err(self.restless(resource, key))
    }

    pub async fn remove_claim(&self, key: &ClaimKey, expected: &Record) -> Result<(), LedgerError> {
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
            match self.delete(resource, &key.name, preconditions).await {
                Err(LedgerError::Conflict { .. }) => {}
                done => return done,
            }
        }
        Err(self.restless(resource, key))
    }

    pub async fn pass_claim(
        &self,
        key: &ClaimKey,
        expected: &Record,
        record: &Record,
    ) -> Result<(), LedgerError> {
        let resource = resource(key.kind)?;
        let object = self.object(key, record)?;
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
            match self.patch(resource, &key.name, &patch).await {
                Ok(_) => return Ok(()),
                Err(Failure::Refused(refusal))
                    if refusal.code == 409 || refusal.is_absence_of(&key.name) => {}
                Err(failure) => {
                    return Err(failure.into_error(self.ask(Verb::Patch, resource, &key.name)));
                }
            }
        }
        Err(self.restless(resource, key))
    }

    pub async fn claim(&self, key: &ClaimKey) -> Result<Option<Record>, LedgerError> {
        Ok(self.find(key).await?.map(|found| found.record))
    }

    /// Shows every claim of a kind to `visit`.
    pub async fn visit_claims(
        &self,
        kind: ClaimKind,
        mut visit: impl FnMut(ClaimKey, Record),
    ) -> Result<(), LedgerError> {
        let resource = resource(kind)?;
        self.reduce(resource, "", PAGE, |object: Value| {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            let key = ClaimKey::new(kind, name);
            // One that can't be read is somebody's claim all the same: it must not hide the others.
            match read(&object) {
                Ok(record) => visit(key, record),
                Err(why) => tracing::warn!(claim = %key, why, "a claim can't be read"),
            }
        })
        .await
    }

    async fn find(&self, key: &ClaimKey) -> Result<Option<Found>, LedgerError> {
        let resource = resource(key.kind)?;
        let Some(fetched) = self.get(resource, &key.name).await? else {
            return Ok(None);
        };
        let text = |field: &str| {
            fetched.object["metadata"][field]
                .as_str()
                .map(str::to_owned)
        };
        let record = read(&fetched.object).map_err(|why| LedgerError::Unreadable {
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

    fn restless(&self, resource: &'static Resource, key: &ClaimKey) -> LedgerError {
        LedgerError::Conflict {
            pool: self.ask(Verb::Get, resource, &key.name).target(),
            held: Vec::new(),
        }
    }
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
